"""The page and the model card of a run, of the same facts: measured once, worded once.

The card is Markdown with front matter, as the Hugging Face Hub shows it, in the sections that people expect of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.config import RunConfig, flat_settings
from talos.data.databases import without_password
from talos.data.interactions import Interactions
from talos.data.options import SourceOptions
from talos.evaluation.significance import mean_interval
from talos.model.measures import Lists, ScoreSample, by_activity, by_popularity, make_lists, sample_scores
from talos.model.model import Model
from talos.model.query import ListQuery, answer
from talos.model.recommender import Recommender, no_test_part
from talos.report.page import CARD_MARK, Figure, TextTable, fixed, markdown, number, render
from talos.report.svg import BOTH, Frame, Series, grouped_bars, histogram, line_chart, scatter, span, ticks

__all__ = ["model_card", "run_report"]

_POINTS = 500  # in a scatter plot: enough to show the shape, few enough for a small file
_SAMPLE_HISTORY, _SAMPLE_LENGTH = 6, 10  # items of a sample user: from the history, and recommended
_CURVE_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50)
_CARD_KS = (10, 20, 50)  # list lengths in the card, beside the K of training
# The metrics that are shown first, and how they are written.
_ACCURACY = (("precision", "Precision"), ("recall", "Recall"), ("ndcg", "NDCG"), ("mrr", "MRR"))
# Measures of the lists as a whole: title, name in `Lists.exposure`, axis and note.
_EXPOSURE = (
    (
        "Coverage",
        "coverage",
        "share of the catalogue shown",
        "Share of all items that are in at least one list.",
    ),
    (
        "Popularity bias",
        "popularity_rank",
        "mean popularity rank",
        "Mean rank by popularity of the items shown, as a share of the catalogue; 0 is the most popular.",
    ),
    (
        "Evenness of exposure",
        "gini",
        "Gini coefficient",
        "0 if all items are shown equally often, 1 at most.",
    ),
)


def run_report(
    recommender: Recommender,
    test: Interactions | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    *,
    refit_history: Sequence[Mapping[str, Any]] = (),
    title: str = "Run",
    date: str | None = None,
    most_users: int = 50_000,
    shown_users: int = 3,
    seed: int = 0,
) -> str:
    """One HTML file about a trained recommender: plots with their numbers, and sample recommendations.

    Items of a user in train and validation are masked in the lists. Equal arguments give equal text.

    Args:
        recommender: fitted or loaded.
        test: the test interactions, matched by id; those of the model if None. The page of a model that was fitted on
            all the data has the metrics of the model it was chosen from, marked as such.
        history: the records of `history.jsonl`; without them there are no learning curves.
        refit_history: those of `history-refit.jsonl`, for a refitted model.
        title: title of the page.
        date: shown as given.
        most_users: if there are more test users, a sample of this size is evaluated.
        shown_users: the number of users whose recommendations are shown.
        seed: the seed of the samples.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, dim=4, epochs=1).fit(data)
    >>> text = run_report(model, Interactions.from_ids(["ann"], ["rye"]))
    >>> text.startswith("<!doctype html>"), text.count('role="img"') >= 8
    (True, True)
    """
    facts = _run_facts(recommender, test, most_users=most_users, seed=seed)
    model, found, rng = facts["model"], facts["found"], np.random.default_rng(seed)
    learning = list(_learning(history, model.metadata, refit_history))
    facts |= {"title": title, "date": date, "learning": learning}
    if found is None:
        users = np.sort(rng.permutation(np.flatnonzero(model.train.user_degrees))[:shown_users])
        own = answer(model, ListQuery(users=users, k=min(_SAMPLE_LENGTH, model.train.num_items)))
        return render("run.html", **facts, samples=_samples(model, None, users, own.items, own.scores))
    lists, race = found.both[0], model.metadata.get("race") or facts["origin"].get("race", {})
    shown = np.sort(rng.permutation(len(lists.users))[:shown_users])
    sample = sample_scores(model, found.test, lists.users, k=found.k, seed=seed)
    return render(
        "run.html",
        **facts,
        race=race,
        stages=list(_stages(race.get("legs", []))),
        accuracy=[
            _against_k(f"{word}@K", found, [[one.mean(f"{name}@{k}") for k in one.ks] for one in found.both])
            for name, word in _ACCURACY[:3]
        ],
        groups=list(_groups(found)),
        sample=sample,
        scores=list(_scores(sample, found.k)) if len(sample.exact) else [],
        exposure=[
            _against_k(title, found, [one.exposure[name] for one in found.both], y, note)
            for title, name, y, note in _EXPOSURE
        ],
        samples=_samples(model, found.test, lists.users[shown], lists.items[shown], lists.scores[shown]),
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A model on its test interactions, beside ranking by popularity.

    Attributes:
        k: the list length that the model was trained for.
        test: the interactions of users and items that the model knows.
        lost: the number of other interactions.
        both: lists of the model and of ranking by popularity, at several list lengths, for all users of the test part
            or a sample of them.
        model: the model.
        place: the place of `k` among the list lengths.
        without_hit: the share of users without a hit in their first `k` items.
    """

    model: Model
    k: int
    test: Interactions
    lost: int
    both: tuple[Lists, Lists]
    place: int
    without_hit: float

    def by_activity(self) -> Figure:
        """Mean recall of the model and of popularity in groups of users; in the table with intervals."""
        recalls = [one.per_user[f"recall@{self.k}"] for one in self.both]
        groups = by_activity(self.model.train.user_degrees[self.both[0].users])
        means = [[float(values[members].mean()) for _, members in groups] for values in recalls]
        rows = [
            [name, f"{members.sum():,}", _with_interval(recalls[0][members]), fixed(popular)]
            for (name, members), popular in zip(groups, means[1], strict=True)
        ]
        return grouped_bars(
            "By user activity",
            Frame(
                f"Bar chart of mean recall@{self.k} of users in groups by their number of train interactions",
                "train interactions of the user",
                f"mean recall@{self.k}",
            ),
            means,
            TextTable(["train interactions", "users", *BOTH], rows),
        )

    def by_popularity(self) -> Figure:
        """Shares of the test interactions in the lists, in groups of items by popularity."""
        groups = by_popularity(self.model.train.item_degrees, self.both, self.test, self.k)
        means = list(zip(*(shares for *_, shares in groups), strict=True))
        rows = [
            [name, f"{items:,}", f"{pairs:,}", *map(fixed, shares)] for name, items, pairs, shares in groups
        ]
        return grouped_bars(
            "By item popularity",
            Frame(
                f"Bar chart of the share of test interactions in the top {self.k}, "
                "in groups by popularity of the item",
                "popularity rank of the item, % of all items",
                f"share in the top {self.k}",
            ),
            means,
            TextTable(["popularity rank, %", "items", "test interactions", *BOTH], rows),
        )


