"""One finished fit on disk: a small JSON file, and the per-user values beside it as parquet.

The parquet file is written first and the JSON file last, each under a temporary name and renamed, so a fit whose
JSON file exists is whole. The JSON file keeps a hash of itself and of the parquet file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from talos.errors import DataError
from talos.evaluation.evaluate import Report
from talos.files import checksum_of, read_sealed, replace_file, write_sealed

__all__ = ["RunResult", "load_result", "save_result"]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one fit left behind.

    Attributes:
        model: the name it is compared under.
        seed: of its training.
        config: as trained, with nothing left open.
        report: of the test part, with per-user values.
        history: one record an epoch, as in `history.jsonl`.
        fit_seconds: wall-clock of the fit, validation included.
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


def save_result(folder: Path, stem: str, result: RunResult, fingerprint: str) -> None:
    """Write `stem.parquet` and, when that is on the disk, `stem.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame({"user_id": result.report.user_ids, **result.report.per_user})
    replace_file(folder / f"{stem}.parquet", frame.write_parquet)
    write_sealed(
        folder / f"{stem}.json",
        {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "model": result.model,
            "seed": result.seed,
            "fit_seconds": result.fit_seconds,
            "epoch": result.epoch,
            "stopped": result.stopped,
            **result.report.as_dict(),
            "config": result.config,
            "history": result.history,
            "per_user": {"file": f"{stem}.parquet", "sha256": _sha256(folder / f"{stem}.parquet")},
        },
    )


def load_result(folder: Path, stem: str, fingerprint: str) -> RunResult | None:
    """The fit of this name; None if it is not finished. Damaged files and those of other settings are refused."""
    path = folder / f"{stem}.json"
    if not path.exists():
        return None
    hint = f"delete it to fit {stem} again"
    values = read_sealed(path, hint=hint)
    if values.get("fingerprint") != fingerprint:
        raise DataError("is of other settings or data", where=str(path), hint=hint)
    beside = folder / f"{stem}.parquet"
    kept_hash = dict(values.get("per_user") or {}).get("sha256")
    if not beside.is_file() or _sha256(beside) != kept_hash:
        raise DataError(
            "is missing or differs from its hash in the JSON file",
            where=str(beside),
            hint=f"delete {path} to fit it again",
        )
    try:
        return _result_from(values, pl.read_parquet(beside))
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise DataError(f"is damaged: {error} is missing or wrong", where=str(path), hint=hint) from None


def _result_from(values: dict[str, Any], frame: pl.DataFrame) -> RunResult:
    report = Report(
        metrics=values["metrics"],
        per_user={name: frame[name].to_numpy() for name in frame.columns if name != "user_id"},
        user_ids=frame["user_id"],
        dialect=values["dialect"],
        users_without_list=values["users_without_list"],
        notes=tuple(values["notes"]),
    )
    kept = ("model", "seed", "config", "history", "fit_seconds", "epoch", "stopped")
    return RunResult(report=report, **{name: values[name] for name in kept})


def _sha256(path: Path) -> str:
    return checksum_of(path).removeprefix("sha256:")
