"""The page of a search for hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from talos.report.page import Figure, Section, Table, page, table_html, tiles
from talos.report.scales import Scale, fixed, number, span
from talos.report.svg import Frame, Series, lines
from talos.report.tuning_plots import Axis, history, parallel, shares, slices

__all__ = ["tuning_report"]

_CURVES = 5  # of the best trials


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
    """One HTML file about a study: how the search went, what mattered, every trial in a table.

    Args:
        trials: one for each that came to its end: `number`, `state`, `value`, `epoch`, `epochs`, `seconds`,
            `runs`, `parameters`, `curve`, `error`.
        metric: what was maximised on the validation part.
        best: number of the best trial.
        importance: share of each parameter; may be empty.
        settings: names and values to list.
        config: the best config, as TOML.
        peak_mb: memory of a worker.
        test: metrics of the winner on test; None as long as nobody has looked.
        title: of the page.
        date: shown as it is.

    >>> trial = {"number": 0, "state": "complete", "value": 0.1, "epoch": 3, "epochs": 5, "seconds": 1.0, "runs": 1,
    ...          "parameters": {"loss.tau": 0.1}, "curve": ((3, 0.1), (5, 0.05)), "error": ""}
    >>> text = tuning_report([trial], metric="precision@20", best=0, importance={}, settings={}, config="", peak_mb=1)
    >>> text.startswith("<!doctype html>"), "<script" in text
    (True, False)
    """
    winner = next(trial for trial in trials if trial["number"] == best)
    valued = [trial for trial in trials if trial["value"] is not None]
    axes = _axes(valued)
    search = [_history(valued, metric), _curves(valued, metric)]
    if importance:
        search.append(_importance(importance))
    sections = [
        Section("At a glance", html=_glance(winner, trials, metric, peak_mb, test), note=_said(test)),
        Section("The search", search),
        Section("Parameters", [*_parallel(valued, axes, metric), *_slices(valued, axes, metric)]),
        Section("The best config", html=f"<pre>{escape(config)}</pre>", note="As in run.toml."),
        Section("All trials", html=table_html(_table(trials, metric))),
        Section(
            "Settings", html=table_html(Table(["setting", "value"], [list(one) for one in settings.items()]))
        ),
    ]
    states = [trial["state"] for trial in trials]
    counted = ", ".join(
        f"{states.count(state):,} {state}" for state in ("complete", "pruned", "failed") if state in states
    )
    return page(
        title, f"{len(trials):,} trials ({counted}), by {metric} on the validation part.", sections, date=date
    )


def _said(test: Mapping[str, float] | None) -> str:
    if test is None:
        return "The test part has not been looked at."
    return (
        "The test part was looked at once, after the search, with the winner fitted on train and validation."
    )


def _glance(
    winner: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    metric: str,
    peak_mb: float,
    test: Mapping[str, float] | None,
) -> str:
    spent = sum(trial["seconds"] for trial in trials)
    values = [
        (
            f"Validation {metric}",
            fixed(winner["value"], 5),
            f"trial {winner['number']}, epoch {winner['epoch']}",
        ),
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
    label = (
        f"Scatter plot of {metric} of {len(valued):,} trials in order, with the best so far as a line; "
        f"the best is {number(max(trial['value'] for trial in valued))}"
    )
    svg = history(
        [(trial["number"], trial["value"], trial["state"] == "complete") for trial in valued],
        Frame(label, "trial", f"validation {metric}"),
    )
    best, rows = -math.inf, []
    for trial in valued:
        best = max(best, trial["value"]) if trial["state"] == "complete" else best
        rows.append(
            [
                str(trial["number"]),
                trial["state"],
                fixed(trial["value"], 5),
                fixed(best if best > -math.inf else None, 5),
            ]
        )
    note = "Dots: complete trials; rings: pruned ones, at the best they had reached. Line: the best so far."
    return Figure("History", svg, Table(["trial", "state", metric, "best so far"], rows), note=note)


def _curves(valued: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Validation against epochs of the best few."""
    ranked = sorted(valued, key=lambda trial: -trial["value"])[:_CURVES]
    ranked = [trial for trial in ranked if trial["curve"]]
    names = [f"trial {trial['number']}" for trial in ranked]
    series = [
        Series(name, [epoch for epoch, _ in trial["curve"]], [value for _, value in trial["curve"]])
        for name, trial in zip(names, ranked, strict=True)
    ]
    label = f"Line chart of validation {metric} against epochs for {', '.join(names)}"
    svg = lines(series, Frame(label, "epoch", f"validation {metric}"), zero=False)
    rows = [
        [name, str(epoch), fixed(value, 5)]
        for name, trial in zip(names, ranked, strict=True)
        for epoch, value in trial["curve"]
    ]
    note = f"The best {len(ranked)} trials." if len(valued) > len(ranked) else ""
    return Figure("Learning", svg, Table(["trial", "epoch", metric], rows), legend=names, note=note)


