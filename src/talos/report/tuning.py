"""The page of a tuning study, and its plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from talos.report.page import Figure, Section, TextTable, page, table_html, tiles
from talos.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Frame,
    Scale,
    Series,
    fixed,
    lines,
    number,
    span,
    svg_text,
    ticks,
)

__all__ = ["Axis", "tuning_report"]

_CURVES = 5  # learning curves of the best trials
_SEVERAL = 6  # distinct values up to which a parameter's values are drawn side by side


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
    """One HTML file about a study: how the search went, which parameters mattered, and a table of all trials.

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
    winner = next(trial for trial in trials if trial["number"] == best)
    tested = "The test part has not been evaluated."
    if test is not None:
        tested = "The test part was evaluated once, after the search, with the winner fitted on train and validation."
    valued = [trial for trial in trials if trial["value"] is not None]
    axes = _axes(valued)
    search = [_history(valued, metric), _curves(valued, metric)]
    if importance:
        search.append(_importance(importance))
    sections = [
        Section("At a glance", html=_glance(winner, trials, metric, peak_mb, test), note=tested),
        Section("The search", search),
        Section("Parameters", [*_parallel(valued, axes, metric), *_slices(valued, axes, metric)]),
        Section("The best config", html=f"<pre>{escape(config)}</pre>", note="As in run.toml."),
        Section("All trials", html=table_html(_table(trials, metric))),
        Section("Settings", html=table_html(TextTable(["setting", "value"], list(settings.items())))),
    ]
    states = [trial["state"] for trial in trials]
    counted = ", ".join(
        f"{states.count(state):,} {state}" for state in ("complete", "pruned", "failed") if state in states
    )
    subtitle = f"{len(trials):,} trials ({counted}), by {metric} on the validation part."
    return page(title, subtitle, sections, date=date)


