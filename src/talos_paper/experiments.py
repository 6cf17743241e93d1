"""The tables and figures of the paper by name: the rows of each, the run behind a row, and what was published for it.

`data/tables.toml` says what they are. Rows share runs: Talos on Beauty with MF is one fit, whether the overall table,
the ablation or the temperature curve needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from talos_paper import published
from talos_paper.recipes import LOSSES, Fidelity, Recipe, equal_recipe, recipe, schedule_of

__all__ = ["EXPERIMENTS", "NOT_RUN", "Experiment", "Row"]

_DATA = published.read_toml("tables")
_METRICS = ("precision@20", "recall@20", "ndcg@20", "mrr@20")
_SLOW = ("advinfonce", "smoothi@k", "rs@k")

NOT_RUN: dict[str, str] = _DATA["not_run"]
"""What else the paper has → why there is no command for it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: the runs it needs and the numbers it is compared with.

    Attributes:
        dataset: name of the data set.
        group: what the rows of one table have in common, such as the backbone.
        method: name of the row.
        recipe: settings of its runs.
        seeds: number of runs, one for each seed from 0.
        published: metric → number in the paper; empty where it has none.
        metrics: the columns of the table.
        core: whether the row belongs to the core set, the results that are run first.
        order: rows with a lower number are run first.
    """

    dataset: str
    group: str
    method: str
    recipe: Recipe
    seeds: int
    published: Mapping[str, float]
    metrics: tuple[str, ...]
    core: bool
    order: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: heading of its page.
        paper: where it stands in the paper.
        datasets: the data sets it is made for, those of the core set first.
        core: the data sets that belong to the core set.
        metrics: the columns of its tables.
        specs: its rows as `data/tables.toml` has them; none for a measurement that needs no fit.
    """

    name: str
    title: str
    paper: str
    datasets: Sequence[str]
    core: Sequence[str]
    metrics: Sequence[str] = _METRICS
    specs: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def rows(self, dataset: str, fidelity: Fidelity = "fast") -> list[Row]:
        """The rows for a data set, in the order of the table; none for a measurement.

        >>> [row.method for row in EXPERIMENTS["inflation"].rows("beauty")]
        ['talos', 'talos w/o denominator']
        """
        found = []
        for spec in self.specs:
            if dataset in spec.get("datasets", self.datasets) and spec.get("asked", fidelity) == fidelity:
                losses = spec.get("losses", ["talos"])
                varied = (
                    spec.get("backbones", ["mf"]),
                    spec.get("values", [None]),
                    LOSSES if losses == "all" else losses,
                )
                found += [self._row(spec, dataset, fidelity, *one) for one in product(*varied)]
        return found

    def _row(
        self, spec: Mapping[str, Any], dataset: str, fidelity: Fidelity, backbone: str, value: Any, loss: str
    ) -> Row:
        def filled(text: str) -> str:
            return text.format(value=value)

        method = filled(spec.get("method", loss))
        metrics = tuple(filled(metric) for metric in spec.get("metrics", self.metrics))
        keys = {
            "table": self.name,
            "dataset": "movielens" if dataset == "movielens-100k" else dataset,
            "method": method,
            "backbone": backbone,
            **{key: filled(name) for key, name in spec.get("published", {}).items()},
        }
        entries = published.numbers(**keys)
        return Row(
            dataset=dataset,
            group=filled(spec.get("group", backbone)),
            method=method,
            recipe=_recipe(spec, dataset, fidelity, backbone, value, loss),
            seeds=3 if loss in spec.get("three_seeds", []) else spec.get("seeds", 1),
            published={entry.metric: entry.value for entry in entries if entry.metric in metrics},
            metrics=metrics,
            core=dataset in self.core and spec.get("core", True),
            order=spec.get("order", 5) + (loss in _SLOW),
        )


def _recipe(
    spec: Mapping[str, Any], dataset: str, fidelity: Fidelity, backbone: str, value: Any, loss: str
) -> Recipe:
    """The recipe of a row: that of its protocol, with what the row changes."""
    protocol, vary = spec.get("protocol", fidelity), spec.get("vary")
    changes = dict(spec.get("changes", {}))
    k = value if vary == "k" else 20
    if vary not in (None, "k"):
        changes[vary] = value
    if protocol == "equal":
        made = equal_recipe(dataset, backbone, loss, k=k)
        made = made.with_settings(changes) if changes else made
    else:
        scenario, probe = spec.get("scenario", "iid"), spec.get("probe", False)
        options: dict[str, Any] = {"scenario": scenario, "k": k, "changes": changes, "probe": probe}
        made = recipe(dataset, backbone, loss, fidelity=protocol, **options)
    if "schedule" in spec:
        made = made.with_settings({**schedule_of(dataset), **spec["schedule"]})
    settings = {**made.settings, **spec.get("settings", {})}
    return replace(
        made,
        fidelity=spec.get("shown_as", made.fidelity),
        settings={name: one for name, one in settings.items() if name not in spec.get("drop", [])},
        search=tuple(spec.get("search_of", {}).get(loss, spec.get("search", made.search))),
    )


EXPERIMENTS: dict[str, Experiment] = {
    facts["name"]: Experiment(
        specs=facts.get("rows", []), **{key: value for key, value in facts.items() if key != "rows"}
    )
    for facts in _DATA["table"]
}
"""Name → experiment, in the order of the paper."""
