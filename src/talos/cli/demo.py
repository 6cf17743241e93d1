"""`talos demo`: MovieLens-100K end to end."""

from __future__ import annotations

from typing import Annotated

import typer

from talos.cli.output import print_facts, print_json, print_table, say
from talos.cli.source import Columns, load
from talos.errors import DownloadError

__all__ = ["demo"]


def demo(
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch MovieLens-100K, split it, rank by popularity and print the metrics."""
    import torch

    from talos import datasets, evaluation, ranking

    try:
        data = load("movielens-100k", Columns())
    except DownloadError as error:
        say(f"{error}\nMovieLens-100K cannot be fetched here: going on with a synthetic set of the same size")
        data = datasets.synthetic(users=943, items=1682, interactions=100_000, seed=seed)
    parts = data.split(seed=seed)
    seen = parts.train if parts.valid is None else parts.train.union(parts.valid)
    popularity = ranking.FixedScores(torch.from_numpy(parts.train.item_degrees))
    report = evaluation.evaluate(popularity, parts.test, seen=seen, popularity=parts.train.item_degrees)
    if json:
        print_json({"data": data.describe().as_dict(), "models": {"popularity": report.as_dict()}})
        return
    print_facts(data.describe().rows(), title="MovieLens-100K")
    header, rows = report.table()
    print_table(
        header, rows, title=f"ranked by popularity ({report.num_users:,} users, {report.dialect} dialect)"
    )