def _glance(
    winner: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    metric: str,
    peak_mb: float,
    test: Mapping[str, float] | None,
) -> str:
    spent = sum(trial["seconds"] for trial in trials)
    found = f"trial {winner['number']}, epoch {winner['epoch']}"
    values = [
        (f"Validation {metric}", fixed(winner["value"], 5), found),
        ("Time in trials", _duration(spent), f"{number(spent / len(trials), 1)} s each"),
        ("Memory of a worker", f"{peak_mb:,.0f} MB", "at most"),
    ]
    if test is not None:
        at = metric.partition("@")[2]
        shown = dict.fromkeys([metric, f"recall@{at}", f"ndcg@{at}"])
        values += [(f"Test {name}", fixed(test[name]), "the winner") for name in shown if name in test]
    return tiles(values)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _history(valued: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Values in order: dots if complete, rings if pruned, and a staircase of the best dot so far."""
    label = (
        f"Scatter plot of {metric} of {len(valued):,} trials in order, with the best so far as a line; "
        f"the best is {number(max(trial['value'] for trial in valued))}"
    )
    frame = Frame(label, "trial", f"validation {metric}")
    numbers = [trial["number"] for trial in valued]
    low, high = float(min(numbers)), float(max(numbers))
    x = Scale(*((low, high) if high > low else (low - 0.5, high + 0.5)), LEFT + 6, WIDTH - RIGHT - 6)
    y = Scale(*span([trial["value"] for trial in valued]), frame.height - BOTTOM, TOP)
    places = [value for value in ticks(x.low, x.high, 6) if float(value).is_integer()]
    parts = frame.axes(x, y, [(value, number(value)) for value in places])
    best, rows = -math.inf, []
    corners: list[str] = []
    for trial in valued:
        if trial["state"] == "complete" and trial["value"] > best:
            corners += [f"{x(trial['number'])},{y(best)}"] if corners else []
            best = trial["value"]
            corners.append(f"{x(trial['number'])},{y(best)}")
        cells = [fixed(trial["value"], 5), fixed(best if corners else None, 5)]
        rows.append([str(trial["number"]), trial["state"], *cells])
    if corners:
        corners.append(f"{x(numbers[-1])},{y(best)}")
        parts.append(f'<path class="line c1" d="M{"L".join(corners)}"/>')
    parts += [_spot(x(trial["number"]), y(trial["value"]), trial["state"]) for trial in valued]
    note = "Dots: complete trials; rings: pruned ones, at the best they had reached. Line: the best so far."
    table = TextTable(["trial", "state", metric, "best so far"], rows)
    return Figure("History", frame.wrap(parts), table, note=note)


def _curves(valued: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Learning curves of the best few trials."""
    ranked = sorted(valued, key=lambda trial: -trial["value"])[:_CURVES]
    ranked = [trial for trial in ranked if trial["curve"]]
    names = [f"trial {trial['number']}" for trial in ranked]
    curves = [
        Series(name, *zip(*trial["curve"], strict=True)) for name, trial in zip(names, ranked, strict=True)
    ]
    label = f"Line chart of validation {metric} against epochs for {', '.join(names)}"
    svg = lines(curves, Frame(label, "epoch", f"validation {metric}"), zero=False)
    rows = [
        [curve.name, str(epoch), fixed(value, 5)]
        for curve in curves
        for epoch, value in zip(curve.xs, curve.ys, strict=True)
    ]
    note = f"The best {len(ranked)} trials." if len(valued) > len(ranked) else ""
    return Figure("Learning", svg, TextTable(["trial", "epoch", metric], rows), legend=names, note=note)


def _importance(importance: Mapping[str, float]) -> Figure:
    """Horizontal bars with names above them and their shares at the end."""
    ranked = sorted(importance.items(), key=lambda pair: -pair[1])
    said = ", ".join(f"{key} {share:.0%}" for key, share in ranked)
    step, top = 34, 6
    label = f"Bar chart of the importance of parameters: {said}"
    frame = Frame(label, "share", "", top + step * len(ranked) + 8)
    x = Scale(0.0, ranked[0][1] or 1.0, 4, WIDTH - 60)
    parts = []
    for place, (name, share) in enumerate(ranked):
        upper = top + step * place
        parts.append(svg_text(4, upper + 11, name, "start", "name"))
        wide = max(1.0, x(share) - 4)
        parts.append(f'<rect class="f0" x="4" y="{upper + 16}" width="{wide:.2f}" height="11"/>')
        parts.append(svg_text(wide + 10, upper + 26, f"{share:.0%}", "start"))
    return Figure(
        "What mattered",
        frame.wrap(parts),
        TextTable(["parameter", "share"], [[key, f"{share:.3f}"] for key, share in ranked]),
        note="PED-ANOVA on complete trials: how far the values of the good ones differ from those of all.",
    )


def _axes(valued: Sequence[Mapping[str, Any]]) -> dict[str, Axis]:
    keys = list(dict.fromkeys(key for trial in valued for key in trial["parameters"]))
    return {
        key: Axis.of(key, [trial["parameters"][key] for trial in valued if key in trial["parameters"]])
        for key in keys
    }


def _parallel(valued: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], metric: str) -> list[Figure]:
    if not axes:
        return []
    whole = [trial for trial in valued if set(axes) <= set(trial["parameters"])]
    ranked = sorted(whole, key=lambda trial: trial["value"])
    low, high = span([trial["value"] for trial in ranked], pad=0.0)
    height = Scale(low, high, 0.0, 100.0)
    places = [
        [*(axis.share(trial["parameters"][key]) for key, axis in axes.items()), height(trial["value"]) / 100]
        for trial in ranked
    ]
    ends = Axis(name=metric, kind="even", low=low, high=high)
    label = (
        f"Parallel coordinates of {len(ranked):,} trials over {', '.join(axes)} and {metric}; the best trial has "
        + ", ".join(f"{key} {_cell(value)}" for key, value in ranked[-1]["parameters"].items())
    )
    rows = [
        [str(trial["number"]), *(_cell(trial["parameters"][key]) for key in axes), fixed(trial["value"], 5)]
        for trial in reversed(ranked)
    ]
    note = "One line a trial: the best in orange, the rest of the best quarter in blue, all others faint."
    svg = _parallel_plot(places, [*axes.values(), ends], label)
    return [Figure("Parallel coordinates", svg, TextTable(["trial", *axes, metric], rows), note=note)]


def _slices(valued: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], metric: str) -> list[Figure]:
    """The value of each trial against each of its parameters."""
    found = []
    for key, axis in axes.items():
        trials = [trial for trial in valued if key in trial["parameters"]]
        shares = [axis.share(trial["parameters"][key]) for trial in trials]
        best = max(trials, key=lambda trial: trial["value"])
        label = (
            f"Scatter plot of {metric} against {key} for {len(trials):,} trials; "
            f"the best has {_cell(best['parameters'][key])}"
        )
        frame = Frame(label, key, f"validation {metric}")
        x = Scale(0.0, 1.0, LEFT + 8, WIDTH - RIGHT - 8)
        y = Scale(*span([trial["value"] for trial in trials]), frame.height - BOTTOM, TOP)
        parts = frame.axes(x, y, axis.labels(5))
        pairs = list(zip(shares, trials, strict=True))
        parts += [_spot(x(share), y(trial["value"]), trial["state"]) for share, trial in pairs]
        ordered = [trial for _, trial in sorted(pairs, key=lambda pair: pair[0])]
        rows = [[_cell(trial["parameters"][key]), fixed(trial["value"], 5)] for trial in ordered]
        found.append(Figure(key, frame.wrap(parts), TextTable([key, metric], rows)))
    return found


