"""partial_fit: new users and items get vectors, and vectors without new interactions do not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import DataError
from talos.model.recommender import Recommender


@pytest.fixture(scope="module")
def model(planted: Split) -> Recommender:
    """Trained without the last user of each group and without item 0."""
    data = planted.train
    keep = (data.rows % 12 != 11) & (data.indices != 0)
    return Recommender(k=5, dim=16, epochs=15, batch_size=8).fit(data.where(keep).compact())


def new_interactions(planted: Split) -> Interactions:
    data = planted.train
    return data.where((data.rows % 12 == 11) | (data.indices == 0)).compact()


def test_new_users_and_items_get_vectors(planted: Split, model: Recommender) -> None:
    before = model.model
    assert before is not None
    model.partial_fit(new_interactions(planted))
    after = model.model
    model.model = before  # the fixture is shared
    assert after is not None
    assert (after.train.num_users, after.train.num_items) == (
        planted.train.num_users,
        planted.train.num_items,
    )
    assert after.train.to_polars().equals(planted.train.to_polars())
    fresh = Recommender(config=model.config)
    fresh.model = after
    newcomers = planted.test.user_ids.ids.to_numpy() % 12 == 11
    report = fresh.evaluate(planted.test.where(newcomers[planted.test.rows]), k=5)
    assert report.metrics["recall@5"] > 0.8
    assert after.vectors.thresholds is not None
    exact = (after.vectors.users @ after.vectors.items.T).topk(5).values[:, -1]
    assert torch.allclose(after.vectors.thresholds, exact, atol=1e-5)


def test_what_is_not_touched_does_not_move(planted: Split, model: Recommender) -> None:
    before = model.model
    assert before is not None
    new = Interactions.from_ids(np.array([0]), np.array([9]))  # one user, one item
    model.partial_fit(new)
    after = model.model
    model.model = before
    assert after is not None
    same_users = [i for i, user in enumerate(before.train.user_ids.ids.to_list()) if user != 0]
    same_items = [i for i, item in enumerate(before.train.item_ids.ids.to_list()) if item != 9]
    assert torch.allclose(after.vectors.users[same_users], before.vectors.users[same_users], atol=1e-6)
    assert torch.allclose(after.vectors.items[same_items], before.vectors.items[same_items], atol=1e-6)
    assert not torch.allclose(after.vectors.users[0], before.vectors.users[0], atol=1e-4)


def test_ids_as_text_are_those_of_the_model(model: Recommender) -> None:
    before = model.fitted_model()
    model.partial_fit(Interactions.from_ids(["0", "1000"], ["9", "9"]))
    after, model.model = model.fitted_model(), before
    assert set(after.train.user_ids.ids.to_list()) == {*before.train.user_ids.ids.to_list(), 1000}
    with pytest.raises(DataError, match=r"ids such as \['a'\]; expected integers, as the model's ids are"):
        model.partial_fit(Interactions.from_ids(["a"], ["b"]))


def test_losses_that_pair_take_part_too(planted: Split) -> None:
    data = planted.train
    keep = data.rows % 12 != 11
    model = Recommender(k=5, loss="psl", dim=16, epochs=8, negatives="16", batch_size=64).fit(
        data.where(keep).compact()
    )
    model.partial_fit(data.where(~keep).compact())
    assert len(model.recommend([11, 23], k=5)) == 10


def test_a_loss_with_a_table_of_items_learns_new_ones(planted: Split) -> None:
    data = planted.train
    first = data.where((data.rows % 12 != 11) & (data.indices % 8 != 7)).compact()
    model = Recommender(k=5, loss="advinfonce", dim=8, epochs=2, negatives="16", batch_size=64).fit(first)
    model.partial_fit(data)
    assert model.fitted_model().train.num_items == data.num_items > first.num_items
    assert len(model.recommend([11, 23], k=5)) == 10
