"""`talos train`: from a PATH to a run directory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from talos.cli.options import Json, TrainingOptions, missing, with_options
from talos.cli.output import print_facts, print_json, print_table, say
from talos.data.options import SourceOptions
from talos.errors import ConfigError
from talos.progress import reading

if TYPE_CHECKING:
    import polars as pl

    from talos.config import RunConfig
    from talos.data.splits import Split
    from talos.distributed.share import SplitShare
    from talos.model.fitting import Run

__all__ = ["train"]

Refit: TypeAlias = Literal["train+valid", "all"]


@with_options
def train(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A file, a folder, a dataset's name or a database URL; that of --config if not given.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run directory to write.")] = None,
    *,
    training: TrainingOptions,
    refit: Annotated[
        Refit | None,
        typer.Option(
            "--refit",
            metavar="[train+valid|all]",
            help="Fit again with the settings and epochs that were chosen: on train and validation if no value is "
            "given; on all, for deployment, without a test figure of its own.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its last checkpoint.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what would be trained, and train nothing.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Also log to MLflow; MLFLOW_TRACKING_URI says where to.")
    ] = False,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Also log to Weights & Biases; WANDB_MODE=offline writes files.")
    ] = False,
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
    from talos import distributed
    from talos.data.open import open_split
    from talos.data.splits import Split
    from talos.model.fitting import check_refit, open_parts
    from talos.model.recommender import Recommender
    from talos.model.recorded import record_of
    from talos.model.store import check_new_run, lock_run

    if path is None:
        raise missing("PATH", "A file, a folder, a dataset's name or a database URL.")
    config = training.run_config()
    if explain:
        with reading() as progress:
            whole = open_split(path, source, notify=say, progress=progress)
        _explain(_with_fitting_k(config, whole), whole, json)
        return
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0"):
        # torchrun lost a process and has restarted all of them
        if out is not None and (out / "model.json").exists():
            return  # the process was lost after the run was finished
        resume = True
    if out is None:
        raise missing("--out", "The run directory to write.")
    check_new_run(out, resume=resume, refit=refit)
    with ExitStack() as held:
        if os.environ.get("RANK", "0") in ("", "0"):  # rank 0 holds the lock for the processes of torchrun
            held.enter_context(lock_run(out, "talos train"))
            check_new_run(
                out, resume=resume, refit=refit
            )  # again: another process may have finished in between
        with reading() as progress:
            parts = open_parts(config, path, source, notify=say, progress=progress)
        check_refit(refit, parts)
        config = _with_fitting_k(config, parts)
        for note in parts.cold_notes() if isinstance(parts, Split) else []:
            say(note)
        table = _read_items(path, items, item_columns, source, parts)
        asked = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
        with _saying_how_to_continue(out):
            group = distributed.start(config.device)
            run = Recommender(config=config).fit_run(
                parts,
                out,
                refit=refit,
                resume=resume,
                items=table,
                loggers=[name for name, wanted in asked.items() if wanted],
                source=record_of(path, source, parts),
                notify=say,
            )
            distributed.stop()
        if run is not None and group.rank == 0:
            _print_run(run, out, refit, json)


@contextmanager
def _saying_how_to_continue(out: Path) -> Iterator[None]:
    """End an interrupted run with the way to continue it.

    A Ctrl-C that does not fall into a step of training, but between two candidates of a race, say, or into the last
    evaluation, is a plain KeyboardInterrupt: the run continues from what was saved before.
    """
    from talos.training import InterruptedRunError

    try:
        yield
    except (InterruptedRunError, KeyboardInterrupt) as stop:
        if (out / "model.json").exists():  # it had ended
            raise
        text = str(stop) or "stopped"
        raise InterruptedRunError(f"{text}. Continue with the same command and --resume") from None


def _read_items(
    path: str, items: Path | None, columns: str | None, source: SourceOptions, parts: Split | SplitShare
) -> pl.DataFrame | None:
    """The table of items, checked against the interactions before anything is trained."""
    if items is None and columns is None:
        return None
    from talos.data.items import read_items
    from talos.distributed.share import SplitShare
    from talos.model.attributes import align_items

    chosen = None if columns is None else [name for name in columns.split(",") if name]
    if items is None and not Path(path).is_file():
        raise ConfigError("without --items", where="--item-columns", expected="a PATH that is a file")
    table = (
        read_items(path, item=source.columns.item, columns=chosen).unique("item_id", keep="last")
        if items is None
        else read_items(items, columns=chosen)
    )
    train = parts.train.own if isinstance(parts, SplitShare) else parts.train
    _, _, unknown = align_items(table, train.item_ids, where=str(path if items is None else items))
    if unknown:
        say(f"items: {unknown:,} of {len(table):,} rows are about items without interactions and are ignored")
    return table


def _with_fitting_k(config: RunConfig, parts: Split | SplitShare) -> RunConfig:
    """The config with a K that the catalogue has, if none was given."""
    fitting = config.for_catalogue(parts.train.num_items)
    if fitting.k != config.k:
        say(f"k = {fitting.k}: all items, as there are fewer than {config.k}")
    return fitting


def _explain(config: RunConfig, parts: Split, json: bool) -> None:
    from talos import registry
    from talos.studies.race import plan_of_run
    from talos.training import check_memory

    chosen = config.baseline
    facts: dict[str, float] = {}
    notes: dict[str, Sequence[str]]
    if chosen is not None:
        registry.make_baseline(chosen).check(parts.train)
        options = {**registry.options("baseline", chosen.name), **chosen.options}
        config = config.with_values({f"baseline.{name}": value for name, value in options.items()})
        notes = {"computed": [registry.help_of("baseline", chosen.name)]}
    else:
        plan = plan_of_run(config, parts.train, parts.valid)
        check_memory(plan)
        facts = {"parameters": plan.parameters, "steps_per_epoch": plan.steps_per_epoch}
        facts["memory_mb"] = round(plan.memory / 2**20, 1)
        config, notes = plan.config, {"chosen": plan.notes, "open": [plan.raced] if plan.raced else []}
    if json:
        print_json({**facts, "notes": list(chain(*notes.values())), "config": config.as_dict()})
        return
    shown = [(name.replace("_", " "), f"{value:,}") for name, value in facts.items()]
    shown += [(name, note) for name, found in notes.items() for note in found]
    print_facts(shown, title="what would be trained" if chosen is None else "what would be computed")
    typer.echo("\n" + config.to_toml())


def _print_run(run: Run, out: Path, refit: Refit | None, json: bool) -> None:
    from talos.model.fitting import IN_WORDS

    model, config = run.recommender.fitted_model(), run.recommender.config
    facts = model.metadata
    if json:
        names = ("epoch", "trained_on", "epochs_from", "fit_seconds", "threshold_error", "chosen_from")
        kept = {name: facts[name] for name in names if name in facts}
        measured = {"metrics": {}} if run.report is None or refit == "all" else run.report.as_dict()
        print_json({"run": str(out), **kept, **measured, "notes": list(run.notes),
                    "baseline": facts["baseline"], "config": config.as_dict()})  # fmt: skip
        return
    if run.report is not None and run.popular is not None:
        of = "of the model it was chosen from, " if refit == "all" else ""
        print_table(*run.table(), title=f"test, {of}{run.report.num_users:,} users")
    if facts["threshold_error"] is not None:
        typer.echo(f"\nmean distance of the thresholds from the exact ones: {facts['threshold_error']:.4f}")
    if refit == "all":
        typer.echo(
            "\nno test figure: this model was fitted on the test part too. "
            "The metrics above are those of the model it was chosen from"
        )
    if config.baseline is not None:
        done = "computed" if refit is None else f"computed again on {IN_WORDS[refit]}"
    else:
        again = "" if refit is None else f"; fitted again on {IN_WORDS[refit]} for as many epochs"
        done = f"best epoch {facts['epoch']}{again}"
    typer.echo(f"{done}, {run.seconds:.1f} s; written to {out}")
    somebody = shlex.quote(str(model.train.user_ids.ids[0])) if model.train.num_users else "ID"
    folder = shlex.quote(str(out))
    say(
        f"next: talos recommend {folder} --user {somebody}   "
        f"or for all   talos recommend {folder} --all --out recs.csv"
    )
