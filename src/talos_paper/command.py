"""`talos reproduce`: the paper's tables and figures made again; `talos leaderboard`: the public splits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from talos.cli.options import Json, parse_budget
from talos.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from talos_paper.reproduce import Selection
    from talos_paper.results import ResultStore

__all__ = ["leaderboard", "reproduce"]


def reproduce(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="Names from --list, or `all`.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this data set.")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="Only this backbone.")] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="Only these losses, separated by commas.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds; each row's own number if not given.")
    ] = None,
    fidelity: Annotated[
        Literal["fast", "paper"],
        typer.Option(
            "--fidelity", help="`fast`: all items where a loss allows it; `paper`: 1,024 sampled negatives."
        ),
    ] = "fast",
    core: Annotated[bool, typer.Option("--core", help="Only the core set of results.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder with beauty/, gowalla/, games/; if not given, the folder that TALOS_DATA names.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder that results are read from and written to.")
    ] = Path("results"),
    work: Annotated[Path, typer.Option("--work", help="Folder for checkpoints of unfinished runs.")] = Path(
        "runs/reproduce"
    ),
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Stop after this time, such as 30m; the same command continues later."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the tables and which of their runs are missing.")
    ] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Train nothing; only write tables and pages from the results.")
    ] = False,
    form: Annotated[
        Literal["markdown", "html", "latex"],
        typer.Option("--format", help="Of the tables; html and latex write no other pages and no plots."),
    ] = "markdown",
    json: Json = False,
) -> None:
    """Make the tables of the paper again, the most informative runs first. Repeat the command to continue."""
    from talos.errors import ConfigError
    from talos_paper.reproduce import Selection
    from talos_paper.reproduce import reproduce as run
    from talos_paper.results import ResultStore

    selection = Selection(
        tables=tables or ["all"],
        dataset=dataset,
        backbone=backbone,
        losses=_names(loss),
        seeds=seeds,
        fidelity=fidelity,
        core=core,
    )
    selection.check()
    store = ResultStore(out)
    if list_:
        _print_status(selection, store, json)
        return
    if not tables and not pages:
        raise ConfigError("no table is named", where="TABLE", expected="a name from --list, or `all`")
    result: dict[str, Any] = {}
    if not pages:
        seconds = None if budget is None else parse_budget(budget)
        result = run(selection, store, work=work, folder=data, budget=seconds, notify=say)
        for what, why in result["skipped"].items():
            say(f"skipped {what}: {why}")
    from talos_paper.pages import write_pages

    written = write_pages(store, form)
    say(f"{len(written)} pages, tables and plots in {out}")
    if json:
        print_json({"out": str(out), **result})


def _print_status(selection: Selection, store: ResultStore, json: bool) -> None:
    from talos_paper.recipes import NOT_RUN
    from talos_paper.reproduce import status

    lines = status(selection, store)
    if json:
        print_json({"tables": lines, "not_run": NOT_RUN})
        return
    rows = [
        [
            line["table"],
            line["dataset"],
            f"{line['done']}/{line['runs']}",
            "core" * line["core"],
            line["paper"],
        ]
        for line in lines
    ]
    print_table(["table", "data set", "runs", "", "in the paper"], rows)
    for line in lines:
        if line["core"] and line["missing"]:
            typer.echo(f"missing: {line['table']} {line['dataset']}: {', '.join(line['missing'])}")
    for what, why in NOT_RUN.items():
        typer.echo(f"no command: {what}: {why}")


def leaderboard(
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Only these splits, separated by commas.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Only these rows, separated by commas; --list names them.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Fits on all of train; three where the seed matters.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder with gowalla-lightgcn/ and yelp2018-lightgcn/; if not given, the one that TALOS_DATA names.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder that results are read from and written to.")
    ] = Path("results"),
    work: Annotated[Path, typer.Option("--work", help="Folder for checkpoints of unfinished fits.")] = Path(
        "runs/leaderboard"
    ),
    list_: Annotated[bool, typer.Option("--list", help="List the rows and their candidates.")] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Fit nothing; only write the page from the results.")
    ] = False,
    json: Json = False,
) -> None:
    """Settings from a validation part of train, one fit on all of train, test once. Repeat the command to continue."""
    from talos.files import replace_text
    from talos_paper.leaderboard import METHODS, candidates_of, leaderboard_page, run_leaderboard
    from talos_paper.results import ResultStore

    if list_:
        rows = {name: candidates_of(one) for name, one in METHODS.items()}
        if json:
            print_json(rows)
        else:
            tried = [[name, METHODS[name]["title"], str(len(one))] for name, one in rows.items()]
            print_table(["row", "method", "candidates"], tried)
        return
    store = ResultStore(out)
    if not pages:
        only: dict[str, Any] = {"datasets": _names(dataset), "methods": _names(methods), "seeds": seeds}
        run_leaderboard(store, **only, folder=data, work=work, notify=say)
    written, text = [], leaderboard_page(store)
    if text is not None:
        written.append(str(out / "leaderboard.md"))
        replace_text(out / "leaderboard.md", text)
    if json:
        print_json({"out": str(out), "written": written})
    else:
        typer.echo("\n".join(written) or "no results yet")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
