from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.data.splits import Split, split
from talos.errors import ArgumentError, ConfigError, DataError, TalosError
from talos.files import checksum_of, sealed_text
from talos.model.recommender import Recommender
from talos.model.store import FORMAT, load_model

Make = Callable[..., Interactions]


@pytest.fixture(scope="module")
def parts() -> Split:
    rng = np.random.default_rng(0)
    liked = rng.random((30, 20)) < 0.3
    liked[np.arange(30), np.arange(30) % 20] = True  # everybody and everything occurs
    pairs = np.argwhere(liked)
    data = Interactions.from_ids(
        [f"u{u:02d}" for u in pairs[:, 0]],
        [f"i{i:02d}" for i in pairs[:, 1]],
        titles=[f"T{i}" for i in pairs[:, 1]],
    )
    return split(data, seed=0)


@pytest.fixture(scope="module")
def model(parts: Split) -> Recommender:
    return Recommender(k=3, dim=8, epochs=4, tau=0.2).fit(parts.train, parts.valid)


def test_recommendations_are_the_callers_ids_unseen_and_ranked(model: Recommender, parts: Split) -> None:
    frame = model.recommend(["u03", "u01"], k=5)
    assert frame.columns == ["user_id", "item_id", "score", "rank"]
    assert frame["user_id"].to_list() == ["u03"] * 5 + ["u01"] * 5
    assert frame["rank"].to_list() == [1, 2, 3, 4, 5] * 2
    known = parts.train.union(parts.valid) if parts.valid is not None else parts.train
    for user in ("u03", "u01"):
        mine = frame.filter(pl.col("user_id") == user)
        assert not set(mine["item_id"]) & set(known.items_of(user))
        assert mine["score"].is_sorted(descending=True)
    everything = model.recommend(["u03"], k=20, filter_seen=False)
    assert sorted(everything["item_id"].to_list()) == parts.train.item_ids.ids.to_list()
    left = model.recommend(["u03"], k=20)
    assert len(left) == 20 - len(known.items_of("u03"))
    assert len(model.recommend()) == 30 * 3


def test_saved_and_loaded_gives_the_same_lists(model: Recommender, parts: Split, tmp_path: Path) -> None:
    model.save(tmp_path / "run", remark="kept")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.config == model.config
    assert loaded.recommend().equals(model.recommend())
    assert loaded.evaluate(parts.test, k=3).metrics == model.evaluate(parts.test, k=3).metrics
    assert loaded.model is not None
    assert loaded.model.metadata["remark"] == "kept"
    assert loaded.model.train.item_titles is not None
    assert (tmp_path / "run" / "model.safetensors").stat().st_mode & 0o044


def test_evaluation_matches_ids_and_counts_the_unknown(model: Recommender, parts: Split) -> None:
    own = model.evaluate(parts.test, k=3)
    frame = parts.test.to_polars()
    elsewhere = Interactions.from_ids([*frame["user_id"], "stranger"], [*frame["item_id"], "i01"])
    other = model.evaluate(elsewhere, k=3)
    assert other.metrics == pytest.approx(own.metrics)
    assert "1 test interactions of unknown users or items" in other.notes[0]
    assert model.evaluate(parts.test, k=3, dialect="paper").metrics != own.metrics


def test_options_find_their_place() -> None:
    config = Recommender(k=7, loss="sl", tau=0.3, dim=4, lr=0.5, epochs=9, seed=3).config
    assert (config.k, config.seed, config.loss.name, config.loss.options) == (7, 3, "sl", {"tau": 0.3})
    assert config.backbone.options == {"dim": 4}
    assert (config.optimizer.lr, config.training.epochs) == (0.5, 9)
    assert Recommender(**{"optimizer.weight_decay": 0.1}).config.optimizer.weight_decay == 0.1
    with pytest.raises(ConfigError, match="no such section"):
        Recommender(**{"optimiser.lr": 0.1})


