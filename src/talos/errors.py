"""The library's own errors: what was wrong, where, and what was expected instead.

Everything that is the caller's to mend is an `InputError` (the command line exits with 2); everything
else that Talos can explain is a `TalosError` (exit code 1). Neither is shown with a traceback by the
command line unless asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = [
    "ArgumentError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "InUseError",
    "InputError",
    "MissingExtraError",
    "Option",
    "TalosError",
    "first_line",
    "nearest",
]


class TalosError(Exception):
    """Base of every error that Talos raises on purpose.

    >>> raise TalosError("training stopped")
    Traceback (most recent call last):
    talos.errors.TalosError: training stopped
    """

    exit_code = 1
    commands: tuple[tuple[str, str], ...] = ()
    """Commands that help, and what each does; the command line shows them below the message."""


class Option(NamedTuple):
    """An option that helps with an error, the value to give it, and what it does then.

    >>> str(Option("on_bad_row", "skip", "skips such rows"))
    "on_bad_row='skip' skips such rows"
    """

    name: str
    value: object
    effect: str

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} {self.effect}"


class InputError(TalosError, ValueError):
    """The user's input is wrong: says what was found, where, and what was expected.

    Args:
        what: what was found, as one clause.
        where: the file, line, column, option or argument it was found in.
        expected: what would have been right.
        hint: a way out, such as the nearest valid names; shown in brackets at the end.
        option: the option or options that help. Python shows them as keyword arguments, the command line as flags.
        commands: commands that help, each with what it does; shown by the command line alone.

    >>> print(InputError("'abc' is not a number", where="clicks.csv, line 3", expected="a timestamp"))
    clicks.csv, line 3: 'abc' is not a number; expected a timestamp
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
        option: Option | Iterable[Option] = (),
        commands: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.hint = hint
        self.options = (option,) if isinstance(option, Option) else tuple(option)
        self.commands = tuple(commands)
        super().__init__(self.message())

    def message(self, where: str | None = None, spelled: Callable[[Option], str | None] = str) -> str:
        """The whole message.

        Args:
            where: replaces the place of the error.
            spelled: writes an option; None leaves it out.
        """
        where = self.where if where is None else where
        text = _shortened(self.what) if where is None else f"{where}: {_shortened(self.what)}"
        if self.expected is not None:
            text += f"; expected {_shortened(self.expected)}"
        options = ", ".join(filter(None, map(spelled, self.options)))
        more = "; ".join(filter(None, (self.hint and _shortened(self.hint), options)))
        return f"{text} ({more})" if more else text


_LONGEST = 1000


def _shortened(text: str) -> str:
    """A text without its middle if it is very long: an id may have a million characters."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters) … {text[-half:]}"


class DataError(InputError):
    """A file, table or frame of interactions cannot be used as it is."""


class ConfigError(InputError):
    """A configuration, an option or a combination of them is not valid."""


class ArgumentError(InputError):
    """An argument of a Python call has the wrong shape, type or value; `where` is its name."""


class DownloadError(TalosError):
    """A named dataset could not be fetched from any of its sources."""

    commands = (("talos data list", "the data sets by name, and which of them are in the cache"),)


class InUseError(TalosError):
    """Another process is writing to the same place; the message names it."""


class MissingExtraError(TalosError, ImportError):
    """A feature needs an optional package that is not installed.

    >>> print(MissingExtraError("reading from PostgreSQL", extra="postgres"))
    reading from PostgreSQL needs an optional package: pip install 'talos-rec[postgres]'
    """

    exit_code = 2

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package: pip install 'talos-rec[{extra}]'")


def first_line(error: BaseException) -> str:
    r"""The first line of another library's error message, or the error's type if it has no message.

    >>> first_line(ValueError("no such table\nLINE 1: SELECT"))
    'no such table'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint for a mistyped name: the closest candidates, or all of them if none is close.

    >>> nearest("usr_id", ["user_id", "item_id", "rating"])
    "did you mean 'user_id'?"
    >>> nearest("zzz", ["user", "item"])
    'one of: item, user'
    """
    known = sorted(set(candidates))
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(by_folded[match]) for match in close) + "?"
    return "one of: " + ", ".join(known) if known else "nothing to choose from"
