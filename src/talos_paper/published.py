"""Every number that the paper prints, as data: results, improvements, hyperparameters.

From "Talos: Optimizing Top-K Accuracy in Recommender Systems" (WWW 2026). `data/published.csv` has the numbers as
printed, misprints included: those carry a note in `misprint`. Where a table does not name its backbone it is MF: its
Talos rows repeat those of the main table on MF, or its hyperparameters are listed for MF alone.

>>> value(table="overall", dataset="gowalla", backbone="mf", method="talos", metric="precision@20")
0.0642
>>> hyperparameters("gowalla", "mf", "talos")
{'lr': 0.01, 'weight_decay': 0.0, 'tau': 0.05}
"""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talos.checks import require
from talos.errors import ArgumentError, ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig

__all__ = [
    "GRID",
    "IMPROVEMENTS",
    "NUMBERS",
    "OFF_GRID",
    "PublishedNumber",
    "hyperparameters",
    "mended",
    "numbers",
    "read_toml",
    "search_space",
    "value",
]

_DATA = Path(__file__).parent / "data"


def read_toml(name: str) -> dict[str, Any]:
    """A file of the package's `data` folder.

    >>> read_toml("recipes")["threshold"]["talos"]
    'regression'
    """
    return tomllib.loads((_DATA / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """One number of one table of the paper, as printed.

    Attributes:
        table: short name of the table, such as `overall` or `varying-k`.
        dataset: lower-case short name, such as `beauty`.
        backbone: `mf`, `lightgcn`, `xsimgcl`, or empty where none is involved.
        method: short name of the loss; in tables without losses, the name of the row; `imp%` for an improvement.
        metric: key of the metric, such as `recall@20`; for hyperparameters, the name of the option.
        value: the number; shares and ratios are fractions of 1, improvements are in percent.
        setting: what else distinguishes the number, such as `n=8`; for hyperparameters, the scenario.
        significant: starred in the paper (better than the best rival with p < 0.05).
        misprint: what is wrong with the number or its heading, if anything is.
        true_dataset: where a misprinted number belongs, if that is certain and another data set.
        true_metric: the same for its metric.

    >>> numbers(table="overall", dataset="beauty", backbone="mf", method="sl", metric="recall@20")[0].value
    0.1403
    """

    table: str
    dataset: str
    backbone: str
    method: str
    metric: str
    value: float
    setting: str = ""
    significant: bool = False
    misprint: str | None = None
    true_dataset: str = ""
    true_metric: str = ""


def _entries() -> tuple[PublishedNumber, ...]:
    with (_DATA / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedNumber(
                **{
                    **row,
                    "value": json.loads(row["value"]),  # a whole number stays one
                    "significant": row["significant"] == "yes",
                    "misprint": row["misprint"] or None,
                }
            )
            for row in csv.DictReader(file)
        )


_EVERYTHING = _entries()
_HYPERPARAMETERS = [entry for entry in _EVERYTHING if entry.table == "hyperparameters"]

NUMBERS = tuple(e for e in _EVERYTHING if e.table != "hyperparameters" and e.method != "imp%")
"""Every number of every table of results, as printed."""

IMPROVEMENTS = tuple(entry for entry in _EVERYTHING if entry.method == "imp%")
"""Every printed `Imp.%`: the gain of Talos over the best of its rivals in the same column."""

OFF_GRID = {
    (entry.setting, entry.dataset, entry.backbone, entry.method, entry.metric): entry.misprint
    for entry in _HYPERPARAMETERS
    if entry.misprint
}
"""(scenario, dataset, backbone, loss, hyperparameter) → note, for best values that are not on the grid.

>>> OFF_GRID["iid", "beauty", "xsimgcl", "bsl", "tau2"]
'0.02 is not among the values searched; 0.2 is'
"""

GRID: dict[str, dict[str, tuple[float, ...]]] = {
    loss: {name: tuple(values) for name, values in grid.items()}
    for loss, grid in read_toml("recipes")["grid"].items()
}
"""Loss → hyperparameter → the values that the paper searched.

Names are those of `talos`: the options of the loss, `lr` and `weight_decay` of the optimizer,
`contrast_weight` of XSimGCL (the paper's wl; on that backbone alone). `lr_quantile` of AATP is the rate of its
quantile regression, `lr` among the options of the threshold.

>>> GRID["talos"]["tau"]
(0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""


def numbers(**keys: str | None) -> tuple[PublishedNumber, ...]:
    """The published numbers with these keys; a key that is not given, or None, matches everything.

    Args:
        keys: `table`, `dataset`, `backbone`, `method`, `metric` and `setting`; see `PublishedNumber`.

    >>> [entry.method for entry in numbers(table="ablation", dataset="beauty", metric="recall@20")]
    ['talos w/o quantile', 'talos w/o outside', 'talos w/o denominator', 'talos']
    """
    wanted = {key: name for key, name in keys.items() if name is not None}
    return tuple(e for e in NUMBERS if all(getattr(e, key) == name for key, name in wanted.items()))


def value(**keys: str | None) -> float | None:
    """The published number with these keys, which are those of `numbers`; None if the paper has none.

    Raises:
        ArgumentError: several numbers match; the message names the keys in which they differ.

    >>> value(table="overall", dataset="beauty", backbone="mf", method="talos", metric="recall@20")
    0.1499
    >>> value(table="overall", dataset="movielens", metric="recall@20") is None
    True
    >>> value(table="quantile-error", dataset="beauty")
    Traceback (most recent call last):
    talos.errors.ArgumentError: value: 2 published numbers match; expected one (they differ in method)
    """
    found = numbers(**keys)
    if len(found) > 1:
        differ = [
            key
            for key in ("table", "dataset", "backbone", "method", "metric", "setting")
            if len({getattr(entry, key) for entry in found}) > 1
        ]
        what, hint = f"{len(found)} published numbers match", "they differ in " + ", ".join(differ)
        raise ArgumentError(what, where="value", expected="one", hint=hint)
    return found[0].value if found else None


def mended(entry: PublishedNumber) -> PublishedNumber:
    """The entry under the heading where it belongs, if that is certain; otherwise the entry as it is.

    Two misprints are of this kind: the training times have their columns Games and Gowalla exchanged, and the
    improvements of the table of varying K on Beauty stand under each other's headings.

    >>> (time,) = numbers(table="efficiency", dataset="games", method="talos")
    >>> time.value, mended(time).dataset, mended(time).misprint
    (5.37, 'gowalla', None)
    """
    if not entry.true_dataset and not entry.true_metric:
        return entry
    dataset, metric = entry.true_dataset or entry.dataset, entry.true_metric or entry.metric
    return replace(entry, dataset=dataset, metric=metric, misprint=None)


def hyperparameters(
    dataset: str, backbone: str, loss: str, *, scenario: str = "iid"
) -> dict[str, float] | None:
    """The values that the paper reports as best, as printed; None where it reports none.

    Args:
        dataset: `gowalla`, `beauty`, `games` or `electronics`; with temporal shift `gowalla` or `games` (which the
            table of results calls Beauty).
        backbone: `mf`, `lightgcn` or `xsimgcl`; with temporal shift `mf`.
        loss: short name of the loss.
        scenario: `iid`, or `ood` (also `temporal`) for the split by time.

    Returns:
        Names as in `GRID`; `contrast_weight` on XSimGCL only. A fresh dictionary at each call.

    >>> hyperparameters("beauty", "mf", "talos")
    {'lr': 0.1, 'weight_decay': 1e-08, 'tau': 0.1}
    >>> hyperparameters("gowalla", "mf", "advinfonce", scenario="ood")
    {'lr': 0.1, 'weight_decay': 0.0, 'adv_every': 5, 'adv_epochs': 30, 'adv_lr': 1e-05, 'tau': 0.1}
    >>> hyperparameters("beauty", "mf", "sl@k") is None
    True
    """
    scenarios = {"iid": "iid", "ood": "ood", "temporal": "ood"}
    require(
        scenario in scenarios,
        f"no scenario is called {scenario!r}",
        where="scenario",
        hint=nearest(scenario, scenarios),
    )
    wanted = (scenarios[scenario], dataset, backbone, loss)
    found = {
        e.metric: e.value for e in _HYPERPARAMETERS if (e.setting, e.dataset, e.backbone, e.method) == wanted
    }
    return found or None


_CONFIG_KEYS = {
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "contrast_weight": "backbone.contrast_weight",
    "lr_quantile": "threshold.lr",
}


def search_space(base: RunConfig) -> dict[str, Any]:
    """The values that the paper searched for the loss of a config, by key of the config: `talos tune --space paper`."""
    loss = base.loss.name
    require(
        loss in GRID,
        f"the paper has no grid for the loss {loss!r}",
        where="--space paper",
        expected=f"one of {', '.join(sorted(GRID))}",
        hint="--space default has one",
        error=ConfigError,
    )
    space: dict[str, Any] = {
        _CONFIG_KEYS.get(name, f"loss.{name}"): list(values)
        for name, values in GRID[loss].items()
        if name != "contrast_weight" or base.backbone.name == "xsimgcl"
    }
    if "threshold.lr" in space:  # the learning rate of a quantile regression, so there has to be one
        space["threshold.name"] = "regression"
    return space
