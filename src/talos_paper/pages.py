"""The pages of the results, written from what is stored: Markdown with plots, or the tables as HTML or LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from talos.files import replace_text
from talos.report import standalone, svg
from talos.report.page import Figure, TextTable
from talos_paper import published
from talos_paper.claims import claims
from talos_paper.datasets import DATASETS
from talos_paper.leaderboard import leaderboard_page
from talos_paper.recipes import EXPERIMENTS, Experiment, shown_setting
from talos_paper.reproduce import Selection, status
from talos_paper.results import ResultStore
from talos_paper.tables import (
    CONTRADICTING,
    MEASURED,
    REMARKS,
    RowResult,
    TableText,
    groups,
    rows_of,
    shown_metric,
    shown_name,
    tables_of,
)

__all__ = ["Format", "html", "latex", "markdown", "searches_page", "write_pages"]

Format: TypeAlias = Literal["markdown", "html", "latex"]
Block: TypeAlias = str | TableText | tuple[str, Figure]  # a paragraph, a table, or a plot with its file

_TEXT = published.read_toml("remarks")


def write_pages(store: ResultStore, form: Format = "markdown") -> list[Path]:
    """Write every page beside the results and return the files; a result that was changed is an error.

    Args:
        store: the results.
        form: `markdown` for all pages with their plots; `html` or `latex` for the tables alone.
    """
    made: dict[str, str] = {}
    render, ending = {"markdown": (markdown, "md"), "html": (html, "html"), "latex": (latex, "tex")}[form]
    for experiment in EXPERIMENTS.values():
        blocks = [one for dataset in experiment.datasets for one in _blocks(experiment, dataset, store)]
        if blocks:
            made[f"{experiment.name}.{ending}"] = render(
                experiment.title, [*_introduction(experiment), *blocks]
            )
            plots = [block for block in blocks if isinstance(block, tuple) and form == "markdown"]
            made |= {name: standalone(figure) for name, figure in plots}
    if form == "markdown":
        others = {"leaderboard.md": leaderboard_page, "searches.md": searches_page, "claims.md": _claims_page}
        made |= {name: text for name, page in others.items() if (text := page(store))}
        made["README.md"] = _readme(store)
    for name, text in made.items():
        path = store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            replace_text(path, text)
    return [store.root / name for name in made]


def _introduction(experiment: Experiment) -> list[str]:
    first = [f"In the paper: {experiment.paper}.", f"    talos reproduce {experiment.name}"]
    return [*first, *_remarks(experiment.name, None), *([_TEXT["how_to_read"]] if experiment.specs else [])]


def _blocks(experiment: Experiment, dataset: str, store: ResultStore) -> list[Block]:
    """The tables, remarks and plots of an experiment on a data set; none without results."""
    name, measured = experiment.name, store.measurement(f"{experiment.name}-{dataset}")
    rows = rows_of(experiment, dataset, store)
    given: Any = measured
    if measured is not None:
        tables = MEASURED[name](dataset, measured)
    elif any(row.runs for row in rows):
        tests = store.measurement(f"tests-{dataset}") or {}
        tables, given = tables_of(dataset, rows, tests), groups([row for row in rows if row.runs])
        known = {row.spec.recipe.key for row in rows}
        others = [row for row in rows_of(experiment, dataset, store, "paper") if row.runs]
        if any(row.spec.recipe.key not in known for row in others):
            tables += tables_of(dataset, others, more=", the paper's own protocol")
    else:
        return []
    plots = _PLOTS[name](dataset, given) if name in _PLOTS else ()
    files = [(f"plots/{name}-{dataset}-{place}.svg", plot) for place, plot in enumerate(plots, start=1)]
    return [*tables, *_misprints(name, dataset), *_remarks(name, dataset), *files]


def _misprints(experiment: str, dataset: str) -> list[str]:
    name = "games" if (experiment, dataset) == ("slatk", "beauty") else dataset
    everything = (*published.NUMBERS, *published.IMPROVEMENTS)
    found = [one.misprint for one in everything if one.table.startswith(experiment) and one.dataset == name]
    return [f"Misprint in the paper: {text}." for text in dict.fromkeys(found) if text]


def _remarks(experiment: str, dataset: str | None) -> list[str]:
    found = [one for one in _TEXT["remark"] if (one["table"], one.get("dataset")) == (experiment, dataset)]
    return [f"{one['rows']}: {one['text']}" if "rows" in one else one["text"] for one in found]


# ----------------------------------------------------------------------------------------------- the three forms


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """A page as Markdown.

    >>> table = TableText(title="T", header=["a", "b"], rows=[["x", "1"]], bold=frozenset({(0, 1)}))
    >>> print(markdown("Page", [table]))
    # Page
    <BLANKLINE>
    ### T
    <BLANKLINE>
    | a | b |
    |---|---|
    | x | **1** |
    <BLANKLINE>
    """
    lines = [f"# {title}\n"]
    for block in blocks:
        if isinstance(block, TableText):
            # marks of significance are not of emphasis
            plain = [[cell.replace("*", "\\*") for cell in row] for row in block.rows]
            rows = [_emphasised(block, place, row, "**", "**") for place, row in enumerate(plain)]
            notes = [f"{note}\n" for note in block.notes]
            lines += [f"### {block.title}\n", _grid(block.header, rows), *notes]
        else:
            lines.append(f"{block}\n" if isinstance(block, str) else f"![{block[1].title}]({block[0]})\n")
    return "\n".join(lines).rstrip() + "\n"


def _emphasised(table: TableText, place: int, row: Sequence[str], before: str, after: str) -> list[str]:
    return [f"{before}{c}{after}" if (place, column) in table.bold else c for column, c in enumerate(row)]


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:], ""])


_STYLE = (
    "body{font:16px/1.45 sans-serif;margin:1em auto;max-width:75em}td,th{padding:.2em .6em;text-align:left}"
)


def html(title: str, blocks: Sequence[Block]) -> str:
    """A page as HTML without scripts or anything to fetch; plots are part of it.

    >>> "<p>1 &lt; 2</p>" in html("Page", ["1 < 2"])
    True
    """
    lines = [f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>']
    lines.append(f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>")
    for block in blocks:
        if isinstance(block, TableText):
            plain = [[escape(cell) for cell in row] for row in (block.header, *block.rows)]
            rows = [
                _emphasised(block, place, row, "<b>", "</b>") for place, row in enumerate(plain, start=-1)
            ]
            body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
            notes = [f"<p>{escape(note)}</p>" for note in block.notes]
            lines += [f"<h2>{escape(block.title)}</h2><table>", body.replace("td>", "th>", 2 * len(rows[0]))]
            lines += ["</table>", *notes]
        else:
            lines.append(f"<p>{escape(block)}</p>" if isinstance(block, str) else standalone(block[1]))
    return "\n".join([*lines, "</body></html>\n"])


_SPECIAL: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "…": r"\ldots{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "τ": r"$\tau$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
}


def latex(title: str, blocks: Sequence[Block]) -> str:
    """The tables of a page as LaTeX with `booktabs`; columns of words become comments below their table."""
    lines = [f"% {title}; needs \\usepackage{{booktabs}}\n"]
    for table in (block for block in blocks if isinstance(block, TableText)):
        keep = [place for place, name in enumerate(table.header) if name not in REMARKS]
        plain = [
            [cell.translate(str.maketrans(_SPECIAL)) for cell in row] for row in (table.header, *table.rows)
        ]
        rows = [_emphasised(table, place, row, r"\textbf{", "}") for place, row in enumerate(plain, start=-1)]
        head, *body = [" & ".join(row[place] for place in keep) + r" \\" for row in rows]
        lines += [f"% {table.title}", rf"\begin{{tabular}}{{l{'r' * (len(keep) - 1)}}}", r"\toprule", head]
        lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        words = [place for place in range(len(table.header)) if place not in keep]
        lines += [f"% {row[0]}: {row[place]}" for row in table.rows for place in words if row[place]]
        lines += [*(f"% {note}" for note in table.notes), ""]
    return "\n".join(lines)


# ----------------------------------------------------------------------------------- plots: what no table shows


def _lines(
    title: str,
    label: str,
    x: str,
    y: str,
    drawn: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    **options: Any,
) -> Figure:
    series = [svg.Series(name, xs, ys) for name, (xs, ys) in drawn.items()]
    return Figure(
        title, svg.lines(series, svg.Frame(label, x, y), **options), TextTable([], []), legend=list(drawn)
    )


def _temperature(dataset: str, rows: Mapping[str, Sequence[RowResult]]) -> Iterator[Figure]:
    found = {row.spec.method: row for row in rows["mf"]}
    rival = found.pop("sl", None)
    taus = [float(row.spec.recipe.settings["loss.tau"]) for row in found.values()]
    for metric in ("precision@20", "recall@20"):
        drawn = {"Talos": (taus, [row.mean(metric) or 0.0 for row in found.values()])}
        best = None if rival is None else rival.mean(metric)
        if best is not None and len(taus) > 1:
            drawn["SL at its best"] = ([taus[0], taus[-1]], [best, best])
        shown = shown_metric(metric)
        label = f"Line chart of {shown} against temperature"
        yield _lines(
            f"{DATASETS[dataset]}: {shown} against τ", label, "temperature τ", shown, drawn, zero=False
        )


def _inflation(dataset: str, rows: Mapping[str, Sequence[RowResult]]) -> Iterator[Figure]:
    for row in rows["mf"]:
        scores = row.runs[0].scores
        epochs = list(range(1, len(scores) + 1))
        drawn = {
            word: (epochs, [one[place] for one in scores])
            for place, word in enumerate(("positives", "all items", "threshold β"))
        }
        told = ", ".join(f"{word} {ys[-1]:.3f}" for word, (_, ys) in drawn.items())
        label = f"Line chart of mean scores against epochs; at the end {told}"
        title = f"{DATASETS[dataset]}: {shown_name(row.spec.method)}"
        yield _lines(title, label, "epoch", "mean score", drawn, whole=True)


def _inconsistency(dataset: str, measured: Mapping[str, Any]) -> Iterator[Figure]:
    theirs = []
    for metric in CONTRADICTING:
        entries = published.numbers(table="inconsistency", dataset=dataset, method=metric)
        theirs.append(100 * (sum(entry.value for entry in entries) / 2))
    ours = [100 * measured["used"]["shares"][metric] for metric in CONTRADICTING]
    frame = svg.Frame("Bar chart of the share of contradicting pairs", "metric", "contradicting pairs, %")
    drawn = svg.bars(list(CONTRADICTING.values()), [("paper", theirs), ("ours", ours)], frame)
    title = f"{DATASETS[dataset]}: pairs that a metric orders against P@20"
    yield Figure(title, drawn, TextTable([], []), legend=("paper", "ours"), key="box")


def _theory(_: str, measured: Mapping[str, Any]) -> Iterator[Figure]:
    points = [point for point in measured["bound"] if point["tau"] <= 0.3]
    taus = [point["tau"] for point in points]
    sides = {"loss + constant": "right", "-log P@20": "left"}
    interval = next(one for one in measured["intervals"] if one["epsilon"] == measured["epsilon"])
    yield _lines(
        "Both sides of the bound",
        "Line chart of both sides of the bound against τ",
        "temperature τ",
        "mean over users",
        {name: (taus, [point[key] for point in points]) for name, key in sides.items()},
        mark=((interval["low"] + interval["high"]) / 2, "proven here"),
    )
    yield _lines(
        "The worst case over negatives",
        "Line chart of the weight of a negative against its score",
        "score of the negative",
        "weight",
        {
            f"τ = {case['tau']:g} (η = {case['eta']:.2f})": (measured["negatives"], case["weights"])
            for case in measured["worst"]
        },
    )
    found = measured["convergence"]
    # the frame has linear axes, so the values are logarithms
    steps, means, allowed = (
        [math.log10(max(value, 1e-12)) for value in found[name]]
        for name in ("steps", "running_mean", "allowed")
    )
    yield _lines(
        "Convergence with a constant threshold",
        "Line chart of the mean squared gradient against steps",
        "log₁₀ of steps",
        "log₁₀",
        {"mean of ‖∇L‖²": (steps, means), "allowed by the theorem": (steps, allowed)},
        zero=False,
    )


_PLOTS: dict[str, Callable[[str, Any], Iterator[Figure]]] = {
    "temperature": _temperature,
    "inflation": _inflation,
    "inconsistency": _inconsistency,
    "theory": _theory,
}


# -------------------------------------------------------------------------------------------------- searches


_SEARCHES = """# Settings searched on validation

