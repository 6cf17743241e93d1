"""Every loss and every baseline answers every kind of question, with the lists of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos import registry
from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.model.recommender import Recommender

from .conftest import add_attributes

Client = Callable[..., Any]
MODELS = [
    *({"loss": name, "epochs": 2, "dim": 8} for name in registry.names("loss")),
    *({"baseline": name} for name in registry.names("baseline")),
]
K = 5


@pytest.fixture(scope="module")
def train() -> Interactions:
    drawn = synthetic(users=30, items=50, interactions=500, seed=0)
    pairs = zip(drawn.rows, drawn.indices, strict=True)
    users, items = zip(*((f"user{user}", f"item{item}") for user, item in pairs), strict=True)
    return Interactions.from_ids(users, items)


def items_of(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["results"]
    return [one["item"] for one in found["items"]]


@pytest.mark.parametrize(
    "options", MODELS, ids=lambda options: str(options.get("loss") or options["baseline"])
)
def test_lists_are_those_of_the_library(
    client: Client, train: Interactions, tmp_path: Path, options: dict[str, Any]
) -> None:
    model = add_attributes(Recommender(k=K, **options).fit(train))
    model.save(tmp_path / "run")
    service = client(tmp_path / "run", feedback=str(tmp_path / "log"))
    user, other = train.user_ids.ids[3], train.user_ids.ids[4]
    past, new = train.items_of(other).to_list(), "item7"
    even = {"must": {"category": "even"}}

    def ask(**body: Any) -> list[str]:
        return items_of(service.post("/v1/recommend", json={"k": K, "explain": True, **body}))

    def wanted(users: list[str] | None = None, **how: Any) -> list[str]:
        found: list[str] = model.recommend(users, k=K, **how)["item_id"].to_list()
        return found

    assert ask(users=[user]) == wanted([user])
    assert ask(history=past[:3]) == wanted(history=past[:3])
    assert ask(users=["a stranger"]) == wanted(["a stranger"], on_unknown="popular")
    for how in (
        {"filter": even},
        {"diversity": 0.7},
        {"popularity": 0.5},
        {"filter": even, "diversity": 0.7},
    ):
        assert ask(users=[user], **how) == wanted([user], **how)
        assert ask(history=past[:3], **how) == wanted(history=past[:3], **how)
    assert ask(users=[user], candidates=past, filter_seen=False) == wanted(
        [user], candidates=past, filter_seen=False
    )
    events = {"events": [{"user": other, "item": new}, {"user": "somebody new", "item": new}]}
    service.post("/v1/feedback", json=events).raise_for_status()
    assert ask(users=[other]) == wanted(history=sorted({*past, new}))
    assert ask(users=["somebody new"], diversity=0.7) == wanted(history=[new], diversity=0.7)
    both = service.post("/v1/recommend", json={"users": [user, other, "somebody new"], "k": K}).json()[
        "results"
    ]
    assert [one["source"] for one in both] == ["model", "folded", "folded"]
    assert [one["item"] for one in both[0]["items"]] == wanted([user])
    ranked = service.post("/v1/rank", json={"user": user, "items": past[:4]}).json()["items"]
    expected = model.recommend([user], k=4, candidates=past[:4], filter_seen=False)
    assert [one["item"] for one in ranked] == expected["item_id"].to_list()
