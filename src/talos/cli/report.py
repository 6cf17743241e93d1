"""`talos report`: write a run or a comparison as one HTML file that needs no network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import DataOption, Json, TestArgument, UnsplitOptions, with_options
from talos.cli.output import print_json
from talos.cli.shared import check_target, test_part, write_page

__all__ = ["report"]


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
