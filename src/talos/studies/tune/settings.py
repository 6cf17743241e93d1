"""Everything that decides which trials are run: kept in the study's folder and held against at every start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from talos.config import RunConfig
from talos.errors import ConfigError, DataError, nearest
from talos.files import digest_of, read_sealed, write_sealed
from talos.studies.folder import FORMAT
from talos.studies.tune.space import Space

__all__ = ["MANIFEST", "Pruner", "Sampler", "Settings", "open_folder", "read_folder"]

Sampler: TypeAlias = Literal["auto", "tpe", "random", "grid"]
Pruner: TypeAlias = Literal["median", "asha", "none"]

MANIFEST = "tune.json"
_LARGEST_GRID = 100  # points that `auto` goes through in a random order instead of searching among them


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is searched, how, and on which data.

    Attributes:
        config: what every trial starts from; its `training.metric` at its `k` is what is maximised.
        space: what varies.
        sampler: `grid` (every point once, in a random order), `tpe` or `random`; `auto` is `grid` for spaces of
            up to 100 points and `tpe` for others.
        pruner: what stops trials that lag behind: the `median` of the others at the same epoch, `asha`
            (successive halving), or `none`.
        seed: of the search; the seed of training is the config's.
        data: fingerprints of train and validation.
    """

    config: RunConfig
    space: Space
    sampler: Sampler
    pruner: Pruner
    seed: int
    data: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, value, known in (
            ("sampler", self.sampler, get_args(Sampler)),
            ("pruner", self.pruner, get_args(Pruner)),
        ):
            if value not in known:
                raise ConfigError(
                    f"{value!r}", where=name, expected=" or ".join(known), hint=nearest(str(value), known)
                )
        if self.sampler == "grid" and self.space.size is None:
            endless = next(key for key, entry in self.space.entries.items() if not hasattr(entry, "values"))
            raise ConfigError(
                "is a range", where=endless, expected="a list of values, for the sampler `grid`"
            )

    @property
    def metric(self) -> str:
        """What is maximised, such as `precision@20`."""
        return f"{self.config.training.metric}@{self.config.k}"

    @property
    def way(self) -> Sampler:
        """The sampler, with `auto` decided."""
        if self.sampler != "auto":
            return self.sampler
        size = self.space.size
        return "grid" if size is not None and size <= _LARGEST_GRID else "tpe"

    @property
    def study_name(self) -> str:
        """The same for equal settings on equal data and for no others: how machines find each other's study."""
        return f"talos-{digest_of(self.as_dict())[:16]}"

    def limit(self, trials: int | None) -> int | None:
        """How many trials there can be: a grid has an end."""
        if self.way != "grid":
            return trials
        assert self.space.size is not None
        return self.space.size if trials is None else min(trials, self.space.size)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "config": self.config.as_dict(),
            "space": self.space.as_dict(),
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
            "data": dict(self.data),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> Settings:
        """Back from plain values."""
        try:
            return cls(
                config=RunConfig.from_dict(values["config"], where=where),
                space=Space.from_dict(values["space"], where=where),
                sampler=values["sampler"],
                pruner=values["pruner"],
                seed=values["seed"],
                data=values["data"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"is damaged: {error} is missing or wrong", where=where) from None


def open_folder(out: Path, settings: Settings, facts: Mapping[str, Any]) -> str:
    """Make the folder of a study, or go on in one of the same settings; any other content is refused.

    `facts` (where the data came from, which storage) are written beside the settings and may change. Returns the
    name of the study: once given it stays, even if a later version knows more settings.
    """
    manifest, name = out / MANIFEST, settings.study_name
    if out.exists() and not out.is_dir():
        raise ConfigError("is not a folder", where=str(out), expected="a new folder or that of a study")
    if manifest.exists():
        there, before = read_folder(out)
        name = str(before.get("study", name))
        if there.as_dict() != settings.as_dict():
            raise ConfigError(
                f"holds a study with other settings ({_difference(there.as_dict(), settings.as_dict())})",
                where=str(out),
                expected="the same settings and data, or a new folder",
            )
    elif out.exists() and any(out.iterdir()):
        raise ConfigError("is not empty", where=str(out), expected="a new folder or that of the same study")
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(manifest, {"format": FORMAT, "settings": settings.as_dict(), **facts, "study": name})
    return name


def read_folder(out: Path) -> tuple[Settings, dict[str, Any]]:
    """The settings of a study's folder, and the facts beside them."""
    manifest = out / MANIFEST
    if not manifest.is_file():
        raise DataError(f"has no {MANIFEST}", where=str(out), expected="the folder of a study")
    values = read_sealed(manifest, hint="tune in a new folder")
    settings = Settings.from_dict(values.get("settings", {}), where=str(manifest))
    return settings, {name: value for name, value in values.items() if name not in ("format", "settings")}


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first place where two settings differ, in words."""
    before, now = dict(_flat(there)), dict(_flat(here))
    for key in [*before, *now]:
        if before.get(key) != now.get(key):
            return f"{key}: {_short(before.get(key))} there, {_short(now.get(key))} now"
    return "their order"


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
