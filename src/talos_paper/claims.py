"""The claims of the paper, checked against the stored results: each holds or not, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from talos_paper.data import DATASETS
from talos_paper.experiments import EXPERIMENTS
from talos_paper.results import ResultStore
from talos_paper.tables import RowResult, groups, percent, rows_of, shown_name

__all__ = ["CLOSE", "Claim", "claims"]

CLOSE = 0.02
"""A relative difference up to this counts as reproduced."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, whether it holds here (None: not measured yet), and the numbers."""

    text: str
    holds: bool | None
    numbers: str

    def line(self) -> str:
        """One item of a Markdown list."""
        word = {True: "holds", False: "**does not hold**", None: "not measured yet"}[self.holds]
        return f"- {self.text}: {word}. {self.numbers}".rstrip()


def _found(store: ResultStore, experiment: str, dataset: str, group: str = "mf") -> dict[str, RowResult]:
    """Method → row, of one group; only rows that were run."""
    rows = rows_of(EXPERIMENTS[experiment], dataset, store)
    return {row.spec.method: row for row in groups(rows).get(group, []) if row.runs}


def claims(store: ResultStore) -> list[Claim]:
    """The claims that matter most."""
    return [
        *_overall(store),
        *_ablation(store),
        *_threshold(store),
        *_shift(store),
        *_inflation(store),
        *_inconsistency(store),
        *_theory(store),
    ]


def _overall(store: ResultStore) -> Iterator[Claim]:
    found = _found(store, "overall", "beauty")
    talos = found.get("talos")
    ours = None if talos is None else talos.mean("recall@20")
    yield Claim(
        text="Beauty, MF: R@20 of Talos is within 2 % of the published .1499, or above",
        holds=None if ours is None else ours >= 0.1499 * (1 - CLOSE),
        numbers=""
        if talos is None or ours is None
        else f"{ours:.4f} over {len(talos.runs)} seed(s) ({percent(talos.difference('recall@20'))}).",
    )
    chain = ["talos", "sl", "llpauc", "bpr"]
    values = [found[name].mean("recall@20") if name in found else None for name in chain]
    known = [value for value in values if value is not None]
    yield Claim(
        text="Beauty, MF: Talos > SL > LLPAUC > BPR in R@20",
        holds=None if len(known) < len(chain) else known == sorted(known, reverse=True),
        numbers=", ".join(
            f"{shown_name(n)} {v:.4f}" for n, v in zip(chain, values, strict=True) if v is not None
        ),
    )
    for backbone in ("mf", "lightgcn", "xsimgcl"):
        found = _found(store, "overall", "beauty", backbone)
        rows = {name: row for name, row in found.items() if "," not in name}
        if len(rows) < 2 or "talos" not in rows:
            continue
        ranked = sorted(rows.values(), key=lambda row: -(row.mean("recall@20") or 0))
        first, second = ranked[:2]
        yield Claim(
            text=f"Beauty, {shown_name(backbone)}: Talos has the best R@20 of {len(rows)} losses",
            holds=first.spec.method == "talos",
            numbers=f"{shown_name(first.spec.method)} {first.mean('recall@20'):.4f}, then "
            f"{shown_name(second.spec.method)} {second.mean('recall@20'):.4f}."
            f"{_tested(store, 'overall', 'beauty', backbone)}",
        )


def _tested(store: ResultStore, experiment: str, dataset: str, group: str) -> str:
    kept = (store.measurement(f"significance-{experiment}-{dataset}") or {}).get("groups", {}).get(group)
    if not kept:
        return ""
    found = kept["recall@20"]["against"]
    lost = [
        shown_name(name) for name, one in found.items() if not (one["p"] < 0.05 and one["difference"] > 0)
    ]
    if len(lost) == len(found):
        return f" Significantly above none of them ({kept['recall@20']['test']}, p < 0.05)."
    words = "all of them" if not lost else f"all but {', '.join(lost)}"
    return f" Significantly above {words} ({kept['recall@20']['test']}, p < 0.05)."


def _ablation(store: ResultStore) -> Iterator[Claim]:
    found = _found(store, "ablation", "beauty")
    values = {name: row.mean("recall@20") or 0.0 for name, row in found.items()}
    enough = len(values) == 4
    yield Claim(
        text="Beauty, MF: Talos > each of its ablations in R@20",
        holds=None if not enough else max(values, key=lambda name: values[name]) == "talos",
        numbers=", ".join(f"{shown_name(name)} {value:.4f}" for name, value in values.items()),
    )


