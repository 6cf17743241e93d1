"""The model card: the same figures as the page, front matter that YAML and the Hub read, nothing that breaks out."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest
import yaml

from talos.data.datasets import synthetic
from talos.data.splits import Split
from talos.errors import ArgumentError
from talos.evaluation.significance import mean_interval
from talos.model.recommender import Recommender
from talos.report import is_card, model_card, run_report

EVIL = 'a|b <script>x</script> [y](z) ---\n"q": {`'


@pytest.fixture(scope="module")
def split() -> Split:
    return synthetic(users=80, items=60, interactions=1600, seed=3).split()


@pytest.fixture(scope="module")
def fitted(split: Split) -> Recommender:
    return Recommender(k=5, dim=8, epochs=4, effort="quick").fit(split.train, split.valid)


def front_matter(card: str) -> dict[str, object]:
    begin, fields, _ = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)
    assert begin == ""
    return dict(yaml.safe_load(fields))


def sections(card: str) -> dict[str, list[list[str]]]:
    """Title of each section → the cells of its tables."""
    found: dict[str, list[list[str]]] = {}
    for part in card.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
        found[title] = [row for row in rows if not set("".join(row)) <= {"-", ":"}]
    return found


def test_the_figures_are_those_of_evaluate_and_of_the_page(split: Split, fitted: Recommender) -> None:
    card = model_card(fitted, split.test, title="Ours", license="cc-by-4.0")
    report = fitted.evaluate(split.test, k=(5, 10, 20, 50))
    rows = {name: (model, popular) for name, model, popular in sections(card)["Metrics"][1:]}
    for metric in ("precision", "recall", "ndcg", "mrr"):
        for k in (5, 10, 20, 50):
            written = {"ndcg": "NDCG", "mrr": "MRR"}.get(metric, metric.title())
            mean, low, high = map(float, re.findall(r"[\d.]+", rows[f"{written}@{k}"][0]))
            values = report.per_user[f"{metric}@{k}"]
            assert mean == pytest.approx(values.mean(), abs=6e-5)
            assert (low, high) == pytest.approx(mean_interval(values), abs=6e-5)
    page = run_report(fitted, split.test)
    assert f"<strong>{float(report.metrics['recall@5']):.4f}".rstrip("0") in page
    users, items = (
        [row for row in sections(card)["Accuracy by group"] if len(row) == width] for width in (4, 5)
    )
    assert sum(int(row[1]) for row in users[1:]) == report.num_users
    assert sum(int(row[2]) for row in items[1:]) == len(split.test)
    assert ["k", "5"] in sections(card)["Settings"]
    assert ["users", "80"] in sections(card)["Data"]
    assert card == model_card(fitted, split.test, title="Ours", license="cc-by-4.0")


def test_the_front_matter_is_what_the_hub_reads(split: Split, fitted: Recommender) -> None:
    card = model_card(fitted, split.test, title=EVIL, license="cc-by-4.0")
    fields = front_matter(card)
    assert (fields["library_name"], fields["license"]) == ("talos", "cc-by-4.0")
    (index,) = fields["model-index"]  # type: ignore[misc]
    assert index["name"] == EVIL
    (result,) = index["results"]
    found = {one["type"]: one["value"] for one in result["metrics"]}
    assert found["recall@5"] == pytest.approx(fitted.evaluate(split.test, k=5).metrics["recall@5"], abs=1e-6)
    assert "license" not in front_matter(model_card(fitted, split.test))
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    read = hub.ModelCard(card).data  # no network: it parses
    assert read.eval_results[0].metric_value == result["metrics"][0]["value"]


def test_names_of_strangers_stay_text(split: Split) -> None:
    data = split.train
    users = pl.Series([f"{EVIL}{code}" for code in range(data.num_users)])
    model = Recommender(k=5, dim=4, epochs=1, effort="quick").fit(data)
    assert users[0] not in model_card(model, split.test, title=EVIL)
    text = model_card(model, split.test, title=EVIL)
    assert text.count("\n# ") == 1
    assert "<script>" not in text.split("\n---\n", 1)[1]
    assert [len(row) for row in sections(text)["Settings"]] == [2] * len(sections(text)["Settings"])


def test_a_model_of_all_the_data_says_so(split: Split) -> None:
    model = Recommender(k=5, dim=4, epochs=2, effort="quick")
    model.fit(split.train, split.valid, known=split.test).refit("all")
    card = model_card(model, None, title="Live")
    assert "No test metrics: this model was fitted on train, validation and test" in card
    assert "model-index" not in front_matter(card)
    assert "Accuracy by group" not in card


def test_who_is_no_card() -> None:
    with pytest.raises(ArgumentError, match="not fitted"):
        model_card(Recommender(), None)
    assert not is_card("---\nlibrary_name: talos\n---\nwritten by hand")
    assert mean_interval([0.5]) == (-np.inf, np.inf)
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)
