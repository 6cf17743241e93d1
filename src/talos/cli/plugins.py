"""Commands and search spaces that other distributions add to the command line by entry points.

A distribution adds a command with an entry point in the group `talos.commands`: its name is the command's name, its
value a function with typer's annotations or a `typer.Typer`. `talos --help` imports that module for its line of help,
so it should import nothing heavy at the top. A search space for `--space NAME` is an entry point in the group
`talos.spaces`, whose value is a function from a `RunConfig` to the space as a dictionary.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from talos.cli.options import Command
from talos.errors import ConfigError, TalosError

__all__ = ["PluginGroup", "entry_points_of", "not_installed"]

# Commands of the project's own that are not in the library's wheel → the distribution that has them.
COMPANIONS = {
    "reproduce": "talos-rec-paper",
    "leaderboard": "talos-rec-paper",
    "bench": "talos-rec-benchmarks",
}


class PluginGroup(TyperGroup):
    """The library's commands and those of other distributions, which are imported only where they are needed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if there is none."""
        if cmd_name not in self.commands:
            self._add_plugins()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, those of plugins last."""
        self._add_plugins()
        return super().list_commands(ctx)

    def _add_plugins(self) -> None:
        found = entry_points_of("talos.commands")
        for name in [*COMPANIONS, *found]:
            if name not in self.commands:
                self.commands[name] = _command(name, found.get(name))


def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """Name → entry point of every installed distribution that has one in this group."""
    return {point.name: point for point in entry_points(group=group)}


def not_installed(what: str, distribution: str) -> ConfigError:
    """The error for a part of the project that is not in the library's wheel and not installed beside it."""
    return ConfigError(
        f"this is part of {distribution}, which is not installed",
        where=what,
        hint=f"`pip install {distribution}`, or `make setup` in a checkout of the project",
    )


def _command(name: str, point: EntryPoint | None) -> Any:
    """The command of an entry point; one that raises an error where there is none or it cannot be imported."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    if point is None:
        return _broken(app, "(not installed)", not_installed(f"talos {name}", COMPANIONS[name]))
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as failure:
        error = TalosError(f"talos {name}: {point.value} cannot be imported: {failure}")
        return _broken(app, "(cannot be imported)", error)
    if not isinstance(loaded, typer.Typer):
        app.command(name, cls=Command)(loaded)
        loaded = app
    return typer.main.get_command(loaded)


def _broken(app: typer.Typer, help: str, error: TalosError) -> Any:  # noqa: A002
    # whatever follows on the line is accepted, so that this error is the one shown
    @app.command(help=help, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def fail() -> None:
        raise error

    return typer.main.get_command(app)
