"""Baselines behind the front door: fit, evaluate, recommend, save and load, as any other model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse
import torch
from safetensors.torch import load_file, save_file

from talos import registry
from talos.baselines import ItemBaseline, ItemKNN, ItemWeights
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError, InUseError, TalosError
from talos.evaluation.evaluate import popularity_report
from talos.exports import export, write_lists
from talos.files import checksum_of, sealed_text, unseal
from talos.model import store
from talos.model.fitting import RefitOn
from talos.model.recommender import Recommender
from talos.report import run_report

Data = Callable[..., Interactions]
NAMES = registry.names("baseline")
OF_ITEMS = [name for name in NAMES if issubclass(registry.resolve("baseline", name), ItemBaseline)]


@pytest.fixture
def split(random_data: Data) -> Split:
    return random_data(users=50, items=30, density=0.25).split(test=0.2, valid=0.1, seed=1)


def test_the_names() -> None:
    assert sorted(NAMES) == ["als", "ease", "itemknn", "popularity", "rp3beta"]
    assert OF_ITEMS


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_baseline_is_the_same(split: Split, tmp_path: Path, name: str) -> None:
    model = Recommender(baseline=name, k=5).fit(split.train, split.valid)
    assert model.fitted_model().metadata["valid"]["recall@5"] > 0
    model.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    assert again.config == model.config
    assert again.fitted_model().fingerprint() == model.fitted_model().fingerprint()
    for ask in (
        {},
        {"history": split.train.item_ids.ids[:3]},
        {"users": split.train.user_ids.ids[:2], "k": 7},
    ):
        assert again.recommend(**ask).equals(model.recommend(**ask))
    assert again.evaluate(split.test, k=5).metrics == model.evaluate(split.test, k=5).metrics
    rows = write_lists(again, tmp_path / "lists.parquet", k=5)["rows"]
    everybody = model.recommend(k=5)
    assert rows == len(everybody)
    written = pl.read_parquet(tmp_path / "lists.parquet")
    assert written.cast(dict(everybody.schema)).equals(everybody)
    assert "<!doctype html>" in run_report(again, split.test)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_has_is_not_recommended(split: Split, name: str) -> None:
    model = Recommender(baseline=name, k=30).fit(split.train, split.valid)
    user = split.train.user_ids.ids[0]
    found = set(model.recommend([user])["item_id"].to_list())
    assert not found & set(model.fitted_model().seen.items_of(user).to_list())


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_offered_what_is_known_of_them(split: Split, tmp_path: Path, name: str) -> None:
    model = Recommender(baseline=name, k=30).fit(split.train, split.valid, known=split.test)
    plain = Recommender(baseline=name, k=30).fit(split.train, split.valid)
    assert model.evaluate(split.test, k=5).metrics == plain.evaluate(split.test, k=5).metrics
    model.save(tmp_path / "run")
    everything = split.train.union(split.valid).union(split.test)
    for one in (model, Recommender.load(tmp_path / "run"), plain.add_known(split.test)):
        assert one.fitted_model().fingerprint() == model.fitted_model().fingerprint()
        write_lists(one, tmp_path / "lists.csv", k=30, overwrite=True)
        for lists in (one.recommend(), pl.read_csv(tmp_path / "lists.csv")):
            offered = dict(lists.group_by("user_id").agg("item_id").iter_rows())
            for user in split.train.user_ids.ids.to_list():
                assert not set(offered[user]) & set(everything.items_of(user).to_list())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", ["train+valid", "all"])
def test_a_refit_is_a_fit_on_the_joined_data(split: Split, tmp_path: Path, name: str, on: RefitOn) -> None:
    assert split.valid is not None
    model = Recommender(baseline=name, k=5).fit(
        split.train, split.valid, known=split.test, run=tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()  # nothing was written there but the lock
    chosen = model.fitted_model().metadata
    assert chosen["trained_on"] == {"train": len(split.train)}
    model.save(tmp_path / "run")
    model = Recommender.load(tmp_path / "run").refit(on, run=tmp_path / "run", resume=True)
    joined = split.train.union(split.valid)
    joined = joined.union(split.test) if on == "all" else joined
    alone = Recommender(baseline=name, k=5).fit(joined, known=None if on == "all" else split.test)
    assert model.fitted_model().fingerprint() == alone.fitted_model().fingerprint()
    counts = {"train": len(split.train), "valid": len(split.valid), "test": len(split.test)}
    counts = counts if on == "all" else {part: counts[part] for part in ("train", "valid")}
    metadata = model.fitted_model().metadata
    assert metadata["trained_on"] == counts
    assert metadata["chosen_from"]["valid"] == chosen["valid"]
    if on == "all":
        with pytest.raises(ArgumentError, match="fitted on these interactions"):
            model.evaluate(split.test, k=5)
        assert "chosen from" in run_report(model, None)
    else:
        assert model.evaluate(split.test, k=5).metrics == alone.evaluate(split.test, k=5).metrics


def test_a_refit_without_validation_is_refused(split: Split) -> None:
    with pytest.raises(ArgumentError, match="no validation part"):
        Recommender(baseline="ease", k=5).fit(split.train).refit()


def test_a_fit_into_a_folder_in_use_is_refused(split: Split, tmp_path: Path) -> None:
    """Of another process: within one, whoever holds a lock may take it again."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        model = Recommender(baseline="popularity", k=5)
        with pytest.raises(InUseError):
            model.fit(split.train, run=tmp_path / "run")
        assert model.model is None
        model.fit(split.train)
        with pytest.raises(InUseError):
            model.save(tmp_path / "run")
        other.communicate("go on\n")
    model.save(tmp_path / "run")


