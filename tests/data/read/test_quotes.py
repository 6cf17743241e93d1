"""A quote that is not closed is an error about the line where it opened, and never swallows rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talos.data.open import read
from talos.data.read import text
from talos.data.read.delimited import odd_quotes
from talos.errors import DataError

Write = Callable[[str, str | bytes], Path]
ROWS = [f"u{n},i{n}" for n in range(100)]


def with_quotes(*places: int) -> str:
    """A hundred rows below a header; those at `places` have a quote before the item that is not closed."""
    rows = [row.replace(",", ',"') if n in places else row for n, row in enumerate(ROWS)]
    return "\n".join(["user,item", *rows]) + "\n"


@pytest.mark.parametrize("places", [(0,), (99,), (0, 50), (0, 50, 99), (7, 8)])
def test_the_line_where_the_quote_opened(write: Write, places: tuple[int, ...]) -> None:
    path = write("clicks.csv", with_quotes(*places))
    what = (
        "a quote is out of place .unexpected end"
        if places == (99,)
        else "a quote opens in this row and is not"
    )
    with pytest.raises(DataError, match=f"clicks.csv, line {places[0] + 2}: {what}"):
        read(path)
    if places == (99,):  # no row follows that could be lost
        assert len(read(path, on_bad_row="skip")) == 99
    else:
        with pytest.raises(DataError, match=f"line {places[0] + 2}: a quote opens"):
            read(path, on_bad_row="skip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            'user,item\nu1,"i1\nu2,i2\nu3,i3\n',
            "line 2: a quote opens in this row and is not closed in its line;",
        ),
        ('user,item,title\nu1,i1,"A\nu2,i2,B\n', "line 2: a quote opens"),
        ('user,item,title\nu1,i1,"A\nB","C\nu2,i2,B\n', "line 2: a quote opens"),
        ('user,item,title\nu1,i1,"A\nu2,i2,"B"\n', "line 2: a quote opens"),
        # polars reads the next two without a word, and takes the rows from the quote on for a title
        ('user,item,title\nu1,i1,"A\nu2,i2,B\n"u3",i3,"C"', "line 2: a quote opens"),
        ('user,item,title\n"u1",i1,T\nu2,i2,"A\nu3,i3,B\nu4,i4,C\n"u5",i5,"D"', "line 3: a quote opens"),
        ('user,item\n"u1"x,i1\nu2,i2\n', "line 2: a quote is out of place .* expected quotes around a whole"),
        (
            'user,item\nu1,"i1\nu2",i2\nu3,i3\n',
            "line 2: a quote opens in this row and is not closed in its line",
        ),
    ],
)
def test_forms_of_the_fault(write: Write, content: str, message: str) -> None:
    path = write("clicks.csv", content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_what_is_no_fault(write: Write) -> None:
    content = 'user,item,title\n"u ""1""","i,1","two\nlines"\nu2,5" nail,"""q"""\nu3,i3,""\nu4,i4,a "b" c\n'
    data = read(write("clicks.csv", content))
    assert data.to_polars().rows() == [('u "1"', "i,1"), ("u2", '5" nail'), ("u3", "i3"), ("u4", "i4")]
    assert data.item_titles.to_list() == ['"q"', "two\nlines", None, 'a "b" c']


def test_a_separator_without_quotes_has_none(write: Write) -> None:
    data = read(write("x.inter", 'user_id:token\titem_id:token\nu1\t"i1\nu2\ti2\n'))
    assert data.to_polars().rows() == [("u1", '"i1'), ("u2", "i2")]


@pytest.mark.parametrize("spelling", ["0100001", "+100001", "-0", "0042"])
def test_spellings_anywhere_in_a_file_keep_ids_strings(
    write: Write, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """`0100001` and `100001` are two users, also where no sample of the file has the first."""
    monkeypatch.setattr(text, "_SAMPLE", 256)
    rows = [f"{100_000 + n},{n + 1}" for n in range(400)]
    rows.insert(100, f"{spelling},5")
    path = write("clicks.csv", "user,item\n" + "\n".join(rows) + "\n")
    assert spelling not in text.File(path, "x", 1 << 30).head
    data = read(path)
    assert {spelling, "100001"} <= set(data.user_ids.ids)
    assert data.num_users == 401
    assert data.item_ids.ids.dtype.is_integer()


@given(st.text(alphabet='a0,"\n\r+- ', max_size=40), st.integers(1, 50))
def test_pieces_of_any_size_find_the_same(lines: str, size: int) -> None:
    """A piece ends after a row, so quotes are out of place in one of them if they are in the whole."""
    before = text._CHUNK
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv")
        path.write_bytes(lines.encode())
        if not lines:
            return
        try:
            text._CHUNK = size
            pieces = list(text.File(path, "x", 1 << 30).chunks(quoted=True))
        finally:
            text._CHUNK = before
    assert b"".join(pieces) == lines.encode()
    assert any(odd_quotes(piece, ",") for piece in pieces) == odd_quotes(lines.encode(), ",")
