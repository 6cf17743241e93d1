"""Search spaces by name for `talos tune`, and the searches of `talos compare --tuned`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.cli.output import say
from talos.cli.tune_output import shown, write_report
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.studies.tune import Settings, Space
    from talos.studies.tune.data import FitParts

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
    from talos.studies.tune import fit_parts, run_study

    parts = fit_parts(*open_fit_parts(path, source, notify=say))
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
    """The space of a name or a file, checked; and the config with the values that the space fixes."""
    from talos.studies.tune.check import check_space
    from talos.studies.tune.defaults import default_space
    from talos.studies.tune.space import Space

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
        if name == "contrast_weight" and base.backbone.name != "xsimgcl":
            continue
        values[places.get(name, f"loss.{name}")] = list(searched)
    if "threshold.lr" in values:  # the rate of a regression: there has to be one
        values["threshold.name"] = "regression"
    return values


def settings_for(settled: RunConfig, space: Space, parts: FitParts, **how: Any) -> Settings:
    """The settings of a study: its base config, space and data, and `how` it searches (sampler, pruner, seed)."""
    from talos.studies.tune import Settings

    data = {name: part.fingerprint() for name, part in zip(("train", "valid"), parts, strict=True)}
    return Settings(config=settled, space=space, data=data, **how)
