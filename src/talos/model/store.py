"""The run directory: a trained model on disk, which loads without its training data.

- `model.safetensors`: `item_vectors` (items, dim), `user_vectors` (users, dim), `thresholds` (users,) if the loss has
  them; the interactions of training as CSR in `train.indptr` and `train.indices`, those of validation (`valid`), of
  the test part (`test`) and others that users are known to have (`later`) likewise.
- `users.parquet`: `user_id`, ascending; the row is the user's position in every tensor.
- `items.parquet`: `item_id`, ascending, `title` if items have titles, and their other attributes (see
  `talos.model.attributes`).
- `model.json`: the metadata, see below.

If several processes trained a model, none of which has all users, the tensors of users A to B-1 are in
`users-A-B.safetensors`, written by the process that has them, and `model.safetensors` holds the item vectors alone.

A baseline of weights between items has no vectors: `model.safetensors` has the dense `item_weights` (items, items)
instead, or sparse ones as CSR in `item_weights.indptr`, `.indices` and `.values`; row h has what item h adds to the
scores.

A run whose config weighs interactions (`events`) keeps what the weights come from, so that it can be refitted and
updated: `train.timestamps` (in seconds), `train.ratings`, `train.repeats`, in the order of `train.indices`, and
likewise for the other parts.

Training also leaves `history.jsonl` and `checkpoint/` in the directory; neither is read here.

A save is one swap, also over an older model. New files are first written as `NAME.DIGITS`, after the first digits of
their checksum; then `model.json`, which has the checksums, is replaced; then the new files are renamed to their names.
Loading takes the file of either name that has the checksum. So the old model loads until `model.json` is replaced, and
the new one from then on, whenever the process is killed or the disk fills up. `.lock` is there while a process writes.

Loading checks names, types, shapes, values and checksums before anything is used, and nothing in the directory can run
code.

Keys of `model.json`:

| key | value |
|---|---|
| `format` | 6 |
| `config` | the run config with every `auto` resolved (`RunConfig.as_dict`) |
| `epoch` | the epoch of these vectors: the best on validation, or the last |
| `trained_on` | how many interactions were learnt from, by part: `train`, `valid`, `test`, `updates` |
| `epochs_from` | how the number of epochs was chosen |
| `chosen_from` | of a refitted model: `trained_on`, `epoch`, `epochs_from`, `valid`, … of the one it was chosen from |
| `valid` | metrics on the validation set at that epoch; empty without validation |
| `threshold_error` | mean absolute difference between estimated and exact thresholds; null if the loss has none |
| `loss_state` | scalars that the loss has learnt, by the name of the parameter |
| `updates` | how often `partial_fit` was called; absent if never |
| `metrics` | metrics on the test set; empty if nothing was measured, or the model was fitted on it |
| `baseline` | `talos train`: metrics of ranking by popularity on the same test set |
| `source` | `talos train`: the data and the split, with fingerprints |
| `test_is_known` | whether users are known to have the items of the test part, so that no list offers them |
| `test_left_out` | test interactions of users or items that the model does not know |
| `fit_seconds` | `talos train`: how long training took |
| … | whatever else `Recommender.save(folder, name=value)` was given |
| `shape` | `users`, `items`, `dim`; without vectors no `dim` |
| `versions` | `talos`, `torch`, `python` at the time of saving |
| `checksums` | SHA-256 of every other file listed above |
| `user_files` | `[A, B]` of each `users-A-B.safetensors`, in order; absent if there are none |
| `sha256` | the digest of all other keys |
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talos.baselines import ItemWeights
from talos.data.event_weights import event_columns, in_seconds
from talos.data.interactions import Interactions, Provenance
from talos.data.parquet import scan_file
from talos.data.vocabulary import Vocabulary
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, DataError, TalosError
from talos.files import (
    checksum_of,
    locked,
    remove_leftovers,
    replace_file,
    replace_text,
    sealed_text,
    sync,
    unseal,
)
from talos.model.attributes import check_attributes
from talos.model.model import Model, Vectors

__all__ = [
    "FILES",
    "FORMAT",
    "LOCK",
    "copy_model",
    "holds_leftovers_only",
    "load_model",
    "lock_run",
    "save_model",
]

FORMAT = 6
LOCK = ".lock"
AS_SAVED = "the file as saved"
FILES = ("model.safetensors", "users.parquet", "items.parquet")

_PARTS = ("train", "valid", "test", "later")  # interactions, by the name of the field and of the tensors
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("config", "metrics", "valid", "loss_state", "baseline", "versions"), (dict,)),
    **dict.fromkeys(("threshold_error", "fit_seconds"), (int, float, type(None))),
    **dict.fromkeys(("epoch", "updates", "test_left_out"), (int,)),
    "source": (dict, type(None)),
}
_LARGEST_HEADER = 1 << 20
_LARGEST_JSON = 8 << 20
_MOST_ROWS = 1 << 40
_OLDER = "Talos 0.2 reads runs up to format 5"
_ATTEMPTS = 5  # to load a model that is being replaced
_Result = TypeVar("_Result")
_STAGED = re.compile(
    r"(?:model\.safetensors|(?:users|items)\.parquet|users-\d+-\d+\.safetensors)\.(?:[0-9a-f]{16}|new|ids\.new)"
)
_TEMPORARY = re.compile(rf"\.(?:model\.json|{_STAGED.pattern})\.[^.]+\.tmp")


# ------------------------------------------------------------------- saving


@contextmanager
def lock_run(folder: Path, purpose: str, *, group: Group = SINGLE_PROCESS) -> Iterator[None]:
    """Create a run directory if need be, and keep other processes from writing to it within this block.

    Rank 0 of `group` holds the lock for all its processes. If the block leaves nothing in a directory that was created
    here, the directory is removed again.

    Raises:
        ArgumentError: the directory cannot be created.
        InUseError: another process writes to it; the message says which.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent, lock_run(Path(parent, "run"), "training"):
    ...     [path.name for path in Path(parent, "run").iterdir()]
    ['.lock']
    """
    with ExitStack() as held:

        def begin() -> None:
            held.enter_context(_lock_alone(folder, purpose))

        all_or_none(group, begin if group.rank == 0 else None, f"{folder} could not be written")
        yield


@contextmanager
def _lock_alone(folder: Path, purpose: str) -> Iterator[None]:
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, expected = f"cannot be created ({error.strerror})", "a folder that can be written to"
        raise ArgumentError(what, where=str(folder), expected=expected) from None
    try:
        with locked(folder / LOCK, guards=folder, purpose=purpose, nested=True):
            yield
    finally:
        with suppress(OSError):  # not empty
            for place in created:
                place.rmdir()


def save_model(model: Model, folder: Path, *, group: Group = SINGLE_PROCESS) -> None:
    """Write a run directory, in one swap if there is an older model in it; other files stay as they are.

    A model that has a part of the users is saved by all processes of `group` together, each writing its own users;
    the folder must be on a file system that all of them see.

    Raises:
        ArgumentError: the folder has files of other origin under these names.
        InUseError: another process is training or saving into the folder.
        TalosError: a file could not be written; the folder holds the model that it held before.
    """
    what = f"{folder} could not be written"
    with lock_run(folder, "saving a model", group=group):
        all_or_none(group, (lambda: _begin_save(folder)) if group.rank == 0 else None, what)
        try:
            if model.users is not None:
                _save_divided(model, folder, group, what)
                return
            checksums = {"users.parquet": _stage(folder, "users.parquet", _user_ids(model).write_parquet)}
            _write_rest(model, folder, _user_tensors(model), model.train.num_users, checksums, {})
        except BaseException as error:
            if group.rank == 0:
                _finish_earlier(folder)  # what was written of this one belongs to no model
            if isinstance(error, OSError):
                raise TalosError(f"{what} ({error}); the model that was there before is intact") from error
            raise


def _save_divided(model: Model, folder: Path, group: Group, what: str) -> None:
    """Save as one process of several; rank 0 also writes what is not divided, and `model.json` at the end."""
    assert model.users is not None
    own = _user_file(model.users)

    def write_own() -> str:
        folder.mkdir(parents=True, exist_ok=True)  # rank 0 has, unless this process sees another file system
        tensors = _user_tensors(model)
        checksum = _stage(folder, own, lambda path: save_file(tensors, path))
        replace_file(_piece(folder, own), _user_ids(model).write_parquet)
        return checksum

    checksum = all_or_none(group, write_own, what)
    assert checksum is not None
    # processes exchange numbers only: the checksum is sent byte by byte, after the bounds
    digest = bytes.fromhex(checksum.removeprefix("sha256:"))
    messages = group.all_gather_numbers([*map(float, (model.users.start, model.users.stop, *digest))])
    files = {
        range(int(start), int(stop)): f"sha256:{bytes(map(int, digest)).hex()}"
        for start, stop, *digest in messages
    }

    def write_rest() -> None:
        pieces = [_piece(folder, _user_file(users)) for users in files]
        for piece in pieces:
            if not piece.is_file():
                raise OSError(f"{piece.name} is not here: do all processes see this folder?")
        checksums = {_user_file(users): checksum for users, checksum in files.items()}
        checksums["users.parquet"] = _stage(
            folder, "users.parquet", lambda path: scan_file(pieces).sink_parquet(path)
        )
        layout = {"user_files": [[users.start, users.stop] for users in files]}
        for piece in pieces:
            piece.unlink()
        _write_rest(model, folder, {}, max(users.stop for users in files), checksums, layout)

    all_or_none(group, write_rest if group.rank == 0 else None, what)


def _write_rest(
    model: Model,
    folder: Path,
    user_tensors: dict[str, Tensor],
    num_users: int,
    checksums: dict[str, str],
    layout: dict[str, Any],
) -> None:
    """Write `model.safetensors` and `items.parquet`, then `model.json`, which makes this the model of the directory."""
    tensors = {**_item_tensors(model), **user_tensors}
    name = "model.safetensors"
    checksums[name] = _stage(folder, name, lambda path: save_file(tensors, path))
    items = pl.DataFrame({"item_id": model.train.item_ids.ids})
    if model.train.item_titles is not None:
        items = items.with_columns(title=model.train.item_titles)
    if model.attributes is not None:
        items = pl.concat([items, model.attributes], how="horizontal")
    checksums["items.parquet"] = _stage(folder, "items.parquet", items.write_parquet)
    ours = ("format", "user_files", "sha256")
    kept = {name: value for name, value in model.metadata.items() if name not in ours}
    shape = {"users": num_users, "items": model.train.num_items}
    if model.has_vectors:
        shape["dim"] = model.vectors.users.shape[1]
    versions = {
        "talos": version("talos-rec"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    metadata = {
        "format": FORMAT,
        **kept,
        "test_is_known": model.test_is_known,
        **layout,
        "shape": shape,
        "versions": versions,
        "checksums": checksums,
    }
    older = _checksums(folder)
    sync(folder)  # the files are under their first names before the swap
    replace_text(folder / "model.json", sealed_text(metadata, indent=2))
    with suppress(OSError):  # the model is saved and loads as it is; the next save renames what is left
        _rename_staged(folder, checksums)
        for name in set(older) - set(checksums):  # users who were divided in another way
            (folder / name).unlink(missing_ok=True)
        _remove_leftovers(folder)


def _staged(folder: Path, name: str, checksum: str) -> Path:
    """Where a file is until the `model.json` that has its checksum is in place."""
    return folder / f"{name}.{checksum.removeprefix('sha256:')[:16]}"


def _stage(folder: Path, name: str, write: Callable[[Path], object]) -> str:
    """Write a file of the next model under its first name; returns its checksum."""
    new = folder / f"{name}.new"
    if (folder / name).is_dir():
        raise TalosError(f"{folder / name} could not be written (it is a folder)")
    replace_file(new, write)
    try:
        checksum = checksum_of(new)
        new.replace(_staged(folder, name, checksum))
    except OSError as error:
        raise TalosError(f"{folder / name} could not be written ({error})") from error
    return checksum


def _rename_staged(folder: Path, checksums: Mapping[str, str]) -> None:
    """Give the files of the model in place their names; those of an older one are replaced."""
    for name, checksum in checksums.items():
        staged = _staged(folder, name, checksum)
        if staged.is_file():
            staged.replace(folder / name)
    sync(folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove what saves that were interrupted before their swap have left."""
    for path in list(folder.iterdir()):
        if _STAGED.fullmatch(path.name):
            path.unlink(missing_ok=True)
            remove_leftovers(path)
    for name in (*FILES, "model.json"):
        remove_leftovers(folder / f"{name}.new")
        remove_leftovers(folder / name)


