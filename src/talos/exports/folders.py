"""Folders that an export writes: filled, verified against the model, and moved into place as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from talos.baselines import ItemWeights
from talos.errors import ArgumentError, TalosError, first_line
from talos.evaluation.ranking import TopK
from talos.exports.files import check_out, make_parent
from talos.files import locked, remove_leftovers, replace_folder
from talos.model.model import Model

__all__ = ["check_same_lists", "export_folder", "plain_array", "recall", "sample_users", "write_ids"]

_RECORD = "export.json"
# Other programs sum a dot product in another order: scores that differ by less than this count as equal.
_TOLERANCE = 1e-5


@contextmanager
def export_folder(
    out: Path, model: Model, *, kind: str, overwrite: bool
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder to fill and a record to add to; the folder becomes `out` if the block succeeds.

    The record is written to `export.json`. Only an empty folder and one with nothing but an export are ever replaced:
    any other may be somebody's work.
    """
    _check_replaceable(out, overwrite=overwrite)
    fingerprint = model.fingerprint()
    record = {"format": 1, "kind": kind, "talos": version("talos-rec"), "model": fingerprint}
    with ExitStack() as stack:
        make_parent(out)
        lock = out.with_name(f".{out.name}.lock")
        stack.enter_context(locked(lock, guards=out, purpose=f"exporting to {kind}"))
        remove_leftovers(out)
        _check_replaceable(out, overwrite=overwrite)  # again: another process may have finished in between
        try:
            folder = stack.enter_context(replace_folder(out))
        except OSError as error:
            what = f"cannot be written to ({error.strerror})"
            raise ArgumentError(what, where=str(out.parent), expected="a folder for output") from None
        try:
            yield folder, record
            record["files"] = sorted(entry.name for entry in folder.iterdir())
            text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
            (folder / _RECORD).write_text(text, encoding="utf-8")
            _check_replaceable(out, overwrite=overwrite)  # nobody has put anything there since
            stack.close()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise TalosError(f"{out} could not be written ({first_line(error)})") from error


def _check_replaceable(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that no export has made, or in which somebody has put something of their own."""
    check_out(out, overwrite=overwrite, folder=True)
    if not out.exists():
        return
    names = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    if not out.is_dir() or (names and _RECORD not in names):
        expected = "a folder made by an export, to be overwritten"
        raise ArgumentError(f"has no {_RECORD}", where=str(out), expected=expected)
    made: Any = ()
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        made = json.loads((out / _RECORD).read_text(encoding="utf-8"))["files"]
    known = {_RECORD, *(made if isinstance(made, list) else ())}
    strangers = [name for name in names if name not in known]
    if strangers:
        what, expected = (
            f"has {strangers[0]}, which no export has made",
            "a folder with nothing but an export",
        )
        raise ArgumentError(what, where=str(out), expected=expected)


def write_ids(folder: Path, model: Model, *, user_vectors: bool, item_vectors: bool) -> None:
    """Write `users.parquet` and `items.parquet`: ids and titles in the order of positions, with vectors if wanted."""
    train = model.train
    users: dict[str, Any] = {"user_id": train.user_ids.ids}
    items: dict[str, Any] = {"item_id": train.item_ids.ids}
    if train.item_titles is not None:
        items["title"] = train.item_titles
    if isinstance(model.scored_by, ItemWeights):
        if item_vectors:
            items |= _weights(model.scored_by)
    else:
        if user_vectors:
            users["vector"] = plain_array(model.dot_scores.user_vectors)
        if user_vectors and model.scored_by.thresholds is not None:
            users["threshold"] = plain_array(model.scored_by.thresholds)
        if item_vectors:
            items["vector"] = plain_array(model.dot_scores.item_vectors)
    pl.DataFrame(users).write_parquet(folder / "users.parquet")
    pl.DataFrame(items).write_parquet(folder / "items.parquet")


def plain_array(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor on any device as an array of float32."""
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _weights(weights: ItemWeights) -> dict[str, Any]:
    """The weights from each item: to all items, or to the positions `others` where most are 0."""
    tensors = {name: tensor.numpy() for name, tensor in weights.tensors().items()}
    if len(tensors) == 1:
        return {"weights": next(iter(tensors.values()))}
    ends = tensors["item_weights.indptr"][1:-1]
    named = {"others": "item_weights.indices", "weights": "item_weights.values"}
    return {
        column: [part.tolist() for part in np.split(tensors[name], ends)] for column, name in named.items()
    }


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
    table = model.dot_scores
    vectors_of = torch.from_numpy(sample)
    users = table.user_vectors[vectors_of].detach().double().cpu().numpy()
    there = expected.items >= 0
    margin = _TOLERANCE * max(1.0, float(np.abs(expected.scores[there]).max(initial=0.0)))
    for row in range(len(users)):
        size = int(there[row].sum())
        mine = np.ascontiguousarray(items[row, :size])
        in_range = (items[row] >= 0) & (items[row] < model.train.num_items)
        problem = None
        if in_range.sum() != size or len(set(mine.tolist())) != size:
            problem = "items are missing or repeated"
        else:
            vectors = table.item_vectors[torch.from_numpy(mine)].detach().double().cpu().numpy()
            if (np.abs(vectors @ users[row] - scores[row, :size]) > margin).any():
                problem = "scores are not the items' scores"
            elif (np.abs(scores[row, :size] - expected.scores[row, :size]) > margin).any():
                problem = "better items are left out, or items that are masked are in"
        if problem is not None:
            user = model.train.user_ids.ids[int(sample[row])]
            raise TalosError(
                f"{what} differs from the model for user {user!r}: {problem}; nothing was written"
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
