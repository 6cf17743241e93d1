"""The one training loop."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.backbones.tables import keep_gradients_
from talos.config import NamedConfig, RunConfig
from talos.data.interactions import Interactions
from talos.distributed import SINGLE_PROCESS, Group
from talos.distributed.share import Share
from talos.errors import ArgumentError, DataError, Option, TalosError, first_line
from talos.evaluation.evaluate import evaluate
from talos.evaluation.popularity import PriorScores, best_prior, longest_of
from talos.evaluation.ranking import DotScores
from talos.kernels import kth_scores, user_exponent
from talos.kernels.csr import Batch, TrainIndex
from talos.training.averaging import AveragedWeights
from talos.training.batches import Batches, PositionRows, PositiveRows, Rows, UserRows, generator_for
from talos.training.callbacks import Callback, InterruptedRunError, stop_signals
from talos.training.checkpoint import (
    Checkpoints,
    Position,
    ShardedTensors,
    best_weights,
    check_same_run,
    flatten,
    load_best_weights,
    unflatten,
)
from talos.training.division import GradientSync, division_for, user_masses
from talos.training.objective import Objective
from talos.training.optimizer import Optimizers
from talos.training.plan import EXACT_LIMIT, check_memory, loss_for, plan_for
from talos.training.warm_start import start_from

__all__ = ["SHORT_RUN", "Trainer", "check_path"]

# Averaged weights get steadier with every epoch, and validation is noisy: of those this close to the best figure the
# latest are kept.
_AS_GOOD = 0.995
# A run of fewer epochs has no room for a race, and its average counts the first ones less.
SHORT_RUN = 20
# Users whose vectors are computed at a time.
_USERS = 1 << 14


class Trainer:
    """Puts backbone, loss, negatives and thresholds together and trains them.

    Args:
        config: the run; `auto` values are resolved here, see `Trainer.plan`.
        train: interactions to learn from; with several processes either all of them, or this process's `Share`.
        valid: interactions for early stopping, matched to those of `train` by id; without them training runs for all
            epochs.
        folder: where checkpoints are written; None keeps the best weights in memory.
        callbacks: called with the plan, and while training; on rank 0 only.
        backbone: used instead of the one that the config names.
        only_users: learn from the interactions of these users only.
        earlier: losses of the first epochs, each with the epoch `until` which it is used, ascending: see
            `talos.studies.race.RaceResult.path`.
        resumes: whether `resume` is going to replace the starting vectors, which then need not be computed.
        group: the processes that train together. Each is given the same config and data, and keeps the rows, thresholds
            and optimizer state of its own users (and maybe items, see `talos.training.division`).

    >>> data = Interactions.from_ids([1, 1, 2, 2, 3, 3], [7, 8, 7, 9, 8, 9])
    >>> config = RunConfig.from_dict({"k": 1, "backbone": {"name": "mf", "dim": 4}, "training": {"epochs": 2}})
    >>> trainer = Trainer(config, data)
    >>> trainer.fit()
    >>> [tuple(vectors.shape) for vectors in trainer.vectors()]
    [(3, 4), (3, 4)]
    """

    def __init__(
        self,
        config: RunConfig,
        train: Interactions | Share,
        valid: Interactions | Share | None = None,
        *,
        folder: Path | None = None,
        callbacks: Sequence[Callback] = (),
        backbone: Backbone | None = None,
        only_users: Tensor | None = None,
        group: Group = SINGLE_PROCESS,
        earlier: Sequence[Mapping[str, Any]] = (),
        resumes: bool = False,
    ) -> None:
        self.group = group = SINGLE_PROCESS if config.training.parallel == "none" else group
        self.train, self.valid = train, _aligned(valid, train)
        self.callbacks = callbacks if group.rank == 0 else ()
        group.check_same(config=lambda: str(config.as_dict()), data=lambda: str(self.fingerprint()))
        self.device = registry.check_device(config.device)
        self.generator = generator_for(config.seed, 0)  # of all random starting values
        plan = plan_for(config, train)
        check_memory(plan, group.size)
        self.loss = loss_for(config.loss, config.k, train, self.generator)
        self.config = config = plan.config
        self.division = division_for(config, train, group)
        self.plan = replace(plan, sharding=self.division.line)
        for callback in self.callbacks:
            callback.on_plan(self.plan)
        self.own_train = train.user_range(self.division.users)
        self.own_valid = (
            None
            if self.valid is None  # users without training events have no vector to judge
            else self.valid.user_range(self.division.users).of_users_in(self.own_train)
        )
        index = self.division.index(train, config, self.device)
        self.objective = self._make_objective(
            index, backbone, "random" if resumes else config.training.init
        ).to(self.device)
        self.batches = Batches(
            self._make_rows(index, only_users),
            int(config.training.batch_size),
            SINGLE_PROCESS if self.division.by_items else self.division.group,
        )
        self.earlier = [
            (int(one["until"]), loss_for(NamedConfig(**one["loss"]), config.k, train, self.generator))
            for one in earlier
        ]
        self.parameters, divided = list(self.objective.parameters()), self.division.rows()
        self.sync = GradientSync(
            group, self.parameters, [table for of, table in self._tables().items() if of in divided]
        )
        self.optimizers = self._make_optimizers()
        self.average = AveragedWeights(
            self.objective.backbone,
            newest=config.training.averaging,
            short=config.training.epochs < SHORT_RUN,
        )
        self.position = Position()
        self.checkpoints = None if folder is None else self._checkpoints_in(folder)
        self.best: dict[str, Tensor] | None = None
        self.resumed_generator: Tensor | None = None  # state of a generator in the middle of a pass
        self.stop_requested = False

    # ------------------------------------------------------- what training consists of

    def _make_objective(self, index: TrainIndex, backbone: Backbone | None, init: str) -> Objective:
        config, threshold = self.config, None
        source = registry.make_negatives(config.negatives)
        source.check(index)
        if config.threshold.name != "none":
            threshold = registry.make_threshold(
                config.threshold,
                k=config.k,
                num_positives=torch.from_numpy(self.own_train.user_degrees).to(self.device),
                num_users=len(self.division.users),
                num_items=self.train.num_items,
            )
        return Objective(
            self._make_backbone(index, init) if backbone is None else backbone,
            self.loss,
            source,
            threshold,
            index=index,
            division=self.division,
            bfloat16=config.training.arithmetic == "bfloat16",
        )

    def _make_backbone(self, index: TrainIndex, init: str) -> Backbone:
        """The backbone with this process's rows; they have the values that a single process would give them."""
        rows, train = self.division.rows(), self.train
        made = registry.make_backbone(self.config.backbone, train, generator=self.generator, **rows)
        if not made.divisible:
            made.first_user = self.division.users.start
            rows = {}
        if init != "random":
            known = self.own_train if isinstance(train, Share) else train
            index = index if self.group.size == 1 else TrainIndex.from_interactions(known)
            cosine = self.loss.needs.scores == "cosine"
            group = self.group if made.divisible else SINGLE_PROCESS
            start_from(init, made, index, self.generator, cosine=cosine, group=group, **rows)
        return made

    def _make_rows(self, index: TrainIndex, only_users: Tensor | None) -> Rows:
        backbone = self.objective.backbone
        options: dict[str, Any] = {
            "exponent": user_exponent(self.loss.user_power, self.config.training.reduction),
            "mass": user_masses(self.division, self.train, self.device),
            "only_users": only_users,
        }
        if backbone.rows == "positions":
            return PositionRows(index, self.own_train, backbone.history, **options)
        return (UserRows if self.plan.batches == "users" else PositiveRows)(index, **options)

    def _tables(self) -> dict[str, Tensor]:
        """The tables whose rows can be divided, by what a row belongs to: `users`, `items`."""
        backbone = self.objective.backbone
        tables = backbone.tables() if backbone.divisible else None
        return {} if tables is None else dict(zip(("users", "items"), tables, strict=True))

    def _make_optimizers(self) -> Optimizers:
        touched: list[Tensor] = []
        if self.config.optimizer.rows == "touched":
            # a sweep over all items gives their table a dense gradient
            touched = list(self._tables().values())[: 1 if self.objective.negatives.per == "all" else 2]
        for table in touched:
            vars(table)["row_sparse"] = True
        return Optimizers(
            self.objective.backbone,
            self.loss,
            self.config.optimizer,
            touched=touched,
            # in batches of users every user is there once an epoch
            visited_once=touched[0]
            if touched and self.plan.batches == "users" and self.objective.cosine
            else None,
        )

    def _checkpoints_in(self, folder: Path) -> Checkpoints:
        """Checkpoints of this run, in which every process writes its own rows."""
        names: dict[Tensor, str] = {
            table: f"backbone.{name}" for name, table in self.objective.backbone.named_parameters()
        }
        tables = {of: [names[table]] for of, table in self._tables().items()}
        if self.objective.threshold is not None:
            tables["users"] = [
                *tables.get("users", ()),
                *(f"threshold.{name}" for name in self.objective.threshold.per_user),
            ]
        sharded = [
            ShardedTensors(of=of, rows=rows, tables=tables.get(of, ()))
            for of, rows in self.division.rows().items()
        ]
        return Checkpoints(
            folder, keep=self.config.training.keep_checkpoints, group=self.group, sharded=sharded
        )

    def branch(self, config: RunConfig, folder: Path | None = None) -> Trainer:
        """A trainer on the same data that continues from this one's state under a config with another loss.

        Weights, thresholds of the same kind, the optimizer's moments and the position in training are copied; the best
        weights too, if the loss is unchanged. Checkpoints of the new one go to `folder`.
        """
        backbone = copy.deepcopy(self.objective.backbone)
        made = Trainer(config, self.train, self.valid, folder=folder, backbone=backbone, group=self.group)
        theirs, ours = self.objective.threshold, made.objective.threshold
        if theirs is not None and ours is not None and type(theirs) is type(ours):
            ours.load_state_dict(theirs.state_dict())
        state = self.optimizers.state() | self.average.state()
        state = {name: tensor.clone() for name, tensor in state.items()}
        made.optimizers.load_state(state)
        made.average.load_state(state, self.position.epoch)
        made.position = replace(self.position, finished=False)
        if made.config.loss == self.config.loss:
            if (best := self.best_weights()) is not None:
                made.keep_best(best)
        else:  # which weights are best under another loss is not known yet
            made.position = Position(epoch=self.position.epoch, last_metrics=self.position.last_metrics)
        return made

    # ---------------------------------------------------------------- the loop

    def fit(self) -> None:
        """Train for all epochs, or until validation has not improved for `patience` epochs; keep the best weights.

        Where weights are averaged, the best are the latest whose metric is within half a percent of the highest.

        Raises:
            InterruptedRunError: SIGINT or SIGTERM arrived; a checkpoint was written after the current step.
            TalosError: the loss or the weights are no longer finite; the best weights are kept.
        """
        epochs = self.config.training.epochs
        for callback in self.callbacks:
            callback.on_start(self.position.epoch, epochs, len(self.batches))
        try:
            self.train_until(epochs)
        finally:
            for callback in self.callbacks:
                callback.on_end()
        self._restore_best()
        self._choose_prior()

    def train_until(self, last: int) -> None:
        """Train up to epoch `last`, or until early stopping; validate and save at the end."""
        at, settings = self.position, self.config.training
        last = min(last, settings.epochs)
        with contextlib.ExitStack() as around:
            if self.checkpoints is not None:  # only where a run can be resumed
                around.enter_context(stop_signals(self._ask_to_stop))
            while not self._is_over() and at.epoch < last:
                loss = next((one for until, one in self.earlier if at.epoch < until), self.loss)
                self.objective.loss = loss
                self.batches.rows.exponent = user_exponent(loss.user_power, settings.reduction)
                loss.set_progress(at.epoch / settings.epochs)
                self.optimizers.start_epoch(at.epoch)
                for number, adversary in enumerate([None, *self.optimizers.due(epochs_done=at.epoch)]):
                    if number >= at.pass_number:
                        self._run_pass(number, adversary)
                at.epoch += 1
                self.average.update()
                ends = at.epoch == last
                metrics = self._validate() if ends or at.epoch % settings.evaluate_every == 0 else {}
                self._end_epoch(metrics)
                stop = self.group.any(self.stop_requested)
                if metrics or stop or ends or at.epoch % settings.checkpoint_every == 0:
                    self.save()
                if stop:
                    break
        # Asked after the earlier handlers are restored: a signal during the last save would be lost otherwise.
        if self.group.any(self.stop_requested) and not self._is_over():
            raise InterruptedRunError(f"stopped after epoch {at.epoch}; saved")

    def _run_pass(self, number: int, adversary: int | None) -> None:
        """One pass over all batches, for the model or for one adversary; a resumed one starts in the middle."""
        at, began = self.position, time.perf_counter()
        generator = generator_for(self.config.seed, 1, at.epoch, number)
        order = self.batches.order(generator)
        if self.resumed_generator is not None:
            generator.set_state(self.resumed_generator)
            self.resumed_generator = None
        optimizers = self.optimizers.start_pass(adversary)
        while at.step < len(self.batches):
            for joint in self.optimizers.joint:
                joint.clamp_(self.loss)
            batch = self.batches.batch(order, at.step)
            value = self._step_gradients(batch, generator, frozen=adversary is not None)
            for optimizer in optimizers:
                optimizer.step()
            keep_gradients_(self.parameters)
            at.step += 1
            if adversary is None:
                at.loss_sum += value
                for callback in self.callbacks:
                    callback.on_step(at.epoch, at.step, at.loss_sum / at.step)
            if (self.sync.stop or (self.group.size == 1 and self.stop_requested)) and at.step < len(
                self.batches
            ):
                at.seconds += time.perf_counter() - began
                self.save(generator)
                raise InterruptedRunError(
                    f"stopped in epoch {at.epoch + 1} after step {at.step} of {len(self.batches)}; saved"
                )
        at.pass_number, at.step = number + 1, 0
        at.seconds += time.perf_counter() - began

    def _step_gradients(self, batch: Batch, generator: torch.Generator, *, frozen: bool) -> float:
        """Compute the gradients of a batch and return its loss, both summed over the processes of the group."""
        try:
            value: Tensor = self.objective(batch, generator, frozen=frozen)
        except ArgumentError as error:  # a loss or threshold refused scores that are not finite
            raise self._diverged(str(error)) from error
        value.backward()  # type: ignore[no-untyped-call]
        total = value.item()
        if self.group.size > 1:
            total = self.sync.sum_(total, stop=self.stop_requested)
        if not math.isfinite(total):
            raise self._diverged(f"the loss is {total}")
        return total

    def _diverged(self, what: str) -> TalosError:
        at, lr = self.position, self.config.optimizer.lr
        kept = f"; the best weights, of epoch {at.best_epoch}, are kept" if at.best_epoch else ""
        return TalosError(
            f"epoch {at.epoch + 1}, step {at.step + 1}: {what}. "
            f"The likely cause is a learning rate ({lr}) that is too high or a temperature that is too low{kept}"
        )

    # --------------------------------------------------------- the end of an epoch

    def _is_over(self) -> bool:
        return self.position.finished or self.position.epoch >= self.config.training.epochs

    def _validate(self) -> dict[str, float]:
        """Metrics on the validation set; keeps the weights if they are the best so far."""
        k, at, settings = self.config.k, self.position, self.config.training
        if self.valid is None or self.own_valid is None or len(self.valid) == 0:
            return {}
        first = f"{settings.metric}@{k}"
        with self.average.applied():
            report = evaluate(
                DotScores(*self.vectors()), self.own_valid, seen=self.own_train, ks=[k], group=self.group
            )
            metrics = at.last_metrics = report.metrics
            watched = metrics[first]
            if watched > at.peak * (1 + settings.min_gain):
                at.peak, at.peak_epoch = watched, at.epoch
            higher = watched > at.highest
            at.highest = max(at.highest, watched)
            if higher or (settings.averaging < 1 and watched >= _AS_GOOD * at.highest > 0):
                at.best, at.best_epoch, at.best_metrics = watched, at.epoch, metrics
                self.keep_best(best_weights(self.objective))
        at.finished = at.epoch - at.peak_epoch >= settings.patience
        return {first: watched} | metrics  # the watched metric first: a progress bar shows the first one

    def _end_epoch(self, metrics: dict[str, float]) -> None:
        at = self.position
        if self.group.any(not all(torch.isfinite(one.sum()) for one in self.objective.backbone.parameters())):
            raise self._diverged("the weights are not finite")
        record = {
            "epoch": at.epoch,
            "loss": at.loss_sum / len(self.batches),
            "seconds": round(at.seconds, 4),
            "metrics": metrics,
        }
        at.loss_sum, at.seconds, at.pass_number, at.step = 0.0, 0.0, 0, 0
        for callback in self.callbacks:
            callback.on_epoch(record)

    # ------------------------------------------------------------------ results

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Vectors of this process's users and of all items as they are scored: normalised where scores are cosines."""
        all_users = torch.arange(len(self.division.users), device=self.device)
        users, items = self.objective.vectors(map(self.batches.rows.users, torch.split(all_users, _USERS)))
        return users, self.division.all_items(items, self.train.num_items)

    def results(self) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """All user vectors, item vectors and thresholds, on rank 0; None on the other ranks.

        If `train` is a `Share`, every rank gets the vectors and thresholds of its own users, and all item vectors.
        """
        threshold, count = self.objective.threshold, self.train.num_users
        users, items = self.vectors()
        beta = None if threshold is None else threshold.value(torch.arange(len(users), device=self.device))
        if isinstance(self.train, Share):
            return users, items, beta
        all_users = self.group.gather_rows(users, count)
        beta = None if beta is None else self.group.gather_rows(beta, count)
        return None if all_users is None else (all_users, items, beta)

    def _choose_prior(self) -> None:
        """Resolve `training.prior`: how much popularity counts for users with few events, by validation."""
        if self.config.training.prior != "auto":
            return
        found, chosen = (None if self.valid is None else self.results()), 0.0
        divided = isinstance(self.train, Share)
        if found is not None and self.valid is not None:
            chosen = best_prior(
                *found[:2],
                self.train.own if isinstance(self.train, Share) else self.train,
                self.valid.own if isinstance(self.valid, Share) else self.valid,
                item_degrees=self.train.item_degrees,
                k=self.config.k,
                metric=self.config.training.metric,
                group=self.group if divided else SINGLE_PROCESS,
            )
        if not divided:  # rank 0 has chosen for all
            chosen = sum(own for (own,) in self.group.all_gather_numbers([chosen]))
        self.config = self.config.with_values({"training.prior": chosen})

    def scorer(self) -> DotScores:
        """The scores of all users by the trained vectors and the prior; for a single process."""
        users, items = self.vectors()
        made = PriorScores(
            items,
            self.train.item_degrees,
            prior=float(self.config.training.prior),
            longest=longest_of(users),
        )
        return made.of(users, self.own_train.user_degrees)

    def threshold_error(self) -> float | None:
        """Mean |estimated - exact| threshold over the users with interactions; None without thresholds.

        Over every n-th of them where there are too many scores for exact training (`plan.EXACT_LIMIT`): all of them
        would take longer than the epochs.
        """
        threshold = self.objective.threshold
        if threshold is None:
            return None
        every = math.ceil(self.train.num_users * self.train.num_items / EXACT_LIMIT)
        users, exact = self._exact_thresholds(every)
        return float(self.group.mean((threshold.value(users) - exact).abs()))

    def _exact_thresholds(self, every: int = 1) -> tuple[Tensor, Tensor]:
        """Every n-th of this process's users with interactions, and the exact K-th best scores of these."""
        vectors, items = self.vectors()
        users = torch.from_numpy(self.own_train.user_degrees.nonzero()[0][::every]).to(self.device)
        return users, kth_scores(vectors[users], items, self.config.k)

    # ------------------------------------------------- best weights and checkpoints

    def keep_best(self, weights: Mapping[str, Tensor]) -> None:
        """Keep these as the weights of the best epoch."""
        if self.checkpoints is not None:
            self.checkpoints.save_best(self.position.best_epoch, weights)
        else:
            self.best = {name: tensor.clone() for name, tensor in weights.items()}

    def best_weights(self) -> dict[str, Tensor] | None:
        """The weights that are kept; None before the first validation."""
        if self.position.best_epoch == 0:
            return None
        return self.best if self.checkpoints is None else self.checkpoints.load_best(self.position.best_epoch)

    def _restore_best(self) -> None:
        """Load the weights that were best on validation; without validation take the average of the last epochs."""
        best = self.best_weights()
        if best is None:
            self.average.exchange()
        else:
            load_best_weights(self.objective, best)
        self.average = AveragedWeights(self.objective.backbone, newest=1.0)
        threshold = self.objective.threshold
        if threshold is not None and threshold.exact:  # steps over all items find theirs anew
            threshold.set(*self._exact_thresholds())

    def save(self, generator: torch.Generator | None = None) -> None:
        """Write a checkpoint from which training resumes to the same result, bit by bit."""
        if self.checkpoints is None:
            return
        at = self.position
        tensors = (
            flatten("objective", self.objective.state_dict()) | self.optimizers.state() | self.average.state()
        )
        if generator is not None:
            tensors["generator"] = generator.get_state()
        facts = {"position": asdict(at), "config": self.config.as_dict(), "data": self.fingerprint()}
        self.checkpoints.save(at.epoch, at.pass_number * len(self.batches) + at.step, tensors, facts)

    def resume(self) -> bool:
        """Load the newest checkpoint; False if there is none. One of other data or another config is refused."""
        found = None if self.checkpoints is None else self.checkpoints.latest()
        self.group.check_same(checkpoint=lambda: "none" if found is None else str(found[1]["position"]))
        if self.checkpoints is None or found is None:
            return False
        tensors, facts = found
        try:
            check_same_run(facts, self.config, self.fingerprint())
            self.objective.load_state_dict(unflatten("objective", tensors))
            self.optimizers.load_state(tensors)
            self.position = Position(**facts["position"])
            self.average.load_state(tensors, self.position.epoch)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, TalosError):
                raise
            raise DataError(
                f"its content does not fit this run ({first_line(error)})",
                where=str(self.checkpoints.folder),
                expected="a checkpoint of the same run",
            ) from error
        self.resumed_generator = tensors.get("generator")
        return True

    def fingerprint(self) -> dict[str, Any]:
        """Hashes of the data, by which a checkpoint of other data is noticed."""
        return {
            name: None if data is None else data.fingerprint()
            for name, data in (("train", self.train), ("valid", self.valid))
        }

    def _ask_to_stop(self) -> None:
        """Stop after the current step; at once, if asked twice."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True


def check_path(path: Any, *, where: str) -> None:
    """Refuse the path of a race from a file if it is damaged or names modules that are not imported.

    >>> check_path([{"until": 4, "loss": {"name": "sl", "tau": 0.2}}], where="run/model.json")
    >>> check_path([{"loss": {"name": "sl"}}], where="run/model.json")
    Traceback (most recent call last):
    talos.errors.DataError: run/model.json: has a race whose path is damaged; expected epochs and losses
    """
    try:
        losses = [NamedConfig(**one["loss"]) for one in path if int(one["until"]) >= 0]
    except (KeyError, TypeError, ValueError):
        raise DataError(
            "has a race whose path is damaged", where=where, expected="epochs and losses"
        ) from None
    for loss in losses:
        registry.check_imported(loss, where=where)


def _aligned(valid: Interactions | Share | None, train: Interactions | Share) -> Interactions | Share | None:
    """The validation interactions over the vocabularies of train; those with ids that train lacks are left out."""
    if not isinstance(valid, Interactions) or not isinstance(train, Interactions):
        return valid
    aligned, _ = valid.aligned_to(train)
    if len(valid) and not len(aligned.of_users_in(train)):
        raise DataError(
            "no user of it has training interactions",
            where="valid",
            expected="users and items of train",
            option=Option("valid", 0, "trains without validation"),
        )
    return aligned
