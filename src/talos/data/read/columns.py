"""Find the user column, the item column, …: by the name given, the usual names, a word in a name, or the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from talos.data.options import Columns
from talos.data.read.dates import parsed_dates
from talos.errors import DataError, Option, nearest

__all__ = ["WantedColumn", "find_columns", "folded", "guesses", "is_usual", "untyped", "wanted_columns"]

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
# Words by which a column that has no usual name may still be meant: `user_procid`, `buyerNo`, `web_track_key`.
_WORDS = {
    "user": "user customer client member visitor buyer shopper consumer subscriber account reviewer rater listener "
    "viewer player reader guest patron person",
    "item": "item product article sku asin isbn ean gtin upc track song movie film book game video show recipe "
    "merchandise good",
}
_NOUNS = {role: frozenset(words.split()) for role, words in _WORDS.items()}
# What such a name ends with if it is a key; `user_age` and `item_price` are not.
_KEYS = {"id", "key", "no", "nr", "num", "number", "code", "hash", "uuid", "guid", "pk", "ref", "token"}
_NOT_IDS = {
    "paid",
    "unpaid",
    "valid",
    "invalid",
    "bid",
    "grid",
    "mid",
}  # words that end in -id and are no ids
# Words for a time, for columns of numbers; columns of dates are times by their values.
_TIME_WORDS = {"at", "on", "time", "date", "datetime", "day", "when", "ts", "timestamp", "epoch", "seconds"}
_EPOCH = (10**8, 9 * 10**18)  # numbers that can be times since 1970: seconds from 1973, or finer units
# Words for how much an event counts.
_WEIGHT_WORDS = {"qty", "quantity", "count", "weight", "plays", "playcount", "amount", "strength", "units"}
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


def wanted_columns(columns: Columns) -> tuple[WantedColumn, ...]:
    """The columns of interactions."""
    return (
        WantedColumn(role="user", kind="id", given=columns.user or None, required=True),
        WantedColumn(role="item", kind="id", given=columns.item or None, required=True),
        WantedColumn(role="timestamp", kind="time", given=columns.timestamp),
        WantedColumn(role="rating", kind="number", given=columns.rating),
        WantedColumn(role="title", kind="text", given=columns.title),
    )


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


def find_columns(
    wanted: Sequence[WantedColumn],
    names: Sequence[str],
    where: str,
    values: Callable[[int], pl.Series] | None = None,
) -> dict[str, int]:
    """The position in `names` of each wanted column, by role; optional columns that are not there are left out.

    Users and items are also found by a word in the name, if that is one column only, and, of two columns, as the one
    that is left. Times are also found by their values, if one column only can be meant. `guesses` says what was found.

    Args:
        wanted: the columns to look for.
        names: of all columns.
        where: the source, for messages.
        values: some values of the column at a position.

    >>> find_columns([WantedColumn(role="item", kind="id")], ["userId", "movieId"], "x.csv")
    {'item': 1}
    >>> both = [WantedColumn(role=role, kind="id", required=True) for role in ("user", "item")]
    >>> find_columns(both, ["price", "web_sku", "user_procid"], "x.csv")
    {'user': 2, 'item': 1}
    """
    found: dict[str, int] = {}
    for one in wanted:
        position = _by_name(one, names, where) if one.given else None
        if one.given is None:
            taken = set(found.values())
            position = _by_usual_names(one.role, names, where, taken)
            if position is None and one.role in _NOUNS:
                position = _by_words(one.role, names, where, taken)
        if position is not None:
            found[one.role] = position
    missing = [one for one in wanted if one.required and one.role not in found]
    if len(missing) == 1 and len(names) == 2 and len(found) == 1:
        (left,) = {0, 1} - set(found.values())
        if not is_usual(names[left]):
            found[missing.pop().role] = left
    for one in missing:
        near = nearest(one.role, names)
        raise DataError(
            f"no {one.role} column among {_listing(names)}",
            where=where,
            expected=f"a usual name such as '{one.role}' or '{one.role}_id'",
            hint=near if near.startswith("did") else None,
            option=Option(one.role, "NAME", "names it"),
        )
    if values is not None and any(one.kind == "time" and one.given is None for one in wanted):
        times = [n for n in range(len(names)) if n not in found.values() and _is_time(names[n], values(n))]
        if "timestamp" not in found and len(times) == 1:
            found["timestamp"] = times[0]
    for role, position in found.items():
        other = next((r for r, p in found.items() if p == position and r != role), None)
        if other is not None:
            raise DataError(
                f"column {names[position]!r} is both {role} and {other}", where=where, expected="two columns"
            )
    return found


def guesses(wanted: Sequence[WantedColumn], names: Sequence[str], found: Mapping[str, int]) -> str:
    """Which column was taken for what, in words, where that is not plain from the names, and which could be a weight.

    Args:
        wanted: what was looked for.
        names: of all columns.
        found: the position of each role's column.

    >>> wanted = [WantedColumn(role=role, kind="id") for role in ("user", "item")]
    >>> guesses(wanted, ["sku", "customer", "shop"], {"user": 1, "item": 0})
    "column 'customer' is taken for the user, 'sku' for the item; 'shop' is not used"
    >>> guesses(wanted, ["user_id", "itemId"], {"user": 0, "item": 1})
    ''
    """
    guessed = {one.role: names[found[one.role]] for one in wanted if one.given is None and one.role in found}
    left = [name for position, name in enumerate(names) if position not in found.values()]
    weights = [name for name in left if "rating" not in found and _WEIGHT_WORDS.intersection(_words_of(name))]
    said = []
    if not all(_is_plain(role, name) for role, name in guessed.items()):
        taken = (
            f"{name!r}{' is taken' * (not n)} for the {role}"
            for n, (role, name) in enumerate(guessed.items())
        )
        said.append("column " + ", ".join(taken))
        left = [name for name in left if name not in weights]
        if left:
            said.append(f"{_listing(left)} {'is' if len(left) == 1 else 'are'} not used")
    if len(weights) == 1:
        said.append(f"{weights[0]!r} could be a weight: rating column {weights[0]!r} with weights 'rating'")
    return "; ".join(said)


def _is_plain(role: str, name: str) -> bool:
    groups = _GROUPS[role][:1] if role in _NOUNS else _GROUPS[role]
    return any(folded(name) in group for group in groups)


def _is_time(name: str, values: pl.Series) -> bool:
    """Whether a column holds times: dates, or numbers that can be times under a name with a word for one."""
    if values.dtype in (pl.Date, pl.Datetime):
        return True
    values = values.drop_nulls()
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        values = values.filter(values != "")
        if len(values) and parsed_dates(values).null_count() == 0:
            return True
        values = values.cast(pl.Float64, strict=False)
    if not values.dtype.is_numeric() or not len(values) or not set(_words_of(name)) & _TIME_WORDS:
        return False
    return bool(values.is_between(*_EPOCH).fill_null(False).all())


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
        expected=f"the name of the {wanted.role} column",
        hint=nearest(given, names),
    )


def _by_usual_names(role: str, names: Sequence[str], where: str, taken: set[int]) -> int | None:
    keys = [folded(name) for name in names]
    if role == "title" and _REVIEW_COLUMNS.intersection(keys):
        return None
    for group in _GROUPS[role]:
        matches = [position for position, key in enumerate(keys) if key in group and position not in taken]
        if matches:
            return _only(matches, role, names, where)
    return None


def _by_words(role: str, names: Sequence[str], where: str, taken: set[int]) -> int | None:
    matches = [
        position
        for position, name in enumerate(names)
        if position not in taken and not is_usual(name) and _is_key_of(role, name)
    ]
    return _only(matches, role, names, where) if matches else None


def _is_key_of(role: str, name: str) -> bool:
    """Whether a name has a word for the role, none for the other, and ends with that word or with one for a key.

    >>> [_is_key_of("user", name) for name in ("user_procid", "buyerNo", "CUSTOMERNUMBER", "user_age", "user_paid")]
    [True, True, True, False, False]
    """
    words: list[str] = []
    for word in _words_of(name):
        noun = next((one for one in _NOUNS[role] if word.startswith(one) and word[len(one) :] in _KEYS), "")
        words += [noun, word[len(noun) :]] if noun else [word]
    singular = {word.removesuffix("s") for word in words} | set(words)
    if not words or not singular & _NOUNS[role]:
        return False
    if any(singular & nouns for other, nouns in _NOUNS.items() if other != role):
        return False
    last = words[-1]
    is_id = last.endswith("id") and last not in _NOT_IDS
    return is_id or last in _KEYS or bool({last, last.removesuffix("s")} & _NOUNS[role])


def _words_of(name: str) -> list[str]:
    """The words of a name: `user_procId` has three."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", untyped(name)).casefold()
    return [word for word in re.split(r"[\W_]+", apart) if word]


def _only(matches: Sequence[int], role: str, names: Sequence[str], where: str) -> int:
    if len(matches) == 1:
        return matches[0]
    raise DataError(
        f"{' and '.join(repr(names[m]) for m in matches)} could each be the {role} column",
        where=where,
        expected="one of them",
        option=Option(role, "NAME", "names it"),
    )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
