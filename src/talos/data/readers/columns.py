"""Find the user column, the item column, …: by the name given, or by the usual names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from talos.errors import DataError, nearest

__all__ = ["WantedColumn", "find_columns", "folded", "is_usual", "untyped"]

# The usual names of each role, as `folded` spells them. An earlier group wins over a later one, so that Amazon's
# `asin` beats `parent_asin`; two columns of the same group are ambiguous.
_USUAL = {
    "user": (
        "user userid uid users username userhash",
        "reviewerid visitorid customerid customer memberid accountid profileid playerid",
        "clientid personid authorid sessionid session visitor reviewer",
    ),
    "item": (
        "item itemid iid items",
        "movieid movie asin productid product articleid trackid songid artistid",
        "bookid isbn businessid gameid venueid locationid poiid contentid newsid sku",
        "parentasin recipeid videoid anime animeid appid docid beerid",
    ),
    "timestamp": (
        "timestamp ts unixreviewtime unixtime unixtimestamp epoch",
        "eventtime time datetime date createdat ratedat eventdate checkintime",
    ),
    "rating": ("rating ratings overall stars star starrating", "score ratingvalue"),
    "title": ("itemtitle movietitle producttitle title", "itemname moviename productname name"),
    "rank": ("rank position pos",),
    "score": ("score prediction predictedscore pred", "rating estimate probability"),
}
_GROUPS = {role: [set(group.split()) for group in groups] for role, groups in _USUAL.items()}
# Reviews have a title of their own, which is not the item's.
_REVIEW_COLUMNS = {"text", "reviewtext", "helpfulvote", "reviewbody", "reviewtitle"}


@dataclass(frozen=True, kw_only=True)
class WantedColumn:
    """One column that a reader looks for.

    Attributes:
        role: what the column is for, such as "user"; columns that were read are called by it.
        kind: how its values are cleaned.
        given: the name that the caller gave; None to guess it, "" to leave the column out.
        required: whether it is an error if there is no such column.
    """

    role: str
    kind: Literal["id", "time", "number", "text"]
    given: str | None = None
    required: bool = False


def folded(name: str) -> str:
    """A column name without case, spaces, punctuation and a RecBole type suffix."""
    return "".join(letter for letter in untyped(name).casefold() if letter.isalnum())


def untyped(name: str) -> str:
    """A RecBole column name without its type: `user_id` of `user_id:token`."""
    head, _, kind = name.rpartition(":")
    return head if kind in {"token", "float", "token_seq", "float_seq"} else name


def is_usual(name: str) -> bool:
    """Whether this is a usual name of a column, so that it belongs to a header and not to the data."""
    return any(folded(name) in group for groups in _GROUPS.values() for group in groups)


def find_columns(wanted: Sequence[WantedColumn], names: Sequence[str], where: str) -> dict[str, int]:
    """The position in `names` of each wanted column, by role; optional columns that are not there are left out.

    >>> find_columns([WantedColumn(role="item", kind="id")], ["userId", "movieId"], "x.csv")
    {'item': 1}
    """
    found: dict[str, int] = {}
    for one in wanted:
        position = _by_name(one, names, where) if one.given else None
        if one.given is None:
            position = _by_usual_names(one.role, names, where, taken=set(found.values()))
        if position is not None:
            found[one.role] = position
        elif one.required:
            near = nearest(one.role, names)
            raise DataError(
                f"no {one.role} column among {_listing(names)}",
                where=where,
                expected=f"a usual name such as '{one.role}' or '{one.role}_id'",
                hint=f"{near + ' ' if near.startswith('did') else ''}name it with {one.role}='NAME'",
            )
    for role, position in found.items():
        other = next((r for r, p in found.items() if p == position and r != role), None)
        if other is not None:
            raise DataError(
                f"column {names[position]!r} is both {role} and {other}", where=where, expected="two columns"
            )
    return found


def _by_name(wanted: WantedColumn, names: Sequence[str], where: str) -> int:
    given = wanted.given or ""
    for spelling in (str, str.casefold):
        matches = [position for position, name in enumerate(names) if spelling(name) == spelling(given)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise DataError(f"{len(matches)} columns called {given!r}", where=where, expected="one")
    raise DataError(
        f"no column {given!r}",
        where=where,
        expected=f"the {wanted.role} column, one of {_listing(names)}",
        hint=nearest(given, names),
    )


def _by_usual_names(role: str, names: Sequence[str], where: str, taken: set[int]) -> int | None:
    keys = [folded(name) for name in names]
    if role == "title" and _REVIEW_COLUMNS.intersection(keys):
        return None
    for group in _GROUPS[role]:
        matches = [position for position, key in enumerate(keys) if key in group and position not in taken]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise DataError(
                f"{' and '.join(repr(names[m]) for m in matches)} could each be the {role} column",
                where=where,
                expected=f"one of them, named with {role}='NAME'",
            )
    return None


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
