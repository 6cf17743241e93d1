"""Every loss and every baseline answers every kind of question, with the lists of the library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from talos import registry
from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

from .conftest import add_attributes

MODELS = [
    *({"loss": name, "epochs": 2, "dim": 8} for name in registry.names("loss")),
    *({"baseline": name} for name in registry.names("baseline")),
]
EVEN = {"must": {"category": "even"}}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filter": EVEN},
    "diversity": {"diversity": 0.7},
    "filter and diversity": {"filter": EVEN, "diversity": 0.7},
    "popularity": {"popularity": 0.5},
    "all items": {"filter_seen": False},
}
K = 5
NEW = "item7"


class Case(NamedTuple):
    """The service of a model, the model as the library has it, and people: as asked of the service and the library."""

    service: Any
    model: Recommender
    people: dict[str, tuple[dict[str, Any], dict[str, Any], str]]


@pytest.fixture(scope="module")
def train() -> Interactions:
    drawn = synthetic(users=30, items=50, interactions=500, seed=5)
    pairs = zip(drawn.rows, drawn.indices, strict=True)
    users, items = zip(*((f"user{user}", f"item{item}") for user, item in pairs), strict=True)
    return Interactions.from_ids(users, items)


@pytest.fixture(
    scope="module", params=MODELS, ids=lambda options: str(options.get("loss") or options["baseline"])
)
def case(
    request: pytest.FixtureRequest, train: Interactions, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    from starlette.testclient import TestClient

    from talos.serving.app import create_app
    from talos.serving.settings import Settings

    folder = tmp_path_factory.mktemp("conformance")
    model = add_attributes(Recommender(k=K, **request.param).fit(train))
    model.save(folder / "run")
    user, other = train.user_ids.ids[3], train.user_ids.ids[4]
    past = train.items_of(other).to_list()
    people = {
        "known user": ({"users": [user]}, {"users": [user]}, "model"),
        "history": ({"history": past[:3]}, {"history": past[:3]}, "folded"),
        "new events": ({"users": [other]}, {"history": sorted({*past, NEW})}, "folded"),
        "new user": ({"users": ["somebody new"]}, {"history": [NEW]}, "folded"),
        "stranger": (
            {"users": ["a stranger"]},
            {"users": ["a stranger"], "on_unknown": "popular"},
            "popular",
        ),
    }
    app = create_app(Settings(runs=(str(folder / "run"),), feedback=str(folder / "log")))
    with TestClient(app, base_url="http://localhost") as service:
        events = {"events": [{"user": one, "item": NEW} for one in (other, "somebody new")]}
        service.post("/v1/feedback", json=events).raise_for_status()
        yield Case(service, model, people)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("who", ["known user", "history", "new events", "new user", "stranger"])
def test_lists_are_those_of_the_library(case: Case, who: str, how: str) -> None:
    asked, wanted, source = case.people[who]
    answer = case.service.post("/v1/recommend", json={"k": K, "explain": True, **asked, **HOW[how]})
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["results"]
    right = case.model.recommend(k=K, **wanted, **HOW[how])
    assert found["source"] == source
    assert [one["item"] for one in found["items"]] == right["item_id"].to_list()
    assert [one["score"] for one in found["items"]] == pytest.approx(right["score"].to_list(), abs=1e-5)
    assert len(found["items"]) == K


def test_candidates_and_given_items(case: Case, train: Interactions) -> None:
    user, past = train.user_ids.ids[3], train.items_of(train.user_ids.ids[4]).to_list()
    options = {"candidates": past, "filter_seen": False}
    answer = case.service.post("/v1/recommend", json={"users": [user], "k": K, **options})
    right = case.model.recommend([user], k=K, **options)["item_id"].to_list()
    assert [one["item"] for one in answer.json()["results"][0]["items"]] == right
    ranked = case.service.post("/v1/rank", json={"user": user, "items": past[:4]})
    right = case.model.recommend([user], k=4, candidates=past[:4], filter_seen=False)["item_id"].to_list()
    assert [one["item"] for one in ranked.json()["items"]] == right


def test_people_of_all_kinds_in_one_request(case: Case) -> None:
    """Each has the list that they have alone."""
    kinds = ("known user", "new events", "new user", "stranger")
    users = [case.people[who][0]["users"][0] for who in kinds]
    together = case.service.post("/v1/recommend", json={"users": users, "k": K}).json()["results"]
    assert [one["source"] for one in together] == [case.people[who][2] for who in kinds]
    for who, found in zip(kinds, together, strict=True):
        right = case.model.recommend(k=K, **case.people[who][1])["item_id"].to_list()
        assert [one["item"] for one in found["items"]] == right
