"""The best items of all users, written in parts to a file or a database table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.vocabulary import Ids
from talos.distributed import ALONE, Group
from talos.errors import ArgumentError, TalosError, nearest
from talos.evaluation.ranking import DotScores, iter_top_k
from talos.exports.databases import PostgresSink, SqliteSink
from talos.exports.files import FileSink, check_out, file_kind, join_files
from talos.exports.progress import Progress
from talos.files import replace_file
from talos.model.lists import banned_items, list_frame
from talos.model.recommender import Recommender
from talos.model.run_directory import Model

__all__ = ["InterruptedExportError", "ListSettings", "Sink", "write_lists"]

# A part is one file or one transaction: an interruption loses at most one of them.
_ROWS_IN_A_PART = 200_000


class InterruptedExportError(TalosError):
    """An export was interrupted, and can be resumed."""

    exit_code = 130


@dataclass(frozen=True, kw_only=True)
class ListSettings:
    """What lists depend on: an interrupted export is resumed only with equal settings."""

    model: str  # its fingerprint
    k: int
    filter_seen: bool
    banned: str  # a hash of the items that may not be recommended
    users: int
    users_in_a_part: int

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    def difference(self, stored: dict[str, Any]) -> str | None:
        """How stored settings differ from these, in words; None if they are equal."""
        mine = self.as_dict()
        if stored == mine:
            return None
        if stored.get("model") != mine["model"]:
            return "another model"
        if stored.get("banned") != mine["banned"]:
            return "other candidates or excluded items"
        # users_in_a_part follows from k: alone, it differs only between versions of the library
        names = ("k", "filter_seen", "users")
        changed = [name for name in names if stored.get(name) != mine[name]]
        return ", ".join(f"{name}={stored.get(name)}" for name in changed) or "another version of talos-rec"


class Sink(Protocol):
    """A destination of lists, which remembers what it has, so that an interrupted export can be resumed."""

    def begin(self) -> tuple[int, int]:
        """Users and rows that an interrupted export has left; (0, 0) if there was none."""
        ...

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """Store the lists of the next users, atomically; `users` is the number of users done after that."""
        ...

    def finish(self) -> None:
        """Make the complete lists appear under their name."""
        ...

    def close(self) -> None:
        """Release files, locks and connections; called in any case."""
        ...

    @property
    def name(self) -> str:
        """The destination as messages show it, without passwords."""
        ...


def write_lists(
    source: Model | Recommender,
    out: str | Path,
    *,
    k: int | None = None,
    candidates: Ids | None = None,
    exclude: Ids | None = None,
    filter_seen: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    group: Group = ALONE,
) -> dict[str, Any]:
    """Write the best `k` items of every user: columns user_id, item_id, score, rank.

    Only the lists of some users are held at a time. Called again after an interruption, it continues where it stopped;
    until it has finished, `out` does not exist or is still the old one.

    Args:
        source: a fitted recommender, or its model.
        out: `….parquet`, `….csv`, `….tsv`, `….jsonl` (the last three also with `.gz`), `sqlite:///FILE?table=NAME`
            or `postgresql://…?table=NAME` (extra `postgres`).
        k: list length; the K of training if not given.
        candidates: only these items may be recommended.
        exclude: these items may not.
        filter_seen: leave out items that the user is known to have.
        overwrite: replace `out` if it exists, and discard an unfinished export with another model or options.
        progress: called with the number of users done and of all users.
        group: processes that each have a part of the model; each writes the lists of its users to a file beside `out`,
            and rank 0 joins them. Files only, no databases.

    Returns:
        `out`, `users`, `rows`, `k`, `seconds`, and `resumed_at`: how many users an interrupted call had done.

    >>> import tempfile, torch
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> eye = torch.eye(2)
    >>> model = Model(user_vectors=eye, item_vectors=eye, thresholds=None, train=data, valid=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = write_lists(model, f"{folder}/recs.csv", k=1)["rows"]
    ...     print(rows, Path(f"{folder}/recs.csv").read_text().split())
    2 ['user_id,item_id,score,rank', 'ann,jam,1.0,1', 'bob,tea,1.0,1']
    """
    write = partial(
        _write,
        source,
        k=k,
        candidates=candidates,
        exclude=exclude,
        filter_seen=filter_seen,
        progress=progress,
    )
    if group.size == 1:
        return write(str(out), overwrite=overwrite)
    from talos.training.parallel.in_step import in_step

    began, path = time.perf_counter(), Path(out).expanduser()
    parts = [path.with_name(f".rank-{rank}-of-{group.size}.{path.name}") for rank in range(group.size)]

    def check() -> None:
        if "://" in str(out):
            raise ArgumentError("a database from several processes", where="out", expected="a file")
        file_kind(path)
        check_out(path, overwrite=overwrite)

    in_step(group, check, str(out))
    mine, header = str(parts[group.rank]), group.rank == 0
    done = in_step(
        group,
        lambda: write(mine, overwrite=True, header=header),
        f"{out} could not be written",
    )
    assert done is not None
    counts = group.exchange([float(done[name]) for name in ("users", "rows", "resumed_at")])
    users, rows, resumed = (int(sum(column)) for column in zip(*counts, strict=True))

    def join() -> None:
        replace_file(path, lambda temporary: join_files(parts, temporary, file_kind(path)[0]))
        for part in parts:
            part.unlink()

    in_step(group, join if group.rank == 0 else None, f"{out} could not be written")
    seconds = round(time.perf_counter() - began, 3)
    return {**done, "out": str(path), "users": users, "rows": rows, "resumed_at": resumed, "seconds": seconds}


def _write(
    source: Model | Recommender,
    out: str,
    *,
    k: int | None,
    candidates: Ids | None,
    exclude: Ids | None,
    filter_seen: bool,
    overwrite: bool,
    progress: Progress | None,
    header: bool = True,
) -> dict[str, Any]:
    """Write the lists of all users that this process has."""
    began = time.perf_counter()
    model = source if isinstance(source, Model) else source.fitted_model()
    k = model.list_length(k)
    banned = banned_items(model.train.item_ids, candidates, exclude)
    settings = ListSettings(
        model=model.fingerprint(),
        k=k,
        filter_seen=filter_seen,
        banned="" if banned is None else hashlib.blake2b(banned.tobytes(), digest_size=16).hexdigest(),
        users=model.train.num_users,
        users_in_a_part=max(1, _ROWS_IN_A_PART // k),
    )
    total, size = settings.users, settings.users_in_a_part
    sink = _sink(out, model, settings, overwrite, header)
    show = progress or (lambda done, total: None)
    try:
        start, rows = sink.begin()
        done = start
        show(done, total)
        seen = model.seen if filter_seen else None
        try:
            while done < total:
                users = np.arange(done, min(done + size, total))
                part = _part(model, users, k, seen, banned, lambda reached: show(reached, total))
                sink.add(part, int(users[-1]) + 1)
                done, rows = int(users[-1]) + 1, rows + len(part)
            sink.finish()
        except KeyboardInterrupt:
            raise InterruptedExportError(
                f"interrupted after {done:,} of {total:,} users; run it again to continue"
            ) from None
    finally:
        sink.close()
    seconds = round(time.perf_counter() - began, 3)
    return {"out": sink.name, "users": total, "rows": rows, "k": k, "seconds": seconds, "resumed_at": start}


def _part(
    model: Model,
    users: NDArray[np.int64],
    k: int,
    seen: Interactions | None,
    banned: NDArray[np.int64] | None,
    reached: Callable[[int], None],
) -> pl.DataFrame:
    """The lists of some users; `reached` is called with the number of users done, several times."""
    frames = []
    scorer = DotScores(model.user_vectors, model.item_vectors)
    for lists in iter_top_k(scorer, users, k=k, seen=seen, banned=banned):
        frames.append(list_frame(lists, model.train.user_ids.decode(lists.users), model.train.item_ids))
        reached(int(lists.users[-1]) + 1)
    return pl.concat(frames, rechunk=True)


def _sink(out: str, model: Model, settings: ListSettings, overwrite: bool, header: bool) -> Sink:
    scheme, colon, _ = out.partition("://")
    if not colon:
        return FileSink(Path(out).expanduser(), settings, overwrite, header=header)
    kinds: dict[str, Callable[..., Sink]] = {
        "sqlite": SqliteSink,
        "postgresql": PostgresSink,
        "postgres": PostgresSink,
    }
    if scheme not in kinds:
        raise ArgumentError(
            f"no way to write to {scheme!r}", where="out", hint=nearest(scheme, ("sqlite", "postgresql"))
        )
    ids = (model.train.user_ids.ids.dtype, model.train.item_ids.ids.dtype)
    return kinds[scheme](out, settings, overwrite, integers=tuple(dtype.is_integer() for dtype in ids))
