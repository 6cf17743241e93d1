"""A race between settings that the config leaves open: candidates train side by side, and the worse half is dropped.

The loss states which settings are worth racing (`Loss.race`), in stages, in the order in which they matter. The first
stage, about the temperature, starts from the common starting vectors. Every later stage branches off the state of the
winner so far, so no epoch is trained twice. After each leg the candidates are compared by the run's own validation
metric, and the better half goes on (successive halving: Jamieson & Talwalkar, AISTATS 2016). Among equal candidates, as
on a small catalogue where every list is right, the higher NDCG decides, then the distance from the loss's formula. A
race never sees test data.

    effort = "quick"     no race: open settings follow a formula
    effort = "normal"    the first two stages of the loss, for Talos: the temperature τ, then the power mean ρ over the
                         positives, the weight λ of the negatives or that of the users (p), and a second look at τ
    effort = "high"      all stages (for Talos also both ρ and λ, larger ones, and other p), the other losses with a
                         race of their own, the weights of events, and the dimension

Before the second stage the winner of the first trains on until a validation is hardly better than the one before. From
there a few epochs show how good a setting is; from an unfinished model they show how fast it learns, and a setting that
learns fast (a larger λ or ρ, another τ) may end lower. This is why τ gets a second look: after the second stage the
winner of the first meets the values halfway to its neighbours, under the conditions in which the run will end. If a
changed option wins clearly, the race goes on in that direction, step by step, as long as that wins. If a winner is a
percent below the best before it, the race stops: the model overfits, so comparisons mean nothing.

A race belongs to its run: its record is `race.json` in the run's folder, every candidate has checkpoints of its own
there, and a killed run continues to the same bytes.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from talos import registry
from talos.checks import require
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.distributed.share import Share
from talos.errors import DataError
from talos.files import read_sealed, write_sealed
from talos.studies.event_candidates import event_candidates
from talos.training.callbacks import Callback
from talos.training.checkpoint import checkpoint_names
from talos.training.plan import Plan, check_memory, loss_for, plan_for
from talos.training.trainer import SHORT_RUN, Trainer, check_path

__all__ = ["RaceResult", "make_trainer", "plan_of_run", "stages_of"]

# Epochs of each leg of the first stage, and of later stages; after the last leg the best candidate wins.
FIRST_LEGS: Final = (2, 2)
LATER_LEGS: Final = (3, 3)
# A candidate that is not this much better than one named earlier may be so by chance: the earlier one is taken. Only
# after a step that was clearly better does a race go on in the same direction.
CLEARLY: Final = 1.003
# A winner below this fraction of the best before it overfits.
OVERFITTING: Final = 0.99
# The winner of the first stage has settled when a validation is not at least this much better than the one before.
SETTLED: Final = 1.005
# How many of the loss's stages `normal` races.
NORMAL_STAGES: Final = 2
# Dimensions that `high` compares; the run's own is always among them.
DIMENSIONS: Final = (64, 128, 256)
_FORMAT: Final = 1
_START_AGAIN: Final = "Delete the run's folder to start again."

Changes = dict[str, Any]
"""Values of the config by dotted name."""


@dataclass(frozen=True)
class RaceResult:
    """The candidates of a race and its choice.

    Attributes:
        chosen: values of the config, by dotted name.
        legs: one record for each candidate and leg: `stage`, `candidate`, `epoch`, `metrics`.
        path: the losses before the last one, with which the winner trained `until` an epoch; a refit follows them.
    """

    chosen: Changes = field(default_factory=dict)
    legs: list[dict[str, Any]] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)


def stages_of(config: RunConfig, events: Sequence[Mapping[str, Any]] = ()) -> list[list[Changes]]:
    """The stages of the race that a config asks for, each a list of candidates; none if nothing is to be raced.

    `events` are the weights of events that the data offer (`talos.studies.event_candidates`).

    Options that the config gives are not raced. A config that gives the first one, the temperature, skips the race, as
    does a run of fewer than 20 epochs. Negatives per positive leave out `positive_power`, which needs all positives of
    a user at once.

    >>> stages_of(RunConfig().with_values({"loss.tau": 0.1}))
    []
    >>> [len(stage) for stage in stages_of(RunConfig())]
    [5, 4]
    """
    effort = config.training.effort
    given = {name: value for name, value in config.loss.options.items() if value != "auto"}
    offered = registry.resolve("loss", config.loss.name).race
    if (
        effort == "quick"
        or config.training.epochs < SHORT_RUN
        or not offered
        or next(iter(offered[0][0])) in given
    ):
        return []
    by_positive = config.negatives != "auto" and registry.make_negatives(config.negatives).per == "positive"
    stages = []
    for stage in offered if effort == "high" else offered[:NORMAL_STAGES]:
        possible = [one for one in stage if not (by_positive and "positive_power" in one)]
        changes = [_changes(one, given) for one in possible]
        stages.append(list({_label(one): one for one in changes}.values()))
    if effort == "high":
        if not given:
            others = [name for name in registry.names("loss") if name != config.loss.name]
            stages[0] += [
                {"loss.name": name, **_changes(one, {})}
                for name in others
                for first in registry.resolve("loss", name).race[:1]
                for one in first
            ]
        stages.append([{}, *({f"events.{name}": value for name, value in one.items()} for one in events)])
        if "dim" not in config.backbone.options:
            stages.append([{"backbone.dim": dim} for dim in DIMENSIONS])
    return [stage for stage in stages if len(stage) > 1]


def plan_of_run(
    config: RunConfig, train: Interactions | Share, valid: Interactions | Share | None = None
) -> Plan:
    """The plan of a run before its race: a setting that the race will decide is left open, and `raced` says so.

    >>> data = Interactions.from_ids([1, 1, 2], [7, 8, 7])
    >>> plan_of_run(RunConfig(k=1), data, data).raced
    'tau: raced on validation, starting from 0.045 to 0.2'
    >>> [note for note in plan_of_run(RunConfig(k=1), data).notes if note.startswith("tau")]
    ['tau 0.1: for 2 items']
    """
    stages = _stages(config, train, valid)
    if not stages:
        return plan_for(config, train)
    option = next(iter(stages[0][0]))
    values = [one[option] for one in stages[0] if "loss.name" not in one]
    return plan_for(
        config,
        train,
        raced={option.partition(".")[2]: (min(values), max(values))},
        candidates=max(map(len, stages)),
    )


def _stages(
    config: RunConfig, train: Interactions | Share, valid: Interactions | Share | None
) -> list[list[Changes]]:
    """The stages of a run's race; none without validation data."""
    if valid is None or len(valid) == 0:
        return []
    # a process that has only a share of the interactions weighs none
    if config.training.effort != "high" or isinstance(train, Share) or isinstance(valid, Share):
        return stages_of(config)
    return stages_of(config, event_candidates(train, valid, config.events))


