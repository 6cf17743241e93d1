"""Backbones: where the vectors of users and items come from.

Each is a `Backbone`: `items()` returns all item vectors, `users(batch, items)` the vectors of a batch of rows, and
`auxiliary_loss(batch)` the backbone's own loss where it has one. Nothing here knows which loss the scores go into or
where negatives come from. `talos.registry` makes backbones by name.

>>> import torch
>>> from talos.data.interactions import Interactions
>>> train = Interactions.from_ids(["ann", "bob", "ann"], ["tea", "tea", "jam"])
>>> graph = BipartiteGraph.from_interactions(train)
>>> LightGCN(graph, dim=8, layers=1, generator=torch.Generator().manual_seed(0))
LightGCN(
  num_users=2, num_items=2, dim=8, layers=1
  (graph): BipartiteGraph(num_users=2, num_items=2, num_edges=3)
)
"""

from talos.backbones.base import Backbone
from talos.backbones.graph import BipartiteGraph, GraphBackbone, propagate
from talos.backbones.lightgcn import LightGCN
from talos.backbones.mf import MF
from talos.backbones.xsimgcl import XSimGCL, info_nce, perturb_

__all__ = [
    "MF",
    "Backbone",
    "BipartiteGraph",
    "GraphBackbone",
    "LightGCN",
    "XSimGCL",
    "info_nce",
    "perturb_",
    "propagate",
]
