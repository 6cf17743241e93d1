"""The pages of studies: a comparison of models, and a search for settings with its plots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from talos.config import flat_settings
from talos.report.page import WIDTH, Figure, TextTable, fixed, number, render
from talos.report.svg import Frame, Series, intervals, line_chart, scale, scatter, span, stairs, ticks
from talos.studies.compare import ComparisonTable, RunResult

__all__ = ["Axis", "comparison_report", "tuning_report"]

_CURVES = 5  # learning curves of the best trials
_SEVERAL = 6  # distinct values up to which a parameter's values are drawn side by side


def comparison_report(table: ComparisonTable, *, title: str = "Comparison", date: str | None = None) -> str:
    """One HTML file about a comparison: the tables, and plots of metrics, curves and times.

    Plots with a line for each model show the first seven models; the tables show all of them.
    """
    measured = table.results[table.first][0].report.metrics
    coverage = [name for name in measured if name.startswith("coverage@")]
    return render(
        "comparison.html",
        title=title,
        date=date,
        comparison=table,
        results=TextTable(*table.summary()),
        tests=TextTable(*table.significance()) if len(table.rows) > 1 else None,
        metrics=[
            *(_metric(table, name) for name in dict.fromkeys([*table.metrics, *coverage])),
            _time(table),
        ],
        against_k=list(_against_k(table, measured)),
        learning=list(_learning(table)),
        settings=_settings(table),
    )


def _metric(table: ComparisonTable, metric: str) -> Figure:
    values = [(name, [run.report.metrics[metric] for run in runs]) for name, runs in table.results.items()]
    means = ", ".join(f"{name} {number(float(np.mean(own)))}" for name, own in values)
    seeds = table.rows[0].seeds
    return Figure(
        metric,
        intervals(
            values, Frame(f"Mean and standard deviation of {metric} over seeds: {means}", metric, "model")
        ),
        TextTable(
            ["model", *(f"seed {seed}" for seed in seeds)], [[name, *map(fixed, own)] for name, own in values]
        ),
        note="Dot: mean; bar: ± one standard deviation; rings: single seeds."
        if len(seeds) > 1
        else "One seed.",
    )


def _time(table: ComparisonTable) -> Figure:
    values = [(name, [run.fit_seconds for run in runs]) for name, runs in table.results.items()]
    means = ", ".join(f"{name} {np.mean(own):.1f}" for name, own in values)
    rows = [
        [
            row.model,
            fixed(row.fit_seconds[0], 2),
            fixed(row.epochs, 1),
            ", ".join(
                f"{why} ({n})" for why, n in Counter(run.stopped for run in table.results[row.model]).items()
            ),
        ]
        for row in table.rows
    ]
    return Figure(
        "Wall-clock of a fit",
        intervals(values, Frame(f"Seconds of a fit: {means}", "seconds", "model"), zero=True),
        TextTable(["model", "mean seconds", "mean epochs", "ended by"], rows),
        note="Training and validation; dot: mean, rings: single seeds.",
    )


def _against_k(table: ComparisonTable, measured: Iterable[str]) -> Iterator[Figure]:
    for name in ("precision", "recall", "ndcg"):
        ks = sorted(int(key.partition("@")[2]) for key in measured if key.startswith(f"{name}@"))
        series = [
            Series(
                model, ks, [float(np.mean([run.report.metrics[f"{name}@{k}"] for run in runs])) for k in ks]
            )
            for model, runs in table.results.items()
        ]
        yield line_chart(
            f"{name}@K", series, "list length K", "mean over users and seeds", of="model", whole=True
        )


def _learning(table: ComparisonTable) -> Iterator[Figure]:
    """Validation curves of each model's first seed, against epochs and against seconds of training."""
    curves = {name: points for name, runs in table.results.items() if (points := _evaluations(runs[0]))}
    if curves:
        records = [record for runs in table.results.values() for record in runs[0].history]
        y = next(f"validation {name}" for record in records for name in record["metrics"])
        for place, title, x in (
            (0, "Validation by epoch", "epoch"),
            (1, "Validation by time", "seconds of training, without validation"),
        ):
            series = [
                Series(name, [one[place] for one in points], [one[2] for one in points])
                for name, points in curves.items()
            ]
            yield line_chart(title, series, x, y, of="model", note=f"Seed {table.rows[0].seeds[0]}.")


