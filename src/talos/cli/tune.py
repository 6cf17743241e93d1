"""`talos tune`: search for the best settings on the validation part; the test part is opened by `--finalize` alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from talos.cli.compare import parse_budget
from talos.cli.output import print_facts, print_json, print_table, say
from talos.cli.source import (
    Columns,
    FormatOption,
    ItemColumn,
    KCore,
    MinRating,
    OnBadRow,
    QueryOption,
    RatingColumn,
    Raw,
    SplitBy,
    SplitOptions,
    SplitSeed,
    TestShare,
    TimeColumn,
    TitleColumn,
    UserColumn,
    ValidShare,
    load,
    load_split,
)
from talos.cli.train import config_from
from talos.errors import ConfigError, nearest

if TYPE_CHECKING:
    from talos.config import RunConfig
    from talos.tuning import Final, Settings, Space, Tuned
    from talos.tuning.data import FitParts

__all__ = ["load_fit_parts", "space_for", "tune", "tune_models"]


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
    loss: Annotated[str | None, typer.Option(help="talos, sl, bsl, psl, bpr, …")] = None,
    backbone: Annotated[str | None, typer.Option(help="mf, lightgcn or xsimgcl.")] = None,
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
    from talos.tuning.storage import check_reachable, import_optuna, parse_storage

    import_optuna()
    check_reachable(parse_storage(storage, out))
    chosen, settled = space_for(space, base)

    from talos.tuning import run_study

    parts = load_fit_parts(path, columns, options)
    settings = _settings(settled, chosen, parts, sampler=sampler, pruner=pruner, seed=search_seed)
    source = {"path": path, "columns": vars(columns), "split": vars(options)}
    say(
        f"searching {', '.join(chosen.entries)} for {settings.metric} on validation ({settings.way}, pruner {pruner})"
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
    page = _write_report(tuned, settings, out)
    if finalize:
        _finalize(out, path, storage, json)
        return
    _print(tuned, settings, out, page, workers, json)


def tune_models(
    models: Mapping[str, RunConfig],
    path: str,
    columns: Columns,
    options: SplitOptions,
    out: Path,
    *,
    trials: int,
    space: str,
    workers: int,
) -> tuple[dict[str, RunConfig], dict[str, Any]]:
    """Tune each model with the same number of trials: name → best config, and what was found for each.

    All spaces are checked before the data are read; what is finished in the folder is not repeated.
    """
    from talos.tuning.storage import import_optuna

    import_optuna()
    for name, number in (("--tuned", trials), ("--workers", workers)):
        if number < 1:
            raise ConfigError(f"{number}", where=name, expected="1 or more")
    spaces = {name: space_for(space, config) for name, config in models.items()}

    from talos.tuning import run_study

    parts = load_fit_parts(path, columns, options)
    configs, found = {}, {}
    for place, (name, (chosen, settled)) in enumerate(spaces.items()):
        settings = _settings(settled, chosen, parts, sampler="auto", pruner="median", seed=0)
        folder = out / f"{place:02d}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"
        tuned = run_study(settings, parts, folder, trials=trials, workers=workers, notify=_labelled(name))
        _write_report(tuned, settings, folder)
        summary = tuned.summary
        configs[name] = summary.config
        found[name] = {
            "trials": len(summary.rows),
            "validation": {summary.metric: summary.best.value},
            "parameters": summary.best.parameters,
        }
        chosen_values = ", ".join(f"{key} {_shown(value)}" for key, value in summary.best.parameters.items())
        say(f"{name}: validation {summary.metric} {summary.best.value:.5f} with {chosen_values}")
    return configs, found


def _labelled(name: str) -> Callable[[str], None]:
    return lambda line: say(f"tuning {name}  {line}")


def space_for(name: str, base: RunConfig) -> tuple[Space, RunConfig]:
    """The space that a word or a file name means for a config, checked; and the config with what it fixes."""
    from talos.tuning.check import check_space
    from talos.tuning.defaults import default_space
    from talos.tuning.space import Space

    if name == "default":
        space = default_space(base)
    elif name == "paper":
        space = Space.from_dict(_paper_grid(base), where="--space paper")
    else:
        if not name.endswith(".toml") and not Path(name).exists():
            known = ("default", "paper")
            raise ConfigError(f"{name!r} is no space and no file", where="--space", hint=nearest(name, known))
        space = Space.from_toml(Path(name))
    where = "--space paper" if name == "paper" else "" if name == "default" else name
    return space, check_space(space, base, where=where)


def _paper_grid(base: RunConfig) -> dict[str, Any]:
    """The values that the paper searched for a loss, by key of the config."""
    from talos.paper.published import GRID

    loss = base.loss.name
    if loss not in GRID:
        raise ConfigError(
            f"the paper has no grid for the loss {loss!r}",
            where="--space paper",
            expected=f"one of {', '.join(sorted(GRID))}",
            hint="--space default has one",
        )
    places = {
        "lr": "optimizer.lr",
        "weight_decay": "optimizer.weight_decay",
        "contrast_weight": "backbone.contrast_weight",
        "lr_quantile": "threshold.lr",
    }
    values: dict[str, Any] = {}
    for name, searched in GRID[loss].items():
        if name == "contrast_weight" and base.backbone.name != "xsimgcl":
            continue
        values[places.get(name, f"loss.{name}")] = list(searched)
    if "threshold.lr" in values:  # the rate of a regression: there has to be one
        values["threshold.name"] = "regression"
    return values


def load_fit_parts(path: str, columns: Columns, options: SplitOptions) -> FitParts:
    """Train and validation of a PATH. A test file is not opened; a test part that was split off is dropped here."""
    from talos import readers, shards, splits
    from talos.tuning.data import fit_parts

    if "://" not in path:
        read_options = {name: value for name, value in vars(columns).items() if name != "query"}
        found = (
            shards.read_fit_shards(path)
            if shards.is_shards(path)
            else readers.read_fit_parts(path, **read_options)
        )
        if found is not None:
            if options != SplitOptions():
                say("this folder is already split: options for the clean-up and the split have no effect")
            return fit_parts(*found)
    data = load(path, columns, min_rating=options.min_rating, k_core=options.k_core, raw=options.raw)
    parts = splits.split(data, by=options.by, test=options.test, valid=options.valid, seed=options.split_seed)
    return fit_parts(parts.train, parts.valid)


def _settings(settled: RunConfig, space: Space, parts: FitParts, **how: Any) -> Settings:
    from talos.tuning import Settings

    data = {name: part.fingerprint() for name, part in zip(("train", "valid"), parts, strict=True)}
    return Settings(config=settled, space=space, data=data, **how)


def _finalize(out: Path, path: str | None, storage: str | None, json: bool) -> None:
    from talos.training import progress
    from talos.tuning import finalize, open_study, read_folder, stored_final

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
        _write_report(open_study(out, storage)[2], settings, out, final)
    if json:
        print_json({**final.facts, "fresh": final.fresh, "run": str(out / "final")})
        return
    _print_final(final, out)


def _print_final(final: Final, out: Path) -> None:
    facts = final.facts
    metrics, popular = facts["metrics"], facts["baseline"]["popularity"]
    names = [name for name in metrics if name.endswith(f"@{facts['config']['k']}")]
    rows = [[name, f"{metrics[name]:.4f}", f"{popular[name]:.4f}"] for name in names if name in popular]
    print_table(["test", "winner", "popularity"], rows)
    watched, value = next(iter(facts["validation"].items()))
    typer.echo(
        f"\ntrial {facts['trial']} of {facts['trials']} (validation {watched} {value:.5f}), fitted on train and "
        f"validation for {facts['epochs']} epochs; written to {out / 'final'}"
    )
    if not final.fresh:
        say(f"this is the stored answer of {facts['date']}: the test part is looked at once")


def _write_report(tuned: Tuned, settings: Settings, out: Path, final: Final | None = None) -> Path:
    from talos.cli.report import write_page
    from talos.report import tuning_report

    summary = tuned.summary
    text = tuning_report(
        [vars(row) for row in summary.rows],
        metric=summary.metric,
        best=summary.best.number,
        importance=summary.importance,
        settings=_flat(settings.as_dict()),
        config=summary.config.to_toml(),
        peak_mb=summary.peak_mb,
        test=None if final is None else final.facts["metrics"],
        title=f"Tuning {out.resolve().name}",
    )
    return write_page(text, out / "report.html")


def _print(tuned: Tuned, settings: Settings, out: Path, page: Path, workers: int, json: bool) -> None:
    summary = tuned.summary
    best, first = summary.best, summary.rows[0]
    dashboard = _dashboard(out)
    if json:
        print_json(
            {
                "out": str(out),
                "report": str(page),
                "metric": summary.metric,
                "best": vars(replace(best, curve=())),
                "trials": summary.counts,
                "open": summary.open,
                "importance": summary.importance,
                "peak_mb": summary.peak_mb,
                "config": summary.config.as_dict(),
                "dashboard": dashboard,
            }
        )
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in summary.counts.items() if count)
    facts = [(f"validation {summary.metric}", f"{best.value:.5f} (trial {best.number}, epoch {best.epoch})")]
    if first.number == 0 and first.value is not None and _is_default(first.parameters, settings):
        facts.append(("with the defaults", f"{first.value:.5f} (trial 0)"))
    facts += [(key, _shown(value)) for key, value in best.parameters.items()]
    if summary.importance:
        ranked = sorted(summary.importance.items(), key=lambda pair: -pair[1])
        facts.append(("what mattered", ", ".join(f"{key} {share:.0%}" for key, share in ranked)))
    facts.append(("trials", counts + (f"; {summary.open:,} not finished" if summary.open else "")))
    facts.append(("memory", f"{summary.peak_mb:,.0f} MB a worker at most ({workers} at once)"))
    print_facts(facts, title="the best trial")
    typer.echo(f"\nwritten to {out}: run.toml, trials.csv, report.html")
    say(f"all trials in a browser: {dashboard}")
    say(
        f"next: talos tune --out {shlex.quote(str(out))} --finalize   (fits the winner, opens the test part, once)"
    )


def _is_default(parameters: Mapping[str, Any], settings: Settings) -> bool:
    from talos.tuning.check import default_point

    return default_point(settings.space, settings.config) == dict(parameters)


def _dashboard(out: Path) -> str:
    from talos.tuning import read_folder

    return f"optuna-dashboard {shlex.quote(str(read_folder(out)[1]['storage']))}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        ranged = isinstance(value, Mapping) and "low" in value
        if isinstance(value, Mapping) and not ranged:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = (
                " ".join(f"{name} {number}" for name, number in value.items()) if ranged else str(value)
            )
    return found
