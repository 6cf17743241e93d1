"""`talos recommend`: lists from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talos.cli.output import print_json, print_table
from talos.errors import ConfigError

__all__ = ["recommend"]


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    user: Annotated[list[str] | None, typer.Option("--user", help="Whom for; may be given often.")] = None,
    k: Annotated[int | None, typer.Option(help="List length; the run's K if not given.")] = None,
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Also items that the user has already.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """The best items for users of a trained model."""
    import polars as pl

    from talos.recommender import Recommender

    if not user:
        raise ConfigError("is missing", where="--user", expected="at least one user id")
    recommender = Recommender.load(run)
    model = recommender.model
    assert model is not None
    ids: list[str] | list[int] = user
    if model.train.user_ids.ids.dtype.is_integer():
        try:
            ids = [int(name) for name in user]
        except ValueError:
            raise ConfigError(
                f"{user}", where="--user", expected="integer ids, as the run has them"
            ) from None
    lists = recommender.recommend(ids, k, filter_seen=not keep_seen)
    if json:
        print_json(lists.to_dicts())
        return
    titles = model.train.item_titles
    if titles is not None:
        named = pl.DataFrame({"item_id": model.train.item_ids.ids, "title": titles})
        lists = lists.join(named, on="item_id", how="left", maintain_order="left")
    header = ["user", "rank", "item", "score", *(["title"] if titles is not None else [])]
    rows = [
        [str(row["user_id"]), str(row["rank"]), str(row["item_id"]), f"{row['score']:.4f}",
         *([row["title"] or ""] if titles is not None else [])]
        for row in lists.to_dicts()
    ]  # fmt: skip
    print_table(header, rows)
