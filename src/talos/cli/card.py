"""`talos card`: a model card in Markdown, as the Hugging Face Hub shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import DataOption, Json, RunArgument, TestArgument, UnsplitOptions, with_options
from talos.cli.output import print_json
from talos.cli.shared import check_target, test_part, write_page

__all__ = ["card"]


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
    source: UnsplitOptions,
    json: Json = False,
) -> None:
    """Write a model card: data, settings, metrics with intervals, accuracy by group, limits."""
    from talos.model.recommender import Recommender
    from talos.report import is_card, model_card

    target = out or run / "README.md"
    check_target(target, overwrite=overwrite, what="card", is_ours=is_card)
    recommender = Recommender.load(run)
    test = test_part(recommender, run, path, data, source)
    title = run.resolve().name if name is None else name
    write_page(model_card(recommender, test, title=title, license=license, seed=seed), target)
    if json:
        print_json({"card": str(target), "bytes": target.stat().st_size})
    else:
        typer.echo(f"written to {target}")
