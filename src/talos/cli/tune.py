"""`talos tune`: search for the best settings on the validation part; the test part is opened by `--finalize` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from talos.cli.options import (
    FormatOption,
    ItemColumn,
    Json,
    KCore,
    MinRating,
    OnBadRow,
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
from talos.cli.output import print_json, say
from talos.cli.search import load_fit_parts, settings_for, space_for
from talos.cli.source import Columns, SplitOptions, load_split
from talos.cli.study import print_final, print_tuned, write_report
from talos.cli.values import config_from, parse_budget
from talos.errors import ConfigError

__all__ = ["tune"]


def tune(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A file, a folder, a dataset's name or a database URL; that of the study for --finalize.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; run again to go on.")
    ] = None,
    space: Annotated[
        str,
        typer.Option(help="`default`, `paper` (the paper's grid for the loss), or a TOML file."),
    ] = "default",
    trials: Annotated[
        int | None, typer.Option(help="How many in all, those finished before included.  [default: 50]")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time from now: 90s, 10m, 1h.")] = None,
    workers: Annotated[int, typer.Option(help="Processes, each with its share of the threads.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="A file, sqlite:///FILE or postgresql://… (for several machines); a file in --out if not given."
        ),
    ] = None,
    finalize: Annotated[
        bool,
        typer.Option(
            "--finalize", help="Fit the winner on train and validation and measure it on test, once."
        ),
    ] = False,
    metric: Annotated[
        str | None, typer.Option(help="What to maximise at K: precision, recall, ndcg, mrr, hit_rate, map.")
    ] = None,
    sampler: Annotated[
        Literal["auto", "tpe", "random", "grid"],
        typer.Option(help="Who proposes points; `auto`: grid up to 100 points, else tpe."),
    ] = "auto",
    pruner: Annotated[
        Literal["median", "asha", "none"], typer.Option(help="Who stops trials that lag behind.")
    ] = "median",
    search_seed: Annotated[int, typer.Option(help="Of the proposals.")] = 0,
    config: Annotated[
        Path | None, typer.Option("--config", help="A run.toml that trials start from.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="List length to optimise for.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="Short name, such as talos or sl, or module:Class.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Short name, such as mf, or module:Class.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most this many in a trial.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random in training.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the config, such as backbone.dim=128."),
    ] = None,
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
    json: Json = False,
) -> None:
    """Search for the best settings on the validation part. The test part is opened by --finalize, and once."""
    if out is None:
        raise ConfigError("is missing", where="--out", expected="the folder of the study")
    if finalize and trials is None and budget is None and (path is None or (out / "tune.json").exists()):
        _finalize(out, path, storage, json)
        return
    if path is None:
        raise ConfigError("is missing", where="PATH", expected="the data to tune on")
    for name, number in (("--trials", trials), ("--workers", workers)):
        if number is not None and number < 1:
            raise ConfigError(f"{number}", where=name, expected="1 or more")
    seconds = None if budget is None else parse_budget(budget)
    given = {
        "k": k,
        "loss.name": loss,
        "backbone.name": backbone,
        "training.epochs": epochs,
        "training.metric": metric,
        "seed": seed,
    }
    base = config_from(config, given, set_ or [])
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
    from talos.studies.tune.storage import check_reachable, import_optuna, parse_storage

    import_optuna()
    check_reachable(parse_storage(storage, out))
    chosen, settled = space_for(space, base)

    from talos.studies.tune import run_study

    parts = load_fit_parts(path, columns, options)
    settings = settings_for(settled, chosen, parts, sampler=sampler, pruner=pruner, seed=search_seed)
    source = {"path": path, "columns": vars(columns), "split": vars(options)}
    say(
        f"searching {', '.join(chosen.entries)} for {settings.metric} on validation "
        f"({settings.resolved_sampler}, pruner {pruner})"
    )
    tuned = run_study(
        settings,
        parts,
        out,
        trials=trials,
        budget=seconds,
        workers=workers,
        storage=storage,
        notify=say,
        facts={"source": source},
    )
    page = write_report(tuned, settings, out)
    if finalize:
        _finalize(out, path, storage, json)
        return
    print_tuned(tuned, settings, out, page, workers, json)


def _finalize(out: Path, path: str | None, storage: str | None, json: bool) -> None:
    from talos.studies.tune import finalize, open_study, read_folder, stored_final
    from talos.training import progress

    final = stored_final(out)
    if final is None:
        settings, facts = read_folder(out)
        source = facts.get("source")
        if source is None:
            raise ConfigError(
                "does not say where its data are from", where=str(out), expected="a study of `talos tune`"
            )
        path = path or source["path"]
        split = load_split(path, Columns(**source["columns"]), SplitOptions(**source["split"]))
        kept = {"source": {**source, "path": path}}
        final = finalize(out, split, storage=storage, facts=kept, callbacks=(progress(),))
        write_report(open_study(out, storage)[2], settings, out, final)
    if json:
        print_json({**final.facts, "fresh": final.fresh, "run": str(out / "final")})
        return
    print_final(final, out)
