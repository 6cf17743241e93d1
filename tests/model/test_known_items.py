"""Lists never offer what users are known to have, whatever the model was trained on; metrics mask as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.torch import load_file

from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos.evaluation.evaluate import evaluate_lists
from talos.exports import export, write_lists
from talos.model.recommender import Recommender

OPTIONS = {"k": 3, "dim": 8, "epochs": 4, "tau": 0.2}


@pytest.fixture(scope="module")
def parts() -> Split:
    rng = np.random.default_rng(0)
    liked = rng.random((30, 20)) < 0.4
    liked[np.arange(30), np.arange(30) % 20] = True  # everybody and everything occurs
    pairs = np.argwhere(liked)
    return Interactions.from_ids(
        [f"u{u:02d}" for u in pairs[:, 0]], [f"i{i:02d}" for i in pairs[:, 1]]
    ).split()


@pytest.fixture(scope="module")
def model(parts: Split) -> Recommender:
    return Recommender(**OPTIONS).fit(parts.train, parts.valid, known=parts.test)


def everything(parts: Split) -> set[tuple[str, str]]:
    return {row for part in parts.parts.values() for row in part.to_polars().rows()}


def offered(lists: pl.DataFrame) -> set[tuple[str, str]]:
    return set(lists.select("user_id", "item_id").rows())


def test_without_known_items_the_test_part_is_offered(parts: Split) -> None:
    """The fault that `known` mends, so that the tests below can fail."""
    plain = Recommender(**OPTIONS).fit(parts.train, parts.valid)
    assert offered(plain.recommend(k=20)) & everything(parts)


def test_no_list_offers_what_a_user_has(model: Recommender, parts: Split) -> None:
    lists = model.recommend(k=20)
    assert not offered(lists) & everything(parts)
    assert len(lists) == 30 * 20 - len(everything(parts))  # all other items are still offered
    assert offered(model.recommend(["u03"], k=20)) == {pair for pair in offered(lists) if pair[0] == "u03"}
    assert len(model.recommend(k=20, filter_seen=False)) == 30 * 20


@pytest.mark.parametrize("dialect", ["standard", "paper"])
def test_metrics_mask_as_if_nothing_more_were_known(model: Recommender, parts: Split, dialect: str) -> None:
    plain = Recommender(**OPTIONS).fit(parts.train, parts.valid)
    wanted = plain.evaluate(parts.test, k=3, dialect=dialect)  # type: ignore[arg-type]
    found = model.evaluate(parts.test, k=3, dialect=dialect)  # type: ignore[arg-type]
    assert found.metrics == wanted.metrics
    assert found.metrics["recall@3"] > 0


def test_a_saved_run_keeps_them_and_one_without_them_can_be_told(
    model: Recommender, parts: Split, tmp_path: Path
) -> None:
    model.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.recommend(k=20).equals(model.recommend(k=20))
    assert len(load_file(tmp_path / "run" / "model.safetensors")["test.indices"]) == len(parts.test)
    Recommender(**OPTIONS).fit(parts.train, parts.valid).save(tmp_path / "untold")
    untold = Recommender.load(tmp_path / "untold")
    assert untold.fitted_model().held_out is None
    assert offered(untold.recommend(k=20)) & everything(parts)
    assert not offered(untold.add_known(parts.test).recommend(k=20)) & everything(parts)
    untold.save(tmp_path / "told")
    assert not offered(Recommender.load(tmp_path / "told").recommend(k=20)) & everything(parts)


def test_lists_for_the_test_part_leave_out_what_was_learnt_alone(
    model: Recommender, parts: Split, tmp_path: Path
) -> None:
    learnt = {*parts.train.to_polars().rows(), *(parts.valid or parts.train).to_polars().rows()}
    lists = model.recommend(k=20, for_test=True)
    assert len(lists) == 30 * 20 - len(learnt)
    assert not offered(lists) & learnt
    write_lists(model, tmp_path / "lists.parquet", k=3, for_test=True)
    report = evaluate_lists(pl.read_parquet(tmp_path / "lists.parquet"), parts.test, ks=[3])
    assert report.metrics["recall@3"] == pytest.approx(model.evaluate(k=3).metrics["recall@3"])
    assert report.metrics["recall@3"] > 0


def test_a_run_is_measured_without_its_data(model: Recommender, parts: Split, tmp_path: Path) -> None:
    wanted = model.evaluate(parts.test, k=3).metrics
    model.save(tmp_path / "run")
    assert Recommender.load(tmp_path / "run").evaluate(k=3).metrics == wanted
    plain = Recommender(**OPTIONS).fit(parts.train, parts.valid)
    with pytest.raises(ArgumentError, match="the model has no test part"):
        plain.evaluate(k=3)
    lists = plain.recommend(k=20)
    assert plain.evaluate(parts.test, k=3).metrics == wanted
    assert plain.recommend(k=20).equals(lists)  # measured on, and not known
    plain.save(tmp_path / "plain")
    again = Recommender.load(tmp_path / "plain")
    assert again.evaluate(k=3).metrics == wanted
    assert again.recommend(k=20).equals(lists)


def test_lists_and_exports_leave_them_out(model: Recommender, parts: Split, tmp_path: Path) -> None:
    write_lists(model, tmp_path / "lists.parquet", k=20)
    assert not offered(pl.read_parquet(tmp_path / "lists.parquet")) & everything(parts)
    write_lists(model, tmp_path / "all.parquet", k=20, filter_seen=False)
    assert len(pl.read_parquet(tmp_path / "all.parquet")) == 30 * 20
    export(model, "npz", tmp_path / "vectors.npz")
    with np.load(tmp_path / "vectors.npz", allow_pickle=False) as arrays:
        assert len(arrays["seen_indices"]) == len(everything(parts))


def test_an_onnx_graph_leaves_them_out(model: Recommender, parts: Split, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed (extra `onnx`)")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `onnx`)")
    export(model, "onnx", tmp_path / "graph", own_ids=True, k=20)
    session = runtime.InferenceSession(
        str(tmp_path / "graph" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    users = parts.train.user_ids.ids.to_list()
    (items,) = session.run(["item_ids"], {"user_ids": np.array(users, object)})
    found = {(user, item) for user, row in zip(users, items, strict=True) for item in row if item}
    assert found
    assert not found & everything(parts)


def test_an_unfinished_export_is_not_continued_with_other_known_items(
    model: Recommender, parts: Split
) -> None:
    plain = Recommender(**OPTIONS).fit(parts.train, parts.valid)
    assert plain.fitted_model().fingerprint() != model.fitted_model().fingerprint()


def test_known_items_are_matched_by_id_and_without_what_was_learnt(parts: Split) -> None:
    frame = parts.test.to_polars()
    own = parts.train.to_polars()[:5]
    known = Interactions.from_ids(
        [*frame["user_id"], *own["user_id"], "stranger"], [*frame["item_id"], *own["item_id"], "i01"]
    )
    model = Recommender(**OPTIONS).fit(parts.train, parts.valid, known=known).fitted_model()
    assert model.held_out is not None
    assert sorted(model.held_out.to_polars().rows()) == sorted(frame.rows())
    nothing = Recommender(**OPTIONS).fit(parts.train, known=parts.train).fitted_model()
    assert nothing.held_out is None


def test_an_update_keeps_them(parts: Split) -> None:
    model = Recommender(**OPTIONS).fit(parts.train, parts.valid, known=parts.test)
    clicked = parts.test.to_polars()[0]  # one of them arrives as a new interaction
    since = Interactions.from_ids(
        [clicked["user_id"][0], "a-new-user", "a-new-user"], [clicked["item_id"][0], "i01", "a-new-item"]
    )
    model.partial_fit(since)
    lists = offered(model.recommend(k=21))
    assert not lists & (everything(parts) | set(since.to_polars().rows()))
    assert len(lists) == 31 * 21 - len(everything(parts)) - 2
    held_out = model.fitted_model().held_out
    assert held_out is not None
    assert len(held_out) == len(parts.test) - 1


def test_a_folded_in_history_is_its_own(model: Recommender, parts: Split) -> None:
    """Somebody with the id of a known user is somebody else: only the history is masked."""
    history = Interactions.from_ids(["u00", "u00"], ["i01", "i02"])
    lists = model.recommend(history=history, k=20)
    assert len(lists) == 18
    assert not {"i01", "i02"} & set(lists["item_id"])