def _run_facts(
    recommender: Recommender, test: Interactions | None, *, most_users: int, seed: int
) -> dict[str, Any]:
    """The facts that the templates of the page and of the card have in common.

    `found` is the model on its test part, which is that of the run if `test` is None; it is None for a model that was
    fitted on all the data, whose metrics are those of the model it was chosen from.
    """
    model, config = recommender.fitted_model().on_cpu(), recommender.config
    test = model.test if test is None else test
    origin = model.metadata.get("chosen_from", {})
    if test is None and not origin:
        raise no_test_part(model)
    found, k = None, config.k
    means = [origin.get("metrics", {}), origin.get("baseline", {}).get("popularity", {})]
    if test is not None:
        known, lost = test.aligned_to(model.train)
        ks = sorted({at for at in (*_CURVE_KS, k) if at <= max(k, model.train.num_items)})
        both = make_lists(model, known, ks=ks, most_users=most_users, seed=seed)
        found = _Measured(
            model=model,
            k=k,
            test=known,
            lost=lost,
            both=both,
            place=ks.index(k),
            without_hit=float((both[0].per_user[f"recall@{k}"] == 0).mean()),
        )
        means = [{name: one.mean(name) for name in one.per_user} for one in found.both]
    return {
        "model": model,
        "k": k,
        "method": config.loss.name if config.baseline is None else config.baseline.name,
        "baseline": config.baseline is not None,
        "backbone": config.backbone.name,
        "fitted_on": _trained_on(model.metadata.get("trained_on", ["train"])),
        "origin": origin,
        "origin_fitted_on": _trained_on(origin.get("trained_on", ["train"])),
        "found": found,
        "means": means,
        "headline": [(word, name) for name, word in _ACCURACY if f"{name}@{k}" in means[0]],
        "settings": _settings(config, model),
    }


