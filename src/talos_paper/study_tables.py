"""Tables and plots of the studies that are no fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from talos.report.page import Figure, TextTable
from talos.report.svg import Frame, Series, bars, lines
from talos_paper import published
from talos_paper.data import DATASETS
from talos_paper.inconsistency import SOURCES
from talos_paper.tables import TableText, percent, shown_name

__all__ = ["study_parts"]


def study_parts(
    name: str, dataset: str, measured: dict[str, Any]
) -> tuple[list[TableText], Sequence[Figure], list[str]]:
    """Tables, plots and sentences of a study."""
    if name == "statistics":
        return [_statistics(dataset, measured)], [], []
    if name == "efficiency":
        return [_efficiency(dataset, measured)], [], []
    if name == "inconsistency":
        return _inconsistency(dataset, measured)
    if name == "theory":
        return _theory(measured)
    return [], [], []


def _statistics(dataset: str, measured: dict[str, Any]) -> TableText:
    rows = []
    for metric in ("users", "items", "interactions", "density"):
        theirs = published.value(table="statistics", dataset=dataset, metric=metric)
        ours = measured[metric]
        digits = 4 if metric == "density" else 0
        rows.append(
            [
                metric,
                "–" if theirs is None else f"{theirs:,.{digits}f}",
                f"{ours:,.{digits}f}",
                percent(None if theirs is None else ours / theirs - 1),
            ]
        )
    notes = ["Data: " + "; ".join(measured["notes"]) + "."] if measured["notes"] else []
    return TableText(title=DATASETS[dataset], header=["", "paper", "here", "diff."], rows=rows, notes=notes)


def _efficiency(dataset: str, measured: dict[str, Any]) -> TableText:
    theirs = {
        entry.method: published.mended(entry).value
        for entry in published.figures(table="efficiency")
        if published.mended(entry).dataset == dataset
    }
    paper, fast = measured["protocols"]["paper"], measured["protocols"]["fast"]
    rows = [
        [
            shown_name(loss),
            f"{theirs[loss]:.2f}" if loss in theirs else "–",
            f"{theirs[loss] / theirs['sl']:.2f}" if loss in theirs else "–",
            f"{paper[loss]['seconds']:.2f}",
            f"{paper[loss]['ratio']:.2f}",
            f"{fast[loss]['seconds']:.2f}",
            f"{fast[loss]['ratio']:.2f}",
        ]
        for loss in paper
    ]
    header = ["loss", "paper s", "paper, × SL", "ours s", "ours, × SL", "fast s", "fast, × SL"]
    notes = [
        f"Ours on {measured['threads']} thread(s) of a CPU, the paper's on one RTX 4090. ours: 1,024 negatives per "
        "positive (BPR 1); fast: see the README. Medians of steps times the steps of an epoch; losses in turns."
    ]
    return TableText(
        title=f"{DATASETS[dataset]}, MF, seconds an epoch", header=header, rows=rows, notes=notes
    )


_METRICS = {"auc": "AUC", "llpauc": "LLPAUC", "ndcg": "NDCG", "ndcg@20": "NDCG@20"}


def _inconsistency(
    dataset: str, measured: dict[str, Any]
) -> tuple[list[TableText], Sequence[Figure], list[str]]:
    """The shares in use beside the printed ones, then every reading with its distance."""
    used, name = measured["used"], DATASETS[dataset]
    printed = {
        metric: [
            published.value(table="inconsistency", dataset=dataset, method=metric, metric=f"{of}@20")
            for of in ("precision", "recall")
        ]
        for metric in _METRICS
    }
    rows, ours, theirs = [], [], []
    for metric, shown in _METRICS.items():
        mean = sum(value or 0.0 for value in printed[metric]) / 2
        here = used["shares"][metric]
        ours.append(100 * here)
        theirs.append(100 * mean)
        rows.append(
            [
                shown,
                *(_share(value) for value in printed[metric]),
                _share(here),
                f"{100 * (here - mean):+.1f}",
            ]
        )
    shares = TableText(
        title=f"{name}, share of contradicting pairs, %",
        header=["metric", "paper, with P@20", "paper, with R@20", "ours, with either", "diff., points"],
        rows=rows,
        notes=[
            f"{measured['pairs']:,} pairs of random lists. Used: positives of a list are {SOURCES[used['source']]}; "
            f"reading {used['reading']}. P@20 and R@20 order two lists of one user alike, so ours is one share.",
            *(["Data: " + "; ".join(measured["notes"]) + "."] if measured["notes"] else []),
        ],
    )
    frame = Frame("Bar chart of the share of contradicting pairs", "metric", "contradicting pairs, %")
    figure = Figure(
        f"{name}: pairs that a metric orders against P@20",
        bars(list(_METRICS.values()), [("paper", theirs), ("ours", ours)], frame),
        TextTable(
            ["metric", "paper", "ours"],
            [[row[0], f"{a:.2f}", f"{b:.2f}"] for row, a, b in zip(rows, theirs, ours, strict=True)],
        ),
        legend=("paper", "ours"),
        key="box",
    )
    return [shares, _readings(name, measured)], [figure], []


def _readings(name: str, measured: dict[str, Any]) -> TableText:
    """Every way of reading the paper's description that was tried, the nearest first."""
    tried = sorted(measured["tried"], key=lambda one: one["distance"] if one["distance"] is not None else 1.0)
    rows = [
        [
            one["source"],
            one["reading"],
            *(_share(one["shares"][metric]) for metric in _METRICS),
            "–" if one["distance"] is None else f"{100 * one['distance']:.1f}",
            "used" if one == measured["used"] else "",
        ]
        for one in tried
    ]
    header = ["positives", "reading", *_METRICS.values(), "distance, points", ""]
    notes = ["Distance: root mean square difference from the eight printed shares of this data set."]
    return TableText(title=f"{name}, readings that were tried", header=header, rows=rows, notes=notes)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _theory(measured: dict[str, Any]) -> tuple[list[TableText], Sequence[Figure], list[str]]:
    """The interval of τ for each ε, both sides of the bound, the worst case, and convergence."""
    intervals = TableText(
        title="Temperatures for which the bound is proven",
        header=["ε", "from τ", "to τ"],
        rows=[
            [f"{one['epsilon']:g}", f"{one['low']:.4f}", f"{one['high']:.4f}"]
            for one in measured["intervals"]
        ],
        notes=[
            "ε stands for 0 in log 0. The ends of an interval are a fixed ratio of 0.84 apart, whatever ε is."
        ],
    )
    bound = TableText(
        title=f"The bound on made-up scores, ε = {measured['epsilon']:g}, K = 20",
        header=["τ", "proven", "-log P@20", "loss + constant", "gap", "least gap", "holds for, %"],
        rows=[
            [
                f"{point['tau']:g}",
                "yes" if point["inside"] else "no",
                f"{point['left']:.3f}",
                f"{point['right']:.3f}",
                f"{point['gap']:.3f}",
                f"{point['least_gap']:.3f}",
                f"{100 * point['holds']:.1f}",
            ]
            for point in measured["bound"]
        ],
        notes=["Means over 200 made-up users with 200 items and 10 positives each."],
    )
    return [intervals, bound], [_bound_plot(measured), _worst_plot(measured), _descent_plot(measured)], []


