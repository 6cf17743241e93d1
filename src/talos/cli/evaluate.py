"""`talos evaluate`: measure a run, or recommendation lists of any origin, on a test set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from talos.cli.options import DataOption, Json, TestArgument, with_options
from talos.cli.output import print_json, print_table, say
from talos.cli.shared import test_part
from talos.data.options import SourceOptions
from talos.errors import ConfigError

if TYPE_CHECKING:
    pass

__all__ = ["evaluate", "parse_ks"]


def parse_ks(text: str) -> tuple[int, ...]:
    """`10,20,50` as numbers.

    >>> parse_ks("10,20")
    (10, 20)
    """
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", text):  # int() would take 1_0 for 10
        expected = "numbers with commas, such as 10,20,50"
        raise ConfigError(f"{text!r}", where="--k", expected=expected)
    return tuple(int(k) for k in text.split(","))


@with_options
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory.")] = None,
    path: TestArgument = None,
    recs: Annotated[
        str | None,
        typer.Option("--recs", help="Lists to measure: user_id, item_id, rank or score."),
    ] = None,
    truth: Annotated[
        str | None, typer.Option("--truth", help="The test set for --recs, in place of that of RUN.")
    ] = None,
    k: Annotated[
        str | None,
        typer.Option("--k", "-k", help="List lengths.  [default: 10,20,50, as far as there are items]"),
    ] = None,
    dialect: Annotated[
        Literal["standard", "paper"], typer.Option(help="Definitions of the metrics.")
    ] = "standard",
    data: DataOption = None,
    *,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Measure a run on its test part or on PATH, or recommendation lists (--recs) on that of RUN or on --truth.

    Options for columns and clean-up are for PATH, --truth or --data; those of the split for --data.
    """
    from talos import distributed
    from talos.data.open import open_interactions, read_lists
    from talos.evaluation.evaluate import check_ks, evaluate_lists
    from talos.model.recommender import Recommender, stored_test_part
    from talos.model.store import load_model

    ks = None if k is None else check_ks(parse_ks(k), None)
    group = distributed.start()
    if run is not None and recs is None and truth is None:  # each process measures some of the users
        recommender = Recommender.load(run, group=group)
        test = test_part(recommender, run, path, data, source)
        name, report = str(run), recommender.evaluate(test, ks, dialect=dialect)
    elif recs is not None and path is None and data is None and (run is None) != (truth is None):
        known = (
            open_interactions(truth, source, notify=say)
            if truth
            else stored_test_part(load_model(run or Path()))
        )
        name, report = recs, evaluate_lists(read_lists(recs), known, ks=ks or (10, 20, 50), dialect=dialect)
    else:
        raise ConfigError(
            "it is not clear what to measure",
            where="talos evaluate",
            expected="RUN, or --recs with RUN or --truth",
        )
    distributed.stop()
    if group.rank > 0:
        return
    if json:
        print_json(report.as_dict())
        return
    header, rows = report.table()
    print_table(header, rows, title=f"{name} ({report.num_users:,} users, {report.dialect} dialect)")
    for note in report.notes:
        say(note)
