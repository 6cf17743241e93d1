"""The options of a PATH: its columns, how it is read, cleaned and split.

No reader is imported here: the command line makes its flags from these classes, and `talos --help` must be quick.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from talos.checks import of_type, positive_integer, require
from talos.data.databases import without_password
from talos.errors import ArgumentError, ConfigError, DataError, InputError, nearest

__all__ = ["Cleaning", "Columns", "SourceOptions", "SplitBy", "Splitting", "read_source"]

SplitBy = Literal["user", "time", "future", "last"]


def _option(default: Any, help: str | None = None, flag: str | None = None) -> Any:  # noqa: A002
    """A field with its line of help and its flag on the command line; without help the command line leaves it out."""
    return field(default=default, metadata={"help": help, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The name of each column: None to find it by its name and values, "" to leave an optional one out.

    The columns of a file without header are called "1", "2", …
    """

    user: str | None = _option(None, "Name of the user column.", "--user-column")
    item: str | None = _option(None, "Name of the item column.", "--item-column")
    timestamp: str | None = _option(None, "Name of the time column.", "--time-column")
    rating: str | None = _option(None, "Name of the rating column.", "--rating-column")
    title: str | None = _option(None, "Name of the column with item titles.", "--title-column")


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How interactions are split into train, validation and test: the arguments of `talos.data.splits.split`."""

    by: SplitBy = _option(  # noqa: RUF009  # a field, not a shared default
        "user",
        "What is test: a random share of each `user`'s interactions, the latest of all by `time`, the same with the "
        "latest of the rest for validation (`future`), or each user's `last` one.",
    )
    test: float = _option(0.2, "Share of the interactions for test.")
    valid: float = _option(0.1, "Share of the rest for validation.")
    split_seed: int = _option(0, "Seed of the random split.")


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What is dropped. None is the paper's clean-up for a named dataset (unless `raw`), and nothing for other data."""

    min_rating: float | None = _option(None, "Drop ratings below this.")
    k_core: int | None = _option(None, "Keep users and items with at least this many interactions.")
    raw: bool = _option(False, "Take a named dataset without the paper's clean-up.")


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a PATH is read, cleaned and split.

    Attributes:
        columns: the name of each column.
        format: a value of `talos.data.source.FORMATS`; None to find it out.
        query: SQL that selects the rows of a database.
        table: the table of a database with several.
        ids: "auto" for integers where a column holds nothing else, or "string" to keep all ids strings.
        on_bad_row: "raise" an error for the first row that cannot be used, or "skip" such rows and count them.
        max_bytes: how large a compressed file may become.
        split: how the data are split.
        clean: what is dropped first.

    >>> SourceOptions.of(user="who", test=0.3).columns.user
    'who'
    """

    columns: Columns = Columns()
    format: str | None = _option(None, "Format of the file, if it is guessed wrongly.", "--input-format")
    query: str | None = _option(None, "SQL query, for a database URL.")
    table: str | None = _option(None)
    ids: Literal["auto", "string"] = _option(
        "auto",
        "`auto`: integers where a column holds nothing else; `string`: all ids stay as they are written.",
    )
    on_bad_row: Literal["raise", "skip"] = _option(
        "raise", "`raise` an error, or `skip` the row and count it."
    )
    max_bytes: int = _option(8 << 30)
    split: Splitting = Splitting()
    clean: Cleaning = Cleaning()

    @classmethod
    def of(cls, options: Self | None = None, /, **changes: Any) -> Self:
        """Options, some of them changed by their bare names; each value is checked.

        >>> SourceOptions.of(on_bad_row="ignore")
        Traceback (most recent call last):
        talos.errors.ArgumentError: on_bad_row: 'ignore'; expected 'raise' or 'skip'
        >>> SourceOptions.of(usr="who")
        Traceback (most recent call last):
        talos.errors.ArgumentError: usr: no such option (did you mean 'user'?)
        """
        values, kinds = (options or cls()).flat(), _kinds()
        for name, value in changes.items():
            require(name in kinds, "no such option", where=name, hint=nearest(name, kinds))
            values[name] = of_type(name, value, kinds[name])
        positive_integer("max_bytes", values["max_bytes"])
        for section, kind in _SECTIONS.items():
            values[section] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        return cls(**values)

    def flat(self) -> dict[str, Any]:
        """All values by their bare names."""
        return _without_sections(asdict(self))

    def given(self) -> dict[str, Any]:
        """The values that differ from their defaults, by their bare names."""
        return dict(self.flat().items() - SourceOptions().flat().items())

    def as_dict(self, path: str) -> dict[str, Any]:
        """What a run stores about its data: nested values and the path, without the password of a URL.

        >>> SourceOptions().as_dict("postgresql://me:secret@host/shop")["path"]
        'postgresql://me@host/shop'
        """
        return {"path": without_password(path), **asdict(self)}

    def to_toml(self, path: str) -> str:
        r"""The section `[data]` of a run.toml, which `read_source` reads back, with a comment for each option.

        Options at their default are comments, but for those of the split. There is no password of a URL.

        >>> print("\n".join(SourceOptions.of(user="who").to_toml("clicks.csv").splitlines()[:4]))
        [data]
        path = "clicks.csv"
        user = "who"                  # Name of the user column.
        # item =                      # Name of the item column.
        """
        lines = ["[data]", f"path = {json.dumps(without_password(path), ensure_ascii=False)}"]
        for part in (self.columns, self, self.split, self.clean):
            for one in fields(part):
                value, described = getattr(part, one.name), one.metadata.get("help")
                given = one.name not in _SECTIONS and (value != one.default or part is self.split)
                if given or described:
                    shown = "" if value is None else json.dumps(value, ensure_ascii=False)
                    line = f"{'' if given else '# '}{one.name} = {shown}"
                    lines.append(f"{line:<28}  # {described}" if described else line)
        return "\n".join(lines) + "\n"

    @classmethod
    def from_dict(cls, record: Any) -> Self:
        """Back from `as_dict`; what else the record holds, such as its path, is left to the caller.

        Raises:
            DataError: the record is damaged.

        >>> options = SourceOptions.of(user="who", by="time")
        >>> SourceOptions.from_dict(options.as_dict("clicks.csv")) == options
        True
        """
        try:
            values = _without_sections(record)
            of_type("path", values["path"], str)
            return cls.of(**{name: values[name] for name in _kinds()})
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise DataError(f"the record of its data is damaged ({error})", where="source") from None


_SECTIONS: Mapping[str, type[Columns | Splitting | Cleaning]] = {
    "columns": Columns,
    "split": Splitting,
    "clean": Cleaning,
}


def _without_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values by their bare names."""
    sections = [values[section] for section in _SECTIONS]
    return {
        name: value for part in (values, *sections) for name, value in part.items() if name not in _SECTIONS
    }


