"""The race: what is raced, who wins, and that an interrupted one continues to the same bytes."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.splits import Split
from talos.errors import DataError, TalosError
from talos.files import read_sealed, write_sealed
from talos.model.recommender import Recommender
from talos.studies import race as race_module
from talos.studies.race import FIRST_LEGS, LATER_LEGS, SETTLED, make_trainer, stages_of
from talos.training import Callback, InterruptedRunError, Trainer
from talos.training.callbacks import read_history


def config(**values: Any) -> RunConfig:
    base = {"k": 5, "backbone.dim": 8, "training.epochs": 40, "training.batch_size": 16}
    return RunConfig().with_values(base | values)


class Legs(Callback):
    """Keeps the records of a race, and raises an error after some of them, as a kill would."""

    def __init__(self, last: int = 10**6) -> None:
        self.records: list[dict[str, Any]] = []
        self.last = last

    def on_race(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if len(self.records) == self.last:
            raise KeyboardInterrupt


def same(value: float) -> dict[str, float]:
    """Metrics of a leg that agree."""
    return {"precision@5": value, "ndcg@5": value}


def tables(trainer: Trainer) -> list[bytes]:
    return [part.numpy().tobytes() for part in trainer.vectors()]


def test_what_is_raced() -> None:
    tau, balance = stages_of(config())
    assert [change["loss.tau"] for change in tau] == sorted(change["loss.tau"] for change in tau)
    others = [{"loss.positive_power": 0.2}, {"loss.negative_weight": 1.1}, {"loss.user_power": 1.0}]
    assert balance == [others[0], {}, *others[1:]]
    assert stages_of(config(**{"loss.tau": 0.1})) == []
    assert stages_of(config(**{"training.effort": "quick"})) == []
    assert stages_of(config(**{"training.epochs": 5})) == []
    assert stages_of(config(**{"loss.name": "aatp"})) == []
    given = stages_of(config(**{"loss.positive_power": 0.2}))
    assert given[1:] == [[{}, *others[1:]]]
    high = stages_of(config(**{"training.effort": "high"}))
    assert {"loss.name": "sl", "loss.tau": 0.13} in high[0]
    assert {"loss.negative_weight": 1.25} in high[2]
    assert {"loss.user_power": 0.25} in high[3]


def test_weights_of_events_are_raced_where_validation_is_later(tmp_path: Path) -> None:
    """Two tastes, one long ago: validation is about the newer one, so a half-life wins; run and refit have it too."""
    users, items, days = [], [], []
    for user in range(40):
        for item in range(8):
            users.append(user)
            items.append((3 * user + item) % 8 + 10 * (user % 2))
            days.append(0 if item < 7 else 360)
        for item in range(3):
            users.append(user)
            items.append((user // 2 + item) % 10 + 10 * (1 - user % 2))
            days.append(361 + item)
    data = Interactions.from_ids(users, items, timestamps=[86_400 * day for day in days])
    last = data.timestamps == 363 * 86_400
    train, valid = data.where(~last), data.where(last)
    settings = config(
        **{"training.effort": "high", "loss.positive_power": 0.0, "training.epochs": 60, "k": 3}
    )
    stages = stages_of(settings, [{"half_life": "9d"}])
    assert stages[-1] == [{}, {"events.half_life": "9d"}]
    assert stages_of(settings) == stages[:-1]
    model = Recommender(config=settings)
    model.fit(train, valid, run=tmp_path)
    tried = {leg["candidate"] for leg in model.fitted_model().metadata["race"]["legs"]}
    assert {"half_life-90.5d", "half_life-45.2d"} <= tried
    assert model.config.events.half_life is not None
    assert model.fitted_model().train.timestamps is not None  # for whoever updates the run
    model.save(tmp_path)
    again = Recommender.load(tmp_path)
    assert again.config.events == model.config.events
    model.refit()
    assert model.config.events == again.config.events


def test_the_best_half_goes_on_and_the_winner_without_starting_again(
    planted: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_module, "OVERFITTING", 0.0)  # so small a set is soon learnt by heart
    monkeypatch.setattr(race_module, "CLEARLY", 1.0)
    monkeypatch.setattr(race_module, "_further", lambda before, after: [])
    legs = Legs()
    trainer, race = make_trainer(config(), planted.train, planted.valid, callbacks=[legs])
    settled = [record["epoch"] for record in legs.records if record["stage"] == 0][-1]
    assert trainer.position.epoch == settled + 2 * sum(LATER_LEGS)
    by_leg: dict[tuple[int, int], dict[str, float]] = {}
    for record in legs.records:
        place = by_leg.setdefault((record["stage"], record["epoch"]), {})
        place[record["candidate"]] = record["metrics"]["precision@5"]
    sizes = [len(scores) for scores in by_leg.values()]
    assert sizes == [5, 3, *[1] * (len(sizes) - 6), 4, 2, 3, 2]
    ordered = list(by_leg.values())
    dropped = [score for name, score in ordered[0].items() if name not in ordered[1]]
    assert max(dropped) <= min(ordered[0][name] for name in ordered[1])
    won = max(ordered[1], key=lambda name: ordered[1][name])
    assert set(ordered[2]) == {won}
    alone = [score for scores in ordered[2:-4] for score in scores.values()]
    assert alone[-1] < SETTLED * alone[-2]  # it trained on until a validation brought little new
    assert all(after >= SETTLED * before for before, after in itertools.pairwise(alone[:-1]))
    # the second look is about the values halfway to the neighbours of the first winner
    tau, raced = float(won.split("-")[1]), [one["loss.tau"] for one in stages_of(config())[0]]
    beyond = [raced[0] ** 2 / raced[1], *raced, raced[-1] ** 2 / raced[-2]]
    near = [math.sqrt(tau * beyond[raced.index(tau) + side]) for side in (0, 2)]
    looked = {name: float(name.removeprefix("tau-")) for name in ordered[-2] if name != "unchanged"}
    assert list(looked.values()) == [pytest.approx(value, rel=5e-3) for value in near]
    last = max(ordered[-1], key=lambda name: ordered[-1][name])
    assert race.chosen["loss.tau"] == looked.get(last, tau)
    assert trainer.config.loss.options["tau"] == race.chosen["loss.tau"]
    assert list(race.legs) == legs.records


@pytest.mark.parametrize(("best", "chosen"), [(0.03, 0.0311), (0.065, 0.065), (0.3, 0.286)])
def test_what_wins_clearly_goes_on_in_its_direction(
    planted: Split, monkeypatch: pytest.MonkeyPatch, best: float, chosen: float
) -> None:
    """Up to the temperature that validation likes, not beyond; of ρ, λ and p, which make no difference, the first."""
    seen: dict[int, list[float]] = {}

    def leg(self: Any, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        runner.position.epoch = epoch
        tau = runner.config.loss.options["tau"]
        seen.setdefault(stage, []).append(tau)
        return same(1 - 0.1 * abs(math.log(tau / best)))

    monkeypatch.setattr(race_module._Race, "_leg", leg)
    trainer, race = make_trainer(config(**{"training.epochs": 200}), planted.train, planted.valid)
    assert race.chosen["loss.tau"] == chosen
    assert trainer.config.loss.options == {"tau": chosen, "user_power": 0.5, "positive_power": 0.2}
    if best != 0.065:  # a step too far was tried, and not taken
        assert abs(math.log(seen[max(seen)][1] / best)) > abs(math.log(chosen / best))


@pytest.mark.parametrize(("better", "won"), [(1.002, {"positive_power": 0.2}), (1.004, {"user_power": 1.0})])
def test_a_hair_does_not_decide(
    planted: Split, monkeypatch: pytest.MonkeyPatch, better: float, won: dict[str, float]
) -> None:
    """A candidate must be .3 % better than one that the loss names before it."""

    def leg(self: Any, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        runner.position.epoch = epoch
        return same({"user_power-1": 0.5 * better, "positive_power-0.2": 0.5}.get(label, 0.499))

    monkeypatch.setattr(race_module._Race, "_leg", leg)
    _, race = make_trainer(config(), planted.train, planted.valid)
    chosen = {name.removeprefix("loss."): value for name, value in race.chosen.items()}
    assert {name: value for name, value in chosen.items() if (name, value) in won.items()} == won
    assert ("positive_power" in chosen) == ("positive_power" in won)


@pytest.mark.parametrize(
    ("ndcg", "chosen"),
    [({}, 0.095), ({"tau-0.14-user_power-0.5": 0.9}, 0.14)],
    ids=["a tie goes to the formula", "NDCG decides first"],
)
def test_where_precision_is_saturated(
    planted: Split, monkeypatch: pytest.MonkeyPatch, ndcg: dict[str, float], chosen: float
) -> None:
    """Every candidate has the best possible precision: the smallest τ is not the best for that."""

    def leg(self: Any, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        runner.position.epoch = epoch
        return {"precision@5": 0.2, "ndcg@5": ndcg.get(label, 0.8)}

    monkeypatch.setattr(race_module._Race, "_leg", leg)
    _, race = make_trainer(config(), planted.train, planted.valid)
    assert race.chosen["loss.tau"] == chosen


def test_a_race_ends_where_the_model_overfits(planted: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner of the second stage is below what was there before it: no second look, and the best weights stay."""

    def leg(self: Any, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        runner.train_until(epoch)
        legs.append((stage, label))
        behind = 0.001 if label == "positive_power-0.2" else 0.002 * (label != "unchanged")
        return same(0.5 - 0.02 * stage - behind)

    legs: list[tuple[int, str]] = []
    monkeypatch.setattr(race_module._Race, "_leg", leg)
    trainer, _ = make_trainer(config(), planted.train, planted.valid)
    assert {stage for stage, _ in legs} == {0, 1}
    leader = {label for stage, label in legs if stage == 0}
    assert len(leader) == 5
    assert trainer.position.best_epoch > 0
    assert trainer.position.peak >= trainer.position.best > 0


def test_the_same_settings_keep_their_best_weights(planted: Split, tmp_path: Path) -> None:
    """A branch with another loss begins its early stopping anew; one with the same loss goes on with it."""
    settings = config(**{"loss.tau": 0.1, "training.evaluate_every": 2})
    for folder in (None, tmp_path):
        trainer = Trainer(settings, planted.train, planted.valid, folder=folder and folder / "a")
        trainer.train_until(6)
        same = trainer.branch(settings, folder and folder / "b")
        other = trainer.branch(settings.with_values({"loss.tau": 0.2}), folder and folder / "c")
        assert (same.position.peak, same.position.best_epoch) == (
            trainer.position.peak,
            trainer.position.best_epoch,
        )
        assert (other.position.peak, other.position.best_epoch) == (-math.inf, 0)
        for one in (trainer, same):
            one._restore_best()
        assert tables(same) == tables(trainer)


def test_a_candidate_trains_as_it_would_alone(planted: Split) -> None:
    """Up to its first validation a candidate is a run with its settings given: nothing of the others reaches it."""
    settings = config(**{"training.evaluate_every": 100})
    legs = Legs(last=3)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(settings, planted.train, planted.valid, callbacks=[legs])
    third = legs.records[2]
    tau = float(third["candidate"].split("-")[1])
    alone = Trainer(
        settings.with_values({"loss.tau": tau, "loss.user_power": 0.5}), planted.train, planted.valid
    )
    alone.train_until(FIRST_LEGS[0])
    assert alone.position.last_metrics == third["metrics"]


@pytest.mark.parametrize("last", [1, 6, 8, 10])
def test_an_interrupted_race_continues_to_the_same_bytes(planted: Split, tmp_path: Path, last: int) -> None:
    whole, expected = make_trainer(config(), planted.train, planted.valid)
    whole.fit()
    with pytest.raises(KeyboardInterrupt):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path, callbacks=[Legs(last)])
    rest = Legs()
    trainer, race = make_trainer(
        config(), planted.train, planted.valid, folder=tmp_path, callbacks=[rest], resume=True
    )
    assert race == expected
    assert len(rest.records) == len(expected.legs) - last  # nothing is raced twice
    trainer.fit()
    assert tables(trainer) == tables(whole)
    again, _ = make_trainer(config(), planted.train, planted.valid, folder=tmp_path, resume=True)
    again.fit()
    assert tables(again) == tables(whole)


