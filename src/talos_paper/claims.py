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

from talos.evaluation.significance import holm
from talos_paper import published
from talos_paper.datasets import DATASETS
from talos_paper.experiments import EXPERIMENTS
from talos_paper.results import ResultStore, run_name
from talos_paper.tables import NORMAL, RowResult, groups, percent, rows_of, shown_metric, shown_name

__all__ = ["Claim", "claims", "compared", "paired_tests"]

Values: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = dict[str, RowResult]
Tests: TypeAlias = Mapping[tuple[str, ...], Values]


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
    tests = paired_tests(store)
    for facts in published.read_toml("claims")["claim"]:
        table, text, kind = facts["table"], facts["text"], facts["kind"]
        for dataset in facts.get("datasets", EXPERIMENTS[table].datasets):
            found = groups(rows_of(EXPERIMENTS[table], dataset, store))
            rows = {group: {row.spec.method: row for row in found[group] if row.runs} for group in found}
            title = DATASETS.get(dataset, dataset)
            if kind in _COMPARISONS:
                for group, metric, ours, rivals in _COMPARISONS[kind](facts, rows):
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


def paired_tests(store: ResultStore) -> Tests:
    """Every stored test of Talos against a rival, by metric and the first run of each behind it."""
    found: dict[tuple[str, ...], Values] = {}
    for name in store.names("measurements"):
        kept = store.measurement(name) or {}
        dataset = name.split("-", 2)[-1]  # of significance-TABLE-DATASET
        for group, metrics in kept["groups"].items() if name.startswith("significance-") else ():
            runs = {method: f"{dataset}/{names[0]}" for method, names in kept["inputs"][group].items()}
            for metric, tests in metrics.items():
                for rival, test in tests["against"].items():
                    found[metric, runs["talos"], runs[rival]] = test
    return found


def compared(ours: RowResult, rivals: Rows, metric: str, tests: Tests) -> tuple[str, str]:
    """The verdict on a row against its rivals, and the difference to the best of them with its 95 % interval.

    Args:
        ours: the row that is judged.
        rivals: name → row.
        metric: what is compared.
        tests: see `paired_tests`; a rival without one is compared by standard errors and marked †.
    """
    found = {}
    for name, row in rivals.items():
        first = [run_name(one.recipe, one.runs[0].seed) for one in (ours, row)]
        test = tests.get((metric, *first))
        if test and test["effect_size"]:
            difference = test["difference"]
            half = NORMAL * difference / test["effect_size"] / math.sqrt(ours.runs[0].users)
            found[name] = (difference, half, test["p_values"]["t"], "")
        else:
            difference = (ours.mean(metric) or 0.0) - (row.mean(metric) or 0.0)
            half = math.hypot(ours.half_width(metric) or 0.0, row.half_width(metric) or 0.0)
            p = math.erfc(abs(difference) * NORMAL / half / math.sqrt(2)) if half else 1.0
            found[name] = (difference, half, p, "†")
    corrected = holm([p for _, _, p, _ in found.values()])
    signs = [math.copysign(p < 0.05, one[0]) for one, p in zip(found.values(), corrected, strict=True)]
    best = max(rivals, key=lambda name: rivals[name].mean(metric) or 0.0)
    difference, half, _, mark = found[best]
    verdict = "behind" if min(signs) == -1 else "ahead" if min(signs) == 1 else "level"
    return verdict, f"{difference:+.4f} ± {half:.4f}{mark} ({shown_name(best)})"


_Compared: TypeAlias = Iterator[tuple[str, str, RowResult, Rows]]


def _best(facts: Values, rows: Mapping[str, Rows]) -> _Compared:
    """Group, metric, row and rivals."""
    for group, members in rows.items():
        ours = facts.get("ours", "talos")
        named = facts.get("rivals", [name for name in members if "," not in name])
        rivals = {name: members[name] for name in named if name in members and name != ours}
        if ours in members and rivals and group in facts.get("groups", rows):
            for metric in (*facts["metrics"], *facts.get("more", {}).get(group, [])):
                yield group, metric, members[ours], rivals


def _own_k(facts: Values, rows: Mapping[str, Rows]) -> _Compared:
    for group, members in rows.items():
        trained = [name for name in members if name.startswith("talos@")]
        for name in trained:
            among = facts.get("among_talos", False)
            rivals = {one: row for one, row in members.items() if (one in trained) == among and one != name}
            if rivals:
                yield group, f"recall@{name.removeprefix('talos@')}", members[name], rivals


def _slatk(_: Values, rows: Mapping[str, Rows]) -> _Compared:
    for group, members in rows.items():
        if (
            group != "temporal shift" and len(members) == 2
        ):  # that comparison is one of the table of temporal shift
            metric = next(iter(members["talos"].spec.published), "precision@20")
            yield group, metric, members["talos"], {"sl@k": members["sl@k"]}


def _negatives(_: Values, rows: Mapping[str, Rows]) -> _Compared:
    """The runs whose thresholds are measured have 1,024 negatives."""
    members = rows.get("mf", {})
    if {"regression", "monte-carlo"} <= set(members):
        yield "mf", "precision@20", members["regression"], {"sl@k": members["monte-carlo"]}
        yield "mf", "recall@20", members["regression"], {"sl@k": members["monte-carlo"]}


_COMPARISONS: dict[str, Callable[[Values, Mapping[str, Rows]], _Compared]] = {
    "best": _best,
    "own-k": _own_k,
    "slatk": _slatk,
    "negatives": _negatives,
}


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
    """A value among the measurements, or the threshold error of a row."""
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
