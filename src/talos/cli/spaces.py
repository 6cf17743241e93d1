"""Search spaces by name for `talos tune`, and the searches of `talos compare --tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import say
from talos.cli.plugins import entry_points_of, not_installed
from talos.cli.tune_output import shown, write_report
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.studies.tune import FitParts, Space, TuneSettings

__all__ = ["settings_for", "space_for", "tune_models"]


def tune_models(
    models: Mapping[str, RunConfig],
    path: str,
    source: SourceOptions,
    out: Path,
    *,
    trials: int,
    space: str,
    workers: int,
) -> tuple[dict[str, RunConfig], dict[str, Any]]:
    """Tune each model with the same number of trials: name → best config, and the summary of each search.

    All spaces are checked before the data are read; searches that the folder has finished are not repeated.
    """
    from talos.studies.tune.storage import import_optuna

    import_optuna()
    for name, number in (("--tuned", trials), ("--workers", workers)):
        if number < 1:
            raise ConfigError(f"{number}", where=name, expected="1 or more")
    spaces = {name: space_for(space, config) for name, config in models.items()}

    from talos.data.open import open_fit_parts
    from talos.studies import tune

    parts = tune.fit_parts(*open_fit_parts(path, source, notify=say))
    configs, found = {}, {}
    for name, settings, tuned in tune.tune_models(
        spaces, parts, out, trials=trials, workers=workers, notify=say
    ):
        assert tuned.folder is not None
        write_report(tuned, settings, tuned.folder)
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


def settings_for(settled: RunConfig, space: Space, parts: FitParts, **how: Any) -> TuneSettings:
    """The settings of a study: its base config, space and data, and `how` it searches (sampler, pruner, seed)."""
    from talos.studies.tune import TuneSettings

    return TuneSettings(config=settled, space=space, data=parts.fingerprints(), **how)
