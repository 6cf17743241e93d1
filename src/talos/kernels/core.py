"""The compiled core: where it is found, what it can do on this processor, and a function for each of its operations.

The core is built with the package if there is a C++ compiler (`setup.py`). It contains one version per instruction set;
the best one that this processor supports is selected at load time. The environment variable `TALOS_KERNEL` chooses the
kernel:

- `auto` (the default): the core where it is built and applies, torch elsewhere;
- `compiled`: the same, but a missing core is an error;
- `torch`: never the core.

Every function takes `level`, one of `levels()` (default: the highest), and `threads` (default: as many as torch uses).
Tensors are on the CPU; vectors are converted to float32 if need be. The functions check whatever could make the core
access memory outside of its arguments: shapes, types, offsets and indices. Values are the caller's to check.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from talos.errors import ArgumentError
from talos.files import built_library

__all__ = [
    "Kind",
    "Swept",
    "adam_rows_",
    "add_positives_",
    "available",
    "checked_indices",
    "has_bfloat16",
    "kinds",
    "level_of",
    "levels",
    "pair_scores",
    "scratch",
    "smooth_places_",
    "solve_rows_",
    "status",
    "supports",
    "sweep",
    "team",
    "unit_rows",
    "workspace_bytes",
]

_CPU: Final = torch.device("cpu")
_LARGE_PAGE: Final = 1 << 21
# Numbers in the vectors of samples that are gathered at a time, about: 4 MB, and as much for their gradients.
_GATHERED: Final = 1 << 20
_CHOICES: Final = ("auto", "compiled", "torch")
_INDEX_TYPES: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_TYPES: Final = {"q": ctypes.c_int64, "f": ctypes.c_float, "P": ctypes.c_void_p}
# What this module uses of the core: fields of a task, and operations.
_FIELDS: Final = """
    rows items dim threads parallel team_size workspace users table kind params scale k kth_is_threshold
    inner_only bfloat16 gradients users_per_block thresholds weights excluded_start excluded indptr indices
    positive_scores slopes sums normalizer user_gradient item_gradient parameter_gradient positive_slopes
    excluded_scores kth best steps gram gradient lengths out mean square
