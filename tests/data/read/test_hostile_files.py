"""Pipes, devices, files without header, half characters and very long ids."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from talos.data.interactions import Interactions
from talos.data.open import open_split, read
from talos.data.shards import write_shards
from talos.errors import DataError

Write = Callable[[str, str | bytes], Path]
CLICKS = b"user,item\n" + b"".join(b"u%d,i%d\n" % (n % 7, n) for n in range(70))


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    """A pipe can be read once only, and a device may have no end."""
    os.mkfifo(tmp_path / "clicks.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for path in (tmp_path / "clicks.csv", tmp_path / "socket", Path("/dev/zero"), Path("/dev/null")):
        for reading in (read, open_split, partial(write_shards, out=tmp_path / "out", shards=2)):
            with pytest.raises(DataError, match=f"^{path}: is a pipe or a device; expected a file$"):
                reading(path)


def test_standard_input_is_read_if_it_is_a_file(tmp_path: Path) -> None:
    code = "from talos import read; print(len(read('/dev/stdin')))"
    (tmp_path / "clicks").write_bytes(CLICKS)
    with (tmp_path / "clicks").open("rb") as file:
        done = subprocess.run([sys.executable, "-c", code], stdin=file, capture_output=True)
    assert (done.stdout, done.returncode) == (b"70\n", 0), done.stderr


def test_strings_without_header_by_position(write: Write) -> None:
    path = write("x.csv", "ann,tea,shop\nbob,jam,web\n")  # without a number the first row could be names
    data = read(path, user="1", item="2")
    assert data.to_polars().rows() == [("ann", "tea"), ("bob", "jam")]
    assert read(path, user="2", item="1").user_ids.ids.to_list() == ["jam", "tea"]
    with pytest.raises(DataError, match="no column '1'"):  # these are names
        read(write("y.csv", "user,item\nann,tea\n"), user="1", item="2")
    with pytest.raises(DataError, match="no column '4'"):
        read(path, user="4", item="2")


@pytest.mark.parametrize(
    "pair", [r"\ud800 \ud801", r"\udc00 \udc01", r"\ud83dx \ud83ey", r"\ude00\ud83d \ude01\ud83d"]
)
def test_halves_of_characters_do_not_merge(write: Write, pair: str) -> None:
    """Polars makes the same sign of every one, so two users would become one."""
    first, second = pair.split()
    path = write("x.jsonl", f'{{"user": "{first}", "item": "a"}}\n{{"user": "{second}", "item": "b"}}\n')
    with pytest.raises(DataError, match="line 1: half a character in 'user'"):
        read(path)


def test_whole_characters_in_escapes(write: Write) -> None:
    path = write(
        "x.jsonl", '{"user": "\\ud83d\\ude00", "item": "a"}\n{"user": "\\ud83d\\ude01", "item": "b"}\n'
    )
    assert read(path).user_ids.ids.to_list() == ["😀", "😁"]


def test_a_lone_carriage_return_ends_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"user,item\rann,tea\nbob,jam\n")
    assert read(path).to_polars().rows() == [("ann", "tea"), ("bob", "jam")]
    path.write_bytes(b"user,item\rann,tea")
    assert read(path).to_polars().rows() == [("ann", "tea")]


def test_half_a_character_in_the_name_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": "ann", "item\\ud800": "tea"}\n{"user": "bob", "item\\ud800": "jam"}\n')
    assert read(path).to_polars().rows() == [("ann", "tea"), ("bob", "jam")]


def test_halves_of_characters_in_python() -> None:
    with pytest.raises(DataError, match=r"users: half a character"):
        Interactions.from_ids(["\ud800", "\ud801"], ["a", "b"])
    with pytest.raises(DataError):
        read(pd.DataFrame({"user": pd.Series(["\ud800", "\ud801"], dtype=object), "item": ["a", "b"]}))


def test_a_very_long_id_is_not_echoed(write: Write) -> None:
    long = "x" * 1_000_000
    for content in (
        f"user,item,timestamp\na,b,1\na,c,{long}\n",
        f"user,item\na,b\n{long}\n",
        f'user,item\na,"{long}\n',
    ):
        with pytest.raises(DataError) as caught:
            read(write("x.csv", content))
        assert len(str(caught.value)) < 3000
    with pytest.raises(DataError) as caught:
        read(write("x.jsonl", f'{{"user": "a", "item": 1}}\n{{"user": "{long}", "item": ["{long}"]}}\n'))
    assert len(str(caught.value)) < 3000
