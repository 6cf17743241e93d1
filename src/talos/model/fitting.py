"""Fitting: from a config and interactions to a model, once on train and again on more data; and a whole run.

A baseline is computed; anything else is trained, after a race between the settings that the config leaves open. A run
is a fit, perhaps a refit, metrics on the test part beside those of ranking by popularity, and the run directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import polars as pl
import torch

from talos import registry
from talos.baselines import ItemBaseline, ItemWeights, VectorBaseline
from talos.checks import require
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.distributed import Group, all_or_none, current, start
from talos.errors import ArgumentError, ConfigError, TalosError, nearest
from talos.evaluation.evaluate import Report, evaluate, popularity_report
from talos.model.model import Model, Vectors

if TYPE_CHECKING:
    from talos.data.options import SourceOptions
    from talos.distributed.share import Share, SplitShare
    from talos.model.recommender import Recommender
    from talos.progress import Progress
    from talos.training import Callback, Trainer

__all__ = [
    "IN_WORDS",
    "REFIT_ON",
    "RefitOn",
    "Run",
    "beside_popularity",
    "check_refit",
    "fit",
    "fit_baseline",
    "fit_run",
    "open_parts",
    "own_part",
    "refit",
    "refit_data",
]

RefitOn: TypeAlias = Literal["train+valid", "all"]
REFIT_ON: tuple[RefitOn, ...] = get_args(RefitOn)
IN_WORDS: Mapping[RefitOn, str] = dict(zip(REFIT_ON, ("train and validation", "all the data"), strict=True))

_KS = (5, 10, 20, 50)  # list lengths that a run is measured at, beside its own K
# What `model.json` keeps of the model that the settings and the number of epochs come from.
_KEPT = ("trained_on", "epoch", "epochs_from", "valid", "race", "metrics", "baseline", "chosen_from")


def fit(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None,
    test: Interactions | Share | None,
    *,
    folder: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    group: Group,
) -> Model:
    """Fit a config to `train`; see `Recommender.fit` for the arguments."""
    if config.baseline is not None:
        return fit_baseline(config, train, valid, test)
    from talos.studies.race import make_trainer
    from talos.training import History

    if folder is not None:
        callbacks = [History(folder / "history.jsonl"), *callbacks]
    trainer, race = make_trainer(
        config, train, valid, folder=folder, callbacks=callbacks, group=group, resume=resume
    )
    trainer.fit()
    own, left_out = own_part(test, train)
    facts: dict[str, Any] = {
        "trained_on": {"train": len(train)},
        "epochs_from": "the settings: no validation part",
        "test_left_out": left_out,
    }
    if trainer.position.best_epoch:
        watched = f"{trainer.config.training.metric}@{trainer.config.k}"
        epochs = trainer.position.epoch
        facts["epochs_from"] = f"early stopping: the best validation {watched} of {epochs} epochs"
    if race.chosen:
        facts["race"] = asdict(race)
    valid, divided = trainer.valid, None if isinstance(train, Interactions) else train
    model = Model(
        train=train if isinstance(train, Interactions) else train.own,
        valid=valid if isinstance(valid, Interactions | None) else valid.own,
        test=own,
        users=None if divided is None else divided.users,
        all_item_degrees=None if divided is None else divided.item_degrees,
    )
    return _with_results(model, trainer, facts)


def refit(
    before: Model,
    on: RefitOn,
    *,
    run: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    group: Group | None,
) -> Model:
    """Fit once more from scratch on more data; see `Recommender.refit`.

    It takes as many epochs as the best epoch of the fit before, not as many steps: an epoch is one pass over the data,
    so both models see each interaction equally often, and the learning-rate decay counts epochs.
    """
    data, trained_on = refit_data(before, on)
    origin = {"trained_on": before.trained_on, **before.metadata}
    facts: dict[str, Any] = {
        "trained_on": trained_on,
        "chosen_from": {name: origin[name] for name in _KEPT if name in origin},
        "test_left_out": 0 if on == "all" else before.metadata.get("test_left_out", 0),
    }
    model = replace(before, train=data, valid=None)
    if on == "all":
        model = replace(model, test=None, test_is_known=True, later=None)
    if before.config.baseline is not None:
        fitted = fit_baseline(before.config, data, facts=facts)
        return replace(model, scored_by=fitted.scored_by, metadata=fitted.metadata)
    from talos.training import History, Trainer
    from talos.training.trainer import check_path

    config = before.config.with_values({"training.epochs": int(before.metadata["epoch"])})
    checkpoints = None
    if run is not None:
        checkpoints = run / "checkpoint" / f"refit-{on}"
        checkpoints.mkdir(
            parents=True, exist_ok=True
        )  # so that `on` is on record before the first checkpoint
        callbacks = [History(run / "history-refit.jsonl"), *callbacks]
    path = before.metadata.get("race", {}).get("path", [])
    if before.read_from is not None:
        check_path(path, where=before.read_from)
    trainer = Trainer(
        config,
        data,
        earlier=path,
        folder=checkpoints,
        callbacks=callbacks,
        group=current() if group is None else group,
    )
    if resume:
        trainer.resume()
    trainer.fit()
    facts["epochs_from"] = "refit: the best epoch of the model it was chosen from"
    return _with_results(model, trainer, facts)


def _with_results(model: Model, trainer: Trainer, facts: Mapping[str, Any]) -> Model:
    """A model with what a trainer that has finished leaves: facts and, if this process has them, vectors."""
    named, position = trainer.objective.loss.named_parameters(), trainer.position
    metadata: dict[str, Any] = {
        "config": trainer.config.as_dict(),
        "epoch": position.best_epoch or position.epoch,
        **facts,
        "valid": dict(position.best_metrics),
        "threshold_error": trainer.threshold_error(),
        "loss_state": {name: value.item() for name, value in named if value.ndim == 0},
        "metrics": {},
    }
    results = trainer.results()  # None on other ranks than 0, unless each process has its own users
    backbone = trainer.objective.backbone
    parameters = backbone.state_dict().items() if backbone.encodes else ()
    return replace(
        model,
        scored_by=None if results is None else Vectors(*results),
        backbone={name: tensor.detach().cpu().clone() for name, tensor in parameters} or None,
        metadata=metadata,
    )


def fit_baseline(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None = None,
    test: Interactions | Share | None = None,
    *,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Model:
    """Compute the config's baseline from `train`; the validation interactions are measured and masked, not learnt.

    `facts` are added to the metadata.

    >>> config = RunConfig.from_dict({"k": 1, "baseline": {"name": "popularity"}})
    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 8])
    >>> fit_baseline(config, data).vectors.items.flatten().tolist()
    [1.0, 2.0]
    """
    assert config.baseline is not None
    baseline, name = registry.make_baseline(config.baseline), config.baseline.name
    if not isinstance(train, Interactions) or not isinstance(valid, Interactions | None):
        raise ArgumentError(
            f"the baseline {name!r} in a process that has a part of the interactions",
            where="train",
            expected="all interactions",
        )
    baseline.check(train)
    valid = None if valid is None else valid.aligned_to(train)[0]
    own, left_out = own_part(test, train)
    metadata: dict[str, Any] = {
        "config": config.as_dict(),
        "epoch": 0,
        "trained_on": {"train": len(train)},
        "valid": {},
        "threshold_error": None,
        "loss_state": {},
        "metrics": {},
        "test_left_out": left_out,
        **facts,
    }
    require(
        isinstance(baseline, ItemBaseline | VectorBaseline),
        f"{name!r}",
        where="baseline",
        expected="a subclass of VectorBaseline or ItemBaseline",
    )
    found = cast(ItemBaseline | VectorBaseline, baseline).fit(
        train, torch.Generator().manual_seed(config.seed)
    )
    scored_by = found if isinstance(found, ItemWeights) else Vectors(*found)
    if not all(torch.isfinite(tensor).all() for tensor in scored_by.tensors().values()):
        raise TalosError(
            f"the baseline {name!r} has numbers that are not finite; it may need another setting"
        )
    model = Model(scored_by=scored_by, train=train, valid=valid, test=own, metadata=metadata)
    measured = None if valid is None else valid.of_users_in(train)
    if measured:
        metrics = evaluate(model.scorer(), measured, seen=train, ks=[config.k]).metrics
        watched = f"{config.training.metric}@{config.k}"
        metadata["valid"] = {watched: metrics[watched]} | metrics  # the watched metric first, as in training
    return model


def own_part(
    part: Interactions | Share | None, train: Interactions | Share
) -> tuple[Interactions | None, int]:
    """This process's interactions of a part over the vocabularies of train, and how many are left out."""
    if part is None:
        return None, 0
    own = part if isinstance(part, Interactions) else part.own
    return own.aligned_to(train if isinstance(train, Interactions) else train.own)