"""
_OPERATIONS: Final = "sweep pair_scores unit_rows add_positives adam_rows least_squares smooth_places"


class _Fact(ctypes.Structure):
    """`talos::Fact` of core/dispatch.cpp: a field, an operation or a kind."""

    _fields_ = [("topic", ctypes.c_char_p), ("name", ctypes.c_char_p), ("values", ctypes.c_int32 * 5)]


class Kind(NamedTuple):
    """What the core says about one φ.

    Attributes:
        number: by which the core knows it.
        params: how many parameters it has.
        free: how many of them, the first ones, need not be positive.
        learnt: how many of them, the first ones, `sweep` returns a gradient for.
        log_sum: whether R is a log-sum.
        pairs: whether it is summed over pairs of a positive and a negative.
    """

    number: int
    params: int
    free: int
    learnt: int
    log_sum: int
    pairs: int


_NO_KIND: Final = Kind(0, 0, 0, 0, 0, 0)


class Swept(NamedTuple):
    """The result of a sweep over R rows; a field that was not requested has shape (0,).

    Attributes:
        sums: R of every row, (R,); 0 for a row without negatives. For pairs, R of every positive, (P,); -inf for a
            log-sum over no negatives.
        normalizer: log Σφ for "log-sum", Σφ for "mean", (R,); (0,) for pairs.
        kth: K-th best scores, (R,).
        best: the K best scores in any order, (R, K).
        excluded_scores: scores of the excluded pairs, (m,).
        positive_slopes: gradient with respect to the scores of the positives, (P,), for pairs with gradients.
        parameter_gradient: gradient of Σ_r weight_r · R_r with respect to each of φ's parameters, for kinds that learn
            some of them; 0 for the parameters that are constants.
    """

    sums: Tensor
    normalizer: Tensor
    kth: Tensor
    best: Tensor
    excluded_scores: Tensor
    positive_slopes: Tensor
    parameter_gradient: Tensor


class _Core(NamedTuple):
    """The library, and what it contains."""

    library: ctypes.CDLL
    task: type[ctypes.Structure]
    operations: dict[str, int]
    kinds: dict[str, Kind]
    levels: tuple[str, ...]


@functools.cache
def _load() -> tuple[_Core | None, str]:
    """The core, or None and the reason why it is missing."""
    found = built_library(__file__, "_core")
    if found is None:
        return None, "the core was not built (no C++ compiler when the package was installed?)"
    try:
        return _described(ctypes.CDLL(str(found))), ""
    except (OSError, AttributeError, ValueError) as error:
        return None, f"the core cannot be loaded ({error}): install the package again"


def _described(library: ctypes.CDLL) -> _Core:
    """The core by its own description; `ValueError` if it lacks a field or an operation, or if an offset differs."""
    library.talos_core_facts.restype = ctypes.POINTER(_Fact)
    library.talos_core_workspace_bytes.restype = ctypes.c_int64
    library.talos_core_level_name.restype = ctypes.c_char_p
    facts: dict[str, dict[str, list[int]]] = {"field": {}, "operation": {}, "kind": {}}
    for fact in itertools.takewhile(
        lambda one: one.topic, map(library.talos_core_facts().__getitem__, itertools.count())
    ):
        facts[fact.topic.decode()][fact.name.decode()] = list(fact.values)
    fields, operations = facts["field"], facts["operation"]
    if missing := {*_FIELDS.split(), *_OPERATIONS.split()} - fields.keys() - operations.keys():
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    layout = [(name, _TYPES[chr(letter)]) for name, (letter, *_) in fields.items()]
    task = type("Task", (ctypes.Structure,), {"_fields_": layout})
    for name, (_, offset, *_) in fields.items():
        if getattr(task, name).offset != offset:
            raise ValueError(f"its field {name} is at {offset}, not at {getattr(task, name).offset}")
    kinds = {
        name: Kind(number, *values) for number, (name, values) in enumerate(facts["kind"].items(), start=1)
    }
    numbers = range(library.talos_core_best_level() + 1)
    levels = tuple(library.talos_core_level_name(number).decode() for number in numbers)
    return _Core(library, task, {name: number for number, name in enumerate(operations)}, kinds, levels)


@functools.cache
def team() -> tuple[int | None, int | None]:
    """Addresses of the OpenMP runtime that torch uses, so that the core runs in the same thread pool.

    These are `GOMP_parallel` and `omp_get_num_threads`; None if there is no such runtime: the core then starts threads
    of its own.
    """
    beside = sorted(Path(torch.__file__).parent.glob("lib/lib*omp*"))  # libgomp, libiomp5, libomp
    nearby = sorted(Path(torch.__file__).parents[1].glob("torch.libs/lib*omp*"))
    loaded = () if sys.platform == "win32" else (None,)  # what the process has loaded already
    for name in (*loaded, *map(str, beside), *map(str, nearby)):
        try:
            library = ctypes.CDLL(name)
            found = library.GOMP_parallel, library.omp_get_num_threads
        except (OSError, AttributeError):
            continue
        parallel, size = (ctypes.cast(function, ctypes.c_void_p).value for function in found)
        return parallel, size
    return None, None


def available() -> bool:
    """Whether the core is built, can be loaded and is not ruled out by `TALOS_KERNEL`.

    >>> isinstance(available(), bool)
    True
    """
    choice = os.environ.get("TALOS_KERNEL", "auto")
    if choice not in _CHOICES:
        raise ArgumentError(f"{choice!r}", where="TALOS_KERNEL", expected="'auto', 'compiled' or 'torch'")
    if choice == "torch":
        return False
    core, why = _load()
    if core is None and choice == "compiled":
        raise ArgumentError("'compiled'", where="TALOS_KERNEL", expected=f"'auto' or 'torch', because {why}")
    return core is not None


def levels() -> tuple[str, ...]:
    """Instruction sets of the core that this processor supports, lowest first; empty without the core.

    >>> set(levels()) <= {"plain", "AVX2", "AVX-512", "NEON"}
    True
    """
    core, _ = _load()
    return () if core is None else core.levels


def has_bfloat16() -> bool:
    """Whether the core was built with bfloat16 products and this processor supports them.

    >>> isinstance(has_bfloat16(), bool)
    True
    """
    core, _ = _load()
    return core is not None and bool(core.library.talos_core_has_bfloat16())


def status() -> str:
    """One line: which kernel is used on the CPU, and why if it is not the core.

    >>> status().startswith(("compiled core, ", "torch, because "))
    True
    """
    if not available():
        return f"torch, because {_load()[1] or 'TALOS_KERNEL says so'}"
    threads = torch.get_num_threads()
    half = ", bfloat16" if has_bfloat16() else ""
    return f"compiled core, {levels()[-1]}, {threads} thread{'s' if threads != 1 else ''}{half}"


def kinds() -> dict[str, Kind]:
    """The kinds of φ that the core has, by name; empty without the core.

    >>> not available() or kinds()["exp"].log_sum == 1
    True
    """
    core, _ = _load()
    return {} if core is None else core.kinds


def level_of(name: str | None) -> tuple[_Core, int]:
    """The core, and its number for an instruction set of `levels()`; that of the highest if None."""
    core, why = _load()
    if core is None:
        raise ArgumentError("no compiled core", where="TALOS_KERNEL", expected=why)
    return core, core.levels.index(name) if name else len(core.levels) - 1


def supports(kind: str, params: Sequence[float], *tensors: Tensor | None) -> bool:
    """Whether the core is available, has this φ for these parameters, and takes these tensors: float32 on the CPU.

    `kind` is empty for K-th scores alone.

    >>> vectors = torch.zeros(2, 3)
    >>> supports("", (), vectors.double()), supports("exp", (-1.0,)), supports("", (), vectors) == available()
    (False, False, True)
    """
    for one in tensors:
        if one is not None and (one.dtype != torch.float32 or one.device.type != "cpu"):
            return False
    core = _load()[0]
    if not available() or core is None:
        return False
    found = core.kinds.get(kind, _NO_KIND)
    return (not kind or found.number > 0) and min(params[found.free :], default=1.0) > 0


class _Memory(threading.local):
    """One workspace per thread, kept between calls: touching fresh pages would cost a good part of a small step."""

    block: Tensor = torch.empty(0)

    def take(self, size: int) -> Tensor:
        """A block of at least `size` bytes."""
        if self.block.numel() * 4 < size:
            self.block = torch.empty(0)  # freed first: both at once may not fit into memory
            self.block = _pages(size)
        return self.block


def _pages(size: int) -> Tensor:
    """New memory, in huge pages where the system has them: a sweep jumps from tile to tile."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(-(-size // 4))
    pages = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE + _LARGE_PAGE)
    with contextlib.suppress(OSError):  # a Linux kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32)


