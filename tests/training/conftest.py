from __future__ import annotations

import numpy as np
import pytest

from talos.data.interactions import Interactions
from talos.data.splits import Split


def planted_split(groups: int = 4, users: int = 12, items: int = 8, seed: int = 0) -> Split:
    """Users of a group like the items of their group: all but two are in train, the two are the test.

    Everybody also has one item that all like, so that popularity has something to recommend, and is wrong.
    """
    rng = np.random.default_rng(seed)
    train: list[tuple[int, int]] = []
    test: list[tuple[int, int]] = []
    for group in range(groups):
        for member in range(users):
            user = group * users + member
            mine = rng.permutation(items) + group * items
            train += [(user, int(item)) for item in mine[2:]]
            test += [(user, int(item)) for item in mine[:2]]
            train.append((user, groups * items + int(rng.integers(3))))
    pairs = np.array(train + test)
    whole = Interactions.from_ids(pairs[:, 0], pairs[:, 1])
    in_test = {(user, item) for user, item in test}
    flags = np.array([pair in in_test for pair in whole.to_polars().select("user_id", "item_id").rows()])
    return Split(train=whole.where(~flags), valid=whole.where(flags), test=whole.where(flags))


@pytest.fixture(scope="session")
def planted() -> Split:
    return planted_split()
