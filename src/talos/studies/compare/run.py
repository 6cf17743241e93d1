"""The fits of a comparison, one after another; a killed comparison goes on where it stopped."""

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
from talos.files import replace_file
from talos.studies.compare.plan import (
    Settings,
    View,
    check_metrics,
    check_seeds,
    data_of,
    default_metrics,
    open_folder,
    read_folder,
    stem_of,
)
from talos.studies.compare.stored import RunResult, load_result, save_result
from talos.studies.compare.table import ComparisonTable, build_table
from talos.training import Callback, InterruptedRunError, Trainer

__all__ = ["compare", "load"]

CURVE_KS = (1, 5, 10, 20, 50)  # measured beside those asked for, for the plots against K


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
        split: all models see the same train, validation and test parts.
        models: name → config; the seed in it is replaced.
        seeds: of training, or how many (0, 1, …).
        out: a folder for the results of single fits, `compare.csv` and `compare.tex`. Fits that are finished
            there are not repeated; a folder of other settings or data is refused. More seeds may be asked for.
        metrics: what is shown, such as `recall@20`; precision, recall, NDCG and MRR at the first model's K.
        dialect: what the metrics' names mean, see `talos.metrics`.
        budget: seconds that a fit may train; it ends with the epoch that exceeds them.
        alternative: what the tests ask about the first model and each other one.
        notify: called with a line of progress after each fit.
    """
    if not models:
        raise ArgumentError("is empty", where="models", expected="at least one config")
    if budget is not None and not budget > 0:
        raise ArgumentError(f"{budget}", where="budget", expected="a number of seconds above 0")
    shown = default_metrics(next(iter(models.values())).k) if metrics is None else tuple(metrics)
    items = split.train.num_items
    asked = check_metrics(shown, items)
    curve = {k for k in CURVE_KS if k <= (asked[-1] if _of_lists(shown) else items)}
    view = View(seeds=check_seeds(seeds), metrics=shown, alternative=alternative)
    settings = Settings(
        models=dict(models),
        data=data_of(split),
        ks=tuple(sorted(curve | set(asked))),
        dialect=dialect,
        budget=budget,
    )
    users_with_tests(split.test)
    _check_models(split, settings)
    folder = None if out is None else Path(out)
    if folder is not None:
        open_folder(folder, settings, view)
    results: dict[str, list[RunResult]] = {name: [] for name in models}
    jobs = [(name, seed) for seed in view.seeds for name in models]
    for number, (name, seed) in enumerate(jobs, start=1):
        try:
            result, done_before = _result(split, settings, name, seed, folder)
        except (InterruptedRunError, KeyboardInterrupt):  # the latter comes between fits
            kept = "" if folder is None else "; finished fits are kept. Go on with the same command"
            raise InterruptedRunError(f"stopped in {name}, seed {seed}{kept}") from None
        results[name].append(_slim(result, shown))
        said = "finished before" if done_before else f"{result.fit_seconds:.1f} s"
        value = result.report.metrics[shown[0]]
        notify(f"{number}/{len(jobs)}  {name}  seed {seed}  {shown[0]} {value:.4f}  {said}")
    table = build_table(results, view.metrics, view.alternative)
    if folder is not None:
        _write_tables(folder, table)
    return table


def load(folder: str | Path) -> ComparisonTable:
    """The table of a finished comparison, from its folder."""
    out = Path(folder)
    settings, view = read_folder(out)
    results: dict[str, list[RunResult]] = {}
    for name in settings.models:
        for seed in view.seeds:
            stem = stem_of(settings, name, seed)
            result = load_result(out / "runs", stem, settings.fingerprint(name, seed))
            if result is None:
                raise DataError(
                    f"the fit {stem} is not finished",
                    where=str(out),
                    hint="go on with the same `talos compare` command",
                )
            results.setdefault(name, []).append(_slim(result, view.metrics))
    return build_table(results, view.metrics, view.alternative)


def _result(
    split: Split, settings: Settings, name: str, seed: int, folder: Path | None
) -> tuple[RunResult, bool]:
    """The result of one fit and whether it was there already."""
    if folder is None:
        return _fit(split, settings, name, seed), False
    stem, fingerprint = stem_of(settings, name, seed), settings.fingerprint(name, seed)
    stored = load_result(folder / "runs", stem, fingerprint)
    if stored is not None:
        return stored, True
    result = _fit(split, settings, name, seed)
    save_result(folder / "runs", stem, result, fingerprint)
    return result, False


def _slim(result: RunResult, metrics: Sequence[str]) -> RunResult:
    """Without the per-user values that no test looks at: there may be many users and many fits."""
    per_user = {name: values for name, values in result.report.per_user.items() if name in metrics}
    return replace(result, report=replace(result.report, per_user=per_user))


class _Watch(Callback):
    """Keeps the history and ends the fit when its time is up."""

    def __init__(self, budget: float | None) -> None:
        self.budget = budget
        self.history: list[dict[str, Any]] = []
        self.trainer: Trainer | None = None
        self.out_of_time = False
        self.began = 0.0

    def on_start(self, epoch: int, epochs: int, steps: int) -> None:
        """The clock starts."""
        self.began = time.perf_counter()

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        """Nothing."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Look at the clock: a fit ends at the end of an epoch, where its best weights are known."""
        self.history.append(record)
        assert self.trainer is not None
        spent = time.perf_counter() - self.began
        if self.budget is not None and spent >= self.budget and not self.trainer.position.finished:
            self.out_of_time = self.trainer.position.finished = True

    def on_end(self) -> None:
        """Nothing."""


def _fit(split: Split, settings: Settings, name: str, seed: int) -> RunResult:
    watch = _Watch(settings.budget)
    began = time.perf_counter()
    config = settings.models[name].with_values({"seed": seed})
    trainer = watch.trainer = Trainer(config, split.train, split.valid, callbacks=[watch])
    try:
        trainer.fit()
    except InterruptedRunError:
        raise
    except TalosError as error:
        raise TalosError(f"{name}, seed {seed}: {error}") from error
    seconds = time.perf_counter() - began
    train_alone = split.valid is None or settings.dialect == "paper"  # as that dialect masks
    report = evaluate(
        DotScores(*trainer.vectors()),
        split.test,
        seen=split.train if split.valid is None or train_alone else split.train.union(split.valid),
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
        history=watch.history,
        fit_seconds=round(seconds, 3),
        epoch=at.best_epoch or at.epoch,
        stopped="budget" if watch.out_of_time else "patience" if at.finished else "epochs",
    )


def _check_models(split: Split, settings: Settings) -> None:
    """Build every model once, so that what cannot run is refused before the first fit."""
    for name, config in settings.models.items():
        try:
            Trainer(config, split.train, split.valid)
        except InputError as error:
            raise ConfigError(str(error), where=f"model {name}") from None


def _of_lists(metrics: Sequence[str]) -> bool:
    """Whether a metric is one that is only measured at the largest K."""
    return any(metric.startswith(("coverage@", "popularity_rank@", "exposure_gini@")) for metric in metrics)


def _write_tables(folder: Path, table: ComparisonTable) -> None:
    for name, text in (("compare.csv", table.to_csv()), ("compare.tex", table.to_latex())):

        def write(path: Path, text: str = text) -> None:
            path.write_text(text, encoding="utf-8")

        replace_file(folder / name, write)
