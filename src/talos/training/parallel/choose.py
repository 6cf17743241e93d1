"""Choose what several processes divide among them: users, or users and items."""

from __future__ import annotations

from typing import Literal

import torch

from talos import registry
from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_weights
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import Group
from talos.errors import ConfigError
from talos.losses import Loss
from talos.training.parallel.balanced_users import BalancedUserSharding
from talos.training.parallel.item_sharding import ItemSharding
from talos.training.parallel.sharding import UserSharding

__all__ = ["choose_sharding", "sharding_for"]

# Bytes of the item table with its gradient and Adam's two moments from which `auto` divides it.
LARGE_CATALOGUE = 8 << 30
# Numbers in the item table below which `auto` does not divide it: summing its gradient takes as long as a few messages.
SMALL_CATALOGUE = 1 << 20


def sharding_for(
    config: RunConfig, num_users: int, num_items: int, size: int
) -> tuple[Literal["users", "items"], str]:
    """What `size` processes divide, and one line for the user that says so and why.

    `items` means users and items. `parallel = "auto"` takes it where it is possible and either the item table is too
    large for every process to have it, or a process has fewer users of a batch than a vector has numbers: then it takes
    longer to send and apply the items' gradient than to go over a part of the items again (see docs/scale.md). The
    config has no other `auto`; the sizes are those of all processes.

    >>> config = RunConfig().with_values({"negatives": "all", "threshold.name": "exact", "training.batch_size": 512})
    >>> sharding_for(config, 1_000_000, 10_000, 4)
    ('users', 'users divided among 4 processes')
    >>> sharding_for(config, 1_000_000, 50_000_000, 4)
    ('items', 'users and items divided among 4 processes: the item table with what training needs is 51.2 GB')
    """
    wanted, obstacle = config.training.parallel, _obstacle(config)
    if wanted == "items" and obstacle:
        raise ConfigError("'items'", where="parallel", expected=f"'users' or 'auto': {obstacle}")
    why = ""
    if wanted == "auto" and not obstacle and size > 1:
        dim = int(config.backbone.options.get("dim", 64))
        batch = min(int(config.training.batch_size), num_users)
        if 16 * num_items * dim > LARGE_CATALOGUE:
            why = f": the item table with what training needs is {16 * num_items * dim / 1e9:.1f} GB"
        elif batch < dim * size and num_items * dim >= SMALL_CATALOGUE:
            why = f": batches of {batch} users are few for {num_items:,} items"
    if wanted == "items" or why:
        return "items", f"users and items divided among {size} processes{why}"
    return "users", f"users divided among {size} processes"


def _obstacle(config: RunConfig) -> str | None:
    """Why items cannot be divided; None if they can."""
    if not registry.resolve("backbone", config.backbone.name).divisible:
        return f"vectors of the backbone {config.backbone.name!r} depend on other items' rows"
    source = registry.make_negatives(config.negatives)
    if source.per != "all":
        return f"negatives = {str(source)!r} are drawn from the whole catalogue, items are divided for 'all'"
    if not _some_loss(config).needs.user_separable:
        return f"the loss {config.loss.name!r} compares positives with items that other processes have"
    if config.threshold.name not in ("exact", "fixed", "none"):
        return f"the threshold {config.threshold.name!r} follows scores that no process has all of"
    return None


def choose_sharding(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None,
    group: Group,
    device: torch.device,
) -> tuple[UserSharding, str]:
    """The sharding that a config asks for, and a line that describes it; a single process has all rows, and no line."""
    if config.training.parallel == "auto" and isinstance(train, Share) and train.columns is None:
        # the interactions of other processes' users with this one's items cannot be read
        config = config.with_values({"training.parallel": "users"})
    by, line = sharding_for(config, train.num_users, train.num_items, group.size)
    if group.size == 1:
        weights = event_weights(train, config.events) if isinstance(train, Interactions) else None
        return UserSharding(train, valid, group, device, weights), ""
    if config.events != EventsConfig():
        raise ConfigError(
            f"{config.events.weights}, {config.events.half_life}",
            where="events",
            expected="the defaults in several processes",
        )
    made = ItemSharding if by == "items" else BalancedUserSharding if _can_balance(config) else UserSharding
    return made(train, valid, group, device), line


def _can_balance(config: RunConfig) -> bool:
    """Whether a process can work on another's users: they have no draws and no state but the vector."""
    return (
        registry.resolve("backbone", config.backbone.name).divisible
        and registry.make_negatives(config.negatives).per == "all"
        and config.threshold.name in ("exact", "none")
        and not _some_loss(config).needs.ids
    )


def _some_loss(config: RunConfig) -> Loss:
    """The loss of a config, for what it says about itself."""
    return registry.make_loss(config.loss, k=config.k, num_users=2, num_items=2, generator=torch.Generator())
