"""The page of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from talos.data.interactions import Interactions
from talos.errors import ArgumentError
from talos.model.recommender import Recommender
from talos.model.run_directory import Model
from talos.report import figures
from talos.report.measures import Lists, make_lists, sample_scores
from talos.report.page import Section, Table, page, table_html, tiles
from talos.report.samples import sample_cards
from talos.report.scales import number

__all__ = ["run_report"]

CURVE_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50)


def run_report(
    recommender: Recommender,
    test: Interactions,
    history: Sequence[Mapping[str, Any]] = (),
    *,
    title: str = "Run",
    date: str | None = None,
    most_users: int = 50_000,
    shown_users: int = 3,
    seed: int = 0,
) -> str:
    """One HTML file about a trained recommender: plots, numbers under them, sample recommendations.

    What users have in train and validation is masked in their lists. Equal arguments give equal text.

    Args:
        recommender: fitted or loaded.
        test: matched by id, if it has its own vocabularies.
        history: the records of `history.jsonl`; without them there are no learning curves.
        title: of the page.
        date: shown as it is.
        most_users: more test users than these are sampled.
        shown_users: whose recommendations are shown.
        seed: of the samples.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, dim=4, epochs=1).fit(data)
    >>> text = run_report(model, Interactions.from_ids(["ann"], ["rye"]))
    >>> text.startswith("<!doctype html>"), text.count('role="img"') >= 8
    (True, True)
    """
    model = recommender.model
    if model is None:
        raise ArgumentError("is not fitted", where="recommender", expected="fit or load before this")
    model = _on_cpu(model)
    k, seen = recommender.config.k, model.seen
    known, lost = test.aligned_to(model.train)
    longest = max(k, min(CURVE_KS[-1], model.train.num_items))
    ks = sorted({at for at in (*CURVE_KS, k) if at <= longest})
    lists, popular = make_lists(model, known, seen, ks=ks, most_users=most_users, seed=seed)
    return page(
        title,
        _subtitle(recommender, model),
        [
            Section("At a glance", html=_glance(lists, popular, k), note=_notes(known, lists, lost)),
            _learning(history, model),
            Section("Accuracy", figures.against_k(lists, popular)),
            Section("Who it works for", figures.who(model, known, lists, popular, k)),
            _scores(model, known, seen, lists, k, seed),
            Section("Beyond accuracy", figures.exposure(lists, popular)),
            Section(
                "Sample recommendations",
                html=sample_cards(model, known, seen, lists, shown=shown_users, seed=seed),
            ),
            Section("Settings", html=_settings(recommender, model)),
        ],
        date=date,
    )


def _on_cpu(model: Model) -> Model:
    """The model where numpy can reach it."""
    return replace(
        model,
        user_vectors=model.user_vectors.detach().cpu(),
        item_vectors=model.item_vectors.detach().cpu(),
        thresholds=None if model.thresholds is None else model.thresholds.detach().cpu(),
    )


def _subtitle(recommender: Recommender, model: Model) -> str:
    train, config = model.train, recommender.config
    size = f"{train.num_users:,} users, {train.num_items:,} items, {len(train):,} train interactions"
    return f"Loss {config.loss.name} on backbone {config.backbone.name}, K = {config.k}. {size}."


def _notes(test: Interactions, lists: Lists, lost: int) -> str:
    total, used = int((test.user_degrees > 0).sum()), len(lists.users)
    notes = [f"On {total:,} users with test items."]
    if used < total:
        notes = [f"On {used:,} users, a random sample of {total:,} with test items."]
    if lost:
        notes.append(f"{lost:,} test interactions of unknown users or items left out.")
    return " ".join(notes)


def _glance(lists: Lists, popular: Lists, k: int) -> str:
    values = [
        (
            f"{word}@{k}",
            number(lists.mean(f"{name}@{k}")),
            f"popularity {number(popular.mean(f'{name}@{k}'))}",
        )
        for name, word in (("precision", "Precision"), ("recall", "Recall"), ("ndcg", "NDCG"), ("mrr", "MRR"))
    ]
    place = lists.ks.index(k)
    values.append(
        (f"Coverage@{k}", f"{lists.coverage[place]:.1%}", f"popularity {popular.coverage[place]:.1%}")
    )
    return tiles(values)


def _learning(history: Sequence[Mapping[str, Any]], model: Model) -> Section:
    if not history:
        return Section("Learning", note="No history was kept with this run.")
    return Section("Learning", figures.learning(history, int(model.metadata.get("epoch", 0))))


def _scores(model: Model, test: Interactions, seen: Interactions, lists: Lists, k: int, seed: int) -> Section:
    sample = sample_scores(model, test, seen, lists.users, k=k, seed=seed)
    if len(sample.exact) == 0:
        return Section("Scores and thresholds", note="No user of the test set was trained on.")
    note = (
        ""
        if sample.learned is not None
        else "This loss has no thresholds: there are no learned ones to compare."
    )
    return Section("Scores and thresholds", figures.scores(sample, k), note=note)


def _settings(recommender: Recommender, model: Model) -> str:
    rows = []
    for name, value in recommender.config.as_dict().items():
        if isinstance(value, dict):
            rows += [[f"{name}.{key}", str(inner)] for key, inner in value.items()]
        else:
            rows.append([name, str(value)])
    for name in ("epoch", "fit_seconds", "threshold_error"):
        value = model.metadata.get(name)
        if isinstance(value, int | float) and np.isfinite(value):
            rows.append([name.replace("_", " "), number(value)])
    rows += [[f"version of {name}", str(value)] for name, value in model.metadata.get("versions", {}).items()]
    return table_html(Table(["setting", "value"], rows))
