"""Users and items without training events, and users with few, on every way from a model to a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from talos.data.interactions import Interactions
from talos.data.splits import Split, split
from talos.errors import ArgumentError, DataError
from talos.evaluation.evaluate import popularity_report
from talos.exports import write_lists
from talos.model.measures import sample_scores
from talos.model.recommender import Recommender


def shop(users: int = 600, seed: int = 0) -> Interactions:
    """Half of the customers buy once; popularity by Zipf's law, and some taste."""
    rng = np.random.default_rng(seed)
    items, tastes = 60, 3
    bought = rng.geometric(0.5, users)
    popular, taste = 1 / np.arange(1, items + 1), rng.integers(0, tastes, users)
    pairs = []
    for user in range(users):
        chance = popular * np.where(np.arange(items) % tastes == taste[user], 4.0, 1.0)
        mine = rng.choice(items, bought[user], p=chance / chance.sum())
        when = rng.integers(1_600_000_000, 1_700_000_000, len(mine))
        pairs += [(f"c{user:04d}", f"p{item:02d}", int(time)) for item, time in zip(mine, when, strict=True)]
    ids = list(zip(*sorted(set(pairs)), strict=True))
    return Interactions.from_ids(list(ids[0]), list(ids[1]), timestamps=list(ids[2]))


@pytest.fixture(scope="module")
def parts() -> Split:
    return split(shop(), by="time")


@pytest.fixture(scope="module", params=["talos", "bpr", "ease", "itemknn", "als"])
def model(parts: Split, request: pytest.FixtureRequest) -> Recommender:
    baseline = request.param in ("ease", "itemknn", "als")
    options = {"baseline": request.param} if baseline else {"loss": request.param, "dim": 8, "epochs": 5}
    return Recommender(k=5, **options).fit(parts.train, parts.valid, known=parts.test)


def cold_users(parts: Split) -> list[str]:
    cold = (parts.train.user_degrees == 0) & (parts.test.user_degrees > 0)
    found: list[str] = parts.train.user_ids.decode(np.flatnonzero(cold)).to_list()
    assert len(found) > 50
    return found


def most_popular(parts: Split, banned: set[str], k: int) -> list[str]:
    order = np.argsort(-parts.train.item_degrees, kind="stable")
    return [item for item in parts.train.item_ids.decode(order).to_list() if item not in banned][:k]


def test_users_without_events_get_the_most_popular_items(model: Recommender, parts: Split) -> None:
    known = model.fitted_model().known
    for user in cold_users(parts)[:20]:
        lists = model.recommend([user], k=5)
        assert lists["item_id"].to_list() == most_popular(parts, set(known.items_of(user)), 5)
        assert lists["score"].is_between(0, 1).all()


def test_their_metrics_are_those_of_popularity_and_the_report_says_so(
    model: Recommender, parts: Split
) -> None:
    cold = parts.test.where(parts.train.user_degrees[parts.test.rows] == 0)
    report = model.evaluate(cold, k=[5])
    popular = popularity_report(parts.train, cold, seen=model.fitted_model().seen, ks=[5])
    assert report.metrics == pytest.approx(popular.metrics)
    users = report.num_users
    assert report.notes == (f"{users} of {users} users have no training events: ranked by popularity",)


def test_exports_saved_runs_and_empty_histories(model: Recommender, parts: Split, tmp_path: Path) -> None:
    done = write_lists(model, tmp_path / "lists.parquet", k=5)
    assert done["users_without_events"] == int((parts.train.user_degrees == 0).sum())
    lists = pl.read_parquet(tmp_path / "lists.parquet")
    user = cold_users(parts)[0]
    mine = model.recommend([user], k=5)["item_id"].to_list()
    assert lists.filter(pl.col("user_id") == user)["item_id"].to_list() == mine
    model.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.recommend([user], k=5)["item_id"].to_list() == mine
    assert loaded.recommend(history=[], k=5)["item_id"].to_list() == most_popular(parts, set(), 5)
    one = parts.train.item_ids.ids[0]
    # the last digits of a product depend on how its operands lie in memory, which differs for a mapped file
    right = model.recommend(history=[one], k=5)
    assert_frame_equal(loaded.recommend(history=[one], k=5), right, rel_tol=1e-5)


def test_the_vectors_of_an_export_give_the_same_lists(parts: Split, tmp_path: Path) -> None:
    from talos.exports import export

    model = Recommender(k=5, dim=8, epochs=5).fit(parts.train, parts.valid, known=parts.test)
    for kind in ("faiss", "onnx"):  # both compare their lists with the model's before they are written
        assert export(model, kind, tmp_path / kind)["identical_lists"] > 0.9
    export(model, "npz", tmp_path / "vectors.npz")
    stored = np.load(tmp_path / "vectors.npz")
    user = parts.train.user_ids.encode([cold_users(parts)[0]])[0]
    scores = stored["item_vectors"] @ stored["user_vectors"][user]
    assert (
        np.argsort(-scores, kind="stable")[:5].tolist()
        == np.argsort(-parts.train.item_degrees, kind="stable")[:5].tolist()
    )


