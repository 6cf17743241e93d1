"""The page of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from talos.config import flat_settings
from talos.report.page import Figure, TextTable, line_chart
from talos.report.render import fixed, number, render
from talos.report.svg import Frame, Series, intervals
from talos.studies.compare import ComparisonTable, RunResult

__all__ = ["comparison_report"]


def comparison_report(table: ComparisonTable, *, title: str = "Comparison", date: str | None = None) -> str:
    """One HTML file about a comparison: the tables, and plots of metrics, curves and times.

    Plots with a line for each model show the first seven models; the tables show all of them.
    """
    return render(
        "comparison.html",
        title=title,
        date=date,
        comparison=table,
        results=TextTable(*table.summary()),
        tests=TextTable(*table.significance()) if len(table.rows) > 1 else None,
        metrics=[*(_metric(table, name) for name in _drawn(table)), _time(table)],
        against_k=list(_against_k(table)),
        learning=list(_learning(table)),
        settings=_settings(table),
    )


def _drawn(table: ComparisonTable) -> list[str]:
    """The metrics to plot: those of the table, and coverage."""
    measured = table.results[table.first][0].report.metrics
    return list(dict.fromkeys([*table.metrics, *(name for name in measured if name.startswith("coverage@"))]))


def _metric(table: ComparisonTable, metric: str) -> Figure:
    values = [(name, [run.report.metrics[metric] for run in runs]) for name, runs in table.results.items()]
    means = ", ".join(f"{name} {number(float(np.mean(own)))}" for name, own in values)
    label = f"Mean and standard deviation of {metric} over seeds: {means}"
    seeds = table.rows[0].seeds
    return Figure(
        metric,
        intervals(values, Frame(label, metric, "model")),
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


def _against_k(table: ComparisonTable) -> Iterator[Figure]:
    measured = table.results[table.first][0].report.metrics
    for name in ("precision", "recall", "ndcg"):
        ks = sorted(int(key.partition("@")[2]) for key in measured if key.startswith(f"{name}@"))
        series = [
            Series(
                model, ks, [float(np.mean([run.report.metrics[f"{name}@{k}"] for run in runs])) for k in ks]
            )
            for model, runs in table.results.items()
        ]
        y = "mean over users and seeds"
        yield line_chart(f"{name}@K", series, "list length K", y, of="model", whole=True)


def _learning(table: ComparisonTable) -> Iterator[Figure]:
    """Validation curves of each model's first seed, against epochs and against seconds of training."""
    curves = {name: points for name, runs in table.results.items() if (points := _evaluations(runs[0]))}
    records = [record for runs in table.results.values() for record in runs[0].history]
    metric = next((f"validation {name}" for record in records for name in record["metrics"]), "")
    for place, (title, x) in enumerate(
        (("Validation by epoch", "epoch"), ("Validation by time", "seconds of training, without validation"))
    ):
        series = [
            Series(name, [one[place] for one in points], [one[2] for one in points])
            for name, points in curves.items()
        ]
        if series:
            yield line_chart(title, series, x, metric, of="model", note=f"Seed {table.rows[0].seeds[0]}.")


def _evaluations(run: RunResult) -> list[tuple[float, float, float]]:
    """Epoch, seconds so far and validation metric of every evaluation."""
    spent = np.cumsum([record["seconds"] for record in run.history])
    return [
        (record["epoch"], float(seconds), next(iter(record["metrics"].values())))
        for record, seconds in zip(run.history, spent, strict=True)
        if record["metrics"]
    ]


def _settings(table: ComparisonTable) -> TextTable:
    """A table of settings with one column for each model; the seed is left out, since every fit has its own."""
    configs = {name: flat_settings(runs[0].config) for name, runs in table.results.items()}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config if key != "seed"))
    return TextTable(
        ["setting", *configs], [[key, *(one.get(key, "") for one in configs.values())] for key in keys]
    )
