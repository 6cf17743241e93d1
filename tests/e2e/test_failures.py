"""Whatever goes wrong is one message with the place and an exit code; only a bug of ours shows a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talos.data.open import read
from talos.errors import InputError
from talos.exports import export
from talos.model.recommender import Recommender

Done = subprocess.CompletedProcess[str]
Talos = Callable[..., Done]
QUICK = ("--dim", "4", "--epochs", "1", "--k", "3")


def one_message(done: Done, *texts: str, code: int = 2) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")], done.stderr
    for text in texts:
        assert text in done.stderr


@pytest.mark.parametrize("out", ["dangling", "a" * 300, "file/x", "/proc/x", "file", "/dev/full", "a\udcffb"])
def test_places_that_cannot_be_written(talos: Talos, clicks: Path, out: str) -> None:
    Path("dangling").symlink_to("nowhere/x")
    Path("file").write_text("precious")
    for line in (
        ("train", clicks, *QUICK),
        ("data", "split", clicks),
        ("init", clicks),
        ("compare", clicks, "--losses", "sl", "--seeds", 1, "--k", 3, "--set", "training.epochs=1"),
        ("tune", clicks, "--trials", 1, "--k", 3, "--epochs", 1),
    ):
        done = talos(*line, "--out", out)
        if (line[0], out) == ("init", "dangling"):  # the file takes the place of the link
            assert done.returncode == 0
            continue
        one_message(done)
    assert Path("file").read_text() == "precious"
    assert Path("/dev/full").is_char_device()
    assert {path.name for path in Path().iterdir()} == {"clicks.csv", "dangling", "file"}


def test_pages_and_lists_that_cannot_be_written(talos: Talos, clicks: Path) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    one_message(talos("report", "run", "--out", "/dev/full"), "--out: /dev/full is a device")
    assert Path("/dev/full").is_char_device()
    for out in ("/proc/x.csv", "a" * 300 + ".csv", "/dev/full", "sqlite:////proc/x.db"):
        one_message(talos("recommend", "run", "--all", "--out", out))


def test_a_full_disk(talos: Talos, clicks: Path, tmp_path: Path, full_disk: Any) -> None:
    """One message that names the place and exit code 1, wherever it fails; nothing that could be taken for whole."""
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    for line in (
        ("init", clicks, "--out", "new.toml"),
        ("data", "split", clicks, "--out", "new"),
        ("data", "split", clicks, "--out", "new", "--format", "parquet"),
        ("data", "split", clicks, "--out", "new", "--shards", 2),
        ("export", "run", "--format", "parquet", "--out", "new"),
        ("report", "run", "--out", "new.html"),
        ("recommend", "run", "--all", "--out", "new.csv"),
        ("recommend", "run", "--all", "--out", "new.parquet"),
        ("recommend", "run", "--all", "--out", "sqlite:///new.db"),
        ("update", "run", clicks, "--out", "new"),
    ):
        with full_disk(100):
            done = talos(*line)
        one_message(done, "new", code=1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.csv", "run"], line
    with full_disk(100):
        done = talos("train", clicks, "--out", "new", *QUICK)
    one_message(done, "new/checkpoint/best", "could not be written", code=1)
    assert not (tmp_path / "new" / "model.json").exists()


@pytest.mark.parametrize(
    "path",
    ["", "~nosuchuser/x.csv", "a" * 300, "/dev/zero", "x\ny.csv", "a\udcff.csv", "file/x"],
)
def test_data_that_cannot_be_read(talos: Talos, path: str) -> None:
    Path("file").write_text("x")
    one_message(talos("data", "describe", path))


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (("--dim", 100_000_000_000), "--dim: training would take", 2),
        (
            ("--negatives", "shared:99999999999999"),
            "--negatives: 99999999999999 negatives; expected a whole number, 1 to",
            2,
        ),
        (
            ("--negatives", 1_000_000),
            "--negatives: 1,000,000 negatives; expected at most 16,384 for 40 items",
            2,
        ),
        (("--negatives", "shared:1000000"), "--negatives: 1,000,000 negatives; expected at most 16,384", 2),
        (("--device", "meta"), "--device: 'meta' cannot be used", 2),
        (("--split-seed", -1), "--split-seed: -1; expected a whole number from 0 on", 2),
        (("--set", "loss.tau=" + "[" * 100_000), "--set loss.tau: ", 2),
    ],
)
def test_numbers_without_sense(
    talos: Talos, clicks: Path, arguments: tuple[object, ...], text: str, code: int
) -> None:
    done = talos("train", clicks, "--out", "run", "--k", 3, "--epochs", 1, *arguments)
    one_message(done, text, code=code)
    assert not Path("run/model.json").exists()


@pytest.mark.parametrize("variable", ["TALOS_TIMEOUT", "WORLD_SIZE"])
def test_variables_that_are_no_numbers(
    talos: Talos, clicks: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "abc")
    one_message(talos("train", clicks, "--out", "run", *QUICK), f"{variable}: 'abc'; expected a number")


def test_no_home(talos: Talos, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")  # as for a container's user without an entry

    for variable in ("HOME", "XDG_CACHE_HOME", "TALOS_CACHE", "TALOS_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert talos("data", "describe", clicks).returncode == 0
    assert talos("data", "list").returncode == 0
    one_message(talos("data", "describe", "~/clicks.csv"), "~/clicks.csv: no such file")
    one_message(
        talos("data", "get", "movielens-100k"), "TALOS_CACHE: is not set, and there is no home folder"
    )


def test_ids_by_their_own_spelling(talos: Talos, clicks: Path) -> None:
    clicks.write_text(clicks.read_text().replace("user,item", "who,what").replace("user", "1").replace("item", "2")
                      .replace("who,what", "user,item"))  # fmt: skip
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    assert talos("recommend", "run", "--user", "110").returncode == 0
    for user in ("1_10", "+110", " 110", "١١٠"):
        one_message(talos("recommend", "run", "--user", user), "--user: ")
    one_message(talos("evaluate", "run", "--k", "1_0"), "--k: '1_0'")


def test_a_terminal_cannot_be_steered(talos: Talos, tmp_path: Path) -> None:
    evil, turned = "\x1b[2J\x9b31m\u202e", "\u202e"
    rows = [f"u{n}{turned},i{m}{turned},T{evil}" for n in range(6) for m in range(6) if (n + m) % 4]
    (tmp_path / "clicks.csv").write_text("user,item,title\n" + "\n".join(rows) + "\n")
    assert talos("train", "clicks.csv", "--out", "run", *QUICK).returncode == 0
    shown = talos("recommend", "run", "--user", f"u1{turned}")
    assert shown.returncode == 0
    assert "\\x1b[2J\\x9b31m\\u202e" in shown.stdout
    listed = talos("recommend", "run", "--user", f"u1{turned}", "--json")
    assert {row["user_id"] for row in json.loads(listed.stdout)} == {f"u1{turned}"}
    failed = talos("recommend", "run", "--user", f"nobody{evil}")
    assert failed.returncode == 2
    described = talos("data", "describe", "clicks.csv", "--user-column", evil)
    (tmp_path / "evil.csv").write_text(f"user,item\nu{evil},i\n")
    refused = talos("data", "describe", "evil.csv")
    assert refused.returncode == 2
    for done in (shown, listed, failed, described, refused):
        assert not set("\x1b\x9b\u202e") & set(done.stdout + done.stderr)


def test_a_very_long_id_is_not_echoed_whole(talos: Talos, tmp_path: Path) -> None:
    long = "x" * 1_000_000
    rows = [f"{long if n == 1 else n},i{m}" for n in range(6) for m in range(6) if (n + m) % 4]
    (tmp_path / "clicks.csv").write_text("user,item\n" + "\n".join(rows) + "\n")
    assert talos("train", "clicks.csv", "--out", "run", *QUICK).returncode == 0
    for user in (long, long + "y"):
        done = talos("recommend", "run", "--user", user)
        assert len(done.stdout + done.stderr) < 10_000


def test_a_bug_says_that_it_is_one(talos: Talos, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("postgresql://me:secret@host")

    monkeypatch.setattr("talos.data.open.open_interactions", broken)
    done = talos("data", "describe", clicks)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "error: this is a bug in Talos, not in your input. Please report it" in done.stderr
    assert "secret" not in done.stderr


def test_a_full_disk_behind_stdout(clicks: Path) -> None:
    line = [sys.executable, "-m", "talos", "data", "describe", str(clicks), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: talos data describe: No space left on device\n"


def test_wrong_arguments_in_python(clicks: Path) -> None:
    split = read(clicks).split(seed=0)
    model = Recommender(k=3, dim=4, epochs=1).fit(split.train)
    for call, where in (
        (lambda: model.recommend(["user01"], k="5"), "k"),
        (lambda: model.recommend(["user01"], k=2.0), "k"),
        (lambda: model.recommend(["user01"], k=True), "k"),
        (lambda: model.similar_items("item01", k="3"), "k"),
        (lambda: model.evaluate(split.test, k="5"), "k"),
        (lambda: model.evaluate(split.test, k=5.0), "k"),
        (lambda: model.evaluate(split.test, k=[3, True]), "k"),
        (lambda: model.evaluate([1]), "test"),
        (lambda: model.partial_fit(None), "new"),
        (lambda: export(model, "onnx", "vectors", k="5"), "k"),
        (lambda: Recommender(k=3, dim=2.0).fit(split.train), "dim"),
        (lambda: Recommender(k=3).fit(None), "train"),
        (lambda: Recommender(k=3).fit(split.train, "valid"), "valid"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.where == where


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no /proc, a file that not even root can read"
)
def test_data_that_fail_while_they_are_read(talos: Talos) -> None:
    one_message(
        talos("data", "describe", "/proc/self/mem"), "/proc/self/mem: cannot be read (Input/output error)"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_data(talos: Talos, clicks: Path) -> None:
    clicks.chmod(0)
    one_message(talos("data", "describe", clicks), "Permission denied")
