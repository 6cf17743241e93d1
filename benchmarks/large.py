"""The whole way from files to lists on generated events: each step's time and memory, next to a named reference.

`events` sets the size: users and items are a hundredth of it, as in a million × a million × a hundred million. Quality
is a share of the best possible recall, which is known for generated events. References run in the same process on as
many threads: polars for reading, implicit's ALS for the factorisation and for quality, its `recommend` for lists.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.config import RunConfig
from talos.data.datasets import PlantedTastes, write_planted
from talos.data.datasets.generated import EventFormat
from talos.data.open import open_split
from talos.data.splits import Split
from talos.evaluation.best_possible import best_possible
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores, top_k
from talos.exports.faiss_index import ApproximateLists
from talos.kernels import alternating_least_squares
from talos.kernels.csr import TrainIndex
from talos.kernels.least_squares import sweeps_for
from talos.model.model import Model, Vectors
from talos.model.query import ListQuery
from talos.model.recommender import Recommender

from .recommending import given_vectors, legacy_matrix

_KINDS: tuple[tuple[EventFormat, bool], ...] = (
    ("parquet", True),
    ("parquet", False),
    ("csv", True),
    ("csv", False),
)
_DIM = 64
_EPOCHS = 5
_LISTED_USERS = 2000


def _name(kind: str, strings: bool) -> str:
    return f"{kind}_{'strings' if strings else 'integers'}"


MEANING = {
    **{
        f"large_reading_{_name(kind, strings)}_over_polars": f"{kind} with {'string' if strings else 'integer'} ids "
        "to Interactions / polars' own parse"
        for kind, strings in _KINDS
    },
    **{
        f"large_reading_{_name(kind, strings)}_memory": "peak memory that reading adds / the size of the result"
        for kind, strings in _KINDS
    },
    "large_als_over_implicit": "seconds of our least squares / implicit's ALS, as many sweeps and threads",
    "large_recall_of_best": "recall@20 of the default Talos / that of the best possible lists",
    "large_implicit_recall_of_best": "recall@20 of implicit's ALS, 15 sweeps / that of the best possible lists",
    "large_seconds_over_implicit": "seconds of that Talos fit / of that ALS fit",
    "large_lists_over_implicit": "users per second of exact top-100 lists / implicit's `recommend`, same vectors",
    "large_approximate_over_exact": "users per second of approximate top-100 lists (recall 0.95 wanted) / exact ones",
    "large_approximate_recall": "recall of these approximate lists",
}

_READ = """
import json, resource, sys, time
import polars as pl, numpy as np
from pathlib import Path
from talos.data.open import read
who, folder = sys.argv[1:]
files = sorted(Path(folder).iterdir())
parse = pl.read_parquet if files[0].suffix == ".parquet" else pl.read_csv
def highest():
    status = Path("/proc/self/status")
    if status.exists():  # the other figure begins with that of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = highest()
start, cpu = time.perf_counter(), time.process_time()
if who == "polars":
    data = [parse(file) for file in files]
    size = 1
else:
    data = read(folder)
    arrays = (data.indptr, data.indices, data.timestamps, data.repeats)
    ids = sum(part.ids.estimated_size() for part in (data.user_ids, data.item_ids))
    size = ids + sum(array.nbytes for array in arrays if array is not None)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
