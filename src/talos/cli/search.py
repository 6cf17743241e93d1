"""What `talos tune` and `talos compare --tuned` search, and on which data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import say
from talos.cli.plugins import entry_points_of, not_installed
from talos.cli.source import Columns, SplitOptions, load
from talos.cli.study import shown, write_report
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.studies.tune import Settings, Space
    from talos.studies.tune.data import FitParts

__all__ = ["load_fit_parts", "settings_for", "space_for", "tune_models"]


def tune_models(
    models: Mapping[str, RunConfig],
    path: str,
    columns: Columns,
    options: SplitOptions,
    out: Path,
    *,
    trials: int,
    space: str,
    workers: int,
) -> tuple[dict[str, RunConfig], dict[str, Any]]:
    """Tune each model with the same number of trials: name → best config, and what was found for each.

    All spaces are checked before the data are read; what is finished in the folder is not repeated.
    """
    from talos.studies.tune.storage import import_optuna

    import_optuna()
    for name, number in (("--tuned", trials), ("--workers", workers)):
        if number < 1:
            raise ConfigError(f"{number}", where=name, expected="1 or more")
    spaces = {name: space_for(space, config) for name, config in models.items()}

    from talos.studies.tune import run_study

    parts = load_fit_parts(path, columns, options)
    configs, found = {}, {}
    for place, (name, (chosen, settled)) in enumerate(spaces.items()):
        settings = settings_for(settled, chosen, parts, sampler="auto", pruner="median", seed=0)
        folder = out / f"{place:02d}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"
        tuned = run_study(settings, parts, folder, trials=trials, workers=workers, notify=_labelled(name))
        write_report(tuned, settings, folder)
        summary = tuned.summary
        configs[name] = summary.config
        found[name] = {
            "trials": len(summary.rows),
            "validation": {summary.metric: summary.best.value},
            "parameters": summary.best.parameters,
        }
        chosen_values = ", ".join(f"{key} {shown(value)}" for key, value in summary.best.parameters.items())
        say(f"{name}: validation {summary.metric} {summary.best.value:.5f} with {chosen_values}")
    return configs, found


def _labelled(name: str) -> Callable[[str], None]:
    return lambda line: say(f"tuning {name}  {line}")


def space_for(name: str, base: RunConfig) -> tuple[Space, RunConfig]:
    """The space that a word or a file name means for a config, checked; and the config with what it fixes."""
    from talos.studies.tune.check import check_space
    from talos.studies.tune.defaults import default_space
    from talos.studies.tune.space import Space

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


def load_fit_parts(path: str, columns: Columns, options: SplitOptions) -> FitParts:
    """Train and validation of a PATH. A test file is not opened; a test part that was split off is dropped here."""
    from talos.data import readers, shards, splits
    from talos.studies.tune.data import fit_parts

    if "://" not in path:
        found = (
            shards.read_fit_shards(path)
            if shards.is_shards(path)
            else readers.read_fit_parts(path, **columns.for_files())
        )
        if found is not None:
            if options != SplitOptions():
                say("this folder is already split: options for the clean-up and the split have no effect")
            return fit_parts(*found)
    data = load(path, columns, min_rating=options.min_rating, k_core=options.k_core, raw=options.raw)
    parts = splits.split(data, by=options.by, test=options.test, valid=options.valid, seed=options.split_seed)
    return fit_parts(parts.train, parts.valid)


def settings_for(settled: RunConfig, space: Space, parts: FitParts, **how: Any) -> Settings:
    """What a study is: the config it starts from, the space, the data it is on, and `how` it searches."""
    from talos.studies.tune import Settings

    data = {name: part.fingerprint() for name, part in zip(("train", "valid"), parts, strict=True)}
    return Settings(config=settled, space=space, data=data, **how)
