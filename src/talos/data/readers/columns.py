"""Which column is the user, which the item, …: from the names given, or guessed from the usual ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from talos.errors import DataError, nearest

Kind = Literal["id", "time", "number", "text"]

# The usual names, without case, spaces and punctuation. Within a role an earlier group wins over a later
# one, so that Amazon's `asin` beats `parent_asin`; two columns of the same group are an ambiguity.
USUAL: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "user": (
        ("user", "userid", "uid", "users", "username", "userhash"),
        (
            "reviewerid",
            "visitorid",
            "customerid",
            "customer",
            "memberid",
            "accountid",
            "profileid",
            "playerid",
        ),
        ("clientid", "personid", "authorid", "sessionid", "session", "visitor", "reviewer"),
    ),
    "item": (
        ("item", "itemid", "iid", "items"),
        ("movieid", "movie", "asin", "productid", "product", "articleid", "trackid", "songid", "artistid"),
        (
            "bookid",
            "isbn",
            "businessid",
            "gameid",
            "venueid",
            "locationid",
            "poiid",
            "contentid",
            "newsid",
            "sku",
        ),
        ("parentasin", "recipeid", "videoid", "anime", "animeid", "appid", "docid", "beerid"),
    ),
    "timestamp": (
        ("timestamp", "ts", "unixreviewtime", "unixtime", "unixtimestamp", "epoch"),
        ("eventtime", "time", "datetime", "date", "createdat", "ratedat", "eventdate", "checkintime"),
    ),
    "rating": (("rating", "ratings", "overall", "stars", "star", "starrating"), ("score", "ratingvalue")),
    "title": (
        ("itemtitle", "movietitle", "producttitle", "title"),
        ("itemname", "moviename", "productname", "name"),
    ),
    "rank": (("rank", "position", "pos"),),
    "score": (("score", "prediction", "predictedscore", "pred"), ("rating", "estimate", "probability")),
}
# A review has a title of its own, which is not the item's.
_REVIEW_COLUMNS = {"text", "reviewtext", "helpfulvote", "reviewbody", "reviewtitle"}


@dataclass(frozen=True, kw_only=True)
class Role:
    """One column that a reader looks for: its kind, the name the caller gave, whether it must be there.

    `given` is None to guess and empty to leave the column out.
    """

    name: str
    kind: Kind
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
    """Whether a name is one that columns usually have (and so stands in a header, not in data)."""
    key = folded(name)
    return any(key in group for groups in USUAL.values() for group in groups)


def make_roles(
    user: str | None, item: str | None, timestamp: str | None, rating: str | None, title: str | None
) -> list[Role]:
    """What a reader of interactions looks for.

    >>> [role.name for role in make_roles(None, None, None, "", None) if role.required]
    ['user', 'item']
    """
    return [
        Role(name="user", kind="id", given=user or None, required=True),
        Role(name="item", kind="id", given=item or None, required=True),
        Role(name="timestamp", kind="time", given=timestamp),
        Role(name="rating", kind="number", given=rating),
        Role(name="title", kind="text", given=title),
    ]


def resolve(roles: Sequence[Role], names: Sequence[str], where: str) -> dict[str, int]:
    """The position of each role's column; roles that are not there and need not be are left out."""
    found: dict[str, int] = {}
    for role in roles:
        position = _given(role, names, where) if role.given else None
        if role.given is None:
            position = _guessed(role, names, where, set(found.values()))
        if position is not None:
            found[role.name] = position
        elif role.required:
            near = nearest(role.name, names)
            raise DataError(
                f"no {role.name} column among {_listing(names)}",
                where=where,
                expected=f"a usual name such as '{role.name}' or '{role.name}_id'",
                hint=f"{near + ' ' if near.startswith('did') else ''}say which with {role.name}=…",
            )
    for name, position in found.items():
        other = next((n for n, p in found.items() if p == position and n != name), None)
        if other is not None:
            raise DataError(
                f"column {names[position]!r} is both {name} and {other}", where=where, expected="two columns"
            )
    return found


def _given(role: Role, names: Sequence[str], where: str) -> int:
    assert role.given is not None
    wanted = role.given
    for spelling in (str, str.casefold):
        matches = [position for position, name in enumerate(names) if spelling(name) == spelling(wanted)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise DataError(f"{len(matches)} columns called {wanted!r}", where=where, expected="one")
    raise DataError(
        f"no column {wanted!r}",
        where=where,
        expected=f"the {role.name} column, one of {_listing(names)}",
        hint=nearest(wanted, names),
    )


def _guessed(role: Role, names: Sequence[str], where: str, taken: set[int]) -> int | None:
    keys = [folded(name) for name in names]
    if role.name == "title" and _REVIEW_COLUMNS.intersection(keys):
        return None
    for group in USUAL[role.name]:
        matches = [position for position, key in enumerate(keys) if key in group and position not in taken]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise DataError(
                f"{' and '.join(repr(names[m]) for m in matches)} could each be the {role.name} column",
                where=where,
                expected=f"one of them, named with {role.name}=…",
            )
    return None


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
