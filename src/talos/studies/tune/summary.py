"""What a study has come to: the best trial, the table of all, which parameters mattered."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.config import RunConfig
from talos.errors import DataError
from talos.files import replace_file
from talos.studies.tune.ledger import Ledger, balance
from talos.studies.tune.settings import Settings
from talos.studies.tune.storage import import_optuna, quiet

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["Summary", "TrialRow", "summarise", "write_summary"]


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial that came to its end.

    Attributes:
        number: in the study.
        state: `complete`, `pruned` or `failed`.
        value: the validation metric; None if there is none.
        epoch: in which it was reached.
        epochs: how many were trained.
        seconds: wall-clock.
        runs: how often it was begun: more than once if its worker died or was stopped.
        parameters: by dotted key of the config.
        curve: (epoch, metric) at every look.
        error: why it failed.
        peak_mb: the most memory its worker had held by then.
    """

    number: int
    state: str
    value: float | None
    epoch: int
    epochs: int
    seconds: float
    runs: int
    parameters: dict[str, Any]
    curve: tuple[tuple[int, float], ...] = field(repr=False)
    error: str = ""
    peak_mb: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A study, summed up."""

    metric: str
    rows: tuple[TrialRow, ...]
    best: TrialRow
    config: RunConfig  # of the best trial
    importance: dict[str, float]
    peak_mb: float
    open: int  # trials that have not come to their end

    @property
    def counts(self) -> dict[str, int]:
        """How many trials ended in which way."""
        states = [row.state for row in self.rows]
        return {state: states.count(state) for state in ("complete", "pruned", "failed")}


def summarise(study: optuna.Study, settings: Settings, wanted: int | None = None) -> Summary:
    """Sum up a study; an error if no trial has reached a value yet."""
    trials = study.get_trials(deepcopy=False)
    ledger = balance(trials, wanted)
    begun = _runs(trials)
    ended = sorted((*ledger.finished, *ledger.failed), key=lambda trial: trial.number)
    rows = tuple(_row(trial, begun) for trial in ended)
    best = best_row(rows)
    return Summary(
        metric=settings.metric,
        rows=rows,
        best=best,
        config=settings.config.with_values(best.parameters),
        importance=_importance(ledger, list(settings.space.entries)),
        peak_mb=max(row.peak_mb for row in rows),
        open=ledger.open,
    )


def best_row(rows: Sequence[TrialRow]) -> TrialRow:
    """The complete trial with the highest value, the first of equals; a pruned one if none is complete."""
    for state in ("complete", "pruned"):
        valued = [row for row in rows if row.state == state and row.value is not None]
        if valued:
            return max(valued, key=lambda row: (row.value, -row.number))
    why = next((f": {row.error}" for row in rows if row.error), "")
    raise DataError(f"no trial has reached a value yet{why}", where="the study", expected="at least one")


def write_summary(out: Path, summary: Summary) -> None:
    """Write `run.toml`, the best config, and `trials.csv`."""
    best = summary.best
    head = (
        f"# The best of {len(summary.rows):,} trials: number {best.number}, "
        f"validation {summary.metric} {best.value:.6f} in epoch {best.epoch}.\n"
    )
    for name, text in (
        ("run.toml", head + summary.config.to_toml()),
        ("trials.csv", _csv(summary)),
    ):

        def write(path: Path, text: str = text) -> None:
            path.write_text(text, encoding="utf-8", newline="")

        replace_file(out / name, write)


def _row(trial: FrozenTrial, begun: dict[int, int]) -> TrialRow:
    state = {"COMPLETE": "complete", "PRUNED": "pruned"}.get(trial.state.name, "failed")
    facts = trial.user_attrs
    lost = "" if state != "failed" else "its worker died too often"
    curve = tuple(sorted(trial.intermediate_values.items()))
    value = trial.value if state == "complete" else max((one for _, one in curve), default=None)
    return TrialRow(
        number=trial.number,
        state=state,
        value=value if state != "failed" else None,
        epoch=int(facts.get("epoch", 0)),
        epochs=int(facts.get("epochs", 0)),
        seconds=float(facts.get("seconds", 0.0)),
        runs=begun[trial.number],
        parameters=dict(trial.params),
        curve=curve,
        error=str(facts.get("error", lost)),
        peak_mb=float(facts.get("peak_mb", 0.0)),
    )


def _runs(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """How long the line of attempts up to each trial is."""
    runs: dict[int, int] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        parent = trial.user_attrs.get("retry_of")
        runs[trial.number] = 1 + (0 if parent is None else runs.get(int(parent), 0))
    return runs


def _importance(ledger: Ledger, keys: Sequence[str]) -> dict[str, float]:
    """Each parameter's share in what sets good trials apart (PED-ANOVA); empty where that cannot be said."""
    optuna = import_optuna()
    complete = [trial for trial in ledger.finished if trial.state.name == "COMPLETE"]
    if len(complete) < 4 or len({trial.value for trial in complete}) < 2:
        return {}
    with quiet():
        copy = optuna.create_study(direction="maximize")
        copy.add_trials(complete)
        try:
            found = optuna.importance.get_param_importances(
                copy, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=list(keys)
            )
        except (ValueError, RuntimeError, ZeroDivisionError):  # all alike in some way
            return {}
    return {key: float(found[key]) for key in keys if key in found}


def _csv(summary: Summary) -> str:
    keys = list(dict.fromkeys(key for row in summary.rows for key in row.parameters))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", summary.metric, "epoch", "epochs", "seconds", "runs", *keys, "error"])
    for row in summary.rows:
        value = "" if row.value is None else f"{row.value:.6f}"
        told = [row.number, row.state, value, row.epoch, row.epochs, f"{row.seconds:.2f}", row.runs]
        writer.writerow([*told, *(row.parameters.get(key, "") for key in keys), row.error])
    return text.getvalue()
