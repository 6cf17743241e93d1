"""The plots of a run: numbers in, figures with titles, notes and tables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.model.run_directory import Model
from talos.report.measures import Lists, ScoreSample, by_activity, by_popularity
from talos.report.page import Figure, Table
from talos.report.scales import fixed, number
from talos.report.svg import Frame, Series, bars, lines, points

__all__ = ["against_k", "exposure", "learning", "scores", "who"]

POINTS = 500  # of a scatter plot: enough to see the shape, few enough for a small file
BOTH = ("model", "popularity")


def learning(history: Sequence[Mapping[str, Any]], best: int) -> list[Figure]:
    """Loss, watched validation metric and seconds against epochs."""
    epochs = [record["epoch"] for record in history]
    loss = [record["loss"] for record in history]
    seconds = [record["seconds"] for record in history]
    found = [_curve("Training loss", "mean loss", epochs, loss, zero=False)]
    looks = [record for record in history if record["metrics"]]
    if looks:
        watched = next(iter(looks[0]["metrics"]))
        values = [record["metrics"][watched] for record in looks]
        at = [record["epoch"] for record in looks]
        names = list(looks[0]["metrics"])
        rows = [
            [str(record["epoch"]), *(fixed(record["metrics"].get(name)) for name in names)]
            for record in looks
        ]
        frame = Frame(
            f"Line chart of validation {watched} against epochs, from {number(values[0])} to {number(values[-1])}; "
            f"best at epoch {best}",
            "epoch",
            f"validation {watched}",
        )
        svg = lines([Series(watched, at, values)], frame, zero=False, mark=(best, "kept"), whole=True)
        note = f"The weights of epoch {best} were kept."
        found.append(Figure("Validation metric", svg, Table(["epoch", *names], rows), note=note))
    note = f"{sum(seconds):.1f} s in {len(epochs):,} epochs, {np.mean(seconds):.2f} s each; validation not counted."
    return [*found, _curve("Time profile", "seconds", epochs, seconds, zero=True, note=note)]


def _curve(
    title: str, y: str, epochs: Sequence[int], values: Sequence[float], *, zero: bool, note: str = ""
) -> Figure:
    label = f"Line chart of {y} against epochs, from {number(values[0])} to {number(values[-1])}"
    svg = lines([Series(y, epochs, values)], Frame(label, "epoch", y), zero=zero, whole=True)
    rows = [[str(epoch), fixed(value)] for epoch, value in zip(epochs, values, strict=True)]
    return Figure(title, svg, Table(["epoch", y], rows), note=note)


def against_k(lists: Lists, popular: Lists) -> list[Figure]:
    """Precision, recall and NDCG against K, beside ranking by popularity."""
    named = (("precision", "Precision"), ("recall", "Recall"), ("ndcg", "NDCG"))
    return [
        _versus(
            f"{word}@K",
            [lists.mean(f"{name}@{k}") for k in lists.ks],
            [popular.mean(f"{name}@{k}") for k in lists.ks],
            lists.ks,
            "mean over users",
        )
        for name, word in named
    ]


def _versus(
    title: str, ours: Sequence[float], theirs: Sequence[float], ks: Sequence[int], y: str, note: str = ""
) -> Figure:
    label = (
        f"Line chart of {title} for list lengths {ks[0]} to {ks[-1]}: the model from {number(ours[0])} to "
        f"{number(ours[-1])}, popularity from {number(theirs[0])} to {number(theirs[-1])}"
    )
    svg = lines(
        [Series("model", ks, ours), Series("popularity", ks, theirs)],
        Frame(label, "list length K", y),
        whole=True,
    )
    rows = [[str(k), fixed(a), fixed(b)] for k, a, b in zip(ks, ours, theirs, strict=True)]
    return Figure(title, svg, Table(["K", *BOTH], rows), legend=BOTH, note=note)


def who(model: Model, test: Interactions, lists: Lists, popular: Lists, k: int) -> list[Figure]:
    """Per-user histograms, and accuracy by activity of users and popularity of items."""
    found = [_histogram(lists, k)]
    metric = f"recall@{k}"
    groups = by_activity(model.train.user_degrees[lists.users])
    means = [
        [float(one.per_user[metric][members].mean()) for _, members in groups] for one in (lists, popular)
    ]
    label = f"Bar chart of mean {metric} of users in groups by their number of train interactions"
    frame = Frame(label, "train interactions of the user", f"mean {metric}")
    rows = [
        [name, f"{int(members.sum()):,}", fixed(a), fixed(b)]
        for (name, members), a, b in zip(groups, *means, strict=True)
    ]
    series = list(zip(BOTH, means, strict=True))
    found.append(
        Figure(
            "By user activity",
            bars([name for name, _ in groups], series, frame),
            Table(["train interactions", "users", *BOTH], rows),
            legend=BOTH,
            key="box",
        )
    )
    bins = by_popularity(model.train.item_degrees, (lists, popular), test, k)
    label = f"Bar chart of the share of test interactions in the top {k}, in groups by popularity of the item"
    frame = Frame(label, "popularity rank of the item, % of all items", f"found in the top {k}")
    series = [(name, [values[place] for *_, values in bins]) for place, name in enumerate(BOTH)]
    rows = [
        [name, f"{items:,}", f"{pairs:,}", *(fixed(value) for value in values)]
        for name, items, pairs, values in bins
    ]
    found.append(
        Figure(
            "By item popularity",
            bars([name for name, *_ in bins], series, frame),
            Table(["popularity rank, %", "items", "test interactions", *BOTH], rows),
            legend=BOTH,
            key="box",
        )
    )
    return found


def _histogram(lists: Lists, k: int, bins: int = 20) -> Figure:
    """How many users have which precision and recall; a value on an edge counts above it."""
    named = {f"{name}@{k}": lists.per_user[f"{name}@{k}"] for name in ("precision", "recall")}
    edges = np.linspace(0, 1, bins + 1).tolist()
    counts = {
        name: np.histogram(np.minimum(values + 1e-9, 1.0), bins=bins, range=(0, 1))[0].tolist()
        for name, values in named.items()
    }
    means = ", ".join(f"{name} {number(float(values.mean()))}" for name, values in named.items())
    label = f"Histograms over {len(lists.users):,} users; means: {means}"
    series = [Series(name, edges, [*count, count[-1]]) for name, count in counts.items()]
    rows = [
        [f"{low:.2f}–{high:.2f}", *(f"{count[place]:,}" for count in counts.values())]
        for place, (low, high) in enumerate(pairwise(edges))
    ]
    medians = ", ".join(number(float(np.median(values))) for values in named.values())
    zero = float((named[f"recall@{k}"] == 0).mean())
    return Figure(
        "Users by their metric",
        lines(series, Frame(label, "value of the user", "users"), steps=True),
        Table(["value", *named], rows),
        legend=list(named),
        note=f"Medians {medians}; {zero:.1%} of users have no hit.",
        key="line",
    )


def scores(sample: ScoreSample, k: int) -> list[Figure]:
    """Distributions around the threshold; learned against exact thresholds, where there are learned ones."""
    named = {"train items": sample.train, "test items": sample.test, "other items": sample.negatives}
    named = {name: values for name, values in named.items() if len(values)}
    everything = np.concatenate(list(named.values()))
    low, high = np.quantile(everything, [0.001, 0.999])
    edges = np.linspace(min(low, 0), max(high, 0) + 1e-6, 41)
    shares = {
        name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] / len(v) for name, v in named.items()
    }
    above = {name: float((values >= 0).mean()) for name, values in named.items()}
    said = ", ".join(f"{value:.1%} of {name}" for name, value in above.items())
    frame = Frame(
        f"Histograms of score minus threshold of the user; above the threshold are {said}",
        f"score − threshold (the score at place {k})",
        "share of items",
    )
    series = [
        Series(name, edges.tolist(), [*share.tolist(), float(share[-1])]) for name, share in shares.items()
    ]
    svg = lines(series, frame, steps=True, mark=(0.0, "threshold"))
    rows = [
        [f"{a:.3f} to {b:.3f}", *(f"{share[place]:.4f}" for share in shares.values())]
        for place, (a, b) in enumerate(pairwise(edges.tolist()))
    ]
    found = [
        Figure(
            "Scores around the threshold",
            svg,
            Table(["score − threshold", *named], rows),
            legend=list(named),
            note=f"At or above the threshold: {said}. {len(sample.exact):,} users.",
            key="line",
        )
    ]
    if sample.learned is not None:
        found.append(_thresholds(sample.exact, sample.learned))
    return found


def _thresholds(exact: NDArray[np.float64], learned: NDArray[np.float64]) -> Figure:
    error = learned - exact
    kept = np.linspace(0, len(exact) - 1, min(POINTS, len(exact))).astype(int)
    label = (
        f"Scatter plot of learned against exact thresholds of {len(kept):,} users; mean distance "
        f"{number(float(np.abs(error).mean()))}"
    )
    svg = points(
        exact[kept].tolist(), learned[kept].tolist(), Frame(label, "exact threshold", "learned threshold")
    )
    together = (
        float(np.corrcoef(exact, learned)[0, 1]) if len(exact) > 1 and exact.std() and learned.std() else None
    )
    rows = [
        ["users", number(len(exact))],
        ["mean distance", fixed(float(np.abs(error).mean()))],
        ["mean of learned − exact", fixed(float(error.mean()))],
        ["largest distance", fixed(float(np.abs(error).max()))],
        ["correlation", fixed(together)],
        ["mean exact threshold", fixed(float(exact.mean()))],
        ["mean learned threshold", fixed(float(learned.mean()))],
    ]
    note = f"Each point is a user; on the line both are equal. Mean distance {rows[1][1]}."
    return Figure("Learned against exact thresholds", svg, Table(["", "value"], rows), note=note)


def exposure(lists: Lists, popular: Lists) -> list[Figure]:
    """Coverage, popularity rank and Gini coefficient of what is shown, against K."""
    return [
        _versus(
            "Coverage",
            lists.coverage,
            popular.coverage,
            lists.ks,
            "share of the catalogue shown",
            "Share of all items that are in somebody's list.",
        ),
        _versus(
            "Popularity bias",
            lists.popularity_rank,
            popular.popularity_rank,
            lists.ks,
            "mean popularity rank",
            "Mean rank by popularity of the items shown, as a share of the catalogue; 0 is the most popular.",
        ),
        _versus(
            "Evenness of exposure",
            lists.gini,
            popular.gini,
            lists.ks,
            "Gini coefficient",
            "0 if all items are shown equally often, towards 1 if a few are shown to everybody.",
        ),
    ]