_HOLD_LOCK = """
import sys
from pathlib import Path
from talos.model.store import lock_run
with lock_run(Path(sys.argv[1]), "testing"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_popularity_is_what_every_report_shows(split: Split) -> None:
    model = Recommender(baseline="popularity", k=5).fit(split.train, split.valid)
    shown = popularity_report(split.train, split.test, seen=model.fitted_model().seen, ks=[5])
    assert model.evaluate(split.test, k=5).metrics == shown.metrics


@pytest.mark.parametrize("name", [name for name in NAMES if name != "popularity"])
def test_a_known_user_by_history_gets_the_same_list(random_data: Data, name: str) -> None:
    data = random_data(users=60, items=30, density=0.25)
    options = {"dim": 4, "sweeps": 60} if name == "als" else {}
    model = Recommender(baseline=name, k=5, **options).fit(data)
    user = data.user_ids.ids[3]
    theirs = model.recommend([user])["item_id"].to_list()
    assert model.recommend(history=data.items_of(user))["item_id"].to_list() == theirs


def test_items_bought_together_are_similar(split: Split) -> None:
    data = Interactions.from_ids(
        [u for u in range(20) for _ in range(2)], [i for u in range(20) for i in (u % 4, u % 4 + 4)]
    )
    for name in NAMES:
        model = Recommender(baseline=name, k=3, **({"dim": 4} if name == "als" else {})).fit(data)
        if name == "popularity":
            with pytest.raises(ArgumentError, match="say nothing about similar items"):
                model.similar_items(1)
        else:
            assert model.similar_items(1, k=1)["item_id"].to_list() == [5]


@pytest.mark.parametrize("name", OF_ITEMS)
def test_an_explanation_has_the_shares_of_the_weights(split: Split, name: str) -> None:
    model = Recommender(baseline=name, k=5).fit(split.train)
    user = split.train.user_ids.ids[2]
    best = model.recommend([user], k=1)
    parts = model.explain(user, best["item_id"][0])
    fitted = model.fitted_model()
    assert isinstance(fitted.scored_by, ItemWeights)
    (target,) = split.train.item_ids.encode([best["item_id"][0]])
    column = fitted.scored_by.column(int(target)).double().clamp(min=0)
    own = {
        item: float(column[int(split.train.item_ids.encode([item])[0])])
        for item in split.train.items_of(user)
    }
    want = {item: weight / sum(own.values()) for item, weight in own.items() if weight > 0}
    assert dict(parts.iter_rows()) == pytest.approx(want)
    assert parts["contribution"].is_sorted(descending=True)


def test_what_makes_no_sense_is_one_clear_error(split: Split, tmp_path: Path) -> None:
    model = Recommender(baseline="ease", k=5).fit(split.train)
    for kind in ("faiss", "onnx"):
        pytest.importorskip(kind)
        with pytest.raises(
            ArgumentError, match="'ease': scores with weights between items and has no vectors"
        ):
            export(model, kind, tmp_path / kind)
        assert not (tmp_path / kind).exists()
    with pytest.raises(ArgumentError, match="'ease' was not trained and has no loss"):
        model.partial_fit(split.test)
    with pytest.raises(ArgumentError, match="has no vectors"):
        model.similar_users(split.train.user_ids.ids[0])


@pytest.mark.parametrize("name", OF_ITEMS)
def test_weights_between_items_are_exported(split: Split, tmp_path: Path, name: str) -> None:
    model = Recommender(baseline=name, k=5).fit(split.train)
    weights = model.fitted_model().scored_by
    assert isinstance(weights, ItemWeights)
    export(model, "npz", tmp_path / "weights.npz")
    with np.load(tmp_path / "weights.npz", allow_pickle=False) as arrays:
        if "item_weights" in arrays:
            found = arrays["item_weights"]
        else:
            parts = [arrays[f"item_weights_{part}"] for part in ("values", "indices", "indptr")]
            found = scipy.sparse.csr_array(tuple(parts)).toarray()
    np.testing.assert_array_equal(found, weights.dense().numpy())
    export(model, "parquet", tmp_path / "weights")
    items = pl.read_parquet(tmp_path / "weights" / "items.parquet")
    for row, stored in enumerate(items.iter_rows(named=True)):
        others = stored.get("others", range(len(items)))
        dense = np.zeros(len(items), np.float32)
        dense[list(others)] = stored["weights"]
        np.testing.assert_array_equal(dense, found[row])


def test_a_baseline_of_vectors_is_exported(split: Split, tmp_path: Path) -> None:
    model = Recommender(baseline="als", dim=8).fit(split.train)
    assert export(model, "npz", tmp_path / "vectors.npz")["dim"] == 8


def test_objects_classes_and_options() -> None:
    assert Recommender(baseline=ItemKNN(neighbours=7)).config.as_dict()["baseline"] == {
        "name": "itemknn",
        "neighbours": 7,
    }
    assert Recommender(baseline=ItemKNN).config.baseline == Recommender(baseline="itemknn").config.baseline
    assert Recommender(baseline="als", dim=8).config.baseline.options == {"dim": 8}  # type: ignore[union-attr]


def test_an_option_that_it_does_not_have(split: Split) -> None:
    with pytest.raises(ConfigError, match=r"regularisation: no such option \(did you mean 'regularization'"):
        Recommender(baseline="ease", regularisation=5).fit(split.train)


def test_seeds_matter_to_als_alone(split: Split) -> None:
    for name in NAMES:
        first, second = (
            Recommender(baseline=name, k=5, seed=seed).fit(split.train).fitted_model() for seed in (0, 1)
        )
        assert (first.fingerprint() != second.fingerprint()) == registry.resolve("baseline", name).random


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline.name": "ease", "baseline.regularisation": 5}, "regularisation: the baseline 'ease' has no such"),
        ({"baseline.name": "ease", "baseline.regularization": "5"}, "regularization: '5'; expected a valid number"),
        ({"baseline.name": "ease", "baseline.regularization": -5.0}, "regularization: got -5"),
        ({"baseline.name": "itemknn", "baseline.neighbours": True}, "neighbours: True; expected a valid integer"),
        ({"baseline.name": "eese"}, "baseline: 'eese' is not known"),
        ({"baseline.name": "ease", "device": "meta"}, "device: 'meta' cannot be used"),
    ],
)  # fmt: skip
def test_a_config_is_checked_without_data(options: dict[str, object], message: str) -> None:
    with pytest.raises((ArgumentError, ConfigError), match=f"^{message}"):
        registry.check(RunConfig().with_values(options))


@pytest.mark.parametrize("name", NAMES)
def test_every_default_passes_the_check(name: str) -> None:
    registry.check(RunConfig().with_values({"baseline.name": name}))


# ------------------------------------------------------------------------------------- configs


def test_a_config_round_trips_and_says_nothing_of_training() -> None:
    config = RunConfig().with_values(
        {"k": 5, "baseline.name": "als", "baseline.dim": 8, "training.metric": "ndcg"}
    )
    assert config.as_dict() == {
        "k": 5, "seed": 0, "device": "cpu", "training": {"metric": "ndcg"}, "baseline": {"name": "als", "dim": 8},
    }  # fmt: skip
    assert RunConfig.from_dict(config.as_dict()) == config
    assert "baseline" not in RunConfig().as_dict()


def test_a_config_round_trips_through_toml(tmp_path: Path) -> None:
    config = RunConfig().with_values({"baseline.name": "ease", "baseline.regularization": 30.0})
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert RunConfig.from_toml(tmp_path / "run.toml") == config


@pytest.mark.parametrize(
    "key",
    [
        "loss.tau",
        "loss.name",
        "backbone.dim",
        "optimizer.lr",
        "training.epochs",
        "negatives",
        "events.half_life",
    ],
)
def test_settings_of_training_are_refused(key: str) -> None:
    place = key if key.startswith("training") else key.partition(".")[0]
    with pytest.raises(ConfigError, match=f"^{place}: has no effect with a baseline"):
        RunConfig().with_values({"baseline.name": "ease", key: 1})


def test_a_trained_config_turns_into_a_baseline() -> None:
    trained = RunConfig().with_values({"k": 7, "loss.tau": 0.2, "training.epochs": 3})
    assert trained.with_values({"baseline.name": "ease"}).as_dict() == {
        "k": 7, "seed": 0, "device": "cpu", "training": {"metric": "precision"}, "baseline": {"name": "ease"},
    }  # fmt: skip


# ------------------------------------------------------------------------------------- damaged runs


def _change(run: Path, **tensors: torch.Tensor | None) -> None:
    """Replace or remove tensors of a run, with a checksum that fits."""
    path = run / "model.safetensors"
    stored = {**load_file(path), **tensors}
    save_file({name: one for name, one in stored.items() if one is not None}, path)
    facts = unseal(json.loads((run / "model.json").read_text()))
    facts["checksums"]["model.safetensors"] = checksum_of(path)
    (run / "model.json").write_text(sealed_text(facts))


@pytest.fixture
def sparse_run(split: Split, tmp_path: Path) -> Path:
    Recommender(baseline="itemknn", k=5).fit(split.train).save(tmp_path / "run")
    return tmp_path / "run"


def test_a_run_of_weights_has_no_vectors(sparse_run: Path) -> None:
    facts = json.loads((sparse_run / "model.json").read_text())
    assert "dim" not in facts["shape"]
    assert unseal(facts)
    assert not Recommender.load(sparse_run).fitted_model().has_vectors


@pytest.mark.parametrize(("before", "after"), [("ease", "als"), ("als", "itemknn"), ("itemknn", "ease")])
def test_a_save_over_another_kind_of_model_is_one_swap(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    old, new = (Recommender(baseline=name, k=5).fit(split.train, split.valid) for name in (before, after))
    old.save(tmp_path)

    def loaded() -> str:
        return Recommender.load(tmp_path).fitted_model().fingerprint()

    def stop(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(store, "replace_text", stop)  # all files are written, model.json is not
        with pytest.raises(TalosError, match="no space left"):
            new.save(tmp_path)
    assert loaded() == old.fitted_model().fingerprint()
    with monkeypatch.context() as patched:
        patched.setattr(store, "_tidy", lambda folder: None)  # model.json is written, files are not renamed
        new.save(tmp_path)
    assert loaded() == new.fitted_model().fingerprint()
    new.save(tmp_path)
    assert loaded() == new.fitted_model().fingerprint()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((*store.FILES, "model.json"))


def test_a_changed_number_in_the_metadata_is_noticed(sparse_run: Path) -> None:
    text = (sparse_run / "model.json").read_text()
    (sparse_run / "model.json").write_text(text.replace('"epoch": 0', '"epoch": 3'))
    with pytest.raises(DataError, match="differs from its own checksum"):
        Recommender.load(sparse_run)


def test_damaged_weights_are_refused(sparse_run: Path) -> None:
    tensors = load_file(sparse_run / "model.safetensors")
    ends, items, values = (tensors[f"item_weights.{name}"] for name in ("indptr", "indices", "values"))
    broken: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"item_weights.indices": items + 100}, "an item that does not exist"),
        ({"item_weights.indptr": ends.flip(0).contiguous()}, "do not belong together"),
        ({"item_weights.values": values[:-1].clone()}, "expected .* as many as indices"),
        ({"item_weights.values": values.clone().fill_(float("nan"))}, "not finite"),
        ({"item_weights.values": values.double()}, "expected F32"),
        ({"item_weights.values": None}, "expected all of indptr"),
        (
            {"item_weights.values": None, "item_weights.indptr": None, "item_weights.indices": None},
            "no item_weights",
        ),
        ({"item_weights": torch.zeros(3, 3)}, "expected F32 of shape"),
        ({"user_vectors": torch.zeros(3, 3)}, "no such tensor"),
    ]
    for tensors_now, message in broken:
        _change(sparse_run, **tensors_now)
        with pytest.raises(DataError, match=message):
            Recommender.load(sparse_run)
        _change(sparse_run, **{**tensors, "item_weights": None, "user_vectors": None})
    Recommender.load(sparse_run)


def test_dense_weights_of_another_size_are_refused(split: Split, tmp_path: Path) -> None:
    Recommender(baseline="ease", k=5).fit(split.train).save(tmp_path)
    dense = load_file(tmp_path / "model.safetensors")["item_weights"]
    _change(tmp_path, item_weights=dense[:, :-1].contiguous())
    with pytest.raises(DataError, match="expected F32 of shape"):
        Recommender.load(tmp_path)
    _change(tmp_path, item_weights=dense)
    assert np.array_equal(load_file(tmp_path / "model.safetensors")["item_weights"].numpy(), dense.numpy())
    Recommender.load(tmp_path)
