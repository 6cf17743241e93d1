"""Vectors, Faiss and ONNX exports agree with the model, or nothing is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from talos.errors import ArgumentError, DataError, MissingExtraError, TalosError
from talos.evaluation.ranking import TopK, top_k
from talos.exports import export, faiss_index, folders, formats, onnx_graph
from talos.model.model import Model, Vectors

Make = Callable[..., Model]


@pytest.fixture
def faiss() -> Any:
    try:
        return faiss_index.load_faiss()
    except MissingExtraError:
        pytest.skip("faiss is not installed (extra `faiss`)")


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("onnx", reason="onnx is not installed (extra `onnx`)")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `onnx`)")


def exact(model: Model, k: int, users: Any = None, *, masked: bool) -> TopK:
    return top_k(model.scorer(), users, k=k, seen=model.seen if masked else None)


@pytest.mark.parametrize("strings", [True, False])
def test_parquet(make: Make, tmp_path: Path, strings: bool) -> None:
    model = make(strings=strings, titles=True)
    done = export(model, "parquet", tmp_path / "vectors")
    users = pl.read_parquet(tmp_path / "vectors" / "users.parquet")
    items = pl.read_parquet(tmp_path / "vectors" / "items.parquet")
    assert users["user_id"].equals(model.train.user_ids.ids)
    # one column more, for popularity: the first user has no events
    assert users["vector"].dtype == pl.Array(pl.Float32, 9)
    np.testing.assert_array_equal(users["vector"].to_numpy()[1:, :8], model.vectors.users.numpy()[1:])
    np.testing.assert_array_equal(items["vector"].to_numpy()[:, :8], model.vectors.items.numpy())
    assert users["vector"].to_list()[0] == [0.0] * 8 + [1.0]
    assert items.columns == ["item_id", "title", "vector"]
    assert users.columns == ["user_id", "vector", "threshold"]
    assert (done["users"], done["items"], done["dim"]) == (90, 40, 9)
    assert json.loads((tmp_path / "vectors" / "export.json").read_text())["format"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize("strings", [True, False])
def test_npz(make: Make, tmp_path: Path, strings: bool) -> None:
    model = make(strings=strings)
    export(model, "npz", tmp_path / "vectors")  # no suffix is added
    with np.load(tmp_path / "vectors", allow_pickle=False) as arrays:
        assert arrays["user_ids"].tolist() == model.train.user_ids.ids.to_list()
        assert arrays["item_ids"].tolist() == model.train.item_ids.ids.to_list()
        scores = arrays["user_vectors"] @ arrays["item_vectors"].T
        start, end = arrays["seen_indptr"][7:9]
        scores[7, arrays["seen_indices"][start:end]] = -np.inf
        assert scores[7].max() == exact(model, 1, [7], masked=True).scores[0, 0]
        assert arrays["thresholds"].shape == (90,)


def test_npz_refuses_ids_that_numpy_would_change(make: Make, tmp_path: Path) -> None:
    for name in ("zz\0", "z" * 10_000_000):
        model = make()
        model.train.user_ids.ids = pl.Series([*model.train.user_ids.ids[:-1], name])
        with pytest.raises(DataError, match="the format parquet takes any"):
            export(model, "npz", tmp_path / "vectors.npz")
    assert not list(tmp_path.iterdir())


def test_a_flat_index_is_exact(make: Make, tmp_path: Path, faiss: Any) -> None:
    model = make(titles=True)
    done = export(model, "faiss", tmp_path / "index", k=7)
    assert done["recall@7"] > 0.98  # equal scores may come in another order
    index = faiss.read_index(str(tmp_path / "index" / "index.faiss"))
    users = pl.read_parquet(tmp_path / "index" / "users.parquet")
    scores, _ = index.search(users["vector"].to_numpy(), 7)
    np.testing.assert_array_equal(scores, exact(model, 7, masked=False).scores)
    items = pl.read_parquet(tmp_path / "index" / "items.parquet")
    assert items["item_id"].equals(model.train.item_ids.ids)
    assert index.ntotal == 40


def test_approximate_indexes_say_what_they_miss(make: Make, tmp_path: Path, faiss: Any) -> None:
    model = make(users=50, items=2000)
    recalls = {}
    for index in ("hnsw", "ivf"):
        done = export(model, "faiss", tmp_path / index, index=index, k=10)
        found = faiss.read_index(str(tmp_path / index / "index.faiss"))
        _, items = found.search(model.dot_scores.user_vectors.numpy(), 10)
        recalls[index] = done["recall@10"]
        expected = exact(model, 10, masked=False)
        assert done["recall@10"] == pytest.approx(folders.recall(expected, items))
    assert recalls["hnsw"] > 0.8
    assert 0.2 < recalls["ivf"] <= 1


@pytest.mark.parametrize("strings", [True, False])
def test_onnx_gives_the_models_lists(make: Make, tmp_path: Path, runtime: Any, strings: bool) -> None:
    model = make(strings=strings)
    done = export(model, "onnx", tmp_path / "graph", k=6)
    assert done["identical_lists"] == 1.0  # equal scores are ordered by position there too
    session = runtime.InferenceSession(str(tmp_path / "graph" / "model.onnx"))
    for users in (np.arange(90), np.array([1]), np.array([0]), np.array([3, 3, 0, 1]), np.empty(0, np.int64)):
        for k in (None, 1, 40):
            given = {"users": users} | ({} if k is None else {"k": np.array([k])})
            items, scores = session.run(["items", "scores"], given)
            expected = exact(model, k or 6, users, masked=True)
            np.testing.assert_array_equal(items, expected.items)
            np.testing.assert_array_equal(scores, expected.scores)
    ids = pl.read_parquet(tmp_path / "graph" / "items.parquet")
    assert ids["item_id"].equals(model.train.item_ids.ids)


@pytest.mark.parametrize("strings", [True, False])
def test_onnx_with_the_callers_ids(make: Make, tmp_path: Path, runtime: Any, strings: bool) -> None:
    model = make(strings=strings)
    assert export(model, "onnx", tmp_path / "graph", own_ids=True)["identical_lists"] == 1.0
    session = runtime.InferenceSession(str(tmp_path / "graph" / "model.onnx"))
    kind, nothing = (object, "") if strings else (np.int64, -1)
    known = model.train.user_ids.ids.to_list()
    users = np.array([known[7], "nobody" if strings else 999, known[1]], kind)
    found, items, scores = session.run(["item_ids", "items", "scores"], {"user_ids": users})
    expected = exact(model, 5, [7, 1], masked=True)
    np.testing.assert_array_equal(items[[0, 2]], expected.items)
    np.testing.assert_array_equal(scores[[0, 2]], expected.scores)
    assert (items[1] == -1).all()
    assert (scores[1] == -np.inf).all()
    ids = [*model.train.item_ids.ids.to_list(), nothing]
    assert found.tolist() == [[ids[item] for item in row] for row in items]


def test_onnx_when_nobody_has_anything(make: Make, tmp_path: Path, runtime: Any) -> None:
    model = make(users=3)
    nothing = model.train.where(np.zeros(len(model.train), bool))
    bare = Model(
        scored_by=Vectors(model.vectors.users, model.vectors.items),
        train=nothing,
    )
    assert export(bare, "onnx", tmp_path / "graph")["k"] == 20
    session = runtime.InferenceSession(str(tmp_path / "graph" / "model.onnx"))
    items, _ = session.run(None, {"users": np.arange(3)})
    np.testing.assert_array_equal(items, exact(bare, 20, masked=False).items)


def test_a_large_graph_has_its_numbers_beside_it(
    make: Make, tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "_LARGEST_FILE", 1000)
    done = export(make(), "onnx", tmp_path / "graph")
    assert "model.onnx.data" in done["files"]
    moved = (tmp_path / "graph").rename(tmp_path / "elsewhere")
    items, _ = runtime.InferenceSession(str(moved / "model.onnx")).run(None, {"users": np.arange(90)})
    np.testing.assert_array_equal(items, exact(make(), 5, masked=True).items)


def test_a_wrong_graph_is_not_announced(
    make: Make, tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = onnx_graph._graph

    def wrong(onnx: Any, model: Model, k: int, own_ids: bool) -> Any:
        graph = right(onnx, model, k, own_ids)
        for one in graph.graph.initializer:
            if one.name == "seen_count":  # nothing is masked
                one.CopyFrom(onnx.numpy_helper.from_array(np.zeros(90, np.int64), "seen_count"))
        return graph

    monkeypatch.setattr(onnx_graph, "_graph", wrong)
    with pytest.raises(TalosError, match=r"the ONNX graph differs from the model .*nothing was written"):
        export(make(), "onnx", tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_which_lists_count_as_the_same(make: Make) -> None:
    model = make()
    expected = exact(model, 5, masked=True)

    def check(items: Any, scores: Any) -> float:
        return folders.check_same_lists(model, np.arange(len(items)), expected, items, scores, what="it")

    assert check(expected.items, expected.scores) == 1.0
    assert check(expected.items, expected.scores + np.float32(1e-6)) == 1.0
    with pytest.raises(TalosError, match="not the items' scores"):
        check(expected.items[:, ::-1], expected.scores)
    repeated = expected.items.copy()
    repeated[3, 1] = repeated[3, 0]
    with pytest.raises(TalosError, match="missing or repeated"):
        check(repeated, expected.scores)
    worse = exact(model, 6, masked=True)
    with pytest.raises(TalosError, match="better items are left out"):
        check(worse.items[:, 1:], worse.scores[:, 1:])


@pytest.mark.parametrize("kind", ["faiss", "onnx"])
def test_missing_packages_are_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(MissingExtraError, match=rf"talos-rec\[{kind}\]"):
        export(make(), kind, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("parqet", {}, "no format 'parqet' (did you mean 'parquet'?)"),
        ("faiss", {"index": "hnws"}, "did you mean 'hnsw'"),
        ("faiss", {"k": 41}, "k: 41; expected 1 to 40"),
        ("onnx", {"k": 0}, "k: 0"),
        ("npz", {"k": 3}, "no option 'k' of npz"),
        ("onnx", {"index": "flat"}, "no option 'index' of onnx"),
    ],
)
def test_wrong_options_leave_nothing_behind(
    make: Make, tmp_path: Path, kind: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        export(make(), kind, tmp_path / "out", **options)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_only_exports_are_overwritten(make: Make, tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    out.mkdir()
    (out / "notes.txt").write_text("precious")
    with pytest.raises(ArgumentError, match="exists"):
        export(make(), "parquet", out)
    with pytest.raises(ArgumentError, match=r"has notes\.txt, which no export has made"):
        export(make(), "parquet", out, overwrite=True)
    assert (out / "notes.txt").read_text() == "precious"
    with pytest.raises(ArgumentError, match="is a folder"):
        export(make(), "npz", out, overwrite=True)
    with pytest.raises(ArgumentError, match="is a file"):
        export(make(), "parquet", out / "notes.txt", overwrite=True)
    assert (out / "notes.txt").read_text() == "precious"
    assert export(make(), "parquet", tmp_path / "missing" / "vectors")["files"]
    new = tmp_path / "new"
    export(make(), "parquet", new)
    export(make(seed=1), "parquet", new, overwrite=True)
    assert pl.read_parquet(new / "users.parquet")["vector"].to_numpy()[0].tolist() == (
        make(seed=1).dot_scores.user_vectors[0].tolist()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["missing", "new", "vectors"]


def test_a_failure_keeps_what_was_there(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "vectors"
    export(make(), "parquet", out)
    before = (out / "items.parquet").read_bytes()

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats, "write_ids", full)
    with pytest.raises(TalosError, match="No space left"):
        export(make(seed=1), "parquet", out, overwrite=True)
    assert (out / "items.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.parametrize("index", ["flat", "hnsw", "ivf"])
def test_a_full_disk_under_an_index(
    make: Make, tmp_path: Path, full_disk: Any, capfd: pytest.CaptureFixture[str], index: str
) -> None:
    """Faiss's own files say so by a RuntimeError, and if the last bytes are lost, on stderr alone."""
    pytest.importorskip("faiss", reason="faiss is not installed (extra `faiss`)")
    model = make(users=5, items=400, dim=16)
    export(model, "faiss", tmp_path / "whole", index=index)
    size = (tmp_path / "whole" / "index.faiss").stat().st_size
    for limit in (size // 2, size - 1):
        with full_disk(limit), pytest.raises(TalosError, match=r"out could not be written \(.*too large"):
            export(model, "faiss", tmp_path / "out", index=index)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert capfd.readouterr() == ("", "")


def test_vectors_that_ask_for_gradients_and_doubles(make: Make, tmp_path: Path) -> None:
    model = make()
    odd = Model(
        scored_by=Vectors(
            model.vectors.users.double().requires_grad_(), model.vectors.items.double().requires_grad_()
        ),
        train=model.train,
    )
    export(odd, "parquet", tmp_path / "vectors")
    users = pl.read_parquet(tmp_path / "vectors" / "users.parquet")
    assert torch.equal(torch.tensor(users["vector"].to_numpy()), model.dot_scores.user_vectors)
