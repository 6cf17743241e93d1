"""Where trials are stored: addresses, files that are something else, and the data of a study."""

from __future__ import annotations

import json
import socketserver
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from talos.data.vocabulary import Vocabulary
from talos.errors import ConfigError, DataError
from talos.files import checksum_of, write_sealed
from talos.studies.tune.data import FitParts, map_parts, write_parts
from talos.studies.tune.study import check_reachable, open_storage, parse_storage


@pytest.mark.parametrize("text", ["", "mysql://x/y", "sqlite:///", "sqlite://", "postgresql://", "redis://x"])
def test_addresses_that_mean_nothing(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage: "):
        parse_storage(text, tmp_path)


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    with pytest.raises(ConfigError, match=r"postgresql://ann@127\.0\.0\.1:1/x: cannot be reached") as error:
        check_reachable(parse_storage("postgresql://ann:secret@127.0.0.1:1/x", tmp_path))
    assert "secret" not in str(error.value)


class HangsUp(socketserver.BaseRequestHandler):
    """Closes every connection without a word, as no database server does."""


def test_a_server_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")
    with socketserver.TCPServer(("127.0.0.1", 0), HangsUp) as server:
        listening = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        listening.start()
        url = parse_storage(f"postgresql://ann:secret@127.0.0.1:{server.server_address[1]}/x", tmp_path)
        try:
            for look in (lambda: check_reachable(url), lambda: open_storage(url, "study")):
                with pytest.raises(ConfigError, match=r"postgresql://ann@127\.0\.0\.1") as error:
                    look()
                assert "secret" not in str(error.value)
        finally:
            server.shutdown()
            listening.join(timeout=30)


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_file_that_is_something_else(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\nworld\n" * 99)
    with pytest.raises(ConfigError, match=r"notes\.txt cannot be used \(file is not a database\)"):
        open_storage(parse_storage(f"{scheme}{path}", tmp_path), "study")
    assert path.read_text() == "hello\nworld\n" * 99
    with pytest.raises(ConfigError, match="is a folder"):
        check_reachable(parse_storage(f"{scheme}{tmp_path}", tmp_path))


def test_any_name_of_a_file_will_do(tmp_path: Path) -> None:
    for _ in range(2):
        _, study = open_storage(parse_storage(None, tmp_path / "a?b=%41{c}#d"), "study")
        study.enqueue_trial({})
    assert len(study.trials) == 2
    assert (tmp_path / "a?b=%41{c}#d" / "study.db").is_file()


def test_parts_come_back_as_they_were(tmp_path: Path, parts: FitParts) -> None:
    write_parts(tmp_path, parts)
    for before, after in zip(parts, map_parts(tmp_path), strict=True):
        assert before.fingerprint() == after.fingerprint()
        assert isinstance(after.indices.base, np.memmap)
    # beside a folder that the name would match as a pattern, with other ids
    other = FitParts(*(replace(part, item_ids=Vocabulary(part.item_ids.ids + 1000)) for part in parts))
    for name, some in (("part[1]", parts), ("part1", other)):
        (tmp_path / name).mkdir()
        write_parts(tmp_path / name, some)
    assert map_parts(tmp_path / "part[1]").train.fingerprint() == parts.train.fingerprint()
    (tmp_path / "train.indices.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"train\.indices\.npy: .* differs from its checksum"):
        map_parts(tmp_path)


@pytest.mark.parametrize("header", ["{'descr': (", "(" * 9, "", "{'descr': '<i4', 'shape': (-1,)}"])
def test_a_damaged_header_of_an_array_is_an_error_of_ours(
    tmp_path: Path, parts: FitParts, header: str
) -> None:
    write_parts(tmp_path, parts)
    length, damaged = len(header).to_bytes(2, "little"), tmp_path / "train.indices.npy"
    damaged.write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode())
    record = json.loads((tmp_path / "parts.json").read_text())
    record["checksums"][damaged.name] = checksum_of(damaged)  # as a forger would
    write_sealed(tmp_path / "parts.json", record)
    with pytest.raises(DataError, match="cannot be read"):
        map_parts(tmp_path)
