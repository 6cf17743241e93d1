"""A loss and a backbone from outside the package, as CONTRIBUTING.md shows them: every command, and Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from talos import Recommender, read
from talos.data import source
from talos.errors import ArgumentError, ConfigError, DataError
from talos.training import Callback

Talos = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
MODULES = ("our_loss", "our_backbone", "our_reader")
OURS = ("--loss", "our_loss:Margin", "--backbone", "our_backbone:Smoothed")
SMALL = (
    "--k",
    5,
    "--set",
    "training.epochs=3",
    "--set",
    "training.evaluate_every=1",
    "--set",
    "backbone.dim=8",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's search path, also that of processes started here, with the modules of CONTRIBUTING.md."""
    folder = tmp_path / "home"
    folder.mkdir()
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)
    for block in blocks:
        name = re.match(r"# (\w+)\.py\n", block)
        assert name
        (folder / f"{name[1]}.py").write_text(block, encoding="utf-8")
    assert {path.stem for path in folder.iterdir()} == set(MODULES)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    yield folder
    forget()


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


def test_train_recommend_and_load_without_the_module(
    talos: Talos, clicks: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALOS_IMPORT", "")  # and back at the end: --import adds to it
    own = ("--set", "loss.margin=0.3", "--set", "backbone.mix=0.4")
    done = talos("train", clicks, "--out", "run", *OURS, *SMALL, *own)
    assert done.returncode == 0, done.stderr
    config = json.loads(Path("run/model.json").read_text())["config"]
    assert config["loss"] == {"name": "our_loss:Margin", "margin": 0.3}
    assert config["backbone"] == {"name": "our_backbone:Smoothed", "dim": 8, "mix": 0.4}
    history = ("recommend", "run", "--history", "item01,item03", "--k", 3, "--json")
    assert talos(*history).returncode == 0  # the training above imported the module
    forget()
    not_asked = talos(*history)
    assert not_asked.returncode == 2
    assert "names the class 'our_loss:Margin', and the module 'our_loss' is not imported" in not_asked.stderr
    assert "talos --import our_loss" in not_asked.stderr
    assert "our_loss" not in sys.modules
    asked = ("--import", "our_loss", "--import", "our_backbone")
    assert talos(*asked, *history).returncode == 0

    (home / "our_loss.py").unlink()
    (home / "our_backbone.py").unlink()
    forget()
    sys.path_importer_cache.clear()
    assert talos("recommend", "run", "--user", "user01", "--json").returncode == 0
    assert talos("evaluate", "run", "--k", 5).returncode == 0
    loaded = Recommender.load("run")
    assert len(loaded.recommend(["user01"], k=3)) == 3
    assert len(loaded.similar_items("item01", k=3)) == 3
    need_the_loss = (
        lambda: loaded.recommend(history=["item01"], k=3),
        lambda: loaded.explain("user01", "item03"),
        lambda: loaded.partial_fit(read(clicks)),
        lambda: loaded.fit(read(clicks)),
        lambda: loaded.refit(),
    )
    for needs_loss in need_the_loss:
        with pytest.raises(
            ArgumentError, match=r"cannot import the module 'our_(loss|backbone)' of 'our_\1:"
        ):
            needs_loss()
    refused = talos("recommend", "run", "--history", "item01", "--k", 3)
    assert refused.returncode == 2
    assert "cannot import the module 'our_loss'" in refused.stderr
    monkeypatch.delenv("TALOS_IMPORT")
    for needs_loss in need_the_loss:
        with pytest.raises(ConfigError, match=r"run/model\.json: names the class 'our_(loss|backbone):"):
            needs_loss()


def test_tune_compare_and_a_config_file(talos: Talos, clicks: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra `tune`)")
    tuned = talos("tune", clicks, *OURS, *SMALL, "--trials", 3, "--workers", 2, "--out", "study", "--json")
    assert tuned.returncode == 0, tuned.stderr
    trials = Path("study/trials.csv").read_text()
    assert "loss.margin" in trials
    assert "backbone.mix" in trials
    finished = talos("tune", "--out", "study", "--finalize")
    assert finished.returncode == 0, finished.stderr  # this process has imported the modules
    trained = talos("train", clicks, "--config", "study/run.toml", "--out", "again")
    assert trained.returncode == 0, trained.stderr
    assert "our_loss:Margin" in Path("again/model.json").read_text()

    compared = talos(
        "compare", clicks, "--losses", "our_loss:Margin,sl", "--backbones", "mf,our_backbone:Smoothed", "--seeds", 1,
        *SMALL, "--set", "our_loss:Margin.loss.margin=0.1", "--out", "table", "--json",
    )  # fmt: skip
    assert compared.returncode == 0, compared.stderr
    models = [f"{b}/{loss}" for b in ("mf", "our_backbone:Smoothed") for loss in ("our_loss:Margin", "sl")]
    assert all(model in compared.stdout for model in models)


@pytest.mark.parametrize("name", ["our_los", "our_loss:Margin", "", "our_fault"])
def test_a_module_that_cannot_be_imported_is_refused(talos: Talos, home: Path, name: str) -> None:
    (home / "our_fault.py").write_text("1 / 0\n")
    done = talos("--import", name, "data", "list")
    assert done.returncode == 2
    assert f"error: --import: cannot import the module '{name}' (" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


class _StopError(Exception):
    pass


class _StopAfter(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_start(self, epoch: int, epochs: int, steps: int) -> None: ...

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        if epoch == self.epoch:
            raise _StopError

    def on_epoch(self, record: dict[str, Any]) -> None: ...

    def on_end(self) -> None: ...


def test_objects_fit_save_load_and_resume(talos: Talos, clicks: Path) -> None:
    import our_backbone
    import our_loss

    from talos.backbones import BipartiteGraph

    split = read(clicks).split()
    graph = BipartiteGraph.from_interactions(split.train)
    backbone = our_backbone.Smoothed(graph, dim=8, mix=0.4, generator=None)
    options: dict[str, Any] = {
        "k": 5,
        "loss": our_loss.Margin(margin=0.3),
        "backbone": backbone,
        "epochs": 4,
        "evaluate_every": 1,
        "checkpoint_every": 1,
    }
    whole = Recommender(**options).fit(split.train, split.valid)
    assert whole.config.loss.options == {"margin": 0.3}
    assert whole.config.backbone.options == {"dim": 8, "mix": 0.4}
    assert whole.model is not None
    with pytest.raises(_StopError):
        Recommender(**options).fit(split.train, split.valid, run="run", callbacks=[_StopAfter(2)])
    resumed = Recommender(**options).fit(split.train, split.valid, run="run", resume=True)
    assert resumed.model is not None
    assert torch.equal(resumed.model.vectors.users, whole.model.vectors.users)
    resumed.save("run")
    loaded = Recommender.load("run")
    assert loaded.config == resumed.config
    assert loaded.recommend(k=3).equals(whole.recommend(k=3))

    # the command line goes on with what Python began
    with pytest.raises(_StopError):
        Recommender(**options).fit(split.train, split.valid, run="begun", callbacks=[_StopAfter(2)])
    Path("run.toml").write_text(Recommender(**options).config.to_toml())
    done = talos("train", clicks, "--config", "run.toml", "--out", "begun", "--resume")
    assert done.returncode == 0, done.stderr
    model = Recommender.load("begun").model
    assert model is not None
    assert torch.equal(model.vectors.users, whole.model.vectors.users)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--loss", "our_los:Margin"), "cannot import the module 'our_los' of 'our_los:Margin'"),
        (("--loss", "our_loss:Marge"), "the module 'our_loss' has no 'Marge' (did you mean 'Margin'?)"),
        (("--loss", "our_backbone:Smoothed"), "'our_backbone:Smoothed' is no loss"),
        (("--backbone", "our_loss:Margin"), "'our_loss:Margin' is no backbone"),
        (("--threshold", "our_loss:Margin"), "'our_loss:Margin' is no threshold"),
        (("--negatives", "our_loss:Margin"), "'our_loss:Margin' is no source of negatives"),
        (("--loss", "__main__:Margin"), "has no 'Margin'"),
        (
            ("--loss", "our_loss:Margin", "--set", "loss.magrin=1"),
            "magrin: the loss 'our_loss:Margin' has no such",
        ),
    ],
)
def test_what_is_refused(talos: Talos, clicks: Path, option: tuple[str, ...], said: str) -> None:
    if option[0] in ("--threshold", "--negatives"):
        option = (*option, "--loss", "talos")
    done = talos("train", clicks, "--out", "run", *SMALL, *option)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "raise ZeroDivisionError('by zero')",
            "raised ZeroDivisionError: by zero (our_broken.py, line 4, in compute);",
        ),
        ("return batch.pos + batch.neg.new_zeros(3, 7)", "raised RuntimeError: The size of tensor"),
        ("return None", "is a NoneType; expected one value per positive, shape ("),
        ("return batch.pos.sum()", "has shape (), dtype torch.float32; expected"),
        ("return batch.pos.detach()", "has no gradient; expected"),
    ],
)
def test_an_error_in_a_class_of_ones_own_is_no_bug_of_ours(
    talos: Talos, clicks: Path, home: Path, body: str, said: str
) -> None:
    source = (
        f"from talos.losses import Loss\nclass Broken(Loss):\n    def compute(self, batch):\n        {body}\n"
    )
    (home / "our_broken.py").write_text(source)
    sys.modules.pop("our_broken", None)
    sys.path_importer_cache.clear()
    line = ("train", clicks, "--out", "run", *SMALL, "--loss", "our_broken:Broken")
    done = talos(*line)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "bug in Talos" not in done.stderr
    error = next(one for one in done.stderr.splitlines() if one.startswith("error: "))
    assert "our_broken:Broken" in error
    assert said in error
    shutil.rmtree("run")
    assert "Traceback" in talos(*line, "--debug").stderr


def test_a_reader_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import our_reader  # type: ignore[import-not-found]

    monkeypatch.setattr(source, "READERS", (our_reader.Likes, *source.READERS))
    file = tmp_path / "likes.txt"
    file.write_text("ann likes tea\nbob likes tea\nann likes jam\n")
    assert read(file).to_polars().rows() == [("ann", "jam"), ("ann", "tea"), ("bob", "tea")]
    assert read(file).provenance.format == "likes"
    file.write_text("ann likes tea\nbob likes \n")
    with pytest.raises(DataError, match=r"likes\.txt, line 2: no item in column 'item'"):
        read(file)
    assert len(read(file, on_bad_row="skip")) == 1