def test_before_fit_and_unknown_users(model: Recommender, parts: Split) -> None:
    with pytest.raises(ArgumentError, match="not fitted"):
        Recommender().recommend(["u01"])
    with pytest.raises(ArgumentError, match="no user 'nobody'"):
        model.recommend(["u01", "nobody"])
    with pytest.raises(ArgumentError, match="k: 21"):
        model.recommend(["u01"], k=21)


@pytest.fixture
def saved(model: Recommender, tmp_path: Path) -> Path:
    model.save(tmp_path / "run")
    return tmp_path / "run"


def resave(folder: Path, **changes: torch.Tensor) -> None:
    """Change tensors and make the checksum right again, as somebody with bad intentions would."""
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | changes, folder / "model.safetensors")
    facts = json.loads((folder / "model.json").read_text())
    facts["checksums"]["model.safetensors"] = checksum_of(folder / "model.safetensors")
    (folder / "model.json").write_text(sealed_text(facts))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_vectors": torch.full((30, 8), torch.nan)}, "not finite"),
        ({"user_vectors": torch.ones(29, 8)}, r"user_vectors is F32 of shape \[29, 8\]"),
        ({"user_vectors": torch.ones(30, 8, dtype=torch.float64)}, "user_vectors is F64"),
        ({"train.indices": torch.tensor([99], dtype=torch.int32)}, "do not belong together"),
        ({"../../evil": torch.ones(1)}, "expected no such"),
    ],
)
def test_hostile_tensors_are_refused(saved: Path, changes: dict[str, torch.Tensor], message: str) -> None:
    resave(saved, **changes)
    with pytest.raises(DataError, match=message):
        load_model(saved)


def test_hostile_interactions_are_refused(saved: Path) -> None:
    indices = load_file(saved / "model.safetensors")["train.indices"]
    resave(saved, **{"train.indices": torch.full_like(indices, 20)})
    with pytest.raises(DataError, match="item that does not exist"):
        load_model(saved)
    resave(saved, **{"train.indices": torch.zeros_like(indices)})
    with pytest.raises(DataError, match="are not ascending"):
        load_model(saved)


def test_a_huge_header_is_not_allocated(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes((1 << 50).to_bytes(8, "little") + b"{}")
    facts = json.loads((saved / "model.json").read_text())
    facts["checksums"]["model.safetensors"] = checksum_of(path)
    (saved / "model.json").write_text(sealed_text(facts))
    with pytest.raises(DataError, match="claims a header"):
        load_model(saved)


def test_newer_and_missing_formats(saved: Path) -> None:
    facts = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps({**facts, "format": FORMAT + 1}))
    with pytest.raises(DataError, match="install a newer"):
        load_model(saved)
    (saved / "model.json").write_text("{}")
    with pytest.raises(DataError, match="no format number"):
        load_model(saved)


def test_damaged_files_load_identically_or_raise_our_error(saved: Path, model: Recommender) -> None:
    wanted = model.recommend()
    rng = random.Random(0)
    for name in ("model.safetensors", "model.json", "users.parquet", "items.parquet"):
        good = (saved / name).read_bytes()
        for _ in range(25):
            bad = bytearray(good)
            if rng.random() < 0.3:
                del bad[rng.randrange(len(bad)) :]
            for _ in range(rng.randrange(3)):
                if bad:
                    bad[rng.randrange(len(bad))] = rng.randrange(256)
            (saved / name).write_bytes(bytes(bad))
            try:
                assert Recommender.load(saved).recommend().equals(wanted)
            except TalosError:
                pass
        (saved / name).write_bytes(good)
    assert Recommender.load(saved).recommend().equals(wanted)


