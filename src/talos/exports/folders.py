"""Folders that an export writes: filled, verified against the model, and moved into place as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.checks import require
from talos.errors import ArgumentError, Option, TalosError, first_line
from talos.evaluation.ranking import TopK
from talos.files import locked_folder
from talos.model.model import Model

__all__ = [
    "check_same_lists",
    "export_folder",
    "plain_array",
    "prepare_out",
    "recall",
    "sample_users",
    "score_arrays",
    "write_ids",
]

# Other programs sum a dot product in another order: scores that differ by less than this count as equal.
_TOLERANCE = 1e-5
_RECORD = "export.json"
_FILES = {
    _RECORD,
    "users.parquet",
    "items.parquet",
    "index.faiss",
    "model.onnx",
    "model.onnx.data",
}
# The table and column of each of `score_arrays`.
_COLUMNS = {
    "user_vectors": ("users", "vector"),
    "thresholds": ("users", "threshold"),
    "item_vectors": ("items", "vector"),
    "item_weights": ("items", "weights"),
    "item_weights.indices": ("items", "others"),
    "item_weights.values": ("items", "weights"),
}


def prepare_out(out: Path, *, overwrite: bool, folder: bool = False) -> None:
    """Refuse an `out` that cannot be written or must not be replaced, and create the folder that it is in.

    Only an empty folder and one with nothing but an export are ever replaced.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        there, is_folder = out.exists(), out.is_dir()
    except OSError as error:
        raise ArgumentError(
            f"cannot be written to ({error.strerror})", where=str(out.parent), expected="a folder for output"
        ) from None
    if not there:
        return
    require(
        is_folder == folder,
        "is a folder" if is_folder else "is a file",
        where=str(out),
        expected="the name of a file" if is_folder else "a folder made by an export, or a new name",
    )
    require(
        overwrite,
        "exists",
        where=str(out),
        expected="a new name",
        option=Option("overwrite", True, "replaces it"),
    )
    if folder:
        names = {entry.name for entry in out.iterdir()}
        strangers = ", ".join(sorted(names - _FILES if _RECORD in names else names))
        require(
            not strangers,
            f"has {strangers}, which no export has made",
            where=str(out),
            expected="a folder with nothing but an export",
        )


def export_folder(
    out: Path, model: Model, fill: Callable[[Path], dict[str, Any]], *, kind: str, overwrite: bool
) -> dict[str, Any]:
    """A folder that becomes `out` if `fill` succeeds; returns what `fill` does and the names of the files.

    Both are in `export.json` too. Which folders are replaced: see `prepare_out`.
    """
    prepare_out(out, overwrite=overwrite, folder=True)
    try:
        with locked_folder(out, purpose=f"exporting to {kind}") as folder:
            details = fill(folder)
            details["files"] = sorted(entry.name for entry in folder.iterdir())
            made = {"format": 1, "kind": kind, "talos": version("talos-rec"), "model": model.fingerprint()}
            (folder / _RECORD).write_text(
                json.dumps(made | details, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            prepare_out(out, overwrite=overwrite, folder=True)  # again: files may have been added meanwhile
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)})") from error
    return details


def write_ids(folder: Path, model: Model, columns: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write `users.parquet` and `items.parquet`: ids and titles in the order of positions.

    `columns` are some of `score_arrays`, with a row for each user or item.
    """
    train = model.train
    titles = {} if train.item_titles is None else {"title": train.item_titles}
    tables = {"users": {"user_id": train.user_ids.ids}, "items": {"item_id": train.item_ids.ids, **titles}}
    for name, column in columns.items():
        table, title = _COLUMNS[name]
        tables[table][title] = column
    for table, content in tables.items():
        pl.DataFrame(content).write_parquet(folder / f"{table}.parquet")


def score_arrays(model: Model) -> dict[str, Any]:
    """What scores are computed from, by name: vectors and thresholds, or weights between items."""
    if isinstance(model.scored_by, ItemWeights):
        return {name: tensor.numpy() for name, tensor in model.scored_by.tensors().items()}
    tensors = {
        "user_vectors": model.dot_scores.user_vectors,
        "item_vectors": model.dot_scores.item_vectors,
        "thresholds": model.vectors.thresholds,
    }
    return {name: plain_array(tensor) for name, tensor in tensors.items() if tensor is not None}


def plain_array(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor on any device as an array of float32."""
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def sample_users(model: Model, size: int) -> NDArray[np.int64]:
    """Positions of users to verify an export with: evenly spread, and those with the fewest and the most items."""
    degrees = model.known.user_degrees
    spread = np.linspace(0, len(degrees) - 1, min(size, len(degrees)), dtype=np.int64)
    return np.unique([*spread, int(degrees.argmin()), int(degrees.argmax())])


def check_same_lists(
    model: Model,
    sample: NDArray[np.int64],
    expected: TopK,
    items: NDArray[Any],
    scores: NDArray[Any],
    *,
    what: str,
) -> float:
    """Raise unless `items` and `scores` (B, k) are the expected lists of a sample of users, up to ties.

    Returns the share of users whose lists are identical.
    """
    sizes = (expected.items >= 0).sum(1)
    margin = _TOLERANCE * max(1.0, float(np.abs(expected.scores[expected.items >= 0]).max(initial=0.0)))
    table = model.dot_scores
    for row, user in enumerate(sample.tolist()):
        size, valid = sizes[row], (items[row] >= 0) & (items[row] < model.train.num_items)
        mine, given, best = (
            np.where(valid, items[row], 0)[:size],
            scores[row, :size],
            expected.scores[row, :size],
        )
        own = (table.item_vectors[mine].double() @ table.user_vectors[user].double()).detach().cpu().numpy()
        problems = {
            "items are missing or repeated": valid.sum() != size
            or not valid[:size].all()
            or len(np.unique(mine)) != size,
            "scores are not the items' scores": (np.abs(own - given) > margin).any(),
            "better items are left out, or items that are masked are in": (
                np.abs(given - best) > margin
            ).any(),
        }
        for problem, found in problems.items():
            if found:
                raise TalosError(
                    f"{what} differs from the model for user {model.train.user_ids.ids[user]!r}: {problem}; "
                    "nothing was written"
                )
    return float((items == expected.items).all(1).mean())


def recall(expected: TopK, items: NDArray[Any]) -> float:
    """The mean share of the exact top K that was found; of users with a list, and without padding.

    >>> expected = TopK(np.array([0]), np.array([[3, 5, -1]]), np.zeros((1, 3), np.float32))
    >>> recall(expected, np.array([[3, -1, -1]]))
    0.5
    """
    shares = [
        float(np.isin(theirs[theirs >= 0], mine).mean())
        for mine, theirs in zip(items, expected.items, strict=True)
        if (theirs >= 0).any()
    ]
    return float(np.mean(shares)) if shares else 1.0
