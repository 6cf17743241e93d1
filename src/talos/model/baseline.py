"""Fitting a baseline: from a config and interactions to a model, without a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from talos import registry
from talos.baselines import Baseline, ItemBaseline, VectorBaseline
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.errors import ArgumentError, TalosError
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import Scorer
from talos.model.run_directory import ItemModel, Model

if TYPE_CHECKING:
    from talos.data.shards import Share

__all__ = ["baseline_of", "fit_baseline", "scores_of_histories"]


def baseline_of(config: RunConfig) -> Baseline:
    """The baseline that a config names; an error if it names none."""
    if config.baseline is None:
        raise ArgumentError("is missing", where="baseline", expected="a config with a baseline")
    return registry.make_baseline(config.baseline)


def fit_baseline(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
) -> Model:
    """Compute the config's baseline from `train`; the validation interactions are measured and masked, not learnt.

    `facts` are added to the metadata.

    >>> config = RunConfig.from_dict({"k": 1, "baseline": {"name": "popularity"}})
    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> fit_baseline(config, data).item_vectors.flatten().tolist()
    [1.0, 2.0]
    """
    baseline = baseline_of(config)
    assert config.baseline is not None
    if not isinstance(train, Interactions) or not isinstance(valid, Interactions | None):
        what = f"the baseline {config.baseline.name!r} in a process that has a part of the interactions"
        raise ArgumentError(what, where="train", expected="all interactions")
    baseline.check(train)
    if valid is not None:
        valid, _ = valid.aligned_to(train)
    generator = torch.Generator().manual_seed(config.seed)
    metadata: dict[str, Any] = {
        "config": config.as_dict(),
        "epoch": 0,
        "trained_on": {"train": len(train)},
        **(facts or {}),
        "valid": {},
        "threshold_error": None,
        "loss_state": {},
        "metrics": {},
    }
    model: Model
    if isinstance(baseline, ItemBaseline):
        weights = baseline.fit(train, generator)
        model = ItemModel(weights=weights, train=train, valid=valid, metadata=metadata)
    elif isinstance(baseline, VectorBaseline):
        users, items = baseline.fit(train, generator)
        model = Model(
            user_vectors=users,
            item_vectors=items,
            thresholds=None,
            train=train,
            valid=valid,
            metadata=metadata,
        )
    else:
        what, expected = f"{config.baseline.name!r}", "a subclass of VectorBaseline or ItemBaseline"
        raise ArgumentError(what, where="baseline", expected=expected)
    for tensor in model.scored_with():
        if not torch.isfinite(tensor).all():
            raise TalosError(
                f"the baseline {config.baseline.name!r} has numbers that are not finite; it may need another setting"
            )
    measured = None if valid is None else valid.of_users_in(train)
    if measured is not None and len(measured):
        metrics = evaluate(model.scorer(), measured, seen=train, ks=[config.k]).metrics
        watched = f"{config.training.metric}@{config.k}"
        metadata["valid"] = {watched: metrics[watched]} | metrics  # the watched metric first, as in training
    return model


def scores_of_histories(model: Model, baseline: Baseline, histories: Interactions) -> Scorer:
    """The scores of people whom the model does not know, from their histories over the model's items."""
    if isinstance(model, ItemModel):
        return model.scores_of(histories)
    if not isinstance(baseline, VectorBaseline):  # a model.json that somebody changed
        what, expected = f"{type(baseline).__name__} with a model of vectors", "the baseline of the model"
        raise ArgumentError(what, where="baseline", expected=expected)
    ends, items = torch.tensor(histories.indptr), torch.tensor(histories.indices, dtype=torch.int64)
    vectors = baseline.fold_in(model.item_vectors, ends, items)
    return model.prior_scores.of(vectors, histories.user_degrees)
