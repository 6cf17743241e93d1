"""The best possible lists for generated events: those of a model that knows the planted tastes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from talos.data.datasets.generated import HeldOut
from talos.evaluation.evaluate import DEFAULT_KS, Report, evaluate
from talos.evaluation.ranking import DotScores

__all__ = ["best_possible"]


def best_possible(held_out: HeldOut, ks: Sequence[int] = DEFAULT_KS) -> Report:
    """Metrics of the lists with the highest expected recall: the K new items that each user most probably takes next.

    No model has a higher expected recall. By chance one may reach a higher recall.

    Args:
        held_out: the users with a test part, from `talos.data.datasets.write_planted`.
        ks: list lengths; those above the number of items are left out.
    """
    parts = held_out.split
    seen = parts.train if parts.valid is None else parts.train.union(parts.valid)
    scorer = DotScores(torch.from_numpy(held_out.tastes), torch.from_numpy(held_out.topics))
    return evaluate(scorer, parts.test, seen=seen, ks=[k for k in ks if k <= len(held_out.topics)])
