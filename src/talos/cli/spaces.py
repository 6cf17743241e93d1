"""Search spaces by name for `talos tune`, and the searches of `talos compare --tuned`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import say
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
    from talos.studies.tune.defaults import default_space
    from talos.studies.tune.space import Space, check_space

    if name == "default":
        space = default_space(base)
    elif name == "paper":
        space = Space.from_dict(_paper_grid(base), where="--space paper")
    else:
        if not name.endswith(".toml") and not Path(name).exists():
            known = ("default", "paper")
            raise ConfigError(f"{name!r} is no space and no file", where="--space", hint=nearest(name, known))
        space = Space.from_toml(Path(name))
    where = "--space paper" if name == "paper" else "" if name == "default" else name
    return space, check_space(space, base, where=where)


def _paper_grid(base: RunConfig) -> dict[str, Any]:
    """The values that the paper searched for a loss, by key of the config."""
    from talos import registry
    from talos_paper.published import GRID

    loss = base.loss.name
    if loss not in GRID:
        raise ConfigError(
            f"the paper has no grid for the loss {loss!r}",
            where="--space paper",
            expected=f"one of {', '.join(sorted(GRID))}",
            hint="--space default has one",
        )
    places = {
        "lr": "optimizer.lr",
        "weight_decay": "optimizer.weight_decay",
        "contrast_weight": "backbone.contrast_weight",
        "lr_quantile": "threshold.lr",
    }
    values: dict[str, Any] = {}
    for name, searched in GRID[loss].items():
        place = places.get(name, f"loss.{name}")
        section, _, option = place.partition(".")
        if section == "backbone" and option not in registry.options("backbone", base.backbone.name):
            continue
        values[place] = list(searched)
    if "threshold.lr" in values:  # the rate of a regression: there has to be one
        values["threshold.name"] = "regression"
    return values


def settings_for(settled: RunConfig, space: Space, parts: FitParts, **how: Any) -> TuneSettings:
    """The settings of a study: its base config, space and data, and `how` it searches (sampler, pruner, seed)."""
    from talos.studies.tune import TuneSettings

    return TuneSettings(config=settled, space=space, data=parts.fingerprints(), **how)
