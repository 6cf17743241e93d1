"""A refit is a fit on the joined data with the chosen settings and epochs, to the byte."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos.model.fitting import RefitOn
from talos.model.recommender import Recommender
from talos.training import Callback, InterruptedRunError
from talos.training.callbacks import read_history

# validation is best somewhere in the middle, so that refits end before the selection did
SMALL: dict[str, Any] = {
    "k": 3,
    "dim": 4,
    "epochs": 12,
    "evaluate_every": 1,
    "patience": 3,
    "tau": 0.2,
    "lr": 0.3,
}
CASES: list[dict[str, Any]] = [
    {"backbone": "mf"},
    {"backbone": "lightgcn"},
    {"backbone": "xsimgcl"},
    {"backbone": "mf", "negatives": "8"},
    {"backbone": "mf", "loss": "bpr", "tau": None},
    {"backbone": "mf", "loss": "advinfonce"},
]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def parts() -> Split:
    rng = np.random.default_rng(0)
    liked = np.concatenate([rng.permutation(16)[:10] + 16 * (user % 2) for user in range(40)])
    return Interactions.from_ids(np.repeat(np.arange(40), 10), liked).split()


def options(case: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**SMALL, **case}.items() if value is not None}


def fitted(parts: Split, case: dict[str, Any] | None = None, **more: Any) -> Recommender:
    return Recommender(**options(case or {})).fit(parts.train, parts.valid, known=parts.test, **more)


def joined(parts: Split, on: RefitOn) -> Interactions:
    assert parts.valid is not None
    both = parts.train.union(parts.valid)
    return both if on == "train+valid" else both.union(parts.test)


def tensors(model: Recommender, folder: Path) -> dict[str, bytes]:
    model.save(folder)
    return {
        name: tensor.numpy().tobytes() for name, tensor in load_file(folder / "model.safetensors").items()
    }


@pytest.mark.parametrize("on", ["train+valid", "all"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_it_equals_a_fit_on_the_joined_data(
    parts: Split, tmp_path: Path, case: dict[str, Any], on: RefitOn
) -> None:
    model = fitted(parts, case)
    epoch = model.fitted_model().metadata["epoch"]
    settings = model.config.with_values({"training.epochs": epoch})
    model.refit(on)
    known = parts.test if on == "train+valid" else None
    again = Recommender(config=settings).fit(joined(parts, on), known=known)
    assert model.config == again.config
    assert tensors(model, tmp_path / "refit") == tensors(again, tmp_path / "again")
    assert set(tensors(model, tmp_path / "refit")) >= {"user_vectors", "item_vectors", "train.indices"}


def test_the_metadata_say_what_it_was_trained_on_and_how_long(parts: Split) -> None:
    model = fitted(parts)
    chosen = dict(model.fitted_model().metadata)
    assert chosen["trained_on"] == {"train": len(parts.train)}
    assert chosen["epochs_from"].startswith("early stopping: the best validation precision@3 of ")
    model.refit()
    facts = model.fitted_model().metadata
    assert parts.valid is not None
    assert facts["trained_on"] == {"train": len(parts.train), "valid": len(parts.valid)}
    assert facts["epoch"] == chosen["epoch"] == model.config.training.epochs < SMALL["epochs"]
    assert facts["epochs_from"].startswith("refit: ")
    assert facts["valid"] == facts["metrics"] == {}
    origin = facts["chosen_from"]
    assert {name: origin[name] for name in ("trained_on", "epoch", "epochs_from", "valid")} == {
        name: chosen[name] for name in ("trained_on", "epoch", "epochs_from", "valid")
    }
    assert origin["valid"]["precision@3"] > 0
    model.partial_fit(Interactions.from_ids([0, 1000], [15, 3]))
    assert model.fitted_model().metadata["trained_on"]["updates"] == 2


def test_settings_chosen_for_the_data_are_not_chosen_again(parts: Split) -> None:
    """`auto` would resolve to other batches where validation has users that train has not."""
    assert parts.valid is not None
    few = parts.train.where(parts.train.rows < 12)
    model = Recommender(k=3, dim=4, epochs=2).fit(few, parts.valid.where(parts.valid.rows < 40))
    before = model.config
    assert model.refit().config.with_values({"training.epochs": 2}) == before.with_values(
        {"training.epochs": 2}
    )


def test_nobody_is_offered_what_they_have(parts: Split) -> None:
    everything = set(joined(parts, "all").to_polars().rows())
    for on in ("train+valid", "all"):
        model = fitted(parts).refit(on)  # type: ignore[arg-type]
        lists = set(model.recommend(k=32).select("user_id", "item_id").rows())
        assert lists
        assert not lists & everything


def test_the_test_part_measures_only_what_has_not_seen_it(parts: Split) -> None:
    assert fitted(parts).refit().evaluate(parts.test, k=3).metrics["recall@3"] > 0
    model = fitted(parts).refit("all")
    with pytest.raises(ArgumentError, match=r"test: the model was fitted on these interactions.*chosen_from"):
        model.evaluate(parts.test, k=3)
    later = Interactions.from_ids([0, 1], [31, 0])  # what nobody had before
    assert model.evaluate(later, k=3).num_users == 2


def test_a_loaded_run_can_be_refitted(parts: Split, tmp_path: Path) -> None:
    model = fitted(parts)
    model.save(tmp_path / "run")
    model.refit("all")
    loaded = Recommender.load(tmp_path / "run").refit("all")
    assert tensors(loaded, tmp_path / "loaded") == tensors(model, tmp_path / "here")
    assert loaded.fitted_model().metadata["trained_on"] == model.fitted_model().metadata["trained_on"]


def test_on_train_and_validation_first_and_then_on_all(parts: Split, tmp_path: Path) -> None:
    twice, once = fitted(parts).refit().refit("all"), fitted(parts).refit("all")
    assert tensors(twice, tmp_path / "twice") == tensors(once, tmp_path / "once")
    assert twice.fitted_model().metadata["chosen_from"]["chosen_from"]["epoch"]


def test_without_validation_all_epochs_are_run_again(parts: Split) -> None:
    model = Recommender(k=3, dim=4, epochs=3).fit(parts.train, known=parts.test)
    assert model.fitted_model().metadata["epochs_from"] == "the settings: no validation part"
    with pytest.raises(ArgumentError, match="refit: there is no validation part"):
        model.refit()
    assert model.refit("all").fitted_model().metadata["epoch"] == 3


def test_what_cannot_be_refitted_is_refused(parts: Split) -> None:
    with pytest.raises(ArgumentError, match="not fitted"):
        Recommender().refit()
    model = Recommender(config=RunConfig(k=3), dim=4, epochs=1).fit(parts.train, parts.valid)
    with pytest.raises(ArgumentError, match=r"on: 'everything'; expected train\+valid or all"):
        model.refit("everything")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"no interactions are known.*known=test"):
        model.refit("all")


class StopAt(Callback):
    """Sends this process a SIGINT after a step, as Ctrl-C does."""

    def __init__(self, epoch: int, step: int) -> None:
        self.at = epoch, step

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == self.at:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("backbone", ["mf", "lightgcn", "xsimgcl"])
@pytest.mark.parametrize("phase", ["fit", "refit"])
def test_interrupted_in_either_phase_it_ends_with_the_same_bytes(
    parts: Split, tmp_path: Path, phase: str, backbone: str
) -> None:
    case = {"backbone": backbone, "batch_size": 8}
    whole = tensors(fitted(parts, case).refit(), tmp_path / "whole")
    run = tmp_path / "run"
    stop = [StopAt(0, 2)]
    with pytest.raises(InterruptedRunError):
        fitted(parts, case, run=run, callbacks=stop if phase == "fit" else []).refit(run=run, callbacks=stop)
    assert (run / "checkpoint" / "refit-train+valid").is_dir() == (phase == "refit")
    model = fitted(parts, case, run=run, resume=True).refit(run=run, resume=True)
    assert tensors(model, run) == whole
    epochs = [line["epoch"] for line in read_history(run / "history-refit.jsonl")]
    assert epochs == list(range(1, model.fitted_model().metadata["epoch"] + 1))
    assert len(read_history(run / "history.jsonl")) >= len(epochs)  # the best epoch may be the last
