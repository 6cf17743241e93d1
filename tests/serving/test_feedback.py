"""Feedback: on the disk before it is acknowledged, known to the next list, there after any death, never twice."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos.data.interactions import Interactions
from talos.errors import DataError, TalosError
from talos.model.recommender import Recommender
from talos.serving.feedback import FeedbackLog, is_log, read_log
from talos.serving.schemas import Event

from .conftest import item_name

Client = Callable[..., Any]


def stored(path: Path) -> list[tuple[Any, ...]]:
    """User, item and id of each event, as any other program reads them."""
    with closing(sqlite3.connect(path)) as link:
        return link.execute("SELECT user, item, id FROM events ORDER BY number").fetchall()


def events(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"events": [{"user": user, "item": item} for user, item in pairs]}


def test_the_next_list_knows_them(client: Client, saved: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    service, model = client(saved["first"], feedback=str(log)), Recommender.load(saved["first"])
    news = [item_name(item) for item in (30, 31, 33)]
    answer = service.post(
        "/v1/feedback", json=events(*(("eve", item) for item in news), ("eve", "unheard of"))
    )
    assert answer.json() == {"accepted": 4, "repeated": 0, "unknown_items": 1}
    assert [item for _, item, _ in stored(log)] == [*news, "unheard of"]
    mine = service.get("/v1/recommend/eve", params={"k": 5}).json()["results"][0]
    assert mine["source"] == "folded"
    assert [item["item"] for item in mine["items"]] == model.recommend(history=news, k=5)["item_id"].to_list()
    # a user of the run: the history of training counts as well
    known = model.fitted_model().seen.items_of("user20").to_list()
    service.post("/v1/feedback", json=events(("user20", news[0]), ("user20", known[0])))
    mine = service.get("/v1/recommend/user20", params={"k": 5}).json()["results"][0]
    assert mine["source"] == "folded"
    history = sorted({*known, news[0]})
    assert [item["item"] for item in mine["items"]] == model.recommend(history=history, k=5)[
        "item_id"
    ].to_list()
    facts = service.get("/v1/users/user20").json()
    assert (facts["source"], facts["new_events"]) == ("folded", 1)
    # what the run was trained on changes nothing
    service.post("/v1/feedback", json=events(("user21", model.fitted_model().seen.items_of("user21")[0])))
    assert service.get("/v1/recommend/user21").json()["results"][0]["source"] == "model"
    counts = {"events": 7, "users_with_events": 3, "unknown_items": 1}
    for _ in range(2):  # the second time nothing is new
        assert counts.items() <= service.get("/v1/model").json()["models"][0].items()


@pytest.mark.parametrize("events_of_run", [{"half_life": "30d"}, {"weights": "repeats"}])
def test_events_count_as_in_training(client: Client, tmp_path: Path, events_of_run: dict[str, str]) -> None:
    """By their age or number, where the run weighs interactions by it: the list is that of the history with times."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 8)
    items = np.concatenate([rng.permutation(20)[:8] + 20 * (user % 2) for user in range(30)])
    start, day = 1_600_000_000, 86_400
    stamps = start + rng.integers(0, 300, len(users)) * day
    pairs = [[*users.tolist(), 0], [*items.tolist(), int(items[0])]]
    data = Interactions.from_ids(*pairs, timestamps=[*stamps.tolist(), start + 300 * day])
    model = Recommender(k=5, dim=8, epochs=3, **events_of_run).fit(data)
    model.save(tmp_path / "run")
    service = client(tmp_path / "run", feedback=str(tmp_path / "log.db"))
    new = [(25, 310), (25, 320), (25, 330), (26, 10), (27, 305)]
    sent = [{"user": 0, "item": item, "timestamp": start + at * day} for item, at in new]
    sent += [{"user": 99, "item": item, "timestamp": start + at * day} for item, at in new]
    assert service.post("/v1/feedback", json={"events": sent}).status_code == 200
    own = data.where(data.rows == 0)
    mine = own.item_ids.decode(own.indices).to_list()
    repeats = [1] * len(mine) if own.repeats is None else own.repeats.tolist()
    past = [(item, at) for item, at, n in zip(mine, own.timestamps, repeats, strict=True) for _ in range(n)]
    now = [(item, start + at * day) for item, at in new]
    for user, events_of_user in ((0, past + now), (99, now)):
        history = Interactions.from_ids(
            ["x"] * len(events_of_user),
            [item for item, _ in events_of_user],
            timestamps=[at for _, at in events_of_user],
        )
        wanted = model.recommend(history=history, k=8)["item_id"].to_list()
        plain = model.recommend(history=sorted({item for item, _ in events_of_user}), k=8)["item_id"]
        listed = service.get(f"/v1/recommend/{user}", params={"k": 8}).json()["results"][0]
        assert listed["source"] == "folded"
        assert [item["item"] for item in listed["items"]] == wanted
        assert wanted != plain.to_list()  # the weights matter


