"""What a run directory holds, and what its files are called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from talos.data.interactions import Interactions

__all__ = ["FILES", "FORMAT", "Model", "file_of"]

FORMAT = 2
FILES = ("model.safetensors", "users.parquet", "items.parquet")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a run leaves behind: vectors as they are scored, thresholds, who has seen what, and the facts.

    `train` and `valid` share one vocabulary; `valid` is None where there was none. With `users`, the rows of users
    (and `train`, `valid` and their vocabulary) are those of consecutive users, which are a part of all.
    """

    user_vectors: Tensor
    item_vectors: Tensor
    thresholds: Tensor | None
    train: Interactions
    valid: Interactions | None
    facts: dict[str, Any] = field(default_factory=dict)
    users: range | None = None

    @property
    def seen(self) -> Interactions:
        """Everything a user is known to have, from train and validation."""
        return self.train if self.valid is None else self.train.union(self.valid)


def file_of(users: range) -> str:
    """The file of what belongs to these users, where no process has all of them.

    >>> file_of(range(100, 200))
    'users-100-200.safetensors'
    """
    return f"users-{users.start}-{users.stop}.safetensors"
