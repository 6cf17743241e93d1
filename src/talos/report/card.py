"""The model card of a run: Markdown with front matter, as the Hugging Face Hub shows it.

It has the measurements of the page of the run, in the sections that people expect of a card: how to use it, data,
metrics with intervals, accuracy by group, limits, settings.
"""

from __future__ import annotations

from pathlib import PurePath

from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.source_options import SourceOptions
from talos.model.model import Model
from talos.model.recommender import Recommender
from talos.report.page import BOTH, TextTable, markdown
from talos.report.render import fixed, render
from talos.report.run import ACCURACY, Measured, run_facts, with_interval

__all__ = ["is_card", "model_card"]

_MARK = "<!-- written by `talos card` -->"
_LISTED = (10, 20, 50)  # list lengths in the table of metrics, beside the K of training


def model_card(
    recommender: Recommender,
    test: Interactions | None,
    *,
    title: str = "Recommender",
    license: str | None = None,  # noqa: A002
    most_users: int = 50_000,
    seed: int = 0,
) -> str:
    """A model card of a trained recommender in Markdown. Equal arguments give equal text.

    Args:
        recommender: fitted or loaded.
        test: the test interactions, as for `run_report`. The card of a model that was fitted on all the data has the
            metrics of the model it was chosen from, without intervals, and says so.
        title: name of the model.
        license: for the front matter, as the Hub writes it, such as "cc-by-4.0"; left out if None.
        most_users: if there are more test users, a sample of this size is measured.
        seed: the seed of the sample.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, dim=4, epochs=1).fit(data)
    >>> card = model_card(model, Interactions.from_ids(["ann", "bob"], ["rye", "jam"]), title="Breakfast")
    >>> card.startswith("---"), is_card(card), "# Breakfast" in card
    (True, True, True)
    """
    facts = run_facts(recommender, test, most_users=most_users, seed=seed)
    model, found, (ours, popular) = facts["model"], facts["found"], facts["means"]
    chosen = [[name, fixed(value), fixed(popular.get(name))] for name, value in ours.items()]
    data = _data_name(model)
    return (
        render(
            "card.md",
            **facts,
            mark=_MARK,
            markdown=markdown,
            title=title,
            license=license,
            data_name=data,
            version=str(model.metadata.get("versions", {}).get("talos", "")).strip() or "of this machine",
            data=_data(model, data, facts["fitted_on"]),
            metrics=TextTable(["metric", *BOTH], chosen) if found is None else _metrics(found),
        )
        + "\n"
    )


def is_card(text: str) -> bool:
    """Whether a text, or its beginning, is a card that this library has written.

    >>> is_card("# my own notes")
    False
    """
    return _MARK in text


def _data_name(model: Model) -> str:
    """The name of the data, without the folders of the machine they were on and without a query or a password."""
    path = str((model.metadata.get("source") or {}).get("path", ""))
    if "://" in path:
        return without_password(path).partition("?")[0].rstrip("/").rpartition("/")[2] or "a database"
    return PurePath(path.replace("\\", "/")).name or "interactions"


def _data(model: Model, name: str, fitted_on: str) -> TextTable:
    facts = [row for row in model.train.describe().rows() if row[0] != "note"]
    source = model.metadata.get("source")
    split = {} if source is None else SourceOptions.from_dict(source).splitting()
    names = {"by": "split by", "test": "test share", "valid": "validation share of the other interactions"}
    options = [(names.get(key, key.replace("_", " ")), str(value)) for key, value in split.items() if value]
    return TextTable(["", "value"], [("source", name), ("fitted on", fitted_on), *facts, *options])


def _metrics(found: Measured) -> TextTable:
    rows = [
        [f"{word}@{k}", *(with_interval(one.per_user[f"{name}@{k}"]) for one in found.both)]
        for name, word in ACCURACY
        for k in found.both[0].ks
        if k in (*_LISTED, found.k)
    ]
    at = found.place
    rows += [
        [f"Coverage@{found.k}", *(f"{one.coverage[at]:.1%}" for one in found.both)],
        [f"Gini of exposure@{found.k}", *(fixed(one.gini[at]) for one in found.both)],
        [f"Mean popularity rank@{found.k}", *(f"{one.popularity_rank[at]:.1%}" for one in found.both)],
    ]
    return TextTable(["metric", *BOTH], rows)
