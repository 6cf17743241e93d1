"""Tables of our results beside the published numbers, and their text as Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talos.evaluation.significance import holm
from talos.studies.compare.table import latex_escape
from talos_paper import published
from talos_paper.data import DATASETS
from talos_paper.experiments import Experiment, Row
from talos_paper.inconsistency import SOURCES
from talos_paper.recipes import Fidelity, Recipe, shown_setting
from talos_paper.results import ResultStore, StoredRun

__all__ = [
    "REMARKS",
    "RowResult",
    "TableText",
    "groups",
    "latex",
    "markdown",
    "measurement_tables",
    "on_equal_footing",
    "percent",
    "rows_of",
    "shown_metric",
    "shown_name",
    "tables_of",
]

_NORMAL = 1.96  # half-width of a 95 % interval in standard errors
_DEVIATIONS, _CHOSEN = "not as in the paper", "chosen on validation"
REMARKS = (_DEVIATIONS, _CHOSEN)
"""Columns of words."""
ERRORS = ("error", "fresh error")  # of thresholds: the lower, the better
_NAMES = {
    "precision": "P",
    "recall": "R",
    "ndcg": "NDCG",
    "mrr": "MRR",
}
LOSS_NAMES = {
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
    if name in LOSS_NAMES:
        return LOSS_NAMES[name]
    return LOSS_NAMES["talos"] + name.removeprefix("talos") if name.startswith("talos") else name


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
        """The metric of each run; `error` is the threshold error, `fresh error` that with the vectors held still."""
        if metric in ERRORS:
            found = [
                run.threshold_error if metric == "error" else run.fresh_threshold_error for run in self.runs
            ]
            return [value for value in found if value is not None]
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
        return _NORMAL * float(np.mean(found)) if found else None

    def difference(self, metric: str) -> float | None:
        """Our mean relative to the published number, minus 1; None where either is missing."""
        ours, theirs = self.mean(metric), self.spec.published.get(metric)
        return None if ours is None or not theirs else ours / theirs - 1

    @property
    def deviations(self) -> str:
        """What differs from the paper's run, in words."""
        if not self.runs:
            return ""
        capped = [run for run in self.runs if run.stopped == "epochs"]
        ended = [f"ended by the limit of {run.epochs} epochs (best {run.best_epoch})" for run in capped[:1]]
        return "; ".join([*self.recipe.deviations(), *ended])

    @property
    def chosen(self) -> str:
        """The settings that the search was about, as it chose them."""
        names = [name for name in self.spec.recipe.searched if name in self.recipe.settings]
        return ", ".join(shown_setting(name, self.recipe.settings[name]) for name in names)

    @property
    def epochs(self) -> str:
        """After how many epochs each run stopped, and whether its limit of epochs was the reason."""
        return ", ".join(f"{run.epochs}{' (limit)' if run.stopped == 'epochs' else ''}" for run in self.runs)


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
    found = []
    for row in experiment.rows(dataset, fidelity):
        resolved = store.resolved(row.recipe)
        runs = [] if resolved is None else store.runs(resolved, max(row.seeds, 5))
        found.append(RowResult(spec=row, runs=runs, recipe=resolved or row.recipe))
    return found


def on_equal_footing(rows: Sequence[RowResult]) -> bool:
    """Whether the rows follow the protocol of `talos_paper.equal`."""
    return rows[0].spec.recipe.fidelity == "equal"


def groups(rows: Sequence[RowResult]) -> dict[str, list[RowResult]]:
    """Group → its rows."""
    found: dict[str, list[RowResult]] = {}
    for row in rows:
        found.setdefault(row.spec.group, []).append(row)
    return found


def tables_of(
    experiment: Experiment, dataset: str, rows: Sequence[RowResult], tests: dict[str, Any] | None = None
) -> list[TableText]:
    """The tables of an experiment on a data set: one for each group and two metrics (three if there are three)."""
    made = []
    for group, members in groups(rows).items():
        if not any(row.runs for row in members):
            continue
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
            title = f"{DATASETS.get(dataset, dataset)}, {shown_name(group)}: {named}"
            made.append(_table(title, members, chosen, (tests or {}).get(group)))
    return made


def _table(
    title: str, rows: Sequence[RowResult], metrics: Sequence[str], tests: dict[str, Any] | None = None
) -> TableText:
    """Published number, ours and the difference for some metrics; the best of ours is bold, * is significant."""
    header = ["method"]
    printed = {metric for metric in metrics if any(metric in row.spec.published for row in rows)}
    for metric in metrics:
        name = shown_metric(metric)
        header += [f"{name} paper", f"{name} ours", "diff."] if metric in printed else [f"{name} ours"]
    equal = on_equal_footing(rows)  # what differs from the paper is then the same for all
    header += ["seeds", "epochs", _CHOSEN] if equal else ["seeds", _DEVIATIONS]
    best = {metric: _best(rows, metric) for metric in metrics}
    lines, bold = [], set()
    for place, row in enumerate(rows):
        line = [shown_name(row.spec.method)]
        for metric in metrics:
            if row.mean(metric) is not None and row.mean(metric) == best[metric]:
                bold.add((place, len(line) + (metric in printed)))
            ours = _ours(row, metric, _star(row, metric, tests))
            line += [_published(row, metric), ours, _difference(row, metric)] if metric in printed else [ours]
        line += [str(len(row.runs) or ""), *([row.epochs] if equal else [])]
        line.append((row.chosen if equal else row.deviations) if row.runs else "not run")
        lines.append(line)
    return TableText(title=title, header=header, rows=lines, bold=frozenset(bold), notes=_notes(rows, tests))


