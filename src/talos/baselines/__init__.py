"""Baselines: models that are computed from the interactions directly, without a loss and without epochs.

A trained model must beat them to be worth its training. There are two kinds:

- `VectorBaseline`: vectors of users and items, and a score is a dot product (`Popularity`, `ALS`);
- `ItemBaseline`: weights between items, and a score is the sum of the weights from a user's items (`ItemKNN`, `EASE`,
  `RP3beta`). The history is all that is stored of a user.

None holds a matrix of users × items. `talos.registry` makes baselines by name; `Recommender(baseline="ease")` and
`talos train PATH --baseline ease` run them.

>>> from talos.data.interactions import Interactions
>>> data = Interactions.from_ids([1, 1, 2, 2, 3], [7, 8, 7, 8, 7])
>>> ItemKNN(shrinkage=0).fit(data).dense().round(decimals=2)
tensor([[0.0000, 0.8200],
        [0.8200, 0.0000]])
"""

from talos.baselines.base import Baseline, ItemBaseline, VectorBaseline
from talos.baselines.item_weights import ItemWeights
from talos.baselines.linear import EASE
from talos.baselines.neighbours import ItemKNN, RP3beta
from talos.baselines.vectors import ALS, Popularity

__all__ = [
    "ALS",
    "EASE",
    "Baseline",
    "ItemBaseline",
    "ItemKNN",
    "ItemWeights",
    "Popularity",
    "RP3beta",
    "VectorBaseline",
]