def refit_data(model: Model, on: RefitOn) -> tuple[Interactions, dict[str, int]]:
    """The interactions to fit on again, and how many of them are from which part.

    >>> data = Interactions.from_ids([1, 1, 1], [7, 8, 9])
    >>> model = Model(train=data.where(data.indices == 0), valid=data.where(data.indices == 1))
    >>> refit_data(model, "train+valid")[1]
    {'train': 1, 'valid': 1}
    """
    check = partial(require, where="refit")
    require(
        on in REFIT_ON,
        f"{on!r}",
        where="on",
        expected=" or ".join(REFIT_ON),
        hint=nearest(on, REFIT_ON),
    )
    check(
        model.users is None,
        "a share of the interactions",
        expected="all interactions in every process, or one process",
    )
    check(
        on == "all" or bool(model.valid),
        "there is no validation part",
        expected="a fit with early stopping on one",
    )
    test = model.held_out if on == "all" else None
    check(
        on != "all" or bool(test),
        "no interactions are known beside train and validation",
        expected="a fit that was given them, such as fit(train, valid, known=test)",
    )
    data, counts = model.train, model.trained_on
    for name, part in {"valid": model.valid, "test": test}.items():
        if part:
            joined = data.union(part)
            data, counts[name] = joined, len(joined) - len(data)
    return data, counts


