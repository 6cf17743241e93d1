"""The library's default against a grid of settings: is what `talos train` chooses by itself as good as a search?

For every data set, on the same split into train, validation and test:

1. `temperatures`: Talos with each of some temperatures given, so that nothing is raced;
2. `powers`: at the best of them, every pair of a weight p of the users and a weight λ of the negatives;
3. `best`, on the large sets: there the fits of the grid end after 30 epochs, and the best of them is fitted to its end;
4. `default`: what `talos train` does without any setting;
5. `test`: of the best of the grid and of the default, once each.

Validation Recall@20 decides in the grid; what the default decides by is its own affair. Test is read at the end, and
neither the grid nor the default is given it. After every fit the result so far is written to a sealed file, so a call
that was stopped goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from talos.config import RunConfig
from talos.data import splits
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, nearest
from talos.model.recommender import Recommender
from talos_paper import data, leaderboard
from talos_paper.leaderboard import METRIC, K, choose, measure
from talos_paper.published.leaderboard import SPLITS
from talos_paper.results import ResultStore, versions

__all__ = ["DATASETS", "powers", "run_grid", "stored_name", "temperatures"]

DATASETS: dict[str, str] = {
    "movielens-100k": "MovieLens-100K",
    "beauty": "Beauty",
    "games": "Games",
    "gowalla": "Gowalla",
    **{name: f"{title}, public split" for name, title in SPLITS.items()},
}
"""Name on the command line → name in the table, the smaller ones first."""

_LARGE = ("gowalla", *SPLITS)
_LOWEST, _HIGHEST = 0.04, 0.3
# The rate falls by epochs whatever their number is, so such a fit is the beginning of the whole one.
_EPOCHS_OF_LARGE = 30
# p and λ of the second step; the first had p = λ = 1
_POWERS = [list(pair) for pair in product((0.25, 0.5, 1.0), (1.0, 1.1, 1.2)) if pair != (1.0, 1.0)]


def temperatures(dataset: str) -> list[dict[str, Any]]:
    """Candidates of the first step: ten temperatures from .04 to .3 in equal ratios, five on the large sets.

    >>> [one["loss.tau"] for one in temperatures("gowalla")]
    [0.04, 0.0662, 0.11, 0.181, 0.3]
    """
    count = 5 if dataset in _LARGE else 10
    ratio = (_HIGHEST / _LOWEST) ** (1 / (count - 1))
    return [{"loss.tau": float(f"{_LOWEST * ratio**place:.3g}")} for place in range(count)]


def powers(tau: float) -> list[dict[str, Any]]:
    """Candidates of the second step: three p by three λ at one temperature, but for p = λ = 1, which has been fitted.

    >>> len(powers(0.1))
    8
    """
    return [{"loss.tau": tau, "loss.user_power": p, "loss.negative_weight": weight} for p, weight in _POWERS]


def load(dataset: str, folder: Path | None = None) -> Split:
    """Train, validation and test; a tenth of train becomes validation where the data set has none."""
    if dataset in SPLITS:
        train, test = leaderboard.load(dataset, folder)
        rest, valid = leaderboard.hold_out(train)
        return splits.predefined(rest, valid, test)
    return data.load(dataset, folder=folder)


def stored_name(dataset: str) -> str:
    """The name of the measurement of a data set.

    >>> stored_name("beauty")
    'grid/beauty'
    """
    return f"grid/{dataset}"


def run_grid(
    store: ResultStore,
    *,
    datasets: Sequence[str] | None = None,
    folder: Path | None = None,
    work: Path | None = None,
    settings: dict[str, Any] | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> None:
    """Make what is missing, one data set after another.

    Args:
        store: where results are looked up and saved.
        datasets: names in `DATASETS`; all of them if None.
        folder: with the data sets, a subfolder each; the folder that TALOS_DATA names if None.
        work: folder for checkpoints of fits that are not finished.
        settings: of every fit, beside those that are compared; for a quick try.
        notify: called with a line after each fit.
    """
    for dataset in DATASETS if datasets is None else datasets:
        if dataset not in DATASETS:
            raise ConfigError(f"{dataset!r} is not known", where="--dataset", hint=nearest(dataset, DATASETS))
        place = None if work is None else work / dataset
        _Grid(dataset, load(dataset, folder), store, place, settings or {}, notify).run()


class _Grid:
    """The grid and the default of one data set, with what has been fitted so far."""

    def __init__(
        self,
        dataset: str,
        split: Split,
        store: ResultStore,
        work: Path | None,
        settings: dict[str, Any],
        notify: Callable[[str], None],
    ) -> None:
        assert split.valid is not None  # `load` sees to it
        self.dataset, self.store, self.work = dataset, store, work
        self.train, self.valid, self.test = split.train, split.valid, split.test
        self.settings, self.notify = settings, notify
        protocol = {
            "settings": settings,
            "temperatures": temperatures(dataset),
            "powers": _POWERS,
            "decided_by": f"validation {METRIC}@{K}",
            "data": {name: part.fingerprint() for name, part in split.parts.items()},
        }
        self.short: dict[str, Any] = {}
        if dataset in _LARGE:
            self.short = {"training.epochs": min(_EPOCHS_OF_LARGE, settings.get("training.epochs", 10**9))}
            protocol["compared_with"] = self.short
        self.result = store.measurement(stored_name(dataset)) or {"protocol": protocol, "steps": {}}
        if self.result["protocol"] != protocol:
            what = f"{stored_name(dataset)} was made with another grid or data"
            raise DataError(what, where=str(store.root), hint="delete its file to make it again")

    def run(self) -> None:
        """Fit what is missing, and measure on test at the end."""
        first = self._step("temperatures", [self.short | one for one in temperatures(self.dataset)])
        second = self._step("powers", [self.short | one for one in powers(first["settings"]["loss.tau"])])
        best, step = max(((first, "temperatures"), (second, "powers")), key=lambda one: _decisive(one[0]))
        if self.short:
            whole = {key: value for key, value in best["settings"].items() if key not in self.short}
            best, step = self._step("best", [whole]), "best"
        default = self._step("default", [{"training.metric": RunConfig().training.metric}])
        if "test" in self.result:
            return
        self.result["test"] = {
            "grid": {"trial": best, **self._measured(step, best)},
            "default": {"trial": default, **self._measured("default", default)},
        }
        self._save()
        found = {name: one["metrics"][f"{METRIC}@{K}"] for name, one in self.result["test"].items()}
        self.notify(
            f"{self.dataset}: test {METRIC}@{K} {found['default']:.4f}, grid {found['grid']:.4f}, "
            f"share {found['default'] / found['grid']:.3f}"
        )

    def _step(self, name: str, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        """The best trial of a step, after fitting the candidates that are missing."""

        def save(trials: list[dict[str, Any]]) -> None:
            self.result["steps"][name] = trials
            self.result["made_with"] = {"versions": versions(), "threads": torch.get_num_threads()}
            self._save()
            last = trials[-1]
            self.notify(f"{self.dataset} {name} {last['settings']}: validation {_decisive(last):.4f}")

        choice = choose(
            [{**self.settings, **one} for one in candidates],
            self.train,
            self.valid,
            done=self.result["steps"].get(name, []),
            work=None if self.work is None else self.work / name,
            save=save,
        )
        return choice.trials[choice.best]

    def _measured(self, step: str, trial: dict[str, Any]) -> dict[str, Any]:
        """Test metrics of a trial's model: its finished run is taken up again, or fitted again where none is kept."""
        number = self.result["steps"][step].index(trial)
        base = RunConfig().with_values({"k": K, "training.metric": METRIC, **trial["settings"]})
        folder = None if self.work is None else self.work / step / f"trial-{number}"
        model = Recommender(config=base)
        model.fit(self.train, self.valid, run=folder, resume=folder is not None)
        return measure(model, self.test)

    def _save(self) -> None:
        self.store.save_measurement(stored_name(self.dataset), self.result)


def _decisive(trial: dict[str, Any]) -> float:
    return float(trial["valid"][f"{METRIC}@{K}"])
