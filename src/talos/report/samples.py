"""Sample recommendations: what some users have, and what they would be shown."""

from __future__ import annotations

from html import escape

import numpy as np

from talos.data.interactions import Interactions
from talos.model.run_directory import Model
from talos.report.measures import Lists

__all__ = ["sample_cards"]

HISTORY, LENGTH = 6, 10


def sample_cards(
    model: Model, test: Interactions, seen: Interactions, lists: Lists, *, shown: int, seed: int
) -> str:
    """A card for each of a few test users at random; items that the test set has are marked in words, too."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(len(lists.users), min(shown, len(lists.users)), replace=False))
    return f'<div class="figures">{"".join(_card(model, test, seen, lists, int(place)) for place in places)}</div>'


def _card(model: Model, test: Interactions, seen: Interactions, lists: Lists, place: int) -> str:
    user = int(lists.users[place])
    has = seen.indices[seen.indptr[user] : seen.indptr[user + 1]]
    wanted = set(test.indices[test.indptr[user] : test.indptr[user + 1]].tolist())
    # the least popular say most about a taste
    telling = has[np.argsort(model.train.item_degrees[has], kind="stable")][:HISTORY]
    names = "; ".join(title_of(model.train, int(item)) for item in telling) or "nothing"
    rows = []
    for item in lists.items[place, :LENGTH].tolist():
        if item >= 0:
            score = float(model.user_vectors[user] @ model.item_vectors[item])
            hit = ' <span class="hit">✓ in test</span>' if item in wanted else ""
            rows.append(f"<li>{escape(title_of(model.train, item))} <small>{score:.3f}</small>{hit}</li>")
    name = escape(str(model.train.user_ids.ids[user]))
    return (
        f'<div class="card"><h3>User {name}</h3>'
        f"<p>Has {len(has):,} items, the least common of which are: {escape(names)}</p><ol>{''.join(rows)}</ol></div>"
    )


def title_of(data: Interactions, item: int) -> str:
    """The title of an item, or its id where there is none."""
    title = None if data.item_titles is None else data.item_titles[item]
    return str(data.item_ids.ids[item]) if title is None else str(title)
