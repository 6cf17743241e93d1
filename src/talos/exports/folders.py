"""Folders that an export writes: filled, verified against the model, and moved into place as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.errors import ArgumentError, TalosError, first_line
from talos.evaluation.ranking import TopK
from talos.files import locked_folder
from talos.model.model import Model

__all__ = [
    "check_same_lists",
    "export_folder",
    "item_columns",
    "plain_array",
    "prepare_out",
    "recall",
    "sample_users",
    "score_arrays",
    "user_columns",
    "write_ids",
]

# Other programs sum a dot product in another order: scores that differ by less than this count as equal.
_TOLERANCE = 1e-5
_RECORD = "export.json"


def prepare_out(out: Path, *, overwrite: bool, folder: bool = False) -> None:
    """Refuse an `out` that cannot be written or must not be replaced, and create the folder that it is in.

    Only an empty folder and one with nothing but an export are ever replaced: any other may be somebody's work.
    """
    above = next(place for place in out.absolute().parents if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ArgumentError("cannot be written to", where=str(above), expected="a folder for output")
    if out.is_dir() and not folder:
        raise ArgumentError("is a folder", where=str(out), expected="the name of a file")
    if out.exists() and not overwrite:
        raise ArgumentError("exists", where=str(out), expected="a new name", hint="or overwrite=True")
    if out.exists() and folder:
        names = {entry.name for entry in out.iterdir()} if out.is_dir() else {""}
        made = {_RECORD}
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            made.update(json.loads((out / _RECORD).read_text(encoding="utf-8"))["files"])
        if names - made:
            stranger = f"has {min(names - made)}, which no export has made"
            what = stranger if _RECORD in names else f"has no {_RECORD}"
            raise ArgumentError(what, where=str(out), expected="a folder with nothing but an export")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be created ({error.strerror})"
        raise ArgumentError(what, where=str(out.parent), expected="a folder for output") from None


@contextmanager
def export_folder(
    out: Path, model: Model, *, kind: str, overwrite: bool
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder to fill and a record to add to; the folder becomes `out` if the block succeeds.

    The record is written to `export.json`. Which folders are replaced: see `prepare_out`.
    """
    prepare_out(out, overwrite=overwrite, folder=True)
    record = {"format": 1, "kind": kind, "talos": version("talos-rec"), "model": model.fingerprint()}
    try:
        with locked_folder(out, purpose=f"exporting to {kind}") as folder:
            yield folder, record
            record["files"] = sorted(entry.name for entry in folder.iterdir())
            text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
            (folder / _RECORD).write_text(text, encoding="utf-8")
            prepare_out(out, overwrite=overwrite, folder=True)  # nobody has put anything there since
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TalosError(f"{out} could not be written ({first_line(error)})") from error


_NO_COLUMNS: Mapping[str, Any] = {}


def write_ids(
    folder: Path,
    model: Model,
    *,
    users: Mapping[str, Any] = _NO_COLUMNS,
    items: Mapping[str, Any] = _NO_COLUMNS,
) -> None:
    """Write `users.parquet` and `items.parquet`: ids, titles and further columns in the order of positions."""
    train = model.train
    titles = {} if train.item_titles is None else {"title": train.item_titles}
    pl.DataFrame({"user_id": train.user_ids.ids, **users}).write_parquet(folder / "users.parquet")
    pl.DataFrame({"item_id": train.item_ids.ids, **titles, **items}).write_parquet(folder / "items.parquet")


def score_arrays(model: Model) -> dict[str, NDArray[Any]]:
    """What scores are computed from, by name: vectors and thresholds, or weights between items."""
    if isinstance(model.scored_by, ItemWeights):
        return {name: tensor.numpy() for name, tensor in model.scored_by.tensors().items()}
    table, thresholds = model.dot_scores, model.scored_by.thresholds
    tensors = {"user_vectors": table.user_vectors, "item_vectors": table.item_vectors}
    if thresholds is not None:
        tensors["thresholds"] = thresholds
    return {name: plain_array(tensor) for name, tensor in tensors.items()}


def user_columns(model: Model) -> dict[str, NDArray[Any]]:
    """The columns of `users.parquet` beside the id: vectors and thresholds, where the model has them."""
    names = {"user_vectors": "vector", "thresholds": "threshold"}
    return {names[name]: array for name, array in score_arrays(model).items() if name in names}


def item_columns(model: Model) -> dict[str, Any]:
    """The columns of `items.parquet` beside id and title: vectors, or weights to all items or to the `others`."""
    arrays = score_arrays(model)
    if len(arrays) > 1 and not model.has_vectors:  # sparse
        ends = arrays["item_weights.indptr"][1:-1]
        names = {"others": "item_weights.indices", "weights": "item_weights.values"}
        return {
            column: [row.tolist() for row in np.split(arrays[name], ends)] for column, name in names.items()
        }
    names = {"item_vectors": "vector", "item_weights": "weights"}
    return {names[name]: array for name, array in arrays.items() if name in names}


def plain_array(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor on any device as an array of float32."""
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def sample_users(model: Model, size: int) -> NDArray[np.int64]:
    """Positions of users to verify an export with: evenly spread, and those with the fewest and the most items."""
    degrees = model.known.user_degrees
    spread = np.linspace(0, len(degrees) - 1, min(size, len(degrees))).astype(np.int64)
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
    there = expected.items >= 0
    margin = _TOLERANCE * max(1.0, float(np.abs(expected.scores[there]).max(initial=0.0)))
    vectors = model.dot_scores.item_vectors
    for row, user in enumerate(sample.tolist()):
        size = int(there[row].sum())
        theirs, best, mine = scores[row, :size], expected.scores[row, :size], items[row, :size].copy()
        in_range = (items[row] >= 0) & (items[row] < model.train.num_items)
        problem = None
        if in_range.sum() != size or len(np.unique(mine[in_range[:size]])) != size:
            problem = "items are missing or repeated"
        elif (
            np.abs(_double(vectors[mine]) @ _double(model.dot_scores.user_vectors[user]) - theirs) > margin
        ).any():
            problem = "scores are not the items' scores"
        elif (np.abs(theirs - best) > margin).any():
            problem = "better items are left out, or items that are masked are in"
        if problem is not None:
            name = f"{what} differs from the model for user {model.train.user_ids.ids[user]!r}"
            raise TalosError(f"{name}: {problem}; nothing was written")
    return float((items == expected.items).all(1).mean())


def _double(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().cpu().numpy()


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
