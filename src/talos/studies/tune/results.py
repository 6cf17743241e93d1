"""What a study found: the table of its trials, the best one, and the winner's single evaluation on the test part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna

from talos import registry
from talos.config import RunConfig
from talos.data.databases import without_passwords
from talos.data.splits import Split
from talos.errors import ConfigError, DataError
from talos.evaluation.evaluate import popularity_report
from talos.files import read_sealed, replace_text, write_sealed
from talos.model.recommender import Recommender
from talos.studies.folder import FORMAT, csv_text
from talos.studies.tune.data import FitParts, fit_parts, map_parts
from talos.studies.tune.study import (
    TuneSettings,
    attempts,
    check_reachable,
    current_trials,
    open_storage,
    parse_storage,
    read_folder,
    storage_errors,
)
from talos.training import Callback

__all__ = ["FinalResult", "Summary", "TrialRow", "Tuned", "finalize", "open_study", "stored_final"]

DATA, FINAL, RUN = "data", "final.json", "final"  # in the folder of a study
_KS = (5, 10, 20, 50)  # list lengths that are measured on test, beside the config's own


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial that ended."""

    number: int  # its number in the study
    state: str  # `complete`, `pruned` or `failed`
    value: float | None  # the best validation metric; None if there is none
    epoch: int  # the epoch of that value
    epochs: int  # how many epochs were trained
    seconds: float  # wall-clock time
    runs: int  # the number of attempts: more than one if its worker died or was stopped
    parameters: dict[str, Any]  # values by dotted key of the config
    curve: tuple[tuple[int, float], ...] = field(repr=False)  # (epoch, metric) of every evaluation
    error: str = ""  # why it failed
    peak_mb: float = 0.0  # the peak memory of its worker at that time


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The trials of a study that ended, the best of them, and how much each parameter mattered."""

    metric: str
    rows: tuple[TrialRow, ...]
    best: TrialRow
    config: RunConfig  # of the best trial
    importance: dict[str, float]
    peak_mb: float
    open: int  # trials that have not ended yet

    @property
    def counts(self) -> dict[str, int]:
        """The number of trials by state."""
        states = [row.state for row in self.rows]
        return {state: states.count(state) for state in ("complete", "pruned", "failed")}


def summarise(study: optuna.Study, settings: TuneSettings) -> Summary:
    """The summary of a study; an error if no trial has a value yet."""
    trials = current_trials(study)
    rows = tuple(_row(trial) for trial in trials if trial.state.is_finished())
    best = _best_row(rows)
    return Summary(
        metric=settings.metric,
        rows=rows,
        best=best,
        config=settings.config.with_values(best.parameters),
        importance=_importance(study, list(settings.space.entries)),
        peak_mb=max(row.peak_mb for row in rows),
        open=len(trials) - len(rows),
    )


def _best_row(rows: Sequence[TrialRow]) -> TrialRow:
    """The complete trial with the highest value, the first of equals; a pruned one if none is complete."""
    valued = [row for row in rows if row.value is not None]
    if valued:
        return max(valued, key=lambda row: (row.state == "complete", row.value, -row.number))
    why = next((f": {row.error}" for row in rows if row.error), "")
    raise DataError(f"no trial has a value yet{why}", where="the study", expected="at least one")


def write_summary(out: Path, summary: Summary) -> None:
    """Write the best config as `run.toml` and the table of trials as `trials.csv`."""
    best = summary.best
    head = (
        f"# The best of {len(summary.rows):,} trials: number {best.number}, "
        f"validation {summary.metric} {best.value:.6f} in epoch {best.epoch}.\n"
    )
    replace_text(out / "run.toml", head + summary.config.to_toml())
    keys = list(dict.fromkeys(key for row in summary.rows for key in row.parameters))
    rows = [
        {
            "trial": row.number,
            "state": row.state,
            summary.metric: "" if row.value is None else f"{row.value:.6f}",
            "epoch": row.epoch,
            "epochs": row.epochs,
            "seconds": f"{row.seconds:.2f}",
            "runs": row.runs,
            **{key: row.parameters.get(key, "") for key in keys},
            "error": row.error,
        }
        for row in summary.rows
    ]
    replace_text(out / "trials.csv", csv_text(rows))


def _row(trial: optuna.trial.FrozenTrial) -> TrialRow:
    state = {"COMPLETE": "complete", "PRUNED": "pruned"}.get(trial.state.name, "failed")
    outcome = {} if state == "failed" else trial.user_attrs["outcome"]
    lost = "its worker died too often" if state == "failed" else ""
    return TrialRow(
        number=trial.number,
        state=state,
        value=outcome.get("value"),
        runs=1 + len(attempts(trial)),
        parameters=dict(trial.params),
        curve=tuple(sorted(trial.intermediate_values.items())),
        error=str(trial.user_attrs.get("error", lost)),
        **{name: outcome.get(name, 0) for name in ("epoch", "epochs", "seconds", "peak_mb")},
    )


def _importance(study: optuna.Study, keys: list[str]) -> dict[str, float]:
    """The share of each parameter in what distinguishes good trials (PED-ANOVA); empty if there are too few."""
    complete = [trial.value for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(complete) < 4 or len(set(complete)) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=keys)
    except (ValueError, RuntimeError, ZeroDivisionError):  # all trials have the same value or parameters
        return {}
    return {key: float(found[key]) for key in keys if key in found}


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of tuning; unpacks as `study, recommender`."""

    study: optuna.Study  # Optuna's study, with every attempt of every trial
    summary: Summary  # the best trial, the table of all trials, the importance of parameters
    parts: FitParts  # train and validation as the trials saw them
    folder: Path | None  # the folder of the study; None if it was a temporary one

    @property
    def config(self) -> RunConfig:
        """The best config."""
        return self.summary.config

    @property
    def value(self) -> float:
        """The validation metric of the best config."""
        assert self.summary.best.value is not None
        return self.summary.best.value

    @cached_property
    def recommender(self) -> Recommender:
        """The best config fitted again on train, with early stopping on validation as in its trial."""
        return Recommender(config=self.config).fit(*self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.study, self.recommender))