scratch: Final = _Memory()
gathered: Final = _Memory()


def _task(core: _Core, threads: int | None, fields: dict[str, Any]) -> Any:
    """The arguments of an operation as the core reads them: addresses of tensors, which the caller keeps alive."""
    parallel, team_size = team()
    threads = threads or torch.get_num_threads()
    task: Any = core.task(threads=threads, parallel=parallel, team_size=team_size)
    for name, value in fields.items():
        setattr(task, name, value.data_ptr() if isinstance(value, Tensor) else value)
    return task


def _run(
    operation: str,
    level: str | None,
    threads: int | None,
    each: Sequence[dict[str, Any]] = (),
    /,
    **fields: Any,
) -> None:
    """Carry out an operation with the workspace that it asks for.

    A task with `fields` uses all threads. Or there are several tasks, with the fields of `each`, on one thread each.
    """
    core, at = level_of(level)
    number, tasks, size = core.operations[operation], (core.task * (len(each) or 1))(), 0
    at_once = min(threads or torch.get_num_threads(), len(each)) or 1
    for index, own in enumerate(each or [fields]):
        tasks[index] = _task(core, 1 if each else threads, own)
        wanted = core.library.talos_core_workspace_bytes(at, number, ctypes.byref(tasks[index]))
        size = max(size, wanted)
    workspace = scratch.take(size * at_once)
    for index, task in enumerate(tasks):
        task.workspace = workspace.data_ptr() + index % at_once * size
    count = ctypes.c_int64(len(tasks))
    if core.library.talos_core_run(at, number, tasks, count, ctypes.c_int64(at_once)):
        raise MemoryError("the core could not start its threads")


