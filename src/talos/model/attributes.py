"""Attributes of items: a table over the model's items, and filters on it.

The table has one row for each item, in the model's order. Its columns are strings, lists of strings, integers,
numbers or truth values; a missing value is null. Titles are kept apart, with the interactions, but a filter may ask
for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial, reduce
from operator import and_, ge, gt, le, lt
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.checks import require
from talos.data.vocabulary import Vocabulary
from talos.errors import ArgumentError, DataError, Option, nearest

__all__ = ["Filter", "align_items", "allowed_items", "check_attributes", "parse_filter"]

Filter: TypeAlias = Mapping[str, Mapping[str, Any]]
"""`{"must": {column: condition}, "must_not": {column: condition}}`; a condition is a value, several values of which one
must be the item's, or a range such as `{"gte": 1990, "lt": 2000}`."""

ATTRIBUTE_TYPES = (pl.String, pl.Int64, pl.Float64, pl.Boolean, pl.List(pl.String))
_BOUNDS: dict[str, Callable[..., Any]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def align_items(
    table: pl.DataFrame, item_ids: Vocabulary, *, where: str = "items"
) -> tuple[pl.Series | None, pl.DataFrame | None, int]:
    """A table of items over the model's items: titles, the other columns, and how many rows have an unknown item.

    Args:
        table: `item_id`, perhaps `title`, and attributes, as `talos.data.items.read_items` returns it.
        item_ids: the model's items.
        where: what an error calls the table.

    >>> table = pl.DataFrame({"item_id": ["tea", "rye"], "title": ["Tea", "Rye"], "hot": [True, False]})
    >>> titles, attributes, unknown = align_items(table, Vocabulary.of(["jam", "tea"]))
    >>> titles.to_list(), attributes["hot"].to_list(), unknown
    ([None, 'Tea'], [None, True], 1)
    """
    check = partial(require, where=where, error=DataError)
    check("item_id" in table.columns, "no column 'item_id'", expected="a table of items")
    ids = table["item_id"].cast(item_ids.ids.dtype, strict=False)
    bad, expected = table["item_id"].filter(ids.is_null()), "integer ids, like those of the interactions"
    check(bad.is_empty(), f"item id {bad.first()!r}", expected=expected)
    twice = ids.filter(ids.is_duplicated())
    check(twice.is_empty(), f"item {twice.first()!r} is there more than once", expected="each item once")
    known = int(ids.is_in(item_ids.ids.implode()).sum())
    check(known > 0, "none of the items occurs in the interactions", expected="ids of items")
    ours = pl.DataFrame({"item_id": item_ids.ids})
    found = ours.join(table.with_columns(item_id=ids), on="item_id", how="left", maintain_order="left")
    attributes = found.drop("item_id", "title", strict=False)
    check_attributes(attributes, where)
    titles = found["title"].cast(pl.String) if "title" in found.columns else None
    return titles, attributes if attributes.width else None, len(table) - known


def check_attributes(attributes: pl.DataFrame, where: str) -> None:
    """Raise if a column has a type that filters do not know."""
    expected = "strings, lists of strings, integers, numbers or truth values"
    for name, dtype in attributes.schema.items():
        require(
            dtype in ATTRIBUTE_TYPES,
            f"column {name!r} is {dtype}",
            where=where,
            expected=expected,
            error=DataError,
        )


def allowed_items(
    attributes: pl.DataFrame | None, titles: pl.Series | None, wanted: Filter
) -> NDArray[np.bool_]:
    """Which items (items,) satisfy a filter: all conditions of `must` and none of `must_not`.

    A condition holds for a list of values if it holds for one of them, and never for a missing value. Text is compared
    exactly; a number or a truth value may also be given as text.

    >>> table = pl.DataFrame({"genre": [["war", "drama"], ["drama"], None], "year": [1990, 2001, 2005]})
    >>> allowed_items(table, None, {"must": {"genre": "drama", "year": {"lt": 2000}}}).tolist()
    [True, False, False]
    >>> allowed_items(table, None, {"must_not": {"genre": ["war", "comedy"]}}).tolist()
    [False, True, True]
    """
    given: Any = wanted
    require(
        isinstance(given, Mapping),
        f"{given!r}",
        where="filter",
        expected="{'must': …, 'must_not': …}",
    )
    columns: dict[str, pl.Series] = {} if attributes is None else attributes.to_dict()
    if titles is not None:
        columns.setdefault("title", titles)
    allowed = np.ones(max(map(len, columns.values()), default=0), bool)
    for part, conditions in given.items():
        parts = ("must", "must_not")
        require(part in parts, f"{part!r}", where="filter", hint=nearest(str(part), parts))
        require(
            isinstance(conditions, Mapping),
            f"{conditions!r}",
            where=f"filter.{part}",
            expected="column and condition pairs",
        )
        for name, condition in conditions.items():
            where = f"filter.{part}.{name}"
            require(
                name in columns,
                "the items have no such attribute",
                where=where,
                hint=nearest(str(name), columns) if columns else None,
                option=() if columns else Option("items", "FILE", "gives them in training"),
            )
            allowed &= _holds(columns[name], condition, where) == (part == "must")
    return allowed


def _holds(column: pl.Series, condition: Any, where: str) -> NDArray[np.bool_]:
    """For which items a condition holds."""
    if isinstance(condition, Mapping):
        numbers, known = column.dtype.is_numeric(), bool(condition) and set(condition) <= set(_BOUNDS)
        require(numbers, "a range of text", where=where, expected="values, or a column of numbers")
        require(known, f"{dict(condition)!r}", where=where, expected=f"some of {', '.join(_BOUNDS)}")
        limits = {bound: _converted(value, pl.Float64(), where) for bound, value in condition.items()}
        found: pl.Series = reduce(and_, (_BOUNDS[bound](column, limit) for bound, limit in limits.items()))
    else:
        several = isinstance(condition, Sequence | set | frozenset) and not isinstance(condition, str)
        inner = pl.String() if column.dtype == pl.List(pl.String) else column.dtype
        values = [_converted(value, inner, where) for value in (condition if several else [condition])]
        wanted = pl.Series(values, dtype=inner)
        if column.dtype == inner:
            found = column.is_in(wanted.implode())
        else:
            found = column.list.eval(pl.element().is_in(wanted.implode())).list.any()
    return found.fill_null(False).to_numpy()


def _converted(value: Any, dtype: pl.DataType, where: str) -> Any:
    """A value of a condition in the type of its column."""
    if dtype == pl.String:
        require(isinstance(value, str | int | float), f"{value!r}", where=where, expected="text")
        return str(value)
    if dtype == pl.Boolean:
        truth = _TRUTH.get(str(value).lower())
        require(truth is not None, f"{value!r}", where=where, expected="true or false")
        return truth
    try:
        number = Decimal(str(value))  # exact beyond 2**53 too, of text such as 1990.0 or 1e3
    except InvalidOperation:
        number = Decimal("nan")
    finite = number.is_finite() and math.isfinite(float(number))
    require(finite, f"{value!r}", where=where, expected="a number")
    if dtype == pl.Float64:
        return float(number)
    # no integer equals 1.5, and none is beyond 64 bits
    return int(number) if abs(number) < 2**63 and number == int(number) else None


def parse_filter(conditions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A filter from text: `NAME=A,B`, `NAME!=A,B`, `NAME>=X`, `NAME<=X`, `NAME>X` or `NAME<X` each.

    >>> parse_filter(["genre=war,drama", "genre!=horror", "year>=1990", "year<2000"])
    {'must': {'genre': ['war', 'drama'], 'year': {'gte': '1990', 'lt': '2000'}}, 'must_not': {'genre': ['horror']}}
    """
    found: dict[str, dict[str, Any]] = {"must": {}, "must_not": {}}
    for text in conditions:
        parts = re.fullmatch(r"([^!<>=]+)(!=|>=|<=|=|>|<)(.+)", text, re.DOTALL)
        if parts is None:
            raise ArgumentError(
                f"{text!r}", where="filter", expected="NAME=VALUE,…, NAME!=VALUE,… or NAME>=NUMBER"
            )
        name, sign, value = parts.groups()
        if sign in ("=", "!="):
            part = found["must" if sign == "=" else "must_not"]
            part[name] = [*(part[name] if isinstance(part.get(name), list) else []), *value.split(",")]
        else:
            held = found["must"].get(name)
            bound = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}[sign]
            found["must"][name] = {**(held if isinstance(held, dict) else {}), bound: value}
    return {part: conditions for part, conditions in found.items() if conditions}
