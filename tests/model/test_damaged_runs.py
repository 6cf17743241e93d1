"""Run directories that were damaged or made by somebody with bad intentions: a model, or the library's own error."""

from __future__ import annotations

import json
import random
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from talos.data.interactions import Interactions
from talos.errors import DataError, TalosError
from talos.files import checksum_of, sealed_text
from talos.model.recommender import Recommender
from talos.model.store import FILES

SECONDS, MEGABYTES = 2.0, 500  # of CPU time: another program on the machine is no fault of the reader
# What somebody might write in place of any value.
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "x", "../../etc/passwd", [], {},
    [1, 2], {"a": 1}, "a" * 1000, [[[[[[]]]]]],
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with string ids, titles and a validation part."""
    return _run(tmp_path_factory, dim=8, epochs=2)


def _run(tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Path:
    pairs = np.argwhere(np.random.default_rng(0).random((30, 20)) < 0.3)
    data = Interactions.from_ids(
        [f"u{u:02d}" for u in pairs[:, 0]],
        [f"i{i:02d}" for i in pairs[:, 1]],
        titles=[f"T{i}" for i in pairs[:, 1]],
    )
    parts = data.split(seed=0)
    folder = tmp_path_factory.mktemp("artifact") / "run"
    Recommender(k=3, **options).fit(parts.train, parts.valid).save(folder)
    return folder


def damage(content: bytes, rng: random.Random) -> bytes:
    """Cut, overwrite, double, insert or set to zero."""
    bad = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        if not bad:
            break
        at, length = rng.randrange(len(bad)), rng.choice((1, 1, 1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0:
            del bad[at:]
        elif kind == 1:
            del bad[at : at + length]
        elif kind == 2:
            bad[at : at + length] = bytes(length)
        elif kind == 3:
            bad[at:at] = rng.randbytes(length)
        elif kind == 4:
            bad[at : at + length] = b"\xff" * length
        else:
            bad[at] = rng.randrange(256)
    return bytes(bad)


def rewrite(value: Any, rng: random.Random) -> Any:
    """A JSON value with one of its parts, at any depth, removed or replaced by something hostile."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {key: part for key, part in value.items() if key != name}
        if rng.random() < 0.05:
            return {**value, rng.choice(("../x", "", "evil", "name")): rng.choice(HOSTILE)}
        return {**value, name: rewrite(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], rewrite(value[at], rng), *value[at + 1 :]]
    return rng.choice(HOSTILE)


def rewrite_header(content: bytes, rng: random.Random) -> bytes:
    """The tensors' file with a changed description: other types, shapes, places, names."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(rewrite(json.loads(content[8 : 8 + size]), rng)).encode()
    claimed = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**20, 2**40, 2**64 - 1))
    return claimed.to_bytes(8, "little") + header + content[8 + size :]


def mutate(folder: Path, rng: random.Random) -> bool:
    """Change one file of a run; whether it is a forgery, with checksums that are right again."""
    name = rng.choice((*FILES, "model.json"))
    path = folder / name
    content = path.read_bytes()
    if name == "model.json":
        if rng.random() < 0.5:
            path.write_bytes(damage(content, rng))
        else:
            facts = rewrite(json.loads(content), rng)
            sealed = isinstance(facts, dict) and rng.random() < 0.8
            path.write_text(sealed_text(facts) if sealed else json.dumps(facts))
        return True
    other = rewrite_header if name == "model.safetensors" and rng.random() < 0.5 else damage
    path.write_bytes(other(content, rng))
    if rng.random() < 0.2:
        return False
    facts = json.loads((folder / "model.json").read_text())
    facts["checksums"][name] = checksum_of(path)
    (folder / "model.json").write_text(sealed_text(facts))
    return True


def check_mutations(original: Path, scratch: Path, count: int, seed: int) -> dict[str, int]:
    """How many of `count` mutated runs loaded and how many were refused; anything else fails."""
    wanted = Recommender.load(original).recommend()
    good = {path.name: path.read_bytes() for path in original.iterdir() if path.is_file()}
    folder = scratch / "run"
    shutil.copytree(original, folder)
    outcomes = {"loaded": 0, "refused": 0}
    before = _peak()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        forged = mutate(folder, rng)
        began = time.process_time()
        try:
            lists = Recommender.load(folder).recommend()
            outcomes["loaded"] += 1
            # vectors that were changed by somebody who mended the checksum are another model
            assert forged or lists.equals(wanted), number
            assert lists.columns == wanted.columns, number
            assert set(lists["user_id"]) <= set(wanted["user_id"]) or forged, number
        except TalosError:
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {error!r}") from error
        assert time.process_time() - began < SECONDS, number
        for name, content in good.items():
            (folder / name).write_bytes(content)
    assert _peak() - before < MEGABYTES * 2**20
    assert Recommender.load(folder).recommend().equals(wanted)
    return outcomes


def _peak() -> int:
    """Bytes, the most that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_mutated_runs(original: Path, tmp_path: Path) -> None:
    outcomes = check_mutations(original, tmp_path, 200, seed=0)
    assert min(outcomes.values()) > 0  # both were tried


@pytest.mark.parametrize("baseline", ["itemknn", "ease"])
def test_mutated_runs_of_baselines(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, baseline: str
) -> None:
    outcomes = check_mutations(_run(tmp_path_factory, baseline=baseline), tmp_path, 100, seed=2)
    assert min(outcomes.values()) > 0


@pytest.mark.slow
def test_ten_thousand_mutated_runs(original: Path, tmp_path: Path) -> None:
    check_mutations(original, tmp_path, 10_000, seed=1)


def test_offsets_that_overflow_are_refused(original: Path, tmp_path: Path) -> None:
    """Differences of neighbours may wrap around to numbers that are not negative."""
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    place = folder / "model.safetensors"
    tensors = load_file(place)
    tensors["train.indptr"][1:4] = torch.tensor([2**62, 2**63 - 1, -(2**63)])
    save_file(tensors, place)
    facts = json.loads((folder / "model.json").read_text())
    facts["checksums"][place.name] = checksum_of(place)
    (folder / "model.json").write_text(sealed_text(facts))
    with pytest.raises(DataError, match="indptr and indices do not belong together"):
        Recommender.load(folder)


@pytest.mark.parametrize("path", ["shape", "checksums", "config", "format"])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
def test_hostile_facts(original: Path, tmp_path: Path, path: str, value: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    facts = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(sealed_text({**facts, path: value}))
    if path == "config" and value == {}:
        Recommender.load(folder)  # all defaults
        return
    with pytest.raises(TalosError):
        Recommender.load(folder)
