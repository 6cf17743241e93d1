"""The claims of the paper, checked against the stored results: each holds or not, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from talos_paper.data import DATASETS
from talos_paper.experiments import EXPERIMENTS
from talos_paper.recipes import BACKBONES
from talos_paper.results import ResultStore
from talos_paper.tables import RowResult, groups, percent, rows_of, shown_metric, shown_name

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
    """Every claim of the paper that the stored results can judge, one line each, whether it holds or not."""
    return [
        *_overall(store),
        *_equal(store),
        *_varying_k(store),
        *_ablation(store),
        *_temperature(store),
        *_threshold(store),
        *_shift(store),
        *_against_slatk(store),
        *_efficiency(store),
        *_inflation(store),
        *_inconsistency(store),
        *_theory(store),
    ]


def _best(text: str, rows: Mapping[str, RowResult], metric: str, more: str = "") -> Claim:
    """The claim that Talos has the highest value of a metric among rows, with the best rival beside it."""
    values = {name: row.mean(metric) or 0.0 for name, row in rows.items()}
    rival = max((name for name in values if name != "talos"), key=lambda name: values[name])
    above = [shown_name(name) for name in values if values[name] > values["talos"]]
    tail = f"; above it: {', '.join(above)}" if len(above) > 1 else ""
    return Claim(
        text=text,
        holds=not above,
        numbers=f"Talos {values['talos']:.4f}, best rival {shown_name(rival)} {values[rival]:.4f}{tail}.{more}",
    )


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
    chain = {
        name: found[name].mean("recall@20") or 0.0
        for name in ("talos", "sl", "llpauc", "bpr")
        if name in found
    }
    yield Claim(
        text="Beauty, MF: Talos > SL > LLPAUC > BPR in R@20",
        holds=None if len(chain) < 4 else [*chain.values()] == sorted(chain.values(), reverse=True),
        numbers=", ".join(f"{shown_name(name)} {value:.4f}" for name, value in chain.items()),
    )
    for backbone in ("mf", "lightgcn", "xsimgcl"):
        found = _found(store, "overall", "beauty", backbone)
        rows = {name: row for name, row in found.items() if "," not in name}
        if len(rows) < 2 or "talos" not in rows:
            continue
        # the paper claims NDCG and MRR on MF alone
        for metric in ("precision@20", "recall@20", *(("ndcg@20", "mrr@20") if backbone == "mf" else ())):
            where = f"Beauty, {shown_name(backbone)}"
            tested = _tested(store, "overall", "beauty", backbone) if metric == "recall@20" else ""
            yield _best(
                f"{where}: Talos has the best {shown_metric(metric)} of {len(rows)} losses",
                rows,
                metric,
                tested,
            )
        if {"sl", "llpauc"} <= set(rows):
            values = {name: rows[name].mean("recall@20") or 0.0 for name in ("sl", "llpauc")}
            yield Claim(
                text=f"Beauty, {shown_name(backbone)}: LLPAUC does not outperform SL, though nearer to top-K accuracy",
                holds=values["llpauc"] <= values["sl"],
                numbers=f"R@20 of LLPAUC {values['llpauc']:.4f}, of SL {values['sl']:.4f}.",
            )


def _equal(store: ResultStore) -> Iterator[Claim]:
    """Talos against its rivals by one protocol, wherever Talos and at least one of them were run."""
    experiment = EXPERIMENTS["equal"]
    for dataset in experiment.datasets:
        for backbone in BACKBONES:
            rows = _found(store, "equal", dataset, backbone)
            if len(rows) < 2 or "talos" not in rows:
                continue
            for metric in ("precision@20", "recall@20"):
                where = f"{DATASETS[dataset]}, {shown_name(backbone)}, equal footing"
                text = f"{where}: Talos has the best {shown_metric(metric)} of {len(rows)} losses"
                tested = _tested(store, "equal", dataset, backbone) if metric == "recall@20" else ""
                yield _best(text, rows, metric, tested)


def _varying_k(store: ResultStore) -> Iterator[Claim]:
    for dataset in EXPERIMENTS["varying-k"].datasets:
        found = _found(store, "varying-k", dataset)
        trained = {k: found[f"talos@{k}"] for k in (20, 50, 80) if f"talos@{k}" in found}
        rivals = {name: row for name, row in found.items() if not name.startswith("talos@")}
        if len(trained) < 3 or not rivals:
            continue
        where, gains = f"{DATASETS[dataset]}, MF", {}
        for k, row in trained.items():
            metric = f"recall@{k}"
            text = f"{where}: Talos trained for K = {k} has the best R@{k}"
            yield _best(text, {"talos": row, **rivals}, metric)
            best = max(rival.mean(metric) or 1e-9 for rival in rivals.values())
            gains[k] = (row.mean(metric) or 0.0) / best - 1
            values = {other: one.mean(metric) or 0.0 for other, one in trained.items()}
            yield Claim(
                text=f"{where}: of Talos trained for 20, 50 and 80, the one for {k} has the best R@{k}",
                holds=max(values, key=lambda other: values[other]) == k,
                numbers=", ".join(f"for {other} {value:.4f}" for other, value in values.items()) + ".",
            )
        yield Claim(
            text=f"{where}: the gain over the best rival shrinks as K grows",
            holds=gains[20] > gains[50] > gains[80],
            numbers=", ".join(f"R@{k} {percent(gain)}" for k, gain in gains.items()) + ".",
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
    for dataset in EXPERIMENTS["ablation"].datasets:
        found = _found(store, "ablation", dataset)
        if len(found) < 2 or "talos" not in found:
            continue
        for metric in ("precision@20", "recall@20"):
            values = {name: row.mean(metric) or 0.0 for name, row in found.items()}
            yield Claim(
                text=f"{DATASETS[dataset]}, MF: Talos > each of its ablations in {shown_metric(metric)}",
                holds=None if len(values) < 4 else max(values, key=lambda name: values[name]) == "talos",
                numbers=", ".join(f"{shown_name(name)} {value:.4f}" for name, value in values.items()) + ".",
            )


def _temperature(store: ResultStore) -> Iterator[Claim]:
    for dataset in EXPERIMENTS["temperature"].datasets:
        found = _found(store, "temperature", dataset)
        values = {
            name.removeprefix("talos "): row.mean("recall@20") or 0.0
            for name, row in found.items()
            if name.startswith("talos τ=")
        }
        if len(values) < 3:
            continue
        figures = list(values.values())
        top = figures.index(max(figures))
        rising, falling = figures[: top + 1], figures[top:]
        yield Claim(
            text=f"{DATASETS[dataset]}, MF: R@20 rises to one best temperature and falls beyond it",
            holds=rising == sorted(rising) and falling == sorted(falling, reverse=True),
            numbers=", ".join(f"{name} {value:.4f}" for name, value in values.items()) + ".",
        )


def _threshold(store: ResultStore) -> Iterator[Claim]:
    experiment = EXPERIMENTS["quantile-error"]
    for dataset in experiment.datasets:
        found = _found(store, "quantile-error", dataset)
        for method, limit in (("regression", "below .03"), ("monte-carlo", "above .1")):
            text = f"{DATASETS[dataset]}: threshold error of {method} is {limit}"
            value = found[method].mean("error") if method in found else None
            if value is not None:
                published = found[method].spec.published.get("error")
                holds = value < 0.03 if method == "regression" else value > 0.1
                yield Claim(text=text, holds=holds, numbers=f"{value:.4f} (paper {published}).")
            elif dataset in experiment.core_datasets:
                yield Claim(text=text, holds=None, numbers="")


def _shift(store: ResultStore) -> Iterator[Claim]:
    for dataset in ("beauty", "movielens-100k"):
        found = _found(store, "temporal", dataset)
        if len(found) < 2 or "talos" not in found:
            continue
        valid = {name: row.runs[0].valid["precision@20"] for name, row in found.items()}
        ranked = sorted(valid, key=lambda name: -valid[name])[:3]
        seen = "Validation P@20: " + ", ".join(f"{shown_name(name)} {valid[name]:.4f}" for name in ranked)
        if "talos" not in ranked:
            seen += f", Talos {valid['talos']:.4f}"
        where = f"{DATASETS[dataset]}, temporal shift"
        for metric in ("precision@20", "recall@20"):
            tested = _tested(store, "temporal", dataset, "mf") if metric == "recall@20" else ""
            yield _best(
                f"{where}: Talos has the best {shown_metric(metric)} of {len(found)} losses",
                found,
                metric,
                f" {seen}.{tested}",
            )


def _against_slatk(store: ResultStore) -> Iterator[Claim]:
    """Talos and SL@K with few negatives, with 1,024 of them, and trained for several K."""
    for dataset in ("beauty", "movielens-100k"):
        rows = groups(rows_of(EXPERIMENTS["slatk"], dataset, store))
        for name, pair in rows.items():
            found = {row.spec.method: row for row in pair if row.runs}
            if name == "temporal shift" or set(found) != {"talos", "sl@k"}:
                continue
            metric = next(iter(found["talos"].spec.published), "precision@20")
            yield _best(
                f"{DATASETS[dataset]}, {name}: Talos is above SL@K in {shown_metric(metric)}", found, metric
            )
        thresholds = _found(store, "quantile-error", dataset)  # their runs have 1,024 negatives per positive
        if {"regression", "monte-carlo"} <= set(thresholds):
            found = {"talos": thresholds["regression"], "sl@k": thresholds["monte-carlo"]}
            for metric in ("precision@20", "recall@20"):
                yield _best(
                    f"{DATASETS[dataset]}, 1,024 negatives: Talos is above SL@K in {shown_metric(metric)}",
                    found,
                    metric,
                )


def _efficiency(store: ResultStore) -> Iterator[Claim]:
    for dataset in EXPERIMENTS["efficiency"].datasets:
        measured = store.measurement(f"efficiency-{dataset}")
        if measured is None:
            continue
        ratio = measured["protocols"]["paper"]["talos"]["ratio"]
        yield Claim(
            text=f"{DATASETS[dataset]}, MF: an epoch of Talos with 1,024 negatives takes at most 1.5 times that of SL",
            holds=ratio <= 1.5,
            numbers=f"{ratio:.2f} times.",
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
            numbers=f"{numbers}; {100 * distance:.1f} points from Table 1 (root mean square), the nearest of "
            f"{len(measured['tried'])} readings of how the paper counted."
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
    worst = measured["worst"]
    gap = max(abs(one["worst"] - one["tau"] * one["eta"] - one["robust"]) for one in worst)
    yield Claim(
        text="Theorem 2: the denominator is the worst case over negatives, less τ times its divergence from uniform",
        holds=gap < 1e-5,
        numbers=f"{len(worst)} temperatures; the two sides differ by {gap:.0e} at most (stored rounded).",
    )
    yield Claim(
        text="Theorem 3: the mean squared gradient stays below what the theorem allows",
        holds=all(a <= b for a, b in zip(descent["running_mean"], descent["allowed"], strict=True)),
        numbers=f"{descent['running_mean'][-1]:.2g} after {descent['steps'][-1]} steps, allowed "
        f"{descent['allowed'][-1]:.2g}.",
    )
