"""Errors at the front of the command line: one message with flags for Python's arguments, or the report of a bug.

Errors of the library become a message, with a command that helps below it. Errors of the operating system, of memory
and of allocation, and errors in a class of the user's own, become one line that names the place; anything else is a
bug. `context` is that of the command that failed, as click has parsed it; None if the line names no command.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from talos.cli.options import StudyOptions
from talos.cli.output import LONGEST_MESSAGE, printable
from talos.data.databases import without_passwords
from talos.errors import DataError, InputError, Option, TalosError
from talos.files import WRONG_NAME

__all__ = ["close_stdout", "explained", "traceback_of"]


def explained(error: BaseException, context: Any) -> tuple[str, int]:
    """Message and exit code of an error of the command with this context; below the message a command that helps."""
    if isinstance(error, TalosError):
        message = _in_flags(error, context) if isinstance(error, InputError) else str(error)
        code = error.exit_code
    else:
        out = None if context is None else context.params.get("out")
        place = "talos" if context is None else context.command_path + (f", --out {out}" if out else "")
        found = _outside_failure(error, place)
        if found is None:
            return _bug_report(error), 1
        message, code = found
    lines = [f"error: {message}", *_advice(error, message, context)]
    return "\n".join(printable(line, longest=LONGEST_MESSAGE) for line in lines), code


# A message that names a command, or what to add to the one that was typed, needs no other.
_SAYS_WHAT_TO_DO = re.compile(r"pip install |\btalos [a-z]+ |--resume\b")


def _in_flags(error: InputError, context: Any) -> str:
    """The message of an error, with the flags of the command for arguments and options of Python.

    An option that the command does not have is spelled as a flag of `talos train`, for advice to train again; one that
    has no flag at all is left out.
    """
    if context is None:
        return error.message()
    own = _flags(context.command)
    flags = {**_flags(context.find_root().command.commands["train"]), **own}

    def spelled(option: Option) -> str | None:
        name, value, effect = option
        flag = f"--set {name}=" if "." in name else flags.get(name)
        if flag is None or value is True:
            return flag and f"{flag} {effect}"
        return f"{flag}{'' if '.' in name else ' '}{shlex.quote(str(value))} {effect}"

    keys = {one.metadata["key"]: one.name for one in fields(StudyOptions) if one.metadata["key"]}
    given = {key: own[name] for key, name in keys.items() if context.params.get(name) is not None}
    places = {**own, **_assigned(context.params.get("assignments") or (), given), **given}
    return error.message(places.get(error.where or ""), spelled)


def _flags(command: Any) -> dict[str, str]:
    """Python's name → flag, for the options of a command."""
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    return {one.name: one.opts[0] for one in options}


