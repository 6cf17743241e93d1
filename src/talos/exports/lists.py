"""The best items of every user, a part at a time, to a file or into a database table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from talos.data.interactions import Interactions
from talos.data.vocabulary import Ids
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, TalosError, nearest
from talos.evaluation.ranking import DotScores, TopK, iter_top_k
from talos.exports.databases import PostgresSink, SqliteSink
from talos.exports.files import FileSink, check_place, join_files, kind_of
from talos.exports.progress import Progress
from talos.exports.source import banned_items, checksum, list_length, model_of
from talos.files import replace_file
from talos.model.recommender import Recommender
from talos.model.run_directory import Model

__all__ = ["InterruptedExportError", "Job", "Sink", "write_lists"]

# A part is what is lost by an interruption, a transaction of a database, a row group of parquet.
_ROWS_IN_A_PART = 200_000


class InterruptedExportError(TalosError):
    """An export was asked to stop, and stopped where it can go on."""

    exit_code = 130


@dataclass(frozen=True, kw_only=True)
class Job:
    """What two exports must have in common before one may go on where the other stopped."""

    model: str
    k: int
    filter_seen: bool
    banned: str  # a hash of the items that nobody gets
    users: int
    users_in_a_part: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def difference(self, begun: dict[str, Any]) -> str | None:
        """The first thing in which what was begun differs from this, in words; None if nothing does."""
        mine = self.as_dict()
        if begun == mine:
            return None
        if begun.get("model") != mine["model"]:
            return "another model"
        if begun.get("banned") != mine["banned"]:
            return "other candidates or excluded items"
        # the size of a part follows from k, and says something only if nothing else does
        names = ("k", "filter_seen", "users")
        changed = [name for name in names if begun.get(name) != mine[name]]
        return ", ".join(f"{name}={begun.get(name)}" for name in changed) or "another version of talos-rec"


class Sink(Protocol):
    """Where lists go. It remembers how far they got, so that a second try goes on from there."""

    def begin(self) -> tuple[int, int]:
        """Users and rows that an earlier, interrupted try has left; (0, 0) if there was none."""
        ...

    def add(self, rows: pl.DataFrame, users: int) -> None:
        """Keep the lists of the next users, all or nothing; `users` are then done in all."""
        ...

    def finish(self) -> None:
        """Give the whole its name."""
        ...

    def close(self) -> None:
        """Let go of files and connections; called in any case."""
        ...

    @property
    def name(self) -> str:
        """Where to, without passwords."""
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
    group: Group = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Write the best `k` items of every user: columns user_id, item_id, score, rank.

    Only a part of the users is ever held. An interrupted call goes on where it stopped when it is made again;
    until then, what `out` names does not exist, or is what it was before.

    Args:
        source: a fitted recommender, or its model.
        out: `….parquet`, `….csv`, `….tsv`, `….jsonl` (the last three also with `.gz`), `sqlite:///FILE?table=NAME`
            or `postgresql://…?table=NAME` (extra `postgres`).
        k: length of the lists; the model's K if not given.
        candidates: only these items may be recommended.
        exclude: none of these may.
        filter_seen: leave out what a user has already.
        overwrite: replace what `out` names, and give up on what was begun there with another model or options.
        progress: called with users done and users in all.
        group: processes that have a part of the model each; every one writes the lists of its users to a file beside
            `out`, and rank 0 joins them. Not for databases.

    Returns:
        `out`, `users`, `rows`, `seconds`, and `resumed_at`: how many users an earlier call had done.

    >>> import tempfile, torch
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> eye = torch.eye(2)
    >>> model = Model(user_vectors=eye, item_vectors=eye, thresholds=None, train=data, valid=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = write_lists(model, f"{folder}/recs.csv", k=1)["rows"]
    ...     print(rows, Path(f"{folder}/recs.csv").read_text().split())
    2 ['user_id,item_id,score,rank', 'ann,jam,1.0,1', 'bob,tea,1.0,1']
    """
    options: dict[str, Any] = {
        "k": k,
        "candidates": candidates,
        "exclude": exclude,
        "filter_seen": filter_seen,
        "progress": progress,
    }
    if group.size == 1:
        return _write(model_of(source), str(out), overwrite=overwrite, **options)
    began, path = time.perf_counter(), Path(out).expanduser()
    parts = [path.with_name(f".rank-{rank}-of-{group.size}.{path.name}") for rank in range(group.size)]

    def check() -> None:
        if "://" in str(out):
            raise ArgumentError("a database from several processes", where="out", expected="a file")
        kind_of(path)
        check_place(path, overwrite=overwrite)

    all_or_none(group, check, str(out))
    mine, header = str(parts[group.rank]), group.rank == 0
    done = all_or_none(
        group,
        lambda: _write(model_of(source), mine, overwrite=True, header=header, **options),
        f"{out} could not be written",
    )
    assert done is not None
    told = group.all_gather_numbers([float(done[name]) for name in ("users", "rows", "resumed_at")])
    users, rows, resumed = (int(sum(column)) for column in zip(*told, strict=True))

    def join() -> None:
        replace_file(path, lambda temporary: join_files(parts, temporary, kind_of(path)[0]))
        for part in parts:
            part.unlink()

    all_or_none(group, join if group.rank == 0 else None, f"{out} could not be written")
    seconds = round(time.perf_counter() - began, 3)
    return {**done, "out": str(path), "users": users, "rows": rows, "resumed_at": resumed, "seconds": seconds}


