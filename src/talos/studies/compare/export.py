"""The table of a comparison as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talos.studies.compare.table import ComparisonTable, ModelRow

__all__ = ["SHOWN_TEST", "csv_text", "latex_text"]

# The tables show the p-value of this one of the tests of `talos.significance`; JSON has all of them.
SHOWN_TEST = "t"
_CSV_COLUMNS = [
    "model", "loss", "backbone", "metric", "mean", "std", "seeds", "difference", "hypothesis",
    "p_users", "p_users_holm", "p_seeds", "p_seeds_holm", "users_higher", "users_lower", "effect_size",
    "fit_seconds_mean", "fit_seconds_std", "epochs",
]  # fmt: skip


def _csv_row(row: ModelRow, metric: str) -> dict[str, Any]:
    found = row.against.get(metric)
    values: dict[str, Any] = {
        "model": row.model,
        "loss": row.loss,
        "backbone": row.backbone,
        "metric": metric,
        "mean": row.means[metric],
        "std": row.stds[metric] if len(row.seeds) > 1 else None,
        "seeds": len(row.seeds),
        "fit_seconds_mean": round(row.fit_seconds[0], 3),
        "fit_seconds_std": round(row.fit_seconds[1], 3) if len(row.seeds) > 1 else None,
        "epochs": row.epochs,
    }
    if found is None:
        return values
    values |= {"difference": found.difference, "p_users_holm": found.p_users, "p_seeds_holm": found.p_seeds}
    if found.users is not None:
        values |= {
            "hypothesis": found.users.hypothesis,
            "p_users": found.users.p_values[SHOWN_TEST],
            "users_higher": found.users.wins,
            "users_lower": found.users.losses,
            "effect_size": found.users.effect_size,
        }
    if found.seeds is not None:
        values["p_seeds"] = found.seeds.p_values[SHOWN_TEST]
    return values


def csv_text(table: ComparisonTable) -> str:
    """The table as CSV, one line for each model and metric."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        for metric in table.metrics:
            writer.writerow(_csv_row(row, metric))
    return text.getvalue()


def latex_text(table: ComparisonTable) -> str:
    """The table as LaTeX for `booktabs`; the best mean of each metric is in bold."""
    header = [latex_escape(name) for name in ("model", *table.metrics, "seconds")]
    best = {metric: max(row.means[metric] for row in table.rows) for metric in table.metrics}
    lines = []
    for row in table.rows:
        cells = [latex_escape(row.model)]
        for metric in table.metrics:
            marks = table.marks(row, metric).strip().replace("†", r"\dagger")
            number = f"{row.means[metric]:.4f}"
            number = rf"\mathbf{{{number}}}" if row.means[metric] == best[metric] else number
            std = "" if len(row.seeds) < 2 else rf" \pm {row.stds[metric]:.4f}"
            cells.append(f"${number}{std}{f'^{{{marks}}}' if marks else ''}$")
        lines.append(" & ".join([*cells, f"{row.fit_seconds[0]:.1f}"]) + r" \\")
    columns = "l" + "r" * (len(header) - 1)
    body = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        f"% {latex_escape(table.legend)}",
    ]
    return "\n".join(body) + "\n"


_LATEX: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "\n": " ",
}


def latex_escape(text: str) -> str:
    r"""The text with every special character of LaTeX escaped.

    >>> print(latex_escape("a_b & 5%"))
    a\_b \& 5\%
    """
    return text.translate(str.maketrans(_LATEX))