def holds_leftovers_only(folder: Path) -> bool:
    """Whether a folder has nothing in it but what interrupted saves leave, which the next save removes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "model.safetensors.new").write_bytes(b"half of")
    ...     before = holds_leftovers_only(Path(folder))
    ...     _ = Path(folder, "notes.txt").write_text("mine")
    ...     before, holds_leftovers_only(Path(folder))
    (True, False)
    """
    names = [path.name for path in folder.iterdir()]
    return all(name == LOCK or _STAGED.fullmatch(name) or _TEMPORARY.fullmatch(name) for name in names)


def _begin_save(folder: Path) -> None:
    if not (folder / "model.json").exists() and not (folder / "checkpoint").is_dir():
        for name in FILES:
            if (folder / name).exists():
                expected = "a new folder or a run directory"
                raise ArgumentError("is not of a model", where=str(folder / name), expected=expected)
    _finish_earlier(folder)


def _finish_earlier(folder: Path) -> None:
    """Finish a save that was interrupted after its swap, and remove what is left of one interrupted before it."""
    with suppress(OSError):
        _rename_staged(folder, _checksums(folder))
        _remove_leftovers(folder)


def _checksums(folder: Path) -> dict[str, str]:
    """The files of the model that a folder holds, with their checksums; none if there is no model that loads."""
    try:
        return _Layout.of(_read_metadata(folder), folder / "model.json").checksums
    except (DataError, OSError):
        return {}