def _write(
    model: Model,
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
    """The lists of all users that the model has."""
    began = time.perf_counter()
    k = list_length(model, k)
    banned = banned_items(model, candidates, exclude)
    job = Job(
        model=checksum(model),
        k=k,
        filter_seen=filter_seen,
        banned="" if banned is None else hashlib.blake2b(banned.tobytes(), digest_size=16).hexdigest(),
        users=model.train.num_users,
        users_in_a_part=max(1, _ROWS_IN_A_PART // k),
    )
    sink = _sink(out, model, job, overwrite, header)
    show = progress or (lambda done, total: None)
    try:
        start, rows = sink.begin()
        done = start
        show(done, job.users)
        seen = model.seen if filter_seen else None
        try:
            while done < job.users:
                users = np.arange(done, min(done + job.users_in_a_part, job.users))
                part = _part(model, users, k, seen, banned, lambda reached: show(reached, job.users))
                sink.add(part, int(users[-1]) + 1)
                done, rows = int(users[-1]) + 1, rows + len(part)
            sink.finish()
        except KeyboardInterrupt:
            raise InterruptedExportError(
                f"interrupted after {done:,} of {job.users:,} users; the same command goes on from there"
            ) from None
    finally:
        sink.close()
    seconds = round(time.perf_counter() - began, 3)
    return {
        "out": sink.name,
        "users": job.users,
        "rows": rows,
        "k": k,
        "seconds": seconds,
        "resumed_at": start,
    }


def _part(
    model: Model,
    users: NDArray[np.int64],
    k: int,
    seen: Interactions | None,
    banned: NDArray[np.int64] | None,
    reached: Callable[[int], None],
) -> pl.DataFrame:
    frames = []
    scorer = DotScores(model.user_vectors, model.item_vectors)
    for chunk in iter_top_k(scorer, users, k=k, seen=seen, banned=banned):
        frames.append(_frame(model, chunk))
        reached(int(chunk.users[-1]) + 1)
    return pl.concat(frames, rechunk=True)


def _frame(model: Model, lists: TopK) -> pl.DataFrame:
    rows, columns = np.nonzero(lists.items >= 0)
    return pl.DataFrame(
        {
            "user_id": model.train.user_ids.decode(lists.users[rows]),
            "item_id": model.train.item_ids.decode(lists.items[rows, columns]),
            "score": lists.scores[rows, columns],
            "rank": columns + 1,
        }
    )


def _sink(out: str, model: Model, job: Job, overwrite: bool, header: bool) -> Sink:
    scheme, colon, _ = out.partition("://")
    if not colon:
        return FileSink(Path(out).expanduser(), job, overwrite, header=header)
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
    return kinds[scheme](out, job, overwrite, integers=tuple(dtype.is_integer() for dtype in ids))