@cache
def _kinds() -> Mapping[str, Any]:
    """The type of each option."""
    parts = (SourceOptions, *_SECTIONS.values())
    return {
        name: kind for part in parts for name, kind in get_type_hints(part).items() if name not in _SECTIONS
    }


def read_source(config: str | os.PathLike[str]) -> tuple[str | None, SourceOptions]:
    r"""The PATH and the options in the section `[data]` of a run.toml; None and the defaults if it has none.

    Keys are the bare names of options, and `path`, which is relative to the current folder. `RunConfig.from_toml` reads
    the other sections.

    Raises:
        ConfigError: the file is not TOML, or a key of the section or its value is wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.toml")
    ...     _ = file.write_text('[data]\npath = "clicks.csv"\nby = "time"')
    ...     path, options = read_source(file)
    >>> path, options.split.by
    ('clicks.csv', 'time')
    """
    from talos.config import read_toml  # imports pydantic

    section = read_toml(Path(config), expected="a run config").get("data", {})
    require(
        isinstance(section, dict),
        repr(section),
        where=f"{config}: data",
        expected="a section",
        error=ConfigError,
    )
    for name in section:
        require(
            name == "path" or name in _kinds(),
            "no such key",
            where=f"{config}: data.{name}",
            hint=nearest(name, ["path", *_kinds()]),
            error=ConfigError,
        )
    try:
        path = of_type("path", section.pop("path", None), str | None)
        return path, SourceOptions.of(**section)
    except ArgumentError as error:
        where = f"{config}: data.{error.where}"
        raise ConfigError(error.what, where=where, expected=error.expected, hint=error.hint) from None
