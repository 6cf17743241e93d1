"""Commands that are killed at any moment, or whose disk fails at any write: nothing is lost and nothing is half done.

A moment is one of the calls by which a command changes files, counted by `faults.c`: the command is killed at that
call, or the call fails. Afterwards what was there before must be intact, or the new thing whole; and the same command
must come to the same end as without an interruption, with no other files left.
"""

from __future__ import annotations

import csv
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILL, FAIL, SHORT = 1, 2, 3
TRAIN = ("--k", "5", "--dim", "8", "--epochs", "6", "--set", "training.batch_size=16")
TRAIN += ("--set", "training.checkpoint_every=2", "--set", "training.evaluate_every=2")
TUNE = ("--k", "5", "--trials", "3", "--epochs", "2", "--set", "backbone.dim=4")


class Scene:
    """One command on prepared files: how to run it again, and what must hold before and after that."""

    def __init__(self, server: Any, clicks: Path, folder: Path) -> None:
        self.server, self.clicks, self.start = server, clicks, folder / "start"
        self.start.mkdir()
        self.prepare()

    def prepare(self) -> None:
        """Write what the command finds, into `start`."""

    def work(self, at: Path) -> tuple[object, ...]:
        """The command, in the folder `at`."""
        raise NotImplementedError

    def again(self, at: Path) -> tuple[object, ...]:
        """The command that continues an interrupted one, or starts it again."""
        return self.work(at)

    def check(self, at: Path) -> None:
        """What must hold after an interruption."""

    def result(self, at: Path) -> dict[str, Any]:
        """What must be the same in the end, with the names of all files."""
        raise NotImplementedError

    def do(self, *work: object) -> str:
        done = self.server.run(*work, below=self.start.parent)
        assert done.code == 0, done.stderr
        return str(done.stdout)


def names(at: Path) -> list[str]:
    return sorted(str(path.relative_to(at)) for path in at.rglob("*"))


class Train(Scene):
    def work(self, at: Path) -> tuple[object, ...]:
        return ("command", "train", self.clicks, "--out", at / "run", *TRAIN)

    def again(self, at: Path) -> tuple[object, ...]:
        if (at / "run" / "model.json").exists():  # it was finished but for the clearing up
            return ("fingerprint", at / "run")
        return (*self.work(at), "--resume")

    def check(self, at: Path) -> None:
        if (at / "run" / "model.json").exists():
            self.do("fingerprint", at / "run")

    def result(self, at: Path) -> dict[str, Any]:
        return {"fingerprint": self.do("fingerprint", at / "run")}


class SaveOver(Scene):
    """A run is loaded, learns and is saved over itself."""

    def prepare(self) -> None:
        self.do("command", "train", self.clicks, "--out", self.start / "run", *TRAIN)
        self.old = self.do("fingerprint", self.start / "run")

    def work(self, at: Path) -> tuple[object, ...]:
        return ("save_over", at / "run", 3)

    def again(self, at: Path) -> tuple[object, ...]:
        if self.do("fingerprint", at / "run") == self.old:
            return self.work(at)
        return ("save_over", at / "run", 7)  # another one, which has to clear up

    def check(self, at: Path) -> None:
        assert self.do("fingerprint", at / "run") in (self.old, self.new)

    def result(self, at: Path) -> dict[str, Any]:
        found = self.do("fingerprint", at / "run")
        self.new = self.__dict__.get("new", found)
        return {"names": names(at)}


class Update(Scene):
    """The command: a run and new events, written as another run."""

    def prepare(self) -> None:
        self.do("command", "train", self.clicks, "--out", self.start / "run", *TRAIN)
        (self.start / "events.csv").write_text("user,item\nuser00,item39\nnew,item00\nuser01,fresh\n")

    def work(self, at: Path) -> tuple[object, ...]:
        return ("command", "update", at / "run", at / "events.csv", "--out", at / "updated")

    def again(self, at: Path) -> tuple[object, ...]:
        finished = (at / "updated" / "model.json").exists()
        return ("fingerprint", at / "updated") if finished else self.work(at)

    def check(self, at: Path) -> None:
        self.do("fingerprint", at / "run")
        if (at / "updated" / "model.json").exists():
            self.do("fingerprint", at / "updated")

    def result(self, at: Path) -> dict[str, Any]:
        return {"fingerprint": self.do("fingerprint", at / "updated")}


class Lists(Scene):
    def prepare(self) -> None:
        self.do("command", "train", self.clicks, "--out", self.start / "run", *TRAIN)

    def work(self, at: Path) -> tuple[object, ...]:
        return ("command", "recommend", at / "run", "--all", "--out", at / "recs.csv")

    def again(self, at: Path) -> tuple[object, ...]:
        return ("fingerprint", at / "run") if (at / "recs.csv").exists() else self.work(at)

    def check(self, at: Path) -> None:
        if (at / "recs.csv").exists():
            assert (at / "recs.csv").read_bytes() == self.lists

    def result(self, at: Path) -> dict[str, Any]:
        self.lists = (at / "recs.csv").read_bytes()
        return {"lists": self.lists}


