"""Comparisons: fits of several models, one after another, or runs that are finished.

Finished fits are kept in the folder of the comparison, so one that was killed can be continued.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from talos import registry
from talos.checks import require
from talos.config import RunConfig
from talos.data.parquet import scan_file
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, InputError, TalosError, nearest
from talos.evaluation.evaluate import Report, evaluate, users_with_tests
from talos.evaluation.metrics import RANKING_METRICS, Dialect
from talos.evaluation.ranking import Scorer
from talos.evaluation.significance import Alternative
from talos.files import digest_of, read_record, replace_file, replace_text, write_record
from talos.model.fitting import fit_baseline
from talos.model.recommender import Recommender
from talos.studies.compare.table import ComparisonTable, RunResult, build_table
from talos.studies.folder import file_name, read_manifest, study_folder
from talos.studies.race import make_trainer
from talos.training import InterruptedRunError, Trainer
from talos.training.callbacks import Ending

__all__ = ["CompareSettings", "compare", "compare_runs", "load", "models_for"]

_MANIFEST, _NOUN, _RUNS = "compare.json", "comparison", "runs"
_TUNED = "tuned"  # where `compare --tuned` leaves its studies before the comparison starts
CURVE_KS = (1, 5, 10, 20, 50)  # always measured as well, for the plots against K
LIST_METRICS = (
    "coverage",
    "popularity_rank",
    "exposure_gini",
)  # of all lists together, at the largest K only
_SHOWN = ("precision", "recall", "ndcg", "mrr")  # at the first model's K, if no metrics are named


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Everything that decides the numbers of a comparison, except the seeds."""

    models: Mapping[str, RunConfig]  # name → config
    data: Mapping[str, str]  # the fingerprint of each part of the split
    ks: tuple[int, ...]  # the list lengths that are measured
    dialect: Dialect  # what the metrics' names mean
    budget: float | None  # seconds that a fit may train; None for no limit

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the seeds of the configs are left out."""
        models = {
            name: {key: value for key, value in config.as_dict().items() if key != "seed"}
            for name, config in self.models.items()
        }
        return {**vars(self), "models": models, "data": dict(self.data), "ks": list(self.ks)}

    def digest(self, model: str, seed: int) -> str:
        """Digest of everything that decides one fit."""
        values = self.as_dict()
        return digest_of({**values, "models": values["models"][model], "model": model, "seed": seed})

    def stem(self, model: str, seed: int) -> str:
        """The name of a fit's files; the number separates models whose names differ only in special characters."""
        return f"{list(self.models).index(model):02d}-{file_name(model)}-seed{seed}"


def models_for(
    losses: Sequence[str],
    backbones: Sequence[str],
    baselines: Sequence[str],
    *,
    base: RunConfig,
    changes: Sequence[tuple[str | None, str, Any]] = (),
) -> dict[str, RunConfig]:
    """Name → config for each loss on each backbone, then for each baseline; with one backbone the name is the loss's.

    Args:
        losses: names of losses.
        backbones: names of backbones.
        baselines: names of baselines.
        base: the config that all start from.
        changes: a loss, backbone or baseline, or None for everything that is trained; a key of the config; its value.

    >>> changes = [(None, "training.epochs", 3), ("sl", "loss.tau", 0.2)]
    >>> models = models_for(["talos", "sl"], ["mf"], ["ease"], base=RunConfig(), changes=changes)
    >>> list(models), models["sl"].loss.options, models["talos"].training.epochs
    (['talos', 'sl', 'ease'], {'tau': 0.2}, 3)
    """
    kinds: dict[registry.Kind, Sequence[str]] = {"loss": losses, "backbone": backbones, "baseline": baselines}
    for kind, names in kinds.items():
        for name in names:
            registry.resolve(kind, name, where=f"{kind}es" if kind == "loss" else f"{kind}s")
    for name in {*baselines} & {*losses, *backbones}:
        raise ConfigError(f"{name!r} is also a loss or backbone", where="baselines", expected="other names")
    configs = {}
    for backbone in backbones:
        for loss in losses:
            wanted = {"loss.name": loss, "backbone.name": backbone}
            wanted |= {key: value for name, key, value in changes if name is None}
            wanted |= {key: value for name, key, value in changes if name in (loss, backbone)}
            configs[loss if len(backbones) == 1 else f"{backbone}/{loss}"] = base.with_values(wanted)
    for baseline in baselines:
        wanted = {"baseline.name": baseline}
        wanted |= {key: value for name, key, value in changes if name == baseline}
        configs[baseline] = base.with_values(wanted)
    for config in configs.values():
        registry.check(config)
    return configs


