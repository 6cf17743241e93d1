"""The result of one fit of a comparison, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from talos.errors import DataError
from talos.evaluation.evaluate import Report
from talos.studies.folder import load_fit, save_fit

__all__ = ["RunResult", "load_result", "save_result"]

_STORED_AS_THEY_ARE = ("model", "seed", "config", "history", "fit_seconds", "epoch", "stopped")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one fit.

    Attributes:
        model: the name it is compared under.
        seed: the seed of its training.
        config: the config as trained, with every `auto` resolved.
        report: metrics on the test part, with per-user values.
        history: one record for each epoch, as in `history.jsonl`.
        fit_seconds: wall-clock time of the fit, validation included.
        epoch: the epoch whose weights were kept.
        stopped: what ended the fit.
    """

    model: str
    seed: int
    config: dict[str, Any]
    report: Report
    history: list[dict[str, Any]] = field(repr=False)
    fit_seconds: float
    epoch: int
    stopped: Literal["epochs", "patience", "budget"]


def save_result(folder: Path, stem: str, result: RunResult, digest: str) -> None:
    """Write a finished fit by `save_fit`."""
    values = {
        "model": result.model,
        "seed": result.seed,
        "fit_seconds": result.fit_seconds,
        "epoch": result.epoch,
        "stopped": result.stopped,
        **result.report.as_dict(),
        "config": result.config,
        "history": result.history,
    }
    per_user = pl.DataFrame({"user_id": result.report.user_ids, **result.report.per_user})
    save_fit(folder, stem, values, per_user, digest)


def load_result(folder: Path, stem: str, digest: str) -> RunResult | None:
    """The fit of this name; None if it is not finished. Damaged files and other settings are an error."""
    found = load_fit(folder, stem, digest)
    if found is None:
        return None
    values, frame = found
    try:
        report = Report(
            metrics=values["metrics"],
            per_user={name: frame[name].to_numpy() for name in frame.columns if name != "user_id"},
            user_ids=frame["user_id"],
            dialect=values["dialect"],
            users_without_list=values["users_without_list"],
            notes=tuple(values["notes"]),
        )
        return RunResult(report=report, **{name: values[name] for name in _STORED_AS_THEY_ARE})
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        path = folder / f"{stem}.json"
        raise DataError(
            f"is damaged: {error} is missing or wrong",
            where=str(path),
            hint=f"delete {path} to fit it again",
        ) from None
