"""Pages: self-contained, escaped, deterministic, accessible; the same numbers as elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from talos.config import RunConfig
from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos.model.recommender import Recommender
from talos.report import comparison_report, run_report
from talos.report.page import TextTable, environment, markdown, number
from talos.studies.compare import ComparisonTable, compare
from talos.training.callbacks import History, read_history

EVIL = "<script>alert('x')</script> & \"Co\" </title></svg>"
VOID = {"meta", "line", "rect", "circle", "path"}


class Checker(HTMLParser):
    """Collects tags and attributes, and whether all that opens is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def split() -> Split:
    data = synthetic(users=60, items=50, interactions=1200, seed=3)
    titles = pl.Series([EVIL if code % 2 else f"Item & {code}" for code in range(data.num_items)])
    return data.with_titles(titles).split()


@pytest.fixture(scope="module")
def fitted(
    split: Split, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recommender, list[dict[str, object]]]:
    run = tmp_path_factory.mktemp("run")
    model = Recommender(k=5, dim=8, epochs=6, evaluate_every=2)
    model.fit(split.train, split.valid, callbacks=[History(run / "history.jsonl")])
    return model, read_history(run / "history.jsonl")


@pytest.fixture(scope="module")
def page(split: Split, fitted: tuple[Recommender, list[dict[str, object]]]) -> str:
    return run_report(fitted[0], split.test, fitted[1], title=f"Run {EVIL}", date="2026-01-01")


@pytest.fixture(scope="module")
def table(split: Split) -> ComparisonTable:
    small = RunConfig.from_dict({"k": 5, "backbone": {"name": "mf", "dim": 4}, "training": {"epochs": 2}})
    return compare(split, {EVIL: small, "sl": small.with_values({"loss.name": "sl"})}, seeds=2)


def test_a_model_of_all_the_data_shows_the_figures_of_the_one_it_was_chosen_from(split: Split) -> None:
    model = Recommender(k=5, dim=8, epochs=2).fit(split.train, split.valid, known=split.test)
    metrics = model.evaluate(split.test, k=5).metrics
    model.fitted_model().metadata["metrics"] = metrics
    text = run_report(model.refit("all"), None, title=f"Run {EVIL}")
    checked(text)
    assert "At a glance: the model this one was chosen from" in text
    assert "No test metrics: this model was fitted on train, validation and test." in text
    assert f"<strong>{number(metrics['recall@5'])}</strong>" in text
    assert "interactions of validation" in text
    assert "in test" not in text


PLOTS = [
    "Training loss", "Validation metric", "Time profile", "Precision@K", "Recall@K", "NDCG@K",
    "Users by metric", "By user activity", "By item popularity", "Scores around the threshold",
    "Learned against exact thresholds", "Coverage", "Popularity bias", "Evenness of exposure",
]  # fmt: skip


