"""`talos train`: from a PATH to a run directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import Json, Offer, PathArgument, TrainingOptions, with_options
from talos.cli.output import print_facts, print_json, print_table, say
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from talos.config import RunConfig
    from talos.data.shards import SplitShare
    from talos.data.splits import Split
    from talos.distributed import Group
    from talos.evaluation.evaluate import Report

__all__ = ["share_of", "train"]


@with_options
def train(
    path: PathArgument,
    out: Annotated[Path | None, typer.Option("--out", help="The run directory to write.")] = None,
    *,
    training: Annotated[TrainingOptions, Offer(but=("metric",))],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its last checkpoint.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what would be trained, and train nothing.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    items: Annotated[
        Path | None,
        typer.Option(
            "--items", help="Titles, categories and other attributes of the items: csv, parquet, jsonl."
        ),
    ] = None,
    item_columns: Annotated[
        str | None,
        typer.Option(
            "--item-columns",
            metavar="NAME,…",
            help="Which columns of --items, or of PATH itself, are attributes.",
        ),
    ] = None,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Train a recommender and write it to a run directory."""
    from talos.data.open import open_split

    config = training.run_config()
    if explain:
        _explain(config, open_split(path, source, notify=say), json)
        return
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        # torchrun lost a process and has restarted all of them
        if out is not None and (out / "model.json").exists():
            return  # the process was lost after the run was finished
        resume = True
    out = _check_out(out, resume)
    parts = _share(path, config) or open_split(path, source, notify=say)
    table = _read_items(path, items, item_columns, source, parts)
    _run(
        config,
        parts,
        out,
        source.as_dict(path),
        items=table,
        resume=resume,
        tensorboard=tensorboard,
        json=json,
    )


def _read_items(
    path: str, items: Path | None, columns: str | None, source: SourceOptions, parts: Split | SplitShare
) -> pl.DataFrame | None:
    """The table of items, checked against the interactions before anything is trained."""
    if items is None and columns is None:
        return None
    from talos.data.readers import read_items
    from talos.data.shards import SplitShare
    from talos.model.attributes import align_items

    chosen = None if columns is None else [name for name in columns.split(",") if name]
    if items is None and not Path(path).is_file():
        raise ConfigError("without --items", where="--item-columns", expected="a PATH that is a file")
    table = (
        read_items(path, item=source.item, columns=chosen, repeated=True)
        if items is None
        else read_items(items, columns=chosen)
    )
    train = parts.train.own if isinstance(parts, SplitShare) else parts.train
    _, _, unknown = align_items(table, train.item_ids, where=str(path if items is None else items))
    if unknown:
        say(f"items: {unknown:,} of {len(table):,} rows are about items without interactions and are ignored")
    return table


def _check_out(out: Path | None, resume: bool) -> Path:
    if out is None:
        raise ConfigError("is missing", where="--out", expected="the run directory to write")
    if (out / "model.json").exists():
        raise ConfigError("is a finished run", where=f"--out {out}", expected="a new directory")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "add --resume to continue it" if (out / "checkpoint").is_dir() else None
        raise ConfigError(
            "exists and is not empty", where=f"--out {out}", expected="a new directory", hint=hint
        )
    return out


def _share(path: str, config: RunConfig) -> SplitShare | None:
    """This process's part of a folder of shards, where training can do with the part; else None."""
    from talos import distributed, registry
    from talos.data import shards

    if not shards.is_shards(path) or config.training.parallel == "none":
        return None
    if not registry.resolve("backbone", config.backbone.name).divisible:
        return None
    return share_of(path, distributed.start(config.device))


def share_of(path: str, group: Group) -> SplitShare | None:
    """This process's part of a folder of shards; None if PATH is something else or there is one process.

    If one process cannot read its part, all of them stop.
    """
    from talos.data import shards
    from talos.data.open import open_share
    from talos.distributed import all_or_none

    if group.size == 1 or not shards.is_shards(path):
        return None
    return all_or_none(group, lambda: open_share(path, group.share), path)


