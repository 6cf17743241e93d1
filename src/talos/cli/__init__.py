"""The `talos` command: one file for each subcommand, which parses, calls the library and prints.

Nothing here imports torch or polars at the top, so that `talos --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from talos.cli import (
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    init,
    recommend,
    report,
    serve,
    train,
    tune,
    update,
)
from talos.cli.messages import message_of
from talos.cli.plugins import PluginGroup
from talos.errors import TalosError

__all__ = ["app", "main"]

app = typer.Typer(
    name="talos",
    cls=PluginGroup,  # adds `reproduce` and `bench`, which are not in the library's wheel
    help="Recommenders trained for Precision@K and Recall@K directly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
for _command in (
    *(demo.demo, init.init, train.train, evaluate.evaluate, recommend.recommend, report.report),
    *(compare.compare, tune.tune, export.export, serve.serve, update.update, doctor.doctor),
):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from talos import __version__

        typer.echo(f"talos {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Recommenders trained for Precision@K and Recall@K directly."""


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 the user's input is wrong, 130 interrupted."""
    command = typer.main.get_command(app)
    debug = "--debug" in sys.argv
    # accepted anywhere on the line, not only before the command's name
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        command(arguments, prog_name="talos")
    except TalosError as error:
        if debug:
            raise
        typer.echo(f"error: {message_of(error, command, arguments)}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # typer turned a KeyboardInterrupt into this, without a word
            typer.echo("interrupted", err=True)
        raise
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        sys.exit(1)
