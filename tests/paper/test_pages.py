"""Pages, tables and plots: from the results alone, with the published number beside ours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from talos.errors import DataError
from talos_paper import published
from talos_paper.claims import Claim, claims
from talos_paper.pages import latex, searches_page, write_pages
from talos_paper.recipes import EXPERIMENTS, Fidelity, Recipe, Searched, recipe
from talos_paper.results import ResultStore, StoredRun, run_name
from talos_paper.runs import Runner
from talos_paper.tables import compared, rows_of, tables_of

_OWN = ResultStore(Path(__file__).parents[2] / "docs" / "results")


def _plausible(example: StoredRun, cell_recipe: Recipe, seed: int, recall: float) -> StoredRun:
    """A result as a run of that recipe would leave it, with a given recall."""
    metrics = {
        f"{name}@{k}": recall for name in ("precision", "recall", "ndcg", "mrr") for k in cell_recipe.ks
    }
    return replace(
        example,
        seed=seed,
        metrics=metrics,
        stderr=dict.fromkeys(metrics, 0.002),
        scores=[[0.1, 0.0, 0.3], [0.2, 0.0, 0.3]],
    )


def _searched(store: ResultStore, cell_recipe: Recipe) -> Recipe:
    """The recipe with what its search chose: the first setting, where nothing was searched yet."""
    if cell_recipe.searched and store.search(cell_recipe) is None:
        tried = [dict(one) for one in cell_recipe.search] or [
            {name: cell_recipe.settings[name] for name in cell_recipe.searched}
        ]
        store.save_search(cell_recipe, Searched(tried, [{"precision@20": 0.1}] * len(tried), 0))
    resolved = store.resolved(cell_recipe)
    assert resolved is not None
    return resolved


@pytest.fixture
def filled(store: ResultStore, runner: Runner, short: Recipe) -> ResultStore:
    """Every row of every table on Beauty, Talos the best."""
    example = runner.run(short, 0)
    store.path("runs").unlink()
    for experiment in EXPERIMENTS.values():
        for place, row in enumerate(experiment.rows("beauty")):
            resolved = _searched(store, row.recipe)
            for seed in range(row.seeds):
                recall = 0.1502 + 0.0002 * seed if row.method.startswith("talos") else 0.14 - 0.001 * place
                if store.run(resolved, seed) is None:
                    store.save_run(resolved, _plausible(example, resolved, seed, recall))
    return store


class _Checked(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_file_is_well_formed_and_written_again_as_it_was(filled: ResultStore) -> None:
    written = [*write_pages(filled), *write_pages(filled, "html"), *write_pages(filled, "latex")]
    names = {path.name for path in written}
    for experiment in EXPERIMENTS.values():
        if experiment.specs:
            assert {f"{experiment.name}.{ending}" for ending in ("md", "tex", "html")} <= names
    for path in written:
        text = path.read_text()
        if path.suffix == ".html":
            parser = _Checked()
            parser.feed(text)
            assert parser.open == []
            assert "<script" not in text
        elif path.suffix == ".svg":
            ElementTree.fromstring(text)
        elif path.suffix == ".tex":
            body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
            assert body.count("{") == body.count("}")
            assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") > 0
    before = {path: path.stat().st_mtime_ns for path in written}
    write_pages(filled)
    assert {path: path.stat().st_mtime_ns for path in written} == before


def test_markdown_is_all_that_is_written_without_a_form(filled: ResultStore) -> None:
    assert {path.suffix for path in write_pages(filled)} == {".md", ".svg"}


def test_published_ours_and_difference_stand_side_by_side(filled: ResultStore) -> None:
    rows = rows_of(EXPERIMENTS["overall"], "beauty", filled)
    table = tables_of("beauty", rows)[0]
    talos = next(row for row in table.rows if row[0] == "Talos")
    shown = dict(zip(table.header[4:7], talos[4:7], strict=True))
    assert shown["R@20 paper"] == "0.1499"
    assert shown["R@20 ours"] == "0.1506 ± 0.0039"  # mean of five seeds; 1.96 standard errors
    assert shown["diff."] == "+0.5 %"
    assert "negatives all (paper 1024)" in talos[-1]
    assert talos[-2] == "5"  # the row asks for three; the tuned row chose the same run with five


def test_on_equal_footing_choices_and_epochs_stand_beside_the_numbers(filled: ResultStore) -> None:
    rows = rows_of(EXPERIMENTS["equal"], "beauty", filled)
    psl = next(row for row in rows if row.spec.method == "psl" and row.spec.group == "mf")
    ends = [(300, "epochs"), (41, "patience"), (42, "patience")]
    runs = [
        replace(run, epochs=epochs, stopped=why) for run, (epochs, why) in zip(psl.runs, ends, strict=True)
    ]
    runs[0].metrics["recall@20"] += 0.0001
    rows[rows.index(psl)] = replace(psl, runs=runs)
    table = tables_of("beauty", rows)[0]
    shown = dict(zip(table.header, next(row for row in table.rows if row[0] == "PSL"), strict=True))
    assert shown["chosen on validation"] == "lr 0.1, weight decay 0, τ 0.1"
    assert shown["epochs"] == "300 (limit), 41, 42"
    assert any("over seeds" in note and "PSL" in note for note in table.notes)
    assert "chosen on validation" not in latex("Equal footing", [table]).partition(r"\bottomrule")[0]


def test_the_best_of_ours_is_bold(filled: ResultStore) -> None:
    rows = rows_of(EXPERIMENTS["ablation"], "beauty", filled)
    table = tables_of("beauty", rows)[0]
    assert {table.rows[place][0] for place, _ in table.bold} == {"Talos"}


def _found(store: ResultStore) -> dict[tuple[str, str, str, str], Claim]:
    return {(one.table, one.text, one.where, one.label): one for one in claims(store)}


def test_claims_are_judged_by_the_numbers(filled: ResultStore) -> None:
    found = _found(filled)
    best = "Talos is ahead of every other loss"
    # .15 against .14 with standard errors of .002: three of the difference's own
    assert found["overall", best, "Beauty, MF", "R@20"].verdict == "ahead"
    assert found["equal", "the same on equal footing", "Beauty, MF", "R@20"].verdict == "ahead"
    within = "R@20 of Talos on MF is within 2 % of the published .1499, or above"
    assert found["overall", within, "Beauty", ""].verdict == "yes"
    assert not any(claim.where.startswith("MovieLens") for claim in found.values()), "it was not measured"


def test_claims_are_judged_on_every_data_set_with_results(filled: ResultStore) -> None:
    example = filled.run(next(iter(EXPERIMENTS["inflation"].rows("beauty"))).recipe, 0)
    assert example is not None
    key = ("ablation", "Talos is ahead of itself without one of its parts", "Games, MF", "R@20")
    assert key not in _found(filled), "nothing was run on Games"
    for row in EXPERIMENTS["ablation"].rows("games"):
        resolved = _searched(filled, row.recipe)
        recall = 0.2 if row.method == "talos w/o quantile" else 0.1
        filled.save_run(resolved, _plausible(example, resolved, 0, recall))
    assert _found(filled)[key].verdict == "behind"


@pytest.mark.parametrize(
    ("differences", "p_values", "verdict"),
    [
        ((0.01, 0.02), (0.001, 0.02), "ahead"),
        ((0.01, 0.02), (0.03, 0.03), "level"),  # Holm: twice .03 is above .05
        ((0.01, -0.02), (0.001, 0.04), "behind"),
        ((-0.01, -0.02), (0.06, 0.2), "level"),
    ],
)
def test_a_verdict_follows_the_paired_tests(
    filled: ResultStore, differences: tuple[float, ...], p_values: tuple[float, ...], verdict: str
) -> None:
    rows = {row.spec.method: row for row in rows_of(EXPERIMENTS["ablation"], "beauty", filled)}
    names = ("talos w/o quantile", "talos w/o outside")
    rivals = {name: rows[name] for name in names}
    tests: dict[str, dict[str, Any]] = {}
    for name, difference, p in zip(names, differences, p_values, strict=True):
        test = {"difference": difference, "effect_size": 10 * difference, "p_values": {"t": p}}
        tests[f"{rows['talos'].recipe.key} {rows[name].recipe.key}"] = {"recall@20": test}
    found, numbers = compared(rows["talos"], rivals, "recall@20", tests)
    assert found == verdict
    # the best rival is the first; a standard deviation of .1 over the users makes the interval
    half = 1.96 * 0.1 / rows["talos"].runs[0].users ** 0.5
    assert numbers == f"{differences[0]:+.4f} ± {half:.4f} (Talos w/o quantile)"


def test_claims_name_tables_and_checks_that_exist() -> None:
    for facts in published.read_toml("claims")["claim"]:
        assert set(facts.get("datasets", [])) <= set(EXPERIMENTS[facts["table"]].datasets)
    for facts in published.read_toml("remarks")["remark"]:
        assert (
            facts.get("dataset", EXPERIMENTS[facts["table"]].datasets[0])
            in EXPERIMENTS[facts["table"]].datasets
        )


def test_the_readme_says_what_is_missing(filled: ResultStore) -> None:
    write_pages(filled)
    text = (filled.root / "README.md").read_text()
    assert re.search(r"equal, gowalla: (\d+) of \1 runs", text)
    (line,) = (
        line for line in text.splitlines() if line.startswith("| [Talos is ahead of every other loss]")
    )
    _, _, ahead, level, behind, _ = line.split("|")
    assert [cell.strip() for cell in (ahead, level, behind)] == [
        "Beauty, MF; Beauty, LightGCN; Beauty, XSimGCL",
        "",
        "",
    ]
    page = (filled.root / "claims.md").read_text()
    assert re.search(r"\(overall.md\) \| Beauty, MF \| P@20 \| \*\*ahead\*\* \| \+[\d.]+ ± [\d.]+", page)


def test_nothing_is_written_from_a_changed_result(filled: ResultStore) -> None:
    path = filled.path("runs")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(DataError, match="differs from the digest"):
        write_pages(filled)
    assert not list(filled.root.glob("*.md"))


def test_an_empty_store_makes_a_readme_alone(store: ResultStore) -> None:
    assert [path.name for path in write_pages(store)] == ["README.md"]


def test_the_projects_own_results_are_each_of_use() -> None:
    """A recipe that changes leaves the results of the old one behind: whole, and shown nowhere.

    A run belongs to a row, or to a setting that the search of a row tried; any other line is named on a page.
    """
    used = set()
    for experiment in EXPERIMENTS.values():
        for fidelity in get_args(Fidelity):
            for row in (row for name in experiment.datasets for row in experiment.rows(name, fidelity)):
                tried = (_OWN.search(row.recipe) or {"candidates": []})["candidates"]
                recipes = [row.recipe, *(row.recipe.with_settings(one) for one in tried)]
                used |= {run_name(one, seed) for one in recipes for seed in range(row.seeds)}
                used.add(f"{row.dataset}/{row.recipe.key}")
    pages = "".join(path.read_text() for path in _OWN.root.glob("*.md"))
    stored = {*_OWN.names("runs"), *_OWN.names("searches")}
    assert len(stored & used) > 300
    assert [name for name in stored - used if name.partition("/")[2] not in pages] == []


def test_the_projects_own_pages_are_those_of_its_results(tmp_path: Path) -> None:
    for kind in ("runs", "searches", "measurements"):
        (tmp_path / f"{kind}.jsonl").write_text((_OWN.root / f"{kind}.jsonl").read_text())
    for path in write_pages(ResultStore(tmp_path)):
        assert path.read_text() == (_OWN.root / path.relative_to(tmp_path)).read_text(), "run `make results`"


# ------------------------------------------------------------------------------------------------------- searches


def _entries(store: ResultStore) -> list[str]:
    return [line for line in (searches_page(store) or "").splitlines() if line.startswith("- ")]


def test_settings_that_lost_are_listed_beside_the_one_that_was_chosen(store: ResultStore) -> None:
    rsk = recipe("beauty", "mf", "rs@k")
    assert rsk.search == ({}, {"loss.tau1": 0.05, "loss.tau2": 5.0})
    trials = [{"precision@20": 0.00123}, {"precision@20": 0.00456}]
    store.save_search(rsk, Searched([dict(one) for one in rsk.search], trials, 1))
    assert _entries(store) == [
        "- overall, Beauty, MF, RS@K: 2 settings: τ1 0.01, τ2 1 (1.23); **τ1 0.05, τ2 5 (4.56)**."
    ]


def test_the_same_search_on_two_data_sets_is_two(store: ResultStore) -> None:
    for dataset in ("beauty", "movielens-100k"):
        rows = EXPERIMENTS["slatk"].rows(dataset)
        row = next(row for row in rows if (row.group, row.method) == ("8 negatives", "sl@k"))
        tried = [dict(one) for one in row.recipe.search]
        store.save_search(row.recipe, Searched(tried, [{"precision@20": 0.1} for _ in tried], 1))
    assert len([line for line in _entries(store) if line.startswith("- slatk")]) == 2
