"""`talos tune`: search for the best settings on the validation part; only `--finalize` opens the test part."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from talos.checks import positive_integer
from talos.cli.options import Json, StudyOptions, missing, parse_budget, with_options
from talos.cli.output import print_facts, print_json, print_table, say
from talos.cli.shared import shown, space_for, write_study_page
from talos.data.databases import without_password
from talos.data.options import SourceOptions
from talos.errors import ConfigError

if TYPE_CHECKING:
    from talos.studies.tune import FinalResult, Tuned

__all__ = ["tune"]


@with_options
def tune(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A file, a folder, a dataset's name or a database URL; if not given that of --config, or for "
            "--finalize the study's own.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the study; the same command continues it.")
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
    search_seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    *,
    training: Annotated[
        StudyOptions,
        *("config", "k", "metric", "loss", "backbone", "baseline", "epochs", "seed", "assignments"),
    ],
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Search for the best settings on the validation part. Only --finalize opens the test part, and only once."""
    if out is None:
        raise missing("--out", "The folder of the study.")
    if finalize and trials is None and budget is None and (path is None or (out / "tune.json").exists()):
        _finalize(out, path, source, storage, json)
        return
    if path is None:
        raise missing("PATH", "The data to tune on.")
    for name, number in (("trials", trials), ("workers", workers)):
        if number is not None:
            positive_integer(name, number)
    seconds = None if budget is None else parse_budget(budget)
    chosen, settled = space_for(space, training.run_config())

    from talos.data.open import open_fit_parts
    from talos.studies.tune import TuneSettings, check_reachable, fit_parts, parse_storage, run_study

    check_reachable(parse_storage(storage, out))
    parts = fit_parts(*open_fit_parts(path, source, notify=say))
    settings = TuneSettings(
        config=settled,
        space=chosen,
        data=parts.fingerprints(),
        sampler=sampler,
        pruner=pruner,
        seed=search_seed,
    )
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
    page = write_study_page(tuned, out)
    if finalize:
        _finalize(out, path, source, storage, json)
    else:
        again = "" if "://" not in path else f" {shlex.quote(without_password(path))}"
        again += "" if source.query is None else f" --query {shlex.quote(source.query)}"
        _print_tuned(tuned, out, page, workers, again, storage, json)


def _finalize(out: Path, path: str | None, options: SourceOptions, storage: str | None, json: bool) -> None:
    from talos.model.recorded import fingerprints_of, open_recorded
    from talos.studies.tune import finalize, open_study, stored_final
    from talos.training import progress

    final = stored_final(out)
    if final is None:
        tuned, facts = open_study(out, storage)
        source = facts.get("source")
        if source is None:
            raise ConfigError(
                "does not say where its data come from", where=str(out), expected="a study of `talos tune`"
            )
        split = open_recorded(source, run=out, data=path, options=options, notify=say)
        place = source["path"] if path is None else without_password(path)
        kept = {"source": {**source, "path": place, "fingerprints": fingerprints_of(split)}}
        final = finalize(out, split, storage=storage, facts=kept, callbacks=(progress(),))
        write_study_page(tuned, out, final)
    if json:
        print_json({**final.facts, "fresh": final.fresh, "run": str(out / "final")})
        return
    _print_final(final, out)


def _print_tuned(
    tuned: Tuned,
    out: Path,
    page: Path,
    workers: int,
    again: str,
    storage: str | None,
    json: bool,
) -> None:
    """Print the best trial, the cost of the search and the next command."""
    from talos.studies.tune import default_point, parse_storage

    best, first, settings = tuned.best, tuned.rows[0], tuned.settings
    dashboard = f"optuna-dashboard {shlex.quote(without_password(parse_storage(storage, out)))}"
    if json:
        parts = {name: getattr(tuned, name) for name in ("open", "importance", "peak_mb")}
        print_json({"out": str(out), "report": str(page), "metric": settings.metric,
                    "best": vars(replace(best, curve=())), "trials": tuned.counts, **parts,
                    "config": tuned.config.as_dict(), "dashboard": dashboard})  # fmt: skip
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in tuned.counts.items() if count)
    facts = [(f"validation {settings.metric}", f"{best.value:.5f} (trial {best.number}, epoch {best.epoch})")]
    default = default_point(settings.space, settings.config)
    if first.number == 0 and first.value is not None and dict(first.parameters) == default:
        facts.append(("with the defaults", f"{first.value:.5f} (trial 0)"))
    facts += [(key, shown(value)) for key, value in best.parameters.items()]
    if tuned.importance:
        ranked = sorted(tuned.importance.items(), key=lambda pair: -pair[1])
        facts.append(("importance", ", ".join(f"{key} {share:.0%}" for key, share in ranked)))
    facts.append(("trials", counts + (f"; {tuned.open:,} not finished" if tuned.open else "")))
    facts.append(("memory", f"{tuned.peak_mb:,.0f} MB a worker at most ({workers} at once)"))
    print_facts(facts, title="the best trial")
    typer.echo(f"\nwritten to {out}: run.toml, trials.csv, report.html")
    say(f"all trials in a browser: {dashboard}")
    again += "" if storage is None else f" --storage {shlex.quote(without_password(storage))}"
    finalize = f"talos tune{again} --out {shlex.quote(str(out))} --finalize"
    say(f"next: {finalize}   (measures the best config on test, once)")


def _print_final(final: FinalResult, out: Path) -> None:
    """Print the metrics of the winner, the best trial's config, on the test part beside those of popularity."""
    facts = final.facts
    metrics, popular = facts["metrics"], facts["baseline"]["popularity"]
    names = [name for name in metrics if name.endswith(f"@{facts['config']['k']}")]
    rows = [[name, f"{metrics[name]:.4f}", f"{popular[name]:.4f}"] for name in names if name in popular]
    print_table(["test", "winner", "popularity"], rows)
    watched, value = next(iter(facts["validation"].items()))
    epochs = f" for {facts['epochs']} epochs" if facts["epochs"] else ""
    typer.echo(
        f"\ntrial {facts['trial']} of {facts['trials']} (validation {watched} {value:.5f}), fitted on train and "
        f"validation{epochs}; written to {out / 'final'}"
    )
    if not final.fresh:
        say(f"this is the stored result of {facts['date']}: the test part is opened only once")
