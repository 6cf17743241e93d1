"""`talos evaluate`: measure lists against a test set."""

from __future__ import annotations

from typing import Annotated

import typer

from talos.cli.output import print_json, print_table, say
from talos.cli.source import Columns, load
from talos.errors import ConfigError

__all__ = ["evaluate", "parse_ks"]


def parse_ks(text: str) -> tuple[int, ...]:
    """`10,20,50` as numbers.

    >>> parse_ks("10,20")
    (10, 20)
    """
    try:
        return tuple(int(k) for k in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{text!r}", where="--k", expected="numbers with commas, such as 10,20,50"
        ) from error


def evaluate(
    recs: Annotated[
        str, typer.Option("--recs", help="Lists to measure: user_id, item_id, and rank or score.")
    ],
    truth: Annotated[str, typer.Option("--truth", help="The test set: user and item of each interaction.")],
    k: Annotated[str, typer.Option(help="List lengths.")] = "10,20,50",
    dialect: Annotated[
        str, typer.Option(help="What the metrics' names mean: standard or paper.")
    ] = "standard",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure anybody's top-K lists (`--recs`) against a test set (`--truth`)."""
    from talos import readers
    from talos.evaluation import evaluate_lists
    from talos.metrics import DIALECTS, Dialect

    ks = parse_ks(k)
    chosen: Dialect | None = next((name for name in DIALECTS if name == dialect), None)
    if chosen is None:
        raise ConfigError(f"{dialect!r}", where="--dialect", expected=" or ".join(DIALECTS))
    report = evaluate_lists(readers.read_lists(recs), load(truth, Columns()), ks=ks, dialect=chosen)
    if json:
        print_json(report.as_dict())
        return
    header, rows = report.table()
    print_table(header, rows, title=f"{recs} ({report.num_users:,} users, {report.dialect} dialect)")
    for note in report.notes:
        say(note)
