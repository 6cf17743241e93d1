"""The reference of the command line, from the commands themselves: what `talos COMMAND --help` prints, as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from sphinx.application import Sphinx

from talos.cli import app as talos

__all__ = ["setup"]

_PAGE, _MARK = "reference/command-line", "<!-- commands -->"


def _commands(group: Any, parent: Any = None) -> Iterator[tuple[Any, Any]]:
    """Every command below a group with its context, in the order of the help."""
    context = group.context_class(group, info_name=group.name, parent=parent)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, context)
        else:
            yield command, command.context_class(command, info_name=name, parent=context)


def _section(command: Any, context: Any) -> str:
    rows = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    table = [f"| `{_cell(names)}` | {_cell(text).replace('<', '&lt;')} |" for names, text in rows]
    head = [f"## {context.command_path}", "", command.help or "", ""]
    return "\n".join([*head, "| argument or option | what it does |", "|---|---|", *table, ""])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def _fill(app: Sphinx, name: str, content: list[str]) -> None:
    if name == _PAGE:
        root = typer.main.get_command(talos)
        content[0] = content[0].replace(_MARK, "\n".join(_section(*found) for found in _commands(root)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill in the page when it is read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
