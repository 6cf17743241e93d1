"""The model card of a run: Markdown with front matter, as the Hugging Face Hub shows it.

It says the same as the page of the run, from the same measurements, in the sections that people expect of a card: how
to use it, data, metrics with intervals, for whom it works, limits, settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from talos.config import RunConfig
from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.source_options import SourceOptions
from talos.errors import ArgumentError
from talos.evaluation.significance import mean_interval
from talos.model.measures import Lists
from talos.model.model import Model
from talos.model.recommender import Recommender, no_test_part
from talos.report.facts import ACCURACY, Measured, measure, setting_rows, trained_on, what_it_is
from talos.report.svg import fixed

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
        test: the test interactions, as for `run_report`. None for a model that was fitted on all the data: the card
            then has the metrics of the model it was chosen from, without intervals, and says so.
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
    if recommender.model is None:
        raise ArgumentError("is not fitted", where="recommender", expected="one that was fitted or loaded")
    model, config = recommender.model.on_cpu(), recommender.config
    test = model.test if test is None else test
    if test is None and "chosen_from" not in model.metadata:
        raise no_test_part(model)
    found = None if test is None else measure(model, test, config, most_users=most_users, seed=seed)
    parts = [
        _front_matter(title, license, _data_name(model), config, _headline(model, found)),
        f"{_MARK}\n\n# {_plain(title)}",
        f"{what_it_is(config)}, trained for lists of {config.k} items with Talos {_version(model)}.",
        _section("Use", _use(config)),
        _section("Data", _data(model)),
        _section("Metrics", _chosen_from(model) if found is None else _metrics(found)),
        *([] if found is None else [_section("Who it works for", _slices(found))]),
        _section("Limits", _limits(model, config, found)),
        _section("Settings", _table(["setting", "value"], setting_rows(config, model))),
    ]
    return "\n\n".join(parts) + "\n"


def is_card(text: str) -> bool:
    """Whether a text, or its beginning, is a card that this library has written.

    >>> is_card("# my own notes")
    False
    """
    return _MARK in text


# ---------------------------------------------------------------------------------------------- front matter


def _front_matter(
    title: str,
    license: str | None,  # noqa: A002
    data: str,
    config: RunConfig,
    headline: dict[str, float],
) -> str:
    """YAML whose values are JSON, which YAML reads as it is: no title can break out of it."""
    metrics = [{"type": name, "value": round(value, 6), "name": name} for name, value in headline.items()]
    result = {
        "task": {"type": "recommendation", "name": f"Top-{config.k} recommendation"},
        "dataset": {"type": _identifier(data), "name": data},
        "metrics": metrics,
    }
    method = config.loss.name if config.baseline is None else config.baseline.name
    fields: dict[str, Any] = {
        "library_name": "talos",
        "tags": [
            "recommendation",
            "collaborative-filtering",
            "implicit-feedback",
            "top-k",
            _identifier(method),
        ],
        **({} if license is None else {"license": license}),
        **({"model-index": [{"name": title, "results": [result]}]} if metrics else {}),
    }
    lines = [f"{name}: {json.dumps(value, ensure_ascii=True)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _headline(model: Model, found: Measured | None) -> dict[str, float]:
    """The metrics at the K of training, by name; those of the model it was chosen from are not this one's."""
    if found is None:
        return {}
    return {f"{name}@{found.k}": found.lists.mean(f"{name}@{found.k}") for name, _ in ACCURACY}