def _piece(folder: Path, name: str) -> Path:
    """Where the ids of the users of a file are until rank 0 has collected them."""
    return folder / f"{name}.ids.new"


def _user_file(users: range) -> str:
    """The file with the tensors of these users, in a model that several processes saved."""
    return f"users-{users.start}-{users.stop}.safetensors"


def _stored(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().contiguous()


def _item_tensors(model: Model) -> dict[str, Tensor]:
    if isinstance(model.scored_by, ItemWeights):
        return model.scored_by.tensors()
    return {"item_vectors": _stored(model.vectors.items)}


def _user_tensors(model: Model) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    if model.has_vectors:
        tensors["user_vectors"] = _stored(model.vectors.users)
        if model.vectors.thresholds is not None:
            tensors["thresholds"] = _stored(model.vectors.thresholds)
    for name in _PARTS:
        part = getattr(model, name)
        if part is not None:
            tensors[f"{name}.indptr"] = torch.tensor(part.indptr)
            tensors[f"{name}.indices"] = torch.tensor(part.indices)
            for column in _columns(model):
                values = getattr(part, column)
                if values is not None:
                    values = in_seconds(values) if column == "timestamps" else values
                    tensors[f"{name}.{column}"] = torch.tensor(values)
    return tensors


def _columns(model: Model) -> tuple[str, ...]:
    """The columns of interactions that the weights of the run's events are computed from."""
    return event_columns(model.config.events) if model.has_vectors else ()


def _user_ids(model: Model) -> pl.DataFrame:
    return pl.DataFrame({"user_id": model.train.user_ids.ids})


# ------------------------------------------------------------------- loading


def load_model(folder: Path, *, group: Group = SINGLE_PROCESS) -> Model:
    """Read and check a run directory.

    In a group of several processes each gets the rows of its own users (`Group.share`) and no others.

    Raises:
        DataError: the directory is missing, incomplete, damaged or of a newer format.
    """
    return _of_one_model(folder, lambda: _load_once(folder, group))


def copy_model(folder: Path, copy: Path) -> None:
    """Copy the files of a model into a folder, each under its name, for who must not be disturbed by the next save.

    All of them are of one model, also if another process saves at the same time. `load_model` checks the copy.

    Raises:
        DataError: there is no model, or a file of it is missing.
    """

    def copy_once() -> None:
        content, metadata = _content(folder / "model.json"), _read_metadata(folder)
        checksums = _Layout.of(metadata, folder / "model.json").checksums
        copy.mkdir(parents=True, exist_ok=True)
        for name, checksum in checksums.items():
            # a file that has not got its name yet is the newer one
            place = next(
                (one for one in (_staged(folder, name, checksum), folder / name) if one.is_file()), None
            )
            if place is None:
                raise DataError("is missing", where=str(folder / name), expected="a complete run directory")
            shutil.copyfile(place, copy / name)
        (copy / "model.json").write_bytes(content or b"")

    _of_one_model(folder, copy_once)


def _of_one_model(folder: Path, read: Callable[[], _Result]) -> _Result:
    """What `read` returns; it is called again if another process saves into the folder meanwhile."""
    place, attempt = folder / "model.json", 0
    while True:
        # who holds the lock may be giving the files of this very model their names
        before, saving, attempt = _content(place), (folder / LOCK).exists(), attempt + 1
        try:
            result = read()
        except (DataError, OSError) as error:
            if attempt == _ATTEMPTS or (_content(place) == before and not saving):
                if isinstance(error, DataError):
                    raise
                raise DataError(f"cannot be read ({error})", where=str(folder)) from None
        else:
            if attempt == _ATTEMPTS or _content(place) == before:
                return result


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.stat().st_size <= _LARGEST_JSON else None
    except OSError:
        return None


def _load_once(folder: Path, group: Group) -> Model:
    metadata = _read_metadata(folder)
    layout = _Layout.of(metadata, folder / "model.json")
    wanted = range(layout.users) if group.size == 1 else group.share(layout.users)
    needed = {name: _overlap(rows, wanted) for name, rows in layout.user_files.items()}
    needed = {name: rows for name, rows in needed.items() if len(rows)}
    places = {
        name: _place_of(folder, name, layout.checksums[name], check=name in FILES or name in needed)
        for name in (*FILES, *(name for name in layout.user_files if name not in FILES))
    }
    of_items = places["model.safetensors"]
    scored_with = _read_item_vectors(of_items, layout) if layout.dim else _read_weights(of_items, layout)
    parts = [
        _read_users(places[name], layout, layout.user_files[name], rows) for name, rows in needed.items()
    ]
    user_ids, _ = _read_ids(places["users.parquet"], "user_id", layout.users, wanted)
    item_ids, described = _read_ids(places["items.parquet"], "item_id", layout.items, range(layout.items))
    titles, attributes = _titles_and_attributes(described, places["items.parquet"])
    if any(set(part) != set(parts[0]) for part in parts):
        raise DataError("the files of users hold different tensors", where=str(folder))
    tensors = {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}
    interactions = {
        name: Interactions(
            indptr=tensors[f"{name}.indptr"].numpy(),
            indices=tensors[f"{name}.indices"].numpy(),
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=titles,
            provenance=Provenance(source=str(folder), format="run directory"),
            **{
                column: tensors[f"{name}.{column}"].numpy()
                for column in _EVENTS
                if f"{name}.{column}" in tensors
            },
        )
        for name in _PARTS
        if f"{name}.indptr" in tensors
    }
    scored_by = (
        Vectors(tensors["user_vectors"], scored_with, tensors.get("thresholds"))
        if isinstance(scored_with, Tensor)
        else scored_with
    )
    degrees = None
    if group.size > 1:
        counts = torch.tensor(interactions["train"].item_degrees)
        degrees = group.all_reduce_(counts).numpy()
    return Model(
        scored_by=scored_by,
        **interactions,
        test_is_known=bool(metadata.get("test_is_known", True)),
        metadata=metadata,
        users=None if group.size == 1 else wanted,
        attributes=attributes,
        all_item_degrees=degrees,
        read_from=f"{folder}/model.json",
    )


def _place_of(folder: Path, name: str, checksum: str, *, check: bool) -> Path:
    """Where a file of the model is: under its name, or under its first one if a save was interrupted after its swap."""
    path, staged = folder / name, _staged(folder, name, checksum)
    for place in (path, staged):
        if place.is_file() and (not check or checksum_of(place) == checksum):
            return place
    if not path.is_file():
        raise DataError("is missing", where=str(path), expected="a complete run directory")
    what = "differs from its checksum in model.json"
    raise DataError(what, where=str(path), expected=AS_SAVED)


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    if not folder.is_dir():
        raise DataError("no such run directory", where=str(folder))
    if not path.is_file():
        unfinished = (folder / "checkpoint").is_dir()
        hint = "training has not finished: continue it with resume=True" if unfinished else None
        raise DataError(
            "has no model.json", where=str(folder), expected="the directory of a finished run", hint=hint
        )
    if path.stat().st_size > _LARGEST_JSON:
        raise DataError("is too large", where=str(path), expected=f"at most {_LARGEST_JSON:,} bytes")
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON ({error})", where=str(path)) from None
    number = loaded.get("format") if isinstance(loaded, dict) else None
    if type(number) is not int or number < 1:
        raise DataError("has no format number", where=str(path), expected="a run directory of this library")
    if number != FORMAT:
        hint = "install a newer talos-rec" if number > FORMAT else _OLDER
        raise DataError(f"format {number}", where=str(path), expected=f"format {FORMAT}", hint=hint)
    try:
        metadata: dict[str, Any] = unseal(loaded)
    except (ValueError, RecursionError):
        raise DataError("differs from its own checksum", where=str(path), expected=AS_SAVED) from None
    _check_types(metadata, str(path))
    return metadata


def _check_types(metadata: Mapping[str, Any], where: str) -> None:
    """Refuse metadata of other types than were written, so that whoever shows them need not look."""
    for name, kinds in _TYPES.items():
        value = metadata.get(name)
        if name in metadata and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise DataError(f"{name} is {value!r:.60}", where=where, expected="the file as it was written")
    for name in ("metrics", "valid", "loss_state"):
        for key, value in metadata.get(name, {}).items():
            if not isinstance(value, int | float | None) or isinstance(value, bool):
                what = f"{name} has {value!r:.60} for {key!r:.60}"
                raise DataError(what, where=where, expected="numbers")


@dataclass(frozen=True)
class _Layout:
    """What `model.json` says about the other files."""

    users: int
    items: int
    dim: int  # 0 if there are weights between items instead of vectors
    divided: bool
    user_files: dict[str, range]  # which users each file with user tensors holds
    checksums: dict[str, str]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], path: Path) -> _Layout:
        try:
            users, items = (int(metadata["shape"][name]) for name in ("users", "items"))
            weighs_items = "dim" not in metadata["shape"]
            dim = 0 if weighs_items else int(metadata["shape"]["dim"])
            if not (0 < users <= _MOST_ROWS and 0 < items <= _MOST_ROWS):
                raise ValueError(f"shape has {users} users and {items} items")
            if dim < 1 and not weighs_items:
                raise ValueError(f"shape has vectors of length {dim}")
            files = {
                _user_file(range(*bounds)): range(*map(int, bounds))
                for bounds in metadata.get("user_files", [])
            } or {"model.safetensors": range(users)}
            ends = [0, *(rows.stop for rows in files.values())]
            if [rows.start for rows in files.values()] != ends[:-1] or ends[-1] != users:
                raise ValueError("user_files do not cover all users in order")
            checksums = {name: str(metadata["checksums"][name]) for name in {*FILES, *files}}
        except KeyError as error:
            raise DataError(f"has no key {error}", where=str(path)) from None
        except (TypeError, ValueError, OverflowError) as error:
            what = f"shape, user_files or checksums cannot be used ({error})"
            raise DataError(what, where=str(path)) from None
        return cls(users, items, dim, "user_files" in metadata, files, checksums)


