"""The loop itself: stopping, the best weights, determinism, resuming, divergence."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import ConfigError, DataError, TalosError
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores
from talos.studies.race import make_trainer
from talos.training import Callback, History, InterruptedRunError, Trainer
from talos.training import trainer as trainer_module
from talos.training.callbacks import read_history
from talos.training.checkpoint import load_best_weights


def config(**values: Any) -> RunConfig:
    base = {
        "k": 5,
        "backbone.dim": 8,
        "training.epochs": 6,
        "training.batch_size": 8,
        "training.evaluate_every": 2,
    }
    return RunConfig().with_values(base | values)


SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "shared, touched rows": {"negatives": "shared:16", "optimizer.rows": "touched"},
    "sampled": {"negatives": "16", "threshold.name": "regression", "training.batch_size": 64},
    "xsimgcl": {"backbone.name": "xsimgcl", "backbone.dim": 8},
    "llpauc": {"loss.name": "llpauc"},
    "advinfonce, all items": {
        "loss.name": "advinfonce", "loss.adv_every": 2, "loss.adv_epochs": 2, "negatives": "all",
    },
    "smoothi@k, all items": {"loss.name": "smoothi@k", "negatives": "all"},
    "llpauc of products": {"loss.name": "llpauc", "loss.scores": "dot"},
    "advinfonce": {
        "loss.name": "advinfonce", "loss.adv_every": 2, "loss.adv_epochs": 2, "negatives": "8",
        "training.batch_size": 64,
    },
}  # fmt: skip


class StopAt(Callback):
    """Sends the process a signal after some steps, as Ctrl-C would."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.left, self.number = step, number

    def on_step(self, epoch: int, step: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)


def validate_as(monkeypatch: pytest.MonkeyPatch, figures: list[float]) -> None:
    """Let validations give these figures, one after the other."""
    given = iter(figures)
    monkeypatch.setattr(
        "talos.training.trainer.evaluate",
        lambda *_, **__: SimpleNamespace(metrics={"precision@5": next(given)}),
    )


def vectors(trainer: Trainer) -> list[bytes]:
    return [table.numpy().tobytes() for table in trainer.vectors()]


@pytest.mark.parametrize("name", SETTINGS)
def test_same_seed_same_bytes_other_seed_other_bytes(planted: Split, name: str) -> None:
    def run(seed: int) -> list[bytes]:
        trainer = Trainer(config(**SETTINGS[name], seed=seed), planted.train, planted.valid)
        trainer.fit()
        return vectors(trainer)

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize(
    ("loss", "negatives", "batch_size"),
    [
        ({"name": "bpr"}, "1", 4096),
        ({"name": "talos"}, "8", 4096),
        (
            {"name": "talos", "form": "full"},
            "1",
            1 << 17,
        ),  # one score a positive: torch needs many for two threads
        ({"name": "advinfonce", "adv_every": 1}, "8", 4096),
    ],
)
def test_two_threads_give_the_same_bytes_with_sampled_negatives(
    random_data: Callable[..., Interactions], loss: dict[str, Any], negatives: str, batch_size: int
) -> None:
    data = random_data(2000, 40, 0.5)
    settings = RunConfig.from_dict(
        {"k": 5, "loss": loss, "negatives": negatives, "training": {"epochs": 2, "batch_size": batch_size}}
    )

    def run() -> list[bytes]:
        trainer = Trainer(settings, data)
        trainer.fit()
        return vectors(trainer)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = run()
        assert all(run() == first for _ in range(2))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("steps", [1, 9, 20])
def test_an_interrupted_run_ends_in_the_same_bytes(
    planted: Split, tmp_path: Path, name: str, steps: int
) -> None:
    settings = config(**SETTINGS[name])
    whole = Trainer(settings, planted.train, planted.valid)
    whole.fit()
    first = Trainer(settings, planted.train, planted.valid, folder=tmp_path, callbacks=[StopAt(steps)])
    with pytest.raises(InterruptedRunError, match="saved"):
        first.fit()
    second = Trainer(settings, planted.train, planted.valid, folder=tmp_path)
    assert second.resume()
    second.fit()
    assert vectors(second) == vectors(whole)
    assert second.position == whole.position
    if whole.objective.threshold is not None:
        everybody = torch.arange(planted.train.num_users)
        mine, theirs = (t.objective.threshold.value(everybody) for t in (whole, second))  # type: ignore[union-attr]
        assert torch.equal(mine, theirs)


