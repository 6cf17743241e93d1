"""Tables of our results beside the published numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talos.evaluation.significance import holm
from talos_paper import published
from talos_paper.datasets import DATASETS
from talos_paper.inconsistency import SOURCES
from talos_paper.recipes import Experiment, Fidelity, Recipe, Row, shown_setting
from talos_paper.results import ResultStore, StoredRun

__all__ = [
    "CONTRADICTING",
    "MEASURED",
    "REMARKS",
    "RowResult",
    "TableText",
    "compared",
    "groups",
    "percent",
    "rows_of",
    "shown_metric",
    "shown_name",
    "tables_of",
]

NORMAL = 1.96
"""Half the width of a 95 % interval in standard errors."""
_DEVIATIONS, _CHOSEN = "not as in the paper", "chosen on validation"
REMARKS = (_DEVIATIONS, _CHOSEN)
"""Columns of words."""
ERRORS = ("error", "fresh error")  # of thresholds: the lower, the better
_NAMES = {
    "precision": "P",
    "recall": "R",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "talos": "Talos",
    "sl": "SL",
    "bsl": "BSL",
    "psl": "PSL",
    "llpauc": "LLPAUC",
    "bpr": "BPR",
    "aatp": "AATP",
    "smoothi@k": "SmoothI@K",
    "rs@k": "RS@K",
    "advinfonce": "AdvInfoNCE",
    "sl@k": "SL@K",
    "mf": "MF",
    "lightgcn": "LightGCN",
    "xsimgcl": "XSimGCL",
}


def shown_name(name: str) -> str:
    """A loss, backbone or row as tables spell it.

    >>> shown_name("talos@50"), shown_name("talos w/o quantile"), shown_name("sl@k"), shown_name("regression")
    ('Talos@50', 'Talos w/o quantile', 'SL@K', 'regression')
    """
    if name in _NAMES:
        return _NAMES[name]
    return _NAMES["talos"] + name.removeprefix("talos") if name.startswith("talos") else name


def shown_metric(metric: str) -> str:
    """A metric as the heading of a column.

    >>> shown_metric("recall@20"), shown_metric("error")
    ('R@20', 'error')
    """
    name, at, k = metric.partition("@")
    return f"{_NAMES.get(name, name)}{at}{k}"


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row with the results of its runs, one for each seed that was run."""

    spec: Row
    runs: Sequence[StoredRun]
    recipe: Recipe  # with the settings that its search chose

    def values(self, metric: str) -> list[float]:
        """The metric of each run that has it."""
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]

    def mean(self, metric: str) -> float | None:
        """Mean over seeds; None without runs."""
        found = self.values(metric)
        return float(np.mean(found)) if found else None

    def std(self, metric: str) -> float | None:
        """Standard deviation over seeds; None for fewer than two runs."""
        found = self.values(metric)
        return float(np.std(found, ddof=1)) if len(found) > 1 else None

    def half_width(self, metric: str) -> float | None:
        """Half the width of the 95 % confidence interval over test users; None without runs."""
        found = [run.stderr[metric] for run in self.runs if metric in run.stderr]
        return NORMAL * float(np.mean(found)) if found else None

    def difference(self, metric: str) -> float | None:
        """Our mean relative to the published number, minus 1; None where either is missing."""
        ours, theirs = self.mean(metric), self.spec.published.get(metric)
        return None if ours is None or not theirs else ours / theirs - 1