One fit with seed 0 for each setting; in brackets 1,000 times its best validation Precision@K. The chosen setting is
bold. In the searches of `equal` better settings were trained for longer, and only figures after the same number of
epochs can be compared; `searches.jsonl` has these. Rows that are not listed were run with one setting.
"""


def searches_page(store: ResultStore) -> str | None:
    """Every search behind a table, each setting with its validation metric; None without searches.

    >>> import pathlib, tempfile
    >>> searches_page(ResultStore(pathlib.Path(tempfile.mkdtemp()))) is None
    True
    """
    found = {}
    for experiment in EXPERIMENTS.values():
        for row in (row for dataset in experiment.datasets for row in experiment.rows(dataset)):
            kept = store.search(row.recipe) if row.recipe.searched else None
            key = (row.dataset, row.recipe.key)  # several tables have the same row
            if kept is not None and key not in found:
                tried = _tried(kept, [trial[row.recipe.watched] for trial in kept["trials"]])
                place = (
                    experiment.name,
                    DATASETS[row.dataset],
                    shown_name(row.group),
                    shown_name(row.method),
                )
                count = "1 setting" if len(tried) == 1 else f"{len(tried)} settings"
                found[key] = f"- {', '.join(place)}: {count}: {'; '.join(tried)}."
    return "\n".join([_SEARCHES, *found.values(), ""]) if found else None


def _tried(kept: Mapping[str, Any], values: Sequence[float]) -> list[str]:
    """Each distinct candidate with its value; the empty one is named by the starting values of what others change."""
    varied = {name for candidate in kept["candidates"] for name in candidate}
    begun = {name: value for name, value in kept["settings"].items() if name in varied}
    # what a candidate changes may be what it started from: then there is one setting
    chosen: dict[str, bool] = {}
    for place, (candidate, value) in enumerate(zip(kept["candidates"], values, strict=True)):
        words = ", ".join(shown_setting(*setting) for setting in (candidate or begun).items()) or "as printed"
        text = f"{words} ({1000 * value:.2f})"
        chosen[text] = chosen.get(text, False) or place == kept["best"]
    return [f"**{text}**" if best else text for text, best in chosen.items()]


# ---------------------------------------------------------------------------------------------------- README


def _claims_page(store: ResultStore) -> str | None:
    rows = [
        [f"[{one.text}]({one.table}.md)", one.where, one.label or "–", f"**{one.verdict}**", one.numbers]
        for one in claims(store)
    ]
    header = ("claim", "where", "metric", "verdict", "difference to the best rival, or figure")
    return f"{_TEXT['claims']}\n{_grid(header, rows)}" if rows else None


def _verdicts(store: ResultStore, verdicts: Sequence[str]) -> Iterator[list[str]]:
    """A row for each claim: for each verdict where it was reached, with the metrics where these differ."""
    for (table, text), members in groupby(claims(store), lambda claim: (claim.table, claim.text)):
        places: dict[str, dict[str, list[str]]] = {}
        for one in (member for member in members if member.verdict in verdicts):
            places.setdefault(one.where, {}).setdefault(one.verdict, []).append(one.label)
        cells = [
            "; ".join(
                f"{where} ({', '.join(found[verdict])})" if len(found) > 1 else where
                for where, found in places.items()
                if verdict in found
            )
            for verdict in verdicts
        ]
        if places:
            yield [f"[{text}]({table}.md)", *cells]


def _readme(store: ResultStore) -> str:
    tables = {"claim": ("ahead", "level", "behind"), "other claim": ("yes", "no")}
    lines = [
        _TEXT["readme"],
        *(_grid([name, *of], [*_verdicts(store, of)]) for name, of in tables.items()),
        _TEXT["other_pages"],
    ]
    missing = [line for line in status(Selection(), store) if line["done"] < line["runs"]]
    if not missing:
        lines.append("No run of these tables is missing. What the data do not allow:\n")
    for line in missing:
        names = f": {', '.join(line['missing'])}" if line["missing"] and line["done"] else ""
        count = f"{line['runs'] - line['done']} of {line['runs']} runs"
        lines.append(f"- {line['table']}, {line['dataset']}{' (core set)' * line['core']}: {count}{names}")
    return "\n".join([*lines, _TEXT["not_possible"]])
