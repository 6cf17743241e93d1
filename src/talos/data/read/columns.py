"""Find the user column, the item column, …: by the name given, the usual names, a word in a name, or the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import polars as pl

from talos.checks import require
from talos.errors import DataError, Option, nearest

__all__ = ["KINDS", "find_columns", "guesses", "is_usual", "parsed_dates", "untyped"]

# What a column is for, its role, and how its values are cleaned. Ids are required, the other columns optional.
KINDS: Mapping[str, Literal["id", "time", "number", "text"]] = {
    "user": "id",
    "item": "id",
    "timestamp": "time",
    "rating": "number",
    "title": "text",
    "rank": "number",
    "score": "number",
}

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
_NOUNS = {
    "user": "user customer client member visitor buyer shopper consumer subscriber account reviewer rater listener "
    "viewer player reader guest patron person",
    "item": "item product article sku asin isbn ean gtin upc track song movie film book game video show recipe "
    "merchandise good",
}
_ROLE_OF = {
    word: role for role, nouns in _NOUNS.items() for noun in nouns.split() for word in (noun, noun + "s")
}
# What such a name ends with if it is a key; `user_age` and `item_price` are not.
_KEYS = {"id", "key", "no", "nr", "num", "number", "code", "hash", "uuid", "guid", "pk", "ref", "token"}
_NO_KEYS = {"paid", "unpaid", "valid", "invalid", "bid", "grid", "mid"}  # words that end in -id
_COMPOUND = re.compile(rf"\b({'|'.join(_ROLE_OF)})({'|'.join(_KEYS)})\b")  # `customernumber`
# Words for a time, for columns of numbers; columns of dates are times by their values.
_TIME_WORDS = {"at", "on", "time", "date", "datetime", "day", "when", "ts", "timestamp", "epoch", "seconds"}
_EPOCH = (10**8, 9 * 10**18)  # numbers that can be times since 1970: seconds from 1973, or finer units
# Words for how much an event counts.
_WEIGHT_WORDS = {"qty", "quantity", "count", "weight", "plays", "playcount", "amount", "strength", "units"}
# Reviews have a title of their own, which is not the item's.
_REVIEW_COLUMNS = {"text", "reviewtext", "helpfulvote", "reviewbody", "reviewtitle"}
_TIME_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    # Dates with dots have the day first everywhere; dates with slashes are ambiguous.
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
)


def untyped(name: str) -> str:
    """A RecBole column name without its type: `user_id` of `user_id:token`."""
    head, _, kind = name.rpartition(":")
    return head if kind in {"token", "float", "token_seq", "float_seq"} else name


def is_usual(name: str) -> bool:
    """Whether this is a usual name of a column, so that it belongs to a header and not to the data."""
    return any(_folded(name) in group for groups in _GROUPS.values() for group in groups)


def parsed_dates(text: pl.Series) -> pl.Series:
    """Seconds since 1970 of each date in a column of text; null where there is none."""
    seconds = pl.repeat(None, len(text), dtype=pl.Int64, eager=True)
    for layout in _TIME_FORMATS:
        parsed = text.str.to_datetime(layout, strict=False, time_unit="us", ambiguous="null")
        seconds = seconds.fill_null(parsed.dt.epoch("s").cast(pl.Int64))
        if seconds.null_count() == 0:
            break
    return seconds


def find_columns(
    wanted: Mapping[str, str | None],
    names: Sequence[str],
    where: str,
    values: Callable[[int], pl.Series] | None = None,
    labels: Sequence[str] | None = None,
) -> dict[str, int]:
    """The position in `names` of each wanted column, by role; optional columns that are not there are left out.

    Users and items are also found by a word in the name, if that is one column only, and, of two columns, as the one
    that is left. Times are also found by their values, if one column only can be meant. `guesses` says what was found.

    Args:
        wanted: role → the name that the caller gave; None to guess it, "" to leave an optional column out.
        names: of all columns.
        where: the source, for messages.
        values: some values of the column at a position.
        labels: what columns are for that are called by their position; nothing else is guessed then.

    >>> find_columns({"item": None}, ["userId", "movieId"], "x.csv")
    {'item': 1}
    >>> find_columns({"user": None, "item": None}, ["price", "web_sku", "user_procid"], "x.csv")
    {'user': 2, 'item': 1}
    """
    check = partial(require, where=where, error=DataError)
    found: dict[str, int] = {}
    for role, given in wanted.items():
        if given == "" and KINDS[role] != "id":
            continue
        groups = _named(given, names) if given else _candidates(role, labels or names, found.values())
        matches = next(filter(None, groups), [])
        check(
            bool(matches) or not given,
            f"no column {given!r}",
            expected=f"the name of the {role} column",
            hint=nearest(given or role, names),
        )
        check(
            len(matches) < 2,
            f"{' and '.join(repr(names[position]) for position in matches)} could each be the {role} column",
            expected="one of them",
            option=Option(role, "NAME", "names it"),
        )
        for position in matches:
            same_column = [other for other in found if found[other] == position]
            both = " and ".join([*same_column, role])
            check(not same_column, f"column {names[position]!r} is both {both}", expected="two columns")
            found[role] = position
    missing = [role for role in wanted if KINDS[role] == "id" and role not in found]
    left = [position for position, name in enumerate(names) if position not in found.values()]
    if len(missing) == len(left) == len(found) == 1 and not is_usual(names[left[0]]):
        found[missing.pop()] = left.pop()
    for role in missing:
        near = nearest(role, names)
        raise DataError(
            f"no {role} column among {_listing(names)}",
            where=where,
            expected=f"a usual name such as '{role}' or '{role}_id'" if labels is None else "its position",
            hint=near if near.startswith("did") else None,
            option=Option(role, "NAME", "names it"),
        )
    guess_time = "timestamp" not in found and wanted.get("timestamp", "") is None
    if guess_time and values is not None and labels is None:
        times = [position for position in left if _is_time(names[position], values(position))]
        if len(times) == 1:
            found["timestamp"] = times[0]
    return {role: found[role] for role in wanted if role in found}


def guesses(wanted: Mapping[str, str | None], names: Sequence[str], found: Mapping[str, int]) -> str:
    """Which column was taken for what, in words, where that is not plain from the names, and which could be a weight.

    Args:
        wanted: what was looked for.
        names: of all columns.
        found: the position of each role's column.

    >>> wanted = {"user": None, "item": None}
    >>> guesses(wanted, ["sku", "customer", "shop"], {"user": 1, "item": 0})
    "column 'customer' is taken for the user, 'sku' for the item; 'shop' is not used"
    >>> guesses(wanted, ["user_id", "itemId"], {"user": 0, "item": 1})
    ''
    """
    guessed = {role: names[position] for role, position in found.items() if not wanted[role]}
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


def _named(given: str, names: Sequence[str]) -> Iterator[list[int]]:
    """The columns of a name; if there are none, those that differ in case alone."""
    yield [position for position, name in enumerate(names) if name == given]
    yield [position for position, name in enumerate(names) if name.casefold() == given.casefold()]


def _candidates(role: str, names: Sequence[str], taken: Collection[int]) -> Iterator[list[int]]:
    """The columns that a role may mean, the likelier ones first; those of one group are equally likely."""
    free = {position: name for position, name in enumerate(names) if position not in taken}
    if role == "title" and _REVIEW_COLUMNS.intersection(map(_folded, names)):
        return
    for group in _GROUPS[role]:
        yield [position for position, name in free.items() if _folded(name) in group]
    yield [position for position, name in free.items() if not is_usual(name) and _is_key_of(role, name)]


def _is_key_of(role: str, name: str) -> bool:
    """Whether a name has a word for the role, none for the other, and ends with that word or with one for a key.

    >>> [_is_key_of("user", name) for name in ("user_procid", "buyerNo", "CUSTOMERNUMBER", "user_age", "user_paid")]
    [True, True, True, False, False]
    """
    words = _words_of(name)
    last = words[-1] if words else ""
    is_key = last in _ROLE_OF or last in _KEYS or (last.endswith("id") and last not in _NO_KEYS)
    return is_key and {_ROLE_OF[word] for word in words if word in _ROLE_OF} == {role}


def _is_plain(role: str, name: str) -> bool:
    groups = _GROUPS[role][:1] if KINDS[role] == "id" else _GROUPS[role]
    return any(_folded(name) in group for group in groups)


def _is_time(name: str, values: pl.Series) -> bool:
    """Whether a column holds times: dates, or numbers that can be times under a name with a word for one."""
    values = values.drop_nulls()
    if values.dtype in (pl.Date, pl.Datetime):
        return True
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        values = values.filter(values != "")
        if len(values) and parsed_dates(values).null_count() == 0:
            return True
        values = values.cast(pl.Float64, strict=False)
    named = values.dtype.is_numeric() and len(values) and set(_words_of(name)) & _TIME_WORDS
    return bool(named and values.is_between(*_EPOCH).fill_null(False).all())


def _folded(name: str) -> str:
    """A column name without case, spaces, punctuation and a RecBole type suffix."""
    return "".join(letter for letter in untyped(name).casefold() if letter.isalnum())


def _words_of(name: str) -> list[str]:
    """The words of a name: `user_procId` has three, and so has `web_itemno`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", untyped(name)).casefold()
    return _COMPOUND.sub(r"\1 \2", re.sub(r"[\W_]+", " ", apart)).split()


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
