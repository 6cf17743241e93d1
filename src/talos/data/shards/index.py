"""`shards.json`: what a folder of shards holds, with a checksum of every file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.data.interactions import Provenance
from talos.errors import DataError
from talos.files import checksum_of, expanded, read_sealed

__all__ = ["AS_WRITTEN", "FORMAT", "INDEX", "PARTS", "Shard", "ShardIndex", "is_shards"]

FORMAT = 2
INDEX = "shards.json"
PARTS = ("train", "valid", "test")
AS_WRITTEN = "the file as it was written"
"""What the errors about a changed file say was expected."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard: its folder, its users, and the number of interactions and the checksum of each part."""

    folder: str
    users: range
    interactions: Mapping[str, int]
    checksums: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The content of `shards.json`.

    Attributes:
        folder: the folder of shards.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: `timestamp` and `rating`, if the parts have them.
        parts: `interactions`, `users` and `items` (those with interactions) and `fingerprint` of each part.
        shards: in the order of their users; together they have all users.
        checksums: of `users.parquet` and `items.parquet`.
        how: how the split was made, as in `talos.data.splits.Split.how`.
        provenance: of the source.
    """

    folder: Path
    num_users: int
    num_items: int
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[Shard, ...]
    checksums: Mapping[str, str]
    how: Mapping[str, Any]
    provenance: Provenance

    @classmethod
    def of(cls, source: str | Path | ShardIndex) -> ShardIndex:
        """The index of a folder of shards, or the index itself."""
        return source if isinstance(source, ShardIndex) else cls.read(source)

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check `shards.json`; a `DataError` if it was edited or is damaged, or a file is missing."""
        folder = expanded(folder)
        path = folder / INDEX
        record = read_sealed(path, hint="write the shards again", format=FORMAT)
        try:
            index = cls._from(folder, record)
        except KeyError as error:
            raise DataError(f"has no key {error}", where=str(path), expected=AS_WRITTEN) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"has a wrong value ({error})", where=str(path), expected=AS_WRITTEN) from None
        index._check_files()
        return index

    @classmethod
    def _from(cls, folder: Path, record: dict[str, Any]) -> ShardIndex:
        shards = tuple(
            Shard(
                folder=str(shard["folder"]),
                users=range(*map(int, shard["users"])),
                interactions={name: int(part["interactions"]) for name, part in shard["parts"].items()},
                checksums={name: str(part["checksum"]) for name, part in shard["parts"].items()},
            )
            for shard in record["shards"]
        )
        ends = [0, *(shard.users.stop for shard in shards)]
        if [shard.users.start for shard in shards] != ends[:-1] or ends[-1] != int(record["users"]):
            raise ValueError("the shards do not cover all users in order")
        names = set(record["parts"])
        if not {"train", "test"} <= names <= set(PARTS):
            raise ValueError(f"parts {sorted(names)}")
        if any(set(one.interactions) != names or Path(one.folder).name != one.folder for one in shards):
            raise ValueError("a shard of other parts or outside the folder")
        source = record["source"]
        return cls(
            folder=folder,
            num_users=int(record["users"]),
            num_items=int(record["items"]),
            columns=tuple(map(str, record["columns"])),
            parts=record["parts"],
            shards=shards,
            checksums={name: str(record["checksums"][name]) for name in ("users.parquet", "items.parquet")},
            how=record["how"],
            provenance=Provenance(
                source=str(folder),
                format="shards",
                rows=int(source["rows"]),
                duplicates=int(source["duplicates"]),
                bad_rows=int(source["bad_rows"]),
                notes=tuple(map(str, source["notes"])),
            ),
        )

    def check(self, name: str, checksum: str) -> Path:
        """The path of a file of the folder, once its checksum is found to be right."""
        path = self.folder / name
        try:
            found = checksum_of(path)
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
        if found != checksum:
            raise DataError("differs from its checksum in shards.json", where=str(path), expected=AS_WRITTEN)
        return path

    def _check_files(self) -> None:
        parts = [f"{one.folder}/{part}.parquet" for one in self.shards for part in one.checksums]
        for name in (*self.checksums, *parts):
            if not (self.folder / name).is_file():
                raise DataError(
                    "is missing", where=str(self.folder / name), expected="a whole folder of shards"
                )


def is_shards(path: str | Path) -> bool:
    """Whether a path is a folder of shards.

    >>> is_shards("no/such/folder")
    False
    """
    try:
        return (expanded(path) / INDEX).is_file()
    except (OSError, ValueError):  # not a path at all: left to the reader, which says what is wrong with it
        return False