def compare(
    split: Split,
    models: Mapping[str, RunConfig],
    seeds: int | Sequence[int] = 5,
    *,
    out: str | Path | None = None,
    metrics: Sequence[str] = (),
    dialect: Dialect = "standard",
    budget: float | None = None,
    alternative: Alternative = "two-sided",
    notify: Callable[[str], None] = lambda line: None,
) -> ComparisonTable:
    """Fit every model with every seed on one split and compare each with the first.

    Args:
        split: the train, validation and test parts that all models share.
        models: name → config; the seed of a config is replaced.
        seeds: seeds of training, or how many (0, 1, …).
        out: a folder for the results of single fits, `compare.csv` and `compare.tex`. Fits that are finished
            there are not repeated, and later calls may name more seeds; other settings or data are refused.
        metrics: metrics to show, such as `recall@20`; default: precision, recall, NDCG and MRR at the first
            model's K.
        dialect: what the metrics' names mean, see `talos.metrics`.
        budget: seconds that a fit may train; it ends after the epoch in which they run out.
        alternative: the alternative hypothesis about the first model and each of the others.
        notify: called with a line of progress after each fit.
    """
    require(bool(models), "is empty", where="models", expected="at least one config")
    require(budget is None or budget > 0, f"{budget}", where="budget", expected="a number of seconds above 0")
    items, first = split.train.num_items, next(iter(models.values()))
    metrics = metrics or [f"{name}@{first.k}" for name in _SHOWN]
    asked = _lengths(metrics, items)
    list_metrics = any(metric.partition("@")[0] in LIST_METRICS for metric in metrics)
    curve = {k for k in CURVE_KS if k <= (asked[-1] if list_metrics else items)}
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    require(
        bool(seeds) and min(seeds) >= 0 and len(set(seeds)) == len(seeds),
        f"{seeds}",
        where="seeds",
        expected="1 or more, or distinct numbers of 0 or more",
    )
    settings = CompareSettings(
        models=dict(models),
        data={name: part.fingerprint() for name, part in split.parts.items()},
        ks=tuple(sorted(curve | set(asked))),
        dialect=dialect,
        budget=budget,
    )
    users_with_tests(split.test)
    for name, config in models.items():  # a config that cannot run is refused before the first fit
        try:
            if config.baseline is None:
                Trainer(config, split.train, split.valid)
            else:
                registry.make_baseline(config.baseline).check(split.train)
        except InputError as error:
            raise ConfigError(str(error), where=f"model {name}") from None
    view = {"seeds": list(seeds), "metrics": list(metrics), "alternative": alternative}
    with contextlib.ExitStack() as held:
        folder = Path(out or held.enter_context(tempfile.TemporaryDirectory(prefix="talos-compare-")))
        held.enter_context(
            study_folder(
                folder / _MANIFEST, _NOUN, settings.as_dict(), facts={"view": view}, may_hold=(_TUNED,)
            )
        )

        def missing(name: str, seed: int) -> RunResult:
            baseline = models[name].baseline
            if baseline is not None and not registry.resolve("baseline", baseline.name).random:
                for other in seeds:  # what no seed changes is computed once
                    same = _load(folder, settings, name, other)
                    if same is not None:
                        return replace(same, seed=seed, config={**same.config, "seed": seed})
            return _fit(split, settings, name, seed)

        try:
            table = _table(folder, settings, view, missing, notify)
        except InterruptedRunError as error:
            kept = "" if out is None else "; finished fits are kept; run it again to continue"
            raise InterruptedRunError(f"{error}{kept}") from None
        replace_text(folder / "compare.csv", table.to_csv())
        replace_text(folder / "compare.tex", table.to_latex())
    return table


