"""The claims of the paper, judged by the stored results: each *ahead*, *level* or *behind*, or true or not.

`data/claims.toml` lists them. A comparison is *ahead* if the row is significantly above every rival, *behind* if some
rival is significantly above it, and *level* otherwise: p < .05 after Holm's correction over the rivals. Tests are
paired over users where the results have such a test, and otherwise unpaired, by the standard errors of both.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from talos_paper import published
from talos_paper.datasets import DATASETS
from talos_paper.recipes import EXPERIMENTS
from talos_paper.results import ResultStore
from talos_paper.tables import RowResult, compared, groups, percent, rows_of, shown_metric, shown_name

__all__ = ["Claim", "claims"]

Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = dict[str, RowResult]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim at one place.

    Attributes:
        table: the page that has the numbers.
        text: what is claimed.
        where: the data set, and the backbone of a comparison.
        label: the metric of a comparison; empty for other claims.
        verdict: `ahead`, `level` or `behind`; `yes` or `no`.
        numbers: what the verdict rests on.
    """

    table: str
    text: str
    where: str
    label: str = ""
    verdict: str
    numbers: str


def claims(store: ResultStore) -> Iterator[Claim]:
    """Every claim that the stored results can judge, whether it holds or not.

    >>> import pathlib, tempfile
    >>> list(claims(ResultStore(pathlib.Path(tempfile.mkdtemp()))))
    []
    """
    for facts in published.read_toml("claims")["claim"]:
        table, text, kind = facts["table"], facts["text"], facts["kind"]
        for dataset in facts.get("datasets", EXPERIMENTS[table].datasets):
            found = groups(rows_of(EXPERIMENTS[table], dataset, store))
            rows = {group: {row.spec.method: row for row in found[group] if row.runs} for group in found}
            title, tests = DATASETS.get(dataset, dataset), store.measurement(f"tests-{dataset}") or {}
            if kind == "ahead":
                for group, metric, ours, rivals in _compared(facts, rows):
                    verdict, numbers = compared(ours, rivals, metric, tests)
                    of_backbone = group == ours.spec.recipe.backbone
                    where = f"{title}, {shown_name(group)}" if of_backbone else title
                    label = shown_metric(metric) if of_backbone else f"{group}, {shown_metric(metric)}"
                    kept: dict[str, Any] = {"label": label, "verdict": verdict, "numbers": numbers}
                    yield Claim(table=table, text=text, where=where, **kept)
                continue
            measured = store.measurement(f"{table}-{dataset}")
            if measured is not None or (rows and all(row.runs for row in found["mf"])):
                holds, numbers = _CHECKS[kind](facts, measured or rows["mf"])
                yield Claim(
                    table=table, text=text, where=title, verdict="yes" if holds else "no", numbers=numbers
                )


# ----------------------------------------------------------------------------------------------- comparisons


def _compared(facts: Values, rows: Mapping[str, Rows]) -> Iterator[tuple[str, str, RowResult, Rows]]:
    """Group, metric, row and rivals."""
    for group, members in rows.items():
        for one in facts["comparisons"]:
            name = one.get("ours", "talos")
            named = one.get("rivals", [rival for rival in members if "," not in rival and rival != name])
            rivals = {rival: members[rival] for rival in named if rival in members}
            wanted = one.get("group", group) == group and group not in facts.get("not_groups", [])
            if wanted and name in members and rivals:
                own = members[name].spec.metrics  # one, where groups differ in it
                for metric in own if len(own) == 1 else one["metrics"]:
                    yield group, metric, members[name], rivals


# -------------------------------------------------------------------------- true or not; all rows have runs


def _means(rows: Rows, metric: str = "recall@20") -> dict[str, float]:
    return {name: row.mean(metric) or 0.0 for name, row in rows.items()}


def _published(_: Values, rows: Rows) -> tuple[bool, str]:
    difference = rows["talos"].difference("recall@20") or 0.0
    return difference >= -0.02, f"{percent(difference)} over {len(rows['talos'].runs)} seeds"


def _gains(_: Values, rows: Rows) -> tuple[bool, str]:
    gains = []
    for k in (20, 50, 80):
        means = _means(rows, f"recall@{k}")
        gains.append(means[f"talos@{k}"] / max(means[name] for name in means if "talos" not in name) - 1)
    return gains == sorted(gains, reverse=True), ", ".join(map(percent, gains))


def _one_peak(_: Values, rows: Rows) -> tuple[bool, str]:
    values = {name: mean for name, mean in _means(rows).items() if "τ=" in name}
    figures, best = list(values.values()), max(values, key=lambda name: values[name])
    top = figures.index(values[best])
    one = figures == [*sorted(figures[:top]), *sorted(figures[top:], reverse=True)]
    return one, f"best at {best.removeprefix('talos ')}"


def _limit(facts: Values, given: Any) -> tuple[bool, str]:
    if "path" in facts:
        value = float(functools.reduce(operator.getitem, facts["path"], given))
    else:
        value = given[facts["method"]].mean("error") or 0.0
    return facts.get("above", 0) < value <= facts.get("at_most", math.inf), f"{value:.4g}"


def _inflation(_: Values, rows: Rows) -> tuple[bool, str]:
    whole, without = (row.runs[0].scores[-1][1] for row in rows.values())
    return without > 0.2 > whole, f"mean score of all items {whole:.3f} with it, {without:.3f} without"


def _inconsistency(_: Values, measured: Values) -> tuple[bool, str]:
    shares = measured["used"]["shares"]
    ordered = shares["auc"] > shares["ndcg"] > max(shares["ndcg@20"], shares["llpauc"])
    return ordered, f"{100 * measured['used']['distance']:.1f} points from Table 1"


def _bound(_: Values, measured: Values) -> tuple[bool, str]:
    inside = [point for point in measured["bound"] if point["inside"]]
    gap = min(point["gap"] for point in inside)
    return all(point["holds"] == 1 for point in inside), f"the gap is {gap:.1f} on average at best"


def _worst_case(_: Values, measured: Values) -> tuple[bool, str]:
    gap = max(abs(one["worst"] - one["tau"] * one["eta"] - one["robust"]) for one in measured["worst"])
    return gap < 1e-5, f"the two sides differ by {gap:.0e} at most (stored rounded)"


def _convergence(_: Values, measured: Values) -> tuple[bool, str]:
    means, allowed = (measured["convergence"][name] for name in ("running_mean", "allowed"))
    below = all(mean <= limit for mean, limit in zip(means, allowed, strict=True))
    return below, f"{means[-1]:.2g} at the end, allowed {allowed[-1]:.2g}"


_CHECKS: dict[str, Callable[[Values, Any], tuple[bool, str]]] = {
    "published": _published,
    "gains": _gains,
    "one-peak": _one_peak,
    "limit": _limit,
    "inflation": _inflation,
    "inconsistency": _inconsistency,
    "bound": _bound,
    "worst-case": _worst_case,
    "convergence": _convergence,
}