def _floats(name: str, values: Tensor, *shape: int) -> Tensor:
    """An argument as the core reads it: float32, contiguous, on the CPU and of this shape; converted if need be."""
    if values.shape != shape or values.device.type != "cpu" or not values.dtype.is_floating_point:
        found = f"has shape {tuple(values.shape)}, type {values.dtype} on {values.device}"
        raise ArgumentError(found, where=name, expected=f"shape {shape}, floating-point numbers on the CPU")
    return values.detach().to(torch.float32).contiguous()


def _output(name: str, values: Tensor, *shape: int) -> Tensor:
    """A tensor that the core writes to, which can't be converted: an error unless it is as `_floats` returns it."""
    if values.data_ptr() != _floats(name, values, *shape).data_ptr():
        found = f"has type {values.dtype} and strides {values.stride()}"
        raise ArgumentError(found, where=name, expected="float32, contiguous")
    return values


def checked_indices(name: str, values: Tensor, bound: int | None, device: torch.device = _CPU) -> Tensor:
    """Indices as int64, contiguous; an error unless they are integers from 0 to below `bound`, on this device."""
    if values.layout != torch.strided or values.dtype not in _INDEX_TYPES or values.device != device:
        found = f"has shape {tuple(values.shape)}, {values.dtype}, {values.layout} on {values.device}"
        raise ArgumentError(found, where=name, expected=f"a dense tensor of integers on {device}")
    if bound is not None and values.numel():
        low, high = map(int, torch.aminmax(values))
        if low < 0 or high >= bound:
            raise ArgumentError(f"{low} to {high}", where=name, expected=f"0 to {bound - 1}")
    return values.to(torch.int64).contiguous()


def _offsets(name: str, values: Tensor, rows: int, count: int) -> Tensor:
    """CSR offsets (rows + 1,) as the core reads them; an error unless they ascend within 0 to `count`."""
    offsets = checked_indices(name, values, None)
    if offsets.shape != (rows + 1,) or int(offsets[0]) < 0 or int(offsets[-1]) > count:
        last = int(offsets.flatten()[-1]) if offsets.numel() else 0
        expected = f"{rows + 1} offsets up to {count}"
        raise ArgumentError(f"{offsets.numel()} offsets up to {last}", where=name, expected=expected)
    if bool((offsets.diff() < 0).any()):
        raise ArgumentError("does not ascend", where=name, expected="ascending offsets")
    return offsets


def _csr(indptr: Tensor, indices: Tensor, rows: int, bound: int) -> dict[str, Tensor]:
    """The fields of a CSR matrix of this many rows, with columns below `bound`."""
    if indices.ndim != 1:
        raise ArgumentError(f"has shape {tuple(indices.shape)}", where="indices", expected="a vector")
    found = checked_indices("indices", indices, bound)
    return {"indptr": _offsets("indptr", indptr, rows, len(found)), "indices": found}


def _vectors(users: Tensor, items: Tensor) -> dict[str, Any]:
    """The fields of user vectors (R, d) and item vectors (I, d)."""
    if users.ndim != 2 or items.ndim != 2:
        raise ArgumentError(
            f"have {users.ndim} and {items.ndim} dimensions", where="users, items", expected="two matrices"
        )
    (rows, dim), count = users.shape, len(items)
    return {
        "rows": rows,
        "items": count,
        "dim": dim,
        "users": _floats("users", users, rows, dim),
        "table": _floats("items", items, count, dim),
    }


