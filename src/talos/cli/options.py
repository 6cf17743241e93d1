"""Options that several commands have: one flag, one type, one line of help each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

__all__ = [
    "FormatOption",
    "ItemColumn",
    "Json",
    "KCore",
    "MinRating",
    "OnBadRow",
    "PathArgument",
    "QueryOption",
    "RatingColumn",
    "Raw",
    "RunArgument",
    "SplitBy",
    "SplitSeed",
    "TestShare",
    "TimeColumn",
    "TitleColumn",
    "UserColumn",
    "ValidShare",
]

PathArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, a folder, a dataset's name or a database URL.")
]
RunArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
UserColumn: TypeAlias = Annotated[str | None, typer.Option("--user-column", help="Name of the user column.")]
ItemColumn: TypeAlias = Annotated[str | None, typer.Option("--item-column", help="Name of the item column.")]
TimeColumn: TypeAlias = Annotated[str | None, typer.Option("--time-column", help="Name of the time column.")]
RatingColumn: TypeAlias = Annotated[
    str | None, typer.Option("--rating-column", help="Name of the rating column.")
]
TitleColumn: TypeAlias = Annotated[
    str | None, typer.Option("--title-column", help="Name of the item title column.")
]
FormatOption: TypeAlias = Annotated[
    str | None, typer.Option("--input-format", help="Format, if the guess is wrong.")
]
QueryOption: TypeAlias = Annotated[str | None, typer.Option("--query", help="SQL query, for a database URL.")]
OnBadRow: TypeAlias = Annotated[str, typer.Option("--on-bad-row", help="`raise` or `skip` (and count).")]
MinRating: TypeAlias = Annotated[float | None, typer.Option("--min-rating", help="Drop ratings below this.")]
Raw: TypeAlias = Annotated[bool, typer.Option("--raw", help="A named dataset without the paper's clean-up.")]
KCore: TypeAlias = Annotated[
    int | None, typer.Option("--k-core", help="Keep users and items with this many.")
]
SplitBy: TypeAlias = Annotated[
    Literal["user", "time", "last"],
    typer.Option(
        "--by", help="Split `user`: at random per user; `time`: latest for test; `last`: each user's last."
    ),
]
TestShare: TypeAlias = Annotated[float, typer.Option("--test", help="Share for test.")]
ValidShare: TypeAlias = Annotated[float, typer.Option("--valid", help="Share of the rest for validation.")]
SplitSeed: TypeAlias = Annotated[int, typer.Option("--split-seed", help="Of the random split.")]
