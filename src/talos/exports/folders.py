"""A folder that appears as a whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from talos.errors import ArgumentError, TalosError
from talos.exports.source import checksum
from talos.files import sync
from talos.model.run_directory import Model

__all__ = ["new_folder", "write_ids"]

_FACTS = "export.json"


@contextmanager
def new_folder(
    out: Path, model: Model, *, kind: str, overwrite: bool
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder to fill and facts to add to; it becomes `out` if the block succeeds, and goes if it does not.

    Only a folder that was made by an export is ever replaced: whatever else bears the name is somebody's work.
    """
    if not out.parent.is_dir():
        raise ArgumentError("no such folder", where=str(out.parent), expected="an existing folder")
    if out.exists():
        if not overwrite:
            raise ArgumentError("exists", where=str(out), expected="a new name", hint="or --overwrite")
        if not (out / _FACTS).is_file() and not (out.is_dir() and not any(out.iterdir())):
            raise ArgumentError(
                f"has no {_FACTS}", where=str(out), expected="a folder made by an export, to be overwritten"
            )
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
    except OSError as error:
        raise ArgumentError(
            f"cannot be written to ({error.strerror})", where=str(out.parent), expected="a folder for output"
        ) from None
    facts: dict[str, Any] = {
        "format": 1,
        "kind": kind,
        "talos": version("talos-rec"),
        "model": checksum(model),
    }
    try:
        yield temporary, facts
        (temporary / _FACTS).write_text(
            json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        old = out.with_name(f".{out.name}.{os.getpid()}.old")
        if out.exists():
            out.rename(old)
        temporary.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TalosError(f"{out} could not be written ({reason})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_ids(folder: Path, model: Model, *, user_vectors: bool, item_vectors: bool) -> None:
    """`users.parquet` and `items.parquet`: a row a position, in order, with ids, titles, and vectors if wanted."""
    train = model.train
    users: dict[str, Any] = {"user_id": train.user_ids.ids}
    items: dict[str, Any] = {"item_id": train.item_ids.ids}
    if train.item_titles is not None:
        items["title"] = train.item_titles
    if user_vectors:
        users["vector"] = model.user_vectors.detach().float().cpu().numpy()
    if user_vectors and model.thresholds is not None:
        users["threshold"] = model.thresholds.detach().float().cpu().numpy()
    if item_vectors:
        items["vector"] = model.item_vectors.detach().float().cpu().numpy()
    pl.DataFrame(users).write_parquet(folder / "users.parquet")
    pl.DataFrame(items).write_parquet(folder / "items.parquet")
