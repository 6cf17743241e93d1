"""The plots of the pages, as SVG: what a table does not show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from talos.report.page import Figure, TextTable
from talos.report.svg import COLOURS, Frame, Series, bars, lines
from talos_paper import published
from talos_paper.datasets import DATASETS
from talos_paper.tables import CONTRADICTING, RowResult, groups, shown_metric, shown_name

__all__ = ["measurement_plots", "plots_of"]

Lines: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
_NO_TABLE = TextTable([], [])  # the page has the numbers


def plots_of(experiment: str, dataset: str, rows: Sequence[RowResult]) -> list[Figure]:
    """The plots of an experiment on a data set; none without runs."""
    make = _OF_ROWS.get(experiment)
    return list(make(DATASETS[dataset], groups([row for row in rows if row.runs]))) if make else []


def measurement_plots(experiment: str, dataset: str, measured: Mapping[str, Any]) -> list[Figure]:
    """The plots of an experiment that needs no fit."""
    make = {"inconsistency": _inconsistency, "theory": _theory}.get(experiment)
    return list(make(dataset, measured)) if make else []


def _lines(title: str, label: str, x: str, y: str, drawn: Lines, **options: Any) -> Figure:
    series = [Series(name, xs, ys) for name, (xs, ys) in drawn.items()]
    return Figure(title, lines(series, Frame(label, x, y), **options), _NO_TABLE, legend=list(drawn))


def _learning(name: str, rows: Mapping[str, Sequence[RowResult]]) -> Iterator[Figure]:
    """Validation metric of seed 0 against epochs, for as many methods as there are colours."""
    for group, members in rows.items():
        drawn = {}
        for row in [row for row in members if row.runs[0].curve][:COLOURS]:
            looks = [(float(epoch or 0), float(value or 0)) for epoch, _, value in row.runs[0].curve]
            drawn[shown_name(row.spec.method)] = ([one for one, _ in looks], [one for _, one in looks])
        label = f"Line chart of validation P@20 against epochs for {', '.join(drawn)}"
        title = f"{name}, {shown_name(group)}: learning curves"
        yield _lines(title, label, "epoch", "validation P@20", drawn, whole=True)


def _temperature(name: str, rows: Mapping[str, Sequence[RowResult]]) -> Iterator[Figure]:
    found = {row.spec.method: row for row in rows["mf"]}
    rival = found.pop("sl", None)
    taus = [float(row.spec.recipe.settings["loss.tau"]) for row in found.values()]
    for metric in ("precision@20", "recall@20"):
        drawn = {"Talos": (taus, [row.mean(metric) or 0.0 for row in found.values()])}
        best = None if rival is None else rival.mean(metric)
        if best is not None and len(taus) > 1:
            drawn["SL at its best"] = ([taus[0], taus[-1]], [best, best])
        shown = shown_metric(metric)
        label = f"Line chart of {shown} against temperature"
        yield _lines(f"{name}: {shown} against τ", label, "temperature τ", shown, drawn, zero=False)


def _inflation(name: str, rows: Mapping[str, Sequence[RowResult]]) -> Iterator[Figure]:
    for row in rows["mf"]:
        scores = row.runs[0].scores
        epochs = list(range(1, len(scores) + 1))
        drawn = {
            word: (epochs, [one[place] for one in scores])
            for place, word in enumerate(("positives", "all items", "threshold β"))
        }
        told = ", ".join(f"{word} {ys[-1]:.3f}" for word, (_, ys) in drawn.items())
        label = f"Line chart of mean scores against epochs; at the end {told}"
        title = f"{name}: {shown_name(row.spec.method)}"
        yield _lines(title, label, "epoch", "mean score", drawn, whole=True)


_OF_ROWS: dict[str, Callable[[str, Mapping[str, Sequence[RowResult]]], Iterator[Figure]]] = {
    "overall": _learning,
    "equal": _learning,
    "temperature": _temperature,
    "inflation": _inflation,
}


def _inconsistency(dataset: str, measured: Mapping[str, Any]) -> Iterator[Figure]:
    theirs = []
    for metric in CONTRADICTING:
        entries = published.numbers(table="inconsistency", dataset=dataset, method=metric)
        theirs.append(100 * (sum(entry.value for entry in entries) / 2))
    ours = [100 * measured["used"]["shares"][metric] for metric in CONTRADICTING]
    frame = Frame("Bar chart of the share of contradicting pairs", "metric", "contradicting pairs, %")
    drawn = bars(list(CONTRADICTING.values()), [("paper", theirs), ("ours", ours)], frame)
    title = f"{DATASETS[dataset]}: pairs that a metric orders against P@20"
    yield Figure(title, drawn, _NO_TABLE, legend=("paper", "ours"), key="box")


def _theory(_: str, measured: Mapping[str, Any]) -> Iterator[Figure]:
    points = [point for point in measured["bound"] if point["tau"] <= 0.3]
    taus = [point["tau"] for point in points]
    sides = {"loss + constant": "right", "-log P@20": "left"}
    interval = next(one for one in measured["intervals"] if one["epsilon"] == measured["epsilon"])
    yield _lines(
        "Both sides of the bound",
        "Line chart of both sides of the bound against τ",
        "temperature τ",
        "mean over users",
        {name: (taus, [point[key] for point in points]) for name, key in sides.items()},
        mark=((interval["low"] + interval["high"]) / 2, "proven here"),
    )
    yield _lines(
        "The worst case over negatives",
        "Line chart of the weight of a negative against its score",
        "score of the negative",
        "weight",
        {
            f"τ = {case['tau']:g} (η = {case['eta']:.2f})": (measured["negatives"], case["weights"])
            for case in measured["worst"]
        },
    )
    found = measured["convergence"]
    # the frame has linear axes, so the values are logarithms
    steps, means, allowed = (
        [math.log10(max(value, 1e-12)) for value in found[name]]
        for name in ("steps", "running_mean", "allowed")
    )
    yield _lines(
        "Convergence with a constant threshold",
        "Line chart of the mean squared gradient against steps",
        "log₁₀ of steps",
        "log₁₀",
        {"mean of ‖∇L‖²": (steps, means), "allowed by the theorem": (steps, allowed)},
        zero=False,
    )
