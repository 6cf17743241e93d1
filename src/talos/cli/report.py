"""`talos report`: write a run or a comparison as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from talos.cli.evaluate import test_part
from talos.cli.options import DataOption, Json, TestArgument, UnsplitOptions, with_options
from talos.cli.output import print_json
from talos.errors import ConfigError

__all__ = ["check_target", "report", "write_page"]


@with_options
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or the folder of a comparison.")
    ],
    path: TestArgument = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file; RUN/report.html if not given.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the samples of users and items that are shown.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file even if it is not a report.")
    ] = False,
    data: DataOption = None,
    *,
    source: UnsplitOptions,
    json: Json = False,
) -> None:
    """Write plots, tables and sample recommendations of a run, or of a comparison, to one HTML file."""
    from talos.model.recommender import Recommender
    from talos.report import comparison_report, run_report
    from talos.studies import compare as comparison
    from talos.training.callbacks import read_history

    compared = (run / "compare.json").is_file()
    target = out or run / ("compare.html" if compared else "report.html")
    check_target(target, overwrite=overwrite)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    if compared:
        text = comparison_report(comparison.load(run), title=f"Comparison {run.name}", date=today)
    else:
        recommender = Recommender.load(run)
        test = test_part(recommender, run, path, data, source)
        history, title = read_history(run / "history.jsonl"), f"Run {run.resolve().name}"
        again = read_history(run / "history-refit.jsonl")
        text = run_report(recommender, test, history, refit_history=again, title=title, seed=seed, date=today)
    write_page(text, target, overwrite=overwrite)
    if json:
        print_json({"report": str(target), "bytes": target.stat().st_size})
    else:
        typer.echo(f"written to {target}")


def write_page(text: str, target: Path, *, overwrite: bool = True) -> Path:
    """Write a page, or leave what is there if it cannot be written; returns its place."""
    from talos.files import replace_text

    check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, text)
    return target


def check_target(
    target: Path, *, overwrite: bool, what: str = "report", is_ours: Callable[[str], bool] | None = None
) -> None:
    """Refuse a file that cannot be written, or that is there and not a `what` that we wrote before."""
    if target.is_dir():
        example = "README.md" if what == "card" else "report.html"
        raise ConfigError("is a folder", where=f"--out {target}", expected=f"a file name, such as {example}")
    if target.exists() and not target.is_file():  # writing renames a file over it: no device would be left
        raise ConfigError("is a device or a pipe", where=f"--out {target}", expected="the name of a file")
    if overwrite or not target.exists():
        return
    from talos.report import is_page

    recognised = is_page if is_ours is None else is_ours
    with target.open("rb") as file:
        if not recognised(file.read(1 << 16).decode("utf-8", errors="replace")):
            raise ConfigError(
                f"exists and is not a {what}",
                where=f"--out {target}",
                expected=f"a new file, or an older {what}",
                hint="add --overwrite to replace it",
            )
