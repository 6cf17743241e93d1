"""Errors as the command line shows them.

Python's arguments become flags, and below the message stands a command that helps: here and nowhere else.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from talos.cli.failures import is_missing_memory
from talos.cli.options import config_keys
from talos.errors import DataError, InputError, TalosError

__all__ = ["advice_for", "in_flags", "message_of"]

# Name of an argument in the library → of the parameter of a command, where they differ.
_OTHER_NAMES = {"users": "user", "format": "output_format"}
# `name=value` in a text; not `loss.tau=0.1`, which is a key of the config and stands after --set.
_ASSIGNMENT = re.compile(r"""(?<![\w.])([a-z_]+)=('[^']*'|"[^"]*"|\w+(?:\.\w+)*)?""")
_WITHOUT_FLAG = re.compile(r"\bids=")  # an argument that no command offers


# A message that names a command, or what to add to the one that was typed, needs no other.
_SAYS_WHAT_TO_DO = re.compile(r"pip install |\btalos [a-z]+ |--resume\b")


def advice_for(error: BaseException, text: str, command: Any, arguments: Sequence[str]) -> list[str]:
    """The lines below the message `text` of an error: commands that help, and what each does.

    An error may bring its own (`TalosError.commands`); else the command follows from what was wrong. None where the
    message itself says what to do, or where no command can help, as with a full disk.
    """
    found = getattr(error, "commands", ())
    if not found and not _SAYS_WHAT_TO_DO.search(text):
        helpful = _helpful(error, *_subcommand(command, arguments), arguments)
        found = () if helpful is None else (helpful,)
    width = max((len(line) for line, _ in found), default=0)
    return [f"  {line:<{width}}   {what}" for line, what in found]


def _helpful(
    error: BaseException, command: Any, name: str, arguments: Sequence[str]
) -> tuple[str, str] | None:
    """The command that helps with an error of the command `name`, and what it does."""
    if is_missing_memory(error):
        explain = "shows what would be trained, and the memory that it takes"
        return (f"{name} PATH --explain", explain) if name == "talos train" else None
    if not isinstance(error, InputError):
        return None
    takes = {str(one.metavar or "").strip("[]…") for one in command.params}
    where = error.where or ""
    if isinstance(error, DataError):
        positions = zip(["", *arguments], arguments, strict=False)
        values = [
            one for before, one in positions if not one.startswith("-") and before not in ("--out", "--items")
        ]
        given = [one for one in values if where.startswith(one)]
        if given and "RUN" in takes:
            return "talos train PATH -o RUN", "trains a run"
        if given and "PATH" in takes and name != "talos data describe":
            path = shlex.quote(max(given, key=len))
            return f"talos data describe {path}", "reads the data alone, with the same options"
    if "--config" in arguments and not where.startswith("-"):
        return "talos init PATH -o run.toml", "writes a config with every key and a comment"
    return f"{name} --help", "all options of this command"


def _subcommand(command: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """The command that the arguments of click's `command` name, and its name with those before it."""
    names = ["talos"]
    for argument in arguments:
        if argument not in getattr(command, "commands", {}):
            break
        command = command.commands[argument]
        names.append(argument)
    return command, " ".join(names)


def message_of(error: TalosError, command: Any, arguments: Sequence[str]) -> str:
    """The message of an error of click's `command` for the whole line, whose `arguments` say which subcommand ran."""
    if not isinstance(error, InputError):
        return str(error)
    others = _flags(command.commands["train"])  # errors of any command may advise to train with a flag
    flags = _flags(_subcommand(command, arguments)[0])
    given = {argument.partition("=")[0] for argument in arguments}
    keys = {key: flags[name] for key, name in config_keys().items() if flags.get(name) in given}
    sections, assigned = _assigned(arguments)
    for kind in ("loss", "backbone", "threshold"):  # an unknown name is found at the choice
        if f"{kind}.name" in assigned and flags.get(kind) not in given:
            assigned[kind] = assigned[f"{kind}.name"]
    return in_flags(error, {**sections, **flags, **assigned, **keys}, {**others, **flags})


def _assigned(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Where an error about `--set KEY=VALUE` may be found → `--set KEY`: the sections of a key, and its names.

    >>> _assigned(["train", "--set", "lss.tau=1"])
    ({'lss': '--set lss.tau'}, {'tau': '--set lss.tau', 'lss.tau': '--set lss.tau'})
    """
    sections: dict[str, str] = {}
    keys: dict[str, str] = {}
    for one, after in itertools.pairwise([*arguments, ""]):
        text = after if one == "--set" else one.removeprefix("--set=") if one.startswith("--set=") else ""
        key, equals, _ = text.partition("=")
        if equals:
            words = key.split(".")
            sections |= {".".join(words[:count]): f"--set {key}" for count in range(1, len(words))}
            keys |= {words[-1]: f"--set {key}", key: f"--set {key}"}
    return sections, keys


def in_flags(error: InputError, places: Mapping[str, str], flags: Mapping[str, str]) -> str:
    """The message of an error with flags in place of Python's arguments.

    Args:
        error: the error.
        places: argument or key of the config → flag, for where the error was found.
        flags: argument → flag, for `name='value'` in what was expected and in the hint. A hint about an argument
            that has no flag is left out.

    >>> error = InputError("3 fields", where="k", expected="dim=2", hint="on_bad_row='skip' skips such rows")
    >>> in_flags(error, {"k": "--k"}, {"on_bad_row": "--on-bad-row", "dim": "--dim"})
    '--k: 3 fields; expected --dim 2 (--on-bad-row skip skips such rows)'
    """

    def flag_and_value(found: re.Match[str]) -> str:
        flag, value = flags.get(found[1]), found[2] or "True"
        if flag is None:
            return found[0]
        bare = value[1:-1] if value[0] in "'\"" else value
        return flag if value == "True" else f"{flag} {bare or value}"

    where = places.get(error.where or "", error.where)
    expected, hint = (text and _ASSIGNMENT.sub(flag_and_value, text) for text in (error.expected, error.hint))
    if hint is not None and _WITHOUT_FLAG.search(hint):
        hint = None
    return str(InputError(error.what, where=where, expected=expected, hint=hint))


def _flags(command: Any) -> dict[str, str]:
    """Python's name → flag, for the options of a command."""
    flags = {one.name: one.opts[0] for one in command.params if one.param_type_name == "option"}
    return {**{name: flags[other] for name, other in _OTHER_NAMES.items() if other in flags}, **flags}
