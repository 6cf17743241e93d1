"""`talos update`: new events into a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import Json, Offer, RunArgument, with_options
from talos.cli.output import print_json, printable
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.data.interactions import Interactions
    from talos.model.model import Model

__all__ = ["update"]


@with_options
def update(
    run: RunArgument,
    events: Annotated[
        Path,
        typer.Argument(metavar="EVENTS", help="The log of `talos serve`, or any file of interactions."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The run directory to write.")] = None,
    *,
    epochs: Annotated[int, typer.Option(help="Passes over the users with new events.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Learning rate; that of training if not given.")] = None,
    source: Annotated[SourceOptions, Offer("user", "item", "timestamp", "format", "on_bad_row")],
    json: Json = False,
) -> None:
    """Put new events, users and items into a trained run, without training from scratch."""
    from talos.model.recommender import Recommender
    from talos.model.store import lock_run

    if out is None:
        raise ConfigError("is missing", where="--out", expected="the run directory to write")
    _check_out(out)
    with lock_run(out, "talos update"):
        _check_out(out)  # again: another process may have finished in between
        recommender = Recommender.load(run)
        before = recommender.fitted_model()
        new = _read(events, source, before)
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


def _check_out(out: Path) -> None:
    """A new directory, or one in which an update was interrupted."""
    from talos.model.store import holds_leftovers_only

    if out.exists() and not (out.is_dir() and holds_leftovers_only(out)):
        raise ConfigError("exists and is not empty", where=f"--out {out}", expected="a new directory")


def _read(path: Path, source: SourceOptions, model: Model) -> Interactions:
    """The events, with ids of the run's types."""
    from talos.data.interactions import Interactions
    from talos.data.open import read
    from talos.data.vocabulary import spelled_as
    from talos.errors import DataError
    from talos.serving.feedback import is_log, read_log

    options = {name: value for name, value in source.given().items() if name in source.reading()}
    if not options and is_log(path):
        users, items, times = read_log(path)
        stamps: Any = times.to_numpy()
    else:
        data = read(path, **options)
        table = data.to_polars()
        users, items, stamps = table["user_id"], table["item_id"], data.timestamps
    kinds = []
    for name, ids, known in (("user", users, model.train.user_ids), ("item", items, model.train.item_ids)):
        kind = spelled_as(ids, known.ids.dtype)
        if kind.null_count():
            bad = ids.filter(kind.is_null())[0]
            what, expected = f"{name} {bad!r}", "integer ids, like those of the run"
            raise DataError(what, where=str(path), expected=expected)
        kinds.append(kind)
    return Interactions.from_ids(*kinds, timestamps=stamps)