class Export(Scene):
    """Over an older export."""

    def prepare(self) -> None:
        self.do("command", "train", self.clicks, "--out", self.start / "run", *TRAIN)
        self.do(*self.work(self.start))

    def work(self, at: Path) -> tuple[object, ...]:
        return (
            "command",
            "export",
            at / "run",
            "--format",
            "parquet",
            "--out",
            at / "vectors",
            "--overwrite",
        )

    def check(self, at: Path) -> None:
        self.do("check_export", at / "vectors")

    def result(self, at: Path) -> dict[str, Any]:
        self.do("check_export", at / "vectors")
        return {"names": names(at)}


class Shards(Scene):
    def work(self, at: Path) -> tuple[object, ...]:
        return ("command", "data", "split", self.clicks, "--out", at / "parts", "--shards", 2)

    def again(self, at: Path) -> tuple[object, ...]:
        return ("check_shards", at / "parts") if (at / "parts").exists() else self.work(at)

    def check(self, at: Path) -> None:
        if (at / "parts").exists():
            self.do("check_shards", at / "parts")

    def result(self, at: Path) -> dict[str, Any]:
        self.do("check_shards", at / "parts")
        return {"record": json.loads((at / "parts" / "shards.json").read_text())}


class Tune(Scene):
    def work(self, at: Path) -> tuple[object, ...]:
        return ("command", "tune", self.clicks, "--out", at / "study", *TUNE)

    def result(self, at: Path) -> dict[str, Any]:
        rows = list(csv.DictReader((at / "study" / "trials.csv").read_text().splitlines()))
        kept = [{name: row[name] for name in row if name not in ("seconds", "runs", "trial")} for row in rows]
        return {
            "trials": sorted(map(str, kept)),
            "config": (at / "study" / "run.toml").read_text().split("\n", 1)[1],
        }


SCENES: dict[str, Callable[..., Scene]] = {
    "train": Train,
    "save over a model": SaveOver,
    "update": Update,
    "recommend --all": Lists,
    "export": Export,
    "shards": Shards,
    "tune": Tune,
}


@pytest.fixture(scope="session")
def scene(
    tmp_path_factory: pytest.TempPathFactory, server: Any, clicks: Path
) -> Callable[[str], tuple[Scene, int, Any]]:
    """A scene by name, the number of its moments, and its result without an interruption."""
    made: dict[str, tuple[Scene, int, Any]] = {}

    def make(name: str) -> tuple[Scene, int, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp("scene")
            one = SCENES[name](server, clicks, folder)
            whole = folder / "whole"
            shutil.copytree(one.start, whole)
            done = server.run(*one.work(whole), below=whole)
            assert done.code == 0, done.stderr
            made[name] = one, done.calls, one.result(whole)
        return made[name]

    return make


def clear(at: Path) -> list[str]:
    """The names of temporary files and locks."""
    return [name for name in names(at) if name.endswith((".tmp", ".lock", ".new", ".parts"))]


def finish(one: Scene, at: Path, wanted: Any, what: str) -> None:
    """After an interruption: nothing is half done, and the same command comes to the same end."""
    one.check(at)
    done = one.server.run(*one.again(at), below=at)
    assert done.code == 0, f"{what}: {done.stderr}"
    assert one.result(at) == wanted, what
    shutil.rmtree(at)


@pytest.mark.parametrize("name", SCENES)
def test_killed_at_any_moment(scene: Any, budget: Any, tmp_path: Path, name: str) -> None:
    one, moments, wanted = scene(name)
    row = budget.row(f"kill {name}", short=2, full=30)
    for number in row:
        moment = row.rng(number).randint(1, moments)
        at = tmp_path / f"{number}"
        shutil.copytree(one.start, at)
        done = one.server.run(*one.work(at), below=at, kind=KILL, at=moment)
        row.counts["killed"] += done.code == -9
        finish(one, at, wanted, f"{name}, killed at change {moment} of {moments} (seed {budget.seed})")
    assert row.counts["killed"]


FAULTS = {
    "no space once": (FAIL, errno.ENOSPC, False),
    "no space": (FAIL, errno.ENOSPC, True),
    "I/O error": (FAIL, errno.EIO, False),
    "short write": (SHORT, 0, False),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_write_fails(scene: Any, budget: Any, tmp_path: Path, name: str) -> None:
    one, moments, wanted = scene(name)
    row = budget.row(f"write fails {name}", short=4, full=moments * len(FAULTS))
    kinds = list(FAULTS)
    for number in row:
        fault = kinds[number % len(kinds)]
        moment = number // len(kinds) + 1 if budget.seconds else row.rng(number).randint(1, moments)
        kind, error, forever = FAULTS[fault]
        at = tmp_path / f"{number}"
        shutil.copytree(one.start, at)
        done = one.server.run(*one.work(at), below=at, kind=kind, at=moment, error=error, forever=forever)
        what = f"{name}, {fault} at change {moment} of {moments} (seed {budget.seed})"
        assert "Traceback" not in done.stderr, f"{what}: {done.stderr}"
        if done.code:
            row.counts[f"failed by {fault}"] += 1
            assert done.code in (1, 2), f"{what}: {done.code} {done.stderr}"
            assert str(tmp_path) in done.stderr, f"{what}: {done.stderr}"  # it names the file
            assert fault != "short write", f"{what}: {done.stderr}"
        finish(one, at, wanted, what)
