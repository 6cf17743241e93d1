"""The plots of every experiment, as SVG for the pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from talos.report.page import Figure, TextTable
from talos.report.render import fixed, number
from talos.report.svg import BOTTOM, COLOURS, WIDTH, Frame, Plot, Scale, Series, bars, lines, span, ticks
from talos_paper import published
from talos_paper.data import DATASETS
from talos_paper.tables import CONTRADICTING, RowResult, groups, printed_seconds, shown_metric, shown_name

__all__ = ["measurement_plots", "plots_of"]

PAIR = ("paper", "ours")


def plots_of(experiment: str, dataset: str, rows: Sequence[RowResult]) -> list[Figure]:
    """The plots of an experiment on a data set; none without runs."""
    done = [row for row in rows if row.runs]
    if not done:
        return []
    name = DATASETS.get(dataset, dataset)
    if experiment in ("overall", "equal"):
        return _overall(name, done)
    if experiment == "temperature":
        return _temperature(name, done)
    if experiment == "inflation":
        return _inflation(name, done)
    if experiment == "varying-k":
        return _varying_k(name, done)
    if experiment == "slatk":
        return _slatk(name, done)
    if experiment == "quantile-error":
        return [_paired(f"{name}: threshold error", done, "error")]
    return [_paired(f"{name}: R@20", done, "recall@20")]


def _paired(title: str, rows: Sequence[RowResult], metric: str) -> Figure:
    """Bars of the published number and ours; ours alone where nothing was published."""
    names = [shown_name(row.spec.method) for row in rows]
    ours = [row.mean(metric) or 0.0 for row in rows]
    theirs = [row.spec.published.get(metric) for row in rows]
    table = TextTable(
        ["method", "paper", "ours"],
        [[a, fixed(b), fixed(c)] for a, b, c in zip(names, theirs, ours, strict=True)],
    )
    told = ", ".join(f"{a} {c:.4f}" for a, c in zip(names, ours, strict=True))
    frame = Frame(f"Bar chart of {title}, ours: {told}", "method", shown_metric(metric))
    if any(value is not None for value in theirs):
        series: list[tuple[str, Sequence[float | None]]] = [("paper", theirs), ("ours", ours)]
        return Figure(title, _level_bars(names, series, frame), table, legend=PAIR, key="box")
    return Figure(title, _level_bars(names, [("ours", ours)], frame), table)


def _level_bars(
    names: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], frame: Frame
) -> Plot:
    """Horizontal bars, one below the other, with room for long names; a missing value has no bar."""
    step, top, left = 16 + 11 * len(series), 4, 14
    tall = Frame(frame.label, frame.x, frame.y, top + step * len(names) + BOTTOM)
    bottom = tall.height - BOTTOM
    known = [value for _, values in series for value in values if value is not None]
    low, high = span(known, zero=True)
    x = Scale(low, high, left, WIDTH - 40)
    parts = []
    for value in ticks(low, high, 5):
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{top}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x(value)}" y="{bottom + 15}" text-anchor="middle">{number(value)}</text>'
        )
    parts.append(
        f'<text class="name" x="{WIDTH / 2:g}" y="{tall.height - 6}" text-anchor="middle">{escape(frame.y)}</text>'
    )
    for row, name in enumerate(names):
        y = top + step * row
        parts.append(f'<text class="name" x="{left}" y="{y + 12}" text-anchor="start">{escape(name)}</text>')
        for place, (_, values) in enumerate(series):
            found = values[row]
            if found is not None:
                edge = y + 15 + 11 * place
                parts.append(
                    f'<rect class="f{place}" x="{left}" y="{edge}" width="{x(found) - left:.2f}" height="9"/>'
                    f'<text class="tick" x="{x(found) + 3:.2f}" y="{edge + 9}" text-anchor="start">{found:.4f}</text>'
                )
    return Plot(tall.label, tall.height, "\n".join(parts))


def _short(name: str) -> str:
    """A name short enough to stand below a bar."""
    return {
        "AdvInfoNCE": "AdvI.",
        "SmoothI@K": "Sm.I@K",
        "Talos w/o quantile": "w/o quant.",
        "Talos w/o outside": "w/o outside",
        "Talos w/o denominator": "w/o denom.",
        "monte-carlo": "Monte Carlo",
        "Talos, 1,024 negatives": "Talos 1,024",
    }.get(name, name)


def _overall(name: str, rows: Sequence[RowResult]) -> list[Figure]:
    made = []
    for group, members in groups(rows).items():
        made.append(_paired(f"{name}, {shown_name(group)}: R@20", members, "recall@20"))
        made += _learning(f"{name}, {shown_name(group)}", members)
    return made


def _learning(title: str, rows: Sequence[RowResult]) -> list[Figure]:
    """Validation metric of seed 0 against epochs, for as many methods as there are colours."""
    drawn = [row for row in rows if row.runs[0].curve][:COLOURS]
    if not drawn:
        return []
    series, table = [], []
    for row in drawn:
        looks = [(float(e or 0), float(v or 0)) for e, _, v in row.runs[0].curve]
        series.append(Series(shown_name(row.spec.method), [e for e, _ in looks], [v for _, v in looks]))
        table += [[shown_name(row.spec.method), f"{e:.0f}", fixed(v)] for e, v in looks]
    legend = [one.name for one in series]
    frame = Frame(
        f"Line chart of validation P@20 against epochs for {', '.join(legend)}", "epoch", "validation P@20"
    )
    return [
        Figure(
            f"{title}: learning curves",
            lines(series, frame, whole=True),
            TextTable(["method", "epoch", "validation P@20"], table),
            legend=legend,
            note="Seed 0. Training stops by validation Precision@20; test is looked at once, at the end.",
        )
    ]


def _temperature(name: str, rows: Sequence[RowResult]) -> list[Figure]:
    curve = [row for row in rows if row.spec.method != "sl"]
    line = next((row for row in rows if row.spec.method == "sl"), None)
    made = []
    for metric in ("precision@20", "recall@20"):
        taus = [float(row.spec.recipe.settings["loss.tau"]) for row in curve]
        series = [Series("Talos", taus, [row.mean(metric) or 0.0 for row in curve])]
        best = None if line is None else line.mean(metric)
        if best is not None and len(taus) > 1:
            series.append(Series("SL at its best", [taus[0], taus[-1]], [best, best]))
        table = [[f"{tau:g}", fixed(y)] for tau, y in zip(taus, series[0].ys, strict=True)]
        table += [["SL at its best", fixed(best)]]
        frame = Frame(
            f"Line chart of {shown_metric(metric)} against temperature", "temperature τ", shown_metric(metric)
        )
        made.append(
            Figure(
                f"{name}: {shown_metric(metric)} against τ",
                lines(series, frame, zero=False),
                TextTable(["τ", shown_metric(metric)], table),
                legend=[one.name for one in series],
            )
        )
    return made


def _inflation(name: str, rows: Sequence[RowResult]) -> list[Figure]:
    made = []
    words = ("positives", "all items", "threshold β")
    for row in rows:
        scores = row.runs[0].scores
        epochs = list(range(1, len(scores) + 1))
        series = [Series(word, epochs, [one[place] for one in scores]) for place, word in enumerate(words)]
        told = ", ".join(f"{one.name} {one.ys[-1]:.3f}" for one in series)
        frame = Frame(f"Line chart of mean scores against epochs; at the end {told}", "epoch", "mean score")
        table = [
            [str(epoch), *(fixed(value) for value in one)] for epoch, one in zip(epochs, scores, strict=True)
        ]
        made.append(
            Figure(
                f"{name}: {shown_name(row.spec.method)}",
                lines(series, frame, whole=True),
                TextTable(["epoch", *words], table),
                legend=words,
                note="Cosines, means over 1,000 users; all items by a sample of 1,000.",
            )
        )
    return made


def _varying_k(name: str, rows: Sequence[RowResult]) -> list[Figure]:
    return [
        _paired(f"{name}: {shown_metric(metric)}", rows, metric)
        for metric in ("recall@20", "recall@50", "recall@80")
    ]


def _slatk(name: str, rows: Sequence[RowResult]) -> list[Figure]:
    made = []
    by_group = groups(rows)
    temporal = by_group.get("temporal shift")
    if temporal:
        made.append(_paired(f"{name}, temporal shift: R@20", temporal, "recall@20"))
    for prefix, x, pick in (
        ("negatives", "negatives per positive", lambda group: int(group.split()[0])),
        ("K =", "K", lambda group: int(group.split()[-1])),
    ):
        chosen = {group: members for group, members in by_group.items() if prefix in group}
        drawn = _against(name, chosen, x, pick)
        if drawn is not None:
            made.append(drawn)
    return made


def _against(name: str, chosen: dict[str, list[RowResult]], x: str, pick: Any) -> Figure | None:
    """The gain of Talos over SL@K, ours and the paper's, against the number in each group's name."""
    places, ours, theirs, table = [], [], [], []
    for group, members in chosen.items():
        found = {row.spec.method: row for row in members}
        if "talos" not in found or "sl@k" not in found:
            continue
        metric = members[0].spec.metrics[0]
        a, b = found["talos"].mean(metric), found["sl@k"].mean(metric)
        published_pair = [found[method].spec.published.get(metric) for method in ("talos", "sl@k")]
        if a is None or not b or not all(published_pair):
            continue
        places.append(float(pick(group)))
        ours.append(100 * (a / b - 1))
        theirs.append(100 * (float(published_pair[0] or 0) / float(published_pair[1] or 1) - 1))
        table.append([group, f"{theirs[-1]:+.2f} %", f"{ours[-1]:+.2f} %"])
    if len(places) < 2:
        return None
    series = [Series("paper", places, theirs), Series("ours", places, ours)]
    frame = Frame(f"Line chart of the gain of Talos over SL@K against {x}", x, "gain over SL@K, %")
    return Figure(
        f"{name}: gain of Talos over SL@K",
        lines(series, frame, whole=True),
        TextTable([x, "paper", "ours"], table),
        legend=PAIR,
        note="Precision at the K of the row." if x == "K" else "Precision@20.",
    )


# ----------------------------------------------------------------------------------------- plots of measurements


def measurement_plots(experiment: str, dataset: str, measured: dict[str, Any]) -> list[Figure]:
    """The plots of an experiment that needs no fit."""
    if experiment == "efficiency":
        return [_efficiency(dataset, measured)]
    if experiment == "inconsistency":
        return [_inconsistency(dataset, measured)]
    if experiment == "theory":
        return [_bound(measured), _worst_case(measured), _convergence(measured)]
    return []


def _efficiency(dataset: str, measured: dict[str, Any]) -> Figure:
    """Seconds per epoch as ratios to SL: the paper's and ours."""
    theirs = printed_seconds(dataset)
    found = measured["protocols"]["paper"]
    names = [loss for loss in found if loss in theirs]
    ours = [found[loss]["ratio"] for loss in names]
    paper = [theirs[loss] / theirs["sl"] for loss in names]
    frame = Frame("Bar chart of seconds an epoch relative to SL", "loss", "ratio to SL")
    rows = [[shown_name(n), f"{p:.2f}", f"{o:.2f}"] for n, p, o in zip(names, paper, ours, strict=True)]
    return Figure(
        f"{DATASETS[dataset]}: seconds an epoch as ratios to SL",
        bars([_short(shown_name(n)) for n in names], [("paper", paper), ("ours", ours)], frame),
        TextTable(["loss", "paper", "ours"], rows),
        legend=PAIR,
        key="box",
        note="1,024 negatives per positive, BPR 1. The paper's on one RTX 4090, ours on a CPU.",
    )


def _inconsistency(dataset: str, measured: dict[str, Any]) -> Figure:
    name = DATASETS[dataset]
    theirs = []
    for metric in CONTRADICTING:
        entries = published.numbers(table="inconsistency", dataset=dataset, method=metric)
        theirs.append(100 * (sum(entry.value for entry in entries) / 2))
    ours = [100 * measured["used"]["shares"][metric] for metric in CONTRADICTING]
    names = list(CONTRADICTING.values())
    frame = Frame("Bar chart of the share of contradicting pairs", "metric", "contradicting pairs, %")
    return Figure(
        f"{name}: pairs that a metric orders against P@20",
        bars(names, [("paper", theirs), ("ours", ours)], frame),
        TextTable(
            ["metric", "paper", "ours"],
            [[row, f"{a:.2f}", f"{b:.2f}"] for row, a, b in zip(names, theirs, ours, strict=True)],
        ),
        legend=PAIR,
        key="box",
    )


def _bound(measured: dict[str, Any]) -> Figure:
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


def _worst_case(measured: dict[str, Any]) -> Figure:
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


def _convergence(measured: dict[str, Any]) -> Figure:
    found = measured["convergence"]
    # the frame has linear axes, so the values are logarithms
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