def _overlap(rows: range, wanted: range) -> range:
    """The rows that are in both ranges."""
    start = max(rows.start, wanted.start)
    return range(start, max(start, min(rows.stop, wanted.stop)))


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    """A tensor that several files hold pieces of; `indptr` continues from one piece to the next."""
    if len(parts) == 1:
        return parts[0]
    if not name.endswith(".indptr"):
        return torch.cat(parts)
    shifts = np.cumsum([0, *(int(part[-1]) for part in parts[:-1])]).tolist()
    return torch.cat([parts[0][:1], *(part[1:] + shift for part, shift in zip(parts, shifts, strict=True))])


# ------------------------------------------------------------------- single files


def _read_item_vectors(path: Path, layout: _Layout) -> Tensor:
    wanted = {"item_vectors": ("F32", [layout.items, layout.dim])}
    with _opened(path, wanted, ["item_vectors"], others=not layout.divided) as file:
        vectors: Tensor = file.get_tensor("item_vectors")
    if not torch.isfinite(vectors).all():
        raise DataError("item_vectors has numbers that are not finite", where=str(path))
    return vectors


_WEIGHTS = "item_weights"
_EVENTS = {"timestamps": "F64", "ratings": "F32", "repeats": "I32"}


def _weights_wanted(items: int) -> dict[str, tuple[str, list[int] | None]]:
    return {
        _WEIGHTS: ("F32", [items, items]),
        f"{_WEIGHTS}.indptr": ("I64", [items + 1]),
        f"{_WEIGHTS}.indices": ("I32", None),
        f"{_WEIGHTS}.values": ("F32", None),
    }


