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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from talos.baselines import ItemWeights
from talos.checks import require
from talos.data.event_weights import event_columns, in_seconds
from talos.data.interactions import Interactions, Provenance
from talos.data.parquet import scan_file
from talos.data.vocabulary import Vocabulary
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, ConfigError, DataError, Option, TalosError, first_line
from talos.files import (
    checksum_of,
    locked,
    remove,
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
    "check_new_run",
    "copy_model",
    "load_model",
    "lock_run",
    "save_model",
]

FORMAT = 6
LOCK = ".lock"
AS_SAVED = "the file as saved"
FILES = ("model.safetensors", "users.parquet", "items.parquet")
_BACKBONE = "backbone.safetensors"  # of a model that encodes histories

_PARTS = ("train", "valid", "test", "later")  # interactions, by the name of the field and of the tensors
_CSR = ("indptr", "indices")
_EVENTS = ("timestamps", "ratings", "repeats")  # columns of interactions that weights are computed from
# Types of the arrays of CSR and of its columns; every other tensor is F32.
_ARRAYS = {
    "indptr": "I64",
    "indices": "I32",
    "values": "F32",
    "timestamps": "F64",
    "ratings": "F32",
    "repeats": "I32",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("config", "metrics", "valid", "loss_state", "baseline", "versions"), (dict,)),
    **dict.fromkeys(("threshold_error", "fit_seconds"), (int, float, type(None))),
    **dict.fromkeys(("epoch", "updates", "test_left_out"), (int,)),
    "source": (dict, type(None)),
}
# Tables that a model may lack.
_OPTIONAL = ("thresholds", "valid", "test", "later")
_LARGEST_HEADER = 1 << 20
_LARGEST_JSON = 8 << 20
_MOST_ROWS = 1 << 40
_NOT_FINITE = "has numbers that are not finite"
_ATTEMPTS = 5  # to load a model that is being replaced
_Result = TypeVar("_Result")
_check = partial(require, error=DataError)
_STAGED = r"(?:(?:model|backbone|users-\d+-\d+)\.safetensors|(?:users|items)\.parquet)\.(?:[0-9a-f]{16}|new|ids\.new)"
# What interrupted saves leave: staged files, and temporary names of `replace_file`.
_LEFTOVER = re.compile(rf"{_STAGED}|\.(?:model\.json|{_STAGED})\.[^.]+\.tmp")


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
            created = [place for place in (folder, *folder.parents) if not place.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ArgumentError(
                    f"cannot be created ({error.strerror})",
                    where=str(folder),
                    expected="a folder that can be written to",
                ) from None
            held.callback(_remove_empty, created)
            held.enter_context(locked(folder / LOCK, guards=folder, purpose=purpose, nested=True))

        all_or_none(group, begin if group.rank == 0 else None, f"{folder} could not be written")
        yield


def _remove_empty(folders: Sequence[Path]) -> None:
    with suppress(OSError):  # not empty
        for folder in folders:
            folder.rmdir()


def save_model(model: Model, folder: Path, *, group: Group = SINGLE_PROCESS) -> None:
    """Write a run directory, in one swap if there is an older model in it; other files stay as they are.

    A model that has a part of the users is saved by all processes of `group` together, each writing its own users;
    the folder must be on a file system that all of them see.

    Raises:
        ArgumentError: the folder has files of other origin under these names.
        InUseError: another process is training or saving into the folder.
        TalosError: a file could not be written; the folder holds the model that it held before.
    """
    what, first = f"{folder} could not be written; the model that was there before is intact", group.rank == 0
    with lock_run(folder, "saving a model", group=group):
        all_or_none(group, (lambda: _begin_save(folder)) if first else None, what)
        try:
            files = {} if model.users is None else _save_users(model, model.users, folder, group, what)
            all_or_none(group, (lambda: _save_rest(model, folder, files)) if first else None, what)
        finally:
            if first:
                _tidy(folder)


def _save_users(model: Model, users: range, folder: Path, group: Group, what: str) -> dict[range, str]:
    """Write the users that one process of several has; returns the users of all processes with their checksums."""

    def write() -> str:
        folder.mkdir(parents=True, exist_ok=True)  # rank 0 has, unless this process sees another file system
        replace_file(_piece(folder, users), model.train.user_ids.ids.to_frame("user_id").write_parquet)
        return _stage(folder, _user_file(users), lambda path: save_file(_user_tensors(model), path))

    checksum = all_or_none(group, write, what)
    assert checksum is not None
    # processes exchange numbers only: the checksum is sent byte by byte, after the bounds
    digest = bytes.fromhex(checksum.removeprefix("sha256:"))
    messages = group.all_gather_numbers([*map(float, (users.start, users.stop, *digest))])
    return {
        range(int(start), int(stop)): f"sha256:{bytes(map(int, digest)).hex()}"
        for start, stop, *digest in messages
    }


def _save_rest(model: Model, folder: Path, files: Mapping[range, str]) -> None:
    """Write what is not divided, then `model.json`, which makes this the model of the directory.

    `files` has the users whose tensors and ids are written already; without it, all of them are written here.
    """
    weights = model.scored_by
    tensors = (
        weights.tensors()
        if isinstance(weights, ItemWeights)
        else {"item_vectors": _stored(model.vectors.items)}
    )
    write_users: Callable[[Path], object] = model.train.user_ids.ids.to_frame("user_id").write_parquet
    if files:
        pieces = [_piece(folder, users) for users in files]
        for piece in pieces:
            if not piece.is_file():
                raise OSError(f"{piece.name} is not here: do all processes see this folder?")
        write_users = scan_file(pieces).sink_parquet
    else:
        tensors |= _user_tensors(model)
    checksums = {
        **{_user_file(users): checksum for users, checksum in files.items()},
        "users.parquet": _stage(folder, "users.parquet", write_users),
        "model.safetensors": _stage(folder, "model.safetensors", lambda path: save_file(tensors, path)),
        "items.parquet": _stage(folder, "items.parquet", model.item_table.write_parquet),
    }
    if (backbone := model.backbone) is not None:
        checksums[_BACKBONE] = _stage(folder, _BACKBONE, lambda path: save_file(dict(backbone), path))
    metadata = {
        "format": FORMAT,
        **{
            name: value
            for name, value in model.metadata.items()
            if name not in ("format", "user_files", "sha256")
        },
        "test_is_known": model.test_is_known,
        **({"user_files": [[users.start, users.stop] for users in files]} if files else {}),
        "shape": {
            "users": max((users.stop for users in files), default=model.train.num_users),
            "items": model.train.num_items,
            **({"dim": model.vectors.users.shape[1]} if model.has_vectors else {}),
        },
        "versions": {
            "talos": version("talos-rec"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "checksums": checksums,
    }
    sync(folder)  # the files are under their first names before the swap
    replace_text(folder / "model.json", sealed_text(metadata, indent=2))


def _staged(folder: Path, name: str, checksum: str) -> Path:
    """Where a file is until the `model.json` that has its checksum is in place."""
    return folder / f"{name}.{checksum.removeprefix('sha256:')[:16]}"


def _stage(folder: Path, name: str, write: Callable[[Path], object]) -> str:
    """Write a file of the next model under its first name; returns its checksum."""
    new = folder / f"{name}.new"
    if (folder / name).is_dir():
        raise TalosError(f"{folder / name} could not be written (it is a folder)")
    replace_file(new, write)
    checksum = checksum_of(new)
    new.replace(_staged(folder, name, checksum))
    return checksum


# What training leaves in a run directory before the run is finished.
_OF_TRAINING = (
    *("checkpoint", "history.jsonl", "history-refit.jsonl", "race", "race.json"),
    *("tensorboard", "mlflow", "wandb"),
)


def check_new_run(out: Path, *, resume: bool = False, refit: str | None = None) -> None:
    """Refuse a directory that a run must not be written to; call it again under the lock (`lock_run`).

    Args:
        out: the directory: a new or empty one, or that of an interrupted run to `resume`.
        resume: whether an interrupted run is to be continued.
        refit: what the run is fitted again on; an interrupted refit is only continued with the same value.

    Raises:
        ConfigError: the directory has something else in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "notes.txt").write_text("mine")
    ...     check_new_run(Path(folder))
    Traceback (most recent call last):
    talos.errors.ConfigError: out: ... exists and is not empty; expected a new directory
    """
    check = partial(require, where="out", expected="a new directory", error=ConfigError)
    check(not (out / "model.json").exists(), f"{out} is a finished run")
    check(out.is_dir() or not out.exists(), f"{out} is a file")
    names = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
    names = [name for name in names if name != LOCK and not _LEFTOVER.fullmatch(name)]
    begun = "checkpoint" in names or "race.json" in names
    check(
        resume or not names,
        f"{out} exists and is not empty",
        option=Option("resume", True, "continues it") if begun else (),
    )
    # a run that was stopped before its first checkpoint has nothing but these
    strangers = [name for name in names if name not in _OF_TRAINING and not name.endswith(".tmp")]
    resumable = not strangers or any((out / "checkpoint").glob("*/state.json"))
    check(resumable, f"{out} has no checkpoint, but has {', '.join(strangers[:1])}")
    for folder in (out / "checkpoint").glob("refit-*"):
        fitted_on = folder.name.removeprefix("refit-")
        check(
            fitted_on == refit,
            f"{out} was interrupted while it was fitted again on {fitted_on}",
            expected="the same",
            option=Option("refit", fitted_on, "continues it"),
        )


def _begin_save(folder: Path) -> None:
    strangers = [name for name in FILES if (folder / name).exists()]
    require(
        not strangers or (folder / "model.json").exists() or (folder / "checkpoint").is_dir(),
        "is not of a model",
        where=str(folder.joinpath(*strangers[:1])),
        expected="a new folder or a run directory",
    )
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Give the files of the model in place their names, and remove what belongs to no model.

    Whatever fails here, the model loads as it is; the next save tries again.
    """
    checksums: dict[str, str] = {}
    with suppress(DataError, OSError):  # no model that loads
        checksums = _Layout.of(folder).checksums
    with suppress(OSError):
        for name, checksum in checksums.items():
            staged = _staged(folder, name, checksum)
            if staged.is_file():
                staged.replace(folder / name)
        sync(folder)
        for path in list(folder.iterdir()):
            optional = re.fullmatch(r"(users-\d+-\d+|backbone)\.safetensors", path.name)
            of_another_model = optional and checksums and path.name not in checksums
            if of_another_model or _LEFTOVER.fullmatch(path.name):
                remove(path)


def _piece(folder: Path, users: range) -> Path:
    """Where the ids of one process's users are until rank 0 has collected them."""
    return folder / f"{_user_file(users)}.ids.new"


def _user_file(users: range) -> str:
    """The file with the tensors of these users, in a model that several processes saved."""
    return f"users-{users.start}-{users.stop}.safetensors"


def _stored(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().contiguous()


def _user_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors with a row for each user: vectors, thresholds and interactions."""
    vectors = (
        {"user_vectors": model.vectors.users, "thresholds": model.vectors.thresholds}
        if model.has_vectors
        else {}
    )
    tensors = {name: _stored(tensor) for name, tensor in vectors.items() if tensor is not None}
    columns = (*_CSR, *event_columns(model.config.events))
    for part in _PARTS:
        for column in columns:
            values = getattr(getattr(model, part), column, None)
            if values is not None:
                values = in_seconds(values) if column == "timestamps" else values
                tensors[f"{part}.{column}"] = torch.tensor(values)
    return tensors


# ------------------------------------------------------------------- loading


def load_model(folder: Path, *, group: Group = SINGLE_PROCESS) -> Model:
    """Read and check a run directory.

    In a group of several processes each gets the rows of its own users (`Group.range_of`) and no others.

    Raises:
        DataError: the directory is missing, incomplete, damaged or of a newer format.
    """
    return _of_one_model(folder, lambda: _load_once(folder, group))


def copy_model(folder: Path, copy: Path) -> None:
    """Copy the files of a model into a folder, each under its name, so that later saves do not change them.

    All of them are of one model, also if another process saves at the same time. `load_model` checks the copy.

    Raises:
        DataError: there is no model, or a file of it is missing.
    """

    def copy_once() -> None:
        content, layout = _content(folder / "model.json"), _Layout.of(folder)
        copy.mkdir(parents=True, exist_ok=True)
        for name, checksum in layout.checksums.items():
            shutil.copyfile(_place_of(folder, name, checksum, check=False), copy / name)
        (copy / "model.json").write_bytes(content or b"")

    _of_one_model(folder, copy_once)


def _of_one_model(folder: Path, read: Callable[[], _Result]) -> _Result:
    """What `read` returns; it is called again if another process saves into the folder meanwhile."""
    place, attempt = folder / "model.json", 0
    while True:
        # the process that holds the lock may be renaming the files of this model
        before, saving, attempt = _content(place), (folder / LOCK).exists(), attempt + 1
        try:
            result = read()
        except (DataError, OSError) as error:
            if attempt == _ATTEMPTS or (_content(place) == before and not saving):
                unreadable = DataError(f"cannot be read ({error})", where=str(folder))
                raise (error if isinstance(error, DataError) else unreadable) from None
        else:
            if attempt == _ATTEMPTS or _content(place) == before:
                return result


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.stat().st_size <= _LARGEST_JSON else None
    except OSError:
        return None


def _load_once(folder: Path, group: Group) -> Model:
    layout = _Layout.of(folder)
    alone = group.size == 1
    wanted = range(layout.users) if alone else group.range_of(layout.users)
    needed = {*FILES, _BACKBONE, *(n for n, users in layout.user_files.items() if _overlap(users, wanted))}
    places = {
        name: _place_of(folder, name, checksum, check=name in needed)
        for name, checksum in layout.checksums.items()
    }
    tensors = _read_tensors(places, "model.safetensors", layout, wanted)
    separate = [name for name in layout.user_files if name in needed and name not in FILES]
    pieces = [_read_tensors(places, name, layout, wanted) for name in separate]
    _check(
        all(piece.keys() == pieces[0].keys() for piece in pieces),
        "the files of users hold different tensors",
        where=str(folder),
    )
    tensors |= {name: torch.cat([piece[name] for piece in pieces]) for piece in pieces[:1] for name in piece}
    # rows of CSR are read as their lengths, which join without further ado
    for name in [name for name in tensors if name.endswith(".indptr")]:
        tensors[name] = F.pad(tensors[name].cumsum(0), (1, 0))
    scored_by: Vectors | ItemWeights
    if layout.dim:
        scored_by = Vectors(tensors["user_vectors"], tensors["item_vectors"], tensors.get("thresholds"))
    elif "item_weights" in tensors:
        scored_by = ItemWeights(tensors["item_weights"])
    else:
        scored_by = ItemWeights.from_csr(*(tensors[f"item_weights.{name}"] for name in (*_CSR, "values")))
    user_ids, _ = _read_ids(places["users.parquet"], "user_id", layout.users, wanted)
    item_ids, described = _read_ids(places["items.parquet"], "item_id", layout.items, range(layout.items))
    titles, attributes = described.get_column("title", default=None), described.drop("title", strict=False)
    kind, where = described.schema.get("title", pl.String()), str(places["items.parquet"])
    _check(kind == pl.String, f"title is {kind}", where=where, expected="strings")
    check_attributes(attributes, where)
    interactions: dict[str, Any] = {
        part: Interactions(
            user_ids=user_ids,
            item_ids=item_ids,
            item_titles=titles,
            provenance=Provenance(source=str(folder), format="run directory"),
            **{
                column: tensors[f"{part}.{column}"].numpy()
                for column in (*_CSR, *_EVENTS)
                if f"{part}.{column}" in tensors
            },
        )
        for part in _PARTS
        if f"{part}.indptr" in tensors
    }
    return Model(
        scored_by=scored_by,
        backbone=_read_backbone(places[_BACKBONE]) if _BACKBONE in places else None,
        **interactions,
        test_is_known=bool(layout.metadata.get("test_is_known", True)),
        metadata=layout.metadata,
        users=None if alone else wanted,
        attributes=attributes if attributes.width else None,
        all_item_degrees=None
        if alone
        else group.all_reduce_(torch.tensor(interactions["train"].item_degrees)).numpy(),
        read_from=f"{folder}/model.json",
    )


def _place_of(folder: Path, name: str, checksum: str, *, check: bool) -> Path:
    """Where a file of the model is: under its first name if a save was interrupted after its swap, or under its own."""
    path = folder / name
    for place in (_staged(folder, name, checksum), path):
        if place.is_file() and (not check or checksum_of(place) == checksum):
            return place
    _check(path.is_file(), "is missing", where=str(path), expected="a complete run directory")
    raise DataError("differs from its checksum in model.json", where=str(path), expected=AS_SAVED)


def _read_metadata(folder: Path) -> dict[str, Any]:
    """The content of `model.json`, checked against its digest and for the types that readers rely on."""
    path = folder / "model.json"
    where = str(path)
    _check(folder.is_dir(), "no such run directory", where=str(folder))
    _check(
        path.is_file(),
        "has no model.json",
        where=str(folder),
        expected="the directory of a finished run",
        option=Option("resume", True, "continues the training, which has not finished")
        if (folder / "checkpoint").is_dir()
        else (),
    )
    _check(
        path.stat().st_size <= _LARGEST_JSON,
        "is too large",
        where=where,
        expected=f"at most {_LARGEST_JSON:,} bytes",
    )
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON ({error})", where=where) from None
    number: Any = loaded.get("format") if isinstance(loaded, dict) else None
    _check(
        type(number) is int and number >= 1,
        "has no format number",
        where=where,
        expected="a run directory of this library",
    )
    _check(
        number == FORMAT,
        f"format {number}",
        where=where,
        expected=f"format {FORMAT}",
        hint="install a newer talos-rec" if number > FORMAT else "Talos 0.2 reads runs up to format 5",
    )
    try:
        metadata: dict[str, Any] = unseal(loaded)
    except (ValueError, RecursionError):
        raise DataError("differs from its own checksum", where=where, expected=AS_SAVED) from None
    for name in _TYPES.keys() & metadata.keys():
        fits = isinstance(metadata[name], _TYPES[name]) and not isinstance(metadata[name], bool)
        _check(fits, f"{name} is {metadata[name]!r:.60}", where=where, expected=AS_SAVED)
    for name in ("metrics", "valid", "loss_state"):
        for key, value in metadata.get(name, {}).items():
            fits = isinstance(value, int | float | None) and not isinstance(value, bool)
            _check(fits, f"{name} has {value!r:.60} for {key!r:.60}", where=where, expected="numbers")
    return metadata


@dataclass(frozen=True)
class _Layout:
    """What `model.json` says about the model and the other files."""

    metadata: dict[str, Any]
    users: int
    items: int
    dim: int  # 0 if there are weights between items instead of vectors
    user_files: dict[str, range]  # which users each file with user tensors holds
    checksums: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> _Layout:
        metadata, where = _read_metadata(folder), str(folder / "model.json")
        try:
            shape = metadata["shape"]
            users, items, dim = int(shape["users"]), int(shape["items"]), int(shape.get("dim", 0))
            sizes = (users, items, dim if "dim" in shape else 1)
            if not all(0 < size <= _MOST_ROWS for size in sizes):
                raise ValueError(f"shape is {users} users, {items} items, vectors of length {dim}")
            files = {
                _user_file(range(*bounds)): range(*map(int, bounds))
                for bounds in metadata.get("user_files", [])
            } or {"model.safetensors": range(users)}
            ends = [0, *(rows.stop for rows in files.values())]
            if [rows.start for rows in files.values()] != ends[:-1] or ends[-1] != users:
                raise ValueError("user_files do not cover all users in order")
            optional = [_BACKBONE] if _BACKBONE in metadata["checksums"] else []
            checksums = {name: str(metadata["checksums"][name]) for name in (*FILES, *files, *optional)}
        except KeyError as error:
            raise DataError(f"has no key {error}", where=where) from None
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise DataError(f"shape, user_files or checksums cannot be used ({error})", where=where) from None
        return cls(metadata, users, items, dim, files, checksums)

    def tensors(self, name: str) -> dict[str, tuple[str, list[int] | None]]:
        """The type and the shape of every tensor that a file may hold; None is any length."""
        users, found = len(self.user_files.get(name, ())), dict[str, tuple[str, list[int] | None]]()
        if name == "model.safetensors" and self.dim:
            found["item_vectors"] = ("F32", [self.items, self.dim])
        elif name == "model.safetensors":
            found["item_weights"] = ("F32", [self.items, self.items])
            found |= _csr("item_weights", self.items, (*_CSR, "values"))
        if users and self.dim:
            found |= {"user_vectors": ("F32", [users, self.dim]), "thresholds": ("F32", [users])}
        for part in _PARTS if users else ():
            found |= _csr(part, users, (*_CSR, *_EVENTS))
        return found


def _csr(table: str, rows: int, columns: Iterable[str]) -> dict[str, tuple[str, list[int] | None]]:
    """The type and the shape of the arrays of a table in CSR."""
    return {f"{table}.{one}": (_ARRAYS[one], [rows + 1] if one == "indptr" else None) for one in columns}


def _overlap(rows: range, wanted: range) -> range:
    """The rows that are in both ranges."""
    return range(max(rows.start, wanted.start), min(rows.stop, wanted.stop))


# ------------------------------------------------------------------- single files


def _read_tensors(places: Mapping[str, Path], name: str, layout: _Layout, wanted: range) -> dict[str, Tensor]:
    """The tensors of a file, which holds nothing else, checked; of tables of users the rows of `wanted` alone.

    Tables in CSR have the lengths of their rows in place of `indptr`.
    """
    path, allowed, users = places[name], layout.tensors(name), layout.user_files.get(name, range(0))
    own, found = _overlap(users, wanted), dict[str, Tensor]()
    mine = slice(own.start - users.start, own.stop - users.start)
    with path.open("rb") as head:
        header = int.from_bytes(head.read(8), "little")
    _check(
        header <= _LARGEST_HEADER,
        f"claims a header of {header:,} bytes",
        where=str(path),
        expected="a model of this library",
    )
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            for one in names:
                (kind, shape), stored = allowed.get(one, ("", None)), file.get_slice(one)
                size = stored.get_shape()
                _check(
                    stored.get_dtype() == kind and (size == shape if shape else len(size) == 1),
                    f"{one} is {stored.get_dtype()} of shape {size}",
                    where=str(path),
                    expected=f"{kind} of shape {shape or '[…]'}" if kind else "no such tensor",
                )
            for table in dict.fromkeys(one.partition(".")[0] for one in allowed):
                rows = slice(0, layout.items) if table.startswith("item_") else mine
                columns = [one.partition(".")[2] for one in names if one.startswith(f"{table}.")]
                if table in names and not columns:
                    found[table] = file.get_slice(table)[rows]
                elif columns or table not in _OPTIONAL:
                    needed = [one for one in (*_CSR, "values") if f"{table}.{one}" in allowed]
                    _check(
                        table not in names and set(needed or [table]) <= set(columns),
                        f"has {', '.join(columns) or f'no {table}'}",
                        where=f"{path}: {table}",
                        expected=f"all of {', '.join(needed) or table}",
                    )
                    arrays = {one: file.get_slice(f"{table}.{one}") for one in columns}
                    read = _read_csr(arrays, rows, layout.items, f"{path}: {table}")
                    found |= {f"{table}.{one}": tensor for one, tensor in read.items()}
    except (SafetensorError, OSError) as error:
        raise DataError(f"cannot be read ({error})", where=str(path)) from None
    for name, tensor in found.items():
        _check(bool(tensor.isfinite().all()), _NOT_FINITE, where=f"{path}: {name}")
    return found


def _read_backbone(path: Path) -> dict[str, Tensor]:
    """The parameters of a backbone; `Model.encoder` checks their names and shapes."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"cannot be read ({error})", where=str(path)) from None
    _check(all(bool(one.isfinite().all()) for one in found.values()), _NOT_FINITE, where=str(path))
    return found


def _read_csr(arrays: dict[str, Any], rows: slice, items: int, where: str) -> dict[str, Tensor]:
    """Some rows of a table in CSR, checked: `indptr` are their lengths, the others have a value for each item."""
    ends, length = arrays.pop("indptr")[:], arrays["indices"].get_shape()[0]
    for name, array in arrays.items():
        _check(
            array.get_shape() == [length],
            f"{array.get_shape()[0]:,} values",
            where=f"{where}.{name}",
            expected=f"{length:,}, as many as indices",
        )
    _check(
        int(ends[0]) == 0 and int(ends[-1]) == length and bool((ends[1:] >= ends[:-1]).all()),
        "indptr and indices do not belong together",
        where=where,
    )
    within = slice(int(ends[rows.start]), int(ends[rows.stop]))
    found: dict[str, Tensor] = {name: array[within] for name, array in arrays.items()}
    counts, indices = ends.diff()[rows], found["indices"]
    _check(
        bool(((indices >= 0) & (indices < items)).all()),
        "an interaction with an item that does not exist",
        where=where,
        expected=f"below {items:,}",
    )
    row = torch.arange(len(counts)).repeat_interleave(counts)
    _check(
        bool(((indices.diff() > 0) | (row.diff() > 0)).all()),
        "the items of a user are not ascending",
        where=where,
    )
    _check(
        bool((found.get("repeats", torch.ones(1)) >= 1).all()),
        "an interaction that occurred less than once",
        where=f"{where}.repeats",
    )
    return {"indptr": counts, **found}


def _read_ids(path: Path, column: str, count: int, wanted: range) -> tuple[Vocabulary, pl.DataFrame]:
    """The ids in the rows `wanted` of a file with `count` rows, and its other columns."""
    try:
        rows = scan_file(path).select(pl.len()).collect().item()
        frame = scan_file(path).slice(wanted.start, len(wanted)).collect()
        ids = frame[column]
    except (Exception, pl.exceptions.PanicException) as error:  # of whatever polars meets in a damaged file
        raise DataError(f"cannot be read ({first_line(error)})", where=str(path)) from None
    _check(
        rows == count and len(frame) == len(wanted),  # the footer and the row groups may disagree
        f"{rows:,} rows, and {len(frame):,} of {len(wanted):,} could be read",
        where=str(path),
        expected=f"{count:,}, as model.json says",
    )
    _check(
        ids.dtype in (pl.String, pl.Int64) and not ids.null_count() and bool((ids[1:] > ids[:-1]).all()),
        f"{column} is not a list of distinct ascending ids",
        where=str(path),
    )
    return Vocabulary(ids), frame.drop(column)