def open_study(out: Path, storage: str | None = None) -> tuple[TuneSettings, dict[str, Any], Tuned]:
    """The settings, facts and current results of a study; nothing is run.

    A record may be a stranger's: a storage outside the study's folder is opened only if it is named again.
    """
    settings, facts = read_folder(out)
    if storage is None and facts.get("storage") is not None:
        what = f"the trials are in {without_passwords(str(facts['storage']))}, which a study does not open by itself"
        raise ConfigError(what, where="storage", expected="storage= to name it again")
    url = parse_storage(storage, out)
    check_reachable(url)
    with storage_errors(url, ConfigError):
        _, study = open_storage(url, settings.study_name)
        summary = summarise(study, settings)
    return settings, facts, Tuned(study=study, summary=summary, parts=map_parts(out / DATA), folder=out)


@dataclass(frozen=True, kw_only=True)
class FinalResult:
    """The result of the winner on the test part."""

    # the content of `final.json`: `metrics` on test, `trial`, `epochs`, `config`, `validation`, …
    facts: Mapping[str, Any]
    fresh: bool  # whether it was measured by this call rather than read from `final.json`


def stored_final(out: Path) -> FinalResult | None:
    """The stored result of a finalised study; None if its test part has not been evaluated."""
    path = out / FINAL
    if not path.exists():
        return None
    hint = "the study was finalised, but this file has been changed since"
    return FinalResult(facts=read_sealed(path, hint=hint), fresh=False)


def finalize(
    out: str | Path,
    split: Split,
    *,
    storage: str | None = None,
    facts: Mapping[str, Any] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> FinalResult:
    """Refit the winner on train + validation for the number of epochs found, and evaluate it on test, once.

    This is `Recommender.refit` with the settings of the best trial, as it resolved them where they are `auto`.
    A second call returns the stored result and computes nothing. A split whose train and validation differ from
    those of the search is refused: its test part could contain what the search has seen.

    Args:
        out: the study's folder; the run directory is written to `final` in it.
        split: the whole split.
        storage: the storage of the study; needed if it is not a file in the study's folder.
        facts: written to the run's `model.json`.
        callbacks: callbacks of the fit.
    """
    out = Path(out)
    known = stored_final(out)
    if known is not None:
        return known
    settings, _, tuned = open_study(out, storage)
    fingerprints = fit_parts(split.train, split.valid).fingerprints()
    if fingerprints != dict(settings.data):
        what, source = "train and validation are not those that were tuned on", split.train.provenance.source
        raise DataError(what, where=source, expected=f"the data and the split of {out}")
    assert split.valid is not None
    best, summary = tuned.summary.best, tuned.summary
    config = _resolved(tuned)
    epochs = max(1, best.epoch) if config.baseline is None else 0
    began = time.perf_counter()
    model = Recommender.from_choice(
        config,
        split.train,
        split.valid,
        known=split.test,
        epoch=epochs,
        epochs_from=f"the best epoch of trial {best.number} of {len(summary.rows)}",
        metrics={summary.metric: tuned.value},
    ).refit(run=out / RUN, resume=True, callbacks=callbacks)
    seconds = round(time.perf_counter() - began, 2)
    everything = model.fitted_model().train
    ks = sorted({k for k in (*_KS, config.k) if k <= everything.num_items})
    report = model.evaluate(split.test, k=ks, popularity=everything.item_degrees)
    baseline = popularity_report(everything, split.test, seen=everything, ks=ks)
    answer = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "trial": best.number,
        "trials": len(summary.rows),
        "validation": {summary.metric: best.value},
        "epochs": epochs,
        "fit_seconds": seconds,
        **report.as_dict(),
        "baseline": {"popularity": baseline.metrics},
        "config": model.config.as_dict(),
        "data": {**fingerprints, "test": split.test.fingerprint()},
        "study": tuned.study.study_name,
    }
    shared = {"baseline": answer["baseline"], "fit_seconds": seconds}
    model.save(out / RUN, metrics=report.metrics, **shared, **(facts or {}))
    write_sealed(out / FINAL, answer)
    return FinalResult(facts=answer, fresh=True)


def _resolved(tuned: Tuned) -> RunConfig:
    """The best trial's config with every `auto` as the trial resolved it.

    A study may be somebody else's: it does not choose which modules are imported.
    """
    trial = tuned.study.get_trials(deepcopy=False)[tuned.summary.best.number]
    where = f"trial {trial.number} of the study"
    config = RunConfig.from_dict(trial.user_attrs["outcome"]["resolved"], where=where)
    registry.check_imported(config, where=where)
    return config