def _read_weights(path: Path, layout: _Layout) -> ItemWeights:
    items = layout.items
    with _opened(path, _weights_wanted(items), [], others=True) as file:
        names = {name for name in file.keys() if name in _weights_wanted(items)}  # noqa: SIM118
        if names == {_WEIGHTS}:
            found: Tensor = file.get_tensor(_WEIGHTS)
            weights, values = ItemWeights(found), found
        elif names == {name for name in _weights_wanted(items) if name != _WEIGHTS}:
            indptr, indices = _read_csr(file, _WEIGHTS, 0, items, items, items, f"{path}: {_WEIGHTS}")
            values = file.get_tensor(f"{_WEIGHTS}.values")
            if len(values) != len(indices):
                what, where = f"{len(values):,} values", f"{path}: {_WEIGHTS}"
                raise DataError(what, where=where, expected=f"{len(indices):,}, as many as indices")
            weights = ItemWeights.from_csr(indptr, indices, values)
        else:
            what = f"has {', '.join(sorted(names)) or 'no item_weights'}"
            raise DataError(
                what, where=str(path), expected="item_weights, or all three arrays of sparse ones"
            )
    if not torch.isfinite(values).all():
        raise DataError(f"{_WEIGHTS} has numbers that are not finite", where=str(path))
    return weights