def _changes(options: Mapping[str, float], given: Mapping[str, Any]) -> Changes:
    """A candidate's options that the config does not give, as values of the config."""
    return {f"loss.{name}": value for name, value in options.items() if name not in given}


def _is_new(changes: Changes, config: RunConfig) -> bool:
    """Whether the config's loss has all the options of a candidate, and other values of them.

    >>> sl_at_k = RunConfig().with_values({"loss.name": "sl@k", "loss.user_power": 1.0})
    >>> [_is_new({option: 1.0}, sl_at_k) for option in ("loss.positive_power", "loss.user_power", "loss.tau")]
    [False, False, True]
    """
    options = registry.options("loss", config.loss.name)
    asked = [name.removeprefix("loss.") for name in changes if name.startswith("loss.")]
    return all(option in options for option in asked) and config.with_values(changes) != config


def _second_look(stage: Sequence[Changes], winner: Changes) -> list[Changes]:
    """The winner of the first stage, and halfway, as a ratio, to its neighbours in its first option, the temperature.

    At the end of the range it goes as far beyond it as it goes inwards.

    >>> _second_look([{"loss.tau": 0.05}, {"loss.tau": 0.1}, {"loss.tau": 0.2}], {"loss.tau": 0.2})
    [{}, {'loss.tau': 0.141}, {'loss.tau': 0.283}]
    """
    name, value = next((name, value) for name, value in winner.items() if not name.endswith(".name"))
    same = [one for one in stage if one.get("loss.name") == winner.get("loss.name")]
    values = sorted(one[name] for one in same)
    index = values.index(value)
    below = value / values[index - 1] if index else values[1] / value
    above = values[index + 1] / value if index + 1 < len(values) else below
    return [{}, *({name: float(f"{value * factor:.3g}")} for factor in (below**-0.5, above**0.5))]


