"""Approximate lists: the recall that was asked for, nothing that is known or banned, the same after an interruption."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from talos.errors import ArgumentError, DataError
from talos.exports import InterruptedExportError, faiss_index, lists, write_lists

pytest.importorskip("faiss")


@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_lists_have_the_recall_that_is_stated(make, tmp_path, monkeypatch, wanted):
    monkeypatch.setattr(faiss_index, "_POINTS_PER_CELL", 8)  # dozens of cells in a small catalogue
    model = make(users=200, items=900, dim=16)
    done = write_lists(model, tmp_path / "near.parquet", k=5, approximate=wanted)
    write_lists(model, tmp_path / "exact.parquet", k=5)
    near, exact = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("near", "exact"))
    lengths = [table["user_id"].value_counts().sort("user_id") for table in (near, exact)]
    assert lengths[0].equals(lengths[1])
    found = near.join(exact, on=["user_id", "item_id"]).height / exact.height
    facts = done["approximate"]
    assert found >= wanted - 0.05
    assert abs(facts["recall@5"] - found) < 0.1
    assert 1 <= facts["probed"] <= facts["cells"]
    assert wanted > 0.5 or facts["probed"] < facts["cells"]
    known = model.known.to_polars().select("user_id", "item_id")
    assert near.join(known, on=["user_id", "item_id"]).is_empty()
    # scores are the items' own, best first
    both = near.join(exact, on=["user_id", "item_id"], suffix="_exact")
    assert np.allclose(both["score"], both["score_exact"])
    assert (
        near.group_by("user_id", maintain_order=True)
        .agg(pl.col("score").diff().fill_null(0.0).max() <= 0)["score"]
        .all()
    )


def test_banned_items_and_short_lists(make, tmp_path):
    model = make()
    exclude = model.train.item_ids.ids[:30].to_list()
    done = write_lists(
        model, tmp_path / "near.csv", k=12, approximate=0.99, exclude=exclude, filter_seen=False
    )
    rows = pl.read_csv(tmp_path / "near.csv")
    assert done["rows"] == 90 * 10  # ten items are left
    assert not set(rows["item_id"]) & set(exclude)


def test_an_interrupted_export_goes_on_with_the_same_recall_only(make, tmp_path, monkeypatch):
    monkeypatch.setattr(lists, "_ROWS_IN_A_PART", 60)
    model, out = make(), tmp_path / "recs.parquet"

    def interrupt(done: int, total: int) -> None:
        if done > 30:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedExportError):
        write_lists(model, out, approximate=0.9, progress=interrupt)
    with pytest.raises(DataError, match=r"approximate=0\.9"):
        write_lists(model, out)
    assert write_lists(model, out, approximate=0.9)["resumed_at"] > 0


@pytest.mark.parametrize(
    "options", [{"approximate": 1.0}, {"approximate": 0.0}, {"approximate": 0.9, "diversity": 0.5}]
)
def test_refusals(make, tmp_path, options):
    with pytest.raises(ArgumentError, match="approximate"):
        write_lists(make(), tmp_path / "recs.parquet", **options)
    assert list(tmp_path.iterdir()) == []
