"""`talos grid`: the default of `talos train` against a grid of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import Json
from talos.cli.output import print_json, say

__all__ = ["grid"]


def grid(
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Only these data sets, separated by commas.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder with the data sets; if not given, the folder that TALOS_DATA names."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder that results are read from and written to.")
    ] = Path("results"),
    work: Annotated[Path, typer.Option("--work", help="Folder for checkpoints of unfinished fits.")] = Path(
        "runs"
    )
    / "grid",
    pages: Annotated[
        bool, typer.Option("--pages", help="Fit nothing; only write the page from the results.")
    ] = False,
    json: Json = False,
) -> None:
    """What `talos train` chooses by itself, held against a grid search. Repeat the command to continue."""
    from talos_paper.grid import run_grid
    from talos_paper.grid_page import write_grid
    from talos_paper.results import ResultStore

    store = ResultStore(out)
    if not pages:
        names = None if dataset is None else [name.strip() for name in dataset.split(",")]
        run_grid(store, datasets=names, folder=data, work=work, notify=say)
    written = [str(path) for path in write_grid(store)]
    if json:
        print_json({"out": str(out), "written": written})
    else:
        typer.echo("\n".join(written) or "no results yet")
