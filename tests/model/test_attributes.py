"""Attributes of items: from a file into the run directory and back, and what filters make of every type."""

from __future__ import annotations

import json
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from talos.data.interactions import Interactions
from talos.data.items import read_items
from talos.data.vocabulary import Vocabulary
from talos.errors import DataError
from talos.files import checksum_of, sealed_text
from talos.model.attributes import align_items, allowed_items
from talos.model.recommender import Recommender
from talos.model.store import load_model

TABLE = pl.DataFrame(
    {
        "title": ["Heat", None, "Big", "Ran"],
        "genre": [["crime", "drama"], ["comedy"], None, []],
        "year": [1995, 2001, None, 1985],
        "price": [1.5, 2.0, None, 0.0],
        "color": [True, False, None, True],
        "studio": ["WB", "x|y", None, ""],
    }
)


@pytest.mark.parametrize(
    ("condition", "right"),
    [
        ({"genre": "drama"}, [0]),
        ({"genre": ["comedy", "crime"]}, [0, 1]),
        ({"year": 1995}, [0]),
        ({"year": "1995"}, [0]),
        ({"year": "1995.0"}, [0]),
        ({"year": "1.995e3"}, [0]),
        ({"year": 1995.5}, []),
        ({"year": 2**70}, []),
        ({"year": {"gte": 1990, "lte": "2001"}}, [0, 1]),
        ({"year": {"gt": 1995}}, [1]),
        ({"price": {"lt": 1.5}}, [3]),
        ({"price": [1.5, 0]}, [0, 3]),
        ({"color": True}, [0, 3]),
        ({"color": "false"}, [1]),
        ({"studio": "x|y"}, [1]),
        ({"title": ["Big", "Ran"]}, [2, 3]),
        ({"genre": []}, []),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_conditions(condition: dict[str, object], right: list[int]) -> None:
    attributes, titles = TABLE.drop("title"), TABLE["title"]
    chosen = allowed_items(attributes, titles, {"must": condition})
    assert chosen.nonzero()[0].tolist() == right
    if condition:
        others = allowed_items(attributes, titles, {"must_not": condition})
        assert others.nonzero()[0].tolist() == [row for row in range(4) if row not in right]


@pytest.fixture
def model() -> Recommender:
    data = Interactions.from_ids(["a", "a", "b", "b", "c"], ["i1", "i2", "i2", "i3", "i1"])
    return Recommender(k=2, dim=4, epochs=1).fit(data)


def test_a_run_keeps_them(model: Recommender, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(
        "id,item,name,genre,year\n9,i3,Heat,crime|drama,1995\n8,i1,<b>,,2001\n7,zz,Z,x,3\n"
    )
    model.add_items(tmp_path / "items.csv").save(tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    assert loaded.train.item_titles is not None
    assert loaded.train.item_titles.to_list() == ["<b>", None, "Heat"]
    assert loaded.attributes is not None
    assert loaded.attributes.to_dict(as_series=False) == {
        "id": [8, None, 9],
        "genre": [None, None, ["crime", "drama"]],
        "year": [2001, None, 1995],
    }
    again = Recommender.load(tmp_path / "run")
    lists = again.recommend(k=3, filter={"must": {"genre": "drama"}})
    assert set(lists["item_id"]) == {"i3"}
    again.partial_fit(Interactions.from_ids(["d"], ["new"]))
    updated = again.fitted_model()
    assert updated.attributes is not None
    assert dict(zip(updated.train.item_ids.ids, updated.attributes["year"], strict=True)) == {
        "i1": 2001, "i2": None, "i3": 1995, "new": None,
    }  # fmt: skip


def test_hostile_attributes_of_a_run_are_refused(model: Recommender, tmp_path: Path) -> None:
    run = tmp_path / "run"
    model.save(run)
    for bad, message in (
        (pl.Series("when", [[1], [2], [3]]), "column 'when' is List"),
        (pl.Series("title", [1, 2, 3]), "title is Int64"),
        (pl.Series("blob", [b"x"] * 3), "column 'blob' is Binary"),
    ):
        pl.DataFrame({"item_id": ["i1", "i2", "i3"], bad.name: bad}).write_parquet(run / "items.parquet")
        facts = json.loads((run / "model.json").read_text())
        facts["checksums"]["items.parquet"] = checksum_of(run / "items.parquet")
        del facts["sha256"]
        (run / "model.json").write_text(sealed_text(facts))
        with pytest.raises(DataError, match=message):
            load_model(run)


def test_every_kind_of_file_gives_the_same_table(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"item_id": [3, 4], "title": ["a", "b,c"], "genre": [["x", "y"], ["z"]], "year": [1, 2]}
    )
    table.write_parquet(tmp_path / "items.parquet")
    table.write_ndjson(tmp_path / "items.jsonl")
    (tmp_path / "items.csv").write_text('item_id,title,genre,year\n3,a,x|y,1\n4,"b,c",z,2\n')
    (tmp_path / "items.tsv").write_text("item_id\ttitle\tgenre\tyear\n3\ta\tx|y\t1\n4\tb,c\tz\t2\n")
    for name in ("items.parquet", "items.jsonl", "items.csv", "items.tsv"):
        assert read_items(tmp_path / name).equals(table), name
    assert read_items(tmp_path / "items.csv", columns=["year"]).columns == ["item_id", "title", "year"]


@pytest.mark.parametrize("role", ["item_id", "title", "length"])
@pytest.mark.parametrize(
    "value",
    [
        timedelta(1),
        {"a": 1},
        b"a",
        [1],
        [{"a": 1}],
        [],
        time(1),
        date(2026, 1, 1),
        Decimal("1.5"),
        2**63,
        True,
        None,
    ],
    ids=repr,
)
def test_a_type_that_cannot_be_used_is_an_error_about_the_column(
    role: str, value: object, tmp_path: Path
) -> None:
    dtype = pl.UInt64 if type(value) is int else None
    path = tmp_path / "items.parquet"
    column = {role: pl.Series([value], dtype=dtype)}
    pl.DataFrame({"item_id": [1], **column}).write_parquet(path)
    usable = not isinstance(value, timedelta | dict | bytes | list) and role != "item_id"
    if usable:
        assert read_items(path).height == 1
        return
    with pytest.raises(DataError, match=f"items.parquet, column '{role}'"):
        read_items(path)


def test_python_objects_are_no_attributes() -> None:
    for role in ("item_id", "title", "length"):
        column = {role: pl.Series([object()], dtype=pl.Object)}
        with pytest.raises(DataError, match=f"column '{role}'"):
            read_items(pl.DataFrame({"item_id": [1], **column}))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_blanks_around_values_are_dropped(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"items.{kind}"
    table = pl.DataFrame({"item_id": [" a", "b"], "title": ["Tea ", " "], "kind": ["hot ", " "]})
    write = {"csv": table.write_csv, "parquet": table.write_parquet, "jsonl": table.write_ndjson}[kind]
    write(path)
    assert read_items(path).rows() == [("a", "Tea", "hot"), ("b", None, None)]


def test_ids_of_a_categorical_column_are_strings() -> None:
    ids = pl.Series(["a", "b"], dtype=pl.Categorical)
    assert read_items(pl.DataFrame({"item_id": ids}))["item_id"].to_list() == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item_id,title\n1,a\n2\n", "line 3: 1 field; expected 2"),
        ("item_id,title\n1,a\n,b\n", "no id in row 1"),
        ("what,that,title\n1,2,a\n", "column"),
        ("item_id,x,x\n1,a,b\n", "two columns 'x'"),
        ("item_id,title\n", "has a header and no rows"),
        ("", "is empty"),
        ("1,2\n3,4\n", "has no header"),
        ('item_id,title\n1,"a\n', "line 2: a quote is out of place .unexpected end of data"),
    ],
)
def test_bad_tables_name_their_fault(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_items(path)
    assert "items.csv" in str(caught.value)


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_bytes(b"item_id,title\n1,a\n2,\xff\n")
    with pytest.raises(DataError, match="line 3: bytes that are not UTF-8"):
        read_items(tmp_path / "items.csv")


def test_ids_take_the_models_type() -> None:
    numbers, words = Vocabulary.of([1, 2]), Vocabulary.of(["1", "x"])
    table = pl.DataFrame({"item_id": [1, 3], "year": [5, 6]})
    assert align_items(table, words)[1:][1] == 1
    assert align_items(table.with_columns(pl.col("item_id").cast(pl.String)), numbers)[2] == 1
    with pytest.raises(DataError, match="item id 'x'; expected integer ids"):
        align_items(pl.DataFrame({"item_id": ["x"], "year": [1]}), numbers)
    with pytest.raises(DataError, match="item 1 is there more than once; expected each item once"):
        align_items(pl.DataFrame({"item_id": [1, 1], "year": [1, 2]}), numbers)
    with pytest.raises(DataError, match="none of the items"):
        align_items(pl.DataFrame({"item_id": [77], "year": [1]}), numbers)


def test_columns_of_interactions_are_such_a_table(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,item,genre\na,i1,x\nb,i1,y\na,i2,z\n")
    table = read_items(path, columns=["genre"])
    assert table.rows() == [("i1", "x"), ("i1", "y"), ("i2", "z")]
    with pytest.raises(DataError, match="no column 'gnre'"):
        read_items(path, columns=["gnre"])


def test_attributes_outlive_a_refit_and_known_items(tmp_path: Path) -> None:
    data = Interactions.from_ids([1, 1, 1, 1, 2, 2, 2, 2], [5, 6, 7, 8, 6, 7, 8, 5])
    parts = data.split(test=0.25, valid=0.25)
    ids = parts.train.item_ids.ids
    table = pl.DataFrame({"item_id": ids, "title": [f"<{one}>" for one in ids], "year": ids})
    model = Recommender(k=1, dim=4, epochs=2).fit(parts.train, parts.valid, known=parts.test).add_items(table)
    model.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run").refit("train+valid").add_known(parts.test)
    again.save(tmp_path / "run")  # over the run that was there, in one swap
    loaded = load_model(tmp_path / "run")
    assert loaded.attributes is not None
    assert loaded.attributes["year"].to_list() == ids.to_list()
    for part in (loaded.train, loaded.held_out):
        assert part is not None
        assert part.item_titles is not None
        assert part.item_titles.to_list() == table["title"].to_list()