def _further(before: RunConfig, after: RunConfig) -> list[list[Changes]]:
    """A stage about one more step in the direction of the last one, if that changed one number of the same loss.

    The step is the same ratio, or from 0 the same difference. The loss may say that an option goes no further.

    >>> before = RunConfig().with_values({"loss.tau": 0.1})
    >>> _further(before, before.with_values({"loss.tau": 0.08}))
    [[{}, {'loss.tau': 0.064}]]
    >>> _further(before, before.with_values({"loss.positive_power": 0.2}))
    [[{}, {'loss.positive_power': 0.4}]]
    >>> _further(before, before.with_values({"loss.name": "sl"})), _further(before, before)
    ([], [])
    >>> _further(before.with_values({"loss.user_power": 0.5}), before)   # to p = 1, and not beyond
    []
    """
    if before.loss.name != after.loss.name:
        return []
    defaults = registry.options("loss", after.loss.name)
    bounds = registry.resolve("loss", after.loss.name).race_bounds
    steps = {}
    for name, new in after.loss.options.items():
        old = before.loss.options.get(name, defaults.get(name))
        if old != new and isinstance(old, int | float) and isinstance(new, int | float):
            steps[name] = float(f"{new * new / old if old else 2 * new:.3g}")
    lowest, highest = bounds.get(next(iter(steps), ""), (-math.inf, math.inf))
    if len(steps) != 1 or not lowest <= next(iter(steps.values())) <= highest:
        return []
    return [[{}, {f"loss.{name}": step for name, step in steps.items()}]]


def make_trainer(
    config: RunConfig,
    train: Interactions | Share,
    valid: Interactions | Share | None = None,
    *,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    group: Group = SINGLE_PROCESS,
    resume: bool = False,
) -> tuple[Trainer, RaceResult]:
    """A trainer that is ready to `fit`: after the race, if there is something to race, and resumed, if asked.

    The arguments are those of `Trainer`; checkpoints go to `folder/checkpoint`. Without validation data there is no
    race: what is open follows the loss's formula.
    """
    stages, checkpoints = _stages(config, train, valid), None if folder is None else folder / "checkpoint"
    if folder is not None and resume:
        require(
            bool(stages) or not (folder / "race.json").exists(),
            "is of a run that raced its settings, and this one does not",
            where=str(folder / "race.json"),
            expected="the config and the validation part that the run began with",
            hint=_START_AGAIN,
            error=DataError,
        )
    race = _Race(config, train, valid, folder=folder, callbacks=callbacks, group=group, resume=resume)
    if stages and not race.result.chosen:
        check_memory(plan_of_run(config, train, valid), group.size)
        return race.run(stages), race.result
    trainer = Trainer(
        config.with_values(race.result.chosen),
        train,
        valid,
        folder=checkpoints,
        callbacks=callbacks,
        group=group,
        resumes=resume and checkpoints is not None and bool(checkpoint_names(checkpoints)),
    )
    if resume:
        trainer.resume()
    return trainer, race.result


def _same_start(one: RunConfig, other: RunConfig) -> bool:
    """Whether a run may continue from the state of another: its table and its starting vectors are the same."""
    return one.backbone == other.backbone and one.events == other.events