def _best(rows: Sequence[RowResult], metric: str) -> float | None:
    found = [value for row in rows if (value := row.mean(metric)) is not None]
    if not found:
        return None
    return min(found) if metric in ERRORS else max(found)


def _published(row: RowResult, metric: str) -> str:
    value = row.spec.published.get(metric)
    return "–" if value is None else f"{value:.4f}"


def _ours(row: RowResult, metric: str, star: str) -> str:
    mean, half = row.mean(metric), row.half_width(metric)
    if mean is None:
        return "–"
    return f"{mean:.4f}{star}" + (f" ± {half:.4f}" if half is not None else "")


def _difference(row: RowResult, metric: str) -> str:
    found = row.difference(metric)
    return "–" if found is None else f"{100 * found:+.1f} %"


def _star(row: RowResult, metric: str, tests: dict[str, Any] | None) -> str:
    """A star for Talos where it is above every rival that was run with p < 0.05."""
    if tests is None or row.spec.method != "talos":
        return ""
    found = tests.get(metric, {}).get("against", {})
    return "*" if found and all(one["difference"] > 0 and one["p"] < 0.05 for one in found.values()) else ""


def _notes(rows: Sequence[RowResult], tests: dict[str, Any] | None) -> list[str]:
    notes = []
    seen = list(dict.fromkeys(note for row in rows for run in row.runs for note in run.notes))
    if seen:
        notes.append("Data: " + "; ".join(seen) + ".")
    spread = [
        f"{shown_name(row.spec.method)} {_std:.4f}"
        for row in rows
        if (_std := row.std("recall@20")) is not None
    ]
    if spread:
        notes.append("Standard deviation of R@20 over seeds: " + ", ".join(spread) + ".")
    if on_equal_footing(rows) and (over_seeds := _over_seeds(rows, "recall@20")):
        found = ", ".join(f"{shown_name(name)} {p:.2g}" for name, p in over_seeds.items())
        notes.append(
            f"Talos against each rival over seeds, Welch's t-test of R@20, Holm-corrected, p: {found}."
        )
    if tests:
        some = next(iter(tests.values()))
        notes.append(f"*: better than every rival that was run, {some['test']}, p < 0.05.")
    return notes


def _over_seeds(rows: Sequence[RowResult], metric: str) -> dict[str, float]:
    """Rival → p-value of Talos against it over seeds; of rivals with several seeds that differ."""
    found = {row.spec.method: row for row in rows if row.std(metric)}
    talos = found.pop("talos", None)
    if talos is None or not found:
        return {}
    return dict(zip(found, holm([_welch(talos, row, metric) for row in found.values()]), strict=True))


def _welch(a: RowResult, b: RowResult, metric: str) -> float:
    from scipy import stats

    (mean_a, std_a, n_a), (mean_b, std_b, n_b) = (
        (row.mean(metric) or 0.0, row.std(metric) or 0.0, len(row.runs)) for row in (a, b)
    )
    found = stats.ttest_ind_from_stats(mean_a, std_a, n_a, mean_b, std_b, n_b, equal_var=False)
    return float(found.pvalue)


# ---------------------------------------------------------------------------------------- tables of measurements


def measurement_tables(experiment: str, dataset: str, measured: dict[str, Any]) -> list[TableText]:
    """The tables of an experiment that needs no fit."""
    if experiment == "statistics":
        return [_statistics(dataset, measured)]
    if experiment == "efficiency":
        return [_efficiency(dataset, measured)]
    if experiment == "inconsistency":
        return _inconsistency(dataset, measured)
    return _theory(measured)


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


def printed_seconds(dataset: str) -> dict[str, float]:
    """Loss → the paper's seconds per epoch, with its exchanged columns put right."""
    entries = [published.mended(entry) for entry in published.numbers(table="efficiency")]
    return {entry.method: entry.value for entry in entries if entry.dataset == dataset}


