"""`talos evaluate`: measure a run, or recommendation lists of any origin, on a test set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import DataOption, Json, TestArgument, UnsplitOptions, with_options
from talos.cli.output import print_json, print_table, reading, say
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.data.interactions import Interactions
    from talos.evaluation.evaluate import Report
    from talos.evaluation.metrics import Dialect
    from talos.model.recommender import Recommender

__all__ = ["evaluate", "parse_ks", "test_part"]

_LENGTHS = (10, 20, 50)


def parse_ks(text: str) -> tuple[int, ...]:
    """`10,20,50` as numbers.

    >>> parse_ks("10,20")
    (10, 20)
    """
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", text):  # int() would take 1_0 for 10
        expected = "numbers with commas, such as 10,20,50"
        raise ConfigError(f"{text!r}", where="--k", expected=expected)
    ks = tuple(int(k) for k in text.split(","))
    if min(ks) < 1:
        raise ConfigError(f"{min(ks)}", where="--k", expected="list lengths of 1 or more")
    return ks


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
        str | None, typer.Option(help="List lengths.  [default: 10,20,50, as far as there are items]")
    ] = None,
    dialect: Annotated[str, typer.Option(help="Definitions of the metrics: standard or paper.")] = "standard",
    data: DataOption = None,
    *,
    source: UnsplitOptions,
    json: Json = False,
) -> None:
    """Measure a run on its test part or on PATH, or recommendation lists (--recs) on that of RUN or on --truth.

    Options for columns and clean-up are for PATH or --truth.
    """
    from talos.data import readers
    from talos.data.open import open_interactions
    from talos.evaluation.evaluate import evaluate_lists
    from talos.evaluation.metrics import DIALECTS

    chosen: Dialect | None = next((name for name in DIALECTS if name == dialect), None)
    if chosen is None:
        raise ConfigError(f"{dialect!r}", where="--dialect", expected=" or ".join(DIALECTS))
    ks = None if k is None else parse_ks(k)
    report: Report | None
    if run is not None and recs is None and truth is None:
        name, report = str(run), _of_run(run, path, data, source, ks, chosen)
    elif recs is not None and path is None and data is None and (run is None) != (truth is None):
        test = open_interactions(truth, source, notify=say) if truth else _stored_test_part(run)
        lists = readers.read_lists(recs)
        name, report = recs, evaluate_lists(lists, test, ks=ks or _LENGTHS, dialect=chosen)
    else:
        raise ConfigError(
            "it is not clear what to measure",
            where="talos evaluate",
            expected="RUN, or --recs with RUN or --truth",
        )
    if report is None:  # rank 0 prints
        return
    if json:
        print_json(report.as_dict())
        return
    header, rows = report.table()
    print_table(header, rows, title=f"{name} ({report.num_users:,} users, {report.dialect} dialect)")
    for note in report.notes:
        say(note)


def _of_run(
    run: Path,
    path: str | None,
    data: str | None,
    source: SourceOptions,
    ks: tuple[int, ...] | None,
    dialect: Dialect,
) -> Report | None:
    """Metrics of a run; of several processes each measures some of the users, and rank 0 returns the result."""
    from talos import distributed
    from talos.model.recommender import Recommender

    group = distributed.start()
    recommender = Recommender.load(run, group=group)
    test = test_part(recommender, run, path, data, source)
    report = recommender.evaluate(test, ks, dialect=dialect)
    distributed.stop()
    return report if group.rank == 0 else None


def _stored_test_part(run: Path | None) -> Interactions:
    """The test part of a run; an error if it has none."""
    from talos.model.recommender import no_test_part
    from talos.model.store import load_model

    assert run is not None
    model = load_model(run)
    if model.test is None:
        raise no_test_part(model)
    return model.test


def test_part(
    recommender: Recommender, run: Path, path: str | None, data: str | None, source: SourceOptions
) -> Interactions | None:
    """What a run is measured on: PATH; the test part of its own data, read again; or None, its stored test part."""
    from talos.data.open import open_recorded, open_test

    record = recommender.fitted_model().metadata.get("source")
    if path is not None and data is not None:
        raise ConfigError("a PATH as well", where="--data", expected="one of them")
    with reading() as progress:
        how: dict[str, Any] = {"options": source, "notify": say, "progress": progress}
        if path is not None:
            return open_test(record, path, **how)
        return None if data is None else open_recorded(record, run=run, data=data, **how).test