def _importance(importance: Mapping[str, float]) -> Figure:
    ranked = sorted(importance.items(), key=lambda pair: -pair[1])
    said = ", ".join(f"{key} {share:.0%}" for key, share in ranked)
    rows = [[key, f"{share:.3f}"] for key, share in ranked]
    return Figure(
        "What mattered",
        shares(ranked, Frame(f"Bar chart of the importance of parameters: {said}", "share", "")),
        Table(["parameter", "share"], rows),
        note="PED-ANOVA on complete trials: how far the values of the good ones differ from those of all.",
    )


def _axes(valued: Sequence[Mapping[str, Any]]) -> dict[str, Axis]:
    """How each parameter is laid out: words and few values side by side, wide ranges by ratio, others evenly."""
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
    places = []
    for trial in ranked:
        there = [axis.share(trial["parameters"][key]) for key, axis in axes.items()]
        places.append([*there, Scale(low, high, 0.0, 100.0)(trial["value"]) / 100])
    ends = Axis(name=metric, kind="even", low=low, high=high, values=())
    label = (
        f"Parallel coordinates of {len(ranked):,} trials over {', '.join(axes)} and {metric}; the best trial has "
        + ", ".join(f"{key} {_cell(value)}" for key, value in ranked[-1]["parameters"].items())
    )
    rows = [
        [str(trial["number"]), *(_cell(trial["parameters"][key]) for key in axes), fixed(trial["value"], 5)]
        for trial in reversed(ranked)
    ]
    note = "One line a trial: the best in orange, the rest of the best quarter in blue, all others faint."
    svg = parallel(places, [*axes.values(), ends], Frame(label, "", ""))
    return [Figure("Parallel coordinates", svg, Table(["trial", *axes, metric], rows), note=note)]


def _slices(valued: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis], metric: str) -> list[Figure]:
    found = []
    for key, axis in axes.items():
        trials = [trial for trial in valued if key in trial["parameters"]]
        best = max(trials, key=lambda trial: trial["value"])
        label = (
            f"Scatter plot of {metric} against {key} for {len(trials):,} trials; "
            f"the best has {_cell(best['parameters'][key])}"
        )
        svg = slices(
            [
                (axis.share(trial["parameters"][key]), trial["value"], trial["state"] == "complete")
                for trial in trials
            ],
            axis,
            Frame(label, key, f"validation {metric}"),
        )
        ordered = sorted(trials, key=lambda trial: axis.share(trial["parameters"][key]))
        rows = [[_cell(trial["parameters"][key]), fixed(trial["value"], 5)] for trial in ordered]
        found.append(Figure(key, svg, Table([key, metric], rows)))
    return found


def _table(trials: Sequence[Mapping[str, Any]], metric: str) -> Table:
    keys = list(dict.fromkeys(key for trial in trials for key in trial["parameters"]))
    header = ["trial", "state", metric, "epoch", "epochs", "seconds", "runs", *keys]
    rows = []
    for trial in sorted(trials, key=lambda trial: -(trial["value"] or -1)):
        told = [str(trial["number"]), trial["state"], fixed(trial["value"], 5), str(trial["epoch"])]
        told += [str(trial["epochs"]), fixed(trial["seconds"], 1), str(trial["runs"])]
        rows.append([*told, *(_cell(trial["parameters"].get(key, "")) for key in keys)])
    if any(trial["error"] for trial in trials):
        header.append("error")
        by_number = {str(trial["number"]): trial["error"] for trial in trials}
        rows = [[*row, by_number[row[0]]] for row in rows]
    return Table(header, rows)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
