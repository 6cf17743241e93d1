"""`talos compare`: several losses, backbones and baselines on one split with several seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from talos.checks import positive_integer, require
from talos.cli.options import Json, TrainingOptions, missing, parse_budget, with_options
from talos.cli.output import print_json, print_table, say
from talos.cli.shared import shown, space_for, write_study_page
from talos.data.databases import without_password
from talos.data.options import SourceOptions
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.studies.compare import ComparisonTable

__all__ = ["compare"]

_DECIDED_ELSEWHERE = {
    "seed": "--seeds",
    "loss.name": "--losses",
    "backbone.name": "--backbones",
    "baseline.name": "--baselines",
}


@with_options
def compare(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH…]",
            help="A file, a folder, a dataset's name or a database URL, that of --config if not given; or run "
            "directories.",
        ),
    ] = None,
    losses: Annotated[
        str | None,
        typer.Option("--losses", help="Short names with commas; the first is compared with each other one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results, tables and page.")
    ] = None,
    backbones: Annotated[
        str, typer.Option("--backbones", help="Short names or module:Class, with commas.")
    ] = "mf",
    baselines: Annotated[
        str | None,
        typer.Option("--baselines", help="Also compare with these: popularity, itemknn, ease, rp3beta, als."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Fits of each model, with seeds 0, 1, …")] = 5,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Time each fit may train: 90s, 10m, 1h.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Metrics to show, such as recall@20,ndcg@10.")
    ] = None,
    dialect: Annotated[
        Literal["standard", "paper"], typer.Option(help="Definitions of the metrics.")
    ] = "standard",
    alternative: Annotated[
        Literal["two-sided", "greater", "less"],
        typer.Option(help="What is tested: that the first differs from, is greater or less than the others."),
    ] = "two-sided",
    *,
    training: Annotated[TrainingOptions, "config", "k"],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[NAME.]KEY=VALUE",
            help="A key of the config: for all losses (training.epochs=50), or for one loss, backbone or baseline "
            "(sl.loss.tau=0.2, als.baseline.dim=32).",
        ),
    ] = None,
    tuned: Annotated[
        int | None,
        typer.Option(
            "--tuned",
            metavar="TRIALS",
            help="First tune every model on the validation part, with this many trials each.",
        ),
    ] = None,
    space: Annotated[
        str, typer.Option(help="For --tuned: `default`, `paper` (the paper's grids) or a TOML file.")
    ] = "default",
    workers: Annotated[int, typer.Option(help="For --tuned: worker processes.")] = 1,
    source: SourceOptions,
    json: Json = False,
) -> None:
    """Compare losses, backbones and baselines on one data set over several seeds; or runs that are finished.

    The same command continues after a stop. Runs are compared on the test part that they carry.
    """
    if not paths:
        raise missing("PATH", "A file, a folder, a dataset's name or a database URL; or run directories.")
    shown_metrics = [] if metrics is None else _names(metrics, "--metrics")
    if all((Path(one) / "model.json").is_file() for one in paths):
        _compare_runs(
            paths, out, losses, json, metrics=shown_metrics, dialect=dialect, alternative=alternative
        )
        return
    if len(paths) > 1:
        stranger = next(one for one in paths if not (Path(one) / "model.json").is_file())
        raise ConfigError("is no run directory", where=stranger, expected="one PATH of data, or runs alone")
    (path,) = paths
    if losses is None:
        raise missing("--losses", "Short names with commas.")
    if out is None:
        raise missing("--out", "A folder for the results.")
    for name, number in (("seeds", seeds), ("workers", workers), ("tuned", 1 if tuned is None else tuned)):
        positive_integer(name, number)
    from talos.data.open import open_split
    from talos.report import comparison_report, write_page
    from talos.studies import compare as comparison

    seconds = None if budget is None else parse_budget(budget)
    named = [_names(losses, "--losses"), _names(backbones, "--backbones")]
    named += [_names(baselines, "--baselines") if baselines else []]
    changes = [_assignment(text, [name for names in named for name in names]) for text in assignments or []]
    models = comparison.models_for(*named, base=training.run_config(), changes=changes)
    found: dict[str, Any] = {}
    if tuned is not None:
        models, found = _tune_models(models, path, source, out / "tuned", tuned, space, workers)
    table = comparison.compare(
        open_split(path, source, notify=say),
        models,
        seeds,
        out=out,
        metrics=shown_metrics,
        dialect=dialect,
        budget=seconds,
        alternative=alternative,
        notify=say,
    )
    page = write_page(
        comparison_report(table, title=f"Comparison on {without_password(path)}"), out / "compare.html"
    )
    if json:
        tuning = {"tuned": found} if found else {}
        print_json({"out": str(out), "report": str(page), **table.as_dict(), **tuning})
        return
    _print_table(table)
    say(f"written to {out}: compare.csv, compare.tex, compare.html, runs/")


def _compare_runs(runs: Sequence[str], out: Path | None, losses: str | None, json: bool, **how: Any) -> None:
    from talos.studies.compare import compare_runs

    for flag, given in (("--losses", losses), ("--out", out)):
        require(given is None, "together with runs", where=flag, expected="a PATH of data", error=ConfigError)
    expected = "two or more, or a PATH of data with --losses"
    require(len(runs) > 1, "one run", where="RUN", expected=expected, error=ConfigError)
    table = compare_runs(runs, **how)
    print_json(table.as_dict()) if json else _print_table(table)


def _print_table(table: ComparisonTable) -> None:
    print_table(*table.summary(), title=f"test, {table.num_users:,} users")
    if len(table.rows) > 1:
        typer.echo("")
        print_table(*table.significance(), title=f"{table.first} against the others")
    typer.echo("\n" + textwrap.fill(table.legend, 100))


def _tune_models(
    models: Mapping[str, RunConfig],
    path: str,
    source: SourceOptions,
    out: Path,
    trials: int,
    space: str,
    workers: int,
) -> tuple[dict[str, RunConfig], dict[str, Any]]:
    """Tune each model with the same number of trials: name → best config, and the summary of each search.

    All spaces are checked before the data are read; searches that the folder has finished are not repeated.
    """
    from talos import registry
    from talos.studies import tune
    from talos.studies.folder import file_name

    spaces = {
        # a file or the paper's grids are for losses; a baseline knows its own space
        name: space_for(space if config.baseline is None else "default", config)
        for name, config in models.items()
        if config.baseline is None or registry.search_space("baseline", config.baseline.name)
    }

    from talos.data.open import open_fit_parts

    parts = tune.fit_parts(*open_fit_parts(path, source, notify=say))
    configs, found = dict(models), {}
    for place, (name, (chosen, config)) in enumerate(spaces.items()):
        settings = tune.TuneSettings(config=config, space=chosen, data=parts.fingerprints())
        folder = out / f"{place:02d}-{file_name(name)}"
        notify = partial(_say_of, name)
        tuned = tune.run_study(settings, parts, folder, trials=trials, workers=workers, notify=notify)
        write_study_page(tuned, folder)
        best, metric = tuned.best, settings.metric
        configs[name] = tuned.config
        found[name] = {
            "trials": len(tuned.rows),
            "validation": {metric: tuned.value},
            "parameters": best.parameters,
        }
        values = ", ".join(f"{key} {shown(value)}" for key, value in best.parameters.items())
        say(f"{name}: validation {metric} {tuned.value:.5f} with {values}")
    return configs, found


def _say_of(name: str, line: str) -> None:
    say(f"tuning {name}  {line}")


def _assignment(text: str, names: list[str]) -> tuple[str | None, str, Any]:
    """`sl.loss.tau=0.2` as ("sl", "loss.tau", 0.2); the name is None where the key is for all models."""
    from talos.config import RunConfig, parse_assignment

    key, value = parse_assignment(text)
    name = max((one for one in names if key.startswith(f"{one}.")), key=len, default=None)
    head = key.partition(".")[0]
    if name is None and head not in RunConfig.model_fields:
        known = [*RunConfig.model_fields, *names]
        expected = "a section of the config, or a loss, backbone or baseline that is compared"
        raise ConfigError(f"{head!r}", where=f"--set {text}", expected=expected, hint=nearest(head, known))
    place = key if name is None else key[len(name) + 1 :]
    if place in _DECIDED_ELSEWHERE:
        raise ConfigError(f"{place!r}", where=f"--set {text}", expected=f"{_DECIDED_ELSEWHERE[place]} for it")
    return name, place, value


def _names(text: str, where: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{text!r}", where=where, expected="distinct names with commas between them")
    return names