def _efficiency(dataset: str, measured: dict[str, Any]) -> TableText:
    theirs = printed_seconds(dataset)
    shown = {"paper": "ours", "fast": "fast", "equal": "all items"}
    ours: dict[str, Any] = measured["protocols"]  # a measurement of an earlier version has two of them
    rows = [
        [
            shown_name(loss),
            f"{theirs[loss]:.2f}" if loss in theirs else "–",
            f"{theirs[loss] / theirs['sl']:.2f}" if loss in theirs else "–",
            *(f"{found[loss][value]:.2f}" for found in ours.values() for value in ("seconds", "ratio")),
        ]
        for loss in ours["paper"]
    ]
    columns = ("paper", *(shown[protocol] for protocol in ours))
    header = ["loss", *(name for column in columns for name in (f"{column} s", f"{column}, × SL"))]
    notes = [
        f"Ours on {measured['threads']} thread(s) of a CPU, the paper's on one RTX 4090. ours: 1,024 negatives per "
        "positive (BPR 1); fast: see the README; all items: all losses on equal footing. Medians of steps times the "
        "steps of an epoch; losses in turns."
    ]
    return TableText(
        title=f"{DATASETS[dataset]}, MF, seconds an epoch", header=header, rows=rows, notes=notes
    )


CONTRADICTING = {"auc": "AUC", "llpauc": "LLPAUC", "ndcg": "NDCG", "ndcg@20": "NDCG@20"}
"""The metrics of Table 1 → their names in tables."""


def _inconsistency(dataset: str, measured: dict[str, Any]) -> list[TableText]:
    """The shares of the default reading beside the printed ones, then every reading with its distance."""
    used, name = measured["used"], DATASETS[dataset]
    printed = {
        metric: [
            published.value(table="inconsistency", dataset=dataset, method=metric, metric=f"{of}@20")
            for of in ("precision", "recall")
        ]
        for metric in CONTRADICTING
    }
    rows = []
    for metric, shown in CONTRADICTING.items():
        mean = sum(value or 0.0 for value in printed[metric]) / 2
        here = used["shares"][metric]
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
    return [shares, _readings(name, measured)]


def _readings(name: str, measured: dict[str, Any]) -> TableText:
    """Every way of reading the paper's description that was tried, the nearest first."""
    tried = sorted(measured["tried"], key=lambda one: one["distance"] if one["distance"] is not None else 1.0)
    rows = [
        [
            one["source"],
            one["reading"],
            *(_share(one["shares"][metric]) for metric in CONTRADICTING),
            "–" if one["distance"] is None else f"{100 * one['distance']:.1f}",
            "used" if one == measured["used"] else "",
        ]
        for one in tried
    ]
    header = ["positives", "reading", *CONTRADICTING.values(), "distance, points", ""]
    notes = ["Distance: root mean square difference from the eight printed shares of this data set."]
    return TableText(title=f"{name}, readings that were tried", header=header, rows=rows, notes=notes)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _theory(measured: dict[str, Any]) -> list[TableText]:
    """The interval of τ for each ε, and both sides of the bound."""
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
    return [intervals, bound]


# ---------------------------------------------------------------------------------------------- Markdown and LaTeX


def markdown(table: TableText, *, level: int = 3) -> str:
    """The table as Markdown, with its title and notes.

    >>> print(markdown(TableText(title="T", header=["a", "b"], rows=[["x", "1"]], bold=frozenset({(0, 1)}))))
    ### T
    <BLANKLINE>
    | a | b |
    |---|---|
    | x | **1** |
    <BLANKLINE>
    """
    lines = [f"{'#' * level} {table.title}", "", _line(table.header), "|" + "---|" * len(table.header)]
    for place, row in enumerate(table.rows):
        cells = [cell.replace("*", "\\*") for cell in row]  # marks of significance, not of emphasis
        bold = [f"**{cell}**" if (place, column) in table.bold else cell for column, cell in enumerate(cells)]
        lines.append(_line(bold))
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_GREEK = {
    "τ": r"$\tau$",
    "–": "--",
    "Δ": r"$\Delta$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "…": r"\ldots{}",
    "×": r"$\times$",
}


def latex(table: TableText) -> str:
    """The table as LaTeX with `booktabs`; columns of words become comments below it."""
    keep = [place for place, name in enumerate(table.header) if name not in REMARKS]
    lines = [
        f"% {_plain(table.title)}",
        rf"\begin{{tabular}}{{l{'r' * (len(keep) - 1)}}}",
        r"\toprule",
        " & ".join(_tex(table.header[place]) for place in keep) + r" \\",
        r"\midrule",
    ]
    for number, row in enumerate(table.rows):
        cells = [rf"\textbf{{{_tex(row[p])}}}" if (number, p) in table.bold else _tex(row[p]) for p in keep]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    dropped = [place for place in range(len(table.header)) if place not in keep]
    lines += [f"% {row[0]}: {_plain(row[place])}" for row in table.rows for place in dropped if row[place]]
    lines += [f"% {_plain(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    escaped = latex_escape(text)
    for character, command in _GREEK.items():
        escaped = escaped.replace(character, command)
    return escaped


def _plain(text: str) -> str:
    return " ".join(text.split())


def percent(value: float | None) -> str:
    """A fraction as a signed percentage.

    >>> percent(0.0123), percent(None)
    ('+1.2 %', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:+.1f} %"