class _Race:
    """The state of one race: its results so far, on disk if the run has a folder."""

    def __init__(
        self,
        config: RunConfig,
        train: Interactions | Share,
        valid: Interactions | Share | None,
        *,
        folder: Path | None,
        callbacks: Sequence[Callback],
        group: Group,
        resume: bool,
    ) -> None:
        self.config, self.data, self.group, self.folder = config, (train, valid), group, folder
        self.callbacks = callbacks if group.rank == 0 else ()
        self.watched, self.second = (f"{name}@{config.k}" for name in (config.training.metric, "ndcg"))
        self.result = RaceResult()
        self.changes: Changes = {}
        self.path: list[dict[str, Any]] = []
        if folder is not None and resume and (folder / "race.json").exists():
            stored = read_sealed(folder / "race.json", hint=_START_AGAIN)
            require(
                stored.get("config") == json.loads(json.dumps(config.as_dict())),
                "belongs to another config",
                where=str(folder / "race.json"),
                expected="that of this run",
                error=DataError,
            )
            self.result = _stored_result(stored, config, where=str(folder / "race.json"))
        elif folder is not None and group.rank == 0:
            shutil.rmtree(folder / "race", ignore_errors=True)

    def run(self, stages: Sequence[Sequence[Changes]]) -> Trainer:
        """Race stage by stage; returns the winner of the last one."""
        leader, _, _ = self._stage(0, self._nearest_first(stages[0]), None)
        peak = self._settle(leader, _label(self.changes))
        second_look = _second_look(stages[0], self.changes)
        later = [*stages[1:NORMAL_STAGES], second_look, *stages[NORMAL_STAGES:]]
        number, overfits = 0, False
        while later and leader.position.epoch + sum(LATER_LEGS) <= self.config.training.epochs:
            stage, before = later.pop(0), leader.config
            # another loss may have won, which need not have the options that this stage is about
            possible = [one for one in stage if not one or _is_new(one, before)]
            continues = all(_same_start(before.with_values(one), before) for one in possible)
            if len(possible) < 2 or (overfits and continues):
                continue
            number += 1
            leader, score, gain = self._stage(number, possible, leader)
            overfits = score < OVERFITTING * peak
            peak = max(peak, score)
            if gain >= CLEARLY:
                later = [*_further(before, leader.config), *later]
        self._end(leader)
        return leader

    def _end(self, winner: Trainer) -> None:
        """Make the winner the run's trainer, write the choice, delete the candidates' checkpoints."""
        winner.callbacks, best = self.callbacks, winner.best_weights()
        if self.folder is not None and winner.checkpoints is not None:
            winner.checkpoints.folder = self.folder / "checkpoint"
            if best is not None:
                winner.keep_best(best)
            winner.save()
        self.result = replace(self.result, chosen=dict(self.changes), path=self.path)
        tried = len({(leg["stage"], leg["candidate"]) for leg in self.result.legs})
        chosen = ", ".join(_label({name: value}).replace("-", " ", 1) for name, value in self.changes.items())
        note = f"{chosen}: the best of {tried} candidates on validation"
        winner.plan = replace(winner.plan, notes=(*winner.plan.notes, note))
        self._write()
        if self.folder is not None and self.group.rank == 0:
            shutil.rmtree(self.folder / "race", ignore_errors=True)
        for callback in self.callbacks:
            callback.on_plan(winner.plan)

    def _settle(self, leader: Trainer, label: str) -> float:
        """Train the winner of the first stage until a validation is hardly better than the one before it.

        Returns the best figure.
        """
        every, last = self.config.training.evaluate_every, self.config.training.epochs
        best, epoch = -math.inf, sum(FIRST_LEGS)
        while epoch < last:
            epoch = min(last, (epoch // every + 1) * every)
            score = self._leg(0, label, leader, epoch)[self.watched]
            if score < best * SETTLED:
                break
            best = score
        return best

    def _stage(
        self, number: int, stage: Sequence[Changes], leader: Trainer | None
    ) -> tuple[Trainer, float, float]:
        """Race some candidates from the leader's state, or from the starting vectors.

        Returns the winner, its score, and that as a multiple of the first candidate's when this was last in the race.
        """
        named = {_label(changes): changes for changes in stage}
        runners: dict[str, Trainer] = {}
        for label, changes in named.items():
            config = self.config.with_values({**self.changes, **changes})
            folder = None if self.folder is None else self.folder / "race" / f"{number}-{label}"
            # without a leader, all candidates have the starting vectors of the first
            parent = leader or next(iter(runners.values()), None)
            if parent is not None and _same_start(parent.config, config):
                runners[label] = parent.branch(config, folder)
            else:
                runners[label] = Trainer(config, *self.data, folder=folder, group=self.group)
        epoch = 0 if leader is None else leader.position.epoch
        for runner in runners.values():
            runner.resume()
        legs = FIRST_LEGS if leader is None else LATER_LEGS if len(stage) > 2 else (sum(LATER_LEGS),)
        first, last = next(iter(runners)), runners
        scores, gains = dict[str, float](), dict.fromkeys(runners, 1.0)
        for leg in legs:
            epoch += leg
            metrics = {label: self._leg(number, label, runner, epoch) for label, runner in runners.items()}
            scores = {label: one[self.watched] for label, one in metrics.items()}
            if scores.get(first, 0) > 0:
                gains = {label: score / scores[first] for label, score in scores.items()}
            # of equal ones the first stays ahead
            ranked = sorted(runners, key=lambda label: (-scores[label], -metrics[label][self.second]))
            last = runners
            runners = {label: runners[label] for label in ranked[: (len(ranked) + 1) // 2]}
        winner = next(iter(runners))
        if leader is not None:
            winner = next(
                label for label in named if scores.get(label, -math.inf) * CLEARLY >= scores[winner]
            )
            before, after = leader.config, last[winner].config
            if not _same_start(before, after):  # it began from starting vectors of its own
                self.path = []
            elif before.loss != after.loss:
                self.path.append({"until": leader.position.epoch, "loss": before.loss.model_dump()})
        self.changes |= named[winner]
        return last[winner], scores[winner], gains[winner]

    def _nearest_first(self, stage: Sequence[Changes]) -> list[Changes]:
        """The candidates of the first stage, those nearest to the loss's formula first, as a ratio."""
        loss = loss_for(self.config.loss, self.config.k, self.data[0])
        formula = {f"loss.{name}": value for name, value in loss.needs.chosen}

        def distance(changes: Changes) -> float:
            own = [name for name in changes if name in formula and "loss.name" not in changes]
            return sum(abs(math.log(changes[name] / formula[name])) for name in own) if own else math.inf

        return sorted(stage, key=distance)

    def _leg(self, stage: int, label: str, runner: Trainer, epoch: int) -> dict[str, float]:
        """Train one candidate up to an epoch and note what validation says."""
        for leg in self.result.legs:
            if (leg["stage"], leg["candidate"], leg["epoch"]) == (stage, label, epoch):
                return dict(leg["metrics"])
        runner.train_until(epoch)
        metrics = runner.position.last_metrics
        record = {"stage": stage, "candidate": label, "epoch": epoch, "metrics": metrics}
        self.result.legs.append(record)
        self._write()
        for callback in self.callbacks:
            callback.on_race(record)
        return metrics

    def _write(self) -> None:
        if self.folder is not None and self.group.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_sealed(
                self.folder / "race.json",
                {"format": _FORMAT, "config": self.config.as_dict(), **asdict(self.result)},
            )


def _stored_result(stored: Mapping[str, Any], config: RunConfig, *, where: str) -> RaceResult:
    """The result in a `race.json`; an error if it is not what a race of this config can have written."""
    try:
        result = RaceResult(dict(stored["chosen"]), list(stored["legs"]), list(stored["path"]))
        for leg in result.legs:
            for name in (config.training.metric, "ndcg"):
                float(leg["metrics"][f"{name}@{config.k}"])
            leg["stage"], leg["candidate"], leg["epoch"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"is damaged: {error!r}", where=where, hint=_START_AGAIN) from None
    check_path(result.path, where=where)
    registry.check_imported(config.with_values(result.chosen), where=where)
    return result


def _label(changes: Mapping[str, Any]) -> str:
    """A candidate in short, for people and as the name of a folder.

    >>> _label({"loss.name": "sl", "loss.tau": 0.1}), _label({})
    ('sl-tau-0.1', 'unchanged')
    """
    words = [
        f"{value}"
        if name.endswith(".name")
        else f"{name.partition('.')[2]}-{value if isinstance(value, str) else f'{value:g}'}"
        for name, value in changes.items()
    ]
    return "-".join(words).replace("@", "-at-") or "unchanged"
