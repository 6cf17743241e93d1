"""Errors as the command line shows them: Python's arguments as flags, and below the message a command that helps.

Functions take the context of the command that failed, as click has parsed it; None if the line names no command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from talos.cli.failures import is_missing_memory
from talos.cli.options import config_keys
from talos.errors import DataError, InputError, Option

__all__ = ["advice_for", "in_flags"]

# A message that names a command, or what to add to the one that was typed, needs no other.
_SAYS_WHAT_TO_DO = re.compile(r"pip install |\btalos [a-z]+ |--resume\b")


def in_flags(error: InputError, context: Any) -> str:
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

    given = {key: own[name] for key, name in config_keys().items() if context.params.get(name) is not None}
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


def advice_for(error: BaseException, text: str, context: Any) -> list[str]:
    """The lines below the message `text` of an error: commands that help, and what each does.

    An error may bring its own (`TalosError.commands`); else the command follows from what was wrong. None where the
    message itself says what to do, or where no command can help, as with a full disk.
    """
    found = getattr(error, "commands", ())
    if not found and context is not None and not _SAYS_WHAT_TO_DO.search(text):
        helpful = _helpful(error, context)
        found = () if helpful is None else (helpful,)
    width = max((len(line) for line, _ in found), default=0)
    return [f"  {line:<{width}}   {what}" for line, what in found]


def _helpful(error: BaseException, context: Any) -> tuple[str, str] | None:
    """The command that helps with an error of the command that was run, and what it does."""
    name, where = context.command_path, getattr(error, "where", None) or ""
    if is_missing_memory(error):
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
    if context.params.get("config") is not None and not where.startswith("-"):
        return "talos init PATH -o run.toml", "writes a config with every key and a comment"
    return f"{name} --help", "all options of this command"
