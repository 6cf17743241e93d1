"""`shards.json`: what a folder of shards holds, with a checksum of every file."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from talos.data.interactions import Provenance
from talos.errors import DataError
from talos.files import checksum_of, expanded, read_sealed

__all__ = ["AS_WRITTEN", "FORMAT", "INDEX", "PARTS", "Shard", "ShardIndex", "is_shards"]

FORMAT = 2
INDEX = "shards.json"
PARTS = ("train", "valid", "test")
AS_WRITTEN = "the file as it was written"
"""What the errors about a changed file say was expected."""


class ShardPart(BaseModel, frozen=True):
    """The file of one part of a shard."""

    interactions: int
    checksum: str


class Shard(BaseModel, frozen=True):
    """One shard: its folder, the first of its users and the end of them, and the file of each part."""

    folder: Annotated[str, StringConstraints(pattern=r"^shard-\d+$")]
    users: tuple[int, int]
    parts: Mapping[str, ShardPart]


class ShardIndex(BaseModel, frozen=True):
    """The content of `shards.json`.

    Attributes:
        folder: the folder of shards.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: `timestamp` and `rating`, if the parts have them.
        parts: `interactions`, `users` (those with interactions) and `fingerprint` of each part.
        shards: in the order of their users; together they have all users.
        checksums: of `users.parquet` and `items.parquet`.
        how: how the split was made, as in `talos.data.splits.Split.how`.
        provenance: of the source.
    """

    folder: Path
    num_users: int = Field(alias="users")
    num_items: int = Field(alias="items")
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[Shard, ...]
    checksums: Mapping[str, str]
    how: Mapping[str, Any]
    provenance: Provenance = Field(alias="source")

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check `shards.json`; a `DataError` if it was edited or is damaged."""
        folder = expanded(folder)
        path = folder / INDEX
        record = read_sealed(path, hint="write the shards again", format=FORMAT)
        try:
            return cls.model_validate({**record, "folder": folder})
        except ValidationError as error:
            first = error.errors()[0]
            what = f"has a wrong value at {'.'.join(map(str, first['loc']))} ({first['msg']})"
            raise DataError(what, where=str(path), expected=AS_WRITTEN) from None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        edges = [0, *(edge for shard in self.shards for edge in shard.users), self.num_users]
        names = set(self.parts)
        if (
            edges != sorted(edges)
            or edges[::2] != edges[1::2]
            or not {"train", "test"} <= names <= set(PARTS)
            or any(set(shard.parts) != names for shard in self.shards)
            or not {"users.parquet", "items.parquet"} <= set(self.checksums)
        ):
            raise ValueError("users, parts or checksums are missing")
        return self

    def check_part(self, shard: Shard, part: str) -> Path:
        """The path of the file of one part of a shard, once its checksum is found to be right."""
        return self.check(f"{shard.folder}/{part}.parquet", shard.parts[part].checksum)

    def check(self, name: str, checksum: str) -> Path:
        """The path of a file of the folder, once its checksum is found to be right."""
        path = self.folder / name
        try:
            found = checksum_of(path)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise DataError(what, where=str(path), expected="a whole folder of shards") from None
        if found != checksum:
            raise DataError("differs from its checksum in shards.json", where=str(path), expected=AS_WRITTEN)
        return path


def is_shards(path: str | Path) -> bool:
    """Whether a path is a folder of shards.

    >>> is_shards("no/such/folder")
    False
    """
    return os.path.isfile(expanded(path) / INDEX)  # noqa: PTH113  # no error for what is not a path at all