def _explain(config: RunConfig, parts: Split, json: bool) -> None:
    from talos.training import Trainer

    trainer = Trainer(config, parts.train, parts.valid)
    parameters = sum(parameter.numel() for parameter in trainer.objective.parameters())
    facts = {
        "parameters": parameters,
        "steps_per_epoch": trainer.plan.steps_per_epoch,
        # values, gradients and Adam's two moments, and one copy of the best weights
        "memory_mb": round(5 * 4 * parameters / 2**20, 1),
        "notes": list(trainer.plan.notes),
        "config": trainer.config.as_dict(),
    }
    if json:
        print_json(facts)
        return
    shown = [(name.replace("_", " "), f"{facts[name]:,}") for name in list(facts)[:3]]
    print_facts([*shown, *(("chosen", note) for note in trainer.plan.notes)], title="what would be trained")
    typer.echo("\n" + trainer.config.to_toml())


def _run(
    config: RunConfig,
    parts: Split | SplitShare,
    out: Path,
    source: dict[str, Any],
    *,
    items: pl.DataFrame | None,
    resume: bool,
    tensorboard: bool,
    json: bool,
) -> None:
    from talos import distributed, kernels
    from talos.data.shards import SplitShare
    from talos.evaluation.evaluate import popularity_report
    from talos.model.recommender import Recommender
    from talos.training import InterruptedRunError, PlanLines, TensorBoard, progress
    from talos.training.callbacks import Callback

    group = distributed.start(config.device)
    if group.size > 1 and config.training.parallel == "none":
        raise ConfigError(
            f"'none' in {group.size} processes", where="--parallel", expected="'users', 'items' or 'auto'"
        )
    recommender = Recommender(config=config)
    watchers: list[Callback] = []
    if group.rank == 0:
        say(f"kernel: {kernels.status()}" if config.device == "cpu" else f"kernel: torch on {config.device}")
        watchers += [PlanLines(say), progress()]
        if tensorboard:
            watchers.append(TensorBoard(out / "tensorboard"))
    began = time.perf_counter()
    try:
        recommender.fit(parts.train, parts.valid, run=out, resume=resume, callbacks=watchers)
    except InterruptedRunError as stop:
        raise InterruptedRunError(f"{stop}. Continue with the same command and --resume") from None
    seconds = time.perf_counter() - began
    divided = isinstance(parts, SplitShare)  # then each process has the vectors of its own users
    if not divided:
        distributed.stop()
        if group.rank != 0:  # rank 0 has the whole model
            return
    model, trained, popular = recommender.fitted_model(), None, None
    result: dict[str, Any] = {"metrics": {}}
    baseline: dict[str, Any] = {}
    if len(parts.test):
        ks = sorted({k for k in (5, 10, 20, 50, config.k) if k <= parts.train.num_items})
        trained = recommender.evaluate(parts.test, k=ks, popularity=parts.train.item_degrees)
        popular = popularity_report(parts.train, parts.test, seen=model.seen, ks=ks)
        result, baseline = trained.as_dict(), {"popularity": popular.as_dict()["metrics"]}
    fit_seconds = round(seconds, 2)
    if items is not None:
        recommender.add_items(items)
    recommender.save(
        out, metrics=result["metrics"], baseline=baseline, source=source, fit_seconds=fit_seconds
    )
    if divided:
        distributed.stop()
        if group.rank != 0:  # rank 0 prints
            return
    if json:
        print_json({"run": str(out), "epoch": model.metadata["epoch"], "fit_seconds": fit_seconds,
                    "threshold_error": model.metadata["threshold_error"], **result,
                    "baseline": baseline, "config": recommender.config.as_dict()})  # fmt: skip
        return
    if trained is not None and popular is not None:
        _print_comparison(trained, popular)
    if model.metadata["threshold_error"] is not None:
        distance = f"{model.metadata['threshold_error']:.4f}"
        typer.echo(f"\nmean distance of the thresholds from the exact ones: {distance}")
    typer.echo(f"best epoch {model.metadata['epoch']}, {seconds:.1f} s; written to {out}")
    say(f"next: talos recommend {out} --user ID   or   talos evaluate {out}")


def _print_comparison(trained: Report, popular: Report) -> None:
    """Print each metric of the model, and below it the same metric for ranking by popularity."""
    header, ours = trained.table()
    theirs = {row[0]: row[1:] for row in popular.table()[1]}
    rows = []
    for name, *values in ours:
        rows.append([name, "trained", *values])
        if name in theirs:
            rows.append(["", "popularity", *theirs[name]])
    print_table([header[0], "", *header[1:]], rows, title=f"test, {trained.num_users:,} users")
