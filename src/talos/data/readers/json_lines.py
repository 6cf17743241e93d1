"""JSON lines (and one JSON array): Amazon reviews and what most services export."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import polars as pl

from talos.data.readers.columns import Role, resolve
from talos.data.readers.options import Options
from talos.data.readers.table import Table, polars_errors
from talos.data.readers.text import Text, first_lines
from talos.data.readers.values import clean, settle
from talos.errors import DataError

__all__ = ["looks_like_json", "read_json"]

_INT64 = range(-(2**63), 2**63)


def looks_like_json(text: Text) -> bool:
    """Whether the first line opens an object or an array of objects."""
    first = next(iter(first_lines(text, 1)), "").lstrip()
    return first.startswith(("{", '[{"')) or first.rstrip() in ("[", "[{")


def read_json(text: Text, roles: Sequence[Role], options: Options) -> Table:
    """Read one JSON object a line, or one array of objects."""
    content = text.content().removeprefix(b"\xef\xbb\xbf")
    first: dict[str, Any] = {}
    names: dict[str, None] = {}
    fault = DataError("no JSON object in the first lines", where=text.name, expected="one JSON object a line")
    for _, record in islice(_records(content, text.name), 100):
        if isinstance(record, dict):
            first = first or record
            names |= dict.fromkeys(record)
        elif isinstance(record, DataError):
            fault = record
    if not names:
        raise fault
    keys = list(names)
    found = {name: keys[position] for name, position in resolve(roles, keys, text.name).items()}
    quick = _by_polars(content, first, roles, found, text.name, options)
    return quick or _object_by_object(content, roles, found, text.name, options)


def _by_polars(
    content: bytes,
    first: Mapping[str, Any],
    roles: Sequence[Role],
    found: Mapping[str, str],
    name: str,
    options: Options,
) -> Table | None:
    if _is_array(content):
        return None
    schema: dict[str, pl.DataType] = {}
    for role in roles:
        if role.name in found:
            value = first.get(found[role.name])
            whole = role.kind == "id" or (role.kind == "time" and isinstance(value, int))
            if role.kind == "text" or isinstance(value, str):
                schema[found[role.name]] = pl.String()
            else:
                schema[found[role.name]] = pl.Int64() if whole else pl.Float64()
    try:
        with polars_errors(name):
            frame = pl.read_ndjson(io.BytesIO(content), schema=schema)
            frame = frame.select([pl.col(key).alias(role) for role, key in found.items()])
            # polars makes strings of numbers and objects where strings are wanted; count the quotes instead.
            for role in roles:
                key = found.get(role.name)
                if role.kind == "id" and key is not None and schema[key] == pl.String:
                    quoted = sum(content.count(f'{json.dumps(key)}:{gap}"'.encode()) for gap in ("", " "))
                    if quoted != len(frame):
                        return None
            cleaned, problems = clean(frame, roles, found, where=name, text=False, ids=options.ids)
    except DataError:
        return None
    if problems or not len(cleaned):
        return None
    return Table(frame=cleaned, source=name, format="jsonl", rows=len(cleaned))


def _object_by_object(
    content: bytes, roles: Sequence[Role], found: Mapping[str, str], name: str, options: Options
) -> Table:
    kinds = {role.name: role.kind for role in roles}
    types: dict[str, type] = {}  # of the ids, by the first one of each role
    values: dict[str, list[Any]] = {role: [] for role in found}
    numbers = array("q")
    bad = 0

    def usable(record: Any) -> dict[str, Any]:
        place = _place(content, name, number)
        if isinstance(record, DataError):
            raise record
        if not isinstance(record, dict):
            raise DataError(f"a {_kind(record)}", where=place, expected="a JSON object")
        row = {role: record.get(key) for role, key in found.items()}
        for role, value in row.items():
            if kinds[role] == "id" and value is not None:
                expected = types.setdefault(role, type(value)) if type(value) in (str, int) else None
                if type(value) is not expected or (isinstance(value, int) and value not in _INT64):
                    wanted = types.get(role)
                    article = {str: "strings, as before", int: "64-bit integers, as before"}
                    raise DataError(
                        f"{_short(value)} is a {_kind(value)} in {found[role]!r}",
                        where=place,
                        expected=f"ids of one type: {article[wanted] if wanted else 'strings or integers'}",
                    )
            elif not isinstance(value, (str, int, float, type(None))):
                raise DataError(f"{_short(value)} in {found[role]!r}", where=place, expected=f"a {role}")
            if isinstance(value, str) and not _is_unicode(value):
                raise DataError(f"half a character in {found[role]!r}", where=place, expected="valid Unicode")
        return row

    for number, record in _records(content, name):
        try:
            row = usable(record)
        except DataError:
            if options.on_bad_row == "raise":
                _settled(
                    content, values, roles, found, name, options, numbers
                )  # an earlier row may be bad as well
                raise
            bad += 1
            continue
        numbers.append(number)
        for role, value in row.items():
            values[role].append(value)
    frame, more = _settled(content, values, roles, found, name, options, numbers)
    return Table(frame=frame, source=name, format="jsonl", rows=len(numbers) + bad, bad_rows=bad + more)


def _settled(
    content: bytes,
    values: Mapping[str, list[Any]],
    roles: Sequence[Role],
    found: Mapping[str, str],
    name: str,
    options: Options,
    numbers: Sequence[int],
) -> tuple[pl.DataFrame, int]:
    kinds = {role.name: role.kind for role in roles}
    with polars_errors(name):
        series = []
        for role, column in values.items():
            if kinds[role] == "id":
                series.append(pl.Series(role, column, strict=True))
            else:  # numbers may be written as strings: one type for all, told apart later
                texts = [None if v is None else v if isinstance(v, str) else repr(v) for v in column]
                series.append(pl.Series(role, texts, dtype=pl.String))
        cleaned, problems = clean(pl.DataFrame(series), roles, found, where=name, text=False, ids=options.ids)
        return settle(
            cleaned, problems, found, options.on_bad_row, lambda row: _place(content, name, numbers[row])
        )


def _is_array(content: bytes) -> bool:
    return content.lstrip()[:1] == b"["


def _place(content: bytes, name: str, number: int) -> str:
    return f"{name}, {'object' if _is_array(content[:1000]) else 'line'} {number}"


def _records(content: bytes, name: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each record; a `DataError` as the value of one that cannot be parsed."""
    if _is_array(content):
        try:
            yield from enumerate(json.loads(content), 1)
        except (ValueError, RecursionError) as error:
            raise DataError(f"is not JSON ({error})", where=name, expected="an array of objects") from error
        return
    for number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or type(error).__name__
                place = f"{name}, line {number}"
                yield (
                    number,
                    DataError(f"not JSON ({reason})", where=place, expected="one JSON object a line"),
                )


def _is_unicode(value: str) -> bool:
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _kind(value: object) -> str:
    names = {
        str: "string",
        bool: "truth value",
        int: "number",
        float: "number",
        list: "list",
        dict: "JSON object",
    }
    return names.get(type(value), "null")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
