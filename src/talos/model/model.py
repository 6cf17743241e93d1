"""A trained model: what gives scores, the ids, what users have, what is known about items, and its metadata."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.baselines import ItemWeights, VectorBaseline
from talos.checks import is_integer, require
from talos.config import RunConfig
from talos.data.interactions import Interactions, ItemRows
from talos.errors import ArgumentError, DataError, first_line
from talos.evaluation.popularity import PriorScores, longest_of, popularity_scores
from talos.evaluation.ranking import DotScores, HistoryScores, Scorer
from talos.losses import Loss

__all__ = ["Mask", "Model", "Vectors"]

Mask: TypeAlias = Literal["known", "trained", "nothing"]


@dataclass(frozen=True)
class Vectors:
    """Scores are dot products of user vectors (users, dim) and item vectors (items, dim).

    `thresholds` (users,) are the scores of the K-th best items; None for a loss without thresholds.
    """

    users: Tensor
    items: Tensor
    thresholds: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that scores are computed from, by name."""
        return {"user_vectors": self.users, "item_vectors": self.items}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained model or a baseline, by composition: a source of scores and what is known about users and items.

    Attributes:
        train: the interactions of training.
        valid: those of validation, over the same vocabularies; None if there were none.
        test: those the model is measured on; None if there were none, or the model was fitted on them too.
        test_is_known: whether users are known to have their test items, so that no list offers them. Metrics never
            mask them.
        later: interactions that users are known to have beside these; no list offers their items.
        metadata: the content of `model.json`; the docstring of `talos.model.store` lists the keys.
        attributes: a table with one row for each item; None if there is none.
        users: the positions of the users that this model has, if it is one process's part of a larger model; the
            user vectors and all interactions then hold these users only.
        all_item_degrees: training interactions of each item, where `train` holds a part of the users only.
        read_from: the file that the config is from; None if it was not loaded.
        scored_by: vectors of users and items, or weights between items (a user is then their train interactions).
            None in a process of a group whose rank 0 has the result, and for settings that are still to be fitted.
        backbone: the parameters of a backbone that encodes histories; None if these are folded in.
    """

    train: Interactions
    valid: Interactions | None = None
    test: Interactions | None = None
    test_is_known: bool = True
    later: Interactions | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    attributes: pl.DataFrame | None = None
    users: range | None = None
    all_item_degrees: NDArray[np.int64] | None = None
    read_from: str | None = None
    scored_by: Vectors | ItemWeights | None = None
    backbone: Mapping[str, Tensor] | None = None

    # ------------------------------------------------------------------- interactions

    @property
    def item_degrees(self) -> NDArray[np.int64]:
        """The training interactions of each item, of all users: its popularity."""
        return self.train.item_degrees if self.all_item_degrees is None else self.all_item_degrees

    @property
    def trained_on(self) -> dict[str, int]:
        """The number of interactions that were learnt from, by the name of the part."""
        return dict(self.metadata.get("trained_on", {"train": len(self.train)}))

    @cached_property
    def seen(self) -> Interactions:
        """The interactions of training and validation: what metrics mask in the standard dialect."""
        return self.train if self.valid is None else self.train.union(self.valid)

    @cached_property
    def held_out(self) -> Interactions | None:
        """What users are known to have beside training and validation; None if there is nothing."""
        given = [self.test if self.test_is_known else None, self.later]
        parts = [part for part in given if part is not None]
        return (reduce(Interactions.union, parts).difference(self.seen) or None) if parts else None

    @cached_property
    def known(self) -> Interactions:
        """All interactions that users are known to have: what no list offers them."""
        return self.seen if self.held_out is None else self.seen.union(self.held_out)

    def masked(self, mask: Mask) -> Interactions | None:
        """The interactions whose items no list offers, see `talos.model.query.ListQuery`; None for `nothing`."""
        return None if mask == "nothing" else self.known if mask == "known" else self.seen

    @property
    def item_table(self) -> pl.DataFrame:
        """A row for each item: `item_id`, `title` if items have titles, and the attributes."""
        titles = {} if self.train.item_titles is None else {"title": self.train.item_titles}
        attributes = {} if self.attributes is None else self.attributes.to_dict()
        return pl.DataFrame({"item_id": self.train.item_ids.ids, **titles, **attributes})

    # ------------------------------------------------------------------- scores

    @property
    def vectors(self) -> Vectors:
        """The vectors of users and items; an error for a model of weights between items."""
        if isinstance(self.scored_by, Vectors):
            return self.scored_by
        raise ArgumentError(
            "scores with weights between items and has no vectors",
            where=f"baseline {self.method!r}",
            expected="a model of vectors, such as a trained one or the baseline 'als'",
        )

    @property
    def has_vectors(self) -> bool:
        """Whether scores are dot products of vectors."""
        return isinstance(self.scored_by, Vectors)

    @cached_property
    def prior_scores(self) -> PriorScores:
        """Makes the scorers of users with given vectors and numbers of events."""
        return PriorScores(
            self.vectors.items.detach(),
            self.item_degrees,
            prior=self.prior,
            longest=longest_of(self.vectors.users),
        )

    @cached_property
    def dot_scores(self) -> DotScores:
        """The scores of all users with the vectors that are scored: columns for popularity are among them."""
        return self.prior_scores.of(self.vectors.users.detach(), self.train.user_degrees)

    def scorer(self) -> Scorer:
        """The scores of this model's users."""
        return self.dot_scores if self.has_vectors else self.history_scores(self.train)

    def history_scores(self, histories: Interactions | ItemRows) -> HistoryScores:
        """The scores of people with these histories, for a model of weights between items."""
        assert isinstance(self.scored_by, ItemWeights)
        return HistoryScores(histories, self.scored_by, popularity_scores(self.item_degrees))

    @cached_property
    def lengths(self) -> dict[str, Tensor]:
        """The length of each `user`'s and each `item`'s vector, at least a tiny number."""
        tables = {"user": self.vectors.users, "item": self.vectors.items}
        return {kind: table.detach().norm(dim=1).clamp(min=1e-12) for kind, table in tables.items()}

    @cached_property
    def mean_item(self) -> Tensor:
        """The mean of the item vectors, (dim,), where folding in starts from."""
        return self.vectors.items.mean(0)

    @cached_property
    def folded(self) -> OrderedDict[tuple[bytes | None, ...], Tensor]:
        """Vectors of single histories that were folded in so far; `talos.model.query` keeps the newest ones."""
        return OrderedDict()

    # ------------------------------------------------------------------- settings

    @cached_property
    def config(self) -> RunConfig:
        """The config of training."""
        return RunConfig.from_dict(self.metadata.get("config", {}), where=self.read_from or "config")

    @property
    def method(self) -> str:
        """The name of the baseline or the loss."""
        return (self.config.baseline or self.config.loss).name

    @property
    def prior(self) -> float:
        """How much popularity counts for users with few events, see `talos.evaluation.popularity`."""
        return 0.0 if self.config.training.prior == "auto" else self.config.training.prior

    def loss(self, num_items: int | None = None) -> Loss:
        """The loss of training, its learnt scalars included; an error for a baseline.

        `num_items` is how many items it is for, if not those of the model.
        """
        require(
            self.config.baseline is None,
            f"the baseline {self.method!r} was not trained and has no loss",
            where="Recommender",
            expected="a trained model for this",
            hint="a baseline is quick to fit again on all interactions",
        )
        self.check_imported()
        loss = registry.make_loss(
            self.config.loss,
            k=self.config.k,
            num_users=1,
            num_items=self.train.num_items if num_items is None else num_items,
        )
        with torch.no_grad():
            for name, parameter in loss.named_parameters():
                # an adversary's tables are not stored: with zeros every negative is equally hard
                parameter.fill_(float(self.metadata.get("loss_state", {}).get(name, 0.0)))
        return loss

    @cached_property
    def encoder(self) -> Backbone | None:
        """The backbone that encodes histories; None if these are folded in."""
        if self.backbone is None:
            return None
        self.check_imported()
        made = registry.make_backbone(self.config.backbone, self.train, generator=None)
        try:
            made.load_state_dict(dict(self.backbone))
        except RuntimeError as error:  # an edited run
            where = self.read_from or "backbone"
            raise DataError(
                f"other parameters than the backbone's ({first_line(error)})", where=where
            ) from None
        return made.eval()

    @torch.no_grad()
    def encoded(self, histories: Tensor) -> Tensor:
        """The vectors (B, dim) of histories (B, L), by the backbone; normalised if scores are cosines."""
        assert self.encoder is not None
        vectors = self.encoder.encode(histories, self.encoder.items())
        assert vectors is not None
        return F.normalize(vectors) if self.loss().needs.scores == "cosine" else vectors

    def vector_baseline(self) -> VectorBaseline | None:
        """The baseline that made the vectors; None if they were trained."""
        if self.config.baseline is None:
            return None
        self.check_imported()
        baseline = registry.make_baseline(self.config.baseline)
        require(
            isinstance(baseline, VectorBaseline),
            f"{self.method!r} with a model of vectors",  # an edited model.json
            where="baseline",
            expected="the baseline of the model",
        )
        return cast(VectorBaseline, baseline)

    def check_imported(self) -> None:
        """The config of a loaded run does not choose what is imported: see `registry.check_imported`."""
        registry.check_imported(self.config, where=self.read_from)

    def list_length(self, k: int | None) -> int:
        """`k` if this model has as many items; without `k`, the K of training, or all items if they are fewer."""
        items = self.train.num_items
        if k is None:
            return min(self.config.k, items)
        require(
            is_integer(k) and 1 <= k <= items,
            f"{k!r}",
            where="k",
            expected=f"1 to {items}, the number of items",
        )
        return k

    # ------------------------------------------------------------------- the whole

    def on_cpu(self) -> Model:
        """The same model with its tensors on the CPU, where numpy can read them."""
        if not isinstance(self.scored_by, Vectors):
            return self
        held = vars(self.scored_by).items()
        moved: dict[str, Any] = {name: None if one is None else one.detach().cpu() for name, one in held}
        return replace(self, scored_by=Vectors(**moved))

    def fingerprint(self) -> str:
        """A hash of everything that lists depend on: vectors or weights, ids and known interactions."""
        digest = hashlib.blake2b(digest_size=16)
        assert self.scored_by is not None
        for tensor in self.scored_by.tensors().values():
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
        for part in (self.train, self.valid, self.held_out):
            digest.update(b"-" if part is None else part.fingerprint().encode())
        digest.update(str(self.prior).encode())
        return digest.hexdigest()
