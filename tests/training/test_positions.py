"""Rows that are positions of histories: a sequence model through the ordinary trainer, and the rows against a loop."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from polars.testing import assert_frame_equal

from talos import Recommender
from talos.backbones import Backbone
from talos.config import EventsConfig, RunConfig
from talos.data.event_weights import event_weights
from talos.data.interactions import Interactions
from talos.errors import ConfigError, DataError
from talos.evaluation.evaluate import evaluate, popularity_report
from talos.evaluation.ranking import DotScores
from talos.kernels import core
from talos.kernels.csr import TrainIndex
from talos.training import Callback, InterruptedRunError, Trainer, plan_for
from talos.training.batches import Batches, PositionRows
from talos.training.checkpoint import checkpoint_names

LOSSES = ("talos", "sl", "bsl", "sl@k", "aatp", "llpauc")
HISTORY = 8

needs_core = pytest.mark.skipif(not core.levels(), reason="the compiled core was not built")


@pytest.fixture(autouse=True)
def gru(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backbone]]:
    """The class `gru_backbone:GRU`, in a module on Python's search path."""
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("modules")))
    yield importlib.import_module("gru_backbone").GRU
    sys.modules.pop("gru_backbone", None)


@pytest.fixture(scope="module")
def walks() -> tuple[Interactions, Interactions]:
    """Walks of 60 users over a circle of 30 items: item i is followed by i + 1. Validation has everybody's last item.

    Each has a start and a length of their own, so every item is about as popular as any other.
    """
    rng, rows = np.random.default_rng(0), []
    for user in range(60):
        start, steps = rng.integers(30), int(rng.integers(4, 12))
        rows += [(user, (start + step) % 30, 86_400 * (10 * user + step)) for step in range(steps)]
    users, items, times = np.array(rows).T
    data = Interactions.from_ids(users, items, timestamps=times)
    assert data.timestamps is not None
    last = np.zeros(data.num_users)
    np.maximum.at(last, data.rows, data.timestamps)
    in_valid = data.timestamps == last[data.rows]
    return data.where(~in_valid), data.where(in_valid)


def config(loss: str = "talos", **values: Any) -> RunConfig:
    base = {
        "k": 3,
        "backbone.name": "gru_backbone:GRU",
        "backbone.dim": 16,
        "loss.name": loss,
        "negatives": "all",
        "training.epochs": 60,
        "training.batch_size": 32,
        "training.evaluate_every": 2,
        "training.patience": 6,
        "training.metric": "ndcg",
        "optimizer.lr": 0.01,
    }
    return RunConfig().with_values(base | values)


