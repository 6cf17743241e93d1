"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from talos.config import flat_settings
from talos.report.page import Figure, Section, TextTable, page, table_html
from talos.report.svg import COLOURS, Frame, Series, intervals, lines, number
from talos.studies.compare import ComparisonTable, RunResult

__all__ = ["comparison_report"]


def comparison_report(table: ComparisonTable, *, title: str = "Comparison", date: str | None = None) -> str:
    """One HTML file about a comparison: the tables, and plots of metrics, curves and times.

    Plots with a line for each model show the first seven models; the tables show all of them.
    """
    seeds = len(table.rows[0].seeds)
    models = f"{len(table.rows)} model{'s' * (len(table.rows) > 1)}"
    subtitle = f"{models}, {seeds} seed{'s' * (seeds > 1)} each, {table.num_users:,} test users."
    sections = [
        Section("Results", html=table_html(TextTable(*table.summary())), note=table.legend),
        Section("Metrics and time", [*(_metric(table, name) for name in _drawn(table)), _time(table)]),
        Section("Against list length", _against_k(table)),
        Section("Learning", _learning(table)),
        Section("Settings", html=_settings(table)),
    ]
    if len(table.rows) > 1:
        tests = Section(
            f"{table.first} against the others",
            html=table_html(TextTable(*table.significance())),
            note=f"Alternative tested: {table.hypothesis}. Differences are {table.first} minus the other; "
            "+/- counts the users on whom it is higher and lower. p-values are of paired t-tests, Holm-corrected.",
        )
        sections.insert(1, tests)
    return page(title, subtitle, sections, date=date)


def _drawn(table: ComparisonTable) -> list[str]:
    """The metrics to plot: those of the table, and coverage."""
    measured = table.results[table.first][0].report.metrics
    return list(dict.fromkeys([*table.metrics, *(name for name in measured if name.startswith("coverage@"))]))


def _metric(table: ComparisonTable, metric: str) -> Figure:
    values = [(name, [run.report.metrics[metric] for run in runs]) for name, runs in table.results.items()]
    means = ", ".join(f"{name} {number(float(np.mean(found)))}" for name, found in values)
    label = f"Mean and standard deviation of {metric} over seeds: {means}"
    seeds = table.rows[0].seeds
    note = "Dot: mean; bar: ± one standard deviation; rings: single seeds."
    rows = [[name, *(f"{value:.4f}" for value in found)] for name, found in values]
    return Figure(
        metric,
        intervals(values, Frame(label, metric, "model")),
        TextTable(["model", *(f"seed {seed}" for seed in seeds)], rows),
        note=note if len(seeds) > 1 else "One seed.",
    )


def _against_k(table: ComparisonTable) -> list[Figure]:
    found = []
    measured = table.results[table.first][0].report.metrics
    for name in ("precision", "recall", "ndcg"):
        ks = sorted(int(key.partition("@")[2]) for key in measured if key.startswith(f"{name}@"))
        means = {
            model: [float(np.mean([run.report.metrics[f"{name}@{k}"] for run in runs])) for k in ks]
            for model, runs in table.results.items()
        }
        drawn = list(means)[:COLOURS]
        label = f"Line chart of mean {name} against list lengths {ks[0]} to {ks[-1]} for {', '.join(drawn)}"
        series = [Series(model, ks, means[model]) for model in drawn]
        svg = lines(series, Frame(label, "list length K", "mean over users and seeds"), whole=True)
        rows = [
            [str(k), *map("{:.4f}".format, values)] for k, *values in zip(ks, *means.values(), strict=True)
        ]
        numbers = TextTable(["K", *means], rows)
        found.append(Figure(f"{name}@K", svg, numbers, legend=drawn, note=_left_out(means)))
    return found


def _left_out(models: Sized) -> str:
    return f"The first {COLOURS} of {len(models)} models." if len(models) > COLOURS else ""


def _learning(table: ComparisonTable) -> list[Figure]:
    """Validation curves of each model's first seed, against epochs and against seconds of training."""
    curves = {name: _evaluations(runs[0]) for name, runs in table.results.items()}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return []
    drawn = list(curves)[:COLOURS]
    metric = f"validation {curves[drawn[0]][0]['metric']}"
    rows = [
        [name, number(point["epoch"]), f"{point['seconds']:.2f}", f"{point['value']:.4f}"]
        for name, points in curves.items()
        for point in points
    ]
    numbers = TextTable(["model", "epoch", "seconds", metric], rows)
    note = f"Seed {table.rows[0].seeds[0]}. {_left_out(curves)}".strip()
    found = []
    for title, x, x_name in (
        ("Validation by epoch", "epoch", "epoch"),
        ("Validation by time", "seconds", "seconds of training, validation not counted"),
    ):
        series = [
            Series(name, *zip(*((p[x], p["value"]) for p in curves[name]), strict=True)) for name in drawn
        ]
        label = f"Line chart of {metric} against {x} for {', '.join(drawn)}"
        svg = lines(series, Frame(label, x_name, metric))
        found.append(Figure(title, svg, numbers, legend=drawn, note=note))
    return found


def _evaluations(run: RunResult) -> list[dict[str, Any]]:
    """Epoch, seconds so far and validation metric of every evaluation."""
    spent, points = 0.0, []
    for record in run.history:
        spent += record["seconds"]
        if record["metrics"]:
            metric, value = next(iter(record["metrics"].items()))
            points.append({"epoch": record["epoch"], "seconds": spent, "metric": metric, "value": value})
    return points


def _time(table: ComparisonTable) -> Figure:
    values = [(name, [run.fit_seconds for run in runs]) for name, runs in table.results.items()]
    means = ", ".join(f"{name} {np.mean(found):.1f}" for name, found in values)
    rows = [
        [row.model, f"{row.fit_seconds[0]:.2f}", f"{row.epochs:.1f}", _endings(table.results[row.model])]
        for row in table.rows
    ]
    return Figure(
        "Wall-clock of a fit",
        intervals(values, Frame(f"Seconds of a fit: {means}", "seconds", "model"), zero=True),
        TextTable(["model", "mean seconds", "mean epochs", "ended by"], rows),
        note="Training and validation; dot: mean, rings: single seeds.",
    )


def _endings(runs: Sequence[RunResult]) -> str:
    endings = [run.stopped for run in runs]
    return ", ".join(f"{ending} ({endings.count(ending)})" for ending in dict.fromkeys(endings))


def _settings(table: ComparisonTable) -> str:
    """A table of settings with one column for each model; the seed is left out, since every fit has its own."""
    configs = {name: flat_settings(runs[0].config) for name, runs in table.results.items()}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config if key != "seed"))
    rows = [[key, *(config.get(key, "") for config in configs.values())] for key in keys]
    return table_html(TextTable(["setting", *configs], rows))
