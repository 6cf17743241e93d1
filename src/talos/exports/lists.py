"""The best items of all users, written in parts to a file or a database table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from talos.checks import require
from talos.data.vocabulary import Ids, Vocabulary
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.evaluation.ranking import TopK
from talos.exports.sinks import FileSink, InterruptedExportError, Sink, TableSink, join_files
from talos.files import digest_of, expanded
from talos.model.attributes import Filter
from talos.model.model import Model
from talos.model.query import ListQuery, iter_answers, list_frame, list_query
from talos.model.recommender import Recommender
from talos.progress import Progress

__all__ = ["InterruptedExportError", "write_lists"]

_Find: TypeAlias = Callable[[ListQuery], Iterator[TopK]]

# A part is one file or one transaction: an interruption loses at most one of them.
_ROWS_IN_A_PART = 200_000


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
        progress: called with the number of users done and of all users, as by `talos.progress.counter`.
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
    require(
        approximate is None or not (diversity or popularity),
        "together with diversity or popularity",
        where="approximate",
        expected="lists by score alone",
    )
    model = source if isinstance(source, Model) else source.fitted_model()
    query, user_ids = list_query(
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
    settings: dict[str, Any] = {
        "model": model.fingerprint(),
        "banned": "" if query.banned is None else digest_of(query.banned.tolist()),
        "k": query.k,
        "mask": query.mask,
        "users": len(query.users),
        "diversity": query.diversity,
        "popularity": query.popularity,
        "approximate": approximate,
        "users_in_a_part": max(1, _ROWS_IN_A_PART // query.k),
    }
    path, failed = expanded(out), f"{out} could not be written"
    parts = [path.with_name(f".rank-{rank}-of-{group.size}.{path.name}") for rank in range(group.size)]

    def choose_sink() -> Sink:
        if "://" in str(out):
            require(group.size == 1, "a database from several processes", where="out", expected="a file")
            return TableSink(str(out), model.train, settings, overwrite=overwrite)
        whole = FileSink(path, model.train, settings, overwrite=overwrite)  # or a refusal of `out`
        if group.size == 1:
            return whole
        return FileSink(parts[group.rank], model.train, settings, overwrite=True, header=group.rank == 0)

    sink = all_or_none(group, choose_sink, str(out))
    assert sink is not None
    find: _Find = partial(iter_answers, model)
    facts: dict[str, Any] = {}
    if approximate is not None:
        from talos.exports.faiss_index import ApproximateLists

        index = ApproximateLists(model, query, wanted=approximate)
        find, facts = index.iter_answers, {"approximate": index.facts}
    ids = user_ids, model.train.item_ids
    from_user = partial(_parts, query, ids, find, settings["users_in_a_part"], progress)
    resumed = all_or_none(group, lambda: sink.write(from_user), failed)
    assert resumed is not None
    every = group.all_gather_numbers(
        [float(len(query.users)), model.users_without_events, sink.record["rows"], resumed]
    )
    users, without, rows, resumed = (int(sum(column)) for column in zip(*every, strict=True))
    if group.size > 1:
        all_or_none(group, partial(join_files, parts, path) if group.rank == 0 else None, failed)
    return {
        "out": sink.name if group.size == 1 else str(path),
        "users": users,
        "users_without_events": without,
        "rows": rows,
        "k": query.k,
        "seconds": round(time.perf_counter() - began, 3),
        "resumed_at": resumed,
        **facts,
    }


def _parts(
    query: ListQuery,
    ids: tuple[pl.Series, Vocabulary],
    find: _Find,
    size: int,
    show: Progress | None,
    start: int,
) -> Iterator[tuple[pl.DataFrame, int]]:
    """The lists of the users after the first `start`, some at a time, and how many users are done with each part."""
    total, show = len(query.users), show or (lambda done, total: None)
    show(start, total)
    for done in range(start, total, size):
        users, frames = ids[0][done : done + size], []
        for lists in find(query.block(range(done, done + len(users)))):
            frames.append(list_frame(lists, users, ids[1]))
            show(done + int(lists.users[-1]) + 1, total)
        yield pl.concat(frames, rechunk=True), done + len(users)
