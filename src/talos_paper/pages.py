"""The pages, tables and plots of every experiment, written from the stored results: Markdown, LaTeX, HTML and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from talos.files import replace_text
from talos.report import standalone
from talos.report.page import Figure, TextTable
from talos.report.render import environment
from talos_paper import published
from talos_paper.data import DATASETS
from talos_paper.equal import PROTOCOL, READINGS
from talos_paper.experiments import EXPERIMENTS, Experiment
from talos_paper.grid_page import write_grid
from talos_paper.leaderboard_page import write_leaderboard
from talos_paper.plots import measurement_plots, plots_of
from talos_paper.readme import readme
from talos_paper.results import ResultStore, measurement_name
from talos_paper.tables import (
    TableText,
    latex,
    markdown,
    measurement_tables,
    on_equal_footing,
    rows_of,
    tables_of,
)

__all__ = ["write_pages"]

_HOW_TO_READ = (
    "ours: mean over seeds, ± half of the 95 % interval over test users; diff.: ours relative to the published "
    "number; bold: the best of ours. Metrics as the paper measures them (train items masked, MRR summed over hits)."
)

_OLD = (
    "error: the mean distance of the thresholds that a fit ended with from the exact K-th scores of its final vectors. "
    "Vectors move after a user's last batch, so even exact thresholds are up to an epoch old by then: their error is "
    "that age, and the loss never saw it."
)
_FRESH = (
    "fresh error: the same after one more epoch in which only thresholds are updated and no vector moves, which leaves "
    "the error of the estimate itself (–: not measured)."
)
_READINGS: Mapping[str, Mapping[str, str]] = {
    "equal": READINGS,
    "quantile-error": {
        "movielens-100k": "Regression ends with a large error because early stopping ends the run after 55 epochs, "
        "before thresholds that start at 0 converge at a rate of .001.",
        "gowalla": "The paper prints no setting for SL@K, whose thresholds Monte Carlo estimates: its temperature and "
        "ten epochs are ours, so its error is comparable with the published one in size alone.",
        "games": "Regression ends with a large error, likely because the run is short: a user has 7 positives in train "
        "on average and so 7 updates an epoch, which at a rate of .001 move a threshold from 0 by about .35 in 50 "
        "epochs. On Gowalla it is 24 updates an epoch, and 60 epochs. For Monte Carlo, see Gowalla.",
    },
}
"""Experiment → data set → what there is to say about its results."""


@dataclass
class _Part:
    """The tables, plots and sentences of an experiment on one data set."""

    dataset: str
    tables: Sequence[TableText] = ()
    figures: Sequence[Figure] = ()
    text: Sequence[str] = field(default_factory=list)


def write_pages(store: ResultStore) -> list[Path]:
    """Write every page, table and plot beside the results and return the files; a changed result is an error."""
    store.check()
    written = []
    for experiment in EXPERIMENTS.values():
        parts = [part for dataset in experiment.datasets if (part := _part(experiment, dataset, store))]
        if not parts:
            continue
        stem = store.root / experiment.name
        written.append(_write(stem.with_suffix(".md"), _markdown(experiment, parts)))
        written.append(_write(stem.with_suffix(".tex"), _latex(experiment, parts)))
        written.append(_write(stem.with_suffix(".html"), _html(experiment, parts)))
        written += [
            _write(store.root / name, standalone(figure)) for name, figure in _plots(experiment, parts)
        ]
    written += [*write_leaderboard(store), *write_grid(store)]
    written.append(_write(store.root / "README.md", readme(store)))
    return written


def _part(experiment: Experiment, dataset: str, store: ResultStore) -> _Part | None:
    if experiment.make_rows is None:
        measured = store.measurement(measurement_name(experiment.name, dataset))
        if measured is None:
            return None
        return _Part(
            dataset,
            measurement_tables(experiment.name, dataset, measured),
            measurement_plots(experiment.name, dataset, measured),
            _misprints(experiment.name, dataset),
        )
    rows = rows_of(experiment, dataset, store)
    if not any(row.runs for row in rows):
        return None
    tests = (store.measurement(f"significance-{experiment.name}-{dataset}") or {}).get("groups")
    tables = tables_of(experiment, dataset, rows, tests)
    others = rows_of(experiment, dataset, store, "paper")
    fast = {row.spec.recipe.key for row in rows}
    if any(row.runs and row.spec.recipe.key not in fast for row in others):
        kept = [row for row in others if row.runs]
        tables += [
            TableText(**{**vars(table), "title": f"{table.title}, the paper's own protocol"})
            for table in tables_of(experiment, dataset, kept, None)
        ]
    text = _misprints(experiment.name, dataset)
    if experiment.name == "quantile-error":
        text += [_OLD, *([_FRESH] if any(row.values("fresh error") for row in rows) else [])]
    if dataset in (said := _READINGS.get(experiment.name, {})):
        text.append(said[dataset])
    if experiment.name != "equal" and on_equal_footing(rows):
        text += PROTOCOL if rows[0].spec.recipe.options else PROTOCOL[:1]
    return _Part(dataset, tables, plots_of(experiment.name, dataset, rows), text)


def _misprints(experiment: str, dataset: str) -> list[str]:
    """The known misprints among the published numbers of this experiment, as sentences."""
    tables = ("slatk-temporal", "slatk-negatives", "slatk-k") if experiment == "slatk" else (experiment,)
    name = "games" if (experiment, dataset) == ("slatk", "beauty") else dataset
    everything: tuple[published.PublishedNumber | published.Improvement, ...] = (
        *published.NUMBERS,
        *published.IMPROVEMENTS,
    )
    entries = [one for one in everything if one.table in tables and one.dataset == name and one.misprint]
    return [f"Misprint in the paper: {text}." for text in dict.fromkeys(str(one.misprint) for one in entries)]


def _plots(experiment: Experiment, parts: Sequence[_Part]) -> list[tuple[str, Figure]]:
    """File name → figure."""
    return [
        (f"plots/{experiment.name}-{part.dataset}-{place}.svg", figure)
        for part in parts
        for place, figure in enumerate(part.figures, start=1)
    ]


def _how_to_read(experiment: Experiment) -> list[str]:
    """What there is to know before the tables, a paragraph each."""
    if experiment.make_rows is None:
        return []
    return [*PROTOCOL, _HOW_TO_READ] if experiment.name == "equal" else [_HOW_TO_READ]


def _markdown(experiment: Experiment, parts: Sequence[_Part]) -> str:
    lines = [f"# {experiment.title}", "", f"In the paper: {experiment.paper}.", ""]
    lines += [f"    talos reproduce {experiment.name}", ""]
    for paragraph in _how_to_read(experiment):
        lines += [paragraph, ""]
    plots = _plots(experiment, parts)
    for part in parts:
        lines += [markdown(table) for table in part.tables]
        lines += [text + "\n" for text in part.text]
        for name, figure in plots:
            if name.startswith(f"plots/{experiment.name}-{part.dataset}-"):
                lines += [f"![{figure.title}]({name})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _latex(experiment: Experiment, parts: Sequence[_Part]) -> str:
    head = (
        f"% {experiment.title}; made by `talos reproduce {experiment.name}`; needs \\usepackage{{booktabs}}\n"
    )
    return "\n".join([head, *(latex(table) for part in parts for table in part.tables)])


_PAGE = """
{% extends "page.html" %}
{% from "macros.html" import section, table as show_table %}
{% block subtitle %}{{ subtitle }}{% endblock %}
{% block main %}
{% for part in parts %}
{% for table, shown in part.shown %}
{% call section(table.title) %}
{% if table.notes %}<p>{{ table.notes|join(" ") }}</p>{% endif %}
{{ show_table(shown) }}
{% endcall %}
{% endfor %}
{% if part.figures or part.text %}
{% call section("Plots: " ~ part.name, part.figures) %}
{% for text in part.text %}<p>{{ text }}</p>{% endfor %}
{% endcall %}
{% endif %}
{% endfor %}
{% endblock %}
"""


def _html(experiment: Experiment, parts: Sequence[_Part]) -> str:
    subtitle = f"In the paper: {experiment.paper}. Made by talos reproduce {experiment.name}."
    shown = [
        {
            "name": DATASETS.get(part.dataset, part.dataset),
            "shown": [(table, TextTable(table.header, table.rows, table.bold)) for table in part.tables],
            "figures": part.figures,
            "text": part.text,
        }
        for part in parts
    ]
    return (
        environment()
        .from_string(_PAGE.strip())
        .render(
            title=experiment.title,
            subtitle=" ".join([subtitle, *_how_to_read(experiment)]),
            date=None,
            parts=shown,
        )
    )


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        replace_text(path, text)
    return path
