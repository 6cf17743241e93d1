"""The command line as a whole: the commands, the options before them, and how a failure ends.

Nothing here imports torch or polars at the top, so that `talos --help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

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
from talos.cli.errors import close_stdout, explained, traceback_of
from talos.cli.options import Command
from talos.cli.output import say
from talos.cli.plugins import PluginGroup
from talos.errors import ConfigError, TalosError

__all__ = ["app", "run"]

app = typer.Typer(
    name="talos",
    cls=PluginGroup,  # adds `reproduce`, `leaderboard` and `bench`, which are not in the library's wheel
    help="Recommenders trained for Precision@K and Recall@K directly.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
for _command in (
    *(demo.demo, init.init, train.train, evaluate.evaluate, recommend.recommend, report.report, report.card),
    *(compare.compare, tune.tune, export.export, serve.serve, update.update, doctor.doctor),
):
    app.command(cls=Command)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from talos import __version__

        typer.echo(f"talos {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import this module first, for the classes that a run or a study names.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Recommenders trained for Precision@K and Recall@K directly."""
    if modules:
        from talos.registry import import_asked

        import_asked(modules, where="--import")


def run() -> None:
    """Run the command that `sys.argv` names; ends with `SystemExit`, or `KeyboardInterrupt` after Ctrl-C."""
    debug = "--debug" in sys.argv
    # accepted anywhere on the line, not only before the command's name
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    started: dict[str, Any] = {}  # `Command` puts its context here
    try:
        try:
            _check_unicode(arguments)
            typer.main.get_command(app)(arguments, prog_name="talos", obj=started)
        except SystemExit as end:
            sys.stdout.flush()  # here, where it can be said that it fails
            if end.code == 130:  # typer turned a KeyboardInterrupt into this, without a word
                raise KeyboardInterrupt from None
            raise
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        close_stdout()
        sys.exit(1)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # polars panics with an exception of its own
        if not isinstance(error, TalosError):
            if getattr(signal.getsignal(signal.SIGINT), "asked", False):
                raise KeyboardInterrupt from error  # a library turned it into an error of its own
            close_stdout()
        text, code = explained(error, started.get("context"))
        say(traceback_of(error) if debug else text, lines=True)
        sys.exit(code)


def _check_unicode(arguments: Sequence[str]) -> None:
    """Refuse bytes that are not UTF-8, which no file that is written later could hold."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ConfigError("bytes that are not UTF-8", where=argument, expected="UTF-8 text")
