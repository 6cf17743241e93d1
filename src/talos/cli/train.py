"""`talos train`: from a PATH to a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talos.cli.options import (
    FormatOption,
    ItemColumn,
    KCore,
    MinRating,
    OnBadRow,
    PathArgument,
    QueryOption,
    RatingColumn,
    Raw,
    SplitBy,
    SplitSeed,
    TestShare,
    TimeColumn,
    TitleColumn,
    UserColumn,
    ValidShare,
)
from talos.cli.output import print_facts, print_json, print_table, say
from talos.cli.source import Columns, SplitOptions, load_share, load_split
from talos.cli.values import config_from
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.data.shards import SplitShare
    from talos.data.splits import Split
    from talos.evaluation.evaluate import Report

__all__ = ["train"]


def train(
    path: PathArgument,
    out: Annotated[Path | None, typer.Option("--out", help="The run directory to write.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A run.toml, as `talos init` writes it.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="List length to optimise for.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="Short name, such as talos or sl, or module:Class.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Short name, such as mf, or module:Class.")] = None,
    tau: Annotated[float | None, typer.Option(help="Temperature of the loss.")] = None,
    negatives: Annotated[str | None, typer.Option(help="all, shared:N, N per positive, or auto.")] = None,
    threshold: Annotated[
        str | None, typer.Option(help="Short name, such as exact, module:Class, none or auto.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="L2 penalty, coupled, on all parameters.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="At most this many.")] = None,
    init: Annotated[str | None, typer.Option(help="Where vectors start: als, svd, random, or auto.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Users or positives a step.")] = None,
    patience: Annotated[int | None, typer.Option(help="Epochs without a better validation metric.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random in training.")] = None,
    device: Annotated[str | None, typer.Option(help="Anything torch knows, such as cpu or cuda:0.")] = None,
    parallel: Annotated[
        str | None,
        typer.Option(help="What the processes of torchrun divide: users, items (and users), or auto."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the config, such as loss.tau=0.1."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be done, and stop.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    by: SplitBy = "user",
    test: TestShare = 0.2,
    valid: ValidShare = 0.1,
    split_seed: SplitSeed = 0,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    time_column: TimeColumn = None,
    rating_column: RatingColumn = None,
    title_column: TitleColumn = None,
    input_format: FormatOption = None,
    query: QueryOption = None,
    on_bad_row: OnBadRow = "raise",
    min_rating: MinRating = None,
    k_core: KCore = None,
    raw: Raw = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a recommender and write it to a run directory."""
    given = {
        "k": k,
        "loss.name": loss,
        "loss.tau": tau,
        "backbone.name": backbone,
        "backbone.dim": dim,
        "negatives": negatives,
        "threshold.name": threshold,
        "optimizer.lr": lr,
        "optimizer.weight_decay": weight_decay,
        "training.epochs": epochs,
        "training.init": init,
        "training.batch_size": batch_size,
        "training.patience": patience,
        "training.parallel": parallel,
        "seed": seed,
        "device": device,
    }
    resolved = config_from(config, given, set_ or [])
    if not explain:
        if _started_again():
            if out is not None and (out / "model.json").exists():
                return  # a process was lost after everything was done
            resume = True
        out = _check_out(out, resume)
    columns = Columns(
        user=user_column,
        item=item_column,
        timestamp=time_column,
        rating=rating_column,
        title=title_column,
        format=input_format,
        query=query,
        on_bad_row=on_bad_row,
    )
    options = SplitOptions(
        by=by, test=test, valid=valid, split_seed=split_seed, min_rating=min_rating, k_core=k_core, raw=raw
    )
    if explain:
        _explain(resolved, load_split(path, columns, options), json)
        return
    assert out is not None
    parts = _share(path, resolved) or load_split(path, columns, options)
    source = {"path": path, "columns": vars(columns), "split": vars(options)}
    _run(resolved, parts, out, source, resume=resume, tensorboard=tensorboard, json=json)


def _started_again() -> bool:
    """Whether torchrun lost a process and started all of them anew: they go on with the run that was begun."""
    import os

    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _check_out(out: Path | None, resume: bool) -> Path:
    if out is None:
        raise ConfigError("is missing", where="--out", expected="the run directory to write")
    if (out / "model.json").exists():
        raise ConfigError("is a finished run", where=f"--out {out}", expected="a new directory")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "add --resume to go on with it" if (out / "checkpoint").is_dir() else None
        raise ConfigError(
            "exists and is not empty", where=f"--out {out}", expected="a new directory", hint=hint
        )
    return out


