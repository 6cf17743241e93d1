"""`talos report`: write a run or a comparison as one HTML file that needs no network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import Json, UnsplitOptions, with_options
from talos.cli.output import print_json, say
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError

__all__ = ["report", "report_of_run", "write_page"]


@with_options
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or the folder of a comparison.")
    ],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A test set, read like the run's own data unless options differ; the run's test part if not given.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file; RUN/report.html if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples of users and items that are shown.")] = 0,
    *,
    source: UnsplitOptions,
    json: Json = False,
) -> None:
    """Write plots, tables and sample recommendations of a run, or of a comparison, to one HTML file."""
    compared = (run / "compare.json").is_file()
    target = out or run / ("compare.html" if compared else "report.html")
    _check_target(target)
    if compared:
        from talos.report import comparison_report
        from talos.studies import compare as comparison

        text = comparison_report(comparison.load(run), title=f"Comparison {run.name}", date=_today())
    else:
        text = report_of_run(run, path, source, seed=seed)
    write_page(text, target)
    if json:
        print_json({"report": str(target), "bytes": target.stat().st_size})
    else:
        typer.echo(f"written to {target}")


def report_of_run(run: Path, path: str | None, source: SourceOptions, *, seed: int = 0) -> str:
    """The page of a finished run directory, measured on its own test part or on PATH."""
    from talos.data.open import open_test
    from talos.model.recommender import Recommender
    from talos.report import run_report
    from talos.training.callbacks import read_history

    recommender = Recommender.load(run)
    assert recommender.model is not None
    test = open_test(recommender.model.metadata.get("source"), path, source, run=run, notify=say)
    return run_report(
        recommender,
        test,
        read_history(run / "history.jsonl"),
        title=f"Run {run.resolve().name}",
        seed=seed,
        date=_today(),
    )


def write_page(text: str, target: Path) -> Path:
    """Write a page, or leave what is there if it cannot be written; returns its place."""
    from talos.files import replace_text

    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, text)
    return target


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise ConfigError("is a folder", where=f"--out {target}", expected="a file name, such as report.html")


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")
