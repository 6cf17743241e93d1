"""Comparisons: the table, the stored fits, continuing after an interruption, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from talos.config import RunConfig
from talos.data.datasets import synthetic
from talos.data.splits import Split
from talos.errors import ArgumentError, ConfigError, DataError
from talos.evaluation.evaluate import Report
from talos.evaluation.significance import holm
from talos.studies import compare as comparison
from talos.studies.compare import ComparisonTable, RunResult, compare
from talos.studies.compare.table import build_table
from talos.training import InterruptedRunError

SMALL = RunConfig.from_dict(
    {"k": 5, "backbone": {"name": "mf", "dim": 4}, "training": {"epochs": 3, "evaluate_every": 1}}
)
MODELS = {"talos": SMALL, "sl": SMALL.with_values({"loss.name": "sl", "loss.tau": 0.2})}


@pytest.fixture(scope="module")
def split() -> Split:
    return synthetic(users=50, items=40, interactions=700, seed=1).split()


@pytest.fixture(scope="module")
def finished(split: Split, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ComparisonTable]:
    out = tmp_path_factory.mktemp("compare") / "out"
    return out, compare(split, MODELS, seeds=2, out=out, metrics=["recall@5", "ndcg@10"])


def result(model: str, seed: int, values: list[float]) -> RunResult:
    per_user = np.asarray(values, np.float64)
    return RunResult(
        model=model,
        seed=seed,
        config={"loss": {"name": model}, "backbone": {"name": "mf"}},
        report=Report(
            metrics={"recall@5": float(per_user.mean())},
            per_user={"recall@5": per_user},
            user_ids=pl.Series(range(len(values))),
            dialect="standard",
        ),
        history=[],
        fit_seconds=1.0 + seed,
        epoch=1,
        stopped="epochs",
    )


def test_the_table_is_what_a_loop_over_the_results_gives() -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.random((3, 30)) * scale for name, scale in (("a", 1.0), ("b", 0.9), ("c", 0.2))}
    results = {name: [result(name, s, list(v)) for s, v in enumerate(rows)] for name, rows in values.items()}
    table = build_table(results, ["recall@5"], "greater")
    from scipy import stats

    raw_users, raw_seeds = [], []
    for row, (name, rows) in zip(table.rows, values.items(), strict=True):
        means = rows.mean(1)
        assert row.means["recall@5"] == pytest.approx(means.mean())
        assert row.stds["recall@5"] == pytest.approx(means.std(ddof=1))
        if name != "a":
            users = values["a"].mean(0) - rows.mean(0)
            raw_users.append(stats.ttest_1samp(users, 0, alternative="greater").pvalue)
            raw_seeds.append(stats.ttest_rel(values["a"].mean(1), means, alternative="greater").pvalue)
    assert [row.against["recall@5"].p_users for row in table.rows[1:]] == pytest.approx(holm(raw_users))
    assert [row.against["recall@5"].p_seeds for row in table.rows[1:]] == pytest.approx(holm(raw_seeds))
    assert table.hypothesis == "a is higher than the other model"
    assert table.rows[1].against["recall@5"].users.hypothesis == "a is higher than b"
    assert "*" in table.marks(table.rows[2], "recall@5")


def test_one_seed_has_neither_a_deviation_nor_a_test_over_seeds() -> None:
    table = build_table({name: [result(name, 0, [0.1, 0.5, x])] for name, x in (("a", 0.1), ("b", 0.2))},
                        ["recall@5"], "two-sided")  # fmt: skip
    assert table.rows[1].against["recall@5"].p_seeds is None
    assert "±" not in str(table)
    assert csv_rows(table)[1]["p_seeds"] == ""
    json.dumps(table.as_dict())


def csv_rows(table: ComparisonTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def test_csv_and_latex(finished: tuple[Path, ComparisonTable]) -> None:
    out, table = finished
    rows = csv_rows(table)
    assert [(row["model"], row["metric"]) for row in rows] == [
        ("talos", "recall@5"), ("talos", "ndcg@10"), ("sl", "recall@5"), ("sl", "ndcg@10"),
    ]  # fmt: skip
    assert float(rows[0]["mean"]) == table.rows[0].means["recall@5"]
    assert rows[2]["hypothesis"] == "talos and sl differ"
    assert (out / "compare.csv").read_text() == table.to_csv()
    latex = (out / "compare.tex").read_text()
    assert latex.count(r"\\") == 3
    assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert latex.count(r"\textbf") >= 2


def test_names_cannot_break_latex_or_csv() -> None:
    names = ("a & b_1", '100% {x}, "y"\n')
    table = build_table({n: [result(n, 0, [0.1, 0.2])] for n in names}, ["recall@5"], "two-sided")
    assert r"a \& b\_1 &" in table.to_latex()
    assert [row["model"] for row in csv_rows(table)] == list(names)


def test_finished_fits_are_not_repeated(
    split: Split, finished: tuple[Path, ComparisonTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = finished
    said: list[str] = []
    (out / "runs" / "01-sl-seed1.json").unlink()  # as if it had been killed in this fit
    again = compare(split, MODELS, seeds=2, out=out, metrics=["recall@5", "ndcg@10"], notify=said.append)
    assert sum("finished before" in line for line in said) == 3
    assert [row.means for row in again.rows] == [row.means for row in table.rows]
    said.clear()
    more = compare(split, MODELS, seeds=3, out=out, metrics=["recall@5", "ndcg@10"], notify=said.append)
    assert sum("finished before" in line for line in said) == 4
    assert more.rows[0].seeds == (0, 1, 2)
    monkeypatch.setattr("talos.studies.compare.run._fit", None)  # nothing is left to fit
    assert (
        comparison.load(out).rows
        == compare(split, MODELS, seeds=3, out=out, metrics=["recall@5", "ndcg@10"]).rows
    )


def test_no_pickle_and_no_temporary_files(finished: tuple[Path, ComparisonTable]) -> None:
    out, _ = finished
    assert {path.suffix for path in out.rglob("*") if path.is_file()} <= {".json", ".parquet", ".csv", ".tex"}
    stored = json.loads((out / "runs" / "00-talos-seed0.json").read_text())
    assert stored["metrics"]["recall@5"] == pytest.approx(
        pl.read_parquet(out / "runs" / "00-talos-seed0.parquet")["recall@5"].mean()
    )


def test_other_settings_or_data_are_refused(split: Split, finished: tuple[Path, ComparisonTable]) -> None:
    out, _ = finished
    before = (out / "compare.json").read_bytes()
    changed = {**MODELS, "sl": SMALL.with_values({"loss.name": "sl", "loss.tau": 0.3})}
    with pytest.raises(ConfigError, match=r"models\.sl\.loss\.tau: 0\.2 there, 0\.3 now"):
        compare(split, changed, seeds=2, out=out, metrics=["recall@5", "ndcg@10"])
    other = synthetic(users=50, items=40, interactions=700, seed=2).split()
    with pytest.raises(ConfigError, match=r"other settings \(data\.train"):
        compare(other, MODELS, seeds=2, out=out, metrics=["recall@5", "ndcg@10"])
    with pytest.raises(ConfigError, match=r"budget: nothing there, 5\.0 now"):
        compare(split, MODELS, seeds=2, out=out, metrics=["recall@5", "ndcg@10"], budget=5.0)
    assert (out / "compare.json").read_bytes() == before


@pytest.mark.parametrize("damage", ["truncate", "edit", "per-user", "missing"])
def test_damaged_results_are_refused_by_name(split: Split, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    models = {"sl": MODELS["sl"]}
    compare(split, models, seeds=1, out=out, metrics=["recall@5"])
    stored, beside = out / "runs" / "00-sl-seed0.json", out / "runs" / "00-sl-seed0.parquet"
    if damage == "truncate":
        stored.write_text(stored.read_text()[:-40])
    elif damage == "edit":
        stored.write_text(stored.read_text().replace('"epoch": 1', '"epoch": 2', 1))
    elif damage == "per-user":
        beside.write_bytes(beside.read_bytes()[:-3] + b"???")
    else:
        beside.unlink()
    name = stored.name if damage in ("truncate", "edit") else beside.name
    with pytest.raises(DataError, match=name):
        compare(split, models, seeds=1, out=out, metrics=["recall@5"])
    with pytest.raises(DataError, match=name):
        comparison.load(out)


def test_bad_arguments_leave_nothing_behind(split: Split, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bad = SMALL.with_values({"loss.name": "sl", "loss.tua": 0.2})
    for call, message in (
        (lambda: compare(split, {}, out=out), "models"),
        (lambda: compare(split, MODELS, seeds=0, out=out), "seeds"),
        (lambda: compare(split, MODELS, seeds=[1, 1], out=out), "distinct"),
        (lambda: compare(split, MODELS, budget=0, out=out), "budget"),
        (lambda: compare(split, MODELS, metrics=["recal@5"], out=out), "did you mean 'recall'"),
        (lambda: compare(split, MODELS, metrics=["recall@99"], out=out), "1 to 40"),
        (lambda: compare(split, MODELS, metrics=["recall"], out=out), "list length"),
        (lambda: compare(split, {"x": bad}, out=out), "model x: tua.*did you mean 'tau'"),
    ):
        with pytest.raises((ArgumentError, ConfigError), match=message):
            call()
    assert not out.exists()
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        compare(split, MODELS, seeds=1, out=out)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_a_budget_ends_a_fit_with_its_epoch(split: Split) -> None:
    endless = SMALL.with_values({"training.epochs": 100_000, "training.patience": 100_000})
    table = compare(split, {"talos": endless}, seeds=1, budget=0.2)
    (run,) = table.results["talos"]
    assert run.stopped == "budget"
    assert run.fit_seconds >= 0.2
    assert 1 <= run.history[-1]["epoch"] < 100_000


def test_an_interrupt_keeps_what_is_finished(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(line: str) -> None:
        monkeypatch.setattr("talos.studies.compare.run._fit", interrupted)

    def interrupted(*arguments: object) -> RunResult:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match=r"stopped in sl, seed 0; finished fits are kept"):
        compare(split, MODELS, seeds=1, out=tmp_path / "out", notify=stop)
    assert [path.name for path in (tmp_path / "out" / "runs").glob("*.json")] == ["00-talos-seed0.json"]
    with pytest.raises(DataError, match="01-sl-seed0 is not finished"):
        comparison.load(tmp_path / "out")


def test_lists_and_coverage_may_be_asked_for(split: Split) -> None:
    table = compare(split, {"sl": MODELS["sl"]}, seeds=1, metrics=["coverage@10", "precision@5"])
    assert 0 < table.rows[0].means["coverage@10"] <= 1
    with pytest.raises(ConfigError, match="coverage@10, the longest"):
        compare(split, MODELS, seeds=1, metrics=["coverage@5", "precision@10"])
