"""What the page and the card of a run both say: measured once, worded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from talos.config import RunConfig, flat_settings
from talos.data.interactions import Interactions
from talos.model.measures import Lists, by_activity, by_popularity, make_lists
from talos.model.model import Model
from talos.report.svg import number

__all__ = ["ACCURACY", "Measured", "measure", "setting_rows", "trained_on", "what_it_is"]

ACCURACY = (("precision", "Precision"), ("recall", "Recall"), ("ndcg", "NDCG"), ("mrr", "MRR"))
"""The metrics that are shown first, and how they are written."""

_CURVE_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model on its test interactions, beside ranking by popularity.

    Attributes:
        k: the list length that the model was trained for.
        test: the interactions of users and items that the model knows.
        lost: how many others there were.
        lists: of the model, at several list lengths, for all users of the test part or a sample of them.
        popular: of ranking by popularity, for the same users.
        model: the model.
    """

    model: Model
    k: int
    test: Interactions
    lost: int
    lists: Lists
    popular: Lists

    @property
    def notes(self) -> str:
        """On whom it was measured."""
        total, used = int((self.test.user_degrees > 0).sum()), len(self.lists.users)
        notes = [f"On {total:,} users with test items."]
        if used < total:
            notes = [f"On {used:,} users, a random sample of {total:,} with test items."]
        if self.lost:
            notes.append(f"{self.lost:,} test interactions of unknown users or items left out.")
        return " ".join(notes)

    def by_activity(self) -> list[tuple[str, NDArray[np.bool_]]]:
        """The users in groups by their number of train interactions: label and mask over `lists.users`."""
        return by_activity(self.model.train.user_degrees[self.lists.users])

    def by_popularity(self) -> list[tuple[str, int, int, list[float]]]:
        """Items in groups by popularity: label, items, test interactions, and the share of these that both found."""
        return by_popularity(self.model.train.item_degrees, (self.lists, self.popular), self.test, self.k)


def measure(
    model: Model, test: Interactions, config: RunConfig, *, most_users: int = 50_000, seed: int = 0
) -> Measured:
    """Measure a model on test interactions; if there are more than `most_users` users, on a sample of them.

    Items of a user in train and validation are masked in the lists.
    """
    known, lost = test.aligned_to(model.train)
    longest = max(config.k, min(_CURVE_KS[-1], model.train.num_items))
    ks = sorted({at for at in (*_CURVE_KS, config.k) if at <= longest})
    lists, popular = make_lists(model, known, ks=ks, most_users=most_users, seed=seed)
    return Measured(model=model, k=config.k, test=known, lost=lost, lists=lists, popular=popular)


def what_it_is(config: RunConfig) -> str:
    """The kind of a model in a few words.

    >>> what_it_is(RunConfig())
    'Loss talos on backbone mf'
    """
    if config.baseline is not None:
        return f"Baseline {config.baseline.name}"
    return f"Loss {config.loss.name} on backbone {config.backbone.name}"


def trained_on(counts: Mapping[str, int]) -> str:
    """The parts that a model was fitted on, in words.

    >>> trained_on({"train": 7, "valid": 2, "test": 1})
    'train, validation and test'
    """
    names = ["validation" if name == "valid" else str(name) for name in counts]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def setting_rows(config: RunConfig, model: Model) -> list[list[str]]:
    """Name and value of every setting, of what training came to, and of the versions it ran with."""
    rows = [list(setting) for setting in flat_settings(config.as_dict()).items()]
    counts = model.metadata.get("trained_on", {})
    rows += [[f"interactions of {trained_on({name: 0})}", number(count)] for name, count in counts.items()]
    if "epochs_from" in model.metadata:
        rows.append(["epochs from", str(model.metadata["epochs_from"])])
    for name in ("epoch", "fit_seconds", "threshold_error"):
        value = model.metadata.get(name)
        if isinstance(value, int | float) and np.isfinite(value):
            rows.append([name.replace("_", " "), number(value)])
    rows += [[f"version of {name}", str(value)] for name, value in model.metadata.get("versions", {}).items()]
    return rows
