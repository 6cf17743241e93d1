"""`talos demo`: MovieLens-100K end to end."""

from __future__ import annotations

import shutil
import sys
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

# Settings of each baseline and of BPR, chosen on the validation part, where the softmax loss and Talos race their
# temperatures; all others are defaults. Not with equal effort: 37 points were tried for ALS, 24 for RP3beta, 15 for
# ItemKNN, 6 for EASE, and five temperatures in a race.
BASELINES: dict[str, dict[str, Any]] = {
    "popularity": {},
    "itemknn": {"neighbours": 200, "shrinkage": 0.0},
    "rp3beta": {"alpha": 1.0, "beta": 0.5, "neighbours": 50},
    "ease": {"regularization": 500.0},
    "als": {"dim": 64, "regularization": 30.0, "weight": 3.0},
}
MODELS: dict[str, dict[str, Any]] = {
    "bpr": {"loss": "bpr", "negatives": "1", "lr": 0.01, "weight_decay": 1e-4, "epochs": 60},
    "sl": {"loss": "sl", "epochs": 60},
    "talos": {"loss": "talos", "epochs": 60},
}
METRICS = ("precision@20", "recall@20", "ndcg@20", "mrr@20", "coverage@20")
JUDGED = "recall@20"  # what Talos and the others are compared by, user by user


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model and its report.")] = Path(
        "runs/demo"
    ),
    json: Json = False,
) -> None:
    """Train three losses and five baselines on MovieLens-100K, print metrics and lists, write an HTML report."""
    from talos.data.options import SourceOptions
    from talos.model.recommender import Recommender
    from talos.model.recorded import record_of
    from talos.report import run_report, write_page
    from talos.training import Records, progress

    data = _data(seed)
    parts = data.split(seed=seed)
    popularity = parts.train.item_degrees
    reports: dict[str, Report] = {}
    seconds: dict[str, float] = {}
    baselines = {name: {"baseline": name, **settings} for name, settings in BASELINES.items()}
    for name, settings in (baselines | MODELS).items():
        say(f"training {name} …" if name in MODELS else f"computing {name} …")
        began = time.perf_counter()
        records = Records()
        model = Recommender(k=20, seed=seed, **settings)
        model.fit(parts.train, parts.valid, known=parts.test, callbacks=[records, progress()])
        seconds[name] = time.perf_counter() - began
        reports[name] = model.evaluate(parts.test, k=20, popularity=popularity)
    record = record_of(data.provenance.source, SourceOptions.of(split_seed=seed), parts)
    model.save(out, metrics=reports[name].metrics, source=record)
    text = run_report(model, parts.test, records.lines, title="Talos on MovieLens-100K")
    page = write_page(text, out / "report.html")
    behind = {name: _difference(reports["talos"], report) for name, report in reports.items()}
    if json:
        models = {
            name: {**one.as_dict(), "fit_seconds": seconds[name], "talos_minus_this": behind[name]}
            for name, one in reports.items()
        }
        print_json({"data": data.describe(), "models": models, "run": str(out), "report": str(page)})
        return
    print_facts(data.describe().rows(), title=data.provenance.source)
    rows = [
        [
            name,
            *(f"{report.metrics[metric]:.4f}" for metric in METRICS),
            "" if name == "talos" else "{mean:+.4f} ± {margin:.4f}".format(**behind[name][JUDGED]),
            f"{seconds[name]:.1f}",
        ]
        for name, report in reports.items()
    ]
    typer.echo("")
    header = ["ranked by", *METRICS, "talos ahead by", "seconds"]
    print_table(header, rows, title=f"test, {reports['talos'].num_users:,} users")
    # other users like these could turn such a difference round
    within = {name: abs(one[JUDGED]["mean"]) <= one[JUDGED]["margin"] for name, one in behind.items()}
    level = [name for name in behind if name != "talos" and within[name]]
    typer.echo(
        f"ahead in {JUDGED}, ± the 95 % interval over users; level with talos: {', '.join(level) or 'none'}"
    )
    _print_lists(model, parts.train)
    typer.echo(f"\nthe model is in {out}, plots and more in {page}")
    typer.echo(f"to look at it in a browser, or to ask it over HTTP: {_command()} serve {out}")


def _difference(talos: Report, other: Report) -> dict[str, dict[str, float]]:
    """How far Talos is ahead in each metric that users have: the mean over users, and its 95 % margin."""
    from talos.evaluation.significance import mean_interval

    found: dict[str, dict[str, float]] = {}
    for metric in sorted(set(METRICS) & set(talos.per_user)):
        low, high = mean_interval(talos.per_user[metric] - other.per_user[metric])
        found[metric] = {"mean": (low + high) / 2, "margin": (high - low) / 2}
    return found


def _command() -> str:
    """How this program is called: `talos` if that is found, else as it was called now, such as `.venv/bin/talos`."""
    called = Path(sys.argv[0])
    found = shutil.which("talos")
    if called.name != "talos" or (found is not None and Path(found).resolve() == called.resolve()):
        return "talos"
    return str(called)


def _data(seed: int) -> Interactions:
    from talos.data import datasets
    from talos.data.open import open_interactions

    try:
        return open_interactions("movielens-100k", notify=say)
    except DownloadError as error:
        say(f"{error}\nMovieLens-100K cannot be fetched here: using a synthetic set of the same size instead")
        return datasets.synthetic(users=943, items=1682, interactions=100_000, seed=seed)


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
