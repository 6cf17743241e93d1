"""What goes wrong outside the library (disk, memory, other packages) as one message, and what is a bug of ours.

Everything that reaches the front of the command line ends here. Errors of the operating system, of memory and of
allocation, and errors in a class of the user's own, become one line that names the place; anything else that is no
error of the library is a bug.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from pathlib import Path

from talos.cli.output import printable
from talos.data.databases import without_passwords
from talos.errors import first_line
from talos.files import WRONG_NAME

__all__ = ["bug_report", "close_stdout", "is_missing_memory", "outside_failure", "traceback_of"]

# What torch, numpy, polars and Python say when memory or a thread cannot be had.
_NO_MEMORY = re.compile(
    r"can.t allocate memory|not enough memory|out of memory|Cannot allocate memory|Unable to allocate|bad_alloc|"
    r"alloc_cpu|Storage size calculation overflowed|can't start new thread|Invalid size|capacity overflow|"
    r"memory allocation of|numel: integer multiplication overflow|Array is too big|Maximum allowed (dimension|size)",
    re.IGNORECASE,
)
# How Rust's libraries (polars, safetensors) write an error of the operating system into their own.
_RUST_ERROR = re.compile(r"([^:()]*)\(os error (\d+)\)")


def is_missing_memory(error: BaseException) -> bool:
    """Whether memory could not be had, by whatever type of error a library says so.

    >>> is_missing_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_missing_memory(KeyError())
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    kinds = (RuntimeError, ValueError, OverflowError)
    return (isinstance(error, kinds) or "Panic" in type(error).__name__) and bool(
        _NO_MEMORY.search(str(error))
    )


def outside_failure(error: BaseException, command: str) -> tuple[str, int] | None:
    """Message and exit code of an error from outside the library; None if it is something else.

    Args:
        error: what was raised.
        command: the place where the error names none.

    >>> outside_failure(PermissionError(13, "Permission denied", "/root/x"), "talos train")
    ('/root/x: Permission denied', 2)
    >>> outside_failure(FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "talos train")
    ("talos train: No usable temporary directory found in ['/tmp']", 1)
    >>> outside_failure(MemoryError(), "talos train, --out run")
    ('talos train, --out run: not enough memory', 1)
    """
    if is_missing_memory(error):
        wanted = re.search(r"allocate (\d+) bytes", str(error))
        amount = f" (another {int(wanted[1]) / 2**30:,.1f} GiB were asked for)" if wanted else ""
        return f"{command}: not enough memory{amount}", 1
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (rust := _RUST_ERROR.search(str(error))):
        number = int(rust[2])
    if number is None and "disk is full" in str(error):  # as SQLite says it
        number = errno.ENOSPC
    if number is None:
        return _own_class_failure(error)
    named = [name for name in (getattr(error, "filename", None), getattr(error, "filename2", None)) if name]
    place = " → ".join(map(_as_text, named)) or command
    reason = error.strerror if isinstance(error, OSError) and error.strerror else os.strerror(number)
    return f"{place}: {reason}", 2 if number in WRONG_NAME and named else 1


def _own_class_failure(error: BaseException) -> tuple[str, int] | None:
    """Message and exit code of an error in a loss, backbone, … from outside the library; None if there is no such."""
    registry = sys.modules.get("talos.registry")  # not imported: no such class was made
    if registry is None:
        return None
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        made, package = frame.f_locals.get("self"), str(frame.f_globals.get("__name__")).partition(".")[0]
        kind = registry.kind_of(made)
        if kind is not None and package not in ("talos", "torch"):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
            name = f"{type(made).__module__}:{type(made).__qualname__}"
            raised = f"{type(error).__name__}: {first_line(error)}"
            found = f"the {kind} {name} raised {raised} ({place}; --debug shows more)", 2
    return found


def traceback_of(error: BaseException) -> str:
    """The traceback as text, without passwords and control characters."""
    text = without_passwords("".join(traceback.format_exception(error)))
    return "\n".join(printable(line, longest=2000) for line in text.splitlines())


def bug_report(error: BaseException) -> str:
    """What is shown for an error that nobody foresaw: the traceback, that it is our fault, and how to report it."""
    return (
        f"{traceback_of(error)}\n\n"
        "error: this is a bug in Talos, not in your input. Please report it in the project's issue tracker, with the "
        "lines above, the command, and what `talos doctor` prints (SECURITY.md says how, if it must not be public)."
    )


def _as_text(name: str | bytes | int) -> str:
    return os.fsdecode(name) if isinstance(name, bytes) else str(name)


def close_stdout() -> None:
    """Let nothing more be written to stdout, whose reader or disk is gone; else Python would try again at the end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
