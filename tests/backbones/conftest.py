"""A small train set with a user and an item that have nothing, and the backbones on it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from talos import registry
from talos.backbones import Backbone, BipartiteGraph
from talos.data.interactions import Interactions
from talos.data.vocabulary import Vocabulary
from talos.kernels.csr import CSR, Batch

USERS, ITEMS, DIM = 9, 7, 5


@pytest.fixture(scope="session")
def train() -> Interactions:
    rng = np.random.default_rng(3)
    has = rng.random((USERS, ITEMS)) < 0.4
    has[4], has[:, 2] = False, False  # user 4 and item 2 are isolated
    has[0, 0] = has[8, 6] = True
    users, items = has.nonzero()
    vocabularies = {
        "user_ids": Vocabulary.of(np.arange(USERS)),
        "item_ids": Vocabulary.of(np.arange(ITEMS)),
    }
    return Interactions.from_codes(users, items, **vocabularies)


@pytest.fixture(scope="session")
def graph(train: Interactions) -> BipartiteGraph:
    return BipartiteGraph.from_interactions(train)


@pytest.fixture(scope="session")
def normalised(train: Interactions) -> torch.Tensor:
    """R̂ by a loop over the definition."""
    dense = torch.from_numpy(train.to_scipy().toarray()).double()
    for u in range(USERS):
        for i in range(ITEMS):
            if dense[u, i]:
                dense[u, i] = 1 / (train.user_degrees[u] * train.item_degrees[i]) ** 0.5
    return dense


@pytest.fixture
def generator() -> Callable[[int], torch.Generator]:
    return lambda seed: torch.Generator().manual_seed(seed)


@pytest.fixture(params=registry.names("backbone"))
def build(request: pytest.FixtureRequest, train: Interactions) -> Callable[..., Backbone]:
    def build(seed: int = 0, **options: object) -> Backbone:
        of = torch.Generator().manual_seed(seed)
        return registry.make_backbone(request.param, train, generator=of, **{"dim": DIM, **options})

    return build


@pytest.fixture(scope="session")
def batch_of() -> Callable[[list[int], list[int]], Batch]:
    """A batch of these users, of whom the first has all of the positives."""

    def make(users: list[int], positives: list[int]) -> Batch:
        start = torch.tensor([0, *[len(positives)] * len(users)])
        return Batch(
            users=torch.tensor(users),
            positives=CSR.of(start, torch.tensor(positives)),
            weights=torch.ones(len(positives)),
            distinct=len(set(users)) == len(users),
        )

    return make


@pytest.fixture(scope="session")
def vectors(
    batch_of: Callable[[list[int], list[int]], Batch],
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The vectors of all users and items, by the calls of a training step or of those after training."""

    def of(
        backbone: Backbone, *, training: bool = False, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        backbone.train(training)
        items = backbone.items(generator=generator)
        everybody = batch_of(list(range(backbone.num_users)), [0])
        return backbone.users(everybody, items, generator=generator), items

    return of
