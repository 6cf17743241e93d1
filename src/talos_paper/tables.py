"""Results beside the published numbers: rows, and tables as Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from talos.studies.compare.export import latex_escape
from talos_paper.cells import Cell
from talos_paper.data import DATASETS
from talos_paper.experiments import Experiment
from talos_paper.recipes import Fidelity, Recipe
from talos_paper.results import Store, StoredRun

__all__ = ["Row", "TableText", "groups", "markdown", "rows_of", "table_of", "tables_of"]

_NORMAL = 1.96  # half-width of a 95 % interval in standard errors
DEVIATIONS = "not as in the paper"
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
    """A short name as tables spell it.

    >>> shown_name("talos@50"), shown_name("talos w/o quantile"), shown_name("sl@k"), shown_name("regression")
    ('Talos@50', 'Talos w/o quantile', 'SL@K', 'regression')
    """
    if name in LOSS_NAMES:
        return LOSS_NAMES[name]
    for short in ("talos",):
        if name.startswith(short):
            return LOSS_NAMES[short] + name[len(short) :]
    return name


def shown_metric(metric: str) -> str:
    """A metric as tables head it.

    >>> shown_metric("recall@20"), shown_metric("error")
    ('R@20', 'error')
    """
    name, at, k = metric.partition("@")
    return f"{_NAMES.get(name, name)}{at}{k}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell with its runs, those of the seeds that are there."""

    cell: Cell
    runs: Sequence[StoredRun]
    recipe: Recipe  # as it was run: with what its search chose

    def values(self, metric: str) -> list[float]:
        """One value a run."""
        if metric == "error":
            return [run.threshold_error for run in self.runs if run.threshold_error is not None]
        return [run.metrics[metric] for run in self.runs if metric in run.metrics]

    def mean(self, metric: str) -> float | None:
        """Over seeds; None where there is no run."""
        found = self.values(metric)
        return float(np.mean(found)) if found else None

    def std(self, metric: str) -> float | None:
        """Over seeds; None for fewer than two."""
        found = self.values(metric)
        return float(np.std(found, ddof=1)) if len(found) > 1 else None

    def half_width(self, metric: str) -> float | None:
        """Of the 95 % interval over test users: would other users of the same kind say the same?"""
        found = [run.stderr[metric] for run in self.runs if metric in run.stderr]
        return _NORMAL * float(np.mean(found)) if found else None

    def difference(self, metric: str) -> float | None:
        """Ours relative to the published number, as a fraction; None where either is missing."""
        ours, theirs = self.mean(metric), self.cell.published.get(metric)
        return None if ours is None or not theirs else ours / theirs - 1

    @property
    def deviations(self) -> str:
        """What differs from the paper's own run, in words."""
        return "; ".join(self.recipe.deviations()) if self.runs else ""


@dataclass(frozen=True, kw_only=True)
class TableText:
    """A table in plain text with a title, the places of cells in bold, and notes below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = field(default_factory=list)


def rows_of(experiment: Experiment, dataset: str, store: Store, fidelity: Fidelity = "fast") -> list[Row]:
    """Every row of an experiment on a data set, with the runs that are there."""
    found = []
    for cell in experiment.rows(dataset, fidelity):
        resolved = store.resolved(cell.recipe)
        runs = [] if resolved is None else store.runs(resolved, max(cell.seeds, 5))
        found.append(Row(cell=cell, runs=runs, recipe=resolved or cell.recipe))
    return found


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what they share."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell.group, []).append(row)
    return found


def tables_of(
    experiment: Experiment, dataset: str, rows: Sequence[Row], tests: dict[str, Any] | None = None
) -> list[TableText]:
    """The tables of an experiment on a data set: one a group and pair of metrics."""
    made = []
    for group, members in groups(rows).items():
        if not any(row.runs for row in members):
            continue
        metrics = members[0].cell.metrics
        for start in range(0, len(metrics), 2 if len(metrics) != 3 else 3):
            chosen = metrics[start : start + (2 if len(metrics) != 3 else 3)]
            named = ", ".join(shown_metric(metric) for metric in chosen)
            title = f"{DATASETS.get(dataset, dataset)}, {shown_name(group)}: {named}"
            made.append(table_of(title, members, chosen, (tests or {}).get(group)))
    return made


def table_of(
    title: str, rows: Sequence[Row], metrics: Sequence[str], tests: dict[str, Any] | None = None
) -> TableText:
    """Published, ours and the difference for some metrics; the best of ours is bold, * is significant."""
    header = ["method"]
    printed = {metric for metric in metrics if any(metric in row.cell.published for row in rows)}
    for metric in metrics:
        name = shown_metric(metric)
        header += [f"{name} paper", f"{name} ours", "diff."] if metric in printed else [f"{name} ours"]
    header += ["seeds", DEVIATIONS]
    best = {metric: _best(rows, metric) for metric in metrics}
    lines, bold = [], set()
    for place, row in enumerate(rows):
        line = [shown_name(row.cell.method)]
        for metric in metrics:
            if row.mean(metric) is not None and row.mean(metric) == best[metric]:
                bold.add((place, len(line) + (metric in printed)))
            ours = _ours(row, metric, _star(row, metric, tests))
            line += [_published(row, metric), ours, _difference(row, metric)] if metric in printed else [ours]
        line += [str(len(row.runs) or ""), row.deviations if row.runs else "not run"]
        lines.append(line)
    return TableText(title=title, header=header, rows=lines, bold=frozenset(bold), notes=_notes(rows, tests))


def _best(rows: Sequence[Row], metric: str) -> float | None:
    found = [value for row in rows if (value := row.mean(metric)) is not None]
    if not found:
        return None
    return min(found) if metric == "error" else max(found)


def _published(row: Row, metric: str) -> str:
    value = row.cell.published.get(metric)
    return "–" if value is None else f"{value:.4f}"


def _ours(row: Row, metric: str, star: str) -> str:
    mean, half = row.mean(metric), row.half_width(metric)
    if mean is None:
        return "–"
    return f"{mean:.4f}{star}" + (f" ± {half:.4f}" if half is not None else "")


def _difference(row: Row, metric: str) -> str:
    found = row.difference(metric)
    return "–" if found is None else f"{100 * found:+.1f} %"


def _star(row: Row, metric: str, tests: dict[str, Any] | None) -> str:
    """A star for Talos where it beats every rival that was run with p < 0.05."""
    if tests is None or row.cell.method != "talos":
        return ""
    found = tests.get(metric, {}).get("against", {})
    return "*" if found and all(one["difference"] > 0 and one["p"] < 0.05 for one in found.values()) else ""


def _notes(rows: Sequence[Row], tests: dict[str, Any] | None) -> list[str]:
    notes = []
    seen = list(dict.fromkeys(note for row in rows for run in row.runs for note in run.notes))
    if seen:
        notes.append("Data: " + "; ".join(seen) + ".")
    spread = [
        f"{shown_name(row.cell.method)} {_std:.4f}"
        for row in rows
        if (_std := row.std("recall@20")) is not None
    ]
    if spread:
        notes.append("Standard deviation of R@20 over seeds: " + ", ".join(spread) + ".")
    if tests:
        some = next(iter(tests.values()))
        notes.append(f"*: better than every rival that was run, {some['test']}, p < 0.05.")
    return notes


# ---------------------------------------------------------------------- text


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
        lines.append(
            _line(
                [f"**{cell}**" if (place, column) in table.bold else cell for column, cell in enumerate(row)]
            )
        )
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
    """The table for `booktabs`, without the column of deviations, which stand in a comment below."""
    keep = [place for place, name in enumerate(table.header) if name != DEVIATIONS]
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
