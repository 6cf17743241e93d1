"""The one look at the test part: the winner, fitted on train and validation, measured once, written down."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from talos.data.splits import Split
from talos.errors import DataError
from talos.evaluation.evaluate import popularity_report
from talos.files import read_sealed, write_sealed
from talos.model.recommender import Recommender
from talos.studies.compare.stored import FORMAT
from talos.studies.tune.data import fit_parts
from talos.studies.tune.run import FINAL, open_study
from talos.training import Callback

__all__ = ["RUN", "Final", "finalize", "stored_final"]

RUN = "final"
_KS = (5, 10, 20, 50)


@dataclass(frozen=True, kw_only=True)
class Final:
    """The answer of a finalised study.

    Attributes:
        facts: what `final.json` holds: `metrics` on test, `trial`, `epochs`, `config`, `validation`, ….
        fresh: whether it was measured just now, or before.
    """

    facts: Mapping[str, Any]
    fresh: bool


def stored_final(out: Path) -> Final | None:
    """The answer that a folder holds; None if its test part has not been looked at."""
    path = out / FINAL
    if not path.exists():
        return None
    hint = "the study was finalised, but this file was changed since"
    return Final(facts=read_sealed(path, hint=hint), fresh=False)


def finalize(
    out: str | Path,
    split: Split,
    *,
    storage: str | None = None,
    facts: Mapping[str, Any] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> Final:
    """Fit the winner on train + validation for the number of epochs found, evaluate it on test, once.

    Asked again, it gives the stored answer and computes nothing. A split whose train and validation are not
    those that were tuned on is refused: its test part could hold what the search has seen.

    Args:
        out: the study's folder; the run directory is written to `final` in it.
        split: the whole split.
        storage: where the study is, if its address has a password.
        facts: for the run's `model.json`.
        callbacks: what watches the fit.
    """
    out = Path(out)
    known = stored_final(out)
    if known is not None:
        return known
    settings, _, tuned = open_study(out, storage)
    parts = fit_parts(split.train, split.valid)
    found = {name: part.fingerprint() for name, part in zip(("train", "valid"), parts, strict=True)}
    if found != dict(settings.data):
        raise DataError(
            "train and validation are not those that were tuned on",
            where=split.train.provenance.source,
            expected=f"the data and the split of {out}",
        )
    assert split.valid is not None
    best, summary = tuned.summary.best, tuned.summary
    config = summary.config.with_values({"training.epochs": max(1, best.epoch)})
    everything = split.train.union(split.valid)
    began = time.perf_counter()
    model = Recommender(config=config).fit(everything, run=out / RUN, resume=True, callbacks=callbacks)
    seconds = round(time.perf_counter() - began, 2)
    ks = sorted({k for k in (*_KS, config.k) if k <= everything.num_items})
    report = model.evaluate(split.test, k=ks, popularity=everything.item_degrees)
    baseline = popularity_report(everything, split.test, seen=everything, ks=ks)
    answer = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "trial": best.number,
        "trials": len(summary.rows),
        "validation": {summary.metric: best.value},
        "epochs": max(1, best.epoch),
        "fit_seconds": seconds,
        **report.as_dict(),
        "baseline": {"popularity": baseline.metrics},
        "config": model.config.as_dict(),
        "data": {**found, "test": split.test.fingerprint()},
        "study": tuned.study.study_name,
    }
    model.save(
        out / RUN,
        metrics=report.metrics,
        baseline={"popularity": baseline.metrics},
        fit_seconds=seconds,
        **(facts or {}),
    )
    write_sealed(out / FINAL, answer)
    return Final(facts=answer, fresh=True)