class StopAt(Callback):
    """Sends the process a signal after some steps, as Ctrl-C would."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def state(trainer: Trainer) -> list[bytes]:
    """Everything that was learnt, to the bit."""
    tables = [*trainer.vectors(), *trainer.objective.backbone.state_dict().values()]
    if trainer.objective.threshold is not None:
        tables.append(trainer.objective.threshold.value(torch.arange(trainer.train.num_users)))
    return [table.numpy().tobytes() for table in tables]


# ----------------------------------------------------------------------- training


@needs_core
@pytest.mark.parametrize("loss", LOSSES)
def test_it_learns_the_pattern_and_resumes_in_the_middle_of_an_epoch(
    walks: tuple[Interactions, Interactions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
) -> None:
    monkeypatch.setenv("TALOS_KERNEL", "compiled")
    calls: list[str] = []
    sweep = core.sweep
    monkeypatch.setattr(core, "sweep", lambda **given: calls.append(given["kind"]) or sweep(**given))
    train, valid = walks
    whole = Trainer(config(loss), train, valid)
    whole.fit()
    steps = whole.position.epoch * len(whole.batches)
    assert len([kind for kind in calls if kind]) == steps  # every step by the compiled core, over all items
    assert whole.position.finished  # validation did not get better for a while
    assert whole.position.epoch < 60
    popular = popularity_report(train, valid, seen=train, ks=[3]).metrics["ndcg@3"]
    assert popular < 0.2
    assert whole.position.best > 0.8
    report = evaluate(DotScores(*whole.vectors()), valid, seen=train, ks=[3])
    assert report.metrics == whole.position.best_metrics

    stopped = Trainer(config(loss), train, valid, folder=tmp_path, callbacks=[StopAt(4 * 11 + 3)])
    with pytest.raises(InterruptedRunError, match="stopped in epoch 5 after step 3 of 11; saved"):
        stopped.fit()
    assert checkpoint_names(tmp_path)[-1] == "00000004-00000003"
    resumed = Trainer(config(loss), train, valid, folder=tmp_path)
    assert resumed.resume()
    resumed.fit()
    assert state(resumed) == state(whole)
    assert resumed.position == whole.position


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("negatives", ["all", "shared:16", "8"])
def test_gradients_are_those_of_torch(
    walks: tuple[Interactions, Interactions], monkeypatch: pytest.MonkeyPatch, loss: str, negatives: str
) -> None:
    """Of the whole network, whose items are read and scored."""
    values = {"negatives": negatives, "training.arithmetic": "float32"}
    if negatives != "all" and loss in ("talos", "sl@k", "aatp"):
        values |= {"threshold.name": "fixed", "threshold.value": 0.1}
    found = []
    for kernel in ("auto", "torch"):
        monkeypatch.setenv("TALOS_KERNEL", kernel)
        trainer = Trainer(config(loss, **values), walks[0])
        batch = trainer.batches.batch(trainer.batches.order(torch.Generator().manual_seed(3)), 1)
        trainer.objective(batch, torch.Generator().manual_seed(4)).backward()
        found.append([parameter.grad for parameter in trainer.objective.backbone.parameters()])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("negatives", ["shared:16", "8"])
@pytest.mark.parametrize("threshold", ["exact", "regression", "running", "monte-carlo", "fixed"])
def test_every_source_of_negatives_and_threshold_learns(
    walks: tuple[Interactions, Interactions], negatives: str, threshold: str
) -> None:
    values = {"negatives": negatives, "threshold.name": threshold, "training.epochs": 30}
    trainer = Trainer(config(**values), *walks)
    trainer.fit()
    assert trainer.position.best > 0.6


def test_the_plan_counts_positions(walks: tuple[Interactions, Interactions]) -> None:
    train, _ = walks
    plan = plan_for(config(**{"training.batch_size": "auto"}), train)
    trainer = Trainer(plan.config, train)
    assert sum(len(trainer.batches.batch(trainer.batches.order(torch.Generator()), step).users)
               for step in range(len(trainer.batches))) == len(train) - 60  # fmt: skip
    assert plan.steps_per_epoch == len(trainer.batches)
    assert "batches of 32 positions" in plan.notes
    assert plan.config.training.init == "random"


def test_without_times_or_histories_it_is_refused(walks: tuple[Interactions, Interactions]) -> None:
    without = Interactions.from_ids([1, 1, 2, 2], [7, 8, 8, 9])
    with pytest.raises(DataError, match="interactions without times; expected timestamps, for a backbone"):
        Trainer(config(k=1), without)
    single = Interactions.from_ids([1, 2, 3], [7, 8, 9], timestamps=[1, 2, 3])
    with pytest.raises(ConfigError, match="train: no user with two interactions"):
        Trainer(config(k=1), single)


def test_padding_is_left_out(gru: type[Backbone], walks: tuple[Interactions, Interactions]) -> None:
    """A user's vector is that of a network that is given the items without any padding."""
    trainer = Trainer(config(), walks[0])
    backbone, train = trainer.objective.backbone, walks[0]
    users, _ = trainer.vectors()
    assert train.timestamps is not None
    for user in (0, 7, 31):
        own = slice(train.indptr[user], train.indptr[user + 1])
        items = train.indices[own][np.argsort(train.timestamps[own])][-HISTORY:]
        hidden = torch.zeros(1, 16)
        for item in items:
            hidden = backbone.cell(backbone.table[int(item)].unsqueeze(0), hidden)
        torch.testing.assert_close(users[user], torch.nn.functional.normalize(hidden)[0].detach())


# ---------------------------------------------------------------- a recommender


