"""The table of a comparison: mean ± standard deviation over seeds, and each model tested against the first.

It prints as text, and is written as CSV and as LaTeX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talos.errors import ArgumentError, nearest
from talos.evaluation.evaluate import Report
from talos.evaluation.significance import Alternative, Comparison, compare_reports, compare_seeds, holm

__all__ = ["Against", "ComparisonTable", "ModelRow", "RunResult", "build_table"]

LEVEL = 0.05  # corrected p-values below this are marked as significant
SHOWN_TEST = "t"  # tables show the p-value of this test of `talos.significance`; JSON has all of them


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one fit."""

    model: str  # the name it is compared under
    seed: int  # the seed of its training
    fit_seconds: float  # wall-clock time of the fit, validation included
    epoch: int  # the epoch whose weights were kept
    stopped: str  # what ended the fit: `epochs`, `patience` or `budget`; a baseline is `computed`
    config: dict[str, Any]  # the config as trained, with every `auto` resolved
    report: Report  # metrics on the test part, with per-user values
    history: list[dict[str, Any]] = field(repr=False)  # one record for each epoch, as in `history.jsonl`


@dataclass(frozen=True)
class Against:
    """One metric of one model against the first model.

    `users` is the test over users, on values averaged over the seeds; `seeds` the test over seeds, on means over
    users; either is None if there are fewer than two pairs. `p_users` and `p_seeds` are the p-values of their paired
    t-tests after Holm's correction over the whole table.
    """

    metric: str
    difference: float  # the first model's mean minus this one's
    users: Comparison | None
    seeds: Comparison | None
    p_users: float | None
    p_seeds: float | None


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model: means and standard deviations over its seeds, and its tests against the first model."""

    model: str
    loss: str  # empty for a baseline, as is the next
    backbone: str
    seeds: tuple[int, ...]
    means: dict[str, float]
    stds: dict[str, float]
    fit_seconds: tuple[float, float]  # mean and standard deviation
    epochs: float
    # by metric; empty for the first model
    against: dict[str, Against] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """The result of `talos.studies.compare.compare`; prints as two tables, means and tests."""

    rows: tuple[ModelRow, ...]
    metrics: tuple[str, ...]
    alternative: Alternative
    num_users: int
    results: Mapping[str, Sequence[RunResult]] = field(repr=False)

    @property
    def first(self) -> str:
        """The model that the others are compared with."""
        return self.rows[0].model

    @property
    def hypothesis(self) -> str:
        """The alternative hypothesis in words."""
        words = {"two-sided": "differs from", "greater": "is higher than", "less": "is lower than"}
        return f"{self.first} {words[self.alternative]} the other model"

    def summary(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the first table: mean ± std of each metric with its marks, and the time of a fit."""
        rows = [
            [
                row.model,
                *(f"{_spread(row.means[m], row.stds[m])}{self.marks(row, m)}" for m in self.metrics),
                _spread(*row.fit_seconds, digits=1),
            ]
            for row in self.rows
        ]
        return ["model", *self.metrics, "seconds"], rows

    def significance(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the second table: one test for each other model and metric."""
        header = ["against", "metric", "difference", "users +/-", "p (users)", "p (seeds)"]
        rows = [
            [
                row.model,
                metric,
                f"{found.difference:+.4f}",
                "" if found.users is None else f"{found.users.wins:,}/{found.users.losses:,}",
                _p(found.p_users),
                _p(found.p_seeds),
            ]
            for row in self.rows[1:]
            for metric, found in row.against.items()
        ]
        return header, rows

    def marks(self, row: ModelRow, metric: str) -> str:
        """`*` where the test over users is significant, `†` where that over seeds is."""
        found = row.against.get(metric)
        marks = [] if found is None else [(found.p_users, "*"), (found.p_seeds, "†")]
        text = "".join(mark for p, mark in marks if p is not None and p < LEVEL)
        return f" {text}" if text else ""

    @property
    def legend(self) -> str:
        """A note that explains the marks and columns."""
        seeds = len(self.rows[0].seeds)
        spread = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
        return (
            f"{spread}; {self.num_users:,} users. Alternative tested: {self.hypothesis}. "
            f"* p < {LEVEL} over users (values averaged over seeds), † p < {LEVEL} over seeds; "
            "paired t-tests, Holm-corrected over all models and metrics shown."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the metrics of each model under `metrics`, tests under `against`."""
        return {
            "first": self.first,
            "hypothesis": self.hypothesis,
            "users": self.num_users,
            "models": [_row_dict(row) for row in self.rows],
        }

    def to_csv(self) -> str:
        """One line for each model and metric."""
        return pl.DataFrame(
            (_csv_row(row, metric) for row in self.rows for metric in self.metrics),
            infer_schema_length=None,
        ).write_csv()

    def to_latex(self, path: str | Path | None = None) -> str:
        """The first table for `booktabs`, the best mean of each metric in bold; also written to `path`, if given."""
        header, rows = self.summary()
        best = {metric: max(row.means[metric] for row in self.rows) for metric in self.metrics}
        lines = [" & ".join(cell.translate(_LATEX) for cell in header)]
        for row, cells in zip(self.rows, rows, strict=True):
            bold = [False, *(row.means[metric] == best[metric] for metric in self.metrics), False]
            texts = [(cell.translate(_LATEX), strong) for cell, strong in zip(cells, bold, strict=True)]
            lines.append(" & ".join(rf"\textbf{{{text}}}" if strong else text for text, strong in texts))
        text = (
            r"% needs \usepackage{booktabs}"
            f"\n\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}\n\\toprule\n{lines[0]} \\\\\n\\midrule\n"
            + "".join(f"{line} \\\\\n" for line in lines[1:])
            + f"\\bottomrule\n\\end{{tabular}}\n% {self.legend.translate(_LATEX)}\n"
        )
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __str__(self) -> str:
        tables = [self.summary(), self.significance()] if len(self.rows) > 1 else [self.summary()]
        return "\n\n".join([*(_aligned(*one) for one in tables), self.legend])


def build_table(
    results: Mapping[str, Sequence[RunResult]], metrics: Sequence[str], alternative: Alternative
) -> ComparisonTable:
    """The table of results by model; every other model is tested against the first."""
    reports = {name: [run.report for run in runs] for name, runs in results.items()}
    means = {name: _averaged(ones) for name, ones in reports.items()}
    first, *others = results
    for metric in metrics:
        if metric not in means[first].metrics:
            raise ArgumentError(
                f"no {metric!r} was measured",
                where="metrics",
                hint=nearest(metric, means[first].metrics),
            )
    rows = {name: _row(name, runs, means[name], metrics) for name, runs in results.items()}
    tests: dict[tuple[str, str], tuple[Comparison | None, Comparison | None]] = {}
    for name in others:
        for metric in metrics:
            how: dict[str, Any] = {"metric": metric, "alternative": alternative, "names": (first, name)}
            a, b = means[first], means[name]
            users = compare_reports(a, b, **how) if metric in a.per_user and a.num_users > 1 else None
            several = len(reports[first]) > 1
            tests[name, metric] = (
                users,
                compare_seeds(reports[first], reports[name], **how) if several else None,
            )
    corrected = zip(*(_corrected([found[i] for found in tests.values()]) for i in (0, 1)), strict=True)
    for ((name, metric), found), ps in zip(tests.items(), corrected, strict=True):
        difference = means[first].metrics[metric] - means[name].metrics[metric]
        rows[name].against[metric] = Against(metric, difference, *found, *ps)
    return ComparisonTable(
        rows=tuple(rows.values()),
        metrics=tuple(metrics),
        alternative=alternative,
        num_users=means[first].num_users,
        results=dict(results),
    )


def _averaged(reports: Sequence[Report]) -> Report:
    """One report in which every value is the mean over the seeds."""
    first = reports[0]
    return replace(
        first,
        metrics={name: float(np.mean([r.metrics[name] for r in reports])) for name in first.metrics},
        per_user={name: np.mean([r.per_user[name] for r in reports], axis=0) for name in first.per_user},
    )


def _row(name: str, runs: Sequence[RunResult], mean: Report, metrics: Sequence[str]) -> ModelRow:
    seconds = [run.fit_seconds for run in runs]
    return ModelRow(
        model=name,
        loss=runs[0].config.get("loss", {}).get("name", ""),
        backbone=runs[0].config.get("backbone", {}).get("name", ""),
        seeds=tuple(run.seed for run in runs),
        means={metric: mean.metrics[metric] for metric in metrics},
        stds={metric: _std([run.report.metrics[metric] for run in runs]) for metric in metrics},
        fit_seconds=(float(np.mean(seconds)), _std(seconds)),
        epochs=float(np.mean([len(run.history) for run in runs])),
    )


def _corrected(tests: Sequence[Comparison | None]) -> list[float | None]:
    """p-values after Holm's correction over the tests that exist; None where there is no test."""
    made = iter(holm([test.p_values[SHOWN_TEST] for test in tests if test is not None]))
    return [None if test is None else next(made) for test in tests]


def _row_dict(row: ModelRow) -> dict[str, Any]:
    return {
        "model": row.model,
        "loss": row.loss,
        "backbone": row.backbone,
        "seeds": list(row.seeds),
        "metrics": row.means,
        "std": row.stds if len(row.seeds) > 1 else {},
        "fit_seconds": row.fit_seconds[0],
        "epochs": row.epochs,
        "against": {
            metric: {
                "difference": found.difference,
                "p_users": found.p_users,
                "p_seeds": found.p_seeds,
                "users": None if found.users is None else vars(found.users),
                "seeds": None if found.seeds is None else vars(found.seeds),
            }
            for metric, found in row.against.items()
        },
    }


def _csv_row(row: ModelRow, metric: str) -> dict[str, Any]:
    found = row.against.get(metric)
    users, seeds = (found.users, found.seeds) if found else (None, None)
    several = len(row.seeds) > 1
    return {
        "model": row.model,
        "loss": row.loss,
        "backbone": row.backbone,
        "metric": metric,
        "mean": row.means[metric],
        "std": row.stds[metric] if several else None,
        "seeds": len(row.seeds),
        "difference": found and found.difference,
        "hypothesis": users and users.hypothesis,
        "p_users": users and users.p_values[SHOWN_TEST],
        "p_users_holm": found and found.p_users,
        "p_seeds": seeds and seeds.p_values[SHOWN_TEST],
        "p_seeds_holm": found and found.p_seeds,
        "users_higher": users and users.wins,
        "users_lower": users and users.losses,
        "effect_size": users and users.effect_size,
        "fit_seconds_mean": round(row.fit_seconds[0], 3),
        "fit_seconds_std": round(row.fit_seconds[1], 3) if several else None,
        "epochs": row.epochs,
    }


_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "†": r"$\dagger$",
        "\n": " ",
    }
)


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def _spread(mean: float, std: float, digits: int = 4) -> str:
    return f"{mean:.{digits}f}" if np.isnan(std) else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _p(value: float | None) -> str:
    return "–" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _aligned(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    )