# ------------------------------------------------------------------- a whole run


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

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: each metric of the model, and below it that of ranking by popularity."""
        if self.report is None or self.popular is None:
            return [], []
        header, ours = self.report.table()
        theirs = {name: values for name, *values in self.popular.table()[1]}
        rows = []
        for name, *values in ours:
            rows.append([name, "trained", *values])
            if name in theirs:
                rows.append(["", "popularity", *theirs[name]])
        return [header[0], "", *header[1:]], rows


def open_parts(
    config: RunConfig,
    path: str,
    options: SourceOptions,
    *,
    notify: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Split | SplitShare:
    """What this process trains on: its share of a folder of shards, where several can divide it, or the whole split.

    If one process cannot read its share, all of them stop.
    """
    from talos.data.open import open_split
    from talos.data.source import Source
    from talos.distributed.share import read_share

    divides = (
        config.training.parallel != "none" and config.baseline is None and Source.of(path).kind == "shards"
    )
    if divides and registry.resolve("backbone", config.backbone.name).divisible:
        group = start(config.device)
        if group.size > 1:
            return cast("SplitShare", all_or_none(group, lambda: read_share(path, group.range_of), path))
    return open_split(path, options, notify=notify, progress=progress)


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
    require(
        group.size == 1 or config.training.parallel != "none",
        f"'none' in {group.size} processes",
        where="parallel",
        expected="'users', 'items' or 'auto'",
        error=ConfigError,
    )
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
    if recommender.model is None or recommender.model.scored_by is None:  # rank 0 has the whole model
        return None
    model, notes = recommender.fitted_model(), list(parts.cold_notes() if isinstance(parts, Split) else [])
    report = popular = None
    facts: dict[str, Any] = {"metrics": {}, "baseline": {}, "fit_seconds": round(seconds, 2)}
    if len(parts.test):
        # a model that was fitted on the test part has no test metrics: those of the other one stand in for them
        measured = chosen if refit == "all" else recommender
        base = model.train if refit == "train+valid" else parts.train
        report, popular = beside_popularity(measured, parts.test, base)
        facts |= {"metrics": report.metrics, "baseline": {"popularity": popular.metrics}}
        notes += report.notes
    if refit == "all":
        origin = {} if report is None else {**report.as_dict(), "baseline": facts["baseline"]}
        facts |= {"metrics": {}, "baseline": {}, "chosen_from": {**model.metadata["chosen_from"], **origin}}
    if items is not None:
        recommender.add_items(items)
    recommender.save(out, source=None if source is None else dict(source), notes=notes, **facts)
    run = Run(recommender=recommender, report=report, popular=popular, seconds=seconds, notes=tuple(notes))
    return run if group.rank == 0 else None


def beside_popularity(
    recommender: Recommender, test: Interactions | Share, train: Interactions | Share
) -> tuple[Report, Report]:
    """Metrics of a recommender on a test part, and those of ranking by the popularity in `train`."""
    ks = sorted({k for k in (*_KS, recommender.config.k) if k <= train.num_items})
    report = recommender.evaluate(test, k=ks, popularity=train.item_degrees)
    return report, popularity_report(train, test, seen=recommender.fitted_model().seen, ks=ks)


def check_refit(refit: RefitOn | None, parts: Split | SplitShare) -> None:
    """Refuse what would fail only after the first fit."""
    check = partial(require, where="refit", error=ConfigError)
    check(
        refit is None or isinstance(parts, Split),
        "shards in several processes",
        expected="one process, or a PATH that every process reads whole",
    )
    check(
        refit != "train+valid" or bool(parts.valid),
        "there is no validation part",
        expected="valid above 0",
    )
    check(refit != "all" or bool(parts.test), "there is no test part to add", expected="'train+valid'")


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
    check_memory(plan, current().size)  # on every rank, so that all of them stop
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
