"""Every endpoint: what it answers, that lists are those of the library, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from talos.model.recommender import Recommender

from .conftest import HOSTILE, item_name, user_name

Client = Callable[..., Any]
IN_PATHS = [one for one in HOSTILE if one != "."]  # every client takes `/.` out of a path; it works in bodies


def items_of(answer: Any) -> list[list[Any]]:
    assert answer.status_code == 200, answer.text
    return [[item["item"] for item in result["items"]] for result in answer.json()["results"]]


def test_lists_are_those_of_the_library(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"])
    users = [user_name(3), user_name(20), user_name(5)]
    wanted = {"must": {"category": ["even"], "year": {"gte": 1960}}, "must_not": {"year": 1970}}
    for options in (
        {},
        {"exclude": [item_name(30), item_name(31)]},
        {"candidates": [item_name(item) for item in range(0, 60, 3)]},
        {"filter": wanted},
        {"diversity": 0.5},
        {"popularity": 0.5, "filter": wanted, "diversity": 0.2},
        {"filter_seen": False},
    ):
        answer = service.post("/v1/recommend", json={"users": users, "k": 6, **options})
        lists = model.recommend(users, k=6, **options)
        expected = [lists.filter(lists["user_id"] == user)["item_id"].to_list() for user in users]
        assert items_of(answer) == expected, options
        first = answer.json()["results"][0]
        assert (first["user"], first["source"]) == (users[0], "model")
        assert first["items"][0] == {
            "item": expected[0][0],
            "title": f"<b>Title of {expected[0][0]}</b>",
            "score": pytest.approx(lists["score"][0], abs=1e-6),
            "rank": 1,
        }


def test_one_user_by_get(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"])
    for user in (*IN_PATHS, "user20"):
        path = f"/v1/recommend/{quote(user, safe='')}"
        mine = items_of(service.get(path, params={"k": 4}))
        assert mine == items_of(service.post("/v1/recommend", json={"users": [user], "k": 4})), user
        answer = service.get(path, params={"k": 2, "offset": 2}).json()["results"][0]
        assert [item["item"] for item in answer["items"]] == mine[0][2:]
        assert [item["rank"] for item in answer["items"]] == [3, 4]
        assert answer["user"] == user
        assert answer["source"] == "model"
        left = items_of(service.get(path, params={"k": 3, "exclude": mine[0][:2]}))
        assert left[0][:2] == mine[0][2:]
    odd = service.get("/v1/recommend/user20", params={"category": "odd", "k": 5})
    shown = [item for item in items_of(odd)[0] if item != "."]
    assert len(shown) >= 4
    for item in shown:
        assert service.get(f"/v1/items/{quote(item, safe='')}").json()["attributes"]["category"] == ["odd"]


def test_unknown_users_and_histories(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"])
    history = [item_name(item) for item in (30, 31, 33)]
    answer = service.post("/v1/recommend", json={"history": [*history, "never seen"], "k": 5})
    assert answer.json()["results"][0]["source"] == "folded"
    assert answer.json()["results"][0]["user"] is None
    assert items_of(answer)[0] == model.recommend(history=history, k=5)["item_id"].to_list()
    both = service.post(
        "/v1/recommend", json={"users": ["nobody", "user20"], "history": history, "k": 5}
    ).json()
    assert [one["source"] for one in both["results"]] == ["folded", "model"]
    assert [item["item"] for item in both["results"][0]["items"]] == items_of(answer)[0]
    nobody = service.get("/v1/recommend/nobody", params={"k": 3}).json()["results"][0]
    assert nobody["source"] == "popular"
    popular = service.get("/v1/popular", params={"k": 3}).json()["items"]
    assert [item["item"] for item in nobody["items"]] == [item["item"] for item in popular]
    assert popular[0]["score"] == 1.0
    assert service.post("/v1/recommend", json={"history": []}).json()["results"][0]["source"] == "popular"


def test_reasons(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"])
    answer = service.post(
        "/v1/recommend", json={"users": ["user20", "nobody"], "k": 3, "explain": True}
    ).json()
    for item in answer["results"][0]["items"]:
        table = model.explain("user20", item["item"], k=3)
        assert [why["item"] for why in item["reasons"]] == table["item_id"].to_list()
        assert [why["share"] for why in item["reasons"]] == pytest.approx(
            table["contribution"].to_list(), abs=1e-5
        )
        assert all(why["title"].startswith("<b>Title of") for why in item["reasons"])
    assert answer["results"][1]["items"][0]["reasons"] == []


def test_rank(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"])
    items = [item_name(item) for item in (40, 2, 31, 17)]
    answer = service.post("/v1/rank", json={"user": "user20", "items": [*items, "zz", items[0]]}).json()
    right = model.recommend(["user20"], k=4, candidates=items, filter_seen=False)
    assert [item["item"] for item in answer["items"]] == right["item_id"].to_list()
    assert [item["score"] for item in answer["items"]] == pytest.approx(right["score"].to_list(), abs=1e-5)
    assert answer["unknown"] == ["zz"]
    folded = service.post("/v1/rank", json={"history": items[:2], "items": items, "explain": True}).json()
    assert folded["source"] == "folded"
    assert any(item["reasons"] for item in folded["items"])


def test_neighbours_items_and_users(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"])
    for item in (*IN_PATHS, "item33"):
        path = f"/v1/items/{quote(item, safe='')}"
        near = service.get(f"{path}/similar", params={"k": 4}).json()["items"]
        assert [one["item"] for one in near] == model.similar_items(item, k=4)["item_id"].to_list(), item
        facts = service.get(path).json()
        assert facts["item"] == item
        assert facts["attributes"]["year"] >= 1950
        assert facts["interactions"] > 0
    near_users = service.get("/v1/users/user20/similar", params={"k": 4}).json()["users"]
    assert [one["user"] for one in near_users] == model.similar_users("user20", k=4)["user_id"].to_list()
    me = service.get("/v1/users/user20").json()
    assert {one["item"] for one in me["history"]} == set(model.fitted_model().seen.items_of("user20"))
    assert (me["source"], me["interactions"], me["new_events"]) == ("model", 9, 0)
    for path in ("/v1/items/zz", "/v1/items/zz/similar", "/v1/users/zz", "/v1/users/zz/similar"):
        assert service.get(path).status_code == 404


def test_search_goes_on_where_it_stopped(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"])
    found, cursor = [], None
    for _ in range(10):
        params = {"q": "ITEM", "limit": 7, **({} if cursor is None else {"cursor": cursor})}
        answer = service.get("/v1/items", params=params).json()
        found += [item["item"] for item in answer["items"]]
        cursor = answer["cursor"]
        if cursor is None:
            break
    assert found == sorted(item for item in map(item_name, range(60)) if "item" in item)
    assert [one["item"] for one in service.get("/v1/items", params={"q": "<script"}).json()["items"]] == [
        HOSTILE[0]
    ]
    assert len(service.get("/v1/items", params={"limit": 1000}).json()["items"]) == 60
    assert service.get("/v1/items", params={"cursor": "x"}).status_code == 422
    assert service.get("/v1/items", params={"q": "\\"}).json()["items"] == []


def test_several_models_and_integer_ids(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], saved["numbers"])
    names = [one["model"] for one in service.get("/v1/model").json()["models"]]
    assert names == ["first", "numbers"]
    by_number = service.post("/v1/recommend", json={"users": [3, "4"], "model": "numbers", "k": 3})
    assert [one["user"] for one in by_number.json()["results"]] == [3, 4]
    assert by_number.json()["model"] == "numbers"
    assert (
        service.get("/v1/recommend/3", params={"model": "numbers", "k": 3}).json()["results"][0]["source"]
        == "model"
    )
    assert (
        service.get("/v1/recommend/03", params={"model": "numbers"}).json()["results"][0]["source"]
        == "popular"
    )
    answer = service.get("/v1/recommend/3", params={"model": "third"})
    assert (answer.status_code, answer.json()["field"]) == (404, "model")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "users"),
        ({"users": []}, "users"),
        ({"users": ["a"] * 1001}, "users"),
        ({"users": [1.5]}, "users.0"),
        ({"users": [True]}, "users.0"),
        ({"users": [{"a": 1}]}, "users.0"),
        ({"users": ["a"], "k": 0}, "k"),
        ({"users": ["a"], "k": 1001}, "k"),
        ({"users": ["a"], "k": "x"}, "k"),
        ({"users": ["a"], "offset": -1}, "offset"),
        ({"users": ["a"], "diversity": 1.1}, "diversity"),
        ({"users": ["a"], "popularity": "NaN"}, "popularity"),
        ({"users": ["a"], "filter": {"may": {}}}, "filter.may"),
        ({"users": ["a"], "filter": {"must": {"colour": "red"}}}, "filter.must.colour"),
        ({"users": ["a"], "filter": {"must": {"year": "x"}}}, "filter.must.year"),
        ({"users": ["a"], "filter": {"must": {"year": {}}}}, "filter.must.year"),
        ({"users": ["a"], "kk": 3}, "kk"),
        ({"users": ["a" * 5000]}, "users.0"),
        ([], "body"),
        ("x", "body"),
        (None, "body"),
    ],
)
def test_bad_bodies_name_the_field(client: Client, saved: dict[str, Path], body: Any, field: str) -> None:
    answer = client(saved["first"]).post("/v1/recommend", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"].startswith(field)
    assert answer.json()["error"]


def test_operation(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"])
    assert service.get("/livez").json()["status"] == "ok"
    ready = service.get("/readyz").json()
    assert ready["status"] == "ready"
    version = ready["models"]["first"]
    assert service.get("/v1/recommend/user20").json()["version"] == version
    text = service.get("/metrics").text
    assert f'talos_model_info{{model="first",version="{version}"}} 1' in text
    assert 'talos_requests_total{route="recommend",status="2xx"} 1' in text
    assert "talos_lists_total 1" in text
    assert "talos_in_flight 0" in text
    facts = service.get("/v1/model").json()["models"][0]
    assert (facts["users"], facts["items"], facts["metrics"]) == (40, 60, {"recall@5": 0.5})
    assert facts["attributes"] == ["category", "year"]
    assert "/v1/recommend/{user}" in service.get("/openapi.json").json()["paths"]
    page = service.get("/")
    assert "page/app.js" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    nowhere, never = service.get("/nowhere"), service.delete("/v1/recommend")
    assert (nowhere.status_code, nowhere.json()["field"]) == (404, "path")
    assert (never.status_code, never.json()["field"]) == (405, "method")
    assert service.post("/v1/feedback", json={"events": [{"user": "a", "item": "b"}]}).status_code == 409


def test_any_name_of_a_run_is_a_label_that_prometheus_reads(client: Client, run: Path) -> None:
    named = run.rename(run.with_name('größe "\\"'))
    line = next(line for line in client(named).get("/metrics").text.splitlines() if "model_info{" in line)
    assert line.startswith('talos_model_info{model="größe \\"\\\\\\"",version="')
