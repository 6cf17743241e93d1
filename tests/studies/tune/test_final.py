"""The single evaluation on the test part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ConfigError, DataError
from talos.model.recommender import Recommender
from talos.studies.tune import FitParts, finalize, open_study, run_study, stored_final


@pytest.fixture
def study(settings, parts: FitParts, tmp_path: Path) -> Path:
    run_study(settings({"loss": {"tau": [0.1, 0.3]}}), parts, tmp_path / "study")
    return tmp_path / "study"


def test_the_winner_is_fitted_on_train_and_validation_and_measured_once(
    study: Path, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_final(study) is None
    answer = finalize(study, split)
    assert answer.fresh
    facts = answer.facts
    config = Recommender(config=None).config.from_dict(facts["config"])
    assert config.training.epochs == facts["epochs"]
    both = split.train.union(split.valid)
    again = Recommender(config=config).fit(both).evaluate(split.test, k=[5])
    assert facts["metrics"]["recall@5"] == pytest.approx(again.metrics["recall@5"])
    loaded = Recommender.load(study / "final")
    assert loaded.model is not None
    assert len(loaded.model.train) == len(both)
    assert loaded.evaluate(split.test, k=5).metrics["recall@5"] == pytest.approx(facts["metrics"]["recall@5"])

    def never(*arguments: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr("talos.studies.tune.study.Recommender", never)
    stored = finalize(study, split)
    assert not stored.fresh
    assert dict(stored.facts) == json.loads(json.dumps(dict(facts)))


def test_it_is_a_refit_with_the_settings_of_the_trial(study: Path, split: Split, parts: FitParts) -> None:
    finalize(study, split)
    loaded = Recommender.load(study / "final")
    model = loaded.fitted_model()
    trial = Recommender(config=open_study(study)[0].config).fit(*parts)
    epochs = model.metadata["epoch"]
    assert loaded.config == trial.config.with_values({"training.epochs": epochs})
    assert model.metadata["trained_on"] == {"train": len(split.train), "valid": len(parts.valid)}
    origin = model.metadata["chosen_from"]
    assert (origin["trained_on"], origin["epoch"]) == ({"train": len(split.train)}, epochs)
    assert origin["epochs_from"].startswith("the best epoch of trial ")
    offered = set(loaded.recommend(k=20).select("user_id", "item_id").rows())
    assert not offered & set(split.test.to_polars().rows())
    everything = Recommender(config=loaded.config).fit(
        split.train.union(parts_valid(split)), known=split.test
    )
    assert torch.equal(everything.fitted_model().vectors.items, model.vectors.items)


def parts_valid(split: Split) -> Interactions:
    assert split.valid is not None
    return split.valid


def test_no_trial_after_the_look(study: Path, split: Split, settings, parts: FitParts) -> None:
    finalize(study, split)
    with pytest.raises(ConfigError, match="is finalised: its test part has been evaluated"):
        run_study(settings({"loss": {"tau": [0.1, 0.3]}}), parts, study)


def test_an_answer_that_was_changed_is_refused(study: Path, split: Split) -> None:
    finalize(study, split)
    path = study / "final.json"
    path.write_text(path.read_text().replace('"recall@5": 0.', '"recall@5": 0.9'))
    with pytest.raises(DataError, match=r"final\.json: is damaged"):
        finalize(study, split)


def test_another_split_is_refused(study: Path, split: Split) -> None:
    """Its test part could hold what the search has seen."""
    assert split.valid is not None
    turned = replace(split, valid=split.test, test=split.valid)
    with pytest.raises(DataError, match="not those that were tuned on"):
        finalize(study, turned)
    assert stored_final(study) is None


def test_a_study_without_a_finished_trial_cannot_be_finalised(settings, split: Split, study: Path) -> None:
    (study / "study.db").unlink()
    with pytest.raises(DataError, match="no trial has a value yet"):
        finalize(study, split)
    with pytest.raises(DataError, match=r"has no tune\.json"):
        finalize(study.parent, split)
