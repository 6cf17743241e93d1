"""Columns without a usual name: taken where only one can be meant, and said; otherwise an error with the candidates."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from talos.data.open import open_fit_parts, open_split, read, write_shards_from
from talos.errors import DataError


@pytest.mark.parametrize(
    ("names", "user", "item"),
    [
        ("user_procid,sku", "user_procid", "sku"),
        ("customer,asin", "customer", "asin"),
        ("price,track_id,user_procid", "user_procid", "track_id"),
        ("user_country,buyerNo,web_sku_code,user_age", "buyerNo", "web_sku_code"),
        ("CUSTOMER-KEY,region,ean", "CUSTOMER-KEY", "ean"),
        ("user_id,user_procid,film", "user_id", "film"),  # a usual name beats any other
        ("customer,thing", "customer", "thing"),  # of two columns the other one is left
        ("whoever,item_id", "whoever", "item_id"),
    ],
)
def test_one_column_of_each_can_be_meant(names: str, user: str, item: str) -> None:
    columns = names.split(",")
    frame = pl.DataFrame({name: [f"{name}-{row}" for row in range(3)] for name in columns})
    data = read(frame)
    assert data.user_ids.ids.to_list() == [f"{user}-{row}" for row in range(3)]
    assert data.item_ids.ids.to_list() == [f"{item}-{row}" for row in range(3)]
    assert f"{user!r} is taken for the user" in data.provenance.guesses
    assert f"{item!r} for the item" in data.provenance.guesses


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ("user_procid,user_webid,sku", "'user_procid' and 'user_webid' could each be the user column"),
        ("customer,sku_a_key,sku_b_key", "'sku_a_key' and 'sku_b_key' could each be the item column"),
        ("user_paid,user_age,sku", "no user column among"),
        ("user_item_key,customer,shop", "no item column among 'user_item_key', 'customer', 'shop'"),
        ("customer,timestamp", "no item column"),  # the column that is left is something else
        ("customer,colour,shop", "no item column"),  # two are left
    ],
)
def test_ambiguity_is_an_error(names: str, what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read(pl.DataFrame({name: ["a", "b"] for name in names.split(",")}))
    role = "user" if "user column" in what else "item"
    assert f"{role}='NAME'" in str(caught.value)


def test_plain_and_given_names_are_not_remarked_on() -> None:
    frame = pl.DataFrame({"userId": [1, 2], "item": [3, 4], "when": [5, 6]})
    assert read(frame).provenance.guesses == ""
    odd = pl.DataFrame({"customer": [1, 2], "sku": [3, 4]})
    assert read(odd, user="customer", item="sku").provenance.guesses == ""
    assert read(odd, user="customer").provenance.guesses == "column 'sku' is taken for the item"


def _events(name: str) -> str:
    return f"{name};qty;sku\n" + "".join(f"c{row % 6};1;s{row % 7}\n" for row in range(60))


def test_every_way_in_says_it_once(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(_events("customer"))
    line = f"{file}: column 'customer' is taken for the user, 'sku' for the item"
    line += "; 'qty' could be a weight: rating column 'qty' with weights 'rating'"
    said: list[str] = []
    open_split(file, notify=said.append)
    assert said == [line]
    said.clear()
    write_shards_from(file, tmp_path / "shards", shards=2, notify=said.append)
    assert said[0] == line
    assert sum("is taken for" in one for one in said) == 1

    parts = tmp_path / "parts"
    parts.mkdir()
    for part in ("train", "test"):
        (parts / f"{part}.csv").write_text(_events("customer"))
    said.clear()
    open_fit_parts(parts, notify=said.append)
    assert len(said) == 1
    assert "'customer' is taken for the user" in said[0]

    several = tmp_path / "several"
    several.mkdir()
    for name in ("a", "b"):
        (several / f"{name}.csv").write_text(_events("customer"))
    lines = tmp_path / "orders.jsonl"
    lines.write_text(
        "".join(json.dumps({"customer": f"c{row}", "sku": f"s{row}"}) + "\n" for row in range(5))
    )
    assert read(several).provenance.guesses == line.partition(": ")[2]
    assert read(lines).provenance.guesses == line.partition(": ")[2].partition(";")[0]
