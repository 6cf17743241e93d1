"""What the results say, in sentences made from them: which claims of the paper hold here and which do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from talos_paper.data import DATASETS
from talos_paper.experiments import EXPERIMENTS, NOT_RUN
from talos_paper.remarks import REMARKS
from talos_paper.reproduce import Asked, status
from talos_paper.results import Store
from talos_paper.tables import Row, groups, percent, rows_of, shown_metric, shown_name

__all__ = ["Check", "checks", "readme"]

CLOSE = 0.02  # relative: closer than this counts as reproduced


@dataclass(frozen=True, kw_only=True)
class Check:
    """A claim, whether it holds here (None: not measured yet), and the numbers."""

    claim: str
    holds: bool | None
    numbers: str

    def line(self) -> str:
        """One item of a Markdown list."""
        word = {True: "holds", False: "**does not hold**", None: "not measured yet"}[self.holds]
        return f"- {self.claim}: {word}. {self.numbers}".rstrip()


def _found(store: Store, experiment: str, dataset: str, group: str = "mf") -> dict[str, Row]:
    """Method → row, of one group."""
    rows = rows_of(EXPERIMENTS[experiment], dataset, store)
    return {row.cell.method: row for row in groups(rows).get(group, []) if row.runs}


def checks(store: Store) -> list[Check]:
    """The claims that matter most, on Beauty."""
    return [
        *_overall_checks(store),
        *_ablation_checks(store),
        *_threshold_checks(store),
        *_shift_checks(store),
        *_inflation_checks(store),
        *_inconsistency_checks(store),
        *_theory_checks(store),
    ]


def _overall_checks(store: Store) -> Iterator[Check]:
    found = _found(store, "overall", "beauty")
    talos = found.get("talos")
    ours = None if talos is None else talos.mean("recall@20")
    yield Check(
        claim="Beauty, MF: R@20 of Talos is within 2 % of the published .1499, or above",
        holds=None if ours is None else ours >= 0.1499 * (1 - CLOSE),
        numbers=""
        if talos is None or ours is None
        else f"{ours:.4f} over {len(talos.runs)} seed(s) ({percent(talos.difference('recall@20'))}).",
    )
    chain = ["talos", "sl", "llpauc", "bpr"]
    values = [found[name].mean("recall@20") if name in found else None for name in chain]
    known = [value for value in values if value is not None]
    yield Check(
        claim="Beauty, MF: Talos > SL > LLPAUC > BPR in R@20",
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
        yield Check(
            claim=f"Beauty, {shown_name(backbone)}: Talos has the best R@20 of {len(rows)} losses",
            holds=first.cell.method == "talos",
            numbers=f"{shown_name(first.cell.method)} {first.mean('recall@20'):.4f}, then "
            f"{shown_name(second.cell.method)} {second.mean('recall@20'):.4f}."
            f"{_tested(store, 'overall', 'beauty', backbone)}",
        )


def _tested(store: Store, experiment: str, dataset: str, group: str) -> str:
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


def _ablation_checks(store: Store) -> Iterator[Check]:
    found = _found(store, "ablation", "beauty")
    values = {name: row.mean("recall@20") or 0.0 for name, row in found.items()}
    enough = len(values) == 4
    yield Check(
        claim="Beauty, MF: Talos > each of its ablations in R@20",
        holds=None if not enough else max(values, key=lambda name: values[name]) == "talos",
        numbers=", ".join(f"{shown_name(name)} {value:.4f}" for name, value in values.items()),
    )


def _threshold_checks(store: Store) -> Iterator[Check]:
    for dataset in ("beauty", "movielens-100k"):
        found = _found(store, "quantile-error", dataset)
        for method, limit in (("regression", "below .03"), ("monte-carlo", "above .1")):
            value = found[method].mean("error") if method in found else None
            holds = None if value is None else (value < 0.03 if method == "regression" else value > 0.1)
            published = found[method].cell.published.get("error") if method in found else None
            yield Check(
                claim=f"{DATASETS[dataset]}: threshold error of {method} is {limit}",
                holds=holds,
                numbers="" if value is None else f"{value:.4f} (paper {published}).",
            )


def _shift_checks(store: Store) -> Iterator[Check]:
    for dataset in ("beauty", "movielens-100k"):
        found = _found(store, "temporal", dataset)
        if len(found) < 2 or "talos" not in found:
            continue
        best = max(found.values(), key=lambda row: row.mean("recall@20") or 0)
        second = max(
            (row for row in found.values() if row.cell.method != "talos"),
            key=lambda row: row.mean("recall@20") or 0,
        )
        yield Check(
            claim=f"{DATASETS[dataset]}, temporal shift: Talos has the best R@20 of {len(found)} losses",
            holds=best.cell.method == "talos",
            numbers=f"Talos {found['talos'].mean('recall@20'):.4f}, best rival "
            f"{shown_name(second.cell.method)} {second.mean('recall@20'):.4f}."
            f"{_tested(store, 'temporal', dataset, 'mf')}",
        )


def _inflation_checks(store: Store) -> Iterator[Check]:
    found = _found(store, "inflation", "beauty")
    ends = {name: row.runs[0].scores[-1] for name, row in found.items() if row.runs[0].scores}
    without, whole = ends.get("talos w/o denominator"), ends.get("talos")
    yield Check(
        claim="Beauty, MF: without the denominator all scores and the threshold rise together, with it they do not",
        holds=None if without is None or whole is None else without[1] > 0.2 > whole[1],
        numbers=""
        if without is None or whole is None
        else f"Mean score of all items after 30 epochs {whole[1]:.3f} with it, {without[1]:.3f} without; "
        f"mean threshold {whole[2]:.3f} and {without[2]:.3f}.",
    )


def _inconsistency_checks(store: Store) -> Iterator[Check]:
    for dataset in EXPERIMENTS["inconsistency"].needed:
        measured = store.measurement(f"inconsistency-{dataset}")
        if measured is None:
            continue
        shares = measured["used"]["shares"]
        ordered = shares["auc"] > shares["ndcg"] > max(shares["ndcg@20"], shares["llpauc"])
        distance = measured["used"]["distance"]
        numbers = ", ".join(f"{name} {100 * value:.1f} %" for name, value in shares.items())
        yield Check(
            claim=f"{DATASETS[dataset]}: AUC contradicts P@20 more often than NDCG, NDCG more than NDCG@20 and LLPAUC",
            holds=ordered,
            numbers=f"{numbers}; {100 * distance:.1f} points from Table 1 (root mean square)."
            if distance is not None
            else numbers,
        )


def _theory_checks(store: Store) -> Iterator[Check]:
    measured = store.measurement("theory-made-up")
    if measured is None:
        return
    inside = [point for point in measured["bound"] if point["inside"]]
    descent = measured["convergence"]
    yield Check(
        claim="Theorem 1: within its interval of τ the bound holds for every made-up user",
        holds=all(point["holds"] == 1 for point in inside),
        numbers=f"{len(inside)} temperatures; the gap is {min(p['gap'] for p in inside):.1f} on average at best.",
    )
    yield Check(
        claim="Theorem 3: the mean squared gradient stays below what the theorem allows",
        holds=all(a <= b for a, b in zip(descent["running_mean"], descent["allowed"], strict=True)),
        numbers=f"{descent['running_mean'][-1]:.2g} after {descent['steps'][-1]} steps, allowed "
        f"{descent['allowed'][-1]:.2g}.",
    )


# ---------------------------------------------------------------------- README


def readme(store: Store) -> str:
    """The page that says what was reproduced, what was not, and why."""
    lines = [
        "# Results",
        "",
        "The tables and figures of the paper, made again by `talos reproduce`. Every number below comes from the JSON",
        "files in `runs/`, `searches/` and `measurements/`, which keep a hash of themselves; `make results` writes all",
        "pages again from them, and refuses a file that was changed. This page is written by the same command.",
        "",
        "    talos reproduce --list                      what there is and what is missing",
        "    talos reproduce overall --dataset beauty --data DIR --budget 30m",
        "    make results",
        "",
        "Runs are `fast` unless a table says otherwise: losses whose negative part depends on the user alone",
        "(Talos, SL, BSL, LLPAUC, AATP, SL@K) see all items and exact thresholds; the others fewer negatives per",
        "positive. Where the printed rate or temperature does not suit that, a few candidates were tried and",
        "validation Precision@20 decided (`searches/`). What differs from the paper stands beside each number.",
        "`--fidelity paper` samples 1,024 negatives per positive as the paper does.",
        "",
        "## Does it hold?",
        "",
        *(check.line() for check in checks(store)),
        "",
        *_beyond(store),
        *_deviating(store),
        *_searched(store),
        *_overview(store),
        *_missing(store),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _beyond(store: Store) -> list[str]:
    from talos_paper.beyond import lines_of

    return lines_of(store)


def _searched(store: Store) -> list[str]:
    from talos_paper.searched import lines_of

    return lines_of(store)


def _compared(store: Store) -> Iterator[tuple[str, str, Row, str, float]]:
    """Every row that has a published number: experiment, data set, row, metric, relative difference."""
    for experiment in EXPERIMENTS.values():
        for dataset in experiment.datasets:
            for row in rows_of(experiment, dataset, store):
                metric = (
                    "recall@20" if "recall@20" in row.cell.published else next(iter(row.cell.published), "")
                )
                found = row.difference(metric) if metric and metric != "error" else None
                if found is not None and experiment.name in ("overall", "ablation", "temporal", "slatk"):
                    yield experiment.name, dataset, row, metric, found


def _deviating(store: Store) -> list[str]:
    above: list[tuple[Row, str, str]] = []
    below: list[tuple[Row, str, str]] = []
    close = total = 0
    for experiment, dataset, row, metric, found in _compared(store):
        total += 1
        close += abs(found) <= CLOSE
        if abs(found) <= CLOSE:
            continue
        place = (
            f"{experiment}, {DATASETS[dataset]}, {shown_name(row.cell.group)}, {shown_name(row.cell.method)}"
        )
        text = (
            f"- {place}: {shown_metric(metric)} {row.mean(metric):.4f}, published {row.cell.published[metric]:.4f} "
            f"({percent(found)})"
        )
        (above if found > 0 else below).append((row, experiment, text))
    lines = ["## Against the published numbers", ""]
    lines += [f"{total} rows have a published number; {close} of them are within 2 % of it.", ""]
    for title, entries in (("More than 2 % above", above), ("More than 2 % below", below)):
        if entries:
            lines += [f"### {title}", ""]
            for row, experiment, text in entries:
                reason = _remark(experiment, row)
                lines.append(f"{text}. {reason}" if reason else f"{text}.")
            lines.append("")
    return lines


def _remark(experiment: str, row: Row) -> str:
    """The likely reason, as far as one is known."""
    cell = row.cell
    for key in (
        (experiment, cell.dataset, cell.group, cell.method),
        (experiment, cell.dataset, cell.group, "*"),
        (experiment, cell.dataset, "*", cell.method),
        (experiment, cell.dataset, "*", "*"),
    ):
        if key in REMARKS:
            return REMARKS[key]
    return ""


def _overview(store: Store) -> list[str]:
    lines = ["## Pages", "", "| table | data set | runs | in the paper |", "|---|---|---|---|"]
    for line in status(Asked(), store):
        if line["done"]:
            name = line["table"]
            data = DATASETS.get(line["dataset"], line["dataset"])
            lines.append(
                f"| [{name}]({name}.md) ([html]({name}.html), [tex]({name}.tex)) | {data} "
                f"| {line['done']} of {line['runs']} | {line['paper']} |"
            )
    return [*lines, ""]


def _missing(store: Store) -> list[str]:
    lines = ["## Missing", ""]
    for line in status(Asked(), store):
        if line["done"] == line["runs"]:
            continue
        core = "needed" if line["core"] else "if the time allows"
        what = f"{line['runs'] - line['done']} of {line['runs']} runs"
        names = f": {', '.join(line['missing'])}" if line["missing"] and line["done"] else ""
        lines.append(
            f"- {line['table']}, {DATASETS.get(line['dataset'], line['dataset'])} ({core}): {what}{names}"
        )
    lines += [f"- {what}: {why}" for what, why in NOT_RUN.items()]
    lines += [
        "- Electronics, and Games with ratings below 3 dropped: the data could not be had.",
        "- Temporal shift on Gowalla: the copy at hand has no timestamps.",
        "",
    ]
    return lines
