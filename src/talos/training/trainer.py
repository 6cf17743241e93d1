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
from talos.config import NamedConfig, RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import SINGLE_PROCESS, Group
from talos.errors import ArgumentError, DataError, TalosError, first_line
from talos.evaluation.popularity import PriorScores, best_prior, longest_of
from talos.evaluation.ranking import DotScores
from talos.thresholds import ExactQuantile
from talos.training.averaging import AveragedWeights
from talos.training.batches import Batch, BatchOptions, generator_for
from talos.training.callbacks import Callback, InterruptedRunError, stop_signals
from talos.training.checkpoint import (
    Checkpoints,
    Position,
    best_weights,
    check_same_run,
    flatten,
    load_best_weights,
    unflatten,
)
from talos.training.objective import ObjectiveOptions
from talos.training.optimizer import Optimizers
from talos.training.parallel.choose import choose_sharding
from talos.training.parallel.sharding import UserSharding
from talos.training.plan import EXACT_LIMIT, Plan, check_memory, make_plan

__all__ = ["Trainer"]

# Averaged weights get steadier with every epoch, and validation is noisy: of those this close to the best figure the
# latest are kept.
_AS_GOOD = 0.995
# A run of fewer epochs has no room for a race, and its average counts the first ones less.
SHORT_RUN = 20


