"""`talos data`: named datasets, descriptions and splits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from talos.cli.options import (
    FormatOption,
    ItemColumn,
    KCore,
    MinRating,
    OnBadRow,
    PathArgument,
    QueryOption,
    RatingColumn,
    Raw,
    SplitBy,
    TestShare,
    TimeColumn,
    TitleColumn,
    UserColumn,
    ValidShare,
)
from talos.cli.output import print_facts, print_json, print_table, say
from talos.cli.source import Columns, SplitOptions, load, load_split, write_shards
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.data.datasets import DatasetInfo

__all__ = ["app"]

app = typer.Typer(
    help="Named datasets, descriptions and splits.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@app.command("list")
def list_datasets(json: Json = False) -> None:
    """Datasets that can be used by name, and which of them are here already."""
    from talos.data import datasets

    infos = datasets.available()
    if json:
        print_json([_summary(info) for info in infos])
        return
    rows = [["-" if value is None else str(value) for value in _summary(info).values()] for info in infos]
    print_table(["name", "what it is", "ratings from", "k-core", "in the cache"], rows)


def _summary(info: DatasetInfo) -> dict[str, Any]:
    from talos.data import datasets

    return {
        "name": info.name,
        "title": info.title,
        "min_rating": info.min_rating,
        "k_core": info.k_core,
        "cached": datasets.is_cached(info),
    }


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name from `talos data list`.")],
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Fetch a named dataset into the cache and describe it."""
    from talos.data import datasets

    description = load(datasets.info(name).name, Columns(), raw=raw).describe()
    if json:
        print_json({"name": name, **description.as_dict()})
    else:
        print_facts(description.rows(), title=name)


@app.command("describe")
def describe(
    path: PathArgument,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    title_column: TitleColumn = None,
    input_format: FormatOption = None,
    query: QueryOption = None,
    on_bad_row: OnBadRow = "raise",
    min_rating: MinRating = None,
    k_core: KCore = None,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Counts, density, degree quantiles, popularity skew and time span."""
    columns = Columns(
        user=user_column,
        item=item_column,
        timestamp=time_column,
        rating=rating_column,
        title=title_column,
        format=input_format,
        query=query,
        on_bad_row=on_bad_row,
    )
    description = load(path, columns, min_rating=min_rating, k_core=k_core, raw=raw).describe()
    if json:
        print_json(description.as_dict())
    else:
        print_facts(description.rows(), title=description.source)


@app.command("split")
def split(
    path: PathArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must not exist or be empty.")],
    by: SplitBy = "user",
    test: TestShare = 0.2,
    valid: ValidShare = 0.1,
    seed: Annotated[int, typer.Option(help="Of the random draws.")] = 0,
    output_format: Annotated[
        Literal["tsv", "parquet"], typer.Option("--format", help="Of the files.")
    ] = "tsv",
    shards: Annotated[
        int | None,
        typer.Option(help="Divide the users into so many shards; for data larger than memory."),
    ] = None,
    rows_at_once: Annotated[
        int | None,
        typer.Option(help="For --shards: rows held at a time, about a million if not given."),
    ] = None,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    title_column: TitleColumn = None,
    input_format: FormatOption = None,
    query: QueryOption = None,
    on_bad_row: OnBadRow = "raise",
    min_rating: MinRating = None,
    k_core: KCore = None,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Divide into train, validation and test files, with a `split.json` that says how to make them again.

    With --shards the data may be larger than memory: users are divided into folders of parquet files, which every
    command takes as a PATH, and of which each process of a distributed run reads its own users alone.
    """
    from talos.data.splits import write_split

    columns = Columns(
        user=user_column,
        item=item_column,
        timestamp=time_column,
        rating=rating_column,
        title=title_column,
        format=input_format,
        query=query,
        on_bad_row=on_bad_row,
    )
    cleaned = {"min_rating": min_rating, "k_core": k_core}
    options = SplitOptions(
        by=by, test=test, valid=valid, split_seed=seed, min_rating=min_rating, k_core=k_core, raw=raw
    )
    if shards is not None:
        if output_format != "tsv":
            raise ConfigError("does not go with --shards", where="--format", expected="one of them")
        record = write_shards(path, columns, options, out, shards, rows_at_once)
    elif rows_at_once is not None:
        raise ConfigError("is for --shards", where="--rows-at-once", expected="both of them")
    else:
        parts = load_split(path, columns, options)
        record = write_split(parts, out, format=output_format, source=path, cleaned=cleaned)
    if json:
        print_json(record)
        return
    rows = [[name, *(f"{record['parts'][name][key]:,}" for key in ("users", "items", "interactions"))]
            for name in record["parts"]]  # fmt: skip
    print_table(["part", "users", "items", "interactions"], rows, title=str(out))
    for part, counts in record["cold"].items():
        if counts["users"] or counts["items"]:
            say(f"{part}: {counts['users']:,} users and {counts['items']:,} items are absent from train")