def _read_users(path: Path, layout: _Layout, stored: range, rows: range) -> dict[str, Tensor]:
    """The tensors of the users `rows`, who are some or all of the users `stored` in the file."""
    count, first, last = len(stored), rows.start - stored.start, rows.stop - stored.start
    wanted: dict[str, tuple[str, list[int] | None]] = {
        **{f"{part}.indptr": ("I64", [count + 1]) for part in _PARTS},
        **{f"{part}.indices": ("I32", None) for part in _PARTS},
    }
    required = ["train.indptr", "train.indices"]
    if layout.dim:
        wanted |= {"user_vectors": ("F32", [count, layout.dim]), "thresholds": ("F32", [count])}
        wanted |= {f"{part}.{name}": (kind, None) for part in _PARTS for name, kind in _EVENTS.items()}
        wanted |= {} if layout.divided else {"item_vectors": ("F32", [layout.items, layout.dim])}
        required.append("user_vectors")
    else:
        wanted |= _weights_wanted(layout.items)
    tensors: dict[str, Tensor] = {}
    with _opened(path, wanted, required, others=False) as file:
        names = set(file.keys())
        for name in ("user_vectors", "thresholds"):
            if name in names:
                tensors[name] = file.get_slice(name)[first:last]
                if not torch.isfinite(tensors[name]).all():
                    raise DataError(f"{name} has numbers that are not finite", where=str(path))
        for part in _PARTS:
            if f"{part}.indptr" in names:
                indptr, indices = _read_csr(file, part, first, last, count, layout.items, f"{path}: {part}")
                tensors[f"{part}.indptr"], tensors[f"{part}.indices"] = indptr, indices
                for column in _EVENTS:
                    if f"{part}.{column}" in names:
                        values = _read_column(file, part, column, first, last, f"{path}: {part}.{column}")
                        tensors[f"{part}.{column}"] = values
    return tensors