def compare_runs(
    folders: Sequence[str | Path],
    *,
    metrics: Sequence[str] = (),
    dialect: Dialect = "standard",
    alternative: Alternative = "two-sided",
) -> ComparisonTable:
    """Measure run directories on their common test part and test each against the first, paired over users.

    Args:
        folders: run directories with equal test parts; the data they were trained on is not needed.
        metrics: metrics to show, such as `recall@20`; default: precision, recall, NDCG and MRR at the first run's K.
        dialect: what the metrics' names mean, see `talos.metrics`.
        alternative: the alternative hypothesis about the first run and each of the others.

    Raises:
        DataError: a run with another test part than the first, or with none.
    """
    results: dict[str, list[RunResult]] = {}
    expected = ""
    for folder in map(Path, folders):
        recommender = Recommender.load(folder)
        model, name = recommender.fitted_model(), str(folder)
        metrics = metrics or [f"{metric}@{recommender.config.k}" for metric in _SHOWN]
        ks = _lengths(metrics, model.train.num_items)
        found = "" if model.test is None else model.test.compact().fingerprint()
        expected = expected or found
        require(
            found == expected != "",
            "has another test part than the first run" if found else "has no test part",
            where=name,
            expected="runs of one split",
            error=DataError,
        )
        require(
            name not in results, "is named twice", where=name, expected="different runs", error=ConfigError
        )
        results[name] = [
            RunResult(
                model=name,
                seed=recommender.config.seed,
                fit_seconds=float(model.metadata.get("fit_seconds") or 0.0),
                epoch=int(model.metadata.get("epoch", 0)),
                stopped="epochs" if recommender.config.baseline is None else "computed",
                config=recommender.config.as_dict(),
                report=recommender.evaluate(k=ks, dialect=dialect, popularity=model.item_degrees),
                history=[],
            )
        ]
    return build_table(results, metrics, alternative)


def load(folder: str | Path) -> ComparisonTable:
    """The table of a finished comparison, from its folder."""
    out = Path(folder)
    stored, facts = read_manifest(out / _MANIFEST, _NOUN)
    where = str(out / _MANIFEST)
    try:
        configs = {name: RunConfig.from_dict(one, where=where) for name, one in stored["models"].items()}
        settings = CompareSettings(**{**stored, "models": configs, "ks": tuple(stored["ks"])})
        view = {name: facts["view"][name] for name in ("seeds", "metrics", "alternative")}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is damaged: {error} is missing or wrong", where=where) from None

    def missing(name: str, seed: int) -> RunResult:
        raise DataError(
            f"the fit {settings.stem(name, seed)} is not finished",
            where=str(out),
            hint="run the comparison again to continue",
        )

    return _table(out, settings, view, missing)


def _table(
    folder: Path,
    settings: CompareSettings,
    view: Mapping[str, Any],
    missing: Callable[[str, int], RunResult],
    notify: Callable[[str], None] = lambda line: None,
) -> ComparisonTable:
    """The table over all fits: those that the folder has, and those that it has not by `missing`."""
    metrics, jobs = view["metrics"], [(name, seed) for seed in view["seeds"] for name in settings.models]
    results: dict[str, list[RunResult]] = {name: [] for name in settings.models}
    for number, (name, seed) in enumerate(jobs, start=1):
        try:
            result, said = _load(folder, settings, name, seed), "finished before"
            if result is None:
                result = missing(name, seed)
                _save(folder, settings, result)
                said = f"{result.fit_seconds:.1f} s"
        except (InterruptedRunError, KeyboardInterrupt):  # the latter is Ctrl-C between two fits
            raise InterruptedRunError(f"stopped in {name}, seed {seed}") from None
        # without the per-user values that no test needs, which would fill the memory over many fits
        per_user = {metric: values for metric, values in result.report.per_user.items() if metric in metrics}
        results[name].append(replace(result, report=replace(result.report, per_user=per_user)))
        value = result.report.metrics[metrics[0]]
        notify(f"{number}/{len(jobs)}  {name}  seed {seed}  {metrics[0]} {value:.4f}  {said}")
    return build_table(results, metrics, view["alternative"])