def _samples(samples: tuple[Tensor, Tensor], rows: int, num_items: int) -> tuple[Tensor, Tensor]:
    """Samples (G, n) and their bounds (G + 1,) as int64; an error unless every row has one."""
    drawn = checked_indices("samples", samples[0], num_items)
    if drawn.ndim != 2:
        raise ArgumentError(f"has shape {tuple(drawn.shape)}", where="samples", expected="shape (G, n)")
    bounds = _offsets("samples", samples[1], len(drawn), rows)
    if int(bounds[0]) != 0 or int(bounds[-1]) != rows:
        raise ArgumentError(
            f"rows {int(bounds[0])} to {int(bounds[-1])}", where="samples", expected=f"0 to {rows}"
        )
    return drawn, bounds


def sweep(
    users: Tensor,
    items: Tensor,
    excluded: tuple[Tensor, Tensor] | None,
    thresholds: Tensor | None,
    weights: Tensor | None,
    *,
    kind: str = "",
    params: Sequence[float] = (),
    scale: float = 1.0,
    positives: tuple[Tensor, Tensor | None] | None = None,
    k: int = 0,
    kth_is_threshold: bool = False,
    keep_best: bool = False,
    inner_only: bool = False,
    bfloat16: bool = False,
    samples: tuple[Tensor, Tensor] | None = None,
    user_gradient: Tensor | None = None,
    item_gradient: Tensor | None = None,
    users_per_block: int | None = None,
    threads: int | None = None,
    level: str | None = None,
) -> Swept:
    """One pass over all items for a batch of R rows: sums of φ, their gradients and the K best scores.

    For a given number of threads, results are identical from run to run.

    Args:
        users: (R, d).
        items: (I, d).
        excluded: (R + 1,) and (m,): CSR of the pairs that are no negatives, ascending within each row.
        thresholds: β of each row, (R,); 0 if None.
        weights: the factor of each R in the gradients, (R,), or of each h(R_i), (P,), for pairs.
        kind: φ, one of `kinds()`; the K best scores alone if empty.
        params: the parameters of φ.
        scale: the factor of R.
        positives: for pairs, the offsets (R + 1,) and the scores (P,) of the positives; None in place of the scores if
            the positives are the excluded items, whose scores the pass computes anyway.
        k: find the K-th best scores, if above 0. Not together with `samples`.
        kth_is_threshold: use them as β.
        keep_best: return all K best scores, not only the K-th.
        inner_only: for pairs, gradients of Σ weight_i · R_i in place of h(R_i).
        bfloat16: round the factors of all products to bfloat16 (8 bits of precision, sums in float32), at twice the
            speed where the processor has instructions for it; see `has_bfloat16`.
        samples: (G, n) rows of `items` and (G + 1,) bounds: rows `bounds[g]` to below `bounds[g + 1]` have sample g as
            their negatives. `excluded` are then positions in the row's sample; results do not depend on the threads.
        user_gradient: (R, d), memory for the gradient of Σ_r weight_r · R_r; float32 and contiguous.
        item_gradient: (I, d), likewise. Both or neither: without them a pass is only the scores and φ.
        users_per_block: rows that are processed at a time; chosen by cache size if None.
        threads: as many as torch uses if None.
        level: one of `levels()`; the highest if None.

    >>> found = sweep(torch.tensor([[1.0]]), torch.tensor([[0.1], [0.9], [0.5]]), None, None, None, k=2) \
            if available() else None
    >>> found is None or found.kth.tolist() == [0.5]
    True
    """
    fields = _vectors(users, items)
    rows, num_items, dim = fields["rows"], fields["items"], fields["dim"]
    new, most, columns, count = fields["users"].new_empty, num_items, num_items, rows
    of_kind = kinds().get(kind) if kind else _NO_KIND
    if of_kind is None or len(params) != of_kind.params or of_kind.pairs != (positives is not None):
        raise ArgumentError(
            f"{kind!r}, {len(params)} parameters, {'no ' if positives is None else ''}positives",
            where="kind",
            expected=f"{of_kind}" if of_kind else f"one of {list(kinds())}",
        )
    drawn = None if samples is None else _samples(samples, rows, num_items)
    if drawn is not None:
        most, columns = 0, drawn[0].shape[1]
    if not 0 <= k <= most:
        raise ArgumentError(f"got {k}", where="k", expected=f"0 to {most}, the number of items")
    excluded_scores = new(0)
    if excluded is not None:
        csr = _csr(*excluded, rows, columns)
        excluded_scores = new(len(csr["indices"]))
        fields |= {
            "excluded_start": csr["indptr"],
            "excluded": csr["indices"],
            "excluded_scores": excluded_scores,
        }
    fields["thresholds"] = None if thresholds is None else _floats("thresholds", thresholds, rows)
    if positives is not None:
        scores = excluded_scores if positives[1] is None else positives[1].flatten()
        count = len(scores)
        fields["indptr"] = _offsets("positives", positives[0], rows, count)
        fields["positive_scores"] = _floats("positives", scores, count)
    gradients = user_gradient is not None or item_gradient is not None
    if gradients:
        if weights is None or user_gradient is None or item_gradient is None:
            raise ArgumentError(
                "is missing",
                where="weights, user_gradient or item_gradient",
                expected="weights and memory for both gradients",
            )
        fields["weights"] = _floats("weights", weights, count)
        fields["user_gradient"] = _output("user_gradient", user_gradient, rows, dim)
        fields["item_gradient"] = _output("item_gradient", item_gradient, num_items, dim)
    swept = Swept(
        sums=new(count if kind else 0),
        normalizer=new(rows if kind and not of_kind.pairs else 0),
        kth=new(rows if k else 0),
        best=new((rows, k) if k and keep_best else 0),
        excluded_scores=excluded_scores,
        positive_slopes=new(count if of_kind.pairs and gradients else 0),
        parameter_gradient=new(of_kind.params if of_kind.learnt and gradients else 0),
    )
    fields = {**swept._asdict(), **fields} | {
        "kind": of_kind.number,
        "params": torch.tensor(params, dtype=torch.float32),
        "scale": scale,
        "bfloat16": bfloat16,
        "k": k,
        "kth_is_threshold": kth_is_threshold,
        "inner_only": inner_only,
        "gradients": gradients,
        "users_per_block": users_per_block or 0,
    }
    if drawn is None:
        _run("sweep", level, threads, **fields)
    else:
        _sweep_samples(fields, *drawn, pairs=of_kind.pairs, level=level, threads=threads)
    return swept