def test_a_recommender_fits_evaluates_and_saves_it(
    gru: type[Backbone], walks: tuple[Interactions, Interactions], tmp_path: Path
) -> None:
    train, valid = walks
    options = {"dim": 16, "tau": 0.1, "lr": 0.01, "epochs": 20, "batch_size": 32}
    model = Recommender(k=3, backbone=gru, **options).fit(train, run=tmp_path / "run")
    assert model.config.backbone.name == "gru_backbone:GRU"
    figures = model.evaluate(valid, k=[3]).metrics
    assert figures["ndcg@3"] > 0.8
    assert figures["ndcg@3"] > 4 * popularity_report(train, valid, seen=train, ks=[3]).metrics["ndcg@3"]
    model.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.config.backbone == model.config.backbone
    for part in ("users", "items", "thresholds"):
        ours, theirs = (getattr(one.fitted_model().vectors, part) for one in (loaded, model))
        assert torch.equal(ours, theirs)
    users = [0, 7, 31]
    assert loaded.recommend(users, k=3).equals(model.recommend(users, k=3))
    named = Recommender(k=3, backbone="gru_backbone:GRU", **options).fit(train)
    assert torch.equal(named.fitted_model().vectors.users, model.fitted_model().vectors.users)


def test_histories_are_encoded_in_their_order(
    gru: type[Backbone], walks: tuple[Interactions, Interactions], tmp_path: Path
) -> None:
    """Walks go up, so the item after the latest one is best; a saved run and an unsaved one agree."""
    options = {"dim": 16, "tau": 0.1, "lr": 0.01, "epochs": 20, "batch_size": 32}
    model = Recommender(k=3, backbone=gru, **options).fit(walks[0])
    for history, best in (([3, 4, 5], 6), ([5, 4, 3], 4), ([3, 4, 5, 25, 26, 27], 28)):
        found = model.recommend(history=history, k=1, filter_seen=False)
        assert found["item_id"].to_list() == [best], history
    several = Interactions.from_ids(["up", "up", "down", "down"], [8, 9, 9, 8], timestamps=[1, 2, 1, 2])
    lists = model.recommend(history=several, k=1, filter_seen=False)
    assert dict(lists.select("user_id", "item_id").rows()) == {"up": 10, "down": 9}
    model.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    ours, theirs = (one.recommend(history=[3, 4, 5], k=3) for one in (model, loaded))
    assert_frame_equal(ours, theirs)  # a mapped file may change the last digits of scores
    (tmp_path / "run" / "backbone.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"backbone\.safetensors: differs from its checksum"):
        Recommender.load(tmp_path / "run")
    Recommender(k=3, dim=4, epochs=1).fit(walks[0]).save(tmp_path / "run")  # folds in
    assert not (tmp_path / "run" / "backbone.safetensors").exists()


def test_a_race_and_a_refit_of_it(gru: type[Backbone], walks: tuple[Interactions, Interactions]) -> None:
    """Candidates branch off a network as they do off tables."""
    train, valid = walks
    model = Recommender(k=3, backbone=gru, dim=16, lr=0.01, epochs=40, metric="ndcg", batch_size=32)
    model.fit(train, valid)
    metadata = model.fitted_model().metadata
    assert metadata["race"]["chosen"]["loss.tau"] == model.config.loss.options["tau"]
    assert metadata["valid"]["ndcg@3"] > 0.8
    model.refit()
    assert model.fitted_model().metadata["trained_on"] == {"train": len(train), "valid": len(valid)}


# -------------------------------------------------------------------- the rows


def events(users: int = 13, items: int = 20, seed: int = 2) -> Interactions:
    """Users with none to many events, whose order in time is not that of the items; some times are equal."""
    rng = np.random.default_rng(seed)
    has = rng.random((users, items)) < np.linspace(0.05, 0.9, users)[:, None]
    has[3], has[5] = False, np.arange(items) == 4  # nothing, and a single event
    rows, columns = has.nonzero()
    data = Interactions.from_ids(
        [*rows, 3], [*columns, 0], timestamps=[*rng.integers(0, 40, len(rows)) * 86_400, 0]
    )
    return data.where(data.rows != 3)


def naive_rows(data: Interactions, weights: Any, exponent: float) -> list[tuple[int, list[int], int, float]]:
    """(user, history, positive, weight before division) of every position, users in order and then by time."""
    found = []
    for user in range(data.num_users):
        edges = range(data.indptr[user], data.indptr[user + 1])
        by_time = sorted(edges, key=lambda edge: (data.timestamps[edge], data.indices[edge]))
        mass = sum(weights[edge] for edge in by_time[1:])
        for number in range(1, len(by_time)):
            before = [int(data.indices[edge]) for edge in by_time[:number]][-HISTORY:]
            padded = [-1] * (HISTORY - len(before)) + before
            edge = by_time[number]
            found.append((user, padded, int(data.indices[edge]), weights[edge] * mass ** (exponent - 1)))
    return found


@pytest.mark.parametrize("half_life", [None, "9d"])
@pytest.mark.parametrize("exponent", [1.0, 0.5, 0.0, -0.5])
def test_positions_against_a_loop(half_life: str | None, exponent: float) -> None:
    data = events()
    weights = event_weights(data, EventsConfig(half_life=half_life))
    assert (weights is None) == (half_life is None)
    index = TrainIndex.from_interactions(data, weights=weights)
    rows = PositionRows(index, data, HISTORY, exponent=exponent)
    expected = naive_rows(data, np.ones(len(data)) if weights is None else weights.astype(float), exponent)
    assert len(rows.population) == len(expected)  # all but the first ones
    whole = rows.batch(rows.population, 1.0)
    assert whole.history is not None
    assert whole.users.tolist() == [user for user, *_ in expected]
    assert whole.history.tolist() == [history for _, history, *_ in expected]
    assert whole.positives.items.tolist() == [item for *_, item, _ in expected]
    assert whole.positives.counts.tolist() == [1] * len(expected)
    assert whole.weights.tolist() == pytest.approx([weight for *_, weight in expected])
    assert not whole.distinct

    batches, seen = Batches(rows, 16), []
    order = batches.order(torch.Generator().manual_seed(0))
    for step in range(len(batches)):
        batch = batches.batch(order, step)
        assert batch.history is not None
        of_average = (
            batch.weights * len(batch.users)
        ).tolist()  # each weight against the mean over all positions
        columns = batch.users, batch.history, batch.positives.items
        seen += zip(*(column.tolist() for column in columns), of_average, strict=True)
    mean = sum(weight for *_, weight in expected) / len(expected)
    seen, wanted = sorted(seen), sorted(expected)
    assert [one[:3] for one in seen] == [one[:3] for one in wanted]
    assert [one[3] * mean for one in seen] == pytest.approx([one[3] for one in wanted])


def test_a_mean_over_users_counts_everybody_with_a_history_the_same() -> None:
    data = events()
    rows = PositionRows(TrainIndex.from_interactions(data), data, HISTORY, exponent=0.0)
    batch = rows.batch(rows.population, 1.0)
    totals = torch.zeros(data.num_users).index_add_(0, batch.users, batch.weights)
    assert totals.tolist() == pytest.approx((data.user_degrees > 1).astype(float).tolist())


def test_users_are_asked_for_after_their_last_event() -> None:
    data = events()
    rows = PositionRows(TrainIndex.from_interactions(data), data, HISTORY)
    everybody = rows.users(torch.arange(data.num_users))
    assert everybody.history is not None
    assert len(everybody.positives.items) == 0
    for user, history in enumerate(everybody.history.tolist()):
        edges = range(data.indptr[user], data.indptr[user + 1])
        by_time = sorted(edges, key=lambda edge: (data.timestamps[edge], data.indices[edge]))
        items = [int(data.indices[edge]) for edge in by_time][-HISTORY:]
        assert history == [-1] * (HISTORY - len(items)) + items


def test_positions_of_some_users_alone() -> None:
    data = events()
    rows = PositionRows(
        TrainIndex.from_interactions(data), data, HISTORY, only_users=torch.tensor([4, 9, 11])
    )
    assert set(rows.batch(rows.population, 1.0).users.tolist()) == {9, 11}  # user 4 has one event