class Trainer:
    """Puts backbone, loss, negatives and thresholds together and trains them.

    Args:
        config: the run; `auto` values are resolved here, see `Trainer.plan`.
        train: interactions to learn from; with several processes either all of them, or this process's `Share`.
        valid: interactions for early stopping, matched to those of `train` by id; without them training runs for all
            epochs.
        folder: where checkpoints are written; None keeps the best weights in memory.
        callbacks: called with the plan, and while training; on rank 0 only.
        backbone: used in place of the one that the config names.
        only_users: learn from the interactions of these users only.
        earlier: losses of the first epochs, each with the epoch `until` which it is used, ascending: see
            `talos.training.race.RaceResult.path`.
        sharding: that of another trainer on the same data, to share its copy of them; see `branch`.
        resumes: whether `resume` is going to replace the starting vectors, which then need not be computed.
        group: the processes that train together. Each is given the same config and data, and keeps the rows, thresholds
            and optimizer state of its own users (and maybe items, see `talos.training.parallel`).

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
        sharding: UserSharding | None = None,
        resumes: bool = False,
    ) -> None:
        self.group = group = SINGLE_PROCESS if config.training.parallel == "none" else group
        valid = _aligned(valid, train)
        self.train, self.valid, self.callbacks = train, valid, callbacks if group.rank == 0 else ()
        group.check_same(config=lambda: str(config.as_dict()), data=lambda: str(self.fingerprint()))
        self.device = registry.check_device(config.device)
        context = {"num_users": train.num_users, "num_items": train.num_items}
        generator = generator_for(config.seed, 0)  # of all random starting values
        loss = registry.make_loss(config.loss, k=config.k, generator=generator, **context)
        self.plan: Plan = make_plan(config, loss.needs, train)
        check_memory(self.plan)
        self.config = config = self.plan.config
        if sharding is None:
            sharding, line = choose_sharding(config, train, valid, group, self.device)
            self.plan = replace(self.plan, sharding=line)
        self.sharding = sharding
        for callback in self.callbacks:
            if isinstance(callback, Callback):  # others may have been written before there was such a method
                callback.on_plan(self.plan)
        source = registry.make_negatives(config.negatives)
        source.check(self.sharding.index)
        threshold = None
        if config.threshold.name != "none":
            threshold = registry.make_threshold(
                config.threshold,
                k=config.k,
                num_positives=self.sharding.user_degrees,
                num_users=len(self.sharding.users),
                num_items=train.num_items,
            )
        if backbone is None:
            start = config.with_values({"training.init": "random"}) if resumes else config
            backbone = self.sharding.backbone(start, generator, cosine=loss.needs.scores == "cosine")
        settings = config.training
        options = ObjectiveOptions(
            reduction=settings.reduction,
            touched_rows=config.optimizer.rows == "touched",
            bfloat16=settings.arithmetic == "bfloat16",
        )
        kind, size = self.plan.batches, int(settings.batch_size)
        self.objective = self.sharding.objective(kind, backbone, loss, source, threshold, options).to(
            self.device
        )
        self.batches = self.sharding.batches(
            BatchOptions(
                kind=kind,
                size=size,
                only_users=only_users,
                reduction=settings.reduction,
                user_power=loss.user_power,
            )
        )
        self.earlier = [
            (
                int(one["until"]),
                registry.make_loss(NamedConfig(**one["loss"]), k=config.k, generator=generator, **context),
            )
            for one in earlier
        ]
        self.loss = loss
        self.parameters = list(self.objective.parameters())
        self.sync = self.sharding.gradient_sync(self.objective)
        updated = self.sync.optimized(self.objective.backbone.parameters())
        # in batches of users every user is there once an epoch
        by_users = kind == "users" and loss.needs.scores == "cosine"
        seldom = backbone.users if by_users and options.touched_rows and backbone.divisible else None
        self.optimizers = Optimizers(updated, self.objective.loss, config.optimizer, visited_once=seldom)
        short = settings.epochs < SHORT_RUN
        self.average = AveragedWeights(backbone, newest=settings.averaging, short=short)
        self.position = Position()
        self.checkpoints = None
        if folder is not None:
            sharded = self.sharding.sharded_tensors(self.objective)
            self.checkpoints = Checkpoints(
                folder, keep=settings.keep_checkpoints, group=group, sharded=sharded
            )
        self.best: dict[str, Tensor] | None = None
        self.resumed_generator: Tensor | None = None  # state of a generator in the middle of a pass
        self.stop_requested = False

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
                self.objective.loss = next(
                    (loss for until, loss in self.earlier if at.epoch < until), self.loss
                )
                self.objective.loss.set_progress(at.epoch / settings.epochs)
                self.optimizers.scale_rate(float(self.config.optimizer.lr_decay) ** at.epoch)
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
        # Asked here, with the handlers of before in place again: a signal during the last save would be lost otherwise,
        # and whoever trains in legs, as a race does, would go on.
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
        optimizers = self.optimizers.begin_pass(adversary)
        while at.step < len(self.batches):
            self.optimizers.clamp_joint_()
            batch = self.batches.batch(order, at.step)
            value = self._step_gradients(batch, generator, frozen=adversary is not None)
            for optimizer in optimizers:
                optimizer.step()
            self.sync.gather_parameters_()
            self.objective.gradient_buffers.reclaim_(self.parameters)
            at.step += 1
            if adversary is None:
                at.loss_sum += value
                for callback in self.callbacks:
                    callback.on_step(at.epoch, at.step, at.loss_sum / at.step)
            if self.sync.should_stop(self.stop_requested) and at.step < len(self.batches):
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
        total = self.sync.sum_gradients_(value.item(), stop=self.stop_requested)
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
        if self.valid is None or len(self.valid) == 0:
            return {}
        k, at = self.config.k, self.position
        first = f"{self.config.training.metric}@{k}"
        with self.average.applied():
            metrics = self.sharding.metrics(*self.vectors(), k)
            watched = metrics[first]
            at.last_metrics = metrics
            if watched > at.peak * (1 + self.config.training.min_gain):
                at.peak, at.peak_epoch = watched, at.epoch
            higher = watched > at.highest
            at.highest = max(at.highest, watched)
            if higher or (self.config.training.averaging < 1 and watched >= _AS_GOOD * at.highest > 0):
                at.best, at.best_epoch, at.best_metrics = watched, at.epoch, metrics
                self._keep_best()
        if at.epoch - at.peak_epoch >= self.config.training.patience:
            at.finished = True
        return {first: watched} | metrics  # the watched metric first: a progress bar shows the first one

    def _end_epoch(self, metrics: dict[str, float]) -> None:
        at = self.position
        weights = self.objective.backbone.parameters()
        if self.group.any(not all(torch.isfinite(parameter.sum()) for parameter in weights)):
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
        """User and item vectors as they are scored; with several processes, those of this process."""
        return self.objective.vectors()

    def results(self) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """All user vectors, item vectors and thresholds, on rank 0; None on the other ranks.

        If `train` is a `Share`, every rank gets the vectors and thresholds of its own users, and all item vectors.
        """
        threshold, users = self.objective.threshold, len(self.sharding.users)
        beta = None if threshold is None else threshold.value(torch.arange(users, device=self.device))
        return self.sharding.gather(*self.vectors(), beta)

    def _choose_prior(self) -> None:
        """Resolve `training.prior`: how much popularity counts for users with few events, by validation."""
        if self.config.training.prior != "auto":
            return
        found, chosen = (None if self.valid is None else self.results()), 0.0
        divided = isinstance(self.train, Share)
        if found is not None:
            assert self.valid is not None
            assert self.train.item_degrees is not None
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
        assert self.train.item_degrees is not None
        prior = float(self.config.training.prior)
        made = PriorScores(items, self.train.item_degrees, prior=prior, longest=longest_of(users))
        return made.of(users, self.sharding.train.user_degrees)

    def threshold_error(self) -> float | None:
        """Mean |estimated - exact| threshold over the users with interactions; None without thresholds.

        Over every n-th of them where there are too many scores for exact training (`plan.EXACT_LIMIT`): all of them
        would take longer than the epochs.
        """
        threshold = self.objective.threshold
        if threshold is None:
            return None
        user_vectors, item_vectors = self.vectors()
        every = math.ceil(self.train.num_users * self.train.num_items / EXACT_LIMIT)
        users = self.sharding.user_degrees.nonzero().flatten()[::every]
        exact = self.sharding.kth_scores(user_vectors[users], item_vectors, self.config.k)
        return float(self.group.mean((threshold.value(users) - exact).abs()))

    # ------------------------------------------------- best weights and checkpoints

    def branch(self, config: RunConfig, *, folder: Path | None = None) -> Trainer:
        """A trainer on the same data that continues from this one's state under a config with another loss.

        Weights, thresholds, the optimizer's moments and the position in training are copied; the sharded data are
        shared. `config` may differ in the section `loss` only; if it does not, so are the best weights so far.
        """
        other = Trainer(
            config,
            self.train,
            self.valid,
            folder=folder,
            backbone=copy.deepcopy(self.objective.backbone),
            group=self.group,
            sharding=self.sharding,
        )
        theirs, ours = self.objective.threshold, other.objective.threshold
        if theirs is not None and ours is not None:
            ours.load_state_dict(theirs.state_dict())
        state = {
            name: tensor.clone() for name, tensor in (self.optimizers.state() | self.average.state()).items()
        }
        other.optimizers.load_state(state)
        other.average.load_state(state, self.position.epoch)
        # what is best under another loss is not known yet; and this one may have stopped
        other.position = replace(self.position, finished=False)
        if other.config.loss == self.config.loss:
            other._take_best_of(self)
        else:
            unknown = -math.inf
            other.position = replace(
                other.position,
                highest=unknown,
                peak=unknown,
                peak_epoch=0,
                best=unknown,
                best_epoch=0,
                best_metrics={},
            )
        return other

    def move(self, folder: Path | None, callbacks: Sequence[Callback]) -> None:
        """From now on write checkpoints to `folder` and call `callbacks`."""
        self.callbacks = callbacks if self.group.rank == 0 else ()
        if folder is None or self.checkpoints is None:
            return
        best = self._best_weights()
        self.checkpoints = self.checkpoints.elsewhere(folder)
        if best is not None:
            self.checkpoints.save_best(self.position.best_epoch, best)
        self.save()

    def _take_best_of(self, other: Trainer) -> None:
        """Keep the best weights of another trainer, whose position this one has."""
        self.best = best = other._best_weights()
        if best is not None and self.checkpoints is not None:
            self.checkpoints.save_best(self.position.best_epoch, best)
            self.best = None

    def _best_weights(self) -> dict[str, Tensor] | None:
        """The weights that are kept; None before the first validation."""
        if self.position.best_epoch == 0:
            return None
        return self.best if self.checkpoints is None else self.checkpoints.load_best(self.position.best_epoch)

    def _keep_best(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save_best(self.position.best_epoch, best_weights(self.objective))
        else:
            self.best = {name: tensor.clone() for name, tensor in best_weights(self.objective).items()}

    def _restore_best(self) -> None:
        """Load the weights that were best on validation; without validation take the average of the last epochs."""
        self.sync.release()
        if self.position.best_epoch == 0:
            self.average.apply()
            self._refresh_thresholds()
            return
        best = self._best_weights()
        assert best is not None
        load_best_weights(self.objective, best)
        self.average = AveragedWeights(self.objective.backbone, newest=1.0)
        self._refresh_thresholds()

    def _refresh_thresholds(self) -> None:
        """Compute exact thresholds anew: those found while training are of other vectors than the averaged ones."""
        threshold = self.objective.threshold
        if self.config.training.averaging < 1 and isinstance(threshold, ExactQuantile):
            users = self.sharding.user_degrees.nonzero().flatten()
            user_vectors, item_vectors = self.vectors()
            exact = self.sharding.kth_scores(user_vectors[users], item_vectors, self.config.k)
            threshold.set(users, exact)

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
        self.checkpoints.forget_old_best()

    def resume(self) -> bool:
        """Load the newest checkpoint; False if there is none. One of other data or another config is refused."""
        found = None if self.checkpoints is None else self.checkpoints.latest()
        self.group.check_same(checkpoint=lambda: "none" if found is None else str(found[1]["position"]))
        if found is None:
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
            assert self.checkpoints is not None
            what, where = (
                f"its content does not fit this run ({first_line(error)})",
                str(self.checkpoints.folder),
            )
            raise DataError(what, where=where, expected="a checkpoint of the same run") from error
        self.resumed_generator = tensors.get("generator")
        return True

    def fingerprint(self) -> dict[str, Any]:
        """Hashes of the data, by which a checkpoint of other data is noticed."""
        parts = {"train": self.train, "valid": self.valid}
        return {name: None if part is None else part.fingerprint() for name, part in parts.items()}

    # --------------------------------------------------------------- interruption

    def _ask_to_stop(self) -> None:
        """Stop after the current step; at once, if asked twice."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True


def _aligned(valid: Interactions | Share | None, train: Interactions | Share) -> Interactions | Share | None:
    """The validation interactions over the vocabularies of train; those with ids that train lacks are left out."""
    if not isinstance(valid, Interactions) or not isinstance(train, Interactions):
        return valid
    aligned, _ = valid.aligned_to(train)
    if len(valid) and not len(aligned.of_users_in(train)):
        what, expected = "no user of it has training interactions", "users and items of train"
        raise DataError(what, where="valid", expected=expected, hint="valid=0 trains without validation")
    return aligned