def _evaluations(run: RunResult) -> list[tuple[float, float, float]]:
    """Epoch, seconds so far and validation metric of every evaluation."""
    spent = accumulate(record["seconds"] for record in run.history)
    return [
        (record["epoch"], seconds, next(iter(record["metrics"].values())))
        for record, seconds in zip(run.history, spent, strict=True)
        if record["metrics"]
    ]


def _settings(table: ComparisonTable) -> TextTable:
    """A table of settings with one column for each model; the seed is left out, since every fit has its own."""
    configs = {name: flat_settings(runs[0].config) for name, runs in table.results.items()}
    rows = [
        [key, *(one.get(key, "") for one in configs.values())]
        for key in dict.fromkeys(key for config in configs.values() for key in config if key != "seed")
    ]
    return TextTable(["setting", *configs], rows)


# ------------------------------------------------------------------------------- searches


def tuning_report(
    trials: Sequence[Mapping[str, Any]],
    *,
    metric: str,
    best: int,
    importance: Mapping[str, float],
    settings: Mapping[str, str],
    config: str,
    peak_mb: float,
    test: Mapping[str, float] | None = None,
    title: str = "Tuning",
    date: str | None = None,
) -> str:
    """One HTML file about a study: the course of the search, importance of parameters, and a table of all trials.

    Args:
        trials: `number`, `state`, `value`, `epoch`, `epochs`, `seconds`, `runs`, `parameters`, `curve` and `error`
            of each trial that ended.
        metric: the metric that was maximised on the validation part.
        best: number of the best trial.
        importance: share of each parameter; may be empty.
        settings: names and values to list.
        config: the best config as TOML.
        peak_mb: peak memory of a worker.
        test: metrics of the winner on test; None if they have not been measured.
        title: title of the page.
        date: shown as given.

    >>> trial = {"number": 0, "state": "complete", "value": 0.1, "epoch": 3, "epochs": 5, "seconds": 1.0, "runs": 1,
    ...          "parameters": {"loss.tau": 0.1}, "curve": ((3, 0.1), (5, 0.05)), "error": ""}
    >>> text = tuning_report([trial], metric="precision@20", best=0, importance={}, settings={}, config="", peak_mb=1)
    >>> text.startswith("<!doctype html>"), "<script" in text
    (True, False)
    """
    valued = [trial for trial in trials if trial["value"] is not None]
    axes = {
        key: Axis.of(key, [trial["parameters"][key] for trial in valued if key in trial["parameters"]])
        for key in dict.fromkeys(key for trial in valued for key in trial["parameters"])
    }
    at = metric.partition("@")[2]
    return render(
        "tuning.html",
        title=title,
        date=date,
        metric=metric,
        trials=trials,
        winner=next(trial for trial in trials if trial["number"] == best),
        peak_mb=peak_mb,
        test=test,
        tested=dict.fromkeys([metric, f"recall@{at}", f"ndcg@{at}"]),
        search=[_history(valued, metric), *_curves(valued, metric), *_importance(importance)],
        parameters=[*_parallel(valued, axes, metric), *_slices(valued, axes, metric)],
        config=config,
        table=_table(trials, metric),
        settings=TextTable(["setting", "value"], list(settings.items())),
    )


