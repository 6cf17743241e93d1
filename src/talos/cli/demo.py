"""`talos demo`: MovieLens-100K end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import Json
from talos.cli.output import print_facts, print_json, print_table, say
from talos.errors import DownloadError

if TYPE_CHECKING:
    from talos.data.interactions import Interactions
    from talos.evaluation.evaluate import Report
    from talos.model.recommender import Recommender

__all__ = ["demo"]

# Loss and settings of each model; all others are defaults.
MODELS: dict[str, dict[str, Any]] = {
    "bpr": {"loss": "bpr", "lr": 0.01, "weight_decay": 1e-4, "epochs": 60},
    "sl": {"loss": "sl", "tau": 0.2, "epochs": 60},
    "talos": {"loss": "talos", "tau": 0.1, "epochs": 60},
}
# Chosen on the validation part, as were the temperatures above.
ALS: dict[str, Any] = {"dim": 16, "regularization": 10.0, "weight": 1.0, "sweeps": 10}
METRICS = ("precision@20", "recall@20", "ndcg@20", "mrr@20", "coverage@20")


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder for the model and its report.")] = Path(
        "runs/demo"
    ),
    json: Json = False,
) -> None:
    """Train three losses and two baselines on MovieLens-100K, print metrics and lists, write an HTML report."""
    from talos.cli.report import write_page
    from talos.evaluation.evaluate import popularity_report
    from talos.model.recommender import Recommender
    from talos.report import run_report
    from talos.training import Records, progress

    data = _data(seed)
    parts = data.split(seed=seed)
    seen = parts.train if parts.valid is None else parts.train.union(parts.valid)
    popularity = parts.train.item_degrees
    reports: dict[str, Report] = {
        "popularity": popularity_report(parts.train, parts.test, seen=seen, ks=[20], popularity=popularity)
    }
    began = time.perf_counter()
    reports["als"] = _als_report(parts.train, parts.test, seen, seed)
    seconds = {"popularity": 0.0, "als": time.perf_counter() - began}
    for name, settings in MODELS.items():
        say(f"training {name} …")
        began = time.perf_counter()
        records = Records()
        model = Recommender(k=20, seed=seed, **settings)
        model.fit(parts.train, parts.valid, known=parts.test, callbacks=[records, progress()])
        seconds[name] = time.perf_counter() - began
        reports[name] = model.evaluate(parts.test, k=20, popularity=popularity)
    model.save(out, metrics=reports[name].metrics)
    text = run_report(model, parts.test, records.lines, title="Talos on MovieLens-100K")
    page = write_page(text, out / "report.html")
    if json:
        models = {name: {**one.as_dict(), "fit_seconds": seconds[name]} for name, one in reports.items()}
        facts = data.describe().as_dict()
        print_json({"data": facts, "models": models, "run": str(out), "report": str(page)})
        return
    print_facts(data.describe().rows(), title=data.provenance.source)
    rows = [
        [name, *(f"{report.metrics[metric]:.4f}" for metric in METRICS), f"{seconds[name]:.1f}"]
        for name, report in reports.items()
    ]
    typer.echo("")
    print_table(["ranked by", *METRICS, "seconds"], rows, title=f"test, {reports['talos'].num_users:,} users")
    _print_lists(model, parts.train)
    typer.echo(f"\nthe model is in {out}, plots and more in {page}")
    say(f"next: talos serve {out}")


def _data(seed: int) -> Interactions:
    from talos.data import datasets
    from talos.data.open import open_interactions

    try:
        return open_interactions("movielens-100k", notify=say)
    except DownloadError as error:
        say(f"{error}\nMovieLens-100K cannot be fetched here: using a synthetic set of the same size instead")
        return datasets.synthetic(users=943, items=1682, interactions=100_000, seed=seed)


def _als_report(train: Interactions, test: Interactions, seen: Interactions, seed: int) -> Report:
    """Metrics of alternating least squares, the baseline that most libraries start with."""
    import torch

    from talos.evaluation.evaluate import evaluate
    from talos.evaluation.ranking import DotScores
    from talos.kernels import alternating_least_squares

    users, items = alternating_least_squares(
        torch.tensor(train.indptr),
        torch.tensor(train.indices, dtype=torch.int64),
        train.num_items,
        generator=torch.Generator().manual_seed(seed),
        **ALS,
    )
    return evaluate(DotScores(users, items), test, seen=seen, ks=[20], popularity=train.item_degrees)


def _print_lists(model: Recommender, train: Interactions) -> None:
    """Print what three users interacted with and what the model recommends them."""
    titles = train.item_titles if train.item_titles is not None else train.item_ids.ids.cast(str)
    named = dict(zip(train.item_ids.ids.to_list(), titles.to_list(), strict=True))
    users = train.user_ids.ids[:3]
    lists = model.recommend(users, k=10)
    for user in users:
        has = [named[item] for item in train.items_of(user).to_list()[:5]]
        best = [named[item] for item in lists.filter(lists["user_id"] == user)["item_id"].to_list()]
        typer.echo(f"\nuser {user} has, among others: {'; '.join(map(str, has))}")
        typer.echo("\n".join(f"  {rank:>2}. {title}" for rank, title in enumerate(best, start=1)))
