"""Which files of a folder to read: train, valid and test files or folders, or the files of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from talos.errors import DataError

__all__ = ["files_of", "part_files", "readable_files"]

_PARTS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing"),
}
_SUFFIXES = {
    *(".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter"),
    *(".parquet", ".pq", ".json", ".jsonl", ".ndjson"),
}
# What the file of interactions is called in folders of published datasets, which hold other files too.
_INTERACTIONS = ("interactions", "ratings", "events", "clicks", "u.data")
# Files that describe data and hold none.
_NEVER = {"split.json", "readme.txt", "dataset_info.json", "metadata.json"}


def readable_files(folder: Path) -> list[Path]:
    """The files of a folder that have a suffix of data, sorted by name."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"cannot be listed ({error.strerror})", where=str(folder)) from error
    return [
        path
        for path in entries
        if path.is_file()
        and path.name[0] not in "._"
        and path.name.lower() not in _NEVER
        and _suffix(path) in _SUFFIXES
    ]


def part_files(folder: Path, required: Sequence[str] = ("train", "test")) -> dict[str, Path] | None:
    """The train, valid and test files of a folder; None if a required one is missing.

    A part may be a folder of files that are one table, `train/part-0.parquet`, …
    """
    parts: dict[str, Path] = {}
    for path in [*readable_files(folder), *_part_folders(folder)]:
        words = [path.name.lower()] if path.is_dir() else path.name.lower().split(".")[:-1]
        for part, names in _PARTS.items():
            if any(word in names for word in words):
                if part in parts:
                    raise DataError(
                        f"both {parts[part].name} and {path.name} could be the {part} part",
                        where=str(folder),
                        expected="one file per part",
                    )
                parts[part] = path
    if any(part not in parts for part in required):
        return None
    return {part: parts[part] for part in _PARTS if part in parts}


def _part_folders(folder: Path) -> list[Path]:
    """The folders that are called like a part and have readable files, sorted by name."""
    names = {name for several in _PARTS.values() for name in several}
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name.lower() in names and path.is_dir() and readable_files(path)
    ]


def files_of(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The files that make up the one table of a folder, and notes on what was left out."""
    files = readable_files(folder)
    if (folder / "shards.json").is_file():
        raise DataError(
            "is a folder of shards",
            where=str(folder),
            expected="one table",
            hint="talos.shards.read_shards reads it",
        )
    if not files:
        raise DataError(
            "nothing readable in this folder", where=str(folder), expected="csv, parquet, … files"
        )
    if len(files) == 1:
        return files, ()
    chosen = [path for path in files if _suffix(path) == ".inter"] or [
        path
        for path in files
        if path.name.lower() == "u.data" or path.name.lower().split(".")[0] in _INTERACTIONS
    ]
    if len(chosen) == 1:
        others = ", ".join(path.name for path in files if path != chosen[0])
        return chosen, (f"read {chosen[0].name}; other files there were ignored: {others}",)
    kinds = sorted({_suffix(path) for path in files})
    if len(kinds) > 1:
        raise DataError(
            f"files of several kinds ({', '.join(kinds)})",
            where=str(folder),
            expected="parts of one table, or train and test files, or the path of one file",
        )
    return files, (f"{len(files)} files of the folder read as one table",)


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""