def _share(path: str, config: RunConfig) -> SplitShare | None:
    """What this process needs of a folder of shards, if it is one of several that can go on with so little."""
    from talos import distributed, registry
    from talos.data import shards

    if not shards.is_shards(path) or config.training.parallel == "none":
        return None
    if not registry.resolve("backbone", config.backbone.name).divisible:
        return None
    return load_share(path, distributed.start(config.device))


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
    shown = [
        (name.replace("_", " "), f"{facts[name]:,}")
        for name in ("parameters", "steps_per_epoch", "memory_mb")
    ]
    print_facts([*shown, *(("chosen", note) for note in trainer.plan.notes)], title="what would be trained")
    typer.echo("\n" + trainer.config.to_toml())


def _run(
    config: RunConfig,
    parts: Split | SplitShare,
    out: Path,
    source: dict[str, Any],
    *,
    resume: bool,
    tensorboard: bool,
    json: bool,
) -> None:
    import time

    from talos import distributed, kernels
    from talos.data.shards import SplitShare
    from talos.evaluation.evaluate import popularity_report
    from talos.model.recommender import Recommender
    from talos.training import InterruptedRunError, PlanLines, TensorBoard, progress
    from talos.training.callbacks import Callback

    group = distributed.start(config.device)
    if group.size > 1 and config.training.parallel == "none":
        raise ConfigError(
            f"'none' in {group.size} processes", where="parallel", expected="'users', 'items' or 'auto'"
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
        raise InterruptedRunError(f"{stop}. Go on with the same command and --resume") from None
    seconds = time.perf_counter() - began
    divided = isinstance(parts, SplitShare)  # each process has its users' part of the model
    if not divided:
        distributed.stop()
        if group.rank != 0:  # the model is with rank 0
            return
    reports = {}
    ks = sorted({k for k in (5, 10, 20, 50, config.k) if k <= parts.train.num_items})
    if len(parts.test):
        assert recommender.model is not None
        seen = recommender.model.seen
        reports = {
            "trained": recommender.evaluate(parts.test, k=ks, popularity=parts.train.item_degrees),
            "popularity": popularity_report(parts.train, parts.test, seen=seen, ks=ks),
        }
    results = {name: report.as_dict() for name, report in reports.items()}
    recommender.save(
        out,
        metrics=results["trained"]["metrics"] if results else {},
        baseline={"popularity": results["popularity"]["metrics"]} if results else {},
        source=source,
        fit_seconds=round(seconds, 2),
    )
    if divided:
        distributed.stop()
        if group.rank != 0:  # rank 0 speaks for all
            return
    model = recommender.model
    assert model is not None
    if json:
        print_json({"run": str(out), "epoch": model.metadata["epoch"], "fit_seconds": round(seconds, 2),
                    "threshold_error": model.metadata["threshold_error"], **results.get("trained", {"metrics": {}}),
                    "baseline": {name: result["metrics"] for name, result in results.items() if name != "trained"},
                    "config": recommender.config.as_dict()})  # fmt: skip
        return
    if results:
        _print_comparison(reports["trained"], reports["popularity"])
    if model.metadata["threshold_error"] is not None:
        typer.echo(f"\nmean distance of thresholds from exact ones: {model.metadata['threshold_error']:.4f}")
    typer.echo(f"best epoch {model.metadata['epoch']}, {seconds:.1f} s; written to {out}")
    say(f"next: talos recommend {out} --user ID   or   talos evaluate {out}")


def _print_comparison(trained: Report, popular: Report) -> None:
    """Each metric of the model with that of ranking by popularity below it."""
    header, ours = trained.table()
    theirs = {row[0]: row[1:] for row in popular.table()[1]}
    rows = []
    for name, *values in ours:
        rows.append([name, "trained", *values])
        if name in theirs:
            rows.append(["", "popularity", *theirs[name]])
    print_table([header[0], "", *header[1:]], rows, title=f"test, {trained.num_users:,} users")
