"""From a PATH to interactions and splits: every kind of PATH, and what is wrong with one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import talos
from talos.data import catalogue, datasets, splits
from talos.data.interactions import Interactions
from talos.data.open import (
    SourceOptions,
    open_fit_parts,
    open_interactions,
    read,
    write_shards_from,
)
from talos.data.splits import Split
from talos.distributed.share import read_share
from talos.errors import ArgumentError, ConfigError, DataError
from talos.files import read_sealed

PAIRS = [
    (f"u{user}", f"i{item}", 1 + (user * item) % 5)
    for user in range(12)
    for item in range(10)
    if user != item
]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    rows = [f"{user},{item},{rating},{7 * place}" for place, (user, item, rating) in enumerate(PAIRS)]
    path.write_text("who,what,rating,timestamp\n" + "\n".join(rows) + "\n")
    return path


COLUMNS = {"user": "who", "item": "what"}


def same(one: Split, other: Split) -> bool:
    return {name: part.fingerprint() for name, part in one.parts.items()} == {
        name: part.fingerprint() for name, part in other.parts.items()
    }


@pytest.mark.parametrize("by", ["user", "time", "last"])
def test_a_file_is_read_cleaned_and_split(clicks: Path, by: str) -> None:
    data = splits.k_core(splits.min_rating(read(clicks, **COLUMNS), 2), 3)
    expected = splits.split(data, by=by, test=0.3, valid=0.2, seed=5)  # type: ignore[arg-type]
    options = SourceOptions.of(**COLUMNS, by=by, test=0.3, valid=0.2, split_seed=5, min_rating=2, k_core=3)
    assert same(talos.open_split(clicks, options), expected)
    assert same(talos.open_split(str(clicks), **options.flat()), expected)
    assert same(
        talos.open_split(clicks, SourceOptions.of(user="no"), **options.given()), expected
    )  # names win
    train, valid = open_fit_parts(clicks, options)
    assert (len(train), len(valid or ())) == (len(expected.train), len(expected.valid or ()))
    whole = open_interactions(clicks, options)
    assert whole.fingerprint() == data.fingerprint()
    assert whole.provenance.notes[-1] == "clean-up: ratings of 2 and higher, 3-core"


def test_a_folder_of_parts_is_taken_as_it_was_split(clicks: Path, tmp_path: Path) -> None:
    made = talos.open_split(clicks, **COLUMNS)
    splits.write_split(made, tmp_path / "parts", format="tsv", source="clicks.csv", cleaned={})
    said: list[str] = []
    opened = talos.open_split(tmp_path / "parts", notify=said.append)
    assert {name: len(part) for name, part in opened.parts.items()} == {
        name: len(part) for name, part in made.parts.items()
    }
    assert (opened.how["by"], said) == ("predefined", [])
    assert same(talos.open_split(tmp_path / "parts", test=0.5, notify=said.append), opened)
    assert ["already split" in line for line in said] == [True]
    assert len(open_interactions(tmp_path / "parts")) == len(PAIRS)
    (tmp_path / "parts" / "test.tsv").unlink()  # not needed for fitting
    train, valid = open_fit_parts(tmp_path / "parts")
    assert (len(train), len(valid or ())) == (len(made.train), len(made.valid or ()))


def test_shards(clicks: Path, tmp_path: Path) -> None:
    options, shards = SourceOptions.of(**COLUMNS, split_seed=3), tmp_path / "shards"
    said: list[str] = []
    record = write_shards_from(clicks, shards, shards=3, options=options, notify=said.append)
    assert record == read_sealed(shards / "shards.json", hint="", format=2)
    assert said[0].endswith("rows read")
    expected = talos.open_split(clicks, options)
    assert same(talos.open_split(shards), expected)
    assert len(open_interactions(shards)) == len(PAIRS)
    share = read_share(shards, lambda users: range(users // 2))
    assert share.train.own.num_users == expected.train.num_users // 2
    for part in shards.glob("*/test.parquet"):
        part.write_bytes(b"not opened")
    assert len(open_fit_parts(shards)[0]) == len(expected.train)
    with pytest.raises(DataError, match="is divided into shards already"):
        write_shards_from(shards, tmp_path / "again", shards=2)
    with pytest.raises(ConfigError, match=r"^k_core: needs all interactions in memory"):
        write_shards_from(clicks, tmp_path / "again", shards=2, options=SourceOptions.of(k_core=5))


def test_shards_of_a_split_that_was_made_elsewhere(tmp_path: Path) -> None:
    """The parts stay as they are, whatever the number of shards and of rows at once."""
    rng = np.random.default_rng(0)
    pairs = [f"u{user},i{item:02},{user * item}" for user in range(30) for item in rng.permutation(40)[:9]]
    folder = tmp_path / "parts"
    (folder / "train").mkdir(parents=True)
    cuts = {
        "train/a.csv": pairs[0::3],
        "train/b.csv": pairs[1::3],
        "valid.csv": pairs[2::6],
        "test.csv": pairs[5::6],
    }
    for name, rows in cuts.items():
        (folder / name).write_text("\n".join(["user,item,timestamp", *rows]) + "\n")
    expected, said = talos.open_split(folder), []
    for shards, rows in ((1, 1000), (4, 7)):
        out = tmp_path / f"out-{shards}"
        record = write_shards_from(folder, out, shards=shards, rows_at_once=rows, notify=said.append)
        assert record["how"] == {"by": "predefined"}
        assert same(talos.open_split(out), expected)
        assert np.array_equal(talos.open_split(out).train.timestamps, expected.train.timestamps)
    options = SourceOptions.of(test=0.4)
    write_shards_from(folder, tmp_path / "more", shards=2, options=options, notify=said.append)
    assert "already split" in " ".join(said)
    with (folder / "test.csv").open("a") as file:
        file.write("u9,i00,1\nu9,i01,1\n" + pairs[0] + "\n")
    with pytest.raises(DataError, match=r"user 'u0' and item 'i\d\d' are together in two parts"):
        write_shards_from(folder, tmp_path / "again", shards=2)
    assert not (tmp_path / "again").exists()
    (folder / "test.csv").write_text("user,item\nu1,7\n")  # of one type with the others
    write_shards_from(folder, tmp_path / "again", shards=2)
    assert same(talos.open_split(tmp_path / "again"), talos.open_split(folder))


def test_a_database(clicks: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE clicks (who TEXT, what TEXT, rating INTEGER)")
        database.executemany("INSERT INTO clicks VALUES (?, ?, ?)", PAIRS)
    database.close()
    url = f"sqlite:///{tmp_path}/shop.db"
    expected = talos.open_split(clicks, **COLUMNS, timestamp="")
    query = "SELECT who, what FROM clicks"
    assert same(talos.open_split(url, **COLUMNS), expected)
    assert same(talos.open_split(url, **COLUMNS, query=query), expected)
    write_shards_from(url, tmp_path / "shards", shards=2, options=SourceOptions.of(**COLUMNS, query=query))
    assert same(talos.open_split(tmp_path / "shards"), expected)
    # a query longer than any file name
    assert len(open_interactions(f"{url}?query={query}{' ' * 5000}", **COLUMNS)) == len(PAIRS)


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> str:
    """A named dataset that needs no network; its clean-up drops ratings below 3."""
    source = datasets.Download(url="https://example.org/films.csv", layout="table")
    films = datasets.DatasetInfo(
        name="films",
        title="Films",
        homepage="",
        licence="Free.",
        downloads=(source,),
        min_rating=3.0,
        k_core=2,
    )

    def load(info: datasets.DatasetInfo, *, notify: object = None) -> Interactions:
        assert info is films
        if callable(notify):
            notify("Films. Free.")
        users, items, ratings = zip(*PAIRS, strict=True)
        return Interactions.from_ids(users, items, ratings=ratings)

    monkeypatch.setattr(catalogue, "available", lambda: [films])
    monkeypatch.setattr(catalogue, "info", lambda name: films)
    monkeypatch.setattr(datasets, "load", load)
    return films.name


def test_a_dataset_by_name(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    published = talos.read(dataset)
    assert len(published) == len(PAIRS)
    cleaned = splits.k_core(splits.min_rating(published, 3), 2)
    assert open_interactions(dataset, notify=said.append).fingerprint() == cleaned.fingerprint()
    assert said == ["Films. Free."]
    assert len(open_interactions(dataset, raw=True)) == len(PAIRS)
    assert same(talos.open_split(dataset, split_seed=2), splits.split(cleaned, seed=2))
    assert len(open_interactions(dataset, min_rating=5)) < len(cleaned)
    write_shards_from(dataset, tmp_path / "shards", shards=2)
    assert same(talos.open_split(tmp_path / "shards"), splits.split(cleaned))
    Path(dataset).write_text("user,item\na,b\n")  # a file of that name comes first
    assert len(talos.read(dataset)) == len(open_interactions(dataset)) == 1


def test_names_that_mean_nothing(dataset: str, clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^film: no such file, folder or dataset \(did you mean 'films'\?\)$"
    ):
        talos.read("film")
    near = tmp_path / "click.csv"
    for opener in (talos.read, talos.open_split, open_interactions, open_fit_parts):
        with pytest.raises(DataError, match=r"click\.csv: no such file.*did you mean 'clicks\.csv'"):
            opener(near)
    with pytest.raises(DataError, match=r"zzz: no such file, folder or dataset \(datasets: films\)"):
        talos.open_split("zzz")
    with pytest.raises(DataError, match="cannot be read"):
        talos.open_split("z" * 5000)
    with pytest.raises(DataError, match="no such file"):
        write_shards_from("zzz", tmp_path / "out", shards=2)
    with pytest.raises(ArgumentError, match=r"^usr: no such option \(did you mean 'user'\?\)$"):
        talos.open_split(clicks, usr="who")


def test_options_are_stored_whole() -> None:
    options = SourceOptions.of(
        user="who", query="SELECT 1", on_bad_row="skip", by="time", split_seed=4, k_core=5
    )
    stored = options.as_dict("clicks.csv")
    assert stored["path"] == "clicks.csv"
    assert stored["columns"] == dict.fromkeys(("item", "timestamp", "rating", "title")) | {"user": "who"}
    assert stored["split"] == {"by": "time", "test": 0.2, "valid": 0.1, "split_seed": 4}
    assert stored["clean"] == {"min_rating": None, "k_core": 5, "raw": False}
    assert SourceOptions.from_dict(json.loads(json.dumps(stored))) == options
    for damage in (
        {"on_bad_row": "ignore"},
        {"split": {}},
        {"columns": {**stored["columns"], "user": 5}},
        {"path": 1},
    ):
        with pytest.raises(DataError, match="source: the record of its data is damaged"):
            SourceOptions.from_dict({**stored, **damage})