def _assigned(assignments: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """Where an error about `--set KEY=VALUE` may be found → `--set KEY`: the sections of a key, and its names.

    The kind of a choice, where an unknown name is found, is one of them unless a flag has `given` its name.

    >>> _assigned(["lss.tau=1"], ())
    {'lss': '--set lss.tau', 'tau': '--set lss.tau', 'lss.tau': '--set lss.tau'}
    """
    keys = [key for key, equals, _ in (text.partition("=") for text in assignments) if equals]
    sections = {
        ".".join(key.split(".")[:count]): key for key in keys for count in range(1, key.count(".") + 1)
    }
    names = {name: key for key in keys for name in (key.rpartition(".")[2], key)}
    kinds = {key.removesuffix(".name"): key for key in keys if key.endswith(".name") and key not in given}
    return {place: f"--set {key}" for place, key in (sections | names | kinds).items()}


def _advice(error: BaseException, text: str, context: Any) -> list[str]:
    """The lines below the message `text` of an error: commands that help, and what each does.

    An error may bring its own (`TalosError.commands`); else the command follows from what was wrong. None where the
    message itself says what to do, or where no command can help, as with a full disk.
    """
    found = getattr(error, "commands", ())
    if not found and context is not None and not _SAYS_WHAT_TO_DO.search(text):
        helpful = _helpful(error, text, context)
        found = () if helpful is None else (helpful,)
    width = max((len(line) for line, _ in found), default=0)
    return [f"  {line:<{width}}   {what}" for line, what in found]


def _helpful(error: BaseException, text: str, context: Any) -> tuple[str, str] | None:
    """The command that helps with an error of the command that was run, and what it does."""
    name, where = context.command_path, getattr(error, "where", None) or ""
    if _is_missing_memory(error):
        explain = "shows what would be trained, and the memory that it takes"
        return (f"{name} PATH --explain", explain) if name == "talos train" else None
    if not isinstance(error, InputError):
        return None
    if isinstance(error, DataError):
        typed = [str(context.params[one]) for one in ("run", "path") if context.params.get(one) is not None]
        about_them = where.startswith(tuple(typed))
        if about_them and "run" in context.params:
            return "talos train PATH -o RUN", "trains a run"
        if about_them and name != "talos data describe":
            return (
                f"talos data describe {shlex.quote(typed[-1])}",
                "reads the data alone, with the same options",
            )
    if context.params.get("config") is not None and not text.startswith("-"):
        return "talos init PATH -o run.toml", "writes a config with every key and a comment"
    return f"{name} --help", "all options of this command"


# What torch, numpy, polars and Python say when memory or a thread cannot be had.
_NO_MEMORY = re.compile(
    r"can.t allocate memory|not enough memory|out of memory|Cannot allocate memory|Unable to allocate|bad_alloc|"
    r"alloc_cpu|Storage size calculation overflowed|can't start new thread|Invalid size|capacity overflow|"
    r"memory allocation of|numel: integer multiplication overflow|Array is too big|Maximum allowed (dimension|size)",
    re.IGNORECASE,
)
# How Rust's libraries (polars, safetensors) write an error of the operating system into their own.
_RUST_ERROR = re.compile(r"([^:()]*)\(os error (\d+)\)")


def _is_missing_memory(error: BaseException) -> bool:
    """Whether memory could not be had, by whatever type of error a library says so.

    >>> _is_missing_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), _is_missing_memory(KeyError())
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    kinds = (RuntimeError, ValueError, OverflowError)
    return (isinstance(error, kinds) or "Panic" in type(error).__name__) and bool(
        _NO_MEMORY.search(str(error))
    )


def _outside_failure(error: BaseException, command: str) -> tuple[str, int] | None:
    """Message and exit code of an error from outside the library; None if it is something else.

    Args:
        error: what was raised.
        command: the place where the error names none.

    >>> _outside_failure(PermissionError(13, "Permission denied", "/root/x"), "talos train")
    ('/root/x: Permission denied', 2)
    >>> _outside_failure(FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "talos train")
    ("talos train: No usable temporary directory found in ['/tmp']", 1)
    >>> _outside_failure(MemoryError(), "talos train, --out run")
    ('talos train, --out run: not enough memory', 1)
    """
    if _is_missing_memory(error):
        wanted = re.search(r"allocate (\d+) bytes", str(error))
        amount = f" (another {int(wanted[1]) / 2**30:,.1f} GiB were asked for)" if wanted else ""
        return f"{command}: not enough memory{amount}", 1
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (rust := _RUST_ERROR.search(str(error))):
        number = int(rust[2])
    if number is None and "disk is full" in str(error):  # as SQLite says it
        number = errno.ENOSPC
    if number is None:
        registry = sys.modules.get("talos.registry")  # not imported: no class of the user's own was made
        own = registry and registry.failure_of_own_class(error)
        return (f"{own}; --debug shows more", 2) if own else None
    named = [name for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    place = (
        " → ".join(one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in named)
        or command
    )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else os.strerror(number)
    return f"{place}: {reason}", 2 if number in WRONG_NAME and named else 1


def traceback_of(error: BaseException) -> str:
    """The traceback as text, without passwords and control characters."""
    text = without_passwords("".join(traceback.format_exception(error)))
    return "\n".join(printable(line, longest=2000) for line in text.splitlines())


def _bug_report(error: BaseException) -> str:
    """What is shown for an error that nobody foresaw: the traceback, that it is our fault, and how to report it."""
    return (
        f"{traceback_of(error)}\n\n"
        "error: this is a bug in Talos, not in your input. Please report it in the project's issue tracker, with the "
        "lines above, the command, and what `talos doctor` prints (SECURITY.md says how, if it must not be public)."
    )


def close_stdout() -> None:
    """Let nothing more be written to stdout, whose reader or disk is gone; else Python would try again at the end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
