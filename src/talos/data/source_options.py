"""The options of a PATH: how it is read, cleaned and split.

They stand apart from `talos.data.open` because the command line makes its flags from them, and a module that
loads no reader keeps `talos --help` quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from talos.data.databases import without_password
from talos.errors import DataError

__all__ = ["SourceOptions"]


def _option(default: Any, help: str) -> Any:  # noqa: A002
    """A field with the line that describes it on the command line."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a PATH is read, cleaned and split; the fields up to `on_bad_row` say how it is read.

    A column that is None is guessed from the usual names. `min_rating` and `k_core` default to the paper's
    clean-up for a named dataset (unless `raw`) and to no clean-up for anything else.

    >>> SourceOptions(user="who", test=0.3).reading()["user"]
    'who'
    """

    user: str | None = _option(None, "Name of the user column.")
    item: str | None = _option(None, "Name of the item column.")
    timestamp: str | None = _option(None, "Name of the time column.")
    rating: str | None = _option(None, "Name of the rating column.")
    title: str | None = _option(None, "Name of the column with item titles.")
    format: str | None = _option(None, "Format of the file, if it is guessed wrongly.")
    query: str | None = _option(None, "SQL query, for a database URL.")
    ids: Literal["auto", "string"] = _option(
        "auto",
        "`auto`: integers where a column holds nothing else; `string`: all ids stay as they are written.",
    )
    on_bad_row: Literal["raise", "skip"] = _option(
        "raise", "`raise` an error, or `skip` the row and count it."
    )
    by: Literal["user", "time", "future", "last"] = _option(
        "user",
        "What is test: a random share of each `user`'s interactions, the latest of all by `time`, the same with the "
        "latest of the rest for validation (`future`), or each user's `last` one.",
    )
    test: float = _option(0.2, "Share of the interactions for test.")
    valid: float = _option(0.1, "Share of the rest for validation.")
    split_seed: int = _option(0, "Seed of the random split.")
    min_rating: float | None = _option(None, "Drop ratings below this.")
    k_core: int | None = _option(None, "Keep users and items with at least this many interactions.")
    raw: bool = _option(False, "Take a named dataset without the paper's clean-up.")

    def reading(self) -> dict[str, Any]:
        """The options that say how to read, as arguments of `talos.read`."""
        return {name: getattr(self, name) for name in _NAMES[: _NAMES.index("by")]}

    def splitting(self) -> dict[str, Any]:
        """The options that say how to clean and split."""
        return {name: getattr(self, name) for name in _NAMES[_NAMES.index("by") :]}

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def for_other_data(self, asked: Self) -> Self:
        """Options for a second source of the same kind: this one's columns and format, changed as `asked`.

        Nothing else is taken over: a query belongs to one database, and how this source was cleaned and split
        says nothing about the other.

        >>> trained_on = SourceOptions(user="who", k_core=5)
        >>> trained_on.for_other_data(SourceOptions(item="what")).given()
        {'user': 'who', 'item': 'what'}
        """
        return replace(asked, **{**self.reading(), "query": None, **asked.given()})

    def as_dict(self, path: str) -> dict[str, Any]:
        """What `model.json` and `tune.json` store under `source`; the password of a URL is not stored.

        >>> SourceOptions().as_dict("postgresql://me:secret@host/shop")["path"]
        'postgresql://me@host/shop'
        """
        columns = self.reading()
        if self.ids == "auto":  # as it was stored before there was a choice
            del columns["ids"]
        return {"path": without_password(path), "columns": columns, "split": self.splitting()}

    @classmethod
    def from_dict(cls, source: Any) -> Self:
        """Back from `as_dict`; the path is left to the caller.

        Raises:
            DataError: the record is damaged.

        >>> options = SourceOptions(user="who", by="time")
        >>> SourceOptions.from_dict(options.as_dict("clicks.csv")) == options
        True
        """
        try:
            if not isinstance(source, Mapping) or not isinstance(source["path"], str):
                raise TypeError("it has no path")
            options = cls(**source["columns"], **source["split"])
            for name, kind in _KINDS.items():
                if not isinstance(value := getattr(options, name), kind) or (
                    isinstance(value, bool) and name != "raw"
                ):
                    raise TypeError(f"{name} is {value!r:.40}")
        except (KeyError, TypeError) as error:
            raise DataError(f"the record of its data is damaged ({error})", where="source") from None
        return options


_NAMES = [one.name for one in fields(SourceOptions)]
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("user", "item", "timestamp", "rating", "title", "format", "query"), (str, type(None))),
    **dict.fromkeys(("on_bad_row", "by", "ids"), (str,)),
    **dict.fromkeys(("test", "valid"), (int, float)),
    "split_seed": (int,),
    "min_rating": (int, float, type(None)),
    "k_core": (int, type(None)),
    "raw": (bool,),
}
