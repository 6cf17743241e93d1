"""Runs, checkpoints, shards and studies that were damaged: the library's own error, or the same result.

Each try damages one file of one of them: bits, truncation, overwriting, two files exchanged, a file of another version,
and forgeries whose checksums were made right again.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import read_shards, write_shards
from talos.errors import TalosError
from talos.files import checksum_of, sealed_text
from talos.model.recommender import Recommender
from talos.studies.tune import open_study, tune
from talos.training import Trainer

SECONDS, MEGABYTES = (
    2.0,
    500,
)  # for one try; of CPU time: another program on the machine is no fault of the reader


@pytest.fixture(scope="module")
def data() -> Any:
    return made_up(0)


@pytest.fixture(scope="module")
def other_data() -> Any:
    return made_up(1)


def made_up(seed: int) -> Any:
    pairs = np.argwhere(np.random.default_rng(seed).random((30, 20)) < 0.4)
    return Interactions.from_ids(pairs[:, 0], pairs[:, 1]).split(seed=0)


CONFIG = {"k": 3, "backbone": {"name": "mf", "dim": 4}}
TRAINING = {"epochs": 4, "evaluate_every": 1, "checkpoint_every": 1, "keep_checkpoints": 1}


class Run:
    """A saved model."""

    def write(self, data: Any, folder: Path) -> None:
        Recommender(config=RunConfig.from_dict({**CONFIG, "training": {"epochs": 2}})).fit(data.train).save(
            folder
        )

    def read(self, data: Any, folder: Path) -> Any:
        return Recommender.load(folder).fitted_model().fingerprint()


class Checkpoint:
    """A stopped training: the newest checkpoint and the best weights."""

    def trainer(self, data: Any, folder: Path) -> Trainer:
        return Trainer(
            RunConfig.from_dict({**CONFIG, "training": TRAINING}), data.train, data.valid, folder=folder
        )

    def write(self, data: Any, folder: Path) -> None:
        self.trainer(data, folder).fit()

    def read(self, data: Any, folder: Path) -> Any:
        trainer = self.trainer(data, folder)
        assert trainer.resume()
        trainer._restore_best()
        return [vectors.tolist() for vectors in trainer.vectors()]


class Shards:
    def write(self, data: Any, folder: Path) -> None:
        write_shards(data.train, folder, shards=2)

    def read(self, data: Any, folder: Path) -> Any:
        parts = read_shards(folder)
        return [parts.train.fingerprint(), parts.test.fingerprint()]


class Study:
    """The folder of a study with its trials."""

    def write(self, data: Any, folder: Path) -> None:
        space = {"loss": {"tau": [0.1, 0.2]}}
        tune(data, space, out=folder, k=3, dim=4, epochs=1, evaluate_every=1)
        for name in ("trials.csv", "run.toml"):  # for people; nothing reads them
            (folder / name).unlink()

    def read(self, data: Any, folder: Path) -> Any:
        tuned, _ = open_study(folder)
        rows = [(row.number, row.state, row.value, str(row.parameters)) for row in tuned.rows]
        return [tuned.settings.study_name, rows, tuned.parts.fingerprints()]


KINDS: dict[str, Callable[[], Any]] = {"run": Run, "checkpoint": Checkpoint, "shards": Shards, "study": Study}


WAYS = (
    "bit",
    "bit",
    "bit",
    "bytes",
    "cut",
    "zeros",
    "more",
    "swapped",
    "missing",
    "length",
    "version",
    "strange",
)


def damage(path: Path, others: list[Path], stranger: Path, rng: random.Random) -> str:
    """Damage a file; returns how. `stranger` is the same file of another artefact."""
    content = bytearray(path.read_bytes())
    how = rng.choice(WAYS)
    if how == "version" and path.suffix != ".json":
        how = "bit"
    at = rng.randrange(max(1, len(content)))
    if how == "bit" and content:
        content[at] ^= 1 << rng.randrange(8)
    elif how == "bytes":
        content[at : at + 8] = rng.randbytes(8)
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        content[at:] = bytes(len(content) - at)
    elif how == "more":
        content += rng.randbytes(9)
    elif how == "length":  # sizes that lie: the header of safetensors, the footer of parquet
        lie = rng.choice((0, 1 << 31, 1 << 40, (1 << 63) - 1)).to_bytes(8, "little")
        content[:8] = lie
        content[-8:-4] = lie[:4]
    elif how == "swapped":
        other = rng.choice(others)
        content, taken = bytearray(other.read_bytes()), content
        other.write_bytes(taken)
    elif how == "strange":
        content = bytearray(stranger.read_bytes() if stranger.is_file() else b"")
    elif how == "version":  # sealed, as another version of the library would have written it
        facts = json.loads(content)
        facts["format"] = rng.choice((0, 1, 2, 5, 99, -1, "3", None, 3.0, True, [], {}))
        content = bytearray(sealed_text(facts).encode())
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content)
    return how


def forge(folder: Path) -> None:
    """Make checksums right again, as somebody with bad intentions would."""
    for place in folder.rglob("*.json"):
        try:
            facts = json.loads(place.read_text())
            sums = facts["checksums"]
            for name in sums:
                if (place.parent / name).is_file():
                    sums[name] = checksum_of(place.parent / name)
            place.write_text(sealed_text(facts))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


@pytest.mark.parametrize("kind", KINDS)
def test_damaged(kind: str, data: Any, other_data: Any, budget: Any, tmp_path: Path) -> None:
    one = KINDS[kind]()
    good, bad, other = tmp_path / "good", tmp_path / "bad", tmp_path / "other"
    one.write(data, good)
    one.write(other_data, other)
    wanted = one.read(data, good)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row = budget.row(f"damaged {kind}", short=40, full=2_500)
    for number in row:
        rng = row.rng(number)
        shutil.copytree(good, bad)
        files = sorted(path for path in bad.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
        path = rng.choice(files)
        how = damage(path, files, other / path.relative_to(bad), rng)
        forged = how not in ("bit", "missing", "swapped", "version") and rng.random() < 0.4
        if forged:
            forge(bad)
        what = f"{kind} {number} of seed {budget.seed}: {path.relative_to(bad)}, {how}{', forged' * forged}"
        began = time.process_time()
        try:
            found = one.read(data, bad)
            assert forged or found == wanted or _without_checksum(path, how), what
            row.counts["same" if found == wanted else "forged and read"] += 1
        except TalosError:
            row.counts["refused"] += 1
        except AssertionError:
            raise
        except BaseException as error:
            raise AssertionError(f"{what}: {error!r}") from error
        assert time.process_time() - began < SECONDS, what
        shutil.rmtree(bad)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    assert row.counts["refused"]


def _without_checksum(path: Path, how: str) -> bool:
    """Whether the trials of a study are damaged: SQLite has no checksums, so only what makes no sense is refused."""
    return path.name == "study.db"
