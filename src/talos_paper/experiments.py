"""The tables and figures of the paper by name: what each is made of, and for which data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from talos.errors import ConfigError, nearest
from talos_paper import cells
from talos_paper.cells import Cell
from talos_paper.recipes import Fidelity

__all__ = ["EXPERIMENTS", "NOT_RUN", "Experiment", "by_name"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: in tables.
        paper: what it is in the paper.
        datasets: that it is made for, those of the core set first.
        needed: data sets of the core set.
        cells: the rows on a data set; None for studies that are no fits.
    """

    name: str
    title: str
    paper: str
    datasets: tuple[str, ...]
    needed: tuple[str, ...]
    cells: Callable[[str, Fidelity], Iterator[Cell]] | None = None

    def rows(self, dataset: str, fidelity: Fidelity = "fast") -> list[Cell]:
        """The cells of a data set, as they stand in the table."""
        if self.cells is None:
            return []
        here = dataset in self.needed
        return [replace(cell, needed=cell.needed and here) for cell in self.cells(dataset, fidelity)]


EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Experiment(
            name="statistics",
            title="Data sets",
            paper="the table of dataset statistics",
            datasets=("beauty", "gowalla", "games", "movielens-100k"),
            needed=("beauty", "gowalla", "games"),
        ),
        Experiment(
            name="inconsistency",
            title="How often other metrics disagree with Precision@20 and Recall@20",
            paper="Table 1, inconsistency of AUC, LLPAUC, NDCG and NDCG@20 with top-K accuracy",
            datasets=("beauty", "gowalla", "games"),
            needed=("beauty", "gowalla", "games"),
        ),
        Experiment(
            name="overall",
            title="Overall performance",
            paper="Table 2 (Precision and Recall) and its companion in the appendix (NDCG and MRR)",
            datasets=("beauty", "gowalla", "games"),
            needed=("beauty",),
            cells=cells.overall,
        ),
        Experiment(
            name="varying-k",
            title="Talos trained for K of 20, 50 and 80",
            paper="the two tables of performance with varying K",
            datasets=("beauty", "gowalla"),
            needed=("beauty",),
            cells=cells.varying_k,
        ),
        Experiment(
            name="temporal",
            title="Temporal shift",
            paper="the table of temporal shift",
            datasets=("beauty", "movielens-100k"),
            needed=("beauty", "movielens-100k"),
            cells=cells.temporal,
        ),
        Experiment(
            name="ablation",
            title="Ablation",
            paper="the table of the ablation study",
            datasets=("beauty", "gowalla", "games"),
            needed=("beauty",),
            cells=cells.ablation,
        ),
        Experiment(
            name="temperature",
            title="Sensitivity to the temperature τ",
            paper="the figure of sensitivity to τ",
            datasets=("beauty", "gowalla", "games"),
            needed=("beauty",),
            cells=cells.temperature,
        ),
        Experiment(
            name="slatk",
            title="Against SL@K",
            paper="the three tables that compare with SL@K: temporal shift, number of negatives, varying K",
            datasets=("movielens-100k", "beauty"),
            needed=("movielens-100k", "beauty"),
            cells=cells.slatk,
        ),
        Experiment(
            name="quantile-error",
            title="Estimated against exact thresholds",
            paper="the table of quantile estimation errors",
            datasets=("beauty", "movielens-100k", "gowalla"),
            needed=("beauty", "movielens-100k"),
            cells=cells.quantile_error,
        ),
        Experiment(
            name="inflation",
            title="Score inflation without the denominator",
            paper="the remark on score inflation (no figure in the paper)",
            datasets=("beauty",),
            needed=("beauty",),
            cells=cells.inflation,
        ),
        Experiment(
            name="efficiency",
            title="Seconds an epoch, as ratios to SL",
            paper="the table of computational time",
            datasets=("beauty", "gowalla", "games"),
            needed=("beauty",),
        ),
        Experiment(
            name="theory",
            title="The bound, its gap and the interval of τ",
            paper="Theorems 1 and 2 (no figure in the paper)",
            datasets=("made-up",),
            needed=("made-up",),
        ),
    )
}
"""Name → experiment, in the order of the paper."""

NOT_RUN: dict[str, str] = {
    "Figure 1 (two rankings of ten items; relations between losses)": "a drawing; nothing to measure",
    "tables of hyperparameters": "`talos_paper.published.hyperparameters`; the recipes start from them",
    "tables of notation": "nothing to measure",
}
"""What else the paper has, and why no command makes it."""


def by_name(name: str) -> Experiment:
    """The experiment of a name.

    >>> by_name("ablation").title
    'Ablation'
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"{name!r} is not known", where="TABLE", hint=nearest(name, [*EXPERIMENTS, "all"]))
    return EXPERIMENTS[name]
