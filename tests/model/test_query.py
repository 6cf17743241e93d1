"""Questions at their edges: ids of both types, nobody, too long lists, many histories, several threads at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from talos import registry
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, ConfigError, DataError
from talos.files import sealed_text
from talos.model.fold_in import fold_in
from talos.model.model import Model, Vectors
from talos.model.query import ListQuery, answer, row_vectors, sources_of
from talos.model.recommender import Recommender

ITEMS = 30


@pytest.fixture(scope="module")
def model() -> Recommender:
    """Users "0" to "39" and items 100 to 129; every user has about eight of the items."""
    pairs = np.argwhere(np.random.default_rng(0).random((40, ITEMS)) < 0.25)
    data = Interactions.from_ids([str(user) for user in pairs[:, 0]], pairs[:, 1] + 100)
    return Recommender(k=5, dim=8, epochs=3).fit(data)


def test_ids_of_both_types_name_users(model: Recommender) -> None:
    plain = model.recommend(["7", "5"], k=3)
    assert model.recommend(["7", 5], k=3).equals(plain)
    assert model.recommend((user for user in ("7", "5")), k=3).equals(plain)  # type: ignore[arg-type]
    assert model.recommend(["7", 5, "nobody", 2**70], k=3, on_unknown="skip").equals(plain)
    lists = model.recommend(["7", 5, 2**70], k=3, on_unknown="popular")
    assert lists["user_id"].unique(maintain_order=True).to_list() == ["7", "5", str(2**70)]
    with pytest.raises(ArgumentError, match="users: no user 'nobody'"):
        model.recommend(["7", 5, "nobody"])
    with pytest.raises(DataError, match="users: mixed types"):
        model.recommend(["7", 0.5])  # type: ignore[list-item]


def test_one_id_is_one_id(model: Recommender) -> None:
    plain = model.recommend(["17"], k=3)
    assert model.recommend("17", k=3).equals(plain)
    assert model.recommend(17, k=3).equals(plain)
    assert set(model.recommend("17", k=3, candidates=104, filter_seen=False)["item_id"]) == {104}
    with pytest.raises(ArgumentError, match="users: no user 'C00001'"):
        model.recommend("C00001")


def test_no_question_imports_the_class_that_a_run_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    Recommender(k=1, baseline="als").fit(data).save(tmp_path / "run")
    place = tmp_path / "run" / "model.json"
    facts = json.loads(place.read_text())
    facts["config"]["baseline"] = {"name": "somebodys:Baseline"}
    place.write_text(sealed_text(facts))
    loaded = Recommender.load(tmp_path / "run")
    for ask in (
        lambda: loaded.similar_items("tea", k=1),
        lambda: loaded.similar_users("ann", k=1),
        lambda: loaded.recommend(history=["tea"], k=1),
    ):
        with pytest.raises(ConfigError, match="names the class 'somebodys:Baseline'"):
            ask()
    assert len(loaded.recommend("ann", k=1)) == 1  # by the vectors alone


def test_nobody_gets_no_lists(model: Recommender) -> None:
    for lists in (model.recommend([], k=3), model.recommend(["nobody"], k=3, on_unknown="skip")):
        assert lists.shape == (0, 4)
        assert lists.columns == ["user_id", "item_id", "score", "rank"]
    assert len(model.recommend(["7"], k=3, candidates=[])) == 0


def test_lists_end_with_the_items(model: Recommender) -> None:
    with pytest.raises(ArgumentError, match="k: 31; expected 1 to 30, the number of items"):
        model.recommend([], k=ITEMS + 1)
    whole = model.recommend(["7"], k=ITEMS, filter_seen=False, diversity=0.5)
    assert sorted(whole["item_id"]) == list(range(100, 100 + ITEMS))


def test_a_history_of_unknown_items_is_ranked_by_popularity(model: Recommender) -> None:
    lists = model.recommend(history=["x", 7], k=4, on_unknown="skip")
    popular = model.recommend(["nobody"], k=4, on_unknown="popular")
    assert lists["item_id"].to_list() == popular["item_id"].to_list()
    with pytest.raises(ArgumentError, match="history: no item 7"):
        model.recommend(history=[101, 7], k=4)


def test_a_model_without_users_answers_histories() -> None:
    """As one process of a group that has more processes than users."""
    nobody = Interactions.from_ids(["a"], ["x"]).where(np.zeros(1, bool)).user_range(range(0))
    vectors = Vectors(torch.zeros(0, 2), torch.ones(1, 2))
    model = Model(scored_by=vectors, train=nobody, users=range(0), all_item_degrees=np.array([1]))
    query = ListQuery(users=np.array([-1]), k=1)
    assert answer(model, query).items.tolist() == [[0]]
    assert sources_of(model, query) == ["popular"]
    assert row_vectors(model, query)[0].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("name", ["psl", "bpr", "smoothi@k"])
def test_histories_are_folded_in_some_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounded memory, and as well as all at once."""
    items = F.normalize(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)))
    histories = [torch.arange(row, row + 2 + row % 4) for row in range(9)] + [torch.arange(0)]
    indptr = torch.tensor([0, *map(len, histories)]).cumsum(0)
    loss = registry.make_loss(name, k=5, num_users=1, num_items=60)
    whole = fold_in(items, indptr, torch.cat(histories), loss, k=5)
    largest = []

    def watched(pos: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        largest.append(len(pos) * 60)
        return original(pos, *rest)  # type: ignore[arg-type]

    from talos.model import fold_in as module

    original = module.slopes_over_sample
    monkeypatch.setattr(module, "slopes_over_sample", watched)
    monkeypatch.setattr(module, "_SCORES", 12 * 60)
    parts = fold_in(items, indptr, torch.cat(histories), loss, k=5)
    assert max(largest) <= 12 * 60
    assert torch.allclose(parts, whole, atol=1e-4)


def test_threads_share_the_vectors_of_single_histories(
    model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while so many are forgotten that one thread drops what another has just found."""
    monkeypatch.setattr("talos.model.query._MOST_FOLDED", 1)
    held = model.fitted_model()

    def lists_of(first: int) -> list[list[int]]:
        owner, items = np.repeat(np.arange(6), 2), np.array([(first + n * n) % ITEMS for n in range(12)])
        people = {"user_ids": Vocabulary.of(list(range(6))), "item_ids": held.train.item_ids}
        histories = Interactions.from_codes(owner, items, **people)
        query = ListQuery(users=np.full(6, -1), histories=histories, k=5, alone=True)
        lists: list[list[int]] = answer(held, query).items.tolist()
        return lists

    asked = [number % 4 for number in range(80)]
    expected = {first: lists_of(first) for first in range(4)}
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lists_of, asked, timeout=120))
    assert found == [expected[first] for first in asked]