def _trained_on(parts: Iterable[str]) -> str:
    """The parts that a model was fitted on, in words.

    >>> _trained_on(["train", "valid", "test"])
    'train, validation and test'
    """
    *first, last = ["validation" if name == "valid" else name for name in parts]
    return f"{', '.join(first)} and {last}" if first else last


def _with_interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """The mean of the values with its 95 % confidence interval."""
    low, high = mean_interval(values)
    return f"{fixed(float(values.mean()))} ({fixed(low)} to {fixed(high)})"


def _settings(config: RunConfig, model: Model) -> TextTable:
    """Name and value of every setting, of results of training, and of the versions it ran with."""
    facts = model.metadata
    results = {name: facts[name] for name in ("epoch", "fit_seconds", "threshold_error") if name in facts}
    rows = {
        **flat_settings(config.as_dict()),
        **{
            f"interactions of {_trained_on([name])}": number(n)
            for name, n in facts.get("trained_on", {}).items()
        },
        **({"epochs from": facts["epochs_from"]} if "epochs_from" in facts else {}),
        **{name.replace("_", " "): number(value) for name, value in results.items() if value is not None},
        **{f"version of {name}": str(version) for name, version in facts.get("versions", {}).items()},
    }
    return TextTable(["setting", "value"], list(rows.items()))


# ------------------------------------------------------------------------------- plots


def _learning(
    history: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], refit: Sequence[Mapping[str, Any]]
) -> Iterator[Figure]:
    """Training loss, validation metric and seconds against epochs; and the training loss of a refit."""
    if history:
        yield _curve("Training loss", "mean loss", history, "loss")
        evaluated = [record for record in history if record["metrics"]]
        if evaluated:
            yield _validation(evaluated, int(facts.get("epoch", 0)), refitted=bool(refit))
        total, epochs = sum(record["seconds"] for record in history), len(history)
        note = f"{total:.1f} s in {epochs:,} epochs, {total / epochs:.2f} s each, without validation."
        yield _curve("Time profile", "seconds", history, "seconds", zero=True, note=note)
    if refit:
        yield _curve("Training loss of the refit", "mean loss", refit, "loss")


def _validation(records: Sequence[Mapping[str, Any]], best: int, *, refitted: bool) -> Figure:
    """The first of the metrics against epochs, and a table of all of them."""
    names = list(records[0]["metrics"])
    rows = [[number(one["epoch"]), *(fixed(one["metrics"].get(name)) for name in names)] for one in records]
    epochs, values = [one["epoch"] for one in records], [one["metrics"][names[0]] for one in records]
    return line_chart(
        "Validation metric",
        [Series(names[0], epochs, values)],
        "epoch",
        f"validation {names[0]}",
        table=TextTable(["epoch", *names], rows),
        note=f"Epoch {best} was best: the model was fitted again on more data for as many epochs."
        if refitted
        else f"The weights of epoch {best} were kept.",
        zero=False,
        mark=(best, "best" if refitted else "kept"),
        whole=True,
    )


def _curve(
    title: str, y: str, records: Sequence[Mapping[str, Any]], key: str, *, zero: bool = False, note: str = ""
) -> Figure:
    return line_chart(
        title,
        [Series(y, [record["epoch"] for record in records], [record[key] for record in records])],
        "epoch",
        y,
        zero=zero,
        whole=True,
        note=note,
    )