def _lengths(metrics: Sequence[str], num_items: int) -> list[int]:
    """The list lengths in names such as `recall@20`, in ascending order."""
    known, lengths = (*RANKING_METRICS, *LIST_METRICS), set[int]()
    check = partial(require, where="metrics", error=ConfigError)
    for metric in metrics:
        name, _, k = metric.partition("@")
        check(name in known, f"no metric {metric!r}", hint=nearest(name, known))
        check(
            k.isdecimal() and 1 <= int(k) <= num_items,
            f"{metric!r}",
            expected=f"a list length of 1 to {num_items:,} after @, such as {name}@{min(20, num_items)}",
        )
        lengths.add(int(k))
    for metric in metrics:
        name, _, k = metric.partition("@")
        longest = name not in LIST_METRICS or int(k) == max(lengths)
        check(longest, f"{metric!r}", expected=f"{name}@{max(lengths)}, the longest")
    return sorted(lengths)


def _fit(split: Split, settings: CompareSettings, name: str, seed: int) -> RunResult:
    config = settings.models[name].with_values({"seed": seed})
    began, budget = time.perf_counter(), math.inf if settings.budget is None else settings.budget
    # the budget counts a race too
    ending = Ending(lambda record: "budget" if time.perf_counter() - began >= budget else "")
    scorer: Scorer
    try:
        if config.baseline is None:
            trainer, _ = make_trainer(config, split.train, split.valid, callbacks=[ending])
            ending.trainer = trainer
            trainer.fit()
            scorer, config, at = trainer.scorer(), trainer.config, trainer.position
            epoch, ended = at.best_epoch or at.epoch, ending.ended_by
        else:  # learns from train alone, as trained models do
            scorer, epoch, ended = fit_baseline(config, split.train).scorer(), 0, "computed"
    except InterruptedRunError:
        raise
    except TalosError as error:
        raise TalosError(f"{name}, seed {seed}: {error}") from error
    seconds, seen = round(time.perf_counter() - began, 3), split.train
    if split.valid is not None and settings.dialect != "paper":  # that dialect does not mask validation
        seen = seen.union(split.valid)
    return RunResult(
        model=name,
        seed=seed,
        fit_seconds=seconds,
        epoch=epoch,
        stopped=ended,
        config=config.as_dict(),
        report=evaluate(
            scorer,
            split.test,
            seen=seen,
            ks=settings.ks,
            dialect=settings.dialect,
            popularity=split.train.item_degrees,
        ),
        history=ending.lines,
    )


def _save(out: Path, settings: CompareSettings, result: RunResult) -> None:
    """Append a fit to the folder: everything as JSON but the per-user values, which are a table."""
    stem, report = settings.stem(result.model, result.seed), result.report
    facts = {name: value for name, value in vars(result).items() if name != "report"}
    values = {**facts, **report.as_dict(), "fingerprint": settings.digest(result.model, result.seed)}
    per_user = pl.DataFrame({"user_id": report.user_ids, **report.per_user})
    folder = out / _RUNS
    folder.mkdir(exist_ok=True)
    replace_file(folder / f"{stem}.parquet", per_user.write_parquet)
    write_record(folder / f"{stem}.json", values, [f"{stem}.parquet"])


def _load(out: Path, settings: CompareSettings, model: str, seed: int) -> RunResult | None:
    """The stored result of a fit; None if it is not finished. Damaged files and other settings are an error."""
    path = out / _RUNS / f"{settings.stem(model, seed)}.json"
    if not path.exists():
        return None
    table, hint = path.with_suffix(".parquet"), f"delete {path} to fit it again"
    values = read_record(path, [table.name], hint=hint)
    try:
        require(
            values["fingerprint"] == settings.digest(model, seed),
            "was made with other settings or data",
            where=str(path),
            hint=hint,
            error=DataError,
        )
        frame = scan_file(table).collect()
        return RunResult(
            report=Report(
                metrics=values["metrics"],
                per_user={name: frame[name].to_numpy() for name in frame.columns if name != "user_id"},
                user_ids=frame["user_id"],
                dialect=values["dialect"],
                users_without_list=values["users_without_list"],
                notes=tuple(values["notes"]),
            ),
            **{
                name: values[name]
                for name in ("model", "seed", "config", "history", "fit_seconds", "epoch", "stopped")
            },
        )
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise DataError(f"is damaged: {error} is missing or wrong", where=str(path), hint=hint) from None
