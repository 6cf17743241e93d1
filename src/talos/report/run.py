"""The page of a run, and its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.errors import ArgumentError
from talos.model.measures import Lists, ScoreSample, sample_scores
from talos.model.model import Model
from talos.model.query import ListQuery, answer
from talos.model.recommender import Recommender, no_test_part
from talos.report.facts import ACCURACY, Measured, measure, setting_rows, trained_on, what_it_is
from talos.report.page import Figure, Section, TextTable, page, table_html, tiles
from talos.report.svg import COLOURS, Frame, Series, bars, fixed, lines, number, points

__all__ = ["run_report"]

_POINTS = 500  # in a scatter plot: enough to show the shape, few enough for a small file
_BOTH = ("model", "popularity")
_CARD_HISTORY, _CARD_LENGTH = 6, 10  # items on the card of a sample user: from the history, and recommended


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
    model = recommender.model
    if model is None:
        raise ArgumentError("is not fitted", where="recommender", expected="one that was fitted or loaded")
    model = model.on_cpu()
    test = model.test if test is None else test
    config, train = recommender.config, model.train
    k = config.k
    counted = trained_on(model.metadata.get("trained_on", {"train": len(train)}))
    size = f"{train.num_users:,} users, {train.num_items:,} items, {len(train):,} interactions of {counted}"
    subtitle = f"{what_it_is(config)}, K = {k}. {size}."
    learning = _learning(history, int(model.metadata.get("epoch", 0)), refit_history)
    settings = Section(
        "Settings", html=table_html(TextTable(["setting", "value"], setting_rows(config, model)))
    )
    if test is None:
        if "chosen_from" not in model.metadata:
            raise no_test_part(model)
        cards = _sample_cards(model, None, _own_lists(model, shown_users, seed), shown=shown_users, seed=seed)
        samples = Section("Sample recommendations", html=cards)
        return page(title, subtitle, [_chosen_from(model, k), learning, samples, settings], date=date)
    found = measure(model, test, config, most_users=most_users, seed=seed)
    known, lists, popular = found.test, found.lists, found.popular
    cards = _sample_cards(
        model, known, (lists.users, lists.items, lists.scores), shown=shown_users, seed=seed
    )
    measured = "The lists that are measured: unlike those of `talos recommend`, they may hold test items."
    sections = [
        Section("At a glance", html=_glance(lists, popular, k), note=found.notes),
        learning,
        *_race(model.metadata.get("race") or model.metadata.get("chosen_from", {}).get("race", {})),
        Section("Accuracy", _accuracy(lists, popular)),
        Section("Who it works for", _users_and_items(found)),
        _scores(sample_scores(model, known, lists.users, k=k, seed=seed), k),
        Section("Beyond accuracy", _exposure(lists, popular)),
        Section("Sample recommendations", html=cards, note=measured),
        settings,
    ]
    return page(title, subtitle, sections, date=date)


def _glance(lists: Lists, popular: Lists, k: int) -> str:
    values = []
    for name, word in ACCURACY:
        ours, theirs = (number(one.mean(f"{name}@{k}")) for one in (lists, popular))
        values.append((f"{word}@{k}", ours, f"popularity {theirs}"))
    ours, theirs = (f"{one.coverage[lists.ks.index(k)]:.1%}" for one in (lists, popular))
    return tiles([*values, (f"Coverage@{k}", ours, f"popularity {theirs}")])


def _chosen_from(model: Model, k: int) -> Section:
    """The metrics of the model that the settings and the epochs come from, where this one has no test figure."""
    origin = model.metadata.get("chosen_from", {})
    metrics, popular = origin.get("metrics", {}), origin.get("baseline", {}).get("popularity", {})
    found = [(f"{word}@{k}", f"{name}@{k}") for name, word in ACCURACY]
    values = [
        (word, number(metrics[key]), f"popularity {number(popular.get(key, 0.0))}")
        for word, key in found
        if key in metrics
    ]
    here, there = (trained_on(one.get("trained_on", {"train": 0})) for one in (model.metadata, origin))
    note = (
        f"No test figure: this model was fitted on {here}. The metrics are those of the model it was chosen from, "
        f"which was fitted on {there}."
    )
    return Section(
        "At a glance: the model it was chosen from", html=tiles(values) if values else "", note=note
    )


# ------------------------------------------------------------------------------- plots


def _learning(
    history: Sequence[Mapping[str, Any]], best: int, refit: Sequence[Mapping[str, Any]] = ()
) -> Section:
    """Training loss, validation metric and seconds against epochs; and the training loss of a refit."""
    again = []
    if refit:
        steps, losses = [record["epoch"] for record in refit], [record["loss"] for record in refit]
        again = [_curve("Training loss of the refit", "mean loss", steps, losses, zero=False)]
    if not history:
        return Section("Learning", again, note="" if again else "No history was kept with this run.")
    epochs = [record["epoch"] for record in history]
    loss = [record["loss"] for record in history]
    seconds = [record["seconds"] for record in history]
    found = [_curve("Training loss", "mean loss", epochs, loss, zero=False)]
    evaluated = [record for record in history if record["metrics"]]
    if evaluated:
        names = list(evaluated[0]["metrics"])
        evaluated = [record for record in evaluated if names[0] in record["metrics"]]
        values = [record["metrics"][names[0]] for record in evaluated]
        rows = [
            [str(record["epoch"]), *(fixed(record["metrics"].get(name)) for name in names)]
            for record in evaluated
        ]
        watched = f"validation {names[0]}"
        label = (
            f"Line chart of {watched} against epochs, from {number(values[0])} to {number(values[-1])}; "
            f"best at epoch {best}"
        )
        series = Series(names[0], [record["epoch"] for record in evaluated], values)
        svg = lines([series], Frame(label, "epoch", watched), zero=False, mark=(best, "kept"), whole=True)
        note = f"The weights of epoch {best} were kept."
        if refit:
            note = f"Epoch {best} was best: the model was fitted again on more data for as many epochs."
        found.append(Figure("Validation metric", svg, TextTable(["epoch", *names], rows), note=note))
    note = f"{sum(seconds):.1f} s in {len(epochs):,} epochs, {np.mean(seconds):.2f} s each; validation not counted."
    found.append(_curve("Time profile", "seconds", epochs, seconds, zero=True, note=note))
    return Section("Learning", [*found, *again])


def _race(race: Mapping[str, Any]) -> list[Section]:
    """What was tried before training, stage by stage; none if nothing was raced."""
    legs = race.get("legs", [])
    if not legs:
        return []
    watched = next(iter(legs[0]["metrics"]))
    figures = []
    for stage in sorted({leg["stage"] for leg in legs}):
        own = [leg for leg in legs if leg["stage"] == stage]
        names = list(dict.fromkeys(leg["candidate"] for leg in own))[:COLOURS]
        series = [
            Series(
                name,
                [leg["epoch"] for leg in own if leg["candidate"] == name],
                [leg["metrics"][watched] for leg in own if leg["candidate"] == name],
            )
            for name in names
        ]
        label = f"Line chart of validation {watched} against epochs for {len(names)} candidates: {', '.join(names)}"
        rows = [[leg["candidate"], str(leg["epoch"]), fixed(leg["metrics"][watched])] for leg in own]
        svg = lines(series, Frame(label, "epoch", watched), zero=False, whole=True)
        table = TextTable(["candidate", "epoch", watched], rows)
        figures.append(Figure(f"Stage {stage + 1}", svg, table, legend=names))
    chosen = ", ".join(f"{name} {value}" for name, value in race.get("chosen", {}).items())
    note = f"Candidates train side by side; after each leg the worse half is dropped. Chosen on validation: {chosen}."
    return [Section("The race", figures, note=note)]


def _curve(
    title: str, y: str, epochs: Sequence[int], values: Sequence[float], *, zero: bool, note: str = ""
) -> Figure:
    label = f"Line chart of {y} against epochs, from {number(values[0])} to {number(values[-1])}"
    svg = lines([Series(y, epochs, values)], Frame(label, "epoch", y), zero=zero, whole=True)
    rows = [[str(epoch), fixed(value)] for epoch, value in zip(epochs, values, strict=True)]
    return Figure(title, svg, TextTable(["epoch", y], rows), note=note)


def _accuracy(lists: Lists, popular: Lists) -> list[Figure]:
    """Precision, recall and NDCG against K, beside ranking by popularity."""
    figures = []
    for name, word in ACCURACY[:3]:
        ours, theirs = ([one.mean(f"{name}@{k}") for k in lists.ks] for one in (lists, popular))
        figures.append(_versus(f"{word}@K", ours, theirs, lists.ks, "mean over users"))
    return figures


def _versus(
    title: str, ours: Sequence[float], theirs: Sequence[float], ks: Sequence[int], y: str, note: str = ""
) -> Figure:
    label = (
        f"Line chart of {title} for list lengths {ks[0]} to {ks[-1]}: the model from {number(ours[0])} to "
        f"{number(ours[-1])}, popularity from {number(theirs[0])} to {number(theirs[-1])}"
    )
    series = [Series(name, ks, values) for name, values in zip(_BOTH, (ours, theirs), strict=True)]
    svg = lines(series, Frame(label, "list length K", y), whole=True)
    rows = [[str(k), fixed(a), fixed(b)] for k, a, b in zip(ks, ours, theirs, strict=True)]
    return Figure(title, svg, TextTable(["K", *_BOTH], rows), legend=_BOTH, note=note)


def _users_and_items(found: Measured) -> list[Figure]:
    """Histograms of per-user metrics, and accuracy by activity of users and by popularity of items."""
    lists, popular, k = found.lists, found.popular, found.k
    metric = f"recall@{k}"
    users = []
    for name, members in found.by_activity():
        means = [float(one.per_user[metric][members].mean()) for one in (lists, popular)]
        users.append((name, [f"{int(members.sum()):,}"], means))
    label = f"Bar chart of mean {metric} of users in groups by their number of train interactions"
    by_user = _grouped(
        "By user activity",
        ["train interactions", "users"],
        users,
        Frame(label, "train interactions of the user", f"mean {metric}"),
    )
    label = f"Bar chart of the share of test interactions in the top {k}, in groups by popularity of the item"
    by_item = _grouped(
        "By item popularity",
        ["popularity rank, %", "items", "test interactions"],
        [
            (name, [f"{items:,}", f"{pairs:,}"], shares)
            for name, items, pairs, shares in found.by_popularity()
        ],
        Frame(label, "popularity rank of the item, % of all items", f"found in the top {k}"),
    )
    return [_histogram(lists, k), by_user, by_item]


def _grouped(
    title: str, header: list[str], groups: Sequence[tuple[str, list[str], list[float]]], frame: Frame
) -> Figure:
    """Bars of the model and of popularity for groups of (name, sizes as text, values of both)."""
    series = [(name, [values[place] for *_, values in groups]) for place, name in enumerate(_BOTH)]
    svg = bars([name for name, *_ in groups], series, frame)
    rows = [[name, *sizes, *map(fixed, values)] for name, sizes, values in groups]
    return Figure(title, svg, TextTable([*header, *_BOTH], rows), legend=_BOTH, key="box")


def _histogram(lists: Lists, k: int, bins: int = 20) -> Figure:
    """Histograms of users by precision and recall; a value on the edge of two bins counts in the upper one."""
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
        TextTable(["value", *named], rows),
        legend=list(named),
        note=f"Medians {medians}; {zero:.1%} of users have no hit.",
        key="line",
    )


def _scores(sample: ScoreSample, k: int) -> Section:
    """Distributions of scores around the threshold; and learned against exact thresholds if there are learned ones."""
    if len(sample.exact) == 0:
        return Section("Scores and thresholds", note="No user of the test set was trained on.")
    named = {"train items": sample.train, "test items": sample.test, "other items": sample.negatives}
    named = {name: values for name, values in named.items() if len(values)}
    low, high = np.quantile(np.concatenate(list(named.values())), [0.001, 0.999])
    edges = np.linspace(min(low, 0), max(high, 0) + 1e-6, 41)
    shares = {
        name: (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)).tolist()
        for name, values in named.items()
    }
    said = ", ".join(f"{float((values >= 0).mean()):.1%} of {name}" for name, values in named.items())
    frame = Frame(
        f"Histograms of score minus threshold of the user; above the threshold are {said}",
        f"score − threshold (the score at place {k})",
        "share of items",
    )
    series = [Series(name, edges.tolist(), [*share, share[-1]]) for name, share in shares.items()]
    rows = [
        [f"{a:.3f} to {b:.3f}", *(f"{share[place]:.4f}" for share in shares.values())]
        for place, (a, b) in enumerate(pairwise(edges.tolist()))
    ]
    around = Figure(
        "Scores around the threshold",
        lines(series, frame, steps=True, mark=(0.0, "threshold")),
        TextTable(["score − threshold", *named], rows),
        legend=list(named),
        note=f"At or above the threshold: {said}. {len(sample.exact):,} users.",
        key="line",
    )
    if sample.learned is None:
        note = "This model has no thresholds: there are no learned ones to compare."
        return Section("Scores and thresholds", [around], note=note)
    return Section("Scores and thresholds", [around, _thresholds(sample.exact, sample.learned)])


def _thresholds(exact: NDArray[np.float64], learned: NDArray[np.float64]) -> Figure:
    error = learned - exact
    distance = np.abs(error)
    kept = np.linspace(0, len(exact) - 1, min(_POINTS, len(exact))).astype(int)
    label = (
        f"Scatter plot of learned against exact thresholds of {len(kept):,} users; mean distance "
        f"{number(float(distance.mean()))}"
    )
    frame = Frame(label, "exact threshold", "learned threshold")
    svg = points(exact[kept].tolist(), learned[kept].tolist(), frame)
    spread = len(exact) > 1 and exact.std() and learned.std()
    together = float(np.corrcoef(exact, learned)[0, 1]) if spread else None
    rows = [
        ["users", number(len(exact))],
        ["mean distance", fixed(float(distance.mean()))],
        ["mean of learned − exact", fixed(float(error.mean()))],
        ["largest distance", fixed(float(distance.max()))],
        ["correlation", fixed(together)],
        ["mean exact threshold", fixed(float(exact.mean()))],
        ["mean learned threshold", fixed(float(learned.mean()))],
    ]
    note = f"Each point is a user; on the line both are equal. Mean distance {rows[1][1]}."
    return Figure("Learned against exact thresholds", svg, TextTable(["", "value"], rows), note=note)


def _exposure(lists: Lists, popular: Lists) -> list[Figure]:
    """Coverage, popularity rank and Gini coefficient of the lists against K."""
    rank = "Mean rank by popularity of the items shown, as a share of the catalogue; 0 is the most popular."
    gini = "0 if all items are shown equally often, towards 1 if a few are shown to everybody."
    shown = "Share of all items that are in somebody's list."
    return [
        _versus(title, getattr(lists, name), getattr(popular, name), lists.ks, y, note)
        for title, name, y, note in (
            ("Coverage", "coverage", "share of the catalogue shown", shown),
            ("Popularity bias", "popularity_rank", "mean popularity rank", rank),
            ("Evenness of exposure", "gini", "Gini coefficient", gini),
        )
    ]


# -------------------------------------------------------------- sample recommendations


# users (U,), their items (U, K) and the scores of these (U, K)
_UserLists: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


def _own_lists(model: Model, shown: int, seed: int) -> _UserLists:
    """What a few random users would be recommended."""
    rng, users = np.random.default_rng(seed), np.flatnonzero(model.train.user_degrees)
    users = np.sort(rng.choice(users, min(shown, len(users)), replace=False))
    lists = answer(model, ListQuery(users=users, k=min(_CARD_LENGTH, model.train.num_items)))
    return users, lists.items, lists.scores


def _sample_cards(
    model: Model, test: Interactions | None, lists: _UserLists, *, shown: int, seed: int
) -> str:
    """Cards of a few random users of these lists; test items are marked by a word, not by colour alone."""
    rng, (users, items, scores) = np.random.default_rng(seed), lists
    places = np.sort(rng.choice(len(users), min(shown, len(users)), replace=False))
    cards = "".join(_card(model, test, int(users[place]), items[place], scores[place]) for place in places)
    return f'<div class="figures">{cards}</div>'


def _card(
    model: Model,
    test: Interactions | None,
    user: int,
    items: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> str:
    has = model.seen.pairs_of(np.array([user]))[1]
    wanted = has[:0] if test is None else test.pairs_of(np.array([user]))[1]
    # the least popular items say most about a user's taste
    telling = has[np.argsort(model.train.item_degrees[has], kind="stable")][:_CARD_HISTORY]
    names = "; ".join(_title_of(model.train, int(item)) for item in telling) or "nothing"
    rows = []
    for item, score in islice(zip(items.tolist(), scores.tolist(), strict=True), _CARD_LENGTH):
        if item >= 0:
            hit = ' <span class="hit">✓ in test</span>' if item in wanted else ""
            rows.append(f"<li>{escape(_title_of(model.train, item))} <small>{score:.3f}</small>{hit}</li>")
    name = escape(str(model.train.user_ids.ids[user]))
    return (
        f'<div class="card"><h3>User {name}</h3>'
        f"<p>Has {len(has):,} items, the least common of which are: {escape(names)}</p><ol>{''.join(rows)}</ol></div>"
    )


def _title_of(data: Interactions, item: int) -> str:
    """The title of an item, or its id if it has none."""
    title = None if data.item_titles is None else data.item_titles[item]
    return str(data.item_ids.ids[item]) if title is None else str(title)
