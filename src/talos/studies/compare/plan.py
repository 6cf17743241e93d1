"""What is compared: the settings that decide the numbers, and how the results are looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.config import RunConfig
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError, nearest
from talos.evaluation.metrics import RANKING_METRICS, Dialect
from talos.evaluation.significance import Alternative
from talos.files import digest_of, read_sealed, write_sealed
from talos.studies.compare.stored import FORMAT

__all__ = ["Settings", "View", "check_metrics", "check_seeds", "default_metrics", "open_folder", "stem_of"]

_MANIFEST = "compare.json"
_STUDIES = "tuned"  # searches that came before the comparison, and decided its models
_LIST_METRICS = ("coverage", "popularity_rank", "exposure_gini")  # of all lists together, at the largest K


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the numbers but the seed."""

    models: Mapping[str, RunConfig]
    data: Mapping[str, str]  # fingerprint of each part of the split
    ks: tuple[int, ...]
    dialect: Dialect
    budget: float | None  # seconds a fit

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the seeds of the configs have no part in it."""
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

    def fingerprint(self, model: str, seed: int) -> str:
        """Hash of all that decides one fit."""
        values = self.as_dict()
        return digest_of({**values, "models": values["models"][model], "model": model, "seed": seed})


@dataclass(frozen=True, kw_only=True)
class View:
    """How the results are looked at; may change between calls on the same folder."""

    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    alternative: Alternative


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Seeds as numbers: n means 0 … n-1.

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
    """What is shown unless told otherwise."""
    return tuple(f"{name}@{k}" for name in ("precision", "recall", "ndcg", "mrr"))


def check_metrics(metrics: Sequence[str], num_items: int) -> tuple[int, ...]:
    """The list lengths in names such as `recall@20`; a name that is no metric is an error with the nearest.

    >>> check_metrics(["recall@20", "ndcg@5"], num_items=100)
    (5, 20)
    """
    known = (*RANKING_METRICS, *_LIST_METRICS)
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
        if name in _LIST_METRICS and int(k) != max(lengths):
            raise ConfigError(f"{metric!r}", where="metrics", expected=f"{name}@{max(lengths)}, the longest")
    return tuple(sorted(lengths))


def data_of(split: Split) -> dict[str, str]:
    """The fingerprint of each part."""
    return {name: part.fingerprint() for name, part in split.parts.items()}


def stem_of(settings: Settings, model: str, seed: int) -> str:
    """The file name of a fit; the number keeps names apart that differ in odd characters alone."""
    place = list(settings.models).index(model)
    return f"{place:02d}-{re.sub(r'[^a-z0-9]+', '-', model.lower()).strip('-')}-seed{seed}"


def open_folder(out: Path, settings: Settings, view: View) -> None:
    """Make the folder of a comparison, or go on in one of the same settings; any other content is refused."""
    manifest = out / _MANIFEST
    if out.exists() and not out.is_dir():
        raise ConfigError("is not a folder", where=str(out), expected="a new folder or that of a comparison")
    if manifest.exists():
        there = read_sealed(manifest, hint="delete the folder, or choose another").get("settings")
        if there != settings.as_dict():
            raise ConfigError(
                f"holds a comparison with other settings ({_difference(there, settings.as_dict())})",
                where=str(out),
                expected="the same settings and data, or a new folder",
            )
    elif out.exists() and any(entry.name != _STUDIES for entry in out.iterdir()):
        raise ConfigError(
            "is not empty", where=str(out), expected="a new folder or that of the same comparison"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(manifest, {"format": FORMAT, "settings": settings.as_dict(), "view": _view_dict(view)})


def read_folder(out: Path) -> tuple[Settings, View]:
    """What `open_folder` wrote."""
    manifest = out / _MANIFEST
    if not manifest.is_file():
        raise DataError("has no compare.json", where=str(out), expected="the folder of a comparison")
    values = read_sealed(manifest, hint="run the comparison again, in another folder")
    try:
        stored, view = values["settings"], values["view"]
        settings = Settings(
            models={
                name: RunConfig.from_dict(config, where=str(manifest))
                for name, config in stored["models"].items()
            },
            data=stored["data"],
            ks=tuple(stored["ks"]),
            dialect=stored["dialect"],
            budget=stored["budget"],
        )
        return settings, View(
            seeds=tuple(view["seeds"]), metrics=tuple(view["metrics"]), alternative=view["alternative"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is damaged: {error} is missing or wrong", where=str(manifest)) from None


def _view_dict(view: View) -> dict[str, Any]:
    return {"seeds": list(view.seeds), "metrics": list(view.metrics), "alternative": view.alternative}


def _difference(there: Any, here: Any, place: str = "") -> str:
    """The first place where two plain values differ, in words; empty if they do not."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in [*there, *(name for name in here if name not in there)]:
            found = _difference(there.get(name), here.get(name), f"{place}.{name}".lstrip("."))
            if found:
                return found
        return "" if list(there) == list(here) else f"{place}: another order"
    return "" if there == here else f"{place}: {_short(there)} there, {_short(here)} now"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
