"""`talos evaluate`: measure a run, or anybody's lists, against a test set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talos.cli.options import Json
from talos.cli.output import print_json, print_table, say
from talos.cli.source import Columns, load, load_share, test_part
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.evaluation.evaluate import Report
    from talos.evaluation.metrics import Dialect

__all__ = ["evaluate", "parse_ks"]


def parse_ks(text: str) -> tuple[int, ...]:
    """`10,20,50` as numbers.

    >>> parse_ks("10,20")
    (10, 20)
    """
    try:
        ks = tuple(int(k) for k in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{text!r}", where="--k", expected="numbers with commas, such as 10,20,50"
        ) from error
    if min(ks) < 1:
        raise ConfigError(f"{min(ks)}", where="--k", expected="list lengths of 1 or more")
    return ks


def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run directory.")] = None,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A test set; the run's own test part if not given.")
    ] = None,
    recs: Annotated[
        str | None,
        typer.Option("--recs", help="Lists to measure instead of a run: user_id, item_id, rank or score."),
    ] = None,
    truth: Annotated[str | None, typer.Option("--truth", help="The test set for --recs.")] = None,
    k: Annotated[str, typer.Option(help="List lengths.")] = "10,20,50",
    dialect: Annotated[
        str, typer.Option(help="What the metrics' names mean: standard or paper.")
    ] = "standard",
    json: Json = False,
) -> None:
    """Measure a run on its test part or on PATH, or anybody's lists (`--recs`) against a test set (`--truth`)."""
    from talos.evaluation.metrics import DIALECTS

    chosen: Dialect | None = next((name for name in DIALECTS if name == dialect), None)
    if chosen is None:
        raise ConfigError(f"{dialect!r}", where="--dialect", expected=" or ".join(DIALECTS))
    ks = parse_ks(k)
    report: Report | None
    if run is not None and recs is None and truth is None:
        name, report = str(run), _of_run(run, path, ks, chosen)
    elif run is None and recs is not None and truth is not None:
        name, report = recs, _of_lists(recs, truth, ks, chosen)
    else:
        raise ConfigError(
            "what to measure is not clear", where="talos evaluate", expected="RUN, or --recs and --truth"
        )
    if report is None:  # rank 0 speaks for all
        return
    if json:
        print_json(report.as_dict())
        return
    header, rows = report.table()
    print_table(header, rows, title=f"{name} ({report.num_users:,} users, {report.dialect} dialect)")
    for note in report.notes:
        say(note)


def _of_lists(recs: str, truth: str, ks: tuple[int, ...], dialect: Dialect) -> Report:
    from talos.data import readers
    from talos.evaluation.evaluate import evaluate_lists

    return evaluate_lists(readers.read_lists(recs), load(truth, Columns()), ks=ks, dialect=dialect)


def _of_run(run: Path, path: str | None, ks: tuple[int, ...], dialect: Dialect) -> Report | None:
    """Metrics of a run; several processes measure a part of the users each, and rank 0 has the result."""
    from talos import distributed
    from talos.model.recommender import Recommender

    group = distributed.start()
    recommender = Recommender.load(run, group=group)
    assert recommender.model is not None
    facts = recommender.model.metadata
    # a PATH is a test set as a whole, of which every process reads all
    share = load_share((facts.get("source") or {}).get("path", ""), group) if path is None else None
    test = test_part(run, facts, path) if share is None else share.test
    report = recommender.evaluate(test, ks, dialect=dialect)
    distributed.stop()
    return report if group.rank == 0 else None
