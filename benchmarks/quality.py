"""Training time until the test recall is good, against implicit's ALS and BPR and EASE.

Time is fitting time from the interactions on: for Talos everything from the config to the end of an epoch (index, warm
start, steps), for implicit its `fit`. Test recall is measured after every epoch with the clock stopped. Recall@20 in
the paper's dialect: train items masked, all items ranked. Short fits are repeated in turn and the quickest of each
counts, because a single one varies too much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores, Scorer
from talos.training import Callback, Trainer

MEANING = {
    "time_to_147_over_als": "Beauty: seconds to a test R@20 of .147 / implicit's 20 ALS sweeps (64, reg 10, α 40)",
    "time_to_als_quality_over_als": "Beauty: seconds to pass that ALS's own R@20 / its seconds",
    "time_to_2079_over_als_gowalla": "Gowalla: seconds to a test R@20 of .2079 (the paper's) / its ALS",
    "time_to_als_quality_over_als_gowalla": "Gowalla: seconds to pass that ALS's own R@20 / its seconds",
}
TARGETS = {"beauty": 0.147, "gowalla": 0.2079}
_SHORT, _TIMES = 10.0, 5  # fits shorter than so many seconds are repeated so many times
_EASE_LIMIT = 12_000  # items: EASE inverts a dense matrix of items × items


def measure(name: str, train: Interactions, test: Interactions, *, epochs: int) -> dict[str, float]:
    """Seconds and R@20 of each method on one data set; a ratio is missing where its target is not reached."""
    figures: dict[str, float] = {}
    # torch imports many modules when the first optimiser is made: do that before the clock starts
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    for rival, fit in _rivals(train).items():
        began = time.perf_counter()
        scores = fit()
        figures[f"{rival}_seconds_{name}"] = time.perf_counter() - began
        figures[f"{rival}_recall_{name}"] = recall(scores, train, test)
    target, als = TARGETS[name], figures.get(f"als_recall_{name}", 0.0)
    curve = learning_curve(train, test, epochs=epochs, enough=max(target, als))
    seconds, reached = (np.array(column) for column in zip(*curve, strict=True))
    if "als" in _rivals(train) and seconds[-1] < _SHORT:
        for _ in range(_TIMES - 1):
            began = time.perf_counter()
            _rivals(train)["als"]()
            once = time.perf_counter() - began
            figures[f"als_seconds_{name}"] = min(figures[f"als_seconds_{name}"], once)
            again = learning_curve(train, test, epochs=len(seconds))
            seconds = np.minimum(seconds, [passed for passed, _ in again])
    figures[f"talos_seconds_{name}"], figures[f"talos_recall_{name}"] = (
        float(seconds[-1]),
        float(reached.max()),
    )
    suffix = "" if name == "beauty" else f"_{name}"
    marks = {
        f"time_to_{f'{target:g}'.partition('.')[2]}_over_als{suffix}": target,
        f"time_to_als_quality_over_als{suffix}": als,
    }
    for key, mark in marks.items():
        if als and (reached >= mark).any():
            first = int(np.argmax(reached >= mark))
            figures[key] = float(seconds[first]) / figures[f"als_seconds_{name}"]
            figures[f"{key}_epochs"] = first + 1.0
    return figures


def recall(scores: Scorer, train: Interactions, test: Interactions) -> float:
    return evaluate(scores, test, seen=train, ks=[20], dialect="paper").metrics["recall@20"]


def learning_curve(
    train: Interactions, test: Interactions, *, epochs: int, enough: float = 1.0, **settings: Any
) -> list[tuple[float, float]]:
    """(seconds since the start, R@20) at the end of each epoch, until the recall reaches `enough`."""
    began = time.perf_counter()
    trainer = Trainer(RunConfig().with_values({"training.epochs": epochs, **settings}), train)
    watch = _RecallCurve(trainer, train, test, time.perf_counter() - began, enough)
    trainer.callbacks = [watch]
    trainer.fit()
    return watch.curve


class _RecallCurve(Callback):
    def __init__(
        self, trainer: Trainer, train: Interactions, test: Interactions, seconds: float, enough: float
    ) -> None:
        self.trainer, self.train, self.test = trainer, train, test
        self.seconds, self.enough = seconds, enough
        self.curve: list[tuple[float, float]] = []

    def on_epoch(self, record: dict[str, Any]) -> None:
        self.seconds += record["seconds"]
        self.curve.append((self.seconds, recall(DotScores(*self.trainer.vectors()), self.train, self.test)))
        self.trainer.position.finished = self.curve[-1][1] >= self.enough


def _rivals(train: Interactions) -> dict[str, Callable[[], Scorer]]:
    found: dict[str, Callable[[], Scorer]] = {}
    try:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking
        from scipy.sparse import csr_matrix
    except ImportError:
        print("implicit is not installed: no ALS and BPR to compare with (extra `bench`)")
    else:
        matrix = csr_matrix(
            (np.ones(len(train), np.float32), train.indices.astype(np.int32), train.indptr.astype(np.int32)),
            shape=(train.num_users, train.num_items),
        )
        threads = torch.get_num_threads()
        options: dict[str, Any] = {"num_threads": threads, "random_state": 0, "use_gpu": False}
        als: dict[str, Any] = {"factors": 64, "regularization": 10.0, "alpha": 40.0, "iterations": 20}
        bpr: dict[str, Any] = {"factors": 64, "iterations": 100}
        found["als"] = lambda: _fitted(lambda: AlternatingLeastSquares(**als, **options), matrix)
        found["bpr"] = lambda: _fitted(lambda: BayesianPersonalizedRanking(**bpr, **options), matrix)
    if train.num_items <= _EASE_LIMIT:
        found["ease"] = lambda: _ease(train)
    return found


def _fitted(make: Callable[[], Any], matrix: Any) -> DotScores:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):  # implicit warns about more: its own threads do the work
        model = make()
        model.fit(matrix, show_progress=False)
    return DotScores(torch.tensor(model.user_factors), torch.tensor(model.item_factors))


class _RowScores:
    """Scores X·B of interactions with a matrix of items × items."""

    def __init__(self, train: Interactions, weights: NDArray[np.float32]) -> None:
        self.rows, self.weights = train.to_scipy().astype(np.float32), weights

    @property
    def num_items(self) -> int:
        return int(self.rows.shape[1])

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def scores(self, users: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(np.asarray(self.rows[users.numpy()] @ self.weights)))


def _ease(train: Interactions, penalty: float = 100.0) -> Scorer:
    """EASE (Steck, WWW 2019): B = -P / diag(P), P = (XᵀX + λ)⁻¹, with a diagonal of 0."""
    rows = train.to_scipy().astype(np.float32)
    gram = torch.from_numpy((rows.T @ rows).toarray())
    gram.diagonal().add_(penalty)
    inverse = torch.linalg.inv(gram)
    weights = -inverse / inverse.diagonal()
    weights.diagonal().zero_()
    return _RowScores(train, weights.numpy())
