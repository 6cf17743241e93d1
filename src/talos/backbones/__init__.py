"""Backbones: where the vectors of users and items come from.

Each is a `Backbone`: `vectors()` gives both tables, `auxiliary_loss(users, items)` the backbone's own loss of
a batch where it has one. Nothing here knows which loss the scores go into or where negatives come from.

>>> import torch
>>> from talos.data.interactions import Interactions
>>> train = Interactions.from_ids(["ann", "bob", "ann"], ["tea", "tea", "jam"])
>>> by_name("lightgcn", train, dim=8, generator=torch.Generator().manual_seed(0), layers=1)
LightGCN(
  num_users=2, num_items=2, dim=8, layers=1
  (graph): BipartiteGraph(num_users=2, num_items=2, num_edges=3)
)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from talos.backbones.base import Backbone
from talos.backbones.graph import BipartiteGraph, propagate
from talos.backbones.lightgcn import LightGCN
from talos.backbones.mf import MF
from talos.backbones.xsimgcl import XSimGCL, info_nce, perturb_
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.errors import ArgumentError, nearest

__all__ = [
    "MF",
    "SHORT_NAMES",
    "Backbone",
    "BipartiteGraph",
    "LightGCN",
    "XSimGCL",
    "by_name",
    "info_nce",
    "perturb_",
    "propagate",
]

SHORT_NAMES: dict[str, type[Backbone]] = {
    exported.short_name: exported
    for exported in (globals().get(name) for name in __all__)
    if isinstance(exported, type) and issubclass(exported, Backbone) and exported.short_name
}
"""Short name → class, for configurations and the command line: the backbones among `__all__`."""


def by_name(
    name: str,
    train: Interactions | Share,
    *,
    dim: int = 64,
    generator: torch.Generator | None,
    users: range | None = None,
    items: range | None = None,
    **options: Any,
) -> Backbone:
    """The backbone of a short name, for the users, items and (where it needs them) edges of train.

    Args:
        name: one of `SHORT_NAMES`.
        train: what it is to be trained on.
        dim: length of a vector.
        generator: of the starting values.
        users: the users that are wanted, where the backbone is `divisible`; others have all users always.
        items: likewise the items.
        options: further arguments of the backbone.

    >>> train = Interactions.from_ids([1, 2], [7, 8])
    >>> by_name("mf", train, dim=2, generator=None)
    MF(num_users=2, num_items=2, dim=2)
    >>> by_name("lightgnc", train, generator=None)
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no backbone is called 'lightgnc'; expected a short name (did you mean 'lightgcn'?)
    >>> by_name("lightgcn", train, generator=None, layer=3)
    Traceback (most recent call last):
    talos.errors.ArgumentError: layer: the backbone 'lightgcn' has no such option (did you mean 'layers'?)
    """
    if name not in SHORT_NAMES:
        raise ArgumentError(
            f"no backbone is called {name!r}",
            where="name",
            expected="a short name",
            hint=nearest(name, SHORT_NAMES),
        )
    backbone = SHORT_NAMES[name]
    given = {"graph", "num_users", "num_items", "dim", "generator", "users", "items"}
    accepted = [argument for argument in inspect.signature(backbone).parameters if argument not in given]
    for option in options:
        if option not in accepted:
            raise ArgumentError(
                f"the backbone {name!r} has no such option",
                where=option,
                hint=nearest(option, ["dim", *accepted]),
            )
    build: Callable[..., Backbone] = backbone
    if backbone.needs_graph:
        if isinstance(train, Share):
            raise ArgumentError(
                f"the backbone {name!r} without all interactions",
                where="train",
                expected="'mf', or all of them",
            )
        graph = BipartiteGraph.from_interactions(train)
        return build(graph, dim=dim, generator=generator, **options)
    if backbone.divisible:
        options |= {"users": users, "items": items}
    return build(train.num_users, train.num_items, dim=dim, generator=generator, **options)
