"""What several commands need: the test part of a run, search spaces by name, the page of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import say
from talos.cli.plugins import entry_points_of, not_installed
from talos.data.options import SourceOptions
from talos.errors import ConfigError, nearest
from talos.progress import reading

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.data.interactions import Interactions
    from talos.model.recommender import Recommender
    from talos.studies.tune import FinalResult, Space, Tuned

__all__ = ["shown", "space_for", "test_part", "write_study_page"]


def test_part(
    recommender: Recommender, run: Path, path: str | None, data: str | None, source: SourceOptions
) -> Interactions | None:
    """What a run is measured on: PATH; the test part of its own data, read again; or None, its stored test part."""
    from talos.model.recorded import open_recorded, open_test

    model = recommender.fitted_model()
    record = model.metadata.get("source")
    if path is not None and data is not None:
        raise ConfigError("a PATH as well", where="--data", expected="one of them")
    with reading() as progress:
        how: dict[str, Any] = {"options": source, "notify": say, "progress": progress}
        if path is not None:
            return open_test(record, path, **how)
        return (
            None if data is None else open_recorded(record, run=run, data=data, test=model.test, **how).test
        )


def space_for(name: str, base: RunConfig) -> tuple[Space, RunConfig]:
    """The space of a name or a file, checked; and the config with the values that the space fixes."""
    from talos.studies.tune.space import Space, check_space, default_space

    named, where = entry_points_of("talos.spaces"), name
    if name == "default":
        space, where = default_space(base), ""
    elif name in named:
        where = f"--space {name}"
        space = Space.from_dict(named[name].load()(base), where=where)
    elif name.endswith(".toml") or Path(name).exists():
        space = Space.from_toml(Path(name))
    elif name == "paper":
        raise not_installed("--space paper", "talos-rec-paper")
    else:
        hint = nearest(name, ("default", "paper", *named))
        raise ConfigError(f"{name!r} is no space and no file", where="--space", hint=hint)
    return space, check_space(space, base, where=where)


def write_study_page(tuned: Tuned, out: Path, final: FinalResult | None = None) -> Path:
    """Write the page of a study into its folder; returns its place."""
    from talos.config import flat_settings
    from talos.report import tuning_report, write_page

    text = tuning_report(
        [vars(row) for row in tuned.rows],
        metric=tuned.settings.metric,
        best=tuned.best.number,
        importance=tuned.importance,
        settings=flat_settings(tuned.settings.as_dict()),
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
