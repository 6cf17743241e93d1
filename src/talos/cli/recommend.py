"""`talos recommend`: lists of a run, for some users, for a history of items, or for all users."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import RunArgument
from talos.cli.output import print_json, print_table, say
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    import polars as pl

    from talos.model.model import Model

__all__ = ["recommend"]

_ON_UNKNOWN = ("raise", "skip", "popular")


def recommend(
    run: RunArgument,
    users: Annotated[
        list[str] | None, typer.Option("--user", "-u", help="A user id; may be repeated.")
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option("--history", metavar="ITEM,…", help="Items of a user whom the run does not know."),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Lists for all users, written to --out.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            *("--out", "-o"),
            help="For --all: .parquet, .csv, .tsv, .jsonl, sqlite:///FILE?table=T, postgresql://…?table=T.",
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="List length; the run's K if not given.")] = None,
    candidates: Annotated[
        list[str] | None, typer.Option("--candidates", metavar="ITEM,…", help="Recommend only these items.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="ITEM,…", help="Recommend none of these items.")
    ] = None,
    filter: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE,…",
            help="Recommend only items with one of these values of an attribute; != excludes them, "
            "<, <=, > and >= compare numbers. May be repeated: all must hold.",
        ),
    ] = None,
    diversity: Annotated[
        float, typer.Option(help="Penalty for items similar to higher-ranked ones (MMR), 0 to 1.")
    ] = 0.0,
    popularity: Annotated[
        float, typer.Option(help="0 to 1: how much popularity counts; 1 is popularity alone.")
    ] = 0.0,
    approximate: Annotated[
        float | None,
        typer.Option(
            metavar="RECALL",
            help="For --all: use a Faiss index that finds at least this share of the exact lists, such as 0.95.",
        ),
    ] = None,
    on_unknown: Annotated[
        str | None,
        typer.Option("--on-unknown", help="For unknown users: raise (if not given), skip or popular."),
    ] = None,
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Include items that the user already has.")
    ] = False,
    for_test: Annotated[
        bool,
        typer.Option(
            "--for-test",
            help="Include the run's test items, so that `talos evaluate --recs` can measure the lists on them.",
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="For --all: replace an existing output, or a partial one with other settings."
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the list, or for --all a summary.")
    ] = False,
) -> None:
    """Recommend the best items to users of a trained model."""
    chosen = [
        name for name, given in (("--user", users), ("--history", history), ("--all", everybody)) if given
    ]
    if len(chosen) > 1:
        raise ConfigError(f"together with {chosen[1]}", where=chosen[0], expected="one of them")
    if not chosen:
        raise ConfigError("is missing", where="--user", expected="a user id, or --history or --all")
    belongs = {
        "--out": ("--all", out),
        "--overwrite": ("--all", overwrite),
        "--approximate": ("--all", approximate is not None),
        "--on-unknown": ("--user", on_unknown),
    }
    for name, (partner, given) in belongs.items():
        if given and everybody != (partner == "--all"):
            raise ConfigError(f"does not go with {chosen[0]}", where=name, expected=partner)
    if everybody and out is None:
        raise ConfigError("is missing", where="--out", expected="a file or a database table for the lists")
    if on_unknown not in (None, *_ON_UNKNOWN):
        raise ConfigError(f"{on_unknown!r}", where="--on-unknown", hint=nearest(on_unknown, _ON_UNKNOWN))
    from talos import distributed
    from talos.model.attributes import parse_filter
    from talos.model.recommender import Recommender

    group = distributed.start() if everybody else distributed.SINGLE_PROCESS
    recommender = Recommender.load(run, group=group)
    model = recommender.fitted_model()
    request: dict[str, Any] = {
        "filter_seen": not keep_seen, "for_test": for_test, "diversity": diversity, "popularity": popularity
    }  # fmt: skip
    if filter:
        request["filter"] = parse_filter(filter)
    lists_of_items = {"candidates": candidates, "exclude": exclude, "history": history}
    request |= {name: _split(given) for name, given in lists_of_items.items() if given}
    if everybody:
        from talos.exports import write_lists
        from talos.progress import counter

        assert out is not None
        with counter("recommending", "users") if group.rank == 0 else nullcontext() as show:
            done = write_lists(
                recommender,
                out,
                k=k,
                overwrite=overwrite,
                approximate=approximate,
                progress=show,
                group=group,
                **request,
            )
        distributed.stop()
        if group.rank == 0:  # rank 0 prints
            before = f" ({done['resumed_at']:,} of them before)" if done["resumed_at"] else ""
            text = f"{done['rows']:,} rows for {done['users']:,} users{before}"
            text += f" in {done['seconds']:.1f} s: {done['out']}"
            if approximate is not None:
                share = done["approximate"][f"recall@{done['k']}"]
                text += f" (recall {share:.3f} on a sample)"
            print_json(done) if json else typer.echo(text)
            _say_cold(done["users_without_events"], done["users"])
        return
    if on_unknown is not None:
        request["on_unknown"] = on_unknown
    lists = recommender.recommend(users, k=k, **request)
    codes: Any = model.train.user_ids.encode(lists["user_id"].unique()) if users else []
    _say_cold(sum(not model.train.user_degrees[code] for code in codes if code >= 0), len(codes))
    _print_lists(model, lists, json)


def _say_cold(count: int, users: int) -> None:
    if count:
        say(f"{count:,} of {users:,} users have no training events: ranked by popularity")


def _print_lists(model: Model, lists: pl.DataFrame, json: bool) -> None:
    import polars as pl

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


def _split(given: list[str]) -> list[str]:
    return [name for text in given for name in text.split(",") if name]