def _identifier(text: str) -> str:
    """A text as a tag: lower-case letters, digits and dashes.

    >>> _identifier("Our Clicks.csv"), _identifier("???")
    ('our-clicks-csv', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-") or "unknown"


def _data_name(model: Model) -> str:
    """What the data are called, without the folders of the machine they were on; a query or a password never shows."""
    source = model.metadata.get("source")
    path = str(source.get("path", "")) if isinstance(source, dict) else ""
    if "://" in path:
        return without_password(path).partition("?")[0].rstrip("/").rpartition("/")[2] or "a database"
    return PurePath(path.replace("\\", "/")).name or "interactions"


def _version(model: Model) -> str:
    return str(model.metadata.get("versions", {}).get("talos", "")).strip() or "of this machine"


# -------------------------------------------------------------------------------------------------- sections


def _use(config: RunConfig) -> str:
    k = min(config.k, 10)
    return "\n".join(
        [
            "The files beside this card are a run directory.",
            "",
            "```python",
            "import talos",
            "",
            'model = talos.Recommender.load("FOLDER")      # nothing in it can run code',
            f'model.recommend(["USER"], k={k})',
            f'model.recommend(history=["ITEM", "ITEM"], k={k})   # somebody the model never saw',
            "```",
            "",
            f"Or `talos recommend FOLDER --user USER --k {k}`, `talos serve FOLDER`.",
        ]
    )


def _data(model: Model) -> str:
    train, facts = model.train.describe(), model.metadata
    counted = trained_on(facts.get("trained_on", {"train": len(model.train)}))
    rows = [["source", _data_name(model)], ["learnt from", counted], *map(list, _without_notes(train.rows()))]
    source = facts.get("source")
    split = {} if source is None else SourceOptions.from_dict(source).splitting()
    names = {"by": "split by", "test": "share for test", "valid": "share of the rest for validation"}
    rows += [[names.get(name, name.replace("_", " ")), str(split[name])] for name in split if split[name]]
    text = "Users, items and interactions are those that the model learnt from."
    return f"{text}\n\n{_table(['', 'value'], rows)}"


def _without_notes(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [row for row in rows if row[0] != "note"]


def _metrics(found: Measured) -> str:
    ks = [k for k in found.lists.ks if k in (*_LISTED, found.k)]
    rows = []
    for name, word in ACCURACY:
        for k in ks:
            metric = f"{name}@{k}"
            rows.append(
                [f"{word}@{k}", *(_with_interval(one, metric) for one in (found.lists, found.popular))]
            )
    place = found.lists.ks.index(found.k)
    both = (found.lists, found.popular)
    beyond = [
        [f"Coverage@{found.k}", *(f"{one.coverage[place]:.1%}" for one in both)],
        [f"Gini of exposure@{found.k}", *(fixed(one.gini[place]) for one in both)],
        [f"Mean popularity rank@{found.k}", *(f"{one.popularity_rank[place]:.1%}" for one in both)],
    ]
    text = (
        f"{found.notes} All items are ranked, those of a user in train and validation are left out. In brackets: 95 % "
        "confidence intervals of the mean over users (Student's); they say nothing of other seeds or splits. Coverage: "
        "the share of all items that is in somebody's list. Gini: 0 if all items are shown equally often. Popularity "
        "rank: as a share of the catalogue; 0 % is the most popular item."
    )
    return f"{text}\n\n{_table(['metric', 'this model', 'ranking by popularity'], [*rows, *beyond])}"


def _with_interval(lists: Lists, metric: str) -> str:
    low, high = mean_interval(lists.per_user[metric])
    return f"{fixed(lists.mean(metric))} ({fixed(low)} to {fixed(high)})"


def _chosen_from(model: Model) -> str:
    origin = model.metadata.get("chosen_from", {})
    metrics, popular = origin.get("metrics", {}), origin.get("baseline", {}).get("popularity", {})
    here, there = (trained_on(one.get("trained_on", {"train": 0})) for one in (model.metadata, origin))
    text = (
        f"No test figure: this model was fitted on {here}. The metrics below are those of the model that its settings "
        f"and its number of epochs were chosen from, which was fitted on {there}."
    )
    rows = [[name, fixed(value), fixed(popular.get(name))] for name, value in metrics.items()]
    header = ["metric", "the model it was chosen from", "ranking by popularity"]
    return f"{text}\n\n{_table(header, rows)}" if rows else text


def _slices(found: Measured) -> str:
    metric = f"recall@{found.k}"
    users = []
    for name, members in found.by_activity():
        low, high = mean_interval(found.lists.per_user[metric][members])
        means = [float(one.per_user[metric][members].mean()) for one in (found.lists, found.popular)]
        ours = f"{fixed(means[0])} ({fixed(low)} to {fixed(high)})"
        users.append([name, f"{int(members.sum()):,}", ours, fixed(means[1])])
    items = [
        [name, f"{items:,}", f"{pairs:,}", *map(fixed, shares)]
        for name, items, pairs, shares in found.by_popularity()
    ]
    both = ["this model", "popularity"]
    return "\n\n".join(
        [
            f"Mean {metric} of users, by their number of train interactions:",
            _table(["train interactions", "users", *both], users),
            f"Share of test interactions that is in the top {found.k}, by popularity of the item:",
            _table(["popularity rank, %", "items", "test interactions", *both], items),
        ]
    )


def _limits(model: Model, config: RunConfig, found: Measured | None) -> str:
    lines = [
        f"It knows {model.train.num_users:,} users and {model.train.num_items:,} items. Users it has not seen need a "
        "history of items that it knows; items it has not seen are never recommended before `talos update`.",
        "It learnt what people chose among what they were shown, not what they would like: it repeats the biases of "
        "the system that the data come from.",
        "Metrics are offline: an item that a user has not chosen counts as wrong, whether they knew it or not.",
        "One fit with one seed: differences as small as those between seeds mean nothing (`talos compare` shows them).",
        "The files hold the ids of users and the items that each had. Share them only where that may be shared.",
    ]
    if found is not None:
        zero = float((found.lists.per_user[f"recall@{found.k}"] == 0).mean())
        place = found.lists.ks.index(found.k)
        shown = found.lists.coverage[place]
        lines.insert(
            2,
            f"{zero:.1%} of the test users get no hit in {found.k} items; {shown:.1%} of the items are ever shown.",
        )
    if config.baseline is None and model.metadata.get("trained_on", {}).get("test"):
        lines.append("It was fitted on the test part too: it cannot be measured on these data any more.")
    return "\n".join(f"- {line}" for line in lines)


# -------------------------------------------------------------------------------------------------- markdown


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_plain, line)) + " |" for line in lines)


def _plain(text: str) -> str:
    r"""A text that Markdown shows as it is, on one line: nobody's file name makes a link, a tag or a new column.

    >>> _plain("a|b <img> [x](y)")
    'a\\|b &lt;img> \\[x\\](y)'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|])", r"\\\1", text)
