"""`talos update`: new events into a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.options import Json, RunArgument, with_options
from talos.cli.output import print_json, printable
from talos.data.options import SourceOptions

__all__ = ["update"]


@with_options
def update(
    run: RunArgument,
    events: Annotated[
        Path,
        typer.Argument(metavar="EVENTS", help="The log of `talos serve`, or any file of interactions."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run directory to write.")],
    *,
    epochs: Annotated[int, typer.Option(help="Passes over the users with new events.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Learning rate; that of training if not given.")] = None,
    source: Annotated[SourceOptions, "user", "item", "timestamp", "format", "on_bad_row"],
    json: Json = False,
) -> None:
    """Put new events, users and items into a trained run, without training from scratch."""
    from talos.model.recommender import Recommender
    from talos.model.store import check_new_run, lock_run
    from talos.serving.feedback import read_events

    check_new_run(out)
    with lock_run(out, "talos update"):
        check_new_run(out)  # again: another process may have finished in between
        recommender = Recommender.load(run)
        before = recommender.fitted_model()
        new = read_events(events, before.train, source)
        recommender.partial_fit(new, epochs=epochs, lr=lr)
        recommender.save(out)
    after = recommender.fitted_model()
    facts = {
        "run": str(out),
        "events": len(new),
        "new_users": after.train.num_users - before.train.num_users,
        "new_items": after.train.num_items - before.train.num_items,
    }
    if json:
        print_json(facts)
        return
    grown = f"{facts['new_users']:,} new users, {facts['new_items']:,} new items"
    typer.echo(f"{facts['events']:,} interactions learnt, {grown}; written to {printable(str(out))}")
