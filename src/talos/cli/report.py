"""`talos report` and `talos card`: a run or a comparison as one HTML file, and a run's model card in Markdown."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import DataOption, Json, RunArgument, TestArgument, with_options
from talos.cli.output import print_json
from talos.cli.shared import test_part
from talos.data.options import SourceOptions

__all__ = ["card", "report"]


@with_options
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or the folder of a comparison.")
    ],
    path: TestArgument = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; RUN/report.html if not given.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the samples of users and items that are shown.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file even if it is not a report.")
    ] = False,
    data: DataOption = None,
    *,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Write plots, tables and sample recommendations of a run, or of a comparison, to one HTML file."""
    from talos.model.recommender import Recommender
    from talos.report import check_target, comparison_report, run_report, write_page
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
    write_page(text, target)
    _print_written("report", target, json)


@with_options
def card(
    run: RunArgument,
    path: TestArgument = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; RUN/README.md if not given.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the model; that of the folder if not given.")
    ] = None,
    license: Annotated[  # noqa: A002
        str | None, typer.Option("--license", help="Licence of the model, such as cc-by-4.0.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample of users, if there are many.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file even if it is not a card.")
    ] = False,
    data: DataOption = None,
    *,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Write a model card: data, settings, metrics with intervals, accuracy by group, limits."""
    from talos.model.recommender import Recommender
    from talos.report import check_target, model_card, write_page

    target = out or run / "README.md"
    check_target(target, overwrite=overwrite, what="card")
    recommender = Recommender.load(run)
    test = test_part(recommender, run, path, data, source)
    title = run.resolve().name if name is None else name
    write_page(model_card(recommender, test, title=title, license=license, seed=seed), target)
    _print_written("card", target, json)


def _print_written(what: str, target: Path, json: bool) -> None:
    if json:
        print_json({what: str(target), "bytes": target.stat().st_size})
    else:
        typer.echo(f"written to {target}")
