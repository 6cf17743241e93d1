"""Every search behind a table: how many settings were tried, what validation said about them, what it chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from talos_paper.data import DATASETS
from talos_paper.experiments import EXPERIMENTS
from talos_paper.recipes import shown_setting
from talos_paper.results import Store
from talos_paper.tables import shown_name

__all__ = ["lines_of"]


def lines_of(store: Store) -> list[str]:
    """A section of the README; nothing where nothing was searched.

    >>> import pathlib, tempfile
    >>> lines_of(Store(pathlib.Path(tempfile.mkdtemp())))
    []
    """
    found = list(_entries(store))
    if not found:
        return []
    return [
        "## Searched on validation",
        "",
        "One fit of seed 0 a setting; in brackets 1,000 times its best validation Precision@K, the chosen one in bold.",
        "Rows that are not here were run with one setting. BPR and LLPAUC on graphs were searched because first runs",
        "fell far short of the published numbers on test: that there was a search is owed to the test part, what it",
        "chose is not.",
        "",
        *found,
        "",
    ]


def _entries(store: Store) -> Iterator[str]:
    seen = set()
    for experiment in EXPERIMENTS.values():
        for dataset in experiment.datasets:
            for cell in experiment.rows(dataset):
                kept = store.search(cell.recipe) if cell.recipe.search else None
                if kept is None or (dataset, cell.recipe.key) in seen:
                    continue
                seen.add((dataset, cell.recipe.key))  # tables share rows
                values = [trial[cell.recipe.watched] for trial in kept["trials"]]
                yield (
                    f"- {experiment.name}, {DATASETS[dataset]}, {shown_name(cell.group)}, "
                    f"{shown_name(cell.method)}: {len(values)} settings: {_tried(kept, values)}."
                )


def _tried(kept: Mapping[str, Any], values: list[float]) -> str:
    """Each candidate with its value. One that changes nothing is called by what the others change."""
    varied = {name for candidate in kept["candidates"] for name in candidate}
    begun = {name: value for name, value in kept["settings"].items() if name in varied}
    texts = []
    for place, (candidate, value) in enumerate(zip(kept["candidates"], values, strict=True)):
        words = ", ".join(shown_setting(*setting) for setting in (candidate or begun).items())
        text = f"{words} ({1000 * value:.2f})"
        texts.append(f"**{text}**" if place == kept["best"] else text)
    return "; ".join(texts)
