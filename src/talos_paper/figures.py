"""The plots of an experiment, where the paper has one or where a picture says more than the table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from talos.report.page import Figure, TextTable
from talos.report.svg import (
    BOTTOM,
    COLOURS,
    WIDTH,
    Frame,
    Scale,
    Series,
    bars,
    fixed,
    lines,
    number,
    span,
    ticks,
)
from talos_paper import published
from talos_paper.data import DATASETS
from talos_paper.tables import Row, groups, shown_metric, shown_name

__all__ = ["figures_of"]

PAIR = ("paper", "ours")


def figures_of(experiment: str, dataset: str, rows: Sequence[Row]) -> list[Figure]:
    """The plots of an experiment on a data set; none where there are no runs."""
    done = [row for row in rows if row.runs]
    if not done:
        return []
    name = DATASETS.get(dataset, dataset)
    if experiment == "overall":
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


def _paired(title: str, rows: Sequence[Row], metric: str) -> Figure:
    """Bars of the published number and ours beside each other; ours alone where nothing was published."""
    names = [shown_name(row.cell.method) for row in rows]
    ours = [row.mean(metric) or 0.0 for row in rows]
    theirs = [row.cell.published.get(metric) for row in rows]
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
) -> str:
    """Bars that lie, one below the other, with room for long names; a missing value has no bar."""
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
    return tall.wrap(parts)


def _short(name: str) -> str:
    """A name that fits below a bar."""
    return {
        "AdvInfoNCE": "AdvI.",
        "SmoothI@K": "Sm.I@K",
        "Talos w/o quantile": "w/o quant.",
        "Talos w/o outside": "w/o outside",
        "Talos w/o denominator": "w/o denom.",
        "monte-carlo": "Monte Carlo",
        "Talos, 1,024 negatives": "Talos 1,024",
    }.get(name, name)


def _overall(name: str, rows: Sequence[Row]) -> list[Figure]:
    made = []
    for group, members in groups(rows).items():
        made.append(_paired(f"{name}, {shown_name(group)}: R@20", members, "recall@20"))
        made += _learning(f"{name}, {shown_name(group)}", members)
    return made


def _learning(title: str, rows: Sequence[Row]) -> list[Figure]:
    """Validation of seed 0 against epochs, of the first few methods."""
    drawn = [row for row in rows if row.runs[0].curve][:COLOURS]
    if not drawn:
        return []
    series, table = [], []
    for row in drawn:
        looks = [(float(e or 0), float(v or 0)) for e, _, v in row.runs[0].curve]
        series.append(Series(shown_name(row.cell.method), [e for e, _ in looks], [v for _, v in looks]))
        table += [[shown_name(row.cell.method), f"{e:.0f}", fixed(v)] for e, v in looks]
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


def _temperature(name: str, rows: Sequence[Row]) -> list[Figure]:
    curve = [row for row in rows if row.cell.method != "sl"]
    line = next((row for row in rows if row.cell.method == "sl"), None)
    made = []
    for metric in ("precision@20", "recall@20"):
        taus = [float(row.cell.recipe.settings["loss.tau"]) for row in curve]
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


def _inflation(name: str, rows: Sequence[Row]) -> list[Figure]:
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
                f"{name}: {shown_name(row.cell.method)}",
                lines(series, frame, whole=True),
                TextTable(["epoch", *words], table),
                legend=words,
                note="Cosines, means over 1,000 users; all items by a sample of 1,000.",
            )
        )
    return made


def _varying_k(name: str, rows: Sequence[Row]) -> list[Figure]:
    return [
        _paired(f"{name}: {shown_metric(metric)}", rows, metric)
        for metric in ("recall@20", "recall@50", "recall@80")
    ]


def _slatk(name: str, rows: Sequence[Row]) -> list[Figure]:
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


def _against(name: str, chosen: dict[str, list[Row]], x: str, pick: Any) -> Figure | None:
    """Talos relative to SL@K, ours and the paper's, against a number in the group's name."""
    places, ours, theirs, table = [], [], [], []
    for group, members in chosen.items():
        found = {row.cell.method: row for row in members}
        if "talos" not in found or "sl@k" not in found:
            continue
        metric = members[0].cell.metrics[0]
        a, b = found["talos"].mean(metric), found["sl@k"].mean(metric)
        published_pair = [found[method].cell.published.get(metric) for method in ("talos", "sl@k")]
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


def efficiency(dataset: str, measured: dict[str, Any]) -> Figure:
    """Seconds an epoch as ratios to SL: the paper's and ours."""
    theirs = {
        entry.method: published.mended(entry).value
        for entry in published.figures(table="efficiency")
        if published.mended(entry).dataset == dataset
    }
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
