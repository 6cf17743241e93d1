"""`talos data`: named datasets, descriptions, splits and generated events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from talos.cli.options import Command, Json, PathArgument, UnsplitOptions, with_options
from talos.cli.output import print_facts, print_json, print_table, say
from talos.data.options import SourceOptions
from talos.errors import ConfigError
from talos.progress import reading

__all__ = ["app"]

app = typer.Typer(
    help="Named datasets, descriptions, splits and generated events.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", cls=Command)
def list_datasets(json: Json = False) -> None:
    """List the datasets that can be used by name, and which of them are in the cache."""
    from talos.data import datasets

    names = ("name", "title", "min_rating", "k_core")
    found = [
        {**{name: getattr(info, name) for name in names}, "cached": datasets.is_cached(info)}
        for info in datasets.available()
    ]
    if json:
        print_json(found)
        return
    rows = [["-" if value is None else str(value) for value in one.values()] for one in found]
    print_table(["name", "what it is", "min rating", "k-core", "in the cache"], rows)


@app.command("get", cls=Command)
@with_options
def get(
    name: Annotated[str, typer.Argument(help="A name from `talos data list`.")],
    *,
    source: Annotated[SourceOptions, "raw"],
    json: Json = False,
) -> None:
    """Fetch a named dataset into the cache and describe it."""
    from talos.data import datasets
    from talos.data.open import open_interactions

    description = open_interactions(datasets.info(name).name, source, notify=say).describe()
    if json:
        print_json({"name": name, **description})
    else:
        print_facts(description.rows(), title=name)


@app.command("describe", cls=Command)
@with_options
def describe(path: PathArgument, *, source: UnsplitOptions, json: Json = False) -> None:
    """Counts, density, degree quantiles, popularity skew and time span."""
    from talos.data.open import open_interactions

    with reading() as progress:
        description = open_interactions(path, source, notify=say, progress=progress).describe()
    if json:
        print_json(description)
    else:
        print_facts(description.rows(), title=description["source"])


@app.command("split", cls=Command)
@with_options
def split(
    path: PathArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")],
    output_format: Annotated[
        Literal["tsv", "parquet"], typer.Option("--format", help="Format of the files.")
    ] = "tsv",
    shards: Annotated[
        int | None,
        typer.Option(help="Divide the users into this many shards; for data larger than memory."),
    ] = None,
    rows_at_once: Annotated[
        int | None,
        typer.Option(help="For --shards: rows held in memory at a time, about a million if not given."),
    ] = None,
    *,
    source: Annotated[
        SourceOptions, *("columns", "format", "query", "ids", "on_bad_row", "by", "test", "valid", "clean")
    ],
    split_seed: Annotated[int, typer.Option("--seed", help="Seed of the random split.")] = 0,
    json: Json = False,
) -> None:
    """Divide into train, validation and test files, with a `split.json` that says how to make them again.

    With --shards the data may be larger than memory: users are divided into folders of parquet files. Every command
    takes the result as a PATH, and each process of a distributed run reads only the shards of its own users.
    """
    from talos.data.open import open_split, write_shards_from
    from talos.data.splits import write_split

    source = SourceOptions.of(source, split_seed=split_seed)
    if shards is not None:
        if output_format != "tsv":
            raise ConfigError("does not go with --shards", where="--format", expected="one of them")
        record = write_shards_from(
            path, out, shards=shards, options=source, rows_at_once=rows_at_once, notify=say
        )
    elif rows_at_once is not None:
        raise ConfigError("is for --shards", where="--rows-at-once", expected="both of them")
    else:
        with reading() as progress:
            parts = open_split(path, source, notify=say, progress=progress)
        cleaned = {"min_rating": source.clean.min_rating, "k_core": source.clean.k_core}
        record = write_split(parts, out, format=output_format, source=path, cleaned=cleaned)
    if json:
        print_json(record)
        return
    rows = [[name, *(f"{record['parts'][name][key]:,}" for key in ("users", "items", "interactions"))]
            for name in record["parts"]]  # fmt: skip
    print_table(["part", "users", "items", "interactions"], rows, title=str(out))
    for part, counts in record["cold"].items():
        if counts["users"] or counts["items"]:
            say(f"{part}: {counts['users']:,} users and {counts['items']:,} items have no training events")


@app.command("generate", cls=Command)
def generate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")],
    users: Annotated[int, typer.Option(help="Number of users.")] = 10_000,
    items: Annotated[int, typer.Option(help="Number of items.")] = 10_000,
    events: Annotated[int, typer.Option(help="Number of events, all of different pairs.")] = 500_000,
    dim: Annotated[int, typer.Option(help="Number of topics that users have a taste for.")] = 16,
    skew: Annotated[
        float, typer.Option(help="Popularity falls with rank to this power; 0 for uniform popularity.")
    ] = 1.0,
    valid: Annotated[float, typer.Option(help="Share of a held-out user's events for validation.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of a held-out user's events for test.")] = 0.2,
    held_out: Annotated[
        int, typer.Option("--held-out", help="How many users have validation and test events.")
    ] = 20_000,
    output_format: Annotated[
        Literal["parquet", "csv"], typer.Option("--format", help="Format of the files.")
    ] = "parquet",
    integer_ids: Annotated[
        bool, typer.Option("--integer-ids", help="Ids 0, 1, … instead of strings such as u0042.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 0,
    json: Json = False,
) -> None:
    """Generate events of any size with planted tastes, in parts, and the metrics of the best possible lists.

    The folder is a PATH for every other command. `planted.json` in it has the settings and the metrics that no model
    can expect to exceed, so that quality is a share of the best.
    """
    from talos.data.datasets import PlantedTastes, write_planted
    from talos.evaluation.best_possible import best_possible
    from talos.progress import counter

    world = PlantedTastes(
        users=users,
        items=items,
        events=events,
        seed=seed,
        dim=dim,
        skew=skew,
        valid=valid,
        test=test,
        held_out=held_out,
    )
    lengths = [k for k in (10, 20, 50, 100) if k <= items] or [items]
    with counter("generating", "events") as show:
        record = write_planted(
            world,
            out,
            format=output_format,
            strings=not integer_ids,
            report=lambda split, tastes, topics: best_possible(split, tastes, topics, lengths).as_dict(),
            progress=show,
        )
    if json:
        print_json(record)
        return
    facts = [(name, f"{count:,} events") for name, count in record["events"].items()]
    best = record.get("best", {}).get("metrics", {})
    k = 20 if 20 in lengths else lengths[-1]
    facts += [
        (f"best {name}", f"{best[name]:.4f}") for name in (f"precision@{k}", f"recall@{k}") if name in best
    ]
    print_facts(facts, title=str(out))