def _threshold(store: ResultStore) -> Iterator[Claim]:
    for dataset in ("beauty", "movielens-100k"):
        found = _found(store, "quantile-error", dataset)
        for method, limit in (("regression", "below .03"), ("monte-carlo", "above .1")):
            value = found[method].mean("error") if method in found else None
            holds = None if value is None else (value < 0.03 if method == "regression" else value > 0.1)
            published = found[method].spec.published.get("error") if method in found else None
            yield Claim(
                text=f"{DATASETS[dataset]}: threshold error of {method} is {limit}",
                holds=holds,
                numbers="" if value is None else f"{value:.4f} (paper {published}).",
            )


def _shift(store: ResultStore) -> Iterator[Claim]:
    for dataset in ("beauty", "movielens-100k"):
        found = _found(store, "temporal", dataset)
        if len(found) < 2 or "talos" not in found:
            continue
        best = max(found.values(), key=lambda row: row.mean("recall@20") or 0)
        second = max(
            (row for row in found.values() if row.spec.method != "talos"),
            key=lambda row: row.mean("recall@20") or 0,
        )
        yield Claim(
            text=f"{DATASETS[dataset]}, temporal shift: Talos has the best R@20 of {len(found)} losses",
            holds=best.spec.method == "talos",
            numbers=f"Talos {found['talos'].mean('recall@20'):.4f}, best rival "
            f"{shown_name(second.spec.method)} {second.mean('recall@20'):.4f}."
            f"{_tested(store, 'temporal', dataset, 'mf')}",
        )


def _inflation(store: ResultStore) -> Iterator[Claim]:
    found = _found(store, "inflation", "beauty")
    ends = {name: row.runs[0].scores[-1] for name, row in found.items() if row.runs[0].scores}
    without, whole = ends.get("talos w/o denominator"), ends.get("talos")
    yield Claim(
        text="Beauty, MF: without the denominator all scores and the threshold rise together, with it they do not",
        holds=None if without is None or whole is None else without[1] > 0.2 > whole[1],
        numbers=""
        if without is None or whole is None
        else f"Mean score of all items after 30 epochs {whole[1]:.3f} with it, {without[1]:.3f} without; "
        f"mean threshold {whole[2]:.3f} and {without[2]:.3f}.",
    )


def _inconsistency(store: ResultStore) -> Iterator[Claim]:
    for dataset in EXPERIMENTS["inconsistency"].core_datasets:
        measured = store.measurement(f"inconsistency-{dataset}")
        if measured is None:
            continue
        shares = measured["used"]["shares"]
        ordered = shares["auc"] > shares["ndcg"] > max(shares["ndcg@20"], shares["llpauc"])
        distance = measured["used"]["distance"]
        numbers = ", ".join(f"{name} {100 * value:.1f} %" for name, value in shares.items())
        yield Claim(
            text=f"{DATASETS[dataset]}: AUC contradicts P@20 more often than NDCG, NDCG more than NDCG@20 and LLPAUC",
            holds=ordered,
            numbers=f"{numbers}; {100 * distance:.1f} points from Table 1 (root mean square)."
            if distance is not None
            else numbers,
        )


def _theory(store: ResultStore) -> Iterator[Claim]:
    measured = store.measurement("theory-made-up")
    if measured is None:
        return
    inside = [point for point in measured["bound"] if point["inside"]]
    descent = measured["convergence"]
    yield Claim(
        text="Theorem 1: within its interval of τ the bound holds for every made-up user",
        holds=all(point["holds"] == 1 for point in inside),
        numbers=f"{len(inside)} temperatures; the gap is {min(p['gap'] for p in inside):.1f} on average at best.",
    )
    yield Claim(
        text="Theorem 3: the mean squared gradient stays below what the theorem allows",
        holds=all(a <= b for a, b in zip(descent["running_mean"], descent["allowed"], strict=True)),
        numbers=f"{descent['running_mean'][-1]:.2g} after {descent['steps'][-1]} steps, allowed "
        f"{descent['allowed'][-1]:.2g}.",
    )
