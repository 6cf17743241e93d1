"""What several processes divide among them: chosen, or refused with the reason."""

from __future__ import annotations

from typing import Literal

import torch

from talos import registry
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import Group
from talos.errors import ConfigError
from talos.training.parallel.division import Division
from talos.training.parallel.even_division import EvenDivision
from talos.training.parallel.item_division import ItemDivision

__all__ = ["divide", "divided_by"]

# Bytes of the item table with its gradient and Adam's two moments from which it is divided.
LARGE_CATALOGUE = 8 << 30
# Numbers in the item table below which it does not matter: summing its gradient takes no longer than a few messages.
SMALL_CATALOGUE = 1 << 20


def divided_by(
    config: RunConfig, num_users: int, num_items: int, size: int
) -> tuple[Literal["users", "items"], str]:
    """What `size` processes divide, and one line that says so and why.

    `items` means users and items. `auto` takes it where it can run and the item table is too large to have it
    everywhere, or batches have fewer users for each process than a vector has numbers: then to send and apply the
    items' gradient takes longer than the further passes over a part of the items (see docs/scale.md).

    Args:
        config: with nothing left open but `parallel`.
        num_users: of everybody.
        num_items: likewise.
        size: how many processes.

    >>> config = RunConfig().with_values({"negatives": "all", "threshold.name": "exact", "training.batch_size": 512})
    >>> divided_by(config, 1_000_000, 10_000, 4)
    ('users', 'users divided among 4 processes')
    >>> divided_by(config, 1_000_000, 50_000_000, 4)
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
    """Why items cannot be divided, if so."""
    if not registry.resolve("backbone", config.backbone.name).divisible:
        return f"vectors of the backbone {config.backbone.name!r} depend on other items' rows"
    source = registry.make_negatives(config.negatives)
    if source.per != "all":
        return f"negatives = {str(source)!r} are drawn from the whole catalogue, items are divided for 'all'"
    if config.threshold.name not in ("exact", "fixed", "none"):
        return f"the threshold {config.threshold.name!r} follows scores that no process has all of"
    return None


def divide(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None,
    group: Group,
    device: torch.device,
) -> Division:
    """The division that a config asks for; a group of one has everything.

    >>> from talos.distributed import ALONE
    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    >>> divide(RunConfig(negatives="1"), data, None, ALONE, torch.device("cpu")).users
    range(0, 2)
    """
    by, _ = divided_by(config, train.num_users, train.num_items, group.size)
    if config.training.parallel == "auto" and isinstance(train, Share) and train.columns is None:
        by = "users"  # nobody can tell what other processes' users did with this one's items
    made: type[Division] = Division
    if group.size > 1:
        made = ItemDivision if by == "items" else EvenDivision if _evens(config) else Division
    return made(train, valid, group, device)


def _evens(config: RunConfig) -> bool:
    """Whether one process can work on another's users: no draws, no state of theirs but the vector."""
    return (
        registry.resolve("backbone", config.backbone.name).divisible
        and registry.make_negatives(config.negatives).per == "all"
        and config.threshold.name in ("exact", "none")
    )
