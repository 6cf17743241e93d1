"""What a refit is made from: the parts of the data, and what a fit has settled on them.

A refit takes as many *epochs* as the best epoch of the fit that it follows, not as many steps. An epoch is one pass
over the data, so both models see each interaction equally often; where batches consist of positives, the number of
steps grows with the data by itself, and where they consist of users, it stays. The learning-rate decay counts epochs,
so the last epoch has the learning rate of the best one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from talos.data.interactions import Interactions
from talos.errors import ArgumentError, nearest

if TYPE_CHECKING:
    from talos.data.shards import Share

__all__ = ["REFIT_ON", "Fitted", "RefitOn", "refit_data"]

RefitOn: TypeAlias = Literal["train+valid", "all"]
REFIT_ON: tuple[RefitOn, ...] = get_args(RefitOn)

# What `model.json` keeps of the model that the settings and the number of epochs come from.
_KEPT = ("trained_on", "epoch", "epochs_from", "valid", "race", "metrics", "baseline", "chosen_from")


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fit as every process of its group knows it, also those that do not have the model.

    Attributes:
        train: the interactions that were learnt from.
        valid: those of early stopping; None if there were none.
        held_out: those that are only known, see `Model.held_out`.
        facts: the metadata of the model, see `talos.model.run_directory`.
    """

    train: Interactions | Share
    valid: Interactions | Share | None
    held_out: Interactions | None
    facts: Mapping[str, Any]

    @property
    def trained_on(self) -> dict[str, int]:
        """The number of interactions that were learnt from, by the name of the part."""
        return dict(self.facts.get("trained_on", {"train": len(self.train)}))

    def as_origin(self) -> dict[str, Any]:
        """What a refitted model keeps about this fit, as `chosen_from`."""
        kept = {name: self.facts[name] for name in _KEPT if name in self.facts}
        return {"trained_on": self.trained_on, **kept}


def refit_data(fitted: Fitted, on: RefitOn) -> tuple[Interactions, dict[str, int]]:
    """The interactions to fit on again, and how many of them are from which part.

    >>> data = Interactions.from_ids([1, 1, 1], [7, 8, 9])
    >>> train, valid = data.where(data.indices == 0), data.where(data.indices == 1)
    >>> refit_data(Fitted(train=train, valid=valid, held_out=None, facts={}), "train+valid")[1]
    {'train': 1, 'valid': 1}
    """
    if on not in REFIT_ON:
        raise ArgumentError(f"{on!r}", where="on", expected=" or ".join(REFIT_ON), hint=nearest(on, REFIT_ON))
    data, valid, held_out = fitted.train, fitted.valid, fitted.held_out
    if not isinstance(data, Interactions) or not isinstance(valid, Interactions | None):
        expected = "all interactions in every process, or one process"
        raise ArgumentError("a share of the interactions", where="refit", expected=expected)
    added = {"valid": valid, "test": held_out if on == "all" else None}
    if on == "train+valid" and (valid is None or len(valid) == 0):
        raise ArgumentError(
            "there is no validation part", where="refit", expected="a fit with early stopping on one"
        )
    if on == "all" and (held_out is None or len(held_out) == 0):
        raise ArgumentError(
            "no interactions are known beside train and validation",
            where="refit",
            expected="a fit that was given them, such as fit(train, valid, known=test)",
        )
    counts = fitted.trained_on
    for name, part in added.items():
        if part is not None and len(part):
            before = len(data)
            data = data.union(part)
            counts[name] = len(data) - before
    return data, counts
