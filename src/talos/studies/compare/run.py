"""The fits of a comparison, one after another; finished fits are kept, so a killed comparison can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from talos.config import RunConfig
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError, InputError, TalosError
from talos.evaluation.evaluate import evaluate, users_with_tests
from talos.evaluation.metrics import Dialect
from talos.evaluation.ranking import DotScores
from talos.evaluation.significance import Alternative
from talos.files import replace_text
from talos.studies.compare.results import RunResult, load_result, save_result
from talos.studies.compare.settings import (
    LIST_METRICS,
    CompareSettings,
    CompareView,
    check_metrics,
    check_seeds,
    default_metrics,
    file_stem,
    open_comparison,
    read_comparison,
)
from talos.studies.compare.table import ComparisonTable, build_table
from talos.training import Callback, InterruptedRunError, Trainer

__all__ = ["compare", "load"]

CURVE_KS = (1, 5, 10, 20, 50)  # always measured as well, for the plots against K


def compare(
    split: Split,
    models: Mapping[str, RunConfig],
    seeds: int | Sequence[int] = 5,
    *,
    out: str | Path | None = None,
    metrics: Sequence[str] | None = None,
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
    if not models:
        raise ArgumentError("is empty", where="models", expected="at least one config")
    if budget is not None and not budget > 0:
        raise ArgumentError(f"{budget}", where="budget", expected="a number of seconds above 0")
    shown = default_metrics(next(iter(models.values())).k) if metrics is None else tuple(metrics)
    items = split.train.num_items
    asked = check_metrics(shown, items)
    list_metrics = any(metric.partition("@")[0] in LIST_METRICS for metric in shown)
    curve = {k for k in CURVE_KS if k <= (asked[-1] if list_metrics else items)}
    view = CompareView(seeds=check_seeds(seeds), metrics=shown, alternative=alternative)
    settings = CompareSettings(
        models=dict(models),
        data={name: part.fingerprint() for name, part in split.parts.items()},
        ks=tuple(sorted(curve | set(asked))),
        dialect=dialect,
        budget=budget,
    )
    users_with_tests(split.test)
    _check_models(split, settings)
    folder = None if out is None else Path(out)
    if folder is not None:
        open_comparison(folder, settings, view)
    results: dict[str, list[RunResult]] = {name: [] for name in models}
    jobs = [(name, seed) for seed in view.seeds for name in models]
    for number, (name, seed) in enumerate(jobs, start=1):
        try:
            result, done_before = _result(split, settings, name, seed, folder)
        except (InterruptedRunError, KeyboardInterrupt):  # the latter is Ctrl-C between two fits
            kept = "" if folder is None else "; finished fits are kept; run it again to continue"
            raise InterruptedRunError(f"stopped in {name}, seed {seed}{kept}") from None
        results[name].append(_slim(result, shown))
        said = "finished before" if done_before else f"{result.fit_seconds:.1f} s"
        value = result.report.metrics[shown[0]]
        notify(f"{number}/{len(jobs)}  {name}  seed {seed}  {shown[0]} {value:.4f}  {said}")
    table = build_table(results, view.metrics, view.alternative)
    if folder is not None:
        replace_text(folder / "compare.csv", table.to_csv())
        replace_text(folder / "compare.tex", table.to_latex())
    return table


def load(folder: str | Path) -> ComparisonTable:
    """The table of a finished comparison, from its folder."""
    out = Path(folder)
    settings, view = read_comparison(out)
    results: dict[str, list[RunResult]] = {}
    for name in settings.models:
        for seed in view.seeds:
            stem = file_stem(settings, name, seed)
            result = load_result(out / "runs", stem, settings.digest(name, seed))
            if result is None:
                raise DataError(
                    f"the fit {stem} is not finished",
                    where=str(out),
                    hint="run the comparison again to continue",
                )
            results.setdefault(name, []).append(_slim(result, view.metrics))
    return build_table(results, view.metrics, view.alternative)


def _result(
    split: Split, settings: CompareSettings, name: str, seed: int, folder: Path | None
) -> tuple[RunResult, bool]:
    """The result of one fit, and whether it was loaded from the folder."""
    if folder is None:
        return _fit(split, settings, name, seed), False
    stem, digest = file_stem(settings, name, seed), settings.digest(name, seed)
    stored = load_result(folder / "runs", stem, digest)
    if stored is not None:
        return stored, True
    result = _fit(split, settings, name, seed)
    save_result(folder / "runs", stem, result, digest)
    return result, False


def _slim(result: RunResult, metrics: Sequence[str]) -> RunResult:
    """The result without the per-user values that no test needs, which would fill the memory over many fits."""
    per_user = {name: values for name, values in result.report.per_user.items() if name in metrics}
    return replace(result, report=replace(result.report, per_user=per_user))


class _BudgetStop(Callback):
    """A callback that records the history and ends the fit when its time budget is used up."""

    def __init__(self, budget: float | None) -> None:
        self.budget = budget
        self.history: list[dict[str, Any]] = []
        self.trainer: Trainer | None = None
        self.out_of_time = False
        self.began = 0.0

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Record the epoch and check the clock; a fit ends between epochs, where its best weights are known."""
        self.history.append(record)
        assert self.trainer is not None
        spent = time.perf_counter() - self.began
        if self.budget is not None and spent >= self.budget and not self.trainer.position.finished:
            self.out_of_time = self.trainer.position.finished = True


def _fit(split: Split, settings: CompareSettings, name: str, seed: int) -> RunResult:
    stop = _BudgetStop(settings.budget)
    began = time.perf_counter()
    config = settings.models[name].with_values({"seed": seed})
    trainer = stop.trainer = Trainer(config, split.train, split.valid, callbacks=[stop])
    try:
        trainer.fit()
    except InterruptedRunError:
        raise
    except TalosError as error:
        raise TalosError(f"{name}, seed {seed}: {error}") from error
    seconds = time.perf_counter() - began
    train_only = split.valid is None or settings.dialect == "paper"  # that dialect does not mask validation
    report = evaluate(
        DotScores(*trainer.vectors()),
        split.test,
        seen=split.train if split.valid is None or train_only else split.train.union(split.valid),
        ks=settings.ks,
        dialect=settings.dialect,
        popularity=split.train.item_degrees,
    )
    at = trainer.position
    return RunResult(
        model=name,
        seed=seed,
        config=trainer.config.as_dict(),
        report=report,
        history=stop.history,
        fit_seconds=round(seconds, 3),
        epoch=at.best_epoch or at.epoch,
        stopped="budget" if stop.out_of_time else "patience" if at.finished else "epochs",
    )


def _check_models(split: Split, settings: CompareSettings) -> None:
    """Build every model once, so that a config that cannot run is refused before the first fit."""
    for name, config in settings.models.items():
        try:
            Trainer(config, split.train, split.valid)
        except InputError as error:
            raise ConfigError(str(error), where=f"model {name}") from None
