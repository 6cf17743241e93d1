"""The baseline of every model: what everybody likes."""

from __future__ import annotations

from typing import Any

import torch

from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import current
from talos.evaluation.evaluate import Report, evaluate
from talos.evaluation.ranking import FixedScores

__all__ = ["popularity_report"]


def popularity_report(
    train: Interactions | Share, test: Interactions | Share, *, seen: Interactions, **options: Any
) -> Report:
    """What ranking by popularity in `train` reaches: the baseline that any model must beat.

    Of shares, `seen` is that of this process's users, and all processes of the group call this together.
    """
    assert train.item_degrees is not None
    scores = FixedScores(torch.tensor(train.item_degrees))
    if isinstance(test, Share):
        return evaluate(scores, test.own, group=current(), seen=seen, **options)
    return evaluate(scores, test, seen=seen, **options)
