"""The library's own errors: what was wrong, where, and what was expected instead.

Everything that is the caller's to mend is an `InputError` (the command line exits with 2); everything
else that Talos can explain is a `TalosError` (exit code 1). Neither is shown with a traceback by the
command line unless asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import overload

__all__ = [
    "ArgumentError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "InUseError",
    "InputError",
    "MissingExtraError",
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


class InputError(TalosError, ValueError):
    """The user's input is wrong: says what was found, where, and what was expected.

    Args:
        what: what was found, as one clause.
        where: the file, line, column, option or argument it was found in.
        expected: what would have been right.
        hint: a way out, such as the nearest valid names; shown in brackets at the end.
        commands: those that help, each with what it does; shown by the command line alone.

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
        commands: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.hint = hint
        self.commands = tuple(commands)
        what, expected, hint = _shortened(what), _shortened(expected), _shortened(hint)
        message = what if where is None else f"{where}: {what}"
        if expected is not None:
            message += f"; expected {expected}"
        super().__init__(message if hint is None else f"{message} ({hint})")


_LONGEST = 1000


@overload
def _shortened(text: str) -> str: ...
@overload
def _shortened(text: str | None) -> str | None: ...
def _shortened(text: str | None) -> str | None:
    """A text without its middle if it is very long: somebody's id may have a million characters."""
    if text is None or len(text) <= _LONGEST:
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
