"""Draws the figures of the pages from numbers that the library computes: `python docs/figures.py` writes docs/images.

A test draws them again and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from talos.evaluation import metrics
from talos.files import replace_text
from talos.losses import BPR, Loss, Softmax, Talos
from talos.report import standalone
from talos.report.page import Figure, Plot, TextTable, fixed
from talos.report.svg import Frame, Series, bars, lines

__all__ = ["RANKINGS", "figures", "measure", "push"]

FOLDER = Path(__file__).parent / "images"

# Two rankings of ten items: the ranks of the four items that the user wants.
RANKINGS = {"ranking 1": (3, 4, 5, 9), "ranking 2": (1, 2, 6, 7)}
ITEMS, K = 10, 5
PART = 0.7  # LLPAUC looks at this share of the positives and of the negatives


def measure(wanted: Sequence[int]) -> dict[str, float]:
    """The metrics of one ranking of ten items, by the library's own functions."""
    hits = torch.zeros(1, ITEMS, dtype=torch.bool)
    hits[0, [rank - 1 for rank in wanted]] = True
    relevant = torch.tensor([len(wanted)])
    above = torch.tensor([rank - 1.0 - place for place, rank in enumerate(wanted)])
    pairs = (above, torch.zeros(len(wanted), dtype=torch.long), torch.tensor([ITEMS - len(wanted)]))
    values = {
        "AUC": metrics.auc(*pairs),
        "LLPAUC": metrics.llpauc(*pairs, alpha=PART, beta=PART),
        "NDCG": metrics.ndcg(hits, relevant, ITEMS),
        f"P@{K}": metrics.precision(hits, relevant, K),
        f"R@{K}": metrics.recall(hits, relevant, K),
    }
    return {name: value.item() for name, value in values.items()}


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def _two_rankings() -> Figure:
    """The items of both rankings in a row each, those that the user wants filled."""
    side, left, height = 22, 86, 118
    parts = [_text(left + side * (place + 0.5), 22, str(place + 1), "middle") for place in range(ITEMS)]
    for row, (name, wanted) in enumerate(RANKINGS.items()):
        y = 32 + row * 38
        parts.append(_text(8, y + 16, name, "start", "name"))
        for place in range(ITEMS):
            kind = f"f{row}" if place + 1 in wanted else "ring c6"
            x = left + place * side
            parts.append(
                f'<rect class="{kind}" x="{x + 2}" y="{y}" width="{side - 4}" height="{side - 4}" rx="4"/>'
            )
    cut = left + K * side
    parts.append(f'<line class="mark" x1="{cut}" x2="{cut}" y1="10" y2="{height - 14}"/>')
    parts.append(_text(cut - 6, height - 4, f"shown: the first {K}", "end"))
    ranks = ", ".join(
        f"{name} has them at ranks {', '.join(map(str, wanted))}" for name, wanted in RANKINGS.items()
    )
    label = f"Two rankings of ten items, of which a user wants four: {ranks}"
    plot = Plot(label, height, "\n".join(parts))
    return Figure("Two rankings of the same ten items", plot, TextTable([""], []))


def _their_metrics() -> Figure:
    values = {name: measure(wanted) for name, wanted in RANKINGS.items()}
    names = list(next(iter(values.values())))
    label = "; ".join(
        f"{name}: " + ", ".join(f"{metric} {fixed(value, 2)}" for metric, value in found.items())
        for name, found in values.items()
    )
    series = [(name, list(found.values())) for name, found in values.items()]
    plot = bars(names, series, Frame(f"Bar chart of metrics. {label}", "metric", "value"), top=1.0)
    return Figure(
        "What the metrics say about them", plot, TextTable([""], []), legend=list(values), key="box"
    )


def push(loss: Loss, around: torch.Tensor) -> torch.Tensor:
    """How hard a loss pushes a negative down, by its score; the positive and the threshold are at 0."""
    given = {"threshold": torch.zeros(1)} if loss.needs.threshold else {}
    negatives = around.clone().requires_grad_()
    loss(torch.zeros(1), negatives.unsqueeze(0), **given).sum().backward()
    assert negatives.grad is not None
    return negatives.grad


def _three_pushes() -> Figure:
    """The push of three losses, each as a multiple of that at the threshold."""
    x = torch.linspace(-0.3, 0.3, 61)
    losses = {"BPR": BPR(), "SL": Softmax(tau=0.1), "Talos": Talos(tau=0.1)}
    series, ends = [], []
    for name, loss in losses.items():
        found = push(loss, x)
        relative = (found / found[len(x) // 2]).tolist()
        series.append(Series(name, x.tolist(), relative))
        ends.append(f"{name} from {relative[0]:.2g} to {relative[-1]:.2g}")
    label = f"The push on an item that the user does not want, by its score: {', '.join(ends)}"
    plot = lines(series, Frame(label, "score − threshold", "push, at β = 1"), mark=(0.0, "threshold β"))
    return Figure("How hard an unwanted item is pushed down", plot, TextTable([""], []), legend=list(losses))


def figures() -> dict[str, str]:
    """File name → SVG of every figure."""
    drawn = {
        "two-rankings.svg": _two_rankings(),
        "two-rankings-metrics.svg": _their_metrics(),
        "push.svg": _three_pushes(),
    }
    return {name: standalone(figure) for name, figure in drawn.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in figures().items():
        replace_text(FOLDER / name, text)