@pytest.mark.parametrize("passes", [3, 14, 20, 30])
def test_a_race_that_is_killed_within_a_leg(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    whole, expected = make_trainer(config(), planted.train, planted.valid)
    run_pass, left = Trainer._run_pass, [passes]

    def killed(self: Trainer, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise SystemExit
        run_pass(self, *arguments)

    monkeypatch.setattr(Trainer, "_run_pass", killed)
    with pytest.raises(SystemExit):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path)
    monkeypatch.setattr(Trainer, "_run_pass", run_pass)
    trainer, race = make_trainer(config(), planted.train, planted.valid, folder=tmp_path, resume=True)
    assert race == expected
    assert tables(trainer) == tables(whole)


@pytest.mark.parametrize("saves", [1, 2, 6, 9])
def test_ctrl_c_while_a_leg_is_saved_stops_the_race(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """It comes too late for that leg, whose candidate may be dropped: the race must not go on without it."""
    whole, expected = make_trainer(config(), planted.train, planted.valid)
    save, left = Trainer.save, [saves]

    def interrupted(self: Trainer, *arguments: Any) -> None:
        save(self, *arguments)
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "save", interrupted)
    with pytest.raises(InterruptedRunError, match="stopped after epoch"):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path)
    monkeypatch.setattr(Trainer, "save", save)
    trainer, race = make_trainer(config(), planted.train, planted.valid, folder=tmp_path, resume=True)
    assert race == expected
    assert tables(trainer) == tables(whole)