def test_histories_candidates_and_exclusions(model: Recommender) -> None:
    lists = model.recommend(history=["i01", "i02"], k=4)
    assert set(lists["user_id"]) == {"history"}
    assert not {"i01", "i02"} & set(lists["item_id"])
    assert {"i01", "i02"} & set(model.recommend(history=["i01", "i02"], k=20, filter_seen=False)["item_id"])
    assert set(model.recommend(["u01"], k=5, candidates=["i03", "i04"], filter_seen=False)["item_id"]) == {
        "i03",
        "i04",
    }
    assert "i03" not in set(model.recommend(["u01"], k=20, exclude=["i03"], filter_seen=False)["item_id"])
    assert len(model.recommend(history=[], k=3)) == 3
    with pytest.raises(ArgumentError, match="history: no item 'zz'"):
        model.recommend(history=["i01", "zz"])
    assert model.recommend(history=["i01", "zz"], k=3, on_unknown="skip").equals(
        model.recommend(history=["i01"], k=3)
    )
    with pytest.raises(ArgumentError, match="both given"):
        model.recommend(["u01"], history=["i01"])
    with pytest.raises(ArgumentError, match="candidates: no item 'zz'"):
        model.recommend(["u01"], candidates=["zz"])


def test_many_histories_are_as_one_by_one(model: Recommender) -> None:
    people = Interactions.from_ids(["x", "x", "u01", "y"], ["i01", "i02", "i07", "zz"])
    lists = model.recommend(history=people, k=4, on_unknown="skip")
    assert lists["user_id"].to_list() == ["u01"] * 4 + ["x"] * 4 + ["y"] * 4
    for name, items in (("x", ["i01", "i02"]), ("u01", ["i07"]), ("y", [])):
        alone = model.recommend(history=items, k=4)
        mine = lists.filter(pl.col("user_id") == name)
        assert mine["item_id"].to_list() == alone["item_id"].to_list()
        assert mine["score"].to_list() == pytest.approx(alone["score"].to_list(), abs=1e-5)
    with pytest.raises(ArgumentError, match="history: no item 'zz'"):
        model.recommend(history=people)


def test_unknown_users(model: Recommender, parts: Split) -> None:
    assert model.recommend(["u01", "zz"], k=2, on_unknown="skip")["user_id"].to_list() == ["u01"] * 2
    mixed = model.recommend(["zz", "u01", "yy"], k=2, on_unknown="popular")
    assert mixed["user_id"].to_list() == ["zz"] * 2 + ["u01"] * 2 + ["yy"] * 2
    most = parts.train.item_ids.ids[int(np.argmax(parts.train.item_degrees))]
    assert mixed.filter(pl.col("user_id") == "zz")["item_id"][0] == most


def test_similar(model: Recommender, parts: Split) -> None:
    similar = model.similar_items("i05", k=3)
    assert similar.columns == ["item_id", "score", "rank"]
    assert "i05" not in set(similar["item_id"])
    assert similar["score"].is_sorted(descending=True)
    assert model.similar_users("u05", k=3).columns == ["user_id", "score", "rank"]
    with pytest.raises(ArgumentError, match="no item 'zz'"):
        model.similar_items("zz")


def test_pandas_frames(model: Recommender) -> None:
    pytest.importorskip("pandas")
    frame = model.recommend(["u01"], k=2, frame="pandas")
    assert list(frame.columns) == ["user_id", "item_id", "score", "rank"]
    with pytest.raises(ArgumentError, match="polars or pandas"):
        model.recommend(["u01"], frame="arrow")  # type: ignore[arg-type]


def test_validation_from_a_file_of_its_own_is_matched_by_id(tmp_path: Path) -> None:
    """The same validation pairs over another vocabulary give the same figures; alien ids are refused."""
    split = synthetic(users=40, items=30, interactions=500, seed=1).split(seed=0)
    assert split.valid is not None
    frame = split.valid.to_polars()
    apart = Interactions.from_ids(
        frame["user_id"], frame["item_id"]
    )  # fewer users and items, so other positions
    assert apart.num_users < split.train.num_users or apart.num_items < split.train.num_items
    fits = [
        Recommender(k=5, dim=4, epochs=3, evaluate_every=1).fit(split.train, valid)
        for valid in (split.valid, apart)
    ]
    assert fits[0].fitted_model().metadata["valid"] == fits[1].fitted_model().metadata["valid"]
    alien = Interactions.from_ids([f"u{user}" for user in frame["user_id"]], frame["item_id"])
    with pytest.raises(DataError, match="user ids are strings such as"):
        Recommender(k=5, dim=4, epochs=1).fit(split.train, alien)