def test_items_without_events_are_listed_last() -> None:
    data = Interactions.from_ids([1, 1, 2, 2, 3, 3, 4], [5, 6, 5, 7, 6, 7, 8])
    train = data.where(data.rows < 3)
    model = Recommender(k=1, dim=4, epochs=3).fit(train)
    for user in (1, 2, 3, 4):
        assert model.recommend([user], k=4, filter_seen=False)["item_id"].to_list()[-1] == 8
    assert 8 not in model.similar_items(5, k=3)["item_id"].to_list()
    with pytest.raises(ArgumentError, match="item 8 has no training events"):
        model.similar_items(8)
    with pytest.raises(ArgumentError, match="user 4 has no training events"):
        model.similar_users(4)
    assert len(model.explain(4, 5)) == 0


def test_validation_goes_by_users_whom_the_model_can_know(parts: Split) -> None:
    """Validation events of users without training events change nothing but what is masked."""
    assert parts.valid is not None
    cold = np.flatnonzero(parts.train.user_degrees == 0)
    more = Interactions.from_codes(
        cold.astype(np.int32),
        (np.arange(len(cold)) % parts.train.num_items).astype(np.int32),
        user_ids=parts.train.user_ids,
        item_ids=parts.train.item_ids,
    )
    both = Interactions.from_codes(
        np.concatenate([parts.valid.rows, more.rows]),
        np.concatenate([parts.valid.indices, more.indices]),
        user_ids=parts.train.user_ids,
        item_ids=parts.train.item_ids,
    )
    settings = {"k": 5, "dim": 8, "epochs": 25}
    one = Recommender(**settings).fit(parts.train, parts.valid).fitted_model()  # type: ignore[arg-type]
    other = Recommender(**settings).fit(parts.train, both).fitted_model()  # type: ignore[arg-type]
    assert torch.equal(one.vectors.users, other.vectors.users)
    assert one.metadata["valid"] == other.metadata["valid"]
    with pytest.raises(DataError, match="no user of it has training interactions"):
        Recommender(**settings).fit(parts.train, more)  # type: ignore[arg-type]


def test_an_update_gives_them_a_vector(parts: Split) -> None:
    model = Recommender(k=5, dim=8, epochs=5).fit(parts.train)
    user = cold_users(parts)[0]
    before = model.recommend([user], k=5)
    items = parts.train.item_ids.ids[:3].to_list()
    model.partial_fit(Interactions.from_ids([user] * 3, items))
    assert model.fitted_model().train.user_degrees[model.fitted_model().train.user_ids.encode([user])[0]] == 3
    assert not model.recommend([user], k=5).equals(before)
    folded = model.recommend(history=items, k=5)["item_id"].to_list()
    assert len(set(folded) & set(model.recommend([user], k=5)["item_id"])) >= 3


def test_users_with_few_events_are_no_worse_off_than_with_popularity() -> None:
    """The shop by user and by time, each number of training events by itself; ± its 95 % interval."""
    data = shop(users=4000, seed=1)
    for by in ("user", "time"):
        parts = split(data, by=by)  # type: ignore[arg-type]
        model = Recommender(k=5).fit(parts.train, parts.valid, known=parts.test)
        ours = model.evaluate(parts.test, k=[5]).per_user["recall@5"]
        popular = popularity_report(parts.train, parts.test, seen=model.fitted_model().seen, ks=[5])
        gain = ours - popular.per_user["recall@5"]
        events = parts.train.user_degrees[parts.test.user_degrees > 0]
        for few in (events == 0, events == 1, events == 2, events > 2, events >= 0):
            if few.sum() > 1:
                interval = 1.96 * gain[few].std() / few.sum() ** 0.5
                assert gain[few].mean() >= -max(interval, 1e-9)
        assert ours.mean() >= 0.99 * popular.metrics["recall@5"]


def test_thresholds_are_compared_with_the_scores_that_were_trained(parts: Split) -> None:
    """The prior moves scores, not thresholds: exact thresholds stay exact in the report."""
    model = Recommender(k=5, dim=8, epochs=5, **{"training.prior": 8.0}).fit(parts.train).fitted_model()
    users = np.flatnonzero(parts.test.user_degrees)
    sample = sample_scores(model, parts.test, users, k=5)
    assert sample.learned == pytest.approx(sample.exact, abs=1e-5)
