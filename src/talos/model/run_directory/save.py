"""Writing a run directory, alone or together."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import save_file
from torch import Tensor

from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.files import checksum_of, replace_file, replace_text
from talos.model.run_directory.layout import Model, file_of

__all__ = ["save_model"]


def save_model(model: Model, folder: Path, *, group: Group = SINGLE_PROCESS) -> None:
    """Write a run directory; other files in the folder are left alone.

    A model of some users is written by all processes of the `group`, each its own users; they must see one folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.users is not None:
        _save_together(model, folder, group)
        return
    replace_file(folder / "users.parquet", _ids_of(model).write_parquet)
    tensors = {**_of_items(model), **_of_users(model)}
    replace_file(folder / "model.safetensors", lambda path: save_file(tensors, path))
    checksums = {"users.parquet": checksum_of(folder / "users.parquet")}
    checksums["model.safetensors"] = checksum_of(folder / "model.safetensors")
    _publish(model, folder, model.train.num_users, checksums, {"format": 1})


def _save_together(model: Model, folder: Path, group: Group) -> None:
    """Each process writes what belongs to its users, rank 0 what belongs to all, and `model.json` at the end."""
    assert model.users is not None
    own, what = file_of(model.users), f"{folder} could not be written"

    def write_own() -> str:
        tensors = _of_users(model)
        replace_file(folder / own, lambda path: save_file(tensors, path))
        replace_file((folder / own).with_suffix(".parquet"), _ids_of(model).write_parquet)
        return checksum_of(folder / own)

    checksum = all_or_none(group, write_own, what)
    assert checksum is not None
    bounds = [float(model.users.start), float(model.users.stop)]
    # a message is made of numbers: the bytes of the checksum, behind the bounds
    told = group.all_gather_numbers([*bounds, *map(float, bytes.fromhex(checksum.removeprefix("sha256:")))])
    files = {
        range(int(start), int(stop)): f"sha256:{bytes(map(int, digits)).hex()}"
        for start, stop, *digits in told
    }

    def write_rest() -> None:
        pieces = [(folder / file_of(users)).with_suffix(".parquet") for users in files]
        for piece in pieces:
            if not piece.is_file():
                raise OSError(f"{piece.name} is not here: do all processes see this folder?")
        replace_file(folder / "users.parquet", lambda path: pl.scan_parquet(pieces).sink_parquet(path))
        items = _of_items(model)
        replace_file(folder / "model.safetensors", lambda path: save_file(items, path))
        checksums = {file_of(users): checksum for users, checksum in files.items()}
        for name in ("users.parquet", "model.safetensors"):
            checksums[name] = checksum_of(folder / name)
        listed = [[users.start, users.stop] for users in files]
        total = max(users.stop for users in files)
        _publish(model, folder, total, checksums, {"format": 2, "user_files": listed})
        for piece in pieces:
            piece.unlink()

    all_or_none(group, write_rest if group.rank == 0 else None, what)


def _publish(
    model: Model, folder: Path, num_users: int, checksums: dict[str, str], more: dict[str, Any]
) -> None:
    """Write `items.parquet` and then `model.json`, with which the directory is whole."""
    items = pl.DataFrame({"item_id": model.train.item_ids.ids})
    if model.train.item_titles is not None:
        items = items.with_columns(title=model.train.item_titles)
    replace_file(folder / "items.parquet", items.write_parquet)
    own = {name: value for name, value in model.facts.items() if name != "user_files"}
    facts = {
        **own,
        **more,
        "shape": {
            "users": num_users,
            "items": model.train.num_items,
            "dim": model.user_vectors.shape[1],
        },
        "versions": {
            "talos": version("talos-rec"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "checksums": {**checksums, "items.parquet": checksum_of(folder / "items.parquet")},
    }
    text = json.dumps({"format": more["format"], **facts}, indent=2, ensure_ascii=False) + "\n"
    replace_text(folder / "model.json", text)


def _of_items(model: Model) -> dict[str, Tensor]:
    return {"item_vectors": model.item_vectors.detach().float().cpu().contiguous()}


def _of_users(model: Model) -> dict[str, Tensor]:
    tensors = {"user_vectors": model.user_vectors.detach().float().cpu().contiguous()}
    if model.thresholds is not None:
        tensors["thresholds"] = model.thresholds.detach().float().cpu().contiguous()
    for name, part in (("train", model.train), ("valid", model.valid)):
        if part is not None:
            tensors[f"{name}.indptr"] = torch.tensor(part.indptr)
            tensors[f"{name}.indices"] = torch.tensor(part.indices)
    return tensors


def _ids_of(model: Model) -> pl.DataFrame:
    return pl.DataFrame({"user_id": model.train.user_ids.ids})
