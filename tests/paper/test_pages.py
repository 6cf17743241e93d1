"""Pages, tables and plots: from the results alone, with the published number beside ours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from talos.errors import DataError
from talos_paper.claims import claims
from talos_paper.experiments import EXPERIMENTS
from talos_paper.pages import write_pages
from talos_paper.recipes import Fidelity, Recipe
from talos_paper.results import ResultStore, StoredRun
from talos_paper.runs import Runner
from talos_paper.search import Searched
from talos_paper.tables import latex, rows_of, tables_of

_OWN = ResultStore(Path(__file__).parents[2] / "docs" / "results")


def _plausible(example: StoredRun, cell_recipe: Recipe, seed: int, recall: float) -> StoredRun:
    """A result as a run of that recipe would leave it, with a given recall."""
    metrics = {
        f"{name}@{k}": recall for name in ("precision", "recall", "ndcg", "mrr") for k in cell_recipe.ks
    }
    return replace(
        example,
        dataset=cell_recipe.dataset,
        scenario=cell_recipe.scenario,
        fidelity=cell_recipe.fidelity,
        seed=seed,
        settings=dict(cell_recipe.settings),
        deviations=list(cell_recipe.deviations()),
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
    store.run_path(short, 0).unlink()
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
    written = write_pages(filled)
    names = {path.name for path in written}
    for experiment in EXPERIMENTS.values():
        if experiment.make_rows is not None:
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
    assert {path: path.stat().st_mtime_ns for path in write_pages(filled)} == before


def test_published_ours_and_difference_stand_side_by_side(filled: ResultStore) -> None:
    rows = rows_of(EXPERIMENTS["overall"], "beauty", filled)
    table = tables_of(EXPERIMENTS["overall"], "beauty", rows)[0]
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
    table = tables_of(EXPERIMENTS["equal"], "beauty", rows)[0]
    shown = dict(zip(table.header, next(row for row in table.rows if row[0] == "PSL"), strict=True))
    assert shown["chosen on validation"] == "lr 0.1, weight decay 0, τ 0.1"
    assert shown["epochs"] == "300 (limit), 41, 42"
    assert any("over seeds" in note and "PSL" in note for note in table.notes)
    assert "chosen on validation" not in latex(table).partition(r"\bottomrule")[0]


def test_the_best_of_ours_is_bold(filled: ResultStore) -> None:
    rows = rows_of(EXPERIMENTS["ablation"], "beauty", filled)
    table = tables_of(EXPERIMENTS["ablation"], "beauty", rows)[0]
    assert {table.rows[place][0] for place, _ in table.bold} == {"Talos"}


def test_claims_hold_or_not_by_the_numbers(filled: ResultStore) -> None:
    found = {claim.text: claim.holds for claim in claims(filled)}
    assert found["Beauty, MF: R@20 of Talos is within 2 % of the published .1499, or above"] is True
    assert found["Beauty, MF: Talos > SL > LLPAUC > BPR in R@20"] is True
    assert any(holds is None for holds in found.values()), "MovieLens was not measured"


def test_claims_are_judged_on_every_data_set_with_results(filled: ResultStore) -> None:
    example = filled.run(next(iter(EXPERIMENTS["inflation"].rows("beauty"))).recipe, 0)
    assert example is not None
    claim = "Games, MF: Talos > each of its ablations in R@20"
    assert claim not in {one.text for one in claims(filled)}, "nothing was run on Games"
    for row in EXPERIMENTS["ablation"].rows("games"):
        resolved = _searched(filled, row.recipe)
        recall = 0.2 if row.method == "talos w/o quantile" else 0.1
        filled.save_run(resolved, _plausible(example, resolved, 0, recall))
    assert {one.text: one.holds for one in claims(filled)}[claim] is False


def test_the_readme_says_what_is_missing(filled: ResultStore) -> None:
    write_pages(filled)
    text = (filled.root / "README.md").read_text()
    assert re.search(r"equal, Gowalla \(optional\): (\d+) of \1 runs", text)
    assert "not measured yet" in text
    assert "published" in text


def test_nothing_is_written_from_a_changed_result(filled: ResultStore) -> None:
    path = next(iter(filled.files()))
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(DataError, match="differs from the digest"):
        write_pages(filled)
    assert not (filled.root / "README.md").exists()


def test_an_empty_store_makes_a_readme_alone(store: ResultStore) -> None:
    assert [path.name for path in write_pages(store)] == ["README.md"]


def test_the_projects_own_results_are_whole() -> None:
    assert _OWN.check() > 0


def test_the_projects_own_results_are_each_of_use() -> None:
    """A recipe that changes leaves the results of the old one behind: whole, and shown nowhere.

    A run belongs to a row, or to a setting that the search of a row tried; any other file is named in the README.
    """
    used = set()
    for experiment in EXPERIMENTS.values():
        for fidelity in get_args(Fidelity):
            for row in (row for name in experiment.datasets for row in experiment.rows(name, fidelity)):
                tried = (_OWN.search(row.recipe) or {"candidates": []})["candidates"]
                recipes = [row.recipe, *(row.recipe.with_settings(one) for one in tried)]
                used |= {_OWN.run_path(one, seed) for one in recipes for seed in range(row.seeds)}
                used.add(_OWN.search_path(row.recipe))
    readme = (_OWN.root / "README.md").read_text()
    stored = {path for path in _OWN.files() if _OWN.root / "measurements" not in path.parents}
    assert [path.name for path in stored - used if path.name not in readme] == []