def _sweep_samples(
    fields: dict[str, Any],
    drawn: Tensor,
    bounds: Tensor,
    *,
    pairs: int,
    level: str | None,
    threads: int | None,
) -> None:
    """Sweep samples: each one, gathered into a block, is a table like any other. Then add up the blocks' gradients."""
    of_kind = ("indptr",) if pairs else ("weights", "sums", "normalizer")
    of_rows = "users", "excluded_start", "thresholds", "user_gradient", *of_kind
    by_row = {name: fields[name] for name in of_rows if fields.get(name) is not None}
    table, item_gradient, found = fields["table"], fields.get("item_gradient"), fields["parameter_gradient"]
    (count, n), dim, of_samples = drawn.shape, table.shape[1], found.new_zeros(len(drawn), len(found))
    shared_by = list(itertools.pairwise(bounds.tolist()))
    if item_gradient is not None:
        item_gradient.zero_()
    at_once = max(threads or torch.get_num_threads(), _GATHERED // max(1, n * dim))
    for start in range(0, count, at_once):
        some = range(start, min(start + at_once, count))
        items = drawn[start : some.stop].flatten()
        memory = gathered.take(8 * len(items) * dim)[: 2 * len(items) * dim].view(2, len(items), dim)
        torch.index_select(table, 0, items, out=memory[0])
        blocks, gradients = memory.view(2, len(some), n, dim)
        each = [
            fields
            | {name: value[shared_by[g][0] :] for name, value in by_row.items()}
            | {"rows": shared_by[g][1] - shared_by[g][0], "items": n, "parameter_gradient": of_samples[g]}
            | {"table": blocks[g - start], "item_gradient": gradients[g - start]}
            for g in some
        ]
        _run("sweep", level, threads, each)
        if item_gradient is not None:
            # as if each gradient were the vector of a row with one positive
            _run(
                "add_positives",
                level,
                threads,
                rows=len(items),
                items=len(table),
                dim=dim,
                users=memory[1],
                indptr=torch.arange(len(items) + 1),
                indices=items,
                slopes=torch.ones(len(items)),
                item_gradient=item_gradient,
            )
    torch.sum(of_samples, 0, out=found)


def workspace_bytes(
    num_users: int,
    num_items: int,
    dim: int,
    *,
    k: int = 0,
    bfloat16: bool = False,
    users_per_block: int | None = None,
    threads: int | None = None,
    level: str | None = None,
) -> int:
    """The workspace that `sweep` takes for these sizes and options.

    >>> not available() or workspace_bytes(512, 10_000, 64) < workspace_bytes(512, 100_000, 64)
    True
    """
    core, at = level_of(level)
    sizes = {"rows": num_users, "items": num_items, "dim": dim, "k": k, "bfloat16": bfloat16}
    task = _task(core, threads, {**sizes, "users_per_block": users_per_block or 0})
    return int(core.library.talos_core_workspace_bytes(at, core.operations["sweep"], ctypes.byref(task)))


def unit_rows(
    table: Tensor, out: Tensor | None = None, *, level: str | None = None, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths (at least 1e-12, as in `F.normalize`), written to `out`, and the lengths.

    >>> unit, lengths = unit_rows(torch.tensor([[3.0, 4.0]])) if available() else (None, torch.tensor([5.0]))
    >>> lengths
    tensor([5.])
    """
    count, dim = table.shape
    rows = _floats("table", table, count, dim)
    unit = torch.empty_like(rows) if out is None else _output("out", out, count, dim)
    lengths = rows.new_empty(count)
    _run("unit_rows", level, threads, items=count, dim=dim, table=rows, out=unit, lengths=lengths)
    return unit, lengths


def add_positives_(
    user_gradient: Tensor,
    item_gradient: Tensor,
    users: Tensor,
    items: Tensor,
    indptr: Tensor,
    indices: Tensor,
    slopes: Tensor,
    *,
    lengths: Tensor | None = None,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """Add ∂L/∂s of the positives to both gradients, in place.

    With `lengths` the items' gradient is then converted from that of the unit vectors to that of the rows before
    normalisation.

    Args:
        user_gradient: (R, d), added to.
        item_gradient: (I, d), added to.
        users: (R, d).
        items: (I, d).
        indptr: (R + 1,).
        indices: (P,), ascending within each row.
        slopes: (P,), ∂L/∂s of each.
        lengths: (I,), by which the item vectors were divided; None if they were not.
        level: one of `levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    fields = _vectors(users, items)
    rows, num_items, dim = fields["rows"], fields["items"], fields["dim"]
    _run(
        "add_positives",
        level,
        threads,
        **fields,
        **_csr(indptr, indices, rows, num_items),
        slopes=_floats("slopes", slopes, len(indices)),
        lengths=None if lengths is None else _floats("lengths", lengths, num_items),
        user_gradient=_output("user_gradient", user_gradient, rows, dim),
        item_gradient=_output("item_gradient", item_gradient, num_items, dim),
    )


def pair_scores(
    users: Tensor,
    items: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    level: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """Scores (P,) of rows with some items each, such as their positives: CSR `indptr` (R + 1,) and `indices` (P,).

    >>> pairs = torch.tensor([0, 1]), torch.tensor([1])
    >>> pair_scores(torch.ones(1, 2), torch.eye(2), *pairs) if available() else torch.ones(1)
    tensor([1.])
    """
    fields = _vectors(users, items) | _csr(indptr, indices, len(users), len(items))
    scores = torch.empty(len(indices))
    _run("pair_scores", level, threads, **fields, out=scores)
    return scores


def adam_rows_(
    parameter: Tensor,
    rows: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """One step of Adam for distinct rows (n,) of a float32 table (N, d), in place, with their gradients (n, d)."""
    count, dim = len(rows), parameter.shape[1]
    # 1 - β is computed here: float32 has too few digits for 1 - .999.
    constants = (1 - betas[0], betas[1], 1 - betas[1], eps, weight_decay)
    corrections = (lr / (1 - betas[0] ** step), (1 - betas[1] ** step) ** 0.5)
    _run(
        "adam_rows",
        level,
        threads,
        rows=count,
        dim=dim,
        indices=checked_indices("rows", rows, len(parameter)),
        gradient=_floats("gradient", gradient, count, dim),
        out=_output("parameter", parameter, *parameter.shape),
        mean=_output("exp_avg", exp_avg, *parameter.shape),
        square=_output("exp_avg_sq", exp_avg_sq, *parameter.shape),
        params=torch.tensor((*constants, *corrections), dtype=torch.float32),
    )


def smooth_places_(
    scores: Tensor,
    indptr: Tensor,
    indices: Tensor,
    coefficients: Tensor,
    params: Sequence[float],
    *,
    level: str | None = None,
    threads: int | None = None,
) -> Tensor:
    """SmoothI@K of lists (R, I): the values (P,) of the positives, given as CSR; the scores become the slopes.

    Slopes are those of Σ_i coefficient_i · value_i; `params` are K, 1/τ and δ. An item is at most once among a row's
    positives.

    >>> lists, first = torch.tensor([[1.0, 0.5, 0.0]]), (torch.tensor([0, 1]), torch.tensor([0]))
    >>> smooth_places_(lists, *first, torch.ones(1), (1.0, 100.0, 0.1)) if available() else torch.zeros(1)
    tensor([0.])
    """
    rows, num_items = scores.shape
    lists, csr = _output("scores", scores, rows, num_items), _csr(indptr, indices, rows, num_items)
    factors = _floats("coefficients", coefficients, len(indices))
    values = lists.new_zeros(len(indices))
    if num_items:
        _run(
            "smooth_places",
            level,
            threads,
            **csr,
            rows=rows,
            items=num_items,
            k=int(params[0]),
            params=torch.tensor(params[1:], dtype=torch.float32),
            weights=factors,
            out=lists,
            sums=values,
        )
    return values


def solve_rows_(
    solution: Tensor,
    indptr: Tensor,
    indices: Tensor,
    fixed: Tensor,
    gram: Tensor,
    *,
    weight: float,
    steps: int,
    weights: Tensor | None = None,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """Half a sweep of alternating least squares, in place: conjugate gradients for every row; the other side is fixed.

    Args:
        solution: (R, d), initial values and result; float32 and contiguous. Rows without entries become 0.
        indptr: (R + 1,).
        indices: (P,), rows of `fixed`.
        fixed: (C, d).
        gram: (d, d), Σ y yᵀ + λ·1 over the rows y of `fixed`.
        weight: α.
        steps: of conjugate gradients.
        weights: w (P,) of the entries; 1 for all if None.
        level: one of `levels()`; the highest if None.
        threads: as many as torch uses if None.
    """
    rows, dim = solution.shape
    _run(
        "least_squares",
        level,
        threads,
        rows=rows,
        dim=dim,
        steps=steps,
        scale=weight,
        **_csr(indptr, indices, rows, len(fixed)),
        weights=None if weights is None else _floats("weights", weights, len(indices)),
        table=_floats("fixed", fixed, len(fixed), dim),
        gram=_floats("gram", gram, dim, dim),
        out=_output("solution", solution, rows, dim),
    )