def test_a_race_of_another_config_is_refused(planted: Split, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path, callbacks=[Legs(2)])
    with pytest.raises(DataError, match="another config"):
        make_trainer(config(k=4), planted.train, planted.valid, folder=tmp_path, resume=True)


def test_a_run_that_raced_is_not_continued_by_one_that_does_not(planted: Split, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path, callbacks=[Legs(2)])
    fixed = config(**{"loss.tau": 0.1})
    for without_race in ((fixed, planted.train, planted.valid), (config(), planted.train, None)):
        with pytest.raises(DataError, match=r"race\.json: is of a run that raced its settings"):
            make_trainer(*without_race, folder=tmp_path, resume=True)
    make_trainer(fixed, planted.train, planted.valid, folder=tmp_path)  # a new run, not a continued one


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"legs": [{"stage": 0}]}, "is damaged"),
        ({"chosen": None}, "is damaged"),
        ({"path": [{"loss": {}}]}, "path is damaged"),
        ({"path": [{"until": 2, "loss": {"name": "not_asked_for:Loss"}}]}, "'not_asked_for' is not imported"),
        ({"chosen": {"loss.name": "not_asked_for:Loss"}}, "'not_asked_for' is not imported"),
    ],
)
def test_a_forged_race_is_refused(planted: Split, tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path, callbacks=[Legs(1)])
    file = tmp_path / "race.json"
    write_sealed(file, {**read_sealed(file, hint=""), **changes})
    with pytest.raises(TalosError, match=said):
        make_trainer(config(), planted.train, planted.valid, folder=tmp_path, resume=True)