def _stages(legs: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """A figure for each stage of the race before training: its candidates, as they were measured on validation."""
    for stage in sorted({leg["stage"] for leg in legs}):
        own = [leg for leg in legs if leg["stage"] == stage]
        watched = next(iter(own[0]["metrics"]))
        series = [
            Series(
                name,
                [leg["epoch"] for leg in own if leg["candidate"] == name],
                [leg["metrics"][watched] for leg in own if leg["candidate"] == name],
            )
            for name in dict.fromkeys(leg["candidate"] for leg in own)
        ]
        yield line_chart(
            f"Stage {stage + 1}",
            series,
            "epoch",
            f"validation {watched}",
            of="candidate",
            zero=False,
            whole=True,
        )


def _against_k(
    title: str,
    found: _Measured,
    values: Sequence[Sequence[float]],
    y: str = "mean over users",
    note: str = "",
) -> Figure:
    """A measure of the model and of popularity against the list length."""
    series = [Series(name, found.both[0].ks, own) for name, own in zip(BOTH, values, strict=True)]
    return line_chart(title, series, "list length K", y, whole=True, note=note)


def _groups(found: _Measured) -> Iterator[Figure]:
    """Histograms of per-user metrics, and accuracy by activity of users and by popularity of items."""
    edges = np.linspace(0, 1, 21)
    named = {name: found.both[0].per_user[name] for name in (f"precision@{found.k}", f"recall@{found.k}")}
    # a value on the edge of two bins counts in the upper one
    counts = {
        name: np.histogram(np.minimum(values + 1e-9, 1.0), edges)[0].tolist()
        for name, values in named.items()
    }
    means, medians = (
        ", ".join(number(float(of(values))) for values in named.values()) for of in (np.mean, np.median)
    )
    yield histogram(
        "Users by metric",
        counts,
        edges.tolist(),
        Frame(
            f"Histograms of {' and '.join(named)} over {len(found.both[0].users):,} users; means: {means}",
            "metric of the user",
            "users",
        ),
        note=f"Medians {medians}; {found.without_hit:.1%} of users have no hit.",
    )
    yield found.by_activity()
    yield found.by_popularity()


def _scores(sample: ScoreSample, k: int) -> Iterator[Figure]:
    """Distributions of scores around the threshold; and learned against exact thresholds if there are learned ones."""
    named = {
        name: values
        for name, values in (
            ("train items", sample.train),
            ("test items", sample.test),
            ("other items", sample.negatives),
        )
        if len(values)
    }
    low, high = np.quantile(np.concatenate(list(named.values())), [0.001, 0.999])
    edges = np.linspace(min(low, 0), max(high, 0) + 1e-6, 41)
    shares = {
        name: (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)).tolist()
        for name, values in named.items()
    }
    above = ", ".join(f"{float((values >= 0).mean()):.1%} of {name}" for name, values in named.items())
    yield histogram(
        "Scores around the threshold",
        shares,
        edges.tolist(),
        Frame(
            f"Histograms of score minus threshold of the user; above the threshold are {above}",
            f"score − threshold (the score at place {k})",
            "share of items",
        ),
        note=f"At or above the threshold: {above}. {len(sample.exact):,} users.",
        mark=(0.0, "threshold"),
    )
    if sample.learned is not None:
        yield _thresholds(sample.exact, sample.learned)


def _thresholds(exact: NDArray[np.float64], learned: NDArray[np.float64]) -> Figure:
    error = learned - exact
    kept = np.linspace(0, len(exact) - 1, min(_POINTS, len(exact))).astype(int)
    distance = fixed(float(np.abs(error).mean()))
    spread = len(exact) > 1 and exact.std() and learned.std()
    low, high = span([*exact[kept], *learned[kept]])
    rows = [
        ["users", number(len(exact))],
        ["mean distance", distance],
        ["mean of learned − exact", fixed(float(error.mean()))],
        ["largest distance", fixed(float(np.abs(error).max()))],
        ["correlation", fixed(float(np.corrcoef(exact, learned)[0, 1]) if spread else None)],
        ["mean exact threshold", fixed(float(exact.mean()))],
        ["mean learned threshold", fixed(float(learned.mean()))],
    ]
    return Figure(
        "Learned against exact thresholds",
        scatter(
            [(x, y, "point f0") for x, y in zip(exact[kept].tolist(), learned[kept].tolist(), strict=True)],
            Frame(
                f"Scatter plot of learned against exact thresholds of {len(kept):,} users; mean distance {distance}",
                "exact threshold",
                "learned threshold",
            ),
            x=(low, high),
            y=(low, high),
            labels=[(value, number(value)) for value in ticks(low, high)],
            line=("equal", [(low, low), (high, high)]),
        ),
        TextTable(["", "value"], rows),
        note=f"Each point is a user; on the line both are equal. Mean distance {distance}.",
    )


# -------------------------------------------------------------- sample recommendations