def _read_column(file: Any, part: str, column: str, first: int, last: int, where: str) -> Tensor:
    """The values of a column for the interactions of rows `first` to `last`, whose indices have been checked."""
    entries, interactions = (file.get_slice(f"{part}.{name}") for name in (column, "indices"))
    if entries.get_shape() != interactions.get_shape():
        expected = f"{interactions.get_shape()[0]:,}, one for each interaction"
        raise DataError(f"{entries.get_shape()[0]:,} values", where=where, expected=expected)
    ends = file.get_slice(f"{part}.indptr")[first : last + 1]
    values: Tensor = entries[int(ends[0]) : int(ends[-1])]
    if column == "repeats" and len(values) and int(values.min()) < 1:
        raise DataError(f"an interaction that occurred {int(values.min())} times", where=where)
    return values


def _read_csr(
    file: Any, part: str, first: int, last: int, count: int, items: int, where: str
) -> tuple[Tensor, Tensor]:
    """Rows `first` to `last` of the `count` rows of interactions, checked."""
    broken = DataError("indptr and indices do not belong together", where=where)
    if f"{part}.indices" not in file.keys():  # noqa: SIM118  a safetensors file is no mapping
        raise broken
    ends = file.get_slice(f"{part}.indptr")[first : last + 1]
    entries = file.get_slice(f"{part}.indices")
    start, stop, length = int(ends[0]), int(ends[-1]), entries.get_shape()[0]
    if not 0 <= start <= stop <= length or (last - first == count and (start, stop) != (0, length)):
        raise broken
    indptr, indices = ends - ends[0], entries[start:stop]
    steps = np.diff(indptr.numpy())
    if (steps < 0).any():
        raise broken
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= items):
        what = "an interaction with an item that does not exist"
        raise DataError(what, where=where, expected=f"below {items:,}")
    row = np.repeat(np.arange(len(steps)), steps)
    if ((np.diff(indices.numpy()) <= 0) & (np.diff(row) == 0)).any():
        raise DataError("the items of a user are not ascending", where=where)
    return indptr, indices