def test_a_run_tells_what_was_tried(planted: Split, tmp_path: Path) -> None:
    model = Recommender(config=config()).fit(planted.train, planted.valid, run=tmp_path / "run")
    model.save(tmp_path / "run")
    race = json.loads((tmp_path / "run" / "model.json").read_text())["race"]
    assert race["chosen"]["loss.tau"] == model.config.loss.options["tau"]
    history = tmp_path / "run" / "history.jsonl"
    legs = [line for line in read_history(history, races=True) if "race" in line]
    assert len(legs) == len(race["legs"]) > 10
    assert all("race" not in line for line in read_history(history))
    assert not (tmp_path / "run" / "race").exists()


def test_a_refit_follows_the_path_of_the_winner(planted: Split) -> None:
    """The same losses for the same epochs, on the same data, give the winner's own vectors to the bit."""
    settings = config(**{"loss.user_power": 1.0})
    winner, race = make_trainer(settings, planted.train, planted.valid)
    # whoever won: a path with a change on the way
    path = [{"until": 3, "loss": {"name": "sl", "tau": 0.3}}, *race.path]
    again = Trainer(winner.config, planted.train, earlier=race.path)
    again.train_until(winner.position.epoch)
    assert tables(again) == tables(winner)
    other = Trainer(winner.config, planted.train, earlier=path)
    other.train_until(winner.position.epoch)
    assert tables(other) != tables(winner)