def test_sigterm_is_handled_and_handlers_are_put_back(planted: Split, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = Trainer(config(), planted.train, folder=tmp_path, callbacks=[StopAt(3, signal.SIGTERM)])
    with pytest.raises(InterruptedRunError):
        trainer.fit()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_best_weights_are_restored(planted: Split, tmp_path: Path) -> None:
    """A rate that decays to nothing keeps the last epochs equal: the first of the equals is the best."""
    for folder in (None, tmp_path):
        trainer = Trainer(config(**{"training.epochs": 20}), planted.train, planted.valid, folder=folder)
        trainer.fit()
        assert planted.valid is not None
        report = evaluate(DotScores(*trainer.vectors()), planted.valid, seen=planted.train, ks=[5])
        assert report.metrics["precision@5"] == trainer.position.best
        assert trainer.position.best_metrics == report.metrics


@pytest.mark.parametrize(("averaging", "kept"), [(0.2, 4), (1.0, 2)])
def test_of_weights_that_are_as_good_the_latest_are_kept(
    planted: Split, monkeypatch: pytest.MonkeyPatch, averaging: float, kept: int
) -> None:
    """Where they are averaged; patience counts from the highest figure all the same."""
    values = {"training.epochs": 1000, "training.evaluate_every": 1, "training.patience": 4}
    settings = config(**values, **{"training.averaging": averaging})
    trainer = Trainer(settings, planted.train, planted.valid)
    validate_as(monkeypatch, [0.3, 0.4, 0.39, 0.399, 0.39, 0.39, 0.39])
    trainer.fit()
    assert (trainer.position.epoch, trainer.position.best_epoch) == (6, kept)
    until_then = Trainer(settings, planted.train)
    until_then.train_until(kept)
    with until_then.average.applied():
        assert all(map(torch.equal, trainer.vectors(), until_then.vectors()))


@pytest.mark.parametrize(("epochs", "weights"), [(19, [2, 6, 12]), (20, [1, 1, 1])])
def test_short_runs_count_their_first_epochs_less(planted: Split, epochs: int, weights: list[int]) -> None:
    trainer, seen = Trainer(config(**{"training.epochs": epochs}), planted.train), []
    for epoch in (1, 2, 3):
        trainer.train_until(epoch)
        seen.append(trainer.objective.backbone.user_table.detach().clone())
    expected = sum(weight * table for weight, table in zip(weights, seen, strict=True)) / sum(weights)
    with trainer.average.applied():
        torch.testing.assert_close(trainer.objective.backbone.user_table.detach(), expected)


def test_it_stops_when_validation_stops_improving(planted: Split) -> None:
    values = {"training.epochs": 1000, "training.evaluate_every": 1, "training.patience": 3}
    trainer = Trainer(config(**values), planted.train, planted.valid)
    trainer.fit()
    assert trainer.position.epoch < 1000
    assert trainer.position.epoch == trainer.position.peak_epoch + 3


@pytest.mark.parametrize(("gain", "last"), [(0.0, 8), (0.01, 5)])
def test_what_gains_little_does_not_prolong_training(
    planted: Split, monkeypatch: pytest.MonkeyPatch, gain: float, last: int
) -> None:
    """It is kept all the same, and what is as good is measured by the highest figure."""
    figures = [0.3, 0.4, 0.401, 0.402, 0.403, 0.35, 0.35, 0.35]
    values = {"training.epochs": 1000, "training.evaluate_every": 1, "training.patience": 3}
    for averaging in (1.0, 0.2):
        settings = config(**values, **{"training.min_gain": gain, "training.averaging": averaging})
        trainer = Trainer(settings, planted.train, planted.valid)
        validate_as(monkeypatch, figures)
        trainer.fit()
        assert (trainer.position.epoch, trainer.position.best_epoch) == (last, 5)


def test_what_is_as_good_is_so_by_the_highest_figure(planted: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the one that patience counts from, which may be lower."""
    values = {"training.epochs": 1000, "training.evaluate_every": 1, "training.patience": 3}
    trainer = Trainer(config(**values, **{"training.min_gain": 0.01}), planted.train, planted.valid)
    validate_as(monkeypatch, [0.4, 0.4039, 0.3981, 0.3, 0.3])
    trainer.fit()
    assert (trainer.position.epoch, trainer.position.best_epoch) == (4, 2)


def test_without_validation_all_epochs_run(planted: Split) -> None:
    trainer = Trainer(config(), planted.train)
    trainer.fit()
    assert (trainer.position.epoch, trainer.position.best_epoch) == (6, 0)


def test_history_has_one_line_an_epoch_also_over_a_resume(planted: Split, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    settings = config()
    first = Trainer(
        settings, planted.train, planted.valid, folder=tmp_path / "c", callbacks=[History(path), StopAt(20)]
    )
    with pytest.raises(InterruptedRunError):
        first.fit()
    with path.open("a") as file:
        file.write('{"epoch": 4, "lo')  # the power went off
    second = Trainer(settings, planted.train, planted.valid, folder=tmp_path / "c", callbacks=[History(path)])
    second.resume()
    second.fit()
    records = read_history(path)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [bool(record["metrics"]) for record in records] == [False, True] * 3
    assert json.dumps(records)


def test_divergence_is_a_clear_message_and_keeps_the_best(planted: Split, tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    class Explode(Callback):
        """Lets the rate explode when the second epoch is done and was validated."""

        def on_epoch(self, record: dict[str, Any]) -> None:
            if record["epoch"] == 2:
                kept.extend(vectors.clone() for vectors in trainer.vectors())
                for optimizer in trainer.optimizers.model:
                    for group in optimizer.param_groups:
                        group["initial_lr"] = 1e30

    values = {"loss.name": "bpr", "training.epochs": 50, "training.averaging": 1.0}
    trainer = Trainer(config(**values), planted.train, planted.valid, folder=tmp_path, callbacks=[Explode()])
    message = r"epoch \d+.*learning rate \(.*\) that is too high.*; the best weights, of epoch 2, are kept"
    with pytest.raises(TalosError, match=message):
        trainer.fit()
    best = Trainer(config(**values), planted.train, planted.valid)
    assert trainer.checkpoints is not None
    load_best_weights(best.objective, trainer.checkpoints.load_best(2))
    for one, other in zip(kept, best.vectors(), strict=True):
        assert torch.equal(one, other)


def test_other_data_or_settings_cannot_be_resumed(planted: Split, tmp_path: Path) -> None:
    Trainer(config(), planted.train, planted.valid, folder=tmp_path).fit()
    with pytest.raises(ConfigError, match="loss differ"):
        Trainer(config(**{"loss.tau": 0.3}), planted.train, planted.valid, folder=tmp_path).resume()
    with pytest.raises(DataError, match="the data differ"):
        Trainer(config(), planted.train, None, folder=tmp_path).resume()


@pytest.mark.parametrize("arithmetic", ["bfloat16", "float32"])
def test_a_run_goes_on_where_the_arithmetic_is_another(
    planted: Split, tmp_path: Path, arithmetic: str
) -> None:
    """As on another processor, or from a checkpoint of before there was a choice."""
    settings = {"training.arithmetic": "float32", "training.epochs": 8}
    first = Trainer(config(**settings), planted.train, planted.valid, folder=tmp_path, callbacks=[StopAt(9)])
    with pytest.raises(InterruptedRunError):
        first.fit()
    settings["training.arithmetic"] = arithmetic
    second = Trainer(config(**settings), planted.train, planted.valid, folder=tmp_path)
    assert second.resume()
    second.fit()
    assert second.position.epoch == 8


def test_a_finished_run_resumes_to_itself(planted: Split, tmp_path: Path) -> None:
    first = Trainer(config(), planted.train, planted.valid, folder=tmp_path)
    first.fit()
    again = Trainer(config(), planted.train, planted.valid, folder=tmp_path)
    assert again.resume()
    again.fit()
    assert vectors(again) == vectors(first)


def test_a_resumed_run_does_not_compute_its_start_again(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(**{"training.init": "als", "training.checkpoint_every": 1, "training.effort": "quick"})
    whole, _ = make_trainer(settings, planted.train)
    whole.fit()
    first, _ = make_trainer(settings, planted.train, folder=tmp_path)
    first.train_until(1)
    monkeypatch.setattr("talos.training.warm_start.alternating_least_squares", None)  # would fail
    again, _ = make_trainer(settings, planted.train, folder=tmp_path, resume=True)
    again.fit()
    assert vectors(again) == vectors(whole)


def test_nothing_to_resume(planted: Split, tmp_path: Path) -> None:
    assert not Trainer(config(), planted.train, folder=tmp_path / "none").resume()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"k": 36}, "k: 36; expected at most 35"),
        ({"loss.name": "talso"}, "did you mean 'talos'"),
        ({"loss.tua": 1}, "did you mean 'tau'"),
        ({"backbone.name": "mff"}, "did you mean 'mf'"),
        ({"backbone.dmi": 1}, "dim"),
        ({"threshold.name": "exakt"}, "did you mean 'exact'"),
        ({"negatives": "many"}, "negatives: 'many'"),
        ({"device": "quantum"}, "device: 'quantum' cannot be used"),
    ],
)
def test_bad_settings(planted: Split, values: dict[str, Any], message: str) -> None:
    with pytest.raises(TalosError, match=message):
        Trainer(config(**values), planted.train)


def test_exact_thresholds_are_those_of_the_final_vectors_and_there_are_none_without(planted: Split) -> None:
    for arithmetic in ("float32", "bfloat16"):
        exact = Trainer(config(**{"training.arithmetic": arithmetic}), planted.train, planted.valid)
        exact.fit()
        error = exact.threshold_error()
        assert error is not None
        assert error < 1e-6
    assert Trainer(config(**{"loss.name": "sl"}), planted.train).threshold_error() is None


def test_threshold_error_of_many_scores_is_that_of_some_users(
    planted: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a million users and items, in a run that never takes all of them, would end with all their scores."""
    trainer = Trainer(config(), planted.train)
    trainer.train_until(1)
    asked: list[int] = []
    kth_scores = trainer_module.kth_scores

    def counted(users: torch.Tensor, items: torch.Tensor, k: int) -> torch.Tensor:
        asked.append(len(users))
        return kth_scores(users, items, k)

    monkeypatch.setattr(trainer_module, "kth_scores", counted)
    whole = trainer.threshold_error()
    monkeypatch.setattr(trainer_module, "EXACT_LIMIT", planted.train.num_users * planted.train.num_items // 4)
    some = trainer.threshold_error()
    assert asked == [planted.train.num_users, -(-planted.train.num_users // 4)]
    assert some == pytest.approx(whole, abs=0.1)


def test_no_tensor_of_users_times_items(random_data: Callable[..., Interactions]) -> None:
    """Nothing made in a step has as many elements as users × items."""
    from torch.utils._python_dispatch import TorchDispatchMode

    data = random_data(users=900, items=700, density=0.01)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple | list) else (result,):
                if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                    largest = max(largest, value.numel())
            return result

    for negatives in ("all", "shared:64"):
        values = {"negatives": negatives, "training.epochs": 1, "training.batch_size": 64}
        trainer = Trainer(config(**values), data)
        with Watch():
            trainer.fit()
        assert largest < 900 * 700 / 2


def test_an_earlier_loss_weighs_users_by_its_own_power(planted: Split) -> None:
    """A refit follows the losses of its race, whose `user_power` may differ from that of the last one."""
    config = RunConfig.from_dict({"k": 5, "backbone": {"name": "mf", "dim": 8}, "training": {"epochs": 2}})
    last, first = (config.with_values({"loss.tau": 0.1, "loss.user_power": power}) for power in (1.0, 0.0))
    path = [{"until": 1, "loss": first.loss.model_dump()}]
    vectors = []
    for trainer in (Trainer(last, planted.train, earlier=path), Trainer(first, planted.train)):
        trainer.train_until(1)
        vectors.append(trainer.vectors())
    for one, other in zip(*vectors, strict=True):
        assert torch.equal(one, other)
