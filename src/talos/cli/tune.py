"""`talos tune`: search for the best settings on the validation part; only `--finalize` opens the test part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from talos.cli.options import Json, Offer, TrainingOptions, parse_budget, with_options
from talos.cli.output import print_json, say
from talos.cli.spaces import settings_for, space_for
from talos.cli.tune_output import print_final, print_tuned, write_report
from talos.data.source_options import SourceOptions
from talos.errors import ConfigError

__all__ = ["tune"]


@with_options
def tune(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A file, a folder, a dataset's name or a database URL; for --finalize the study's own if not given.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the study; the same command continues it.")
    ] = None,
    space: Annotated[
        str,
        typer.Option(help="`default`, `paper` (the paper's grid for the loss), or a TOML file."),
    ] = "default",
    trials: Annotated[
        int | None, typer.Option(help="Number of trials, with those finished before.  [default: 50]")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time from now: 90s, 10m, 1h.")] = None,
    workers: Annotated[int, typer.Option(help="Worker processes, which share the threads.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="A file, sqlite:///FILE or postgresql://… (for several machines); a file in --out if not given."
        ),
    ] = None,
    finalize: Annotated[
        bool,
        typer.Option(
            "--finalize", help="Fit the best config on train and validation and measure it on test, once."
        ),
    ] = False,
    sampler: Annotated[
        Literal["auto", "tpe", "random", "grid"],
        typer.Option(help="How points are chosen; `auto`: grid up to 100 points, else tpe."),
    ] = "auto",
    pruner: Annotated[
        Literal["median", "asha", "none"], typer.Option(help="How trials that lag behind are stopped.")
    ] = "median",
    search_seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    *,
    training: Annotated[
        TrainingOptions, Offer("config", "k", "metric", "loss", "backbone", "epochs", "seed", "assignments")
    ],
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Search for the best settings on the validation part. Only --finalize opens the test part, and only once."""
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
    base = training.run_config()
    from talos.studies.tune.storage import check_reachable, import_optuna, parse_storage

    import_optuna()
    check_reachable(parse_storage(storage, out))
    chosen, settled = space_for(space, base)

    from talos.data.open import open_fit_parts
    from talos.studies.tune import fit_parts, run_study

    parts = fit_parts(*open_fit_parts(path, source, notify=say))
    settings = settings_for(settled, chosen, parts, sampler=sampler, pruner=pruner, seed=search_seed)
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
        facts={"source": source.as_dict(path)},
    )
    page = write_report(tuned, settings, out)
    if finalize:
        _finalize(out, path, storage, json)
        return
    print_tuned(tuned, settings, out, page, workers, json)


def _finalize(out: Path, path: str | None, storage: str | None, json: bool) -> None:
    from talos.data.open import open_split
    from talos.studies.tune import finalize, open_study, read_folder, stored_final
    from talos.training import progress

    final = stored_final(out)
    if final is None:
        settings, facts = read_folder(out)
        source = facts.get("source")
        if source is None:
            raise ConfigError(
                "does not say where its data come from", where=str(out), expected="a study of `talos tune`"
            )
        path = path or source["path"]
        split = open_split(path, SourceOptions.from_dict(source), notify=say)
        kept = {"source": {**source, "path": path}}
        final = finalize(out, split, storage=storage, facts=kept, callbacks=(progress(),))
        write_report(open_study(out, storage)[2], settings, out, final)
    if json:
        print_json({**final.facts, "fresh": final.fresh, "run": str(out / "final")})
        return
    print_final(final, out)
