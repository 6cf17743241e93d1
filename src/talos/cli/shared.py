"""What several commands need: the test part of a run, pages in files, search spaces by name, the page of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import reading, say
from talos.cli.plugins import entry_points_of, not_installed
from talos.data.options import SourceOptions
from talos.errors import ConfigError, Option, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.data.interactions import Interactions
    from talos.model.recommender import Recommender
    from talos.studies.tune import FinalResult, Space, Tuned

__all__ = ["check_target", "shown", "space_for", "test_part", "write_page", "write_study_page"]


def test_part(
    recommender: Recommender, run: Path, path: str | None, data: str | None, source: SourceOptions
) -> Interactions | None:
    """What a run is measured on: PATH; the test part of its own data, read again; or None, its stored test part."""
    from talos.data.open import open_recorded, open_test

    record = recommender.fitted_model().metadata.get("source")
    if path is not None and data is not None:
        raise ConfigError("a PATH as well", where="--data", expected="one of them")
    with reading() as progress:
        how: dict[str, Any] = {"options": source, "notify": say, "progress": progress}
        if path is not None:
            return open_test(record, path, **how)
        return None if data is None else open_recorded(record, run=run, data=data, **how).test


def write_page(text: str, target: Path, *, overwrite: bool = True) -> Path:
    """Write a page, or leave what is there if it cannot be written; returns its place."""
    from talos.files import replace_text

    check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, text)
    return target


def check_target(
    target: Path, *, overwrite: bool, what: str = "report", is_ours: Callable[[str], bool] | None = None
) -> None:
    """Refuse a file that cannot be written, or that is there and not a `what` that we wrote before."""
    if target.is_dir():
        example = "README.md" if what == "card" else "report.html"
        raise ConfigError("is a folder", where=f"--out {target}", expected=f"a file name, such as {example}")
    if target.exists() and not target.is_file():  # writing renames a file over it: no device would be left
        raise ConfigError("is a device or a pipe", where=f"--out {target}", expected="the name of a file")
    if overwrite or not target.exists():
        return
    from talos.report import is_page

    recognised = is_page if is_ours is None else is_ours
    with target.open("rb") as file:
        if not recognised(file.read(1 << 16).decode("utf-8", errors="replace")):
            raise ConfigError(
                f"exists and is not a {what}",
                where=f"--out {target}",
                expected=f"a new file, or an older {what}",
                option=Option("overwrite", True, "replaces it"),
            )


def space_for(name: str, base: RunConfig) -> tuple[Space, RunConfig]:
    """The space of a name or a file, checked; and the config with the values that the space fixes."""
    from talos.studies.tune.space import Space, check_space, default_space

    if name == "default":
        space = default_space(base)
        return space, check_space(space, base, where="")
    named = entry_points_of("talos.spaces")
    if name in named:
        where = f"--space {name}"
        space = Space.from_dict(named[name].load()(base), where=where)
        return space, check_space(space, base, where=where)
    if not name.endswith(".toml") and not Path(name).exists():
        if name == "paper":
            raise not_installed("--space paper", "talos-rec-paper")
        known = ("default", "paper", *named)
        raise ConfigError(f"{name!r} is no space and no file", where="--space", hint=nearest(name, known))
    space = Space.from_toml(Path(name))
    return space, check_space(space, base, where=name)


def write_study_page(tuned: Tuned, out: Path, final: FinalResult | None = None) -> Path:
    """Write the page of a study into its folder; returns its place."""
    from talos.report import tuning_report

    text = tuning_report(
        [vars(row) for row in tuned.rows],
        metric=tuned.settings.metric,
        best=tuned.best.number,
        importance=tuned.importance,
        settings=_flat(tuned.settings.as_dict()),
        config=tuned.config.to_toml(),
        peak_mb=tuned.peak_mb,
        test=None if final is None else final.facts["metrics"],
        title=f"Tuning {out.resolve().name}",
    )
    return write_page(text, out / "report.html")


def shown(value: Any) -> str:
    """A parameter's value in at most four digits.

    >>> shown(0.123456), shown("auto")
    ('0.1235', 'auto')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if not isinstance(value, Mapping):
            found[f"{prefix}{key}"] = str(value)
        elif "low" in value:
            found[f"{prefix}{key}"] = " ".join(f"{name} {number}" for name, number in value.items())
        else:
            found |= _flat(value, f"{prefix}{key}.")
    return found
