"""The best possible lists for generated events: those of a model that knows the planted tastes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from talos.data.splits import Split
from talos.evaluation.evaluate import DEFAULT_KS, Report, evaluate
from talos.evaluation.ranking import DotScores

__all__ = ["best_possible"]


def best_possible(
    held_out: Split, tastes: NDArray[np.float32], topics: NDArray[np.float32], ks: Sequence[int] = DEFAULT_KS
) -> Report:
    """Metrics of the lists with the highest expected recall: the K new items that each user most probably takes next.

    No model has a higher expected recall. By chance one may reach a higher recall.

    Args:
        held_out: the events of the users with a test part, from `talos.data.datasets.write_planted`.
        tastes: P(topic | user), (U, dim).
        topics: P(item | topic), (items, dim).
        ks: list lengths; those above the number of items are left out.
    """
    seen = held_out.train if held_out.valid is None else held_out.train.union(held_out.valid)
    scorer = DotScores(torch.from_numpy(tastes), torch.from_numpy(topics))
    return evaluate(scorer, held_out.test, seen=seen, ks=[k for k in ks if k <= len(topics)])
