"""Comparing finished runs: each on the test part it carries, and each other one against the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from talos.errors import ConfigError, DataError
from talos.evaluation.metrics import Dialect
from talos.evaluation.significance import Alternative
from talos.model.recommender import Recommender
from talos.studies.compare.run import check_metrics
from talos.studies.compare.table import ComparisonTable, RunResult, build_table

__all__ = ["compare_runs"]


def compare_runs(
    folders: Sequence[str | Path],
    *,
    metrics: Sequence[str] | None = None,
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
        if metrics is None:
            metrics = [
                f"{metric}@{recommender.config.k}" for metric in ("precision", "recall", "ndcg", "mrr")
            ]
        ks = check_metrics(metrics, model.train.num_items)
        found = "" if model.test is None else model.test.compact().fingerprint()
        expected = expected or found
        if found != expected or not found:
            what = "has another test part than the first run" if found else "has no test part"
            raise DataError(what, where=str(folder), expected="runs of one split")
        if name in results:
            raise ConfigError("is named twice", where=name, expected="different runs")
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
    assert metrics is not None
    return build_table(results, metrics, alternative)
