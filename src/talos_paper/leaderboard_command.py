"""`talos leaderboard`: Talos and the baselines on the public splits of Gowalla and Yelp2018."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import Json, at_least_one
from talos.cli.output import print_json, say

__all__ = ["leaderboard"]


def leaderboard(
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Only these splits, separated by commas.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these rows, separated by commas; --list names them.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Fits on all of train; three where the seed matters.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder with gowalla-lightgcn/ and yelp2018-lightgcn/; if not given, the one that TALOS_DATA names.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder that results are read from and written to.")
    ] = Path("results"),
    work: Annotated[Path, typer.Option("--work", help="Folder for checkpoints of unfinished fits.")] = Path(
        "runs"
    )
    / "leaderboard",
    list_: Annotated[bool, typer.Option("--list", help="List the rows and their candidates.")] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Fit nothing; only write the page from the results.")
    ] = False,
    json: Json = False,
) -> None:
    """Settings from a validation part of train, one fit on all of train, test once. Repeat the command to continue."""
    from talos_paper.leaderboard import METHODS, run_leaderboard
    from talos_paper.leaderboard_page import write_leaderboard
    from talos_paper.results import ResultStore

    at_least_one(**{"--seeds": seeds})
    if list_:
        rows = {name: one.candidates() for name, one in METHODS.items()}
        if json:
            print_json(rows)
            return
        for name, candidates in rows.items():
            typer.echo(
                f"{name}: {METHODS[name].title}, {len(candidates)} candidate{'s' * (len(candidates) > 1)}"
            )
        return
    store = ResultStore(out)
    if not pages:
        run_leaderboard(
            store,
            datasets=_names(dataset),
            methods=_names(methods),
            seeds=seeds,
            folder=data,
            work=work,
            notify=say,
        )
    written = [str(path) for path in write_leaderboard(store)]
    if json:
        print_json({"out": str(out), "written": written})
    else:
        typer.echo("\n".join(written) or "no results yet")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
