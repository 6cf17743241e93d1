"""Runs that weigh their interactions keep what the weights come from: they can be loaded, refitted and updated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from talos.data.interactions import Interactions
from talos.errors import DataError
from talos.files import checksum_of, sealed_text, unseal
from talos.model.recommender import Recommender

WAYS: dict[str, dict[str, Any]] = {
    "age": {"half_life": "30d"},
    "rating": {"weights": "rating"},
    "repeats": {"weights": "repeats"},
    "rating and age": {"weights": "rating", "half_life": "30d"},
}


@pytest.fixture(scope="module")
def data() -> Interactions:
    """80 users and 30 items with times over a year, ratings from 1 to 5, and pairs that repeat."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(rng.random((80, 30)) < 0.3)
    pairs = np.concatenate([pairs, pairs[rng.random(len(pairs)) < 0.2]])
    return Interactions.from_ids(
        pairs[:, 0],
        pairs[:, 1],
        timestamps=rng.integers(1_600_000_000, 1_631_536_000, len(pairs)),
        ratings=rng.integers(1, 6, len(pairs)),
    )


def fitted(data: Interactions, way: dict[str, Any]) -> Recommender:
    split = data.split(test=0.2, valid=0.1, seed=0)
    model = Recommender(k=5, dim=8, epochs=4, tau=0.2, batch_size=16, **way)
    return model.fit(split.train, split.valid, known=split.test)


def vectors(model: Recommender) -> torch.Tensor:
    return model.fitted_model().vectors.users


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_loaded_run_is_refitted_like_the_one_that_was_saved(
    data: Interactions, way: dict[str, Any], tmp_path: Path
) -> None:
    model = fitted(data, way)
    model.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert torch.equal(vectors(model.refit("all")), vectors(loaded.refit("all")))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_new_events_count_by_the_same_rule(data: Interactions, way: dict[str, Any], tmp_path: Path) -> None:
    model = fitted(data, way)
    model.save(tmp_path / "run")
    later = Interactions.from_ids(
        [0, 500, 500],
        [1, 2, 3],
        timestamps=[1_631_600_000, 1_600_000_000, 1_631_600_000],
        ratings=[5, 1, 5],
    )
    before = vectors(model)[1].clone()
    from_memory = vectors(model.partial_fit(later))
    from_disk = Recommender.load(tmp_path / "run").partial_fit(later)
    assert torch.equal(from_memory, vectors(from_disk))
    assert torch.allclose(from_memory[1], before, atol=1e-6)  # whoever has no new events stays
    scores = from_disk.fitted_model()
    new = scores.vectors.users[-1] @ scores.vectors.items.T
    if way != WAYS["repeats"]:  # item 3 is newer and rated higher than item 2, by the same new user
        assert new[3] > new[2]


def test_events_without_the_column_are_refused(data: Interactions) -> None:
    model = fitted(data, WAYS["age"])
    with pytest.raises(DataError, match="timestamps"):
        model.partial_fit(Interactions.from_ids([0], [1]))


def test_a_history_counts_by_age_if_it_has_times(data: Interactions) -> None:
    model = fitted(data, WAYS["age"])
    stamps = [1_600_000_000, 1_631_536_000]

    def score_of(item: int, history: Interactions) -> float:
        found = model.recommend(history=history, k=30, filter_seen=False)
        return float(found.filter(found["item_id"] == item)["score"][0])

    old, new, even = (
        Interactions.from_ids([9, 9], [4, 7], timestamps=times) for times in (stamps, stamps[::-1], None)
    )
    assert score_of(7, old) > score_of(7, even) > score_of(7, new)


def test_damaged_columns_are_refused(data: Interactions, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fitted(data, WAYS["repeats"]).save(run)
    tensors = load_file(run / "model.safetensors")
    repeats = tensors["train.repeats"]
    for broken in (
        repeats[1:].clone(),
        torch.zeros_like(repeats),
        repeats[:, None].clone(),
        repeats.float(),
    ):
        save_file({**tensors, "train.repeats": broken}, run / "model.safetensors")
        metadata = unseal(json.loads((run / "model.json").read_text()))
        metadata["checksums"]["model.safetensors"] = checksum_of(run / "model.safetensors")
        (run / "model.json").write_text(sealed_text(metadata))
        with pytest.raises(DataError, match=r"train\.repeats"):
            Recommender.load(run)


def test_runs_without_weights_have_no_columns_of_events(data: Interactions, tmp_path: Path) -> None:
    fitted(data, {}).save(tmp_path / "run")
    assert not [name for name in load_file(tmp_path / "run" / "model.safetensors") if "timestamps" in name]
