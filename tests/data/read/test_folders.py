from __future__ import annotations

import pytest

from talos.data.open import open_split, read
from talos.data.source import Source
from talos.errors import DataError


def test_parts_share_vocabularies(write, tmp_path):
    write("d/train.tsv", "user\titem\n1\t7\n2\t8\n")
    write("d/val.csv", "user,item\n1,9\n")
    write("d/test.csv", "user,item\n2,7\n3,5\n")
    assert Source.of(tmp_path / "d").kind == "parts"
    parts = open_split(tmp_path / "d")
    assert parts.train.item_ids == parts.valid.item_ids == parts.test.item_ids
    assert parts.train.user_ids.ids.to_list() == [1, 2, 3]
    assert [len(part) for part in (parts.train, parts.valid, parts.test)] == [2, 1, 2]
    assert parts.test.to_polars().rows() == [(2, 7), (3, 5)]
    assert parts.train.provenance.rows == 2


def test_a_folder_of_parts_reads_as_their_union(write, tmp_path):
    write("d/train.csv", "user,item,ts\n1,7,5\n2,8,6\n")
    write("d/test.csv", "user,item,ts\n1,7,9\n")
    write("d/other.csv", "user,item\n5,5\n")
    write("d/split.json", "{}")
    data = read(tmp_path / "d")
    assert data.to_polars().rows() == [(1, 7, 9), (2, 8, 6)]
    assert data.provenance.duplicates == 1
    assert data.provenance.notes == (
        "union of train.csv, test.csv",
        "other files there were ignored: other.csv",
    )


def test_ids_that_are_integers_in_one_part_only(write, tmp_path):
    write("d/train.csv", "user,item\n1,07\n")
    write("d/test.csv", "user,item\nx,7\n1,7\n")
    parts = open_split(tmp_path / "d")
    assert parts.train.user_ids.ids.to_list() == ["1", "x"]
    assert parts.train.item_ids.ids.to_list() == ["07", "7"]


def test_lightgcn_parts_with_short_lines(write, tmp_path):
    write("d/train.txt", "0 1 2 3 4 5 6\n1 2 3\n")
    write("d/test.txt", "0 7 8\n1 1 9\n")
    parts = open_split(tmp_path / "d")
    assert parts.test.to_polars().rows() == [(0, 7), (0, 8), (1, 1), (1, 9)]
    assert parts.valid is None


def test_recbole_and_movielens_folders(write, tmp_path):
    write("r/ml.inter", "user_id:token\titem_id:token\n1\t2\n")
    write("r/ml.item", "item_id:token\n2\n")
    write("m/u.data", "1\t2\t3\t881250949\n")
    write("m/u.item.txt", "2|Toy Story\n")
    assert len(read(tmp_path / "r")) == 1
    data = read(tmp_path / "m")
    assert len(data) == 1
    assert "u.item.txt" in data.provenance.notes[0]


def test_folders_that_cannot_be_read(write, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing readable"):
        read(tmp_path / "empty")
    write("mixed/a.csv", "user,item\n1,2\n")
    write("mixed/b.parquet", "x")
    with pytest.raises(DataError, match="several kinds"):
        read(tmp_path / "mixed")
    write("twice/train.csv", "user,item\n1,2\n")
    write("twice/train.tsv", "user\titem\n1\t2\n")
    write("twice/test.csv", "user,item\n1,2\n")
    for reading in (read, Source.of, open_split):
        with pytest.raises(DataError, match=r"train\.csv and train\.tsv could each be the train part"):
            reading(tmp_path / "twice")


def test_real_data(real_data):
    beauty = read(real_data("beauty"))
    assert (beauty.num_users, len(beauty)) == (15_603, 139_554)
    gowalla = read(real_data("gowalla"))
    assert (gowalla.num_users, gowalla.num_items, len(gowalla)) == (29_858, 40_988, 1_027_464)
    parts = open_split(real_data("beauty"))
    assert len(parts.train) + len(parts.valid) + len(parts.test) == len(beauty)