@dataclass(frozen=True, kw_only=True)
class TableText:
    """A table as text: title, header, rows, the (row, column) of bold cells, and notes below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = field(default_factory=list)


def rows_of(
    experiment: Experiment, dataset: str, store: ResultStore, fidelity: Fidelity = "fast"
) -> list[RowResult]:
    """Every row of an experiment on a data set, with the results of its runs."""
    return [
        RowResult(
            spec=row,
            runs=store.runs(row.recipe, max(row.seeds, 5)),
            recipe=store.resolved(row.recipe) or row.recipe,
        )
        for row in experiment.rows(dataset, fidelity)
    ]


def groups(rows: Sequence[RowResult]) -> dict[str, list[RowResult]]:
    """Group → its rows; groups without a run are left out."""
    names = dict.fromkeys(row.spec.group for row in rows if row.runs)
    return {name: [row for row in rows if row.spec.group == name] for name in names}


def tables_of(
    dataset: str, rows: Sequence[RowResult], tests: Mapping[str, Any] | None = None, *, more: str = ""
) -> list[TableText]:
    """The tables of rows on a data set: one for each group and two metrics (three if there are three).

    Args:
        dataset: name of the data set.
        rows: of an experiment.
        tests: see `compared`.
        more: the end of each title.
    """
    made = []
    for group, members in groups(rows).items():
        # runs made before fresh errors were measured have none
        metrics = [
            metric
            for metric in members[0].spec.metrics
            if metric != "fresh error" or any(row.values(metric) for row in members)
        ]
        width = 3 if len(metrics) == 3 else 2
        for start in range(0, len(metrics), width):
            chosen = metrics[start : start + width]
            named = ", ".join(shown_metric(metric) for metric in chosen)
            title = f"{DATASETS[dataset]}, {shown_name(group)}: {named}{more}"
            made.append(_table(title, members, chosen, tests or {}))
    return made


def _table(
    title: str, rows: Sequence[RowResult], metrics: Sequence[str], tests: Mapping[str, Any]
) -> TableText:
    """Published number, ours and the difference for some metrics; the best of ours is bold, * is significant."""
    equal = rows[0].spec.recipe.fidelity == "equal"  # what differs from the paper is then the same for all
    header, lines, bold = ["method"], [[shown_name(row.spec.method)] for row in rows], set()
    for metric in metrics:
        name = shown_metric(metric)
        printed = any(metric in row.spec.published for row in rows)
        means = [mean for row in rows if (mean := row.mean(metric)) is not None]
        best = (min if metric in ERRORS else max)(means, default=None)
        header += [f"{name} paper", f"{name} ours", "diff."] if printed else [f"{name} ours"]
        for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
            if best is not None and row.mean(metric) == best:
                bold.add((place, len(line) + printed))
            ours = _number(row.mean(metric)) + _star(row, rows, metric, tests)
            half = row.half_width(metric)
            cell = ours if half is None else f"{ours} ± {half:.4f}"
            theirs = _number(row.spec.published.get(metric))
            line += [theirs, cell, percent(row.difference(metric))] if printed else [cell]
    header += ["seeds", "epochs", _CHOSEN] if equal else ["seeds", _DEVIATIONS]
    for line, row in zip(lines, rows, strict=True):
        line += [str(len(row.runs) or ""), *(_epochs_and_choice(row) if equal else [_deviations(row)])]
    notes = _notes(rows)
    if any("*" in cell for line in lines for cell in line):
        words = "paired t-test over users, two-sided, Holm-corrected over the rivals, p < 0.05"
        notes.append(f"*: better than every rival that was run, {words}.")
    return TableText(title=title, header=header, rows=lines, bold=frozenset(bold), notes=notes)


def _deviations(row: RowResult) -> str:
    capped = [run for run in row.runs if run.stopped == "epochs"]
    ended = [f"ended by the limit of {run.epochs} epochs (best {run.best_epoch})" for run in capped[:1]]
    return "; ".join([*row.recipe.deviations(), *ended]) if row.runs else "not run"


def _epochs_and_choice(row: RowResult) -> list[str]:
    """After how many epochs each run stopped, and the settings that the search chose."""
    settings = row.recipe.settings
    chosen = [shown_setting(name, settings[name]) for name in row.spec.recipe.searched if name in settings]
    epochs = [f"{run.epochs}{' (limit)' if run.stopped == 'epochs' else ''}" for run in row.runs]
    return [", ".join(epochs), ", ".join(chosen) if row.runs else "not run"]


def _number(value: float | None, digits: int = 4, scale: float = 1) -> str:
    return "–" if value is None else f"{scale * value:,.{digits}f}"


def _star(row: RowResult, rows: Sequence[RowResult], metric: str, tests: Mapping[str, Any]) -> str:
    """A star for Talos where it is above every rival that was run, by paired tests."""
    names = {one.spec.method: one for one in rows if one.runs and "," not in one.spec.method}
    rivals = {name: one for name, one in names.items() if name != "talos"}
    paired = all(metric in tests.get(f"{row.recipe.key} {one.recipe.key}", {}) for one in rivals.values())
    if row.spec.method != "talos" or not rivals or not paired:
        return ""
    return "*" if compared(row, rivals, metric, tests)[0] == "ahead" else ""


def compared(
    ours: RowResult, rivals: Mapping[str, RowResult], metric: str, tests: Mapping[str, Any]
) -> tuple[str, str]:
    """The verdict on a row against its rivals, and the difference to the best of them with its 95 % interval.

    *ahead*: significantly above every rival; *behind*: significantly below one; *level*: neither. p < .05 after Holm's
    correction over the rivals.

    Args:
        ours: the row that is judged.
        rivals: name → row.
        metric: what is compared.
        tests: the keys of two recipes → the stored test, paired over users, between their runs; a rival without one is
            compared by the standard errors of both and marked †.
    """
    found = {}
    for name, row in rivals.items():
        test = tests.get(f"{ours.recipe.key} {row.recipe.key}", {}).get(metric)
        if test and test["effect_size"]:
            difference = test["difference"]
            half = NORMAL * difference / test["effect_size"] / math.sqrt(ours.runs[0].users)
            found[name] = (difference, half, test["p_values"]["t"], "")
        else:
            difference = (ours.mean(metric) or 0.0) - (row.mean(metric) or 0.0)
            half = math.hypot(ours.half_width(metric) or 0.0, row.half_width(metric) or 0.0)
            p = math.erfc(abs(difference) * NORMAL / half / math.sqrt(2)) if half else 1.0
            found[name] = (difference, half, p, "†")
    corrected = holm([p for _, _, p, _ in found.values()])
    signs = [math.copysign(p < 0.05, one[0]) for one, p in zip(found.values(), corrected, strict=True)]
    best = max(rivals, key=lambda name: rivals[name].mean(metric) or 0.0)
    difference, half, _, mark = found[best]
    verdict = "behind" if min(signs) == -1 else "ahead" if min(signs) == 1 else "level"
    return verdict, f"{difference:+.4f} ± {half:.4f}{mark} ({shown_name(best)})"


def _notes(rows: Sequence[RowResult]) -> list[str]:
    seen = dict.fromkeys(note for row in rows for run in row.runs for note in run.notes)
    notes = [f"Data: {'; '.join(seen)}."] if seen else []
    spread = {row.spec.method: std for row in rows if (std := row.std("recall@20")) is not None}
    if spread:
        listed = ", ".join(f"{shown_name(name)} {std:.4f}" for name, std in spread.items())
        notes.append(f"Standard deviation of R@20 over seeds: {listed}.")
    if rows[0].spec.recipe.fidelity == "equal" and (over_seeds := _over_seeds(rows, "recall@20")):
        found = ", ".join(f"{shown_name(name)} {p:.2g}" for name, p in over_seeds.items())
        notes.append(
            f"Talos against each rival over seeds, Welch's t-test of R@20, Holm-corrected, p: {found}."
        )
    return notes


def _over_seeds(rows: Sequence[RowResult], metric: str) -> dict[str, float]:
    """Rival → p-value of Talos against it over seeds; of rivals with several seeds that differ."""
    from scipy import stats

    found = {row.spec.method: row.values(metric) for row in rows if row.std(metric)}
    talos = found.pop("talos", None)
    if talos is None or not found:
        return {}
    tested = [stats.ttest_ind(talos, values, equal_var=False).pvalue for values in found.values()]
    return dict(zip(found, holm([float(p) for p in tested]), strict=True))


# ---------------------------------------------------------------------------------------- tables of measurements


def _data_note(measured: Mapping[str, Any]) -> list[str]:
    return [f"Data: {'; '.join(measured['notes'])}."] if measured["notes"] else []


def _statistics(dataset: str, measured: Mapping[str, Any]) -> list[TableText]:
    rows = []
    for metric, digits in (("users", 0), ("items", 0), ("interactions", 0), ("density", 4)):
        theirs = published.value(table="statistics", dataset=dataset, metric=metric)
        difference = percent(None if theirs is None else measured[metric] / theirs - 1)
        rows.append([metric, _number(theirs, digits), _number(measured[metric], digits), difference])
    title, header = DATASETS[dataset], ["", "paper", "here", "diff."]
    return [TableText(title=title, header=header, rows=rows, notes=_data_note(measured))]


def _efficiency(dataset: str, measured: Mapping[str, Any]) -> list[TableText]:
    """Seconds per epoch and their ratios to SL; the paper's exchanged columns are put right."""
    mended = [published.mended(entry) for entry in published.numbers(table="efficiency")]
    theirs = {entry.method: entry.value for entry in mended if entry.dataset == dataset}
    ours: dict[str, Any] = measured["protocols"]
    rows = [
        [
            shown_name(loss),
            _number(theirs.get(loss), 2),
            _number(theirs[loss] / theirs["sl"] if loss in theirs else None, 2),
            *(f"{found[loss][value]:.2f}" for found in ours.values() for value in ("seconds", "ratio")),
        ]
        for loss in ours["paper"]
    ]
    shown = {"paper": "ours", "fast": "fast", "equal": "all items"}
    columns = ("paper", *(shown[protocol] for protocol in ours))
    header = ["loss", *(name for column in columns for name in (f"{column} s", f"{column}, × SL"))]
    note = (
        f"Ours on {measured['threads']} thread(s) of a CPU, the paper's on one RTX 4090. ours: 1,024 negatives per "
        "positive (BPR 1); fast: see overall.md; all items: all losses on equal footing. Medians of steps times the "
        "steps of an epoch; losses in turns."
    )
    title = f"{DATASETS[dataset]}, MF, seconds an epoch"
    return [TableText(title=title, header=header, rows=rows, notes=[note])]


