"""`talos card`, and a run in the folders in which the Hugging Face Hub hands files out."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import talos as library

Done = subprocess.CompletedProcess[str]
Talos = Callable[..., Done]
QUICK = ("--dim", 4, "--epochs", 2, "--k", 3, "--effort", "quick")


@pytest.fixture
def run(talos: Talos, clicks: Path) -> Path:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    return Path("run")


def test_a_card_beside_the_model(talos: Talos, run: Path) -> None:
    done = talos("card", run, "--license", "mit")
    assert (done.returncode, done.stdout) == (0, f"written to {run / 'README.md'}\n")
    first = (run / "README.md").read_text()
    assert first.startswith('---\nlibrary_name: "talos"')
    assert "# run" in first
    assert talos("card", run, "-o", "cards/card.md", "--name", "Shop", "--json").returncode == 0
    assert "# Shop" in Path("cards/card.md").read_text()
    library.Recommender.load(run).save(run)  # the next save leaves the card where it is
    assert (run / "README.md").read_text() == first
    assert talos("card", run).returncode == 0  # a card of ours is replaced


def test_what_is_not_a_card_is_not_replaced(talos: Talos, run: Path) -> None:
    (run / "README.md").write_text("mine")
    refused = talos("card", run)
    assert refused.returncode == 2
    assert "exists and is not a card" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert (run / "README.md").read_text() == "mine"
    assert talos("card", run, "--overwrite").returncode == 0
    wrong = talos("card", run, "-o", run)
    assert (wrong.returncode, "is a folder" in wrong.stderr) == (2, True)
    damaged = talos("card", "clicks.csv", "-o", "card.md")
    assert damaged.returncode == 2
    assert not Path("card.md").exists()


def test_the_hub_finds_the_folders_of_this_test(talos: Talos, run: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    assert talos("card", run).returncode == 0
    snapshot = snapshot_of(run, tmp_path / "hub")
    found = hub.snapshot_download("us/shop", cache_dir=tmp_path / "hub", local_files_only=True)
    assert Path(found) == snapshot
    (model,) = hub.ModelCard.load(snapshot / "README.md").data.eval_results[:1]
    assert model.metric_type == "precision@3"


def snapshot_of(run: Path, cache: Path) -> Path:
    """A run as `snapshot_download` leaves it: links into a folder of files that are named after their content."""
    revision = hashlib.sha1(b"a commit").hexdigest()
    folder = cache / "models--us--shop"
    snapshot = folder / "snapshots" / revision
    for place in (folder / "blobs", folder / "refs", snapshot):
        place.mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    for file in run.iterdir():
        if file.is_file():
            blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.copyfile(file, blob)
            blob.chmod(0o444)
            (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot


def test_a_run_comes_back_from_the_hub_as_it_was(
    talos: Talos, run: Path, clicks: Path, tmp_path: Path
) -> None:
    assert talos("card", run).returncode == 0
    snapshot = snapshot_of(run, tmp_path / "hub")
    before = sorted(path.name for path in snapshot.iterdir())
    assert {"README.md", "model.json", "model.safetensors", "users.parquet", "items.parquet"} <= set(before)
    for line in (("recommend", "-u", "user01"), ("evaluate",), ("evaluate", "--data", clicks)):
        there, here = (talos(line[0], place, *line[1:], "--json") for place in (snapshot, run))
        assert there.returncode == 0, there.stderr
        assert there.stdout == here.stdout
    own, theirs = (library.Recommender.load(place) for place in (run, snapshot))
    assert theirs.recommend(["user02"], k=3).equals(own.recommend(["user02"], k=3))
    assert talos("card", snapshot, "-o", "again.md", "--name", "run").returncode == 0
    assert Path("again.md").read_text() == (run / "README.md").read_text()
    assert talos("export", snapshot, "--format", "npz", "-o", "vectors.npz").returncode == 0
    assert sorted(path.name for path in snapshot.iterdir()) == before
    # and from there into a folder of one's own, which is a run again
    theirs.save("copy")
    facts = [json.loads(Path(place, "model.json").read_text()) for place in (run, "copy")]
    assert facts[0]["checksums"] == facts[1]["checksums"]
