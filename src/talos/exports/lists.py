"""The best items of all users, written in parts to a file or a database table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import polars as pl

from talos.data.vocabulary import Ids
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, DataError, TalosError, nearest
from talos.evaluation.ranking import TopK
from talos.exports.databases import PostgresSink, SqliteSink
from talos.exports.files import FileSink, check_out, file_kind, join_files
from talos.files import expanded, replace_file
from talos.model.attributes import Filter
from talos.model.model import Model
from talos.model.query import ListQuery, iter_answers, list_frame, list_query
from talos.model.recommender import Recommender
from talos.progress import Progress, counter

__all__ = ["InterruptedExportError", "ListSettings", "Progress", "progress", "write_lists"]

_Sink: TypeAlias = FileSink | SqliteSink | PostgresSink

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
    mask: str  # which items of a user are left out
    banned: str  # a hash of the items that may not be recommended
    users: int
    users_in_a_part: int
    diversity: float = 0.0
    popularity: float = 0.0
    approximate: float | None = None  # the recall that was asked for

    def same_as(self, stored: dict[str, Any], *, name: str, overwrite: bool, hint: str = "") -> bool:
        """Whether an unfinished export had these settings; an error if not and it may not be discarded."""
        mine = asdict(self)
        if stored == mine or overwrite:
            return stored == mine
        # users_in_a_part follows from k: alone, it differs only between versions of the library
        chosen = ("k", "mask", "users", "diversity", "popularity", "approximate")
        names = [name for name in chosen if stored.get(name) != mine[name]]
        difference = (
            ", ".join(f"{name}={stored.get(name)}" for name in names) or "another version of talos-rec"
        )
        if stored.get("banned") != mine["banned"]:
            difference = "other candidates, excluded items or filters"
        if stored.get("model") != mine["model"]:
            difference = "another model"
        raise DataError(
            f"was started with {difference}",
            where=name,
            expected="the same model and options",
            hint=f"start again with overwrite=True{hint}",
        )


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
    model = source if isinstance(source, Model) else source.fitted_model()
    k = model.list_length(k)
    query, _ = list_query(
        model,
        k=k,
        candidates=candidates,
        exclude=exclude,
        filter=filter,
        diversity=diversity,
        popularity=popularity,
        filter_seen=filter_seen,
        for_test=for_test,
    )
    barred = (
        "" if query.banned is None else hashlib.blake2b(query.banned.tobytes(), digest_size=16).hexdigest()
    )
    settings = ListSettings(
        model=model.fingerprint(),
        k=k,
        mask=query.mask,
        banned=barred,
        users=model.train.num_users,
        users_in_a_part=max(1, _ROWS_IN_A_PART // k),
        diversity=query.diversity,
        popularity=query.popularity,
        approximate=approximate,
    )
    if approximate is not None and (diversity or popularity):
        raise ArgumentError(
            "together with diversity or popularity", where="approximate", expected="lists by score alone"
        )
    show = progress or (lambda done, total: None)
    if group.size == 1:
        sink = _sink(str(out), model, settings, overwrite)
        finder = _Finder(model, query, approximate)
        name, users, (rows, resumed) = sink.name, settings.users, _write(model, settings, finder, sink, show)
        without = model.users_without_events
    else:
        path, what = expanded(out), f"{out} could not be written"
        parts = [path.with_name(f".rank-{rank}-of-{group.size}.{path.name}") for rank in range(group.size)]

        def check() -> None:
            if "://" in str(out):
                raise ArgumentError("a database from several processes", where="out", expected="a file")
            file_kind(path)
            check_out(path, overwrite=overwrite)

        def write_own() -> tuple[int, int]:
            sink = FileSink(parts[group.rank], settings, True, header=group.rank == 0)
            return _write(model, settings, finder, sink, show)

        def join() -> None:
            replace_file(path, lambda temporary: join_files(parts, temporary, file_kind(path)[0]))
            for part in parts:
                part.unlink()

        all_or_none(group, check, str(out))
        finder = _Finder(model, query, approximate)
        own = all_or_none(group, write_own, what)
        assert own is not None
        totals = map(float, (settings.users, model.users_without_events, *own))
        counts = zip(*group.all_gather_numbers([*totals]), strict=True)
        name, (users, without, rows, resumed) = str(path), (int(sum(column)) for column in counts)
        all_or_none(group, join if group.rank == 0 else None, what)
    seconds = round(time.perf_counter() - began, 3)
    done = {"out": name, "users": users, "users_without_events": without, "rows": rows, "k": k,
            "seconds": seconds, "resumed_at": resumed}  # fmt: skip
    return done if approximate is None else {**done, "approximate": finder.facts}


class _Finder:
    """Answers a question about all users for some of them: exactly, or by a Faiss index."""

    def __init__(self, model: Model, query: ListQuery, approximate: float | None) -> None:
        self._model, self._query, self._index = model, query, None
        self.facts: dict[str, Any] = {}
        if approximate is not None:
            from talos.exports.approximate import ApproximateLists

            self._index = ApproximateLists(model, query, wanted=approximate)
            self.facts = self._index.facts

    def __call__(self, users: range) -> Iterator[TopK]:
        query = self._query.block(users)
        if self._index is None:
            yield from iter_answers(self._model, query)
        else:
            yield self._index.answer(query)


def _write(
    model: Model,
    settings: ListSettings,
    finder: _Finder,
    sink: _Sink,
    show: Progress,
) -> tuple[int, int]:
    """Write the lists of all users that this process has; the number of rows, and of users done before."""
    total, size, titles = settings.users, settings.users_in_a_part, None
    if isinstance(sink, FileSink) and model.train.item_titles is not None:  # a database can join them
        titles = pl.DataFrame({"item_id": model.train.item_ids.ids, "title": model.train.item_titles})
    with closing(sink):
        start, rows = sink.begin()
        done = start
        show(done, total)
        try:
            while done < total:
                users, frames = range(done, min(done + size, total)), []
                ids = model.train.user_ids.ids[users.start : users.stop]
                for lists in finder(users):
                    frames.append(list_frame(lists, ids, model.train.item_ids))
                    show(done + int(lists.users[-1]) + 1, total)
                part = pl.concat(frames, rechunk=True)
                if titles is not None:
                    part = part.join(titles, on="item_id", how="left", maintain_order="left")
                sink.add(part, done + len(users))
                done, rows = done + len(users), rows + len(part)
            sink.finish()
        except KeyboardInterrupt:
            raise InterruptedExportError(
                f"interrupted after {done:,} of {total:,} users; run it again to continue"
            ) from None
    return rows, start


def _sink(out: str, model: Model, settings: ListSettings, overwrite: bool) -> _Sink:
    scheme, colon, _ = out.partition("://")
    if not colon:
        return FileSink(expanded(out), settings, overwrite)
    kinds: dict[str, type[SqliteSink | PostgresSink]] = {
        "sqlite": SqliteSink,
        "postgresql": PostgresSink,
        "postgres": PostgresSink,
    }
    if scheme not in kinds:
        hint = nearest(scheme, ("sqlite", "postgresql"))
        raise ArgumentError(f"no way to write to {scheme!r}", where="out", hint=hint)
    ids = (model.train.user_ids.ids.dtype, model.train.item_ids.ids.dtype)
    return kinds[scheme](out, settings, overwrite, integers=(ids[0].is_integer(), ids[1].is_integer()))