def test_every_plot_is_there_with_title_label_axes_and_numbers(page: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", page, flags=re.S)
    assert [re.search(r"<h3>(.*?)</h3>", figure)[1] for figure in figures] == PLOTS  # type: ignore[index]
    for figure in figures:
        drawn = re.search(r'<svg viewBox="[^"]*" role="img" aria-label="([^"]{20,})"', figure)
        assert drawn, figure[:200]
        assert len(re.findall(r'<text class="name"[^>]*>[^<]+</text>', figure)) == 2  # both axes
        rows = re.search(r"<details><summary>Numbers</summary>.*?<tbody>(.*?)</tbody>", figure, flags=re.S)
        assert rows
        assert "<tr>" in rows[1]
        assert "nan" not in figure.lower().replace("finance", "")


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_pages_are_well_formed_escaped_and_need_no_network(
    kind: str, page: str, table: ComparisonTable
) -> None:
    text = page if kind == "run" else comparison_report(table, title=f"All {EVIL}")
    tags = checked(text).tags
    assert not {tag for tag, _ in tags} & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "link",
    }
    assert not [
        name for _, attrs in tags for name in attrs if name.startswith("on") or name in ("href", "src")
    ]
    assert "&lt;script&gt;" in text
    outside = re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text)
    assert "://" not in outside
    assert "url(" not in outside
    assert "@import" not in outside
    policy = next(attrs for _, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert ("html", {"lang": "en"}) in tags
    assert any(attrs.get("name") == "viewport" for _, attrs in tags)
    assert "prefers-color-scheme:dark" in text


def test_the_same_input_gives_the_same_page(
    page: str, split: Split, fitted: tuple[Recommender, list[dict[str, object]]], table: ComparisonTable
) -> None:
    assert run_report(fitted[0], split.test, fitted[1], title=f"Run {EVIL}", date="2026-01-01") == page
    undated = run_report(fitted[0], split.test, fitted[1], title=f"Run {EVIL}")
    assert undated == page.replace("Written 2026-01-01 by", "Written by")
    assert comparison_report(table) == comparison_report(table)


def test_headline_numbers_are_those_of_evaluate(
    page: str, split: Split, fitted: tuple[Recommender, list[dict[str, object]]]
) -> None:
    report = fitted[0].evaluate(split.test, k=[5, 50], popularity=split.train.item_degrees)
    tiles = dict(re.findall(r"<dt>(.*?)</dt><dd><strong>(.*?)</strong>", page))
    for name in ("Precision", "Recall", "NDCG", "MRR"):
        assert float(tiles[f"{name}@5"]) == pytest.approx(report.metrics[f"{name.lower()}@5"], abs=6e-5)
    figure = page[page.index("<h3>Coverage</h3>") :]
    row = re.search(r'<th scope="row">50</th><td class="n">(.*?)</td>', figure)
    assert row
    assert float(row[1]) == pytest.approx(report.metrics["coverage@50"], abs=6e-5)


def test_a_loss_without_thresholds_and_a_run_without_history(split: Split) -> None:
    model = Recommender(k=5, loss="sl", dim=8, epochs=1).fit(split.train)
    text = run_report(model, split.test)
    checked(text)
    assert "This model has no thresholds" in text
    assert "No history was kept" in text
    assert "Learned against exact" not in text


def test_a_table_aligns_numbers() -> None:
    table = TextTable(["model", "recall", "note"], [["a<b>", "0.1", "x" * 61], ["c", "–", EVIL]])
    text = (
        environment().from_string('{% from "macros.html" import table %}{{ table(one) }}').render(one=table)
    )
    checked(text)
    assert '<td class="n">0.1</td><td class="long">xxx' in text
    assert '<th scope="row">a&lt;b&gt;</th>' in text
    assert "<script>" not in text
    assert markdown(table).splitlines()[1:3] == [
        "| --- | ---: | --- |",
        f"| a&lt;b> | 0.1 | {'x' * 61} |",
    ]


def test_large_test_sets_are_sampled(
    split: Split, fitted: tuple[Recommender, list[dict[str, object]]]
) -> None:
    text = run_report(fitted[0], split.test, most_users=10)
    assert "On 10 users, a random sample of" in text


def test_unknown_users_are_counted(split: Split, fitted: tuple[Recommender, list[dict[str, object]]]) -> None:
    frame = split.test.to_polars()
    users = pl.concat([frame["user_id"], pl.Series([99_999])])
    test = Interactions.from_ids(users, pl.concat([frame["item_id"], pl.Series([0])]))
    assert "1 test interactions of unknown users" in run_report(fitted[0], test)


def test_a_model_that_was_not_fitted_is_an_error(split: Split) -> None:
    with pytest.raises(ArgumentError, match="not fitted"):
        run_report(Recommender(), split.test)


def test_tiny_data(random_data: Callable[..., Interactions]) -> None:
    data = random_data(users=3, items=4, density=0.9)
    parts = data.split(test=0.3, valid=0)
    model = Recommender(k=1, dim=2, epochs=1).fit(parts.train)
    checked(run_report(model, parts.test, [{"epoch": 1, "loss": 1.0, "seconds": 0.0, "metrics": {}}]))


def test_the_comparison_page_has_the_table(table: ComparisonTable) -> None:
    text = comparison_report(table)
    for row in table.rows:
        assert f"{row.means['recall@5']:.4f} ± {row.stds['recall@5']:.4f}" in text
    assert text.count('role="img"') == text.count("<figure>") == 4 + 1 + 1 + 3 + 2
    for label in re.findall(r'role="img" aria-label="([^"]*)"', text):
        assert len(label) > 20
    assert np.isfinite(table.rows[0].fit_seconds[0])