@contextmanager
def _opened(
    path: Path, wanted: Mapping[str, tuple[str, list[int] | None]], required: Sequence[str], *, others: bool
) -> Iterator[Any]:
    """An open safetensors file whose tensors have the `wanted` types and shapes (None is any shape).

    The `required` tensors must be there; tensors that are not in `wanted` may be there if `others`.
    """
    with path.open("rb") as head:
        header = int.from_bytes(head.read(8), "little")
    if header > _LARGEST_HEADER:
        what = f"claims a header of {header:,} bytes"
        raise DataError(what, where=str(path), expected="a model of this library")
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in sorted(names):
                kind, shape = wanted.get(name, (None, None))
                if kind is None and others:
                    continue
                part = file.get_slice(name)
                if part.get_dtype() != kind or (shape is not None and part.get_shape() != shape):
                    raise DataError(
                        f"{name} is {part.get_dtype()} of shape {part.get_shape()}",
                        where=str(path),
                        expected=f"{kind} of shape {shape}" if kind else "no such tensor",
                    )
            for name in required:
                if name not in names:
                    raise DataError(f"has no {name}", where=str(path))
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot be read ({error})", where=str(path)) from None


def _read_ids(path: Path, column: str, count: int, wanted: range) -> tuple[Vocabulary, pl.DataFrame]:
    """The ids in the rows `wanted` of a file with `count` rows, and its other columns."""
    try:
        rows = scan_file(path).select(pl.len()).collect().item()
        if rows != count:
            raise DataError(f"{rows:,} rows", where=str(path), expected=f"{count:,}, as model.json says")
        frame = scan_file(path).slice(wanted.start, len(wanted)).collect()
        if len(frame) != len(wanted):  # a damaged file, whose footer and row groups disagree
            raise DataError(f"{len(frame):,} rows", where=str(path), expected=f"{len(wanted):,}")
        ids = frame[column]
    except DataError:
        raise
    except BaseException as error:  # polars panics on damaged files with an exception of its own
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise DataError(f"cannot be read ({str(error).splitlines()[0]})", where=str(path)) from None
    if ids.dtype not in (pl.String, pl.Int64) or ids.null_count() or not bool((ids[1:] > ids[:-1]).all()):
        raise DataError(f"{column} is not a list of distinct ascending ids", where=str(path))
    return Vocabulary(ids), frame.drop(column)


def _titles_and_attributes(
    described: pl.DataFrame, path: Path
) -> tuple[pl.Series | None, pl.DataFrame | None]:
    """The titles of the items and their other attributes, None where there are none; checked."""
    titles = described["title"] if "title" in described.columns else None
    if titles is not None and titles.dtype != pl.String:
        raise DataError(f"title is {titles.dtype}", where=str(path), expected="strings")
    attributes = described.drop("title", strict=False)
    check_attributes(attributes, str(path))
    return titles, attributes if attributes.width else None