peak = highest() - before
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "size": size}))
"""


def measure(events: int = 1_000_000) -> dict[str, float]:
    """All steps at one size; times in seconds and sizes in GB (2^30 bytes) stand beside the ratios."""
    entities = max(2000, events // 100)
    world = PlantedTastes(users=entities, items=entities, events=events, held_out=2000)
    figures: dict[str, float] = {"large_events": events}
    with tempfile.TemporaryDirectory() as scratch:
        best = 0.0
        for kind, strings in _KINDS:
            folder = Path(scratch) / _name(kind, strings)
            first = (kind, strings) == _KINDS[0]
            began = time.perf_counter()
            record = write_planted(
                world, folder, format=kind, strings=strings, report=_best_recall if first else None
            )
            if first:
                figures["large_generate_seconds"] = time.perf_counter() - began
                best = record["best"]["recall@20"]
            figures |= _reading(folder / "train", _name(kind, strings))
        parts = open_split(Path(scratch) / _name(*_KINDS[0]))
    figures["large_best_recall"] = best
    return figures | _least_squares(parts) | _quality(parts, best) | _lists(parts)


def _best_recall(split: Split, tastes: NDArray[np.float32], topics: NDArray[np.float32]) -> dict[str, float]:
    return best_possible(split, tastes, topics, (20,)).metrics


def _reading(folder: Path, name: str, repeats: int = 3) -> dict[str, float]:
    found: dict[str, list[dict[str, float]]] = {"polars": [], "talos": []}
    for _ in range(repeats):
        for who, runs in found.items():
            command = [sys.executable, "-c", _READ, who, str(folder)]
            runs.append(
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            )
    ours, theirs = (min(run["seconds"] for run in found[who]) for who in ("talos", "polars"))
    key = f"large_reading_{name}"
    return {
        f"{key}_over_polars": ours / theirs,
        f"{key}_memory": max(run["peak"] / run["size"] for run in found["talos"]),
        f"{key}_seconds": ours,
        # processor time: on a shared machine the clock also measures the work of others
        f"{key}_over_polars_cpu": min(r["cpu"] for r in found["talos"])
        / min(r["cpu"] for r in found["polars"]),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _least_squares(parts: Split) -> dict[str, float]:
    index = TrainIndex.from_interactions(parts.train)
    sweeps = sweeps_for(index.num_users, len(index.indices))
    rng = torch.Generator().manual_seed(0)
    _, ours = _timed(
        lambda: alternating_least_squares(
            index.indptr, index.indices, index.num_items, dim=_DIM, generator=rng, sweeps=sweeps
        )
    )
    _, theirs = _timed(lambda: _implicit_als(parts, sweeps))
    return {
        "large_als_over_implicit": ours / theirs,
        "large_als_seconds": ours,
        "large_implicit_als_seconds": theirs,
    }


def _implicit_als(parts: Split, sweeps: int) -> Any:
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=_DIM,
        regularization=10.0,
        alpha=40.0,
        iterations=sweeps,
        num_threads=torch.get_num_threads(),
        random_state=0,
    )
    model.fit(legacy_matrix(parts.train.to_scipy().astype(np.float32)), show_progress=False)
    return model


def _quality(parts: Split, best: float) -> dict[str, float]:
    """Recall of both models as shares of the best possible, and their seconds; the clock counts fitting alone."""
    seen = parts.train if parts.valid is None else parts.train.union(parts.valid)

    def recall(scorer: DotScores) -> float:
        return evaluate(scorer, parts.test, seen=seen, ks=(20,)).metrics["recall@20"] / best

    config = RunConfig().with_values({"training.epochs": _EPOCHS})
    ours, our_seconds = _timed(lambda: Recommender(config=config).fit(parts.train))
    model = ours.fitted_model()
    theirs, their_seconds = _timed(lambda: _implicit_als(parts, 15))
    factors = (torch.from_numpy(theirs.user_factors), torch.from_numpy(theirs.item_factors))
    return {
        "large_recall_of_best": recall(DotScores(model.vectors.users, model.vectors.items)),
        "large_implicit_recall_of_best": recall(DotScores(*factors)),
        "large_seconds_over_implicit": our_seconds / their_seconds,
        "large_fit_seconds": our_seconds,
        "large_implicit_fit_seconds": their_seconds,
    }


def _lists(parts: Split, k: int = 100) -> dict[str, float]:
    """Lists of some users; the vectors are those of a factorisation, because an index likes structure."""
    index = TrainIndex.from_interactions(parts.train)
    rng = torch.Generator().manual_seed(0)
    users, items = alternating_least_squares(
        index.indptr, index.indices, index.num_items, dim=_DIM, generator=rng, sweeps=2
    )
    model = Model(scored_by=Vectors(users, items), train=parts.train)
    some: NDArray[np.int64] = np.arange(min(_LISTED_USERS, parts.train.num_users))
    scorer = DotScores(users, items)
    top_k(scorer, some[:100], k=k, seen=parts.train)  # the first call sets up threads
    _, exact = _timed(lambda: top_k(scorer, some, k=k, seen=parts.train))
    implicit = given_vectors(users.numpy(), items.numpy())
    rows = legacy_matrix(parts.train.to_scipy().astype(np.float32)[some])
    _, theirs = _timed(lambda: implicit.recommend(some, rows, N=k, filter_already_liked_items=True))
    query = ListQuery(users=some, k=k)
    near, built = _timed(lambda: ApproximateLists(model, query, wanted=0.95))
    _, approximate = _timed(lambda: next(near.iter_answers(query)))
    return {
        "large_lists_over_implicit": theirs / exact,
        "large_approximate_over_exact": exact / approximate,
        "large_approximate_recall": near.facts[f"recall@{k}"],
        "large_lists_users_per_second": len(some) / exact,
        "large_implicit_lists_users_per_second": len(some) / theirs,
        "large_approximate_users_per_second": len(some) / approximate,
        "large_index_seconds": built,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000), indent=2))
