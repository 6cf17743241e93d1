"""`shards.json`: what a folder of shards holds, and how to notice that it was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talos.data.interactions import Provenance
from talos.errors import DataError
from talos.files import checksum_of

__all__ = ["FORMAT", "INDEX", "PARTS", "ShardIndex", "Stored", "is_shards"]

FORMAT = 1
INDEX = "shards.json"
PARTS = ("train", "valid", "test")
_LARGEST_JSON = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One shard: its folder, the users it has, and for each part how many interactions and which checksum."""

    folder: str
    users: range
    interactions: Mapping[str, int]
    checksums: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """What `shards.json` says.

    Attributes:
        folder: where it is.
        num_users: rows of `users.parquet`.
        num_items: rows of `items.parquet`.
        columns: of `timestamp` and `rating`, those that the parts have.
        parts: for each part its `interactions`, `users` (with interactions), `items` (likewise) and `fingerprint`.
        shards: in the order of their users, which tile `range(num_users)`.
        checksums: of `users.parquet` and `items.parquet`.
        how: the split, as in `talos.data.splits.Split.how`.
        provenance: of the source.
        record: all of it, as it is in the file.
    """

    folder: Path
    num_users: int
    num_items: int
    columns: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    shards: tuple[Stored, ...]
    checksums: Mapping[str, str]
    how: Mapping[str, Any]
    provenance: Provenance
    record: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> ShardIndex:
        """Read and check it: an edited index, a missing file or one of another format is a `DataError`."""
        folder = Path(folder).expanduser()
        path = folder / INDEX
        try:
            if path.stat().st_size > _LARGEST_JSON:
                raise DataError("is too large", where=str(path), expected=f"at most {_LARGEST_JSON:,} bytes")
            record = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"is not JSON ({error})", where=str(path)) from None
        number = record.get("format") if isinstance(record, dict) else None
        if type(number) is not int or number < 1:
            raise DataError(
                "has no format number", where=str(path), expected="a folder that `talos data split` wrote"
            )
        if number > FORMAT:
            raise DataError(
                f"format {number}",
                where=str(path),
                expected=f"at most {FORMAT}",
                hint="install a newer talos-rec",
            )
        if record.get("checksum") != own_checksum(record):
            raise DataError(
                "differs from its own checksum",
                where=str(path),
                expected="the file as `talos data split` wrote it",
            )
        try:
            index = cls._from(folder, record)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                "lacks something", where=str(path), expected="the file as `talos data split` wrote it"
            ) from None
        index._check_files()
        return index

    @classmethod
    def _from(cls, folder: Path, record: dict[str, Any]) -> ShardIndex:
        shards = tuple(
            Stored(
                folder=str(shard["folder"]),
                users=range(*map(int, shard["users"])),
                interactions={name: int(part["interactions"]) for name, part in shard["parts"].items()},
                checksums={name: str(part["checksum"]) for name, part in shard["parts"].items()},
            )
            for shard in record["shards"]
        )
        ends = [0, *(shard.users.stop for shard in shards)]
        if [shard.users.start for shard in shards] != ends[:-1] or ends[-1] != int(record["users"]):
            raise ValueError("the shards do not tile the users")
        names = set(record["parts"])
        if not {"train", "test"} <= names <= set(PARTS):
            raise ValueError("other parts")
        if any(set(one.interactions) != names or Path(one.folder).name != one.folder for one in shards):
            raise ValueError("a shard that cannot be one of these")
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
            record=record,
        )

    def check(self, name: str, checksum: str) -> Path:
        """The path of a file of the folder, after its checksum was compared."""
        path = self.folder / name
        try:
            found = checksum_of(path)
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", where=str(path)) from None
        if found != checksum:
            raise DataError(
                "differs from its checksum in shards.json",
                where=str(path),
                expected="the file as `talos data split` wrote it",
            )
        return path

    def _check_files(self) -> None:
        names = [
            *self.checksums,
            *(f"{one.folder}/{part}.parquet" for one in self.shards for part in one.checksums),
        ]
        for name in names:
            if not (self.folder / name).is_file():
                raise DataError(
                    "is missing", where=str(self.folder / name), expected="a whole folder of shards"
                )


def is_shards(path: str | Path) -> bool:
    """Whether a path is a folder that `talos data split --shards` wrote.

    >>> is_shards("no/such/folder")
    False
    """
    return (Path(path).expanduser() / INDEX).is_file()


def own_checksum(record: Mapping[str, Any]) -> str:
    """The checksum of an index without that checksum."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
