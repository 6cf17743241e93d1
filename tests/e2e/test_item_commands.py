"""Attributes of items on the command line: train with a table, recommend with filters, diversity and popularity."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl

Talos = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--epochs", 1, "--dim", 4, "--k", 5)


def test_a_table_of_items_is_kept_and_filters_lists(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    rows = [
        "item,kind,year",
        *(f"item{n:02d},{'odd' if n % 2 else 'even|round'},{1980 + n}" for n in range(41)),
    ]
    (tmp_path / "items.csv").write_text("\n".join(rows))
    done = talos("train", clicks, "--out", "run", "--items", "items.csv", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "1 of 41 rows are about items without interactions" in done.stderr
    done = talos("recommend", "run", "--user", "user01", "--k", 5, "--json", "--keep-seen",
                 "--filter", "kind=round", "--filter", "year>=2000", "--filter", "year!=2002",
                 "--diversity", 0.5, "--popularity", 0.5)  # fmt: skip
    items = [int(row["item_id"][4:]) for row in json.loads(done.stdout)]
    assert len(items) == 5
    assert all(item % 2 == 0 and item >= 20 and item != 22 for item in items)
    done = talos("recommend", "run", "--all", "--out", "recs.csv", "--filter", "kind=odd", "--diversity", 0.3)
    assert done.returncode == 0, done.stderr
    lists = pl.read_csv(tmp_path / "recs.csv")
    assert lists.columns == ["user_id", "item_id", "score", "rank", "title"]
    assert len(lists)
    assert (lists["item_id"].str.slice(4).cast(pl.Int64) % 2 == 1).all()


def test_columns_of_the_interactions_are_attributes(talos: Talos, clicks: Path) -> None:
    done = talos("train", clicks, "--out", "run", "--item-columns", "title", *QUICK)
    assert done.returncode == 0, done.stderr
    done = talos("recommend", "run", "--user", "user01", "--json", "--keep-seen",
                 "--filter", "title=<script>Title 7</script>")  # fmt: skip
    assert [row["item_id"] for row in json.loads(done.stdout)] == ["item07"]


def test_lists_that_leave_the_test_items_out_are_named(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    words = "no list has a test item: lists for a test part must not leave its items out (--for-test)"
    for flags, there in (((), True), (("--for-test",), False)):
        assert talos("recommend", "run", "--all", "--out", "recs.csv", "--overwrite", *flags).returncode == 0
        done = talos("evaluate", "run", "--recs", "recs.csv", "-k", 5)
        assert done.returncode == 0, done.stderr
        assert (words in done.stdout + done.stderr) == there
    of_lists = json.loads(talos("evaluate", "run", "--recs", "recs.csv", "-k", 5, "--json").stdout)["metrics"]
    assert of_lists == json.loads(talos("evaluate", "run", "-k", 5, "--json").stdout)["metrics"]


def test_lists_are_measured_on_one_test_set(talos: Talos, clicks: Path) -> None:
    assert talos("train", clicks, "--out", "run", *QUICK, "--refit", "all").returncode == 0
    refused = talos("evaluate", "run", "--recs", clicks)
    assert refused.returncode == 2
    assert "the model was fitted on these interactions" in refused.stderr
    for more in ((), ("--truth", clicks)):
        both = talos("evaluate", *(("run", clicks) if more else ()), "--recs", clicks, *more)
        assert (both.returncode, "RUN, or --recs with RUN or --truth" in both.stderr) == (2, True)


def test_bad_input_is_named_before_anything_is_trained(talos: Talos, clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,kind\na,b\na,c\n")
    for flags, message in (
        (("--items", "items.csv"), "items.csv: item 'a' is there more than once; expected each item once"),
        (("--items", "nowhere.csv"), "nowhere.csv"),
        (("--item-columns", "ttle"), "no column 'ttle' (did you mean 'title'?)"),
    ):
        done = talos("train", clicks, "--out", "run", *flags, *QUICK)
        assert done.returncode == 2
        assert message in done.stderr
        assert not (tmp_path / "run").exists()
    assert talos("train", clicks, "--out", "run", *QUICK).returncode == 0
    for flags, message in (
        (("--diversity", 2), "--diversity: 2.0; expected a number from 0 to 1"),
        (("--filter", "kind"), "--filter: 'kind'; expected NAME=VALUE"),
        (("--filter", "kind=x"), "filter.must.kind: the items have no such attribute"),
    ):
        done = talos("recommend", "run", "--user", "user01", *flags)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
