from __future__ import annotations

import polars as pl
import pytest

from talos.data.open import read_lists
from talos.errors import DataError


def test_ranks_become_dense_and_ties_keep_the_order(write):
    path = write("recs.csv", "user_id,item_id,rank\nb,x,5\na,x,2\na,y,1\nb,y,5\nb,z,1\n")
    lists = read_lists(path)
    assert lists.rows() == [("b", "z", 1), ("b", "x", 2), ("b", "y", 3), ("a", "y", 1), ("a", "x", 2)]
    assert lists.columns == ["user_id", "item_id", "rank"]


def test_descending_score(tmp_path):
    frame = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [7, 8, 9], "score": [0.5, 0.9, 0.5]})
    frame.write_parquet(tmp_path / "recs.parquet")
    assert read_lists(tmp_path / "recs.parquet").rows() == [(1, 8, 1), (1, 7, 2), (1, 9, 3)]


def test_rank_wins_over_score_unless_asked():
    frame = pl.DataFrame({"user": [1, 1], "item": [7, 8], "rank": [1, 2], "score": [0.1, 0.9]})
    assert read_lists(frame)["item_id"].to_list() == [7, 8]
    assert read_lists(frame, rank="")["item_id"].to_list() == [8, 7]
    assert read_lists(frame, rank="rank")["item_id"].to_list() == [7, 8]


def test_bad_lists(write):
    with pytest.raises(DataError, match="neither ranks nor scores"):
        read_lists(pl.DataFrame({"user": [1], "item": [7]}))
    with pytest.raises(DataError, match="item 7 is more than once in the list of user 1"):
        read_lists(pl.DataFrame({"user": [1, 1], "item": [7, 7], "rank": [1, 2]}))
    with pytest.raises(DataError, match="line 3: 'first' is not a rank"):
        read_lists(write("x.csv", "user,item,rank\n1,2,1\n1,3,first\n"))
