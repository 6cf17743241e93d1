"""Lists of the service: nothing that a user is known to have, of whatever part; runs that are saved while it serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.cli.update import update
from talos.data.interactions import Interactions
from talos.errors import ConfigError, InUseError
from talos.model.recommender import Recommender
from talos.model.store import LOCK, lock_run

from .conftest import fit, until

Client = Callable[..., Any]
USER, HELD_OUT = "user20", "item50"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that knows one more item of a user than it has learnt."""
    fit().add_known(Interactions.from_ids([USER], [HELD_OUT])).save(tmp_path / "run")
    return tmp_path / "run"


def items_of(service: Any, **options: Any) -> list[str]:
    (found,) = service.post("/v1/recommend", json={"users": [USER], "k": 60, **options}).json()["results"]
    return [item["item"] for item in found["items"]]


def test_held_out_items_are_masked_but_not_learnt(client: Client, run: Path, tmp_path: Path) -> None:
    service, library = client(run, feedback=str(tmp_path / "log")), Recommender.load(run)
    past = set(library.fitted_model().seen.items_of(USER))
    assert HELD_OUT not in past
    assert items_of(service) == library.recommend([USER], k=60)["item_id"].to_list()
    assert HELD_OUT not in items_of(service)
    assert HELD_OUT in items_of(service, filter_seen=False)
    # a user with new events is folded in from what was learnt and from the events
    service.post("/v1/feedback", json={"events": [{"user": USER, "item": "item13"}]}).raise_for_status()
    right = library.recommend(history=[*past, "item13"], k=60)["item_id"].to_list()
    assert items_of(service) == [item for item in right if item != HELD_OUT]
    # an event about the item that was held out is one to learn from
    service.post("/v1/feedback", json={"events": [{"user": USER, "item": HELD_OUT}]}).raise_for_status()
    right = library.recommend(history=[*past, "item13", HELD_OUT], k=60)["item_id"].to_list()
    assert items_of(service) == right
    assert service.get(f"/v1/users/{USER}").json()["new_events"] == 2


def test_a_save_over_the_served_run_is_watched(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talos.serving.service._SECONDS_BETWEEN_LOOKS", 0.01)
    service, second = client(run, watch=True), fit(1)
    before = service.get("/readyz").json()["models"]["run"]
    second.save(run)
    until(lambda: service.get("/readyz").json()["models"]["run"] != before)
    assert service.get("/readyz").json()["reload_errors"] == {}
    assert items_of(service) == second.recommend([USER], k=60)["item_id"].to_list()


@pytest.mark.parametrize("renamed", range(4))
def test_a_save_that_ended_after_its_swap_is_served(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """The files of the new model have their first names, but for some; those of the old one are still there."""
    service, second, left = client(run), fit(1), [renamed]

    def some(folder: Path) -> None:
        for name, checksum in json.loads((folder / "model.json").read_text())["checksums"].items():
            if left[0] and (staged := folder / f"{name}.{checksum[7:23]}").is_file():
                staged.replace(folder / name)
                left[0] -= 1

    monkeypatch.setattr("talos.model.store._tidy", some)
    second.save(run)
    assert service.post("/v1/model/reload").status_code == 200
    assert items_of(service) == second.recommend([USER], k=60)["item_id"].to_list()


@pytest.mark.parametrize("name", ["model.safetensors", "users.parquet", "items.parquet"])
def test_files_get_their_names_while_they_are_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A reader that found a file under its first name tries again when it is gone from there."""
    from talos.model import store
    from talos.model.store import checksum_of, copy_model, load_model

    digits, sums = checksum_of(run / name).removeprefix("sha256:")[:16], checksum_of
    staged = run / f"{name}.{digits}"
    (run / LOCK).touch()

    def gone_after(path: Path) -> str:
        found = sums(path)
        if path == staged:
            staged.replace(run / name)
        return found

    (run / name).replace(staged)
    monkeypatch.setattr(store, "checksum_of", gone_after)
    assert load_model(run).fingerprint() == Recommender.load(run).fitted_model().fingerprint()
    assert (run / name).is_file()
    (run / name).replace(staged)
    copy = store.shutil.copyfile

    def gone_before(source: Path, target: Path) -> object:
        if source == staged:
            staged.replace(run / name)
        return copy(source, target)

    monkeypatch.setattr(store.shutil, "copyfile", gone_before)
    copy_model(run, run.parent / "copy")
    assert load_model(run.parent / "copy").fingerprint() == load_model(run).fingerprint()


def test_an_update_holds_the_lock_of_its_out(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(f"user,item\n{USER},{HELD_OUT}\neve,item13\n")
    arguments: dict[str, Any] = {"run": run, "events": tmp_path / "new.csv", "out": tmp_path / "run2"}
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_run(tmp_path / "run2", "talos train"):
            held.set()
            done.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    try:
        with pytest.raises(InUseError, match="talos train"):
            update(**arguments)
    finally:
        done.set()
        other.join(60)
    update(**arguments)
    model = Recommender.load(tmp_path / "run2").fitted_model()
    assert HELD_OUT in model.train.items_of(USER).to_list()
    assert model.attributes is not None
    assert not (tmp_path / "run2" / LOCK).exists()
    with pytest.raises(ConfigError, match="is a finished run"):
        update(**arguments)


def test_ids_that_a_terminal_would_obey_are_data_in_json(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """JSON escapes what it must; ids come back as they are, and nothing of them reaches the terminal."""
    hostile = ["\x1b[2J", "\u202egnp", "\x7f\x9b1m", "a\r\nb", "\u2028"]
    data = Interactions.from_ids([one for one in hostile for _ in hostile], hostile * len(hostile))
    Recommender(k=2, dim=4, epochs=1).fit(data).save(tmp_path / "run")
    service = client(tmp_path / "run", feedback=str(tmp_path / "log"), access_log=True)
    body = {"users": hostile, "k": 5, "filter_seen": False}
    results = service.post("/v1/recommend", json=body).json()["results"]
    assert [one["user"] for one in results] == hostile
    assert all({item["item"] for item in one["items"]} == set(hostile) for one in results)
    service.post("/v1/feedback", json={"events": [{"user": hostile[0], "item": hostile[1]}]})
    service.post("/v1/recommend", json={**body, "model": hostile[0]})
    service.post("/v1/model/reload").raise_for_status()
    shown = capfd.readouterr()
    assert "\x1b" not in shown.err + shown.out
    assert "\u202e" not in shown.err + shown.out