CONTRADICTING = {"auc": "AUC", "llpauc": "LLPAUC", "ndcg": "NDCG", "ndcg@20": "NDCG@20"}
"""The metrics of Table 1 → their names in tables."""


def _inconsistency(dataset: str, measured: Mapping[str, Any]) -> list[TableText]:
    """The shares of the default reading beside the printed ones, then every reading with its distance."""
    used, name = measured["used"], DATASETS[dataset]
    rows = []
    for metric, shown in CONTRADICTING.items():
        entries = published.numbers(table="inconsistency", dataset=dataset, method=metric)
        printed = [entry.value for entry in entries]  # of P@20, then of R@20
        here = used["shares"][metric]
        cells = [*(_number(value, 2, 100) for value in printed), _number(here, 2, 100)]
        rows.append([shown, *cells, f"{100 * (here - sum(printed) / 2):+.1f}"])
    note = (
        f"{measured['pairs']:,} pairs of random lists. Used: positives of a list are {SOURCES[used['source']]}; "
        f"reading {used['reading']}. P@20 and R@20 order two lists of one user alike, so ours is one share."
    )
    shares = TableText(
        title=f"{name}, share of contradicting pairs, %",
        header=["metric", "paper, with P@20", "paper, with R@20", "ours, with either", "diff., points"],
        rows=rows,
        notes=[note, *_data_note(measured)],
    )
    tried = [
        [
            one["source"],
            one["reading"],
            *(_number(one["shares"][metric], 2, 100) for metric in CONTRADICTING),
            _number(one["distance"], 1, 100),
            "used" if one == used else "",
        ]
        for one in sorted(measured["tried"], key=lambda one: one["distance"])
    ]
    readings = TableText(
        title=f"{name}, readings that were tried",
        header=["positives", "reading", *CONTRADICTING.values(), "distance, points", ""],
        rows=tried,
        notes=["Distance: root mean square difference from the eight printed shares of this data set."],
    )
    return [shares, readings]


def _theory(_: str, measured: Mapping[str, Any]) -> list[TableText]:
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
                *(f"{point[name]:.3f}" for name in ("left", "right", "gap", "least_gap")),
                f"{100 * point['holds']:.1f}",
            ]
            for point in measured["bound"]
        ],
        notes=["Means over 200 made-up users with 200 items and 10 positives each."],
    )
    return [intervals, bound]


MEASURED: dict[str, Callable[[str, Mapping[str, Any]], list[TableText]]] = {
    "statistics": _statistics,
    "efficiency": _efficiency,
    "inconsistency": _inconsistency,
    "theory": _theory,
}
"""Experiment without a fit → the tables of a data set and what was measured."""


def percent(value: float | None) -> str:
    """A fraction as a signed percentage.

    >>> percent(0.0123), percent(None)
    ('+1.2 %', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:+.1f} %"