def _samples(
    model: Model,
    test: Interactions | None,
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> Iterator[dict[str, Any]]:
    """Of each of these users: items of the history, and items recommended with score and whether they are in test."""
    data = model.train
    ids = data.item_ids.ids.cast(pl.String)
    titles = (
        ids if data.item_titles is None else data.item_titles.zip_with(data.item_titles.is_not_null(), ids)
    )
    for user, own, values in zip(users, items.tolist(), scores.tolist(), strict=True):
        has = model.seen.pairs_of(np.array([user]))[1]
        tested = set() if test is None else set(test.pairs_of(np.array([user]))[1].tolist())
        # the least popular items say most about a user's taste
        telling = has[np.argsort(data.item_degrees[has], kind="stable")][:_SAMPLE_HISTORY]
        ranked = list(zip(own, values, strict=True))[:_SAMPLE_LENGTH]
        yield {
            "name": data.user_ids.ids[int(user)],
            "count": len(has),
            "history": [titles[item] for item in telling.tolist()],
            "items": [(titles[item], score, item in tested) for item, score in ranked if item >= 0],
        }


# ------------------------------------------------------------------------------- the card


def model_card(
    recommender: Recommender,
    test: Interactions | None,
    *,
    title: str = "Recommender",
    license: str | None = None,  # noqa: A002
    most_users: int = 50_000,
    seed: int = 0,
) -> str:
    """A model card of a trained recommender in Markdown. Equal arguments give equal text.

    Args:
        recommender: fitted or loaded.
        test: the test interactions, as for `run_report`. The card of a model that was fitted on all the data has the
            metrics of the model it was chosen from, without intervals, and says so.
        title: name of the model.
        license: for the front matter, as the Hub writes it, such as "cc-by-4.0"; left out if None.
        most_users: if there are more test users, a sample of this size is measured.
        seed: the seed of the sample.

    >>> data = Interactions.from_ids(["ann", "ann", "bob", "bob"], ["tea", "jam", "tea", "rye"])
    >>> model = Recommender(k=1, dim=4, epochs=1).fit(data)
    >>> card = model_card(model, Interactions.from_ids(["ann", "bob"], ["rye", "jam"]), title="Breakfast")
    >>> card.startswith("---"), "# Breakfast" in card
    (True, True)
    """
    facts = _run_facts(recommender, test, most_users=most_users, seed=seed)
    model, found, (ours, popular) = facts["model"], facts["found"], facts["means"]
    data = _data_name(model)
    return (
        render(
            "card.md",
            **facts,
            mark=CARD_MARK,
            markdown=markdown,
            title=title,
            license=license,
            data_name=data,
            version=str(model.metadata.get("versions", {}).get("talos", "")).strip() or "of this machine",
            data=_data(model, data, facts["fitted_on"]),
            metrics=TextTable(
                ["metric", *BOTH],
                _metrics(found)
                if found
                else [[name, fixed(value), fixed(popular.get(name))] for name, value in ours.items()],
            ),
        )
        + "\n"
    )


def _data_name(model: Model) -> str:
    """The name of the data, without the folders of the machine they were on and without a query or a password."""
    path = str((model.metadata.get("source") or {}).get("path", ""))
    if "://" in path:
        return without_password(path).partition("?")[0].rstrip("/").rpartition("/")[2] or "a database"
    return PurePath(path.replace("\\", "/")).name or "interactions"


def _data(model: Model, name: str, fitted_on: str) -> TextTable:
    source = model.metadata.get("source")
    used = SourceOptions() if source is None else SourceOptions.from_dict(source)
    split = {} if source is None else {**asdict(used.split), **asdict(used.clean)}
    names = {"by": "split by", "test": "test share", "valid": "validation share of the other interactions"}
    options = [(names.get(key, key.replace("_", " ")), str(value)) for key, value in split.items() if value]
    counts = (row for row in model.train.describe().rows() if row[0] != "note")
    return TextTable(["", "value"], [("source", name), ("fitted on", fitted_on), *counts, *options])


def _metrics(found: _Measured) -> list[list[str]]:
    rows = [
        [f"{word}@{k}", *(_with_interval(one.per_user[f"{name}@{k}"]) for one in found.both)]
        for name, word in _ACCURACY
        for k in found.both[0].ks
        if k in (*_CARD_KS, found.k)
    ]
    k, at = found.k, found.place
    return [
        *rows,
        [f"Coverage@{k}", *(f"{one.exposure['coverage'][at]:.1%}" for one in found.both)],
        [f"Gini of exposure@{k}", *(fixed(one.exposure["gini"][at]) for one in found.both)],
        [f"Mean popularity rank@{k}", *(f"{one.exposure['popularity_rank'][at]:.1%}" for one in found.both)],
    ]