def test_refit_after_a_race(planted: Split) -> None:
    model = Recommender(config=config()).fit(planted.train, planted.valid)
    settled, epoch = model.config, model.fitted_model().metadata["epoch"]
    path = model.fitted_model().metadata["race"]["path"]
    model.refit()
    joined = planted.train.union(planted.valid)
    alone = Trainer(settled.with_values({"training.epochs": epoch}), joined, earlier=path)
    alone.fit()
    assert model.fitted_model().vectors.users.numpy().tobytes() == tables(alone)[0]
    assert model.fitted_model().metadata["chosen_from"]["race"]["path"] == path


def test_without_validation_there_is_no_race(planted: Split) -> None:
    trainer, race = make_trainer(config(), planted.train)
    assert not race.chosen
    assert trainer.config.loss.options["tau"] == 0.1


def test_high_effort_compares_losses_and_dimensions(planted: Split) -> None:
    settings = config(**{"training.effort": "high", "training.epochs": 100})
    plain = settings.with_values({"backbone": {"name": "mf"}})
    trainer, race = make_trainer(plain, planted.train, planted.valid)
    assert trainer.objective.backbone.dim == race.chosen["backbone.dim"]
    assert {leg["stage"] for leg in race.legs} >= {0, 1, 2, 3, 4}
    assert torch.isfinite(trainer.vectors()[0]).all()


def test_with_little_patience_later_stages_still_train(planted: Split) -> None:
    """The leader may stop early before the second stage; its branches begin their own early stopping."""
    settings = config(**{"training.patience": 2, "training.evaluate_every": 2})
    trainer, race = make_trainer(settings, planted.train, planted.valid)
    trainer.fit()
    assert {leg["stage"] for leg in race.legs} >= {0, 1}
    assert trainer.position.best_epoch > 0
    assert trainer.position.best_metrics["precision@5"] == trainer.position.best


def test_high_effort_goes_on_when_a_loss_without_these_options_wins(
    planted: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SL@K has no power mean over positives: that candidate is left out."""
    settings = config(**{"training.effort": "high", "training.epochs": 60, "backbone.dim": 8})
    original = race_module._Race._leg

    def leg(self: Any, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        metrics = original(self, stage, label, runner, epoch)
        return {name: value + label.startswith("sl-at-k") for name, value in metrics.items()}

    monkeypatch.setattr(race_module._Race, "_leg", leg)
    trainer, race = make_trainer(settings, planted.train, planted.valid)
    assert race.chosen["loss.name"] == trainer.config.loss.name == "sl@k"
    assert "positive_power-0.2" not in {leg["candidate"] for leg in race.legs}
    assert "negative_weight-1.1" in {leg["candidate"] for leg in race.legs}


def test_a_race_with_rows_that_are_touched(planted: Split, tmp_path: Path) -> None:
    """As on large data: candidates branch off before the optimizer has taken a step."""
    settings = config().with_values({"optimizer.rows": "touched", "negatives": "shared:16"})
    whole, expected = make_trainer(settings, planted.train, planted.valid)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(settings, planted.train, planted.valid, folder=tmp_path, callbacks=[Legs(3)])
    again, race = make_trainer(settings, planted.train, planted.valid, folder=tmp_path, resume=True)
    assert race == expected
    assert tables(again) == tables(whole)
