"""What a comparison consists of: the settings that decide its numbers, and the view that shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.config import RunConfig
from talos.errors import ArgumentError, ConfigError, DataError, nearest
from talos.evaluation.metrics import RANKING_METRICS, Dialect
from talos.evaluation.significance import Alternative
from talos.files import digest_of
from talos.studies.folder import FolderKind, open_folder, read_folder

__all__ = [
    "LIST_METRICS",
    "CompareSettings",
    "CompareView",
    "check_metrics",
    "check_seeds",
    "default_metrics",
    "file_stem",
    "open_comparison",
    "read_comparison",
]

# `compare --tuned` leaves its studies in the folder before the comparison starts
_COMPARISON = FolderKind("comparison", "compare.json", may_exist=("tuned",))
LIST_METRICS = (
    "coverage",
    "popularity_rank",
    "exposure_gini",
)  # of all lists together, at the largest K only


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Everything that decides the numbers of a comparison, except the seeds.

    Attributes:
        models: name → config.
        data: the fingerprint of each part of the split.
        ks: the list lengths that are measured.
        dialect: what the metrics' names mean.
        budget: seconds that a fit may train; None for no limit.
    """

    models: Mapping[str, RunConfig]
    data: Mapping[str, str]
    ks: tuple[int, ...]
    dialect: Dialect
    budget: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the seeds of the configs are left out."""
        configs = {name: config.as_dict() for name, config in self.models.items()}
        for config in configs.values():
            del config["seed"]
        return {
            "models": configs,
            "data": dict(self.data),
            "ks": list(self.ks),
            "dialect": self.dialect,
            "budget": self.budget,
        }

    def digest(self, model: str, seed: int) -> str:
        """Digest of everything that decides one fit."""
        values = self.as_dict()
        return digest_of({**values, "models": values["models"][model], "model": model, "seed": seed})


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """Which results are shown and tested; may change between calls on the same folder."""

    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    alternative: Alternative


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds as a tuple; a number n means 0 … n-1.

    >>> check_seeds(3)
    (0, 1, 2)
    """
    if isinstance(seeds, int):
        if seeds < 1:
            raise ArgumentError(f"{seeds}", where="seeds", expected="1 or more")
        return tuple(range(seeds))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ArgumentError(f"{list(seeds)}", where="seeds", expected="distinct numbers of 0 or more")
    return tuple(seeds)


def default_metrics(k: int) -> tuple[str, ...]:
    """The metrics that are shown if none are named."""
    return tuple(f"{name}@{k}" for name in ("precision", "recall", "ndcg", "mrr"))


def check_metrics(metrics: Sequence[str], num_items: int) -> tuple[int, ...]:
    """The list lengths in names such as `recall@20`; an unknown metric is an error that suggests the nearest.

    >>> check_metrics(["recall@20", "ndcg@5"], num_items=100)
    (5, 20)
    """
    known = (*RANKING_METRICS, *LIST_METRICS)
    lengths = set()
    for metric in metrics:
        name, at, k = metric.partition("@")
        if name not in known:
            raise ConfigError(f"no metric {metric!r}", where="metrics", hint=nearest(name, known))
        if not at or not k.isdecimal() or not 1 <= int(k) <= num_items:
            expected = f"a list length of 1 to {num_items:,} after @, such as {name}@{min(20, num_items)}"
            raise ConfigError(f"{metric!r}", where="metrics", expected=expected)
        lengths.add(int(k))
    if not metrics:
        raise ConfigError("none given", where="metrics", expected="at least one, such as recall@20")
    for metric in metrics:
        name, _, k = metric.partition("@")
        if name in LIST_METRICS and int(k) != max(lengths):
            raise ConfigError(f"{metric!r}", where="metrics", expected=f"{name}@{max(lengths)}, the longest")
    return tuple(sorted(lengths))


def file_stem(settings: CompareSettings, model: str, seed: int) -> str:
    """The file name of a fit; the number separates models whose names differ only in special characters."""
    place = list(settings.models).index(model)
    return f"{place:02d}-{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}-seed{seed}"


def open_comparison(out: Path, settings: CompareSettings, view: CompareView) -> None:
    """Create or reopen the folder of a comparison; the folder of another one is refused."""
    shown = {"seeds": list(view.seeds), "metrics": list(view.metrics), "alternative": view.alternative}
    open_folder(out, _COMPARISON, settings.as_dict(), {"view": shown})


def read_comparison(out: Path) -> tuple[CompareSettings, CompareView]:
    """What `open_comparison` wrote."""
    stored, facts = read_folder(out, _COMPARISON)
    where = str(out / _COMPARISON.manifest)
    try:
        view = facts["view"]
        settings = CompareSettings(
            models={
                name: RunConfig.from_dict(config, where=where) for name, config in stored["models"].items()
            },
            data=stored["data"],
            ks=tuple(stored["ks"]),
            dialect=stored["dialect"],
            budget=stored["budget"],
        )
        return settings, CompareView(
            seeds=tuple(view["seeds"]), metrics=tuple(view["metrics"]), alternative=view["alternative"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is damaged: {error} is missing or wrong", where=where) from None
