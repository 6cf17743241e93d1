"""One finished fit on disk: a small JSON file, and the per-user values beside it as parquet.

The parquet file is written first and the JSON file last, each under a temporary name and renamed, so a fit whose
JSON file exists is whole. The JSON file keeps a hash of itself and of the parquet file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from talos.errors import DataError
from talos.evaluation import Report
from talos.training.checkpoint import replace_file

__all__ = ["RunResult", "digest_of", "load_result", "read_sealed", "save_result", "write_sealed"]

FORMAT = 1
_LARGEST_JSON = 64 << 20


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


def digest_of(value: Any) -> str:
    """Hash of a plain value, whatever the order of its keys.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed(path: Path, values: dict[str, Any]) -> None:
    """A JSON file that holds its own hash, put in place in one go."""
    text = json.dumps({**values, "sha256": digest_of(values)}, indent=1, ensure_ascii=False) + "\n"
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_sealed(path: Path, *, hint: str) -> dict[str, Any]:
    """The values of a file of `write_sealed`; anything else in its place is a `DataError` that names it."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError("it is too large")
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
        if values.pop("sha256", None) != digest_of(values):
            raise ValueError("its content differs from the hash that it keeps")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"is damaged: {error}", where=str(path), hint=hint) from None
    if values.get("format") != FORMAT:
        raise DataError(f"format {values.get('format')!r}", where=str(path), expected=f"{FORMAT}", hint=hint)
    return values


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
            "per_user": {"file": f"{stem}.parquet", "sha256": _checksum(folder / f"{stem}.parquet")},
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
    if not beside.is_file() or _checksum(beside) != kept_hash:
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


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