def _bound_plot(measured: dict[str, Any]) -> Figure:
    points = measured["bound"]
    taus = [point["tau"] for point in points if point["tau"] <= 0.3]
    names = ("loss + constant", "-log P@20")
    series = [
        Series(name, taus, [point[key] for point in points if point["tau"] <= 0.3])
        for name, key in zip(names, ("right", "left"), strict=True)
    ]
    interval = next(one for one in measured["intervals"] if one["epsilon"] == measured["epsilon"])
    middle = (interval["low"] + interval["high"]) / 2
    frame = Frame("Line chart of both sides of the bound against τ", "temperature τ", "mean over users")
    rows = [
        [f"{tau:g}", f"{b:.3f}", f"{a:.3f}"]
        for tau, a, b in zip(taus, series[1].ys, series[0].ys, strict=True)
    ]
    return Figure(
        "Both sides of the bound",
        lines(series, frame, mark=(middle, "proven here")),
        TextTable(["τ", *names], rows),
        legend=names,
        note=f"Proven for τ from {interval['low']:.3f} to {interval['high']:.3f} at ε = {measured['epsilon']:g}. The "
        "gap is wide: the constant, (1/τ)·log(1 + e²/2), is most of the upper side.",
    )


def _worst_plot(measured: dict[str, Any]) -> Figure:
    cases = measured["worst"]
    names = [f"τ = {case['tau']:g} (η = {case['eta']:.2f})" for case in cases]
    series = [
        Series(name, measured["negatives"], case["weights"]) for name, case in zip(names, cases, strict=True)
    ]
    frame = Frame(
        "Line chart of the weight of a negative against its score", "score of the negative", "weight"
    )
    rows = [
        [f"{score:g}", *(f"{case['weights'][place]:.4f}" for case in cases)]
        for place, score in enumerate(measured["negatives"])
    ]
    return Figure(
        "The worst case over negatives",
        lines(series, frame),
        TextTable(["score", *names], rows),
        legend=names,
        note=f"21 negatives, threshold {measured['threshold']:g}. The smaller τ, the farther (η, in nats) the "
        "distribution that Talos trains against is from the uniform one.",
    )


def _descent_plot(measured: dict[str, Any]) -> Figure:
    found = measured["convergence"]
    # logarithms of ten by hand: the frame has linear axes
    logs = {
        name: [math.log10(max(value, 1e-12)) for value in found[name]] for name in ("running_mean", "allowed")
    }
    names = ("mean of ‖∇L‖²", "allowed by the theorem")
    steps = [math.log10(step) for step in found["steps"]]
    series = [
        Series(name, steps, logs[key]) for name, key in zip(names, ("running_mean", "allowed"), strict=True)
    ]
    frame = Frame("Line chart of the mean squared gradient against steps", "log₁₀ of steps", "log₁₀")
    rows = [
        [f"{step}", f"{a:.5f}", f"{b:.5f}"]
        for step, a, b in zip(found["steps"], found["running_mean"], found["allowed"], strict=True)
    ]
    return Figure(
        "Convergence with a constant threshold",
        lines(series, frame, zero=False),
        TextTable(["steps", *names], rows),
        legend=names,
        note=f"Descent on made-up scores, τ = {found['tau']:g}. A slope of -1 is a fall like 1/T.",
    )