def test_events_with_an_id_count_once(client: Client, saved: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    body = {"events": [{"user": "eve", "item": "item30", "id": "e1", "timestamp": 5}]}
    service = client(saved["first"], feedback=str(log))
    assert service.post("/v1/feedback", json=body).json()["accepted"] == 1
    body["events"].append({"user": "eve", "item": "unheard of", "id": "e2", "timestamp": 6})
    answers = [service.post("/v1/feedback", json=body).json() for _ in range(2)]
    assert answers == [
        {"accepted": 1, "repeated": 1, "unknown_items": 1},
        {"accepted": 0, "repeated": 2, "unknown_items": 0},
    ]
    assert "talos_unknown_items_total 1" in service.get("/metrics").text
    again = client(saved["first"], feedback=str(log))  # the ids are read from the log at the start
    assert again.post("/v1/feedback", json=body).json()["repeated"] == 2
    assert stored(log) == [("eve", "item30", "e1"), ("eve", "unheard of", "e2")]


def test_an_id_is_remembered_however_many_follow(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path / "log.db")
    first = [Event("eve", "item1", 1.0, "the first")]
    assert log.append(first) == first
    log.append([Event("eve", "item1", 1.0, f"e{number}") for number in range(120_000)])
    assert log.append(first) == []
    twice = [Event("eve", "item2", 2.0, "twice"), Event("eve", "item3", 3.0, "twice")]
    assert log.append(twice) == twice[:1]
    assert log.events_of(["eve"])[-1] == (0, "item2", 2.0)
    log.close()


def test_ids_are_kept_as_they_are(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path / "log.db")
    ids: list[str | int] = ["e\n\u2028", "a\0b", "a", "", "\U0001f4a5", "07", 7, -(2**63)]
    log.append([Event(one, one, 2.0) for one in ids])
    assert log.events_of([None, *ids]) == [(place, str(one), 2.0) for place, one in enumerate(ids, 1)]
    assert read_log(log.path)["user"].to_list() == [str(one) for one in ids]
    assert [(item, first) for _, item, first in log.newer(6)] == [("7", 1), (str(-(2**63)), 1)]
    log.append([Event("a", "b", 1.0)])
    assert log.newer(len(ids)) == [(len(ids) + 1, "b", 0)]
    log.close()


@pytest.mark.parametrize(
    "content", [b'{"user": 1, "item": 2}\n', b"SQLite format 3\0" + b"x" * 5000, "another"]
)
def test_another_file_is_no_log(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "other"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as link:
            link.execute(f"CREATE TABLE {content} (user, item)")
    before = path.read_bytes()
    assert not is_log(path)
    with pytest.raises(DataError, match=r"cannot be written .*expected a log of feedback"):
        FeedbackLog(path)
    with pytest.raises(DataError, match=r"cannot be read .*expected a log of feedback"):
        read_log(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path / "log.db")
    log.append([Event("a", "b", 1.0)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = Path(f"{log.path}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 6000, limits[1]))  # the first of several pages fits
    try:
        with pytest.raises(TalosError, match=r"log.db could not be written"):
            log.append([Event("c", "d" * 50, 2.0, f"id{number}") for number in range(500)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_log(log.path).rows() == [("a", "b", 1.0)]
    assert len(log.append([Event("c", "d", 2.0, "id1")])) == 1
    log.close()


def test_several_writers_and_readers_at_once(tmp_path: Path) -> None:
    """Two threads for each of three connections to one file: each reads what it wrote at once, and nothing is lost."""
    path = tmp_path / "log.db"
    logs, faults = [FeedbackLog(path) for _ in range(3)], list[str]()

    def write(log: FeedbackLog, user: str) -> None:
        for count in range(20):
            log.append([Event(user, f"{count}", 1.0), Event(user, f"{count}b", 1.0)])
            mine = [item for _, item, _ in log.events_of([user])]
            if mine != [f"{n}{end}" for n in range(count + 1) for end in ("", "b")]:
                faults.append(f"{user}: {mine}")

    threads = [threading.Thread(target=write, args=(logs[number // 2], f"{number}")) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    table = read_log(path)
    assert len(table) == table.n_unique() == len(logs[1].newer(0)) == 240
    assert sum(first for _, _, first in logs[2].newer(0)) == 6
    for log in logs:
        log.close()


# ----------------------------------------------------------------------------- death


def test_lists_after_a_restart_are_those_before(
    client: Client, saved: dict[str, Path], tmp_path: Path
) -> None:
    log, users = tmp_path / "log.db", ["eve", "user20", "user30", "nobody"]
    service = client(saved["first"], feedback=str(log))
    for number in range(12):
        service.post("/v1/feedback", json=events((users[number % 2], item_name((7 * number) % 60))))
        service.get("/v1/recommend/eve")  # folded in again and again, and in one go after the restart
    wanted = {"users": users, "k": 20, "explain": True}
    before = service.post("/v1/recommend", json=wanted).json()["results"]
    alone = [service.get(f"/v1/recommend/{user}").json()["results"] for user in users]
    assert [one["source"] for one in before] == ["folded", "folded", "model", "popular"]
    again = client(saved["first"], feedback=str(log))
    assert again.post("/v1/recommend", json=wanted).json()["results"] == before  # to the last digit
    assert [again.get(f"/v1/recommend/{user}").json()["results"] for user in users] == alone
    other = client(saved["first"], feedback=str(log))  # asked in another order, for other users in between
    assert [other.get(f"/v1/recommend/{user}").json()["results"] for user in reversed(users)] == alone[::-1]
    assert other.post("/v1/recommend", json=wanted).json()["results"] == before


# ----------------------------------------------------------------------------- talos update


def test_update_equals_partial_fit(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from talos.cli import main

    path = tmp_path / "log.db"
    log = FeedbackLog(path)
    pairs = [("eve", "item30"), ("eve", "item31"), ("user20", "brand new"), ("user20", "item40")]
    log.append([Event(user, item, 1.0 + place) for place, (user, item) in enumerate(pairs)])
    log.close()
    out = tmp_path / "updated"
    monkeypatch.setattr("sys.argv", ["talos", "update", str(run), str(path), "--out", str(out), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"run": str(out), "events": 4, "new_users": 1, "new_items": 1}
    by_hand = Recommender.load(run).partial_fit(
        Interactions.from_ids([user for user, _ in pairs], [item for _, item in pairs])
    )
    updated = Recommender.load(out)
    assert updated.recommend(k=10).equals(by_hand.recommend(k=10))
    assert updated.fitted_model().fingerprint() == by_hand.fitted_model().fingerprint()
    monkeypatch.setattr("sys.argv", ["talos", "update", str(run), str(path), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_update_reads_integer_ids(saved: dict[str, Path], tmp_path: Path) -> None:
    from talos.cli.update import update

    log = FeedbackLog(tmp_path / "log.db")
    log.append([Event(3, 59, 1.0), Event("4", "60", 2.0), Event(100, 7, 3.0)])
    update(run=saved["numbers"], events=log.path, out=tmp_path / "updated")
    train = Recommender.load(tmp_path / "updated").fitted_model().train
    assert 59 in train.items_of(3).to_list()
    assert 60 in train.items_of(4).to_list()
    assert train.items_of(100).to_list() == [7]
    log.append([Event("somebody", 7, 4.0)])
    log.close()
    with pytest.raises(DataError, match=r"log.db: user 'somebody'; expected integer ids"):
        update(run=saved["numbers"], events=log.path, out=tmp_path / "again")


def test_a_log_that_cannot_be_written_is_an_error_at_the_start(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    line = ["talos", "serve", str(run), "--feedback", str(tmp_path / "folder")]
    done = subprocess.run(
        [sys.executable, "-m", *line],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    assert "folder: cannot be written" in done.stderr
