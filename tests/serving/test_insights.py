"""What the page asks for: the map, shares of lists, metrics, a search of users, and the page's files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.model.measures import principal_axes
from talos.model.recommender import Recommender
from talos.serving import insights
from talos.serving.runs import ServedRun

from .conftest import HOSTILE, copied, item_name, user_name

Client = Callable[..., Any]


@pytest.fixture(scope="module")
def tested(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first run, with one more item held back from each user."""
    model = Recommender.load(saved["first"])
    rng = np.random.default_rng(1)
    users = [user_name(user) for user in range(40)]
    held = Interactions.from_ids(users, [item_name(int(item)) for item in rng.integers(0, 60, 40)])
    model.add_known(held).evaluate(held, k=5)
    folder = tmp_path_factory.mktemp("tested") / "tested"
    model.save(folder, metrics={"recall@5": 0.5, "auc": 1})
    return folder


def test_the_map_has_every_item(client: Client, saved: dict[str, Path]) -> None:
    service, model = client(saved["first"]), Recommender.load(saved["first"]).fitted_model()
    answer = service.get("/v1/map")
    found = answer.json()
    assert answer.headers["content-encoding"] == "gzip"
    plain = service.get("/v1/map", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == found
    assert found["items"] == model.train.item_ids.ids.to_list()
    assert found["titles"][0] == f"<b>Title of {found['items'][0]}</b>"
    assert found["popularity"] == model.train.item_degrees.tolist()
    assert (found["column"], found["groups"], found["total"]) == ("category", ["even", "odd"], 60)
    assert found["group"] == [place % 2 for place in range(60)]
    points, shares = principal_axes(model.vectors.items)
    assert found["variance"] == pytest.approx(shares.tolist(), abs=1e-6)
    spread = points.max(0).values - points.min(0).values
    for name, axis in (("x", 0), ("y", 1)):
        right = 65535 * (points[:, axis] - points[:, axis].min()) / spread.max()
        assert found[name] == pytest.approx(right.tolist(), abs=1)
    assert service.get("/v1/map", params={"model": "other"}).status_code == 404


def test_weights_between_items_have_no_map(client: Client, saved: dict[str, Path], tmp_path: Path) -> None:
    train = Recommender.load(saved["first"]).fitted_model().train
    Recommender(k=5, baseline="ease").fit(train).save(tmp_path / "weights")
    service = client(tmp_path / "weights")
    answer = service.get("/v1/map")
    assert (answer.status_code, "has no vectors" in answer.json()["error"]) == (422, True)
    assert service.get("/v1/model").json()["models"][0]["dim"] == 0  # by which the page knows


def test_a_large_map_has_the_most_popular_items(
    saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import orjson

    monkeypatch.setattr(insights, "MOST_ON_MAP", 10)
    run = ServedRun(saved["first"])
    found = orjson.loads(gzip.decompress(insights.item_map(run)))
    assert found["total"] == 60
    assert len(found["items"]) == len(found["x"]) == len(found["group"]) == 10
    assert min(found["popularity"]) >= np.sort(run.degrees)[-10]


@pytest.mark.parametrize(
    ("table", "column", "names", "groups"),
    [
        (None, None, [], None),
        ({"year": [1, 2, 3]}, None, [], None),
        ({"year": [1, 2, 3], "count": ["a", "a", None]}, "count", ["a"], [0, 0, 1]),
        ({"kind": ["a", "b", "b"], "category": [["x", "y"], [], ["z"]]}, "category", ["x", "z"], [0, 2, 1]),
        ({"category": [str(n) for n in range(8)]}, "category", list("012345"), [0, 1, 2, 3, 4, 5, 6, 6]),
    ],
)
def test_groups_of_items(table: Any, column: Any, names: list[str], groups: Any) -> None:
    attributes = None if table is None else pl.DataFrame(table)
    count = 3 if attributes is None else attributes.height
    found, said, of = insights._groups(attributes, np.arange(count))
    assert (said, of) == (names, column)
    assert (found if found is None else found.tolist()) == groups


def test_shares_of_lists_are_counted(client: Client, tested: Path) -> None:
    service, model = client(tested), Recommender.load(tested)
    lists = model.recommend([user_name(user) for user in range(40)], k=5)
    for item in (HOSTILE[0], "item33"):
        answer = service.get(f"/v1/items/{quote(item, safe='')}/exposure").json()
        count = int((lists["item_id"] == item).sum())
        assert (answer["item"], answer["lists"], answer["of_lists"], answer["k"]) == (item, count, 40, 5)
        assert answer["share"] == pytest.approx(count / 40)
    assert service.get("/v1/items/zz/exposure").status_code == 404


def test_metrics_are_those_of_the_library(client: Client, tested: Path, saved: dict[str, Path]) -> None:
    service, model = client(tested, saved["second"]), Recommender.load(tested)
    found = service.get("/v1/quality").json()
    assert found["metrics"] == {"recall@5": 0.5, "auc": 1.0}
    held = model.fitted_model().test
    assert held is not None
    ks = tuple(found["curves"][0]["ks"])
    report = model.evaluate(held, k=ks).metrics
    assert (found["users"], found["of_users"]) == (users_of(held), users_of(held))
    for curve in found["curves"][:4]:
        assert curve["model"] == pytest.approx([report[f"{curve['metric']}@{k}"] for k in ks]), curve[
            "metric"
        ]
    mean = sum(one["size"] * one["model"] for one in found["by_activity"]) / found["users"]
    assert mean == pytest.approx(report["recall@5"])
    assert sum(one["size"] for one in found["by_popularity"]) == len(held)
    nothing = service.get("/v1/quality", params={"model": "second"}).json()
    assert (nothing["curves"], nothing["users"], nothing["metrics"]) == ([], 0, {"recall@5": 0.5})


def users_of(held: Interactions) -> int:
    return int((held.user_degrees > 0).sum())


def test_a_sample_is_taken_of_many_users(tested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insights, "_FEWEST_USERS", 7)
    monkeypatch.setattr(insights, "_BUDGET", 1)
    run = ServedRun(tested)
    counts, lists = insights.exposure(run)
    assert (lists, counts.sum()) == (7, 35)
    found = insights.quality(run)
    assert run.model.test is not None
    assert (found["users"], found["of_users"]) == (7, users_of(run.model.test))


def test_figures_are_computed_once_and_go_with_their_run(
    client: Client, saved: dict[str, Path], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(one: ServedRun) -> Any:
        calls.append(one.version)
        return real(one)

    real = insights.item_map
    monkeypatch.setattr(insights, "item_map", counted)
    service = client(run)
    first = service.get("/v1/map").json()
    assert service.get("/v1/map").json() == first
    assert calls == [first["version"]]
    copied(saved["second"], run)
    service.post("/v1/model/reload").raise_for_status()
    assert service.get("/v1/map").json()["version"] not in calls[:1]
    assert len(calls) == 2


def test_users_are_searched(client: Client, saved: dict[str, Path]) -> None:
    service = client(saved["first"], saved["numbers"])
    found, cursor = [], None
    while True:
        params = {"q": "USER", "limit": 6, **({} if cursor is None else {"cursor": cursor})}
        answer = service.get("/v1/users", params=params).json()
        found += answer["users"]
        cursor = answer["cursor"]
        if cursor is None:
            break
    assert [one["user"] for one in found] == sorted(f"user{n}" for n in range(12, 40))
    assert {one["interactions"] for one in found} == {9}
    assert [one["user"] for one in service.get("/v1/users", params={"q": "<SCRIPT"}).json()["users"]] == [
        HOSTILE[0]
    ]
    numbers = service.get("/v1/users", params={"q": "39", "model": "numbers"}).json()["users"]
    assert [one["user"] for one in numbers] == [39]
    assert service.get("/v1/users", params={"cursor": "x"}).status_code == 422


@pytest.fixture
def guarded(client: Client, saved: dict[str, Path], tmp_path: Path) -> Any:
    (tmp_path / "key").write_text("a-long-secret")
    return client(saved["first"], read_key_file=str(tmp_path / "key"))


def test_the_page_is_served_with_a_strict_policy(guarded: Any) -> None:
    answer = guarded.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    kinds = {
        "app.js": "text/javascript; charset=utf-8",
        "index.html": "text/html; charset=utf-8",
        "style.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
    for name, kind in kinds.items():
        file = guarded.get(f"/page/{name}")  # without the key: whoever has none is asked for it by the page
        assert (file.status_code, file.headers["content-type"]) == (200, kind)
        assert file.headers["content-security-policy"] == policy
        again = guarded.get(f"/page/{name}", headers={"if-none-match": file.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_only_the_files_of_the_page_are_served(guarded: Any) -> None:
    paths = [
        "/page/",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/favicon.ico",
    ]
    for path in (*paths, "/v1/map", "/v1/quality", "/v1/users", "/v1/items/item33/exposure"):
        assert guarded.get(path).status_code == 401, path
    headers = {"authorization": "Bearer a-long-secret"}
    for path in (*paths, "/page/none.js"):
        assert guarded.get(path, headers=headers).status_code == 404, path
    assert guarded.get("/v1/map", headers=headers).status_code == 200
