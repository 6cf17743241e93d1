"""A whole run: fit, refit, measure on the test part beside ranking by popularity, and save."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from talos.data.splits import Split
from talos.distributed import Group, current
from talos.errors import ConfigError
from talos.evaluation.evaluate import Report, popularity_report
from talos.model.fitting import REFIT_ON, RefitOn

if TYPE_CHECKING:
    from talos.data.shards import SplitShare
    from talos.model.recommender import Recommender
    from talos.training import Callback

__all__ = ["IN_WORDS", "Run", "check_refit", "fit_run"]

IN_WORDS: Mapping[RefitOn, str] = dict(zip(REFIT_ON, ("train and validation", "all the data"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        recommender: fitted and saved.
        report: metrics on the test part; of the model the settings were chosen from, if the recommender was fitted on
            the test part too. None without a test part.
        popular: metrics of ranking by popularity on the same test part.
        seconds: how long fitting took.
        notes: about users and items without training events.
    """

    recommender: Recommender
    report: Report | None
    popular: Report | None
    seconds: float
    notes: tuple[str, ...]


def fit_run(
    recommender: Recommender,
    parts: Split | SplitShare,
    out: Path,
    *,
    refit: RefitOn | None,
    resume: bool,
    items: pl.DataFrame | None,
    loggers: Sequence[str],
    source: Mapping[str, Any] | None,
    callbacks: Sequence[Callback],
    notify: Callable[[str], None] | None,
) -> Run | None:
    """See `Recommender.fit_run`."""
    group, config = current(), recommender.config
    say = notify if notify is not None and group.rank == 0 else lambda line: None
    check_refit(refit, parts)
    if group.size > 1 and config.training.parallel == "none":
        what, expected = f"'none' in {group.size} processes", "'users', 'items' or 'auto'"
        raise ConfigError(what, where="parallel", expected=expected)
    began = time.perf_counter()
    shown = group.rank == 0 and notify is not None
    watchers = [*_watchers(group, {name: out / name for name in loggers}, shown), *callbacks]
    if config.baseline is None:
        watchers = [*_announce(recommender, parts, say), *watchers]
    recommender.fit(parts.train, parts.valid, known=parts.test, run=out, resume=resume, callbacks=watchers)
    chosen = copy(recommender)
    if refit is not None:
        say(f"fitting again on {IN_WORDS[refit]}")
        watchers = [*_watchers(group, {name: out / name / "refit" for name in loggers}, shown), *callbacks]
        recommender.refit(refit, run=out, resume=resume, callbacks=watchers)
    seconds = time.perf_counter() - began
    if recommender.model is None:  # rank 0 has the whole model
        return None
    model, notes = recommender.fitted_model(), list(parts.cold_notes() if isinstance(parts, Split) else [])
    report = popular = None
    facts: dict[str, Any] = {"metrics": {}, "baseline": {}, "fit_seconds": round(seconds, 2)}
    if len(parts.test):
        # a model that was fitted on the test part has no test metrics: those of the other one stand in for them
        measured = chosen if refit == "all" else recommender
        base = model.train if refit == "train+valid" else parts.train
        ks = sorted({k for k in (5, 10, 20, 50, config.k) if k <= base.num_items})
        report = measured.evaluate(parts.test, k=ks, popularity=base.item_degrees)
        popular = popularity_report(base, parts.test, seen=measured.fitted_model().seen, ks=ks)
        facts["metrics"] = report.metrics
        facts["baseline"] = {"popularity": popular.metrics}
        notes += report.notes
    if refit == "all":
        origin = {} if report is None else {**report.as_dict(), "baseline": facts["baseline"]}
        facts |= {"metrics": {}, "baseline": {}, "chosen_from": {**model.metadata["chosen_from"], **origin}}
    if items is not None:
        recommender.add_items(items)
    recommender.save(out, source=None if source is None else dict(source), notes=notes, **facts)
    run = Run(recommender=recommender, report=report, popular=popular, seconds=seconds, notes=tuple(notes))
    return run if group.rank == 0 else None


def check_refit(refit: RefitOn | None, parts: Split | SplitShare) -> None:
    """Refuse what would fail only after the first fit."""
    if refit is None:
        return
    if not isinstance(parts, Split):
        expected = "one process, or a PATH that every process reads whole"
        raise ConfigError("shards in several processes", where="refit", expected=expected)
    if refit == "train+valid" and not parts.valid:
        raise ConfigError("there is no validation part", where="refit", expected="valid above 0")
    if refit == "all" and not parts.test:
        raise ConfigError("there is no test part to add", where="refit", expected="'train+valid'")


def _announce(
    recommender: Recommender, parts: Split | SplitShare, say: Callable[[str], None]
) -> list[Callback]:
    """Say what will be trained, after a check of the memory that it takes."""
    from talos import kernels
    from talos.studies.race import plan_of_run
    from talos.training import PlanLines, check_memory

    config = recommender.config
    say(f"kernel: {kernels.status()}" if config.device == "cpu" else f"kernel: torch on {config.device}")
    plan = plan_of_run(config, parts.train, parts.valid)
    check_memory(plan)  # on every rank, so that all of them stop
    say(f"memory: {plan.memory / 2**20:,.1f} MB at the peak, besides the interactions")
    if plan.raced:
        say(plan.raced)
    return [PlanLines(say)]


def _watchers(group: Group, loggers: Mapping[str, Path], shown: bool) -> list[Callback]:
    """Progress if it is `shown`, and each logger with its folder; on rank 0."""
    from talos.training import LOGGERS, progress

    if group.rank != 0:
        return []
    return [*([progress()] if shown else []), *(LOGGERS[name](folder) for name, folder in loggers.items())]
