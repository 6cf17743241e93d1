"""`talos bench`: how fast this machine runs Talos, each time as a ratio to a named reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import Json
from talos.cli.output import print_facts, print_json, print_table

__all__ = ["bench"]


def bench(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder with gowalla/ and beauty/ (or TALOS_DATA); synthetic data otherwise."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Names of benchmarks, separated by commas.")
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", help="Rows of the csv file that reading is measured on.")
    ] = 20_000_000,
    events: Annotated[
        int, typer.Option("--events", help="Generated events that `large` is measured on.")
    ] = 1_000_000,
    json: Json = False,
) -> None:
    """Measure reading, ranking, losses and training, each against a reference that runs in the same process."""
    from . import suite  # imports torch

    result = suite.run(data=data, only=None if only is None else only.split(","), rows=rows, events=events)
    if json:
        print_json(result)
        return
    print_facts([(name, str(value)) for name, value in result["machine"].items()], title="machine")
    table = [[name, f"{value:.3g}", suite.MEANING.get(name, "")] for name, value in result["ratios"].items()]
    print_table(["figure", "value", "meaning"], table)