def _history(valued: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Values in order: dots if complete, rings if pruned, and a staircase of the best dot so far."""
    numbers, values = ([trial[name] for trial in valued] for name in ("number", "value"))
    complete = (trial["value"] if trial["state"] == "complete" else -math.inf for trial in valued)
    best = list(accumulate(complete, max))
    ends = span(numbers, pad=0.0)
    label = (
        f"Scatter plot of {metric} of {len(valued):,} trials in order, with the best so far as a line; "
        f"the best is {number(max(values))}"
    )
    rows = [
        [number(trial["number"]), trial["state"], fixed(trial["value"], 5), fixed(value, 5)]
        for trial, value in zip(valued, best, strict=True)
    ]
    return Figure(
        "History",
        scatter(
            [(trial["number"], trial["value"], _look(trial)) for trial in valued],
            Frame(label, "trial", f"validation {metric}"),
            x=ends,
            y=span(values),
            labels=[(value, number(value)) for value in ticks(*ends, 6) if value.is_integer()],
            line=(
                "line c1",
                stairs(
                    [(at, value) for at, value in zip(numbers, best, strict=True) if value > -math.inf],
                    numbers[-1],
                ),
            ),
        ),
        TextTable(["trial", "state", metric, "best so far"], rows),
        note="Dots: complete trials; rings: pruned trials, at their best value. Line: the best so far.",
    )


def _look(trial: Mapping[str, Any]) -> str:
    return "f0" if trial["state"] == "complete" else "ring c6"


def _curves(valued: Sequence[Mapping[str, Any]], metric: str) -> Iterator[Figure]:
    """Learning curves of the best few trials."""
    series = [
        Series(f"trial {one['number']}", *zip(*one["curve"], strict=True))
        for one in sorted(valued, key=lambda trial: -trial["value"])[:_CURVES]
        if one["curve"]
    ]
    if series:
        yield line_chart(
            "Learning",
            series,
            "epoch",
            f"validation {metric}",
            of="trial",
            digits=5,
            note=f"The best {len(series)} trials." if len(valued) > len(series) else "",
            zero=False,
        )


def _importance(importance: Mapping[str, float]) -> Iterator[Figure]:
    if importance:
        ranked = sorted(importance.items(), key=lambda pair: -pair[1])
        shares = ", ".join(f"{key} {share:.0%}" for key, share in ranked)
        yield Figure(
            "Importance of parameters",
            intervals(
                [(key, [share]) for key, share in ranked],
                Frame(f"Bar chart of the importance of parameters: {shares}", "share of importance", ""),
                zero=True,
                filled=True,
            ),
            TextTable(["parameter", "share"], [[key, fixed(share, 3)] for key, share in ranked]),
            note="PED-ANOVA on complete trials: the distance of the values of good trials from those of all trials.",
        )


def _parallel(valued: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], metric: str) -> Iterator[Figure]:
    """One line for each trial through the axes of its parameters and of the metric, from the worst to the best."""
    whole = [trial for trial in valued if axes and set(axes) <= set(trial["parameters"])]
    if whole:
        ranked = sorted(whole, key=lambda trial: trial["value"])
        every = [*axes.values(), Axis(metric, "even", [ranked[0]["value"], ranked[-1]["value"]])]
        points = [[*(trial["parameters"][key] for key in axes), trial["value"]] for trial in ranked]
        best = ", ".join(f"{key} {_shown(value)}" for key, value in ranked[-1]["parameters"].items())
        label = (
            f"Parallel coordinates of {len(ranked):,} trials over {', '.join(axes)} and {metric}; "
            f"the best has {best}"
        )
        rows = [
            [
                str(trial["number"]),
                *(_shown(trial["parameters"][key]) for key in axes),
                fixed(trial["value"], 5),
            ]
            for trial in reversed(ranked)
        ]
        yield Figure(
            "Parallel coordinates",
            Frame(label, "", "", 258).draw(
                "parallel.svg",
                scale(0, len(axes), 16, WIDTH - 16),
                scale(0.0, 1.0, 244, 48),
                axes=every,
                rows=[
                    [(place, every[place].fraction(value)) for place, value in enumerate(one)]
                    for one in points
                ],
                fine=len(ranked) - max(1, len(ranked) // 4),
            ),
            TextTable(["trial", *axes, metric], rows),
            note="One line for each trial: the best in orange, others of the best quarter in blue, all others faint.",
        )


def _slices(valued: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], metric: str) -> Iterator[Figure]:
    """The value of each trial against each of its parameters."""
    for key, axis in axes.items():
        trials = [
            (one["parameters"][key], one["value"], _look(one)) for one in valued if key in one["parameters"]
        ]
        trials.sort(key=lambda one: axis.fraction(one[0]))
        best, _, _ = max(trials, key=lambda one: one[1])
        label = (
            f"Scatter plot of {metric} against {key} for {len(trials):,} trials; the best has {_shown(best)}"
        )
        yield Figure(
            key,
            scatter(
                [(axis.fraction(value), score, look) for value, score, look in trials],
                Frame(label, key, f"validation {metric}"),
                x=(0.0, 1.0),
                y=span([score for _, score, _ in trials]),
                labels=axis.labels(5),
            ),
            TextTable([key, metric], [[_shown(value), fixed(score, 5)] for value, score, _ in trials]),
        )


def _table(trials: Sequence[Mapping[str, Any]], metric: str) -> TextTable:
    keys = dict.fromkeys(key for trial in trials for key in trial["parameters"])
    header = ["trial", "state", metric, "epoch", "epochs", "seconds", "runs", *keys, "error"]
    rows = [
        [
            *(str(trial["number"]), trial["state"], fixed(trial["value"], 5), str(trial["epoch"])),
            *(str(trial["epochs"]), fixed(trial["seconds"], 1), str(trial["runs"])),
            *(_shown(trial["parameters"].get(key, "")) for key in keys),
            trial["error"],
        ]
        for trial in sorted(trials, key=lambda trial: -(trial["value"] or -1))
    ]
    shown = len(header) if any(trial["error"] for trial in trials) else -1
    return TextTable(header[:shown], [row[:shown] for row in rows])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Axis:
    """The axis of one parameter: where between 0 and 1 each of its values lies.

    Attributes:
        name: of the parameter.
        kind: values side by side, or on a linear or a logarithmic scale.
        values: distinct and ascending.

    >>> Axis.of("tau", [0.1, 0.2]).fraction(0.2), Axis.of("lr", [10.0**-i for i in range(7)]).fraction(1e-3)
    (0.75, 0.5)
    """

    name: str
    kind: Literal["named", "even", "ratio"]
    values: Sequence[Any]

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> Axis:
        """An axis for these values: side by side if they are words or few, else on a log or a linear scale."""
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        distinct = sorted(set(values), key=lambda value: value if numbers else str(value))
        if not numbers or len(distinct) <= _SEVERAL:
            return cls(name, "named", distinct)
        wide = distinct[0] > 0 and distinct[-1] / distinct[0] > 8
        return cls(name, "ratio" if wide else "even", distinct)

    def fraction(self, value: Any) -> float:
        """The position of a value, 0 to 1."""
        if self.kind == "named":
            return (self.values.index(value) + 0.5) / len(self.values)
        ends = (self.values[0], self.values[-1], value)
        low, high, at = (math.log10(one) if self.kind == "ratio" else float(one) for one in ends)
        return round((at - low) / (high - low), 4) if high > low else 0.5

    def labels(self, count: int) -> list[tuple[float, str]]:
        """Positions and texts of about `count` labels."""
        low, high, shown = self.values[0], self.values[-1], self.values
        if self.kind == "even":
            shown = ticks(low, high, count)
        elif self.kind == "ratio":
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            steps = (digit * 10.0**power for power in powers for digit in (1, 2, 5))
            inside = [one for one in steps if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)]
            shown = inside[:: max(1, -(-len(inside) // (count + 2)))]
        return [(self.fraction(value), _shown(value)) for value in shown]
