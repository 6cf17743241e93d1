"""Who proposes the next point and who stops trials that lag behind: Optuna's, made anew for every trial.

A sampler's random numbers follow from the seed of the search and the place of the trial alone. So one worker proposes
the same points whether it was interrupted or not, and two workers never the same ones by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from talos.studies.tune.settings import Settings
from talos.studies.tune.space import Choice
from talos.studies.tune.storage import import_optuna

if TYPE_CHECKING:
    import optuna

__all__ = ["make_pruner", "make_sampler", "suggest"]

_STARTUP = 10  # trials at random before TPE has enough to learn from


def make_sampler(settings: Settings, place: int, first: dict[str, Any] | None, *, several: bool) -> Any:
    """The sampler for the trial at a place; the one at place 0 gets `first`, if there is one."""
    optuna = import_optuna()
    seed = int(np.random.SeedSequence([settings.seed, place]).generate_state(1)[0])
    base: Any = optuna.samplers.RandomSampler(seed=seed)
    if settings.way == "tpe":
        # with several workers, points under way count as bad ones, so that others look elsewhere
        base = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=several)
    if settings.way == "grid":
        return optuna.samplers.PartialFixedSampler(settings.space.point(place, seed=settings.seed), base)
    if place == 0 and first is not None:
        return optuna.samplers.PartialFixedSampler(first, base)
    return base


def make_pruner(settings: Settings) -> Any:
    """The pruner; its steps are epochs."""
    optuna = import_optuna()
    every = settings.config.training.evaluate_every
    if settings.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2 * every - 1)
    if settings.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=2 * every, reduction_factor=3)
    return optuna.pruners.NopPruner()


def suggest(trial: optuna.Trial, settings: Settings) -> dict[str, Any]:
    """A value for every entry of the space."""
    values: dict[str, Any] = {}
    for key, entry in settings.space.entries.items():
        if isinstance(entry, Choice):
            values[key] = trial.suggest_categorical(key, entry.values)
        elif entry.whole:
            step = 1 if entry.step is None else int(entry.step)
            values[key] = trial.suggest_int(key, int(entry.low), int(entry.high), log=entry.log, step=step)
        else:
            values[key] = trial.suggest_float(key, entry.low, entry.high, log=entry.log, step=entry.step)
    return values
