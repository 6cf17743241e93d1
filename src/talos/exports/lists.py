"""The best items of all users, written to a file or a database table, in parts that are kept after an interruption.

**Files** (parquet, csv, tsv, JSON lines): parts are collected in a hidden folder and joined at the end. A part appears
under its name when it is complete on the disk, and `progress.json` counts it after that. If the process dies in
between, the next one writes that part again.

**Tables** (SQLite by the standard library, PostgreSQL by the extra `postgres`): rows are collected in the table
`NAME__talos`, and the one row of `NAME__talos_progress` counts them. Both change in one transaction. When all users are
there, one last transaction renames the table: readers see the old table or the complete new one.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import polars as pl

from talos.checks import require
from talos.data.databases import (
    SQLITE_ERRORS,
    DatabaseURL,
    connect_postgres,
    is_database_url,
    quoted,
)
from talos.data.interactions import Interactions
from talos.data.parquet import scan_file
from talos.data.vocabulary import Ids, Vocabulary
from talos.distributed import SINGLE_PROCESS, Group, all_or_none
from talos.errors import ArgumentError, DataError, Option, TalosError, first_line, nearest
from talos.evaluation.ranking import TopK
from talos.exports.folders import prepare_out
from talos.files import (
    checksum_of,
    digest_of,
    expanded,
    locked,
    read_sealed,
    remove,
    remove_leftovers,
    replace_file,
    sealed_text,
    unseal,
    write_sealed,
)
from talos.model.attributes import Filter
from talos.model.model import Model
from talos.model.query import ListQuery, iter_answers, list_frame, list_query
from talos.model.recommender import Recommender
from talos.progress import Progress

__all__ = ["InterruptedExportError", "write_lists"]

_Find: TypeAlias = Callable[[ListQuery], Iterator[TopK]]

# A part is one file or one transaction: an interruption loses at most one of them.
_ROWS_IN_A_PART = 200_000

_FORMAT = 3
# What an error says about a setting that differs, where its value would say nothing.
_DIFFERENCES = {
    "model": "another model",
    "banned": "other candidates, excluded items or filters",
    "users_in_a_part": "another version of talos-rec",
}
_OURS = re.compile(r"part-\d{6}|progress\.json|\..*\.tmp")
_KINDS = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# PostgreSQL truncates longer names silently, and then the names of our three tables would be the same.
_LONGEST_NAME = 63 - len("__talos_progress")


class InterruptedExportError(TalosError):
    """An export was interrupted, and can be resumed."""

    exit_code = 130


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

    def choose_sink() -> _Sink:
        if "://" in str(out):
            require(group.size == 1, "a database from several processes", where="out", expected="a file")
            return _TableSink(str(out), model.train, settings, overwrite=overwrite)
        whole = _FileSink(path, model.train, settings, overwrite=overwrite)  # or a refusal of `out`
        if group.size == 1:
            return whole
        return _FileSink(parts[group.rank], model.train, settings, overwrite=True, header=group.rank == 0)

    sink = all_or_none(group, choose_sink, str(out))
    assert sink is not None
    find: _Find = partial(iter_answers, model)
    facts: dict[str, Any] = {}
    if approximate is not None:
        from talos.exports.faiss_index import ApproximateLists

        index = ApproximateLists(model, query, wanted=approximate)
        find, facts = index.iter_answers, {"approximate": index.facts}
    size, item_ids = settings["users_in_a_part"], model.train.item_ids
    parts_from = partial(_parts, query, user_ids, item_ids, find, size, progress)
    all_or_none(group, lambda: sink.write(parts_from), failed)
    every = group.all_gather_numbers(
        [
            float(len(query.users)),
            int((model.train.user_degrees == 0).sum()),
            sink.record["rows"],
            sink.resumed_at,
        ]
    )
    users, without, rows, resumed = (int(sum(column)) for column in zip(*every, strict=True))
    if group.size > 1:
        all_or_none(group, partial(_join_files, parts, path) if group.rank == 0 else None, failed)
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
    user_ids: pl.Series,
    item_ids: Vocabulary,
    find: _Find,
    size: int,
    show: Progress | None,
    start: int,
) -> Iterator[tuple[pl.DataFrame, int]]:
    """The lists of the users after the first `start`, some at a time, and how many users are done with each part."""
    total, show = len(query.users), show or (lambda done, total: None)
    show(start, total)
    for done in range(start, total, size):
        users, frames = user_ids[done : done + size], []
        for lists in find(query.block(range(done, done + len(users)))):
            frames.append(list_frame(lists, users, item_ids))
            show(done + int(lists.users[-1]) + 1, total)
        yield pl.concat(frames, rechunk=True), done + len(users)


# ------------------------------------------------------------------- sinks


class _Sink(ABC):
    """A destination that appears under its name when all parts are in it.

    `record` has the settings and counts the users and rows that are done. It is stored with every part, so that a
    restart neither loses nor repeats a row. A subclass says how a part and the record are stored.

    Args:
        name: the destination, for messages.
        train: the users and items of the lists.
        settings: what the lists depend on, the number of `users` among it; only with equal ones is an interrupted
            export resumed.
        overwrite: replace the destination if it exists, and discard an unfinished export with other settings.
    """

    discard: str | None = None
    """What else discards an unfinished export."""

    def __init__(self, name: str, train: Interactions, settings: dict[str, Any], *, overwrite: bool) -> None:
        self.name, self.train, self.overwrite = name, train, overwrite
        self.record: dict[str, Any] = {
            "format": _FORMAT,
            "settings": settings,
            "users": 0,
            "rows": 0,
            "checksums": [],
        }
        self.held = ExitStack()  # a lock or a connection: close it in the end

    def write(self, parts_from: Callable[[int], Iterator[tuple[pl.DataFrame, int]]]) -> None:
        """Write all parts, after those that an interrupted export has left; `resumed_at` is the number of their users.

        Args:
            parts_from: gives the parts after so many users: their rows, and how many users are done with each.
        """
        with self.held:
            with self._step(starting=True):
                self._refuse_existing()
                found = self._find_record()
                if found is not None and self._has_my_settings(found):
                    self.record = found
                else:
                    self._start()
            self.resumed_at = int(self.record["users"])
            try:
                for rows, users in parts_from(self.resumed_at):
                    record = {**self.record, "users": users, "rows": self.record["rows"] + len(rows)}
                    with self._step():
                        self._store(rows, record)
                    self.record = record
                with self._step():
                    self._refuse_existing()
                    self._appear()
            except KeyboardInterrupt:
                done, total = self.record["users"], self.record["settings"]["users"]
                raise InterruptedExportError(
                    f"interrupted after {done:,} of {total:,} users; run it again to continue"
                ) from None

    def _has_my_settings(self, record: dict[str, Any]) -> bool:
        """Whether a record has equal settings; an error if not and it may not be discarded."""
        stored = record["settings"] if record.get("format") == _FORMAT else {}
        others = [name for name, value in self.record["settings"].items() if stored.get(name) != value]
        if others and not self.overwrite:
            raise DataError(
                f"was started with {_DIFFERENCES.get(others[0], f'{others[0]}={stored.get(others[0])}')}",
                where=self.name,
                expected="the same model and options",
                hint=self.discard,
                option=Option("overwrite", True, "starts again"),
            )
        return not others

    @abstractmethod
    def _step(self, *, starting: bool = False) -> AbstractContextManager[None]:
        """A block whose failures are explained; the one that starts takes the lock or the connection."""

    @abstractmethod
    def _refuse_existing(self) -> None:
        """Raise if the destination must not be replaced."""

    @abstractmethod
    def _find_record(self) -> dict[str, Any] | None:
        """The record of an unfinished export; None if there is none, empty if it cannot be read."""

    @abstractmethod
    def _start(self) -> None:
        """Discard an unfinished export, and store the first record."""

    @abstractmethod
    def _store(self, rows: pl.DataFrame, record: dict[str, Any]) -> None:
        """Store a part, and the record in place of the one before."""

    @abstractmethod
    def _appear(self) -> None:
        """Make the parts the destination, and remove the record."""


# ------------------------------------------------------------------- files


class _FileSink(_Sink):
    """A file of lists in the format of its suffix, with titles where the items have them.

    Until it is complete, its parts are in `.NAME.parts` beside it.
    """

    def __init__(
        self,
        path: Path,
        train: Interactions,
        settings: dict[str, Any],
        *,
        overwrite: bool,
        header: bool = True,
    ) -> None:
        super().__init__(str(path), train, settings, overwrite=overwrite)
        self.path, self.header = path, header
        self.kind, self.zipped = _file_kind(path)
        self.folder = path.with_name(f".{path.name}.parts")
        self.progress = self.folder / "progress.json"
        self.discard = f"remove {self.folder} to start again"
        self._refuse_existing()

    @contextmanager
    def _step(self, *, starting: bool = False) -> Iterator[None]:
        if starting:  # the lock is beside the folder of the parts, which is removed
            file = self.path.with_name(f".{self.path.name}.lock")
            self.held.enter_context(locked(file, guards=self.path, purpose="writing lists"))
            remove_leftovers(self.path)
        try:
            yield
        except (OSError, pl.exceptions.PolarsError, TalosError) as error:
            if isinstance(error, TalosError) and error.__cause__ is None:
                raise  # a refusal; the failure of a disk has a cause
            raise TalosError(  # the message of `replace_file` names a part, which the user does not know
                f"{self.path} could not be written ({first_line(error.__cause__ or error)}); run it again to continue"
            ) from error

    def _refuse_existing(self) -> None:
        prepare_out(self.path, overwrite=self.overwrite)

    def _find_record(self) -> dict[str, Any] | None:
        foreign = (
            hasattr(os, "geteuid") and self.folder.exists() and self.folder.stat().st_uid != os.geteuid()
        )
        require(
            not foreign and not self.folder.is_symlink(),
            "is a link or belongs to another user",
            where=str(self.folder),
            expected="a folder of this user, or none",
        )
        with suppress(OSError, DataError):
            record = read_sealed(self.progress, hint="", format=_FORMAT)
            if all(checksum_of(part) == stored for part, stored in self._parts(record)):
                return record
        return None  # damaged parts are written again

    def _start(self) -> None:
        self.held.callback(self._remove_without_parts)
        self._remove_parts()
        self.folder.mkdir(exist_ok=True)
        write_sealed(self.progress, self.record)

    def _store(self, rows: pl.DataFrame, record: dict[str, Any]) -> None:
        part = self.folder / f"part-{len(record['checksums']):06d}"
        replace_file(part, lambda path: self._write(rows, path))
        record["checksums"] = [*record["checksums"], checksum_of(part)]
        write_sealed(self.progress, record)

    def _appear(self) -> None:
        _join_files([part for part, _ in self._parts(self.record)], self.path)
        self._remove_parts()

    def _parts(self, record: dict[str, Any]) -> list[tuple[Path, str]]:
        """The parts that a record counts, with their checksums."""
        return [(self.folder / f"part-{n:06d}", checksum) for n, checksum in enumerate(record["checksums"])]

    def _remove_without_parts(self) -> None:
        if not any(self.folder.glob("part-*")):
            self._remove_parts()

    def _remove_parts(self) -> None:
        """Remove the parts of an export, and the folder if nothing else is in it."""
        with suppress(OSError):
            for entry in list(self.folder.iterdir()):
                if _OURS.fullmatch(entry.name):
                    remove(entry)
            self.folder.rmdir()

    def _write(self, rows: pl.DataFrame, path: Path) -> None:
        if self.train.item_titles is not None:
            titles = pl.DataFrame({"item_id": self.train.item_ids.ids, "title": self.train.item_titles})
            rows = rows.join(titles, on="item_id", how="left", maintain_order="left")
        if self.kind == "parquet":
            rows.write_parquet(path)
            return
        text = (
            rows.write_ndjson()
            if self.kind == "jsonl"
            else rows.write_csv(
                include_header=self.header and self.record["users"] == 0,
                separator="\t" if self.kind == "tsv" else ",",
            )
        )
        # no name and no time in the header of gzip, so that the same lists give the same bytes
        path.write_bytes(gzip.compress(text.encode(), 6, mtime=0) if self.zipped else text.encode())


def _join_files(parts: Sequence[Path], path: Path) -> None:
    """Join files of lists to one that replaces `path`, and remove them; only the first of them may have a header."""

    def write(whole: Path) -> None:
        if _file_kind(path)[0] == "parquet":
            scan_file(list(parts)).sink_parquet(whole, row_group_size=1 << 18)
            return
        with whole.open("wb") as target:  # gzip files one after the other are a gzip file
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, target, 1 << 20)

    replace_file(path, write)
    for part in parts:
        part.unlink()


def _file_kind(path: Path) -> tuple[str, bool]:
    """The format that the suffix stands for, and whether the file is gzipped.

    >>> _file_kind(Path("recs.ndjson.gz"))
    ('jsonl', True)
    """
    zipped = path.suffix.lower() == ".gz"
    shown = "".join(path.suffixes[-2:]) if zipped else path.suffix
    suffix = shown.lower().removesuffix(".gz")
    kind = _KINDS.get(suffix, "")
    require(
        bool(kind) and not (zipped and kind == "parquet"),
        f"no format for {shown!r}" if shown else "has no suffix",
        where=str(path),
        expected=".parquet, .csv, .tsv or .jsonl, or the address of a database",
        hint="parquet is compressed already" if kind else nearest(suffix, _KINDS) if suffix else None,
    )
    return kind, zipped


# ------------------------------------------------------------------- tables


class _Dialect(NamedTuple):
    """What databases say in different words."""

    types: tuple[str, str, str, str]  # SQL types of text, integers and scores, and options after the columns
    mark: str  # the placeholder of a value in a statement
    begin: str  # begins a transaction
    exists: str  # finds a row if there is a table or view with a (quoted) name


_SQLITE = _Dialect(
    # Rows come in the order of the primary key, so storing them by it costs nothing.
    types=("TEXT", "INTEGER", "REAL", "WITHOUT ROWID"),
    mark="?",
    begin="BEGIN IMMEDIATE",
    exists="""SELECT 1 FROM sqlite_master WHERE lower('"' || replace(name, '"', '""') || '"') = lower(?)""",
)
_POSTGRES = _Dialect(
    types=("TEXT", "BIGINT", "REAL", ""),
    mark="%s",
    begin="BEGIN",
    exists="SELECT 1 FROM pg_class WHERE oid = to_regclass(%s)",
)


class _TableSink(_Sink):
    """A table in a SQLite file, which is created if it does not exist, or of a PostgreSQL server.

    The URL has its name: `sqlite:///FILE?table=NAME`, `postgresql://USER@HOST/DATABASE?table=NAME` or
    `?table=SCHEMA.NAME`. A transaction that is open when the sink is closed is rolled back.
    """

    failures: tuple[type[Exception], ...] = SQLITE_ERRORS  # that the driver raises
    disk_failed = False

    def __init__(self, url: str, train: Interactions, settings: dict[str, Any], *, overwrite: bool) -> None:
        require(
            is_database_url(url),
            f"no way to write to {url.partition('://')[0]!r}",
            where="out",
            expected="a file, sqlite:// or postgresql://",
        )
        self.url = DatabaseURL.parse(url)
        self.sql = _SQLITE if self.url.is_sqlite else _POSTGRES
        table = "recommendations" if self.url.table is None else self.url.table
        schema, dot, bare = table.rpartition(".")
        require(
            1 <= len(bare.encode()) <= _LONGEST_NAME and "\0" not in table and bool(schema or not dot),
            f"table {table!r}",
            where=self.url.shown,
            expected=f"a name of 1 to {_LONGEST_NAME} bytes",
        )
        # the name in messages is without the password
        super().__init__(f"{self.url.shown}, table {bare}", train, settings, overwrite=overwrite)
        self.table, self.prefix = bare, f"{quoted(schema)}." if dot else ""
        self.final, self.staging, self.progress = (
            self.prefix + quoted(bare + suffix) for suffix in ("", "__talos", "__talos_progress")
        )

    @contextmanager
    def _step(self, *, starting: bool = False) -> Iterator[None]:
        try:
            if starting:
                self.connection = self.held.enter_context(closing(self._connect()))
            self._run(self.sql.begin)
            yield
            self._run("COMMIT")
        except self.failures as error:
            self.disk_failed = _is_of_the_disk(error)  # unlike anything else, not the user's to mend
            kind = DataError if starting and not self.disk_failed else TalosError
            advice = "" if starting else "; run it again to continue"
            raise kind(f"{self.name}: the database says: {first_line(error)}{advice}") from error

    def _refuse_existing(self) -> None:
        require(
            self.overwrite or not self._exists(self.final),
            "exists",
            where=self.name,
            expected="a new table",
            option=Option("overwrite", True, "replaces it"),
        )

    def _find_record(self) -> dict[str, Any] | None:
        if not self._exists(self.progress):
            return None
        row = self._run(f"SELECT * FROM {self.progress}").fetchone()
        with suppress(TypeError, ValueError, RecursionError):  # there is no row, or a damaged one
            return unseal(json.loads(row[0]))
        return {}

    def _start(self) -> None:
        text, integer, score, options = self.sql.types
        user, item = (
            integer if one.ids.dtype.is_integer() else text
            for one in (self.train.user_ids, self.train.item_ids)
        )
        for statement in (
            f"DROP TABLE IF EXISTS {self.staging}",
            f"DROP TABLE IF EXISTS {self.progress}",
            f'CREATE TABLE {self.staging} ("user_id" {user} NOT NULL, "item_id" {item} NOT NULL, "score" {score} '
            f'NOT NULL, "rank" INTEGER NOT NULL, PRIMARY KEY ("user_id", "rank")) {options}',
            f"CREATE TABLE {self.progress} (record {text})",
        ):
            self._run(statement)
        self._run(f"INSERT INTO {self.progress} VALUES ({self.sql.mark})", sealed_text(self.record))

    def _store(self, rows: pl.DataFrame, record: dict[str, Any]) -> None:
        changed = self._run(
            f"UPDATE {self.progress} SET record = {self.sql.mark} WHERE record = {self.sql.mark}",
            sealed_text(record),
            sealed_text(self.record),
        )
        if changed.rowcount != 1:
            raise TalosError(f"another process is writing {self.name}")
        # the driver's fastest way to insert rows
        if self.url.is_sqlite:
            self.connection.executemany(f"INSERT INTO {self.staging} VALUES (?, ?, ?, ?)", rows.iter_rows())
            return
        # everything but numbers is quoted, because an empty field without quotes would become NULL
        text = rows.write_csv(include_header=False, quote_style="non_numeric")
        with self.connection.cursor().copy(f"COPY {self.staging} FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)

    def _appear(self) -> None:
        self._run(f"DROP TABLE IF EXISTS {self.final}")
        self._run(f"ALTER TABLE {self.staging} RENAME TO {quoted(self.table)}")
        self._run(f"DROP TABLE {self.progress}")

    def _exists(self, table: str) -> bool:
        return self._run(self.sql.exists, table).fetchone() is not None

    def _run(self, statement: str, *values: str) -> Any:
        return self.connection.execute(statement, values)

    def _connect(self) -> Any:
        """A connection that commits every statement outside a transaction."""
        if not self.url.is_sqlite:
            connection = connect_postgres(self.url, "writing to", autocommit=True)
            self.failures = (connection.Error,)
            return connection
        path = self.url.sqlite_path
        if path is None:
            raise ArgumentError(f"{self.url.shown!r} names no file", where="out", expected="sqlite:///FILE")
        folder = path.parent
        require(not self.prefix, "a schema", where=self.url.shown, expected="a table's name without a dot")
        require(folder.is_dir(), "no such folder", where=str(folder), expected="an existing folder")
        if not path.exists():
            self.held.callback(self._remove_unused, path)
        return sqlite3.connect(path, timeout=30, isolation_level=None)

    def _remove_unused(self, path: Path) -> None:
        """Remove a file that was created here, on a disk too full for its first page."""
        if self.disk_failed and path.is_file() and path.stat().st_size == 0:
            path.unlink()


def _is_of_the_disk(error: Exception) -> bool:
    """Whether a database says that its disk is full or fails: by SQLite's result code or PostgreSQL's SQLSTATE."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits name the operation
    state = getattr(error, "sqlstate", None) or ""
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or state.startswith(("53", "58"))
