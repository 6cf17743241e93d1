"""The best items of all users, written in parts to a file or a database table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import polars as pl

from talos.data.vocabulary import Ids
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, TalosError, nearest
from talos.evaluation.ranking import TopK
from talos.exports.sinks import FileSink, PostgresSink, Sink, SqliteSink, join_files
from talos.files import digest_of, expanded, replace_file
from talos.model.attributes import Filter
from talos.model.model import Model
from talos.model.query import ListQuery, iter_answers, list_frame, list_query
from talos.model.recommender import Recommender
from talos.progress import Progress, counter

__all__ = ["InterruptedExportError", "Progress", "progress", "write_lists"]

_Find: TypeAlias = Callable[[ListQuery], Iterator[TopK]]

# A part is one file or one transaction: an interruption loses at most one of them.
_ROWS_IN_A_PART = 200_000


class InterruptedExportError(TalosError):
    """An export was interrupted, and can be resumed."""

    exit_code = 130


def progress(stream: TextIO | None = None) -> AbstractContextManager[Progress]:
    """A function that shows how many of how many users are done; see `talos.progress.counter`."""
    return counter("recommending", "users", stream)


def write_lists(
    source: Model | Recommender,
    out: str | Path,
    *,
    k: int | None = None,
    candidates: Ids | None = None,
    exclude: Ids | None = None,
    filter: Filter | None = None,  # noqa: A002
    diversity: float = 0.0,
    popularity: float = 0.0,
    approximate: float | None = None,
    filter_seen: bool = True,
    for_test: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    group: Group = SINGLE_PROCESS,
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
        filter: conditions on the items' attributes.
        diversity: 0 to 1, how much similar items are kept apart.
        popularity: 0 to 1, how much popularity counts; all three as in `Recommender.recommend`.
        approximate: look for the lists in a Faiss index (extra `faiss`) that finds at least this share of the exact
            lists' items, above 0 and below 1; exact lists if None. Much faster for hundreds of thousands of items.
            Without `diversity` and `popularity`.
        filter_seen: leave out items that the user is known to have.
        for_test: leave out those of training and validation only; as in `Recommender.recommend`.
        overwrite: replace `out` if it exists, and discard an unfinished export with another model or options.
        progress: called with the number of users done and of all users.
        group: processes that each have a part of the model; each writes the lists of its users to a file beside `out`,
            and rank 0 joins them. Files only, no databases.

    Returns:
        `out`, `users`, `users_without_events` (whose lists are ranked by popularity), `rows`, `k`, `seconds`, and
        `resumed_at`: how many users an interrupted call had done; with
        `approximate` also what was measured on a sample of users: `recall@K`, and how many cells of the index are
        looked through.

    >>> import tempfile, torch
    >>> from talos.data.interactions import Interactions
    >>> data = Interactions.from_ids(["ann", "bob"], ["tea", "jam"])
    >>> from talos.model.model import Vectors
    >>> model = Model(scored_by=Vectors(torch.eye(2), torch.eye(2)), train=data)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = write_lists(model, f"{folder}/recs.csv", k=1)["rows"]
    ...     print(rows, Path(f"{folder}/recs.csv").read_text().split())
    2 ['user_id,item_id,score,rank', 'ann,jam,1.0,1', 'bob,tea,1.0,1']
    """
    began = time.perf_counter()
    if approximate is not None and (diversity or popularity):
        raise ArgumentError(
            "together with diversity or popularity", where="approximate", expected="lists by score alone"
        )
    model = source if isinstance(source, Model) else source.fitted_model()
    query, _ = list_query(
        model,
        k=model.list_length(k),
        candidates=candidates,
        exclude=exclude,
        filter=filter,
        diversity=diversity,
        popularity=popularity,
        filter_seen=filter_seen,
        for_test=for_test,
    )
    settings = {
        "model": model.fingerprint(),
        "banned": "" if query.banned is None else digest_of(query.banned.tolist()),
        "k": query.k,
        "mask": query.mask,
        "users": model.train.num_users,
        "diversity": query.diversity,
        "popularity": query.popularity,
        "approximate": approximate,
        "users_in_a_part": max(1, _ROWS_IN_A_PART // query.k),
    }
    path, what, alone = expanded(out), f"{out} could not be written", group.size == 1
    parts = [path.with_name(f".rank-{rank}-of-{group.size}.{path.name}") for rank in range(group.size)]

    def choose_sink() -> Sink:
        whole = _sink(str(out), model, settings, overwrite, group)
        first = group.rank == 0
        return whole if alone else FileSink(parts[group.rank], settings, overwrite=True, header=first)

    def join() -> None:
        replace_file(path, lambda temporary: join_files(parts, temporary))
        for part in parts:
            part.unlink()

    sink = all_or_none(group, choose_sink, str(out))
    assert sink is not None
    find: _Find = partial(iter_answers, model)
    facts: dict[str, Any] = {}
    if approximate is not None:
        from talos.exports.faiss_index import ApproximateLists

        index = ApproximateLists(model, query, wanted=approximate)
        find, facts = index.iter_answers, {"approximate": index.facts}
    resumed = all_or_none(group, lambda: _write(model, query, find, sink, progress), what)
    assert resumed is not None
    counts = [model.train.num_users, model.users_without_events, sink.record["rows"], resumed]
    every = group.all_gather_numbers([*map(float, counts)])
    users, without, rows, resumed = (int(sum(column)) for column in zip(*every, strict=True))
    if not alone:
        all_or_none(group, join if group.rank == 0 else None, what)
    return {
        "out": sink.name if alone else str(path),
        "users": users,
        "users_without_events": without,
        "rows": rows,
        "k": query.k,
        "seconds": round(time.perf_counter() - began, 3),
        "resumed_at": resumed,
        **facts,
    }


def _write(model: Model, query: ListQuery, find: _Find, sink: Sink, show: Progress | None) -> int:
    """Write the lists of all users that this process has; returns how many were done before."""
    total, size, titles = len(query.users), sink.settings["users_in_a_part"], None
    show = show or (lambda done, total: None)
    if isinstance(sink, FileSink) and model.train.item_titles is not None:  # a database can join them
        titles = pl.DataFrame({"item_id": model.train.item_ids.ids, "title": model.train.item_titles})
    with sink.held:
        sink.begin()
        start = sink.record["users"]
        show(start, total)
        try:
            while (done := sink.record["users"]) < total:
                frames, part = [], query.block(range(done, min(done + size, total)))
                ids = model.train.user_ids.ids.gather(part.users)
                for lists in find(part):
                    frames.append(list_frame(lists, ids, model.train.item_ids))
                    show(done + int(lists.users[-1]) + 1, total)
                rows = pl.concat(frames, rechunk=True)
                if titles is not None:
                    rows = rows.join(titles, on="item_id", how="left", maintain_order="left")
                sink.add(rows, done + len(ids))
            sink.finish()
        except KeyboardInterrupt:
            raise InterruptedExportError(
                f"interrupted after {sink.record['users']:,} of {total:,} users; run it again to continue"
            ) from None
    return int(start)


def _sink(out: str, model: Model, settings: dict[str, Any], overwrite: bool, group: Group) -> Sink:
    scheme, colon, _ = out.partition("://")
    if not colon:
        return FileSink(expanded(out), settings, overwrite=overwrite)
    if group.size > 1:
        raise ArgumentError("a database from several processes", where="out", expected="a file")
    kinds: dict[str, type[SqliteSink | PostgresSink]] = {
        "sqlite": SqliteSink,
        "postgresql": PostgresSink,
        "postgres": PostgresSink,
    }
    if scheme not in kinds:
        raise ArgumentError(
            f"no way to write to {scheme!r}", where="out", hint=nearest(scheme, ("sqlite", "postgresql"))
        )
    users, items = model.train.user_ids.ids, model.train.item_ids.ids
    integers = (users.dtype.is_integer(), items.dtype.is_integer())
    return kinds[scheme](out, settings, overwrite=overwrite, integers=integers)
