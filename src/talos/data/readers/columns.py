"""Find the user column, the item column, …: by the name given, by the usual names, or by what is in a name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from talos.errors import DataError, nearest

__all__ = ["WantedColumn", "find_columns", "folded", "guesses", "is_usual", "untyped"]

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

    Users and items are also found by a word in the name, if that is one column only, and, of two columns, as the one
    that is left. `guesses` says what was found.

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
            hint=f"{near + ' ' if near.startswith('did') else ''}name it with {one.role}='NAME'",
        )
    for role, position in found.items():
        other = next((r for r, p in found.items() if p == position and r != role), None)
        if other is not None:
            raise DataError(
                f"column {names[position]!r} is both {role} and {other}", where=where, expected="two columns"
            )
    return found


def guesses(wanted: Sequence[WantedColumn], columns: Mapping[str, str]) -> str:
    """Which column was taken for what, in words, if that of the user or of the item is not plain from its name.

    Args:
        wanted: what was looked for.
        columns: role → name of the column that was found.

    >>> wanted = [WantedColumn(role=role, kind="id") for role in ("user", "item")]
    >>> guesses(wanted, {"user": "customer", "item": "sku"})
    "column 'customer' is taken for the user, 'sku' for the item"
    >>> guesses(wanted, {"user": "user_id", "item": "itemId"})
    ''
    """
    guessed = {one.role: columns[one.role] for one in wanted if one.given is None and one.role in columns}
    if all(folded(guessed[role]) in _GROUPS[role][0] for role in _NOUNS if role in guessed):
        return ""
    return "column " + ", ".join(
        f"{name!r} {'is taken ' * (place == 0)}for the {role}"
        for place, (role, name) in enumerate(guessed.items())
    )


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
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", untyped(name)).casefold()
    words: list[str] = []
    for word in re.split(r"[\W_]+", apart):
        noun = next((one for one in _NOUNS[role] if word.startswith(one) and word[len(one) :] in _KEYS), "")
        words += [noun, word[len(noun) :]] if noun else [word] if word else []
    singular = {word.removesuffix("s") for word in words} | set(words)
    if not words or not singular & _NOUNS[role]:
        return False
    if any(singular & nouns for other, nouns in _NOUNS.items() if other != role):
        return False
    last = words[-1]
    is_id = last.endswith("id") and last not in _NOT_IDS
    return is_id or last in _KEYS or bool({last, last.removesuffix("s")} & _NOUNS[role])


def _only(matches: Sequence[int], role: str, names: Sequence[str], where: str) -> int:
    if len(matches) == 1:
        return matches[0]
    raise DataError(
        f"{' and '.join(repr(names[m]) for m in matches)} could each be the {role} column",
        where=where,
        expected=f"one of them, named with {role}='NAME'",
    )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