def _table(trials: Sequence[Mapping[str, Any]], metric: str) -> TextTable:
    keys = list(dict.fromkeys(key for trial in trials for key in trial["parameters"]))
    failed = any(trial["error"] for trial in trials)
    header = ["trial", "state", metric, "epoch", "epochs", "seconds", "runs", *keys, *["error"] * failed]
    rows = []
    for trial in sorted(trials, key=lambda trial: -(trial["value"] or -1)):
        cells = [str(trial["number"]), trial["state"], fixed(trial["value"], 5), str(trial["epoch"])]
        cells += [str(trial["epochs"]), fixed(trial["seconds"], 1), str(trial["runs"])]
        rows.append([*cells, *(_cell(trial["parameters"].get(key, "")) for key in keys)])
        if failed:
            rows[-1].append(trial["error"])
    return TextTable(header, rows)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The axis of one parameter: where between 0 and 1 each of its values lies.

    >>> Axis.of("tau", [0.1, 0.2]).share(0.2), Axis.of("lr", [10.0**-i for i in range(7)]).share(1e-3)
    (0.75, 0.5)
    """

    name: str
    kind: Literal["named", "even", "ratio"]
    low: float = 0.0
    high: float = 1.0
    values: tuple[Any, ...] = ()

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> Axis:
        """An axis for these values: side by side if they are words or few, else on a log or a linear scale."""
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        distinct = sorted(set(values), key=lambda value: value if numbers else str(value))
        if not numbers or len(distinct) <= _SEVERAL:
            return cls(name=name, kind="named", values=tuple(distinct))
        low, high = float(distinct[0]), float(distinct[-1])
        if low > 0 and high / low > 8:
            return cls(name=name, kind="ratio", low=math.log10(low), high=math.log10(high))
        return cls(name=name, kind="even", low=low, high=high)

    def share(self, value: Any) -> float:
        """The position of a value, 0 to 1."""
        if self.kind == "named":
            return (self.values.index(value) + 0.5) / len(self.values)
        at = math.log10(value) if self.kind == "ratio" else float(value)
        return round((at - self.low) / (self.high - self.low), 4) if self.high > self.low else 0.5

    def labels(self, count: int) -> list[tuple[float, str]]:
        """Positions and texts of about `count` labels."""
        if self.kind == "named":
            return [(self.share(value), _label(value)) for value in self.values]
        if self.kind == "even":
            return [(self.share(value), number(value)) for value in ticks(self.low, self.high, count)]
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [one for one in steps if self.low - 1e-9 <= math.log10(one) <= self.high + 1e-9]
        kept = inside[:: max(1, -(-len(inside) // (count + 2)))]
        return [(self.share(value), _label(value)) for value in kept]


def _parallel_plot(rows: Sequence[Sequence[float]], axes: Sequence[Axis], label: str) -> str:
    """One line for each row through vertical axes; rows are ordered from worst to best."""
    top, bottom = 42, 250
    x = Scale(0, len(axes) - 1, 16, WIDTH - 16)
    y = Scale(0.0, 1.0, bottom - 6, top + 6)
    parts = []
    for place, axis in enumerate(axes):
        at = x(place)
        side = "start" if place == 0 else "end" if place == len(axes) - 1 else "middle"
        short = axis.name.rpartition(".")[2]
        edge = 2 if place == 0 else WIDTH - 2 if place == len(axes) - 1 else at
        parts.append(svg_text(edge, 12 if place % 2 == 0 else 27, short, side, "name"))
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')
    fine = len(rows) - max(1, len(rows) // 4)
    for place, row in enumerate(rows):
        path = "L".join(f"{x(i)},{y(share)}" for i, share in enumerate(row))
        last = place == len(rows) - 1
        look = ("c1", 2.6, 1.0) if last else ("c0", 1.3, 0.75) if place >= fine else ("c6", 0.8, 0.3)
        parts.append(
            f'<path class="line {look[0]}" style="stroke-width:{look[1]}" opacity="{look[2]}" d="M{path}"/>'
        )
    for place, axis in enumerate(axes):
        final = place == len(axes) - 1
        for share, text in axis.labels(3):
            at = x(place) + (-4 if final else 4)
            parts.append(
                f'<text class="tick" style="paint-order:stroke;stroke:var(--card);stroke-width:3px" x="{at:g}" '
                f'y="{y(share) + 4:g}" text-anchor="{"end" if final else "start"}">{escape(text)}</text>'
            )
    return Frame(label, "", "", bottom + 8).wrap(parts)


def _spot(x: float, y: float, state: str) -> str:
    look = "f0" if state == "complete" else "ring c6"
    return f'<circle class="{look}" cx="{x}" cy="{y}" r="3"/>'


def _label(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
