"""The one training loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talos import registry
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.data.interactions import Interactions
from talos.data.shards import Share
from talos.distributed import ALONE, Group
from talos.errors import ArgumentError, ConfigError, TalosError
from talos.training.batches import Place, generator_for
from talos.training.callbacks import Callback
from talos.training.checkpoint import Checkpoints, flatten, unflatten
from talos.training.memory import freed_memory_kept
from talos.training.objective import Objective
from talos.training.optimizers import Optimizers
from talos.training.parallel.choose import divide
from talos.training.plan import Plan, make_plan
from talos.training.state import Position, check_same_run, load_weights, weights_of
from talos.training.stopping import InterruptedRunError, stop_signals

__all__ = ["Trainer"]


class Trainer:
    """Puts backbone, loss, negatives and thresholds together and trains them.

    Args:
        config: the run; `auto` values are chosen here, see `Trainer.plan`.
        train: interactions to learn from; in a group either all of them, or this process's `Share`.
        valid: interactions to stop by; without them training runs for all epochs.
        folder: where checkpoints go; None keeps everything in memory.
        callbacks: what watches.
        backbone: takes the place of the one that the config names.
        only_users: learn from the interactions of these users alone.
        group: the processes that train together; each is given the same config and data, and keeps the rows,
            thresholds and optimiser state of its own range of users (and of items, see `talos.training.parallel`).

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
        group: Group = ALONE,
    ) -> None:
        self.group = group = ALONE if config.training.parallel == "none" else group
        self.train, self.valid, self.callbacks = train, valid, callbacks if group.rank == 0 else ()
        group.check_same(config=str(config.as_dict()), data=str(self.fingerprint()) if group.size > 1 else "")
        self.device = _device(config.device)
        context = {"num_users": train.num_users, "num_items": train.num_items}
        generator = generator_for(config.seed, 0)  # of everything that starts at random
        loss = registry.make_loss(config.loss, k=config.k, generator=generator, **context)
        self.plan: Plan = make_plan(config, loss.needs, train)
        self.config = config = self.plan.config
        self.division = divide(config, train, valid, group, self.device)
        source = registry.make_negatives(config.negatives)
        source.check(self.division.index)
        threshold = None
        if config.threshold.name != "none":
            threshold = registry.make_threshold(
                config.threshold,
                k=config.k,
                num_positives=self.division.user_degrees,
                num_users=len(self.division.users),
                num_items=train.num_items,
            )
        if backbone is None:
            backbone = self.division.backbone(config, generator, cosine=loss.needs.scores == "cosine")
        self.objective: Objective = self.division.objective(
            self.plan.batches,
            backbone,
            loss,
            source,
            threshold,
            reduction=config.training.reduction,
            touched_rows=config.optimizer.rows == "touched",
            bfloat16=config.training.arithmetic == "bfloat16",
        ).to(self.device)
        self.batches = self.division.batches(
            self.plan.batches,
            size=int(config.training.batch_size),
            only_users=only_users,
            reduction=config.training.reduction,
        )
        self.parameters = list(self.objective.parameters())
        self.own_parameters = list(self.division.own_parameters(self.objective.backbone).values())
        self._begin_alike()
        self.replicas = self.division.replicas(self.objective)
        updated = self.replicas.optimized(self.objective.backbone.parameters())
        self.optimizers = Optimizers(updated, self.objective.loss, config.optimizer)
        self.position = Position()
        self.checkpoints = None
        if folder is not None:
            self.checkpoints = Checkpoints(
                folder,
                keep=config.training.keep_checkpoints,
                group=group,
                parts=self.division.parts(self.objective),
            )
        self.best: dict[str, Tensor] | None = None
        self.resumed_generator: Tensor | None = None  # its state in the middle of a pass
        self.stop_requested = False

    def _begin_alike(self) -> None:
        """The same bits everywhere of what all processes have, whatever each of them computed."""
        for parameter in self.parameters:
            if not any(parameter is own for own in self.own_parameters):
                self.group.copy_first_(parameter.data)

    # ---------------------------------------------------------------- the loop

    def fit(self) -> None:
        """Train until the epochs are done or validation has not improved for long enough; keep the best.

        Raises:
            InterruptedRunError: SIGINT or SIGTERM arrived; the state was saved after the step at hand.
            TalosError: the loss or the weights are not finite any more; the best weights are kept.
        """
        at, settings = self.position, self.config.training
        for callback in self.callbacks:
            callback.on_start(at.epoch, settings.epochs, len(self.batches))
        try:
            with contextlib.ExitStack() as around:
                around.enter_context(freed_memory_kept(max(p.nbytes for p in self.parameters)))
                if self.checkpoints is not None:  # only where there is something to go on from
                    around.enter_context(stop_signals(self._ask_to_stop))
                while not self._is_over():
                    self.objective.loss.set_progress(at.epoch / settings.epochs)
                    self.optimizers.scale_rate(float(self.config.optimizer.lr_decay) ** at.epoch)
                    for number, adversary in enumerate([None, *self.optimizers.due(epochs_done=at.epoch)]):
                        if number >= at.pass_number:
                            self._run_pass(number, adversary)
                    at.epoch += 1
                    metrics = self._validate() if self._is_time(settings.evaluate_every) else {}
                    self._end_epoch(metrics)
                    stop = self.group.any(self.stop_requested)
                    if self._is_time(settings.checkpoint_every) or metrics or stop:
                        self.save()
                    if stop and not self._is_over():
                        raise InterruptedRunError(f"stopped after epoch {at.epoch}; saved")
        finally:
            for callback in self.callbacks:
                callback.on_end()
        self._restore_best()

    def _run_pass(self, number: int, adversary: int | None) -> None:
        """One pass over all batches, for the model or for one adversary; may start in the middle."""
        at, began = self.position, time.perf_counter()
        generator = generator_for(self.config.seed, 1, at.epoch, number)
        order = self.batches.order(generator)
        if self.resumed_generator is not None:
            generator.set_state(self.resumed_generator)
            self.resumed_generator = None
        optimizers = self.optimizers.of(adversary)
        while at.step < len(self.batches):
            self.optimizers.clamp_joint_()
            batch, place = self.batches.batch(order, at.step), self.batches.place(order, at.step)
            value = self._step_gradients(batch, place, generator, frozen=adversary is not None)
            for optimizer in optimizers:
                optimizer.step()
            self.replicas.spread_()
            for parameter in self.parameters:
                parameter.grad = None
            at.step += 1
            if adversary is None:
                at.loss_sum += value
                for callback in self.callbacks:
                    callback.on_step(at.epoch, at.step, at.loss_sum / at.step)
            stop = self.stop_requested if self.group.size == 1 else self.replicas.stop_requested
            if stop and at.step < len(self.batches):
                at.seconds += time.perf_counter() - began
                self._interrupt(generator)
        at.pass_number, at.step = number + 1, 0
        at.seconds += time.perf_counter() - began

    def _step_gradients(
        self, batch: Tensor, place: Place | None, generator: torch.Generator, *, frozen: bool
    ) -> float:
        """The loss of a batch, and every parameter's gradient, both summed over the processes of the group."""
        try:
            value: Tensor = self.objective(batch, generator, frozen=frozen, place=place)
        except ArgumentError as error:  # a loss or threshold met scores that are no numbers
            raise self._diverged(str(error)) from error
        value.backward()  # type: ignore[no-untyped-call]
        total = self.replicas.join_(value.item(), stop=self.stop_requested)
        if not math.isfinite(total):
            raise self._diverged(f"the loss is {total}")
        return total

    def _diverged(self, what: str) -> TalosError:
        lr = self.config.optimizer.lr
        kept = (
            f"; the best weights, of epoch {self.position.best_epoch}, are kept"
            if self.position.best_epoch
            else ""
        )
        return TalosError(
            f"epoch {self.position.epoch + 1}, step {self.position.step + 1}: {what}. "
            f"The likely cause is a learning rate ({lr}) that is too high or a temperature that is too low{kept}"
        )

    # ------------------------------------------------------------- the epoch's end

    def _is_over(self) -> bool:
        return self.position.finished or self.position.epoch >= self.config.training.epochs

    def _is_time(self, every: int) -> bool:
        return self.position.epoch % every == 0 or self.position.epoch == self.config.training.epochs

    def _validate(self) -> dict[str, float]:
        """Metrics on the validation set; remembers the weights if they are the best so far."""
        if self.valid is None or len(self.valid) == 0:
            return {}
        k, at = self.config.k, self.position
        metrics = self.division.metrics(*self.vectors(), k)
        watched = metrics[f"{self.config.training.metric}@{k}"]
        if watched > at.best:
            at.best, at.best_epoch, at.best_metrics = watched, at.epoch, metrics
            self._keep_best()
        elif at.epoch - at.best_epoch >= self.config.training.patience:
            at.finished = True
        # the watched metric first: it is what a progress line shows
        first = f"{self.config.training.metric}@{k}"
        return {first: watched, **{name: value for name, value in metrics.items() if name != first}}

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
        """User and item vectors, as scores are made from them; in a group, those that this process has."""
        return self.objective.vectors()

    def results(self) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """User vectors, item vectors and thresholds of everybody, on rank 0 of a group; None on other ranks.

        Where processes have shares of the interactions, each has the vectors and thresholds of its own users.
        """
        threshold, users = self.objective.threshold, len(self.division.users)
        beta = None if threshold is None else threshold.value(torch.arange(users, device=self.device))
        return self.division.bring_together(*self.vectors(), beta)

    def threshold_error(self) -> float | None:
        """Mean |estimated - exact| threshold over the users with interactions; None without thresholds."""
        threshold = self.objective.threshold
        if threshold is None:
            return None
        users = self.division.user_degrees.nonzero().flatten()
        user_vectors, item_vectors = self.vectors()
        exact = self.division.kth_scores(user_vectors[users], item_vectors, self.config.k)
        if self.group.size == 1:
            return threshold.error_against(exact, users)
        return float(self.group.mean((threshold.value(users) - exact).abs()))

    # ------------------------------------------------- best weights and checkpoints

    def _keep_best(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save_best(self.position.best_epoch, weights_of(self.objective))
        else:
            self.best = {name: tensor.clone() for name, tensor in weights_of(self.objective).items()}

    def _restore_best(self) -> None:
        """Back to the weights that did best on validation; the last ones where there is no validation."""
        self.replicas.release()
        if self.position.best_epoch == 0:
            return
        best = self.best if self.checkpoints is None else self.checkpoints.load_best(self.position.best_epoch)
        assert best is not None
        load_weights(self.objective, best)

    def save(self, generator: torch.Generator | None = None) -> None:
        """A checkpoint of everything, from which training goes on to the same result, bit by bit."""
        if self.checkpoints is None:
            return
        at = self.position
        tensors = flatten("objective", self.objective.state_dict())[0] | self.optimizers.state()
        if generator is not None:
            tensors["generator"] = generator.get_state()
        facts = {"position": asdict(at), "config": self.config.as_dict(), "data": self.fingerprint()}
        self.checkpoints.save(at.epoch, at.pass_number * len(self.batches) + at.step, tensors, facts)
        self.checkpoints.forget_best_before(at.best_epoch)

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. Other data or config is refused."""
        found = None if self.checkpoints is None else self.checkpoints.latest()
        where = "none" if found is None else str(found[1]["position"])
        self.group.check_same(checkpoint=where)
        if found is None:
            return False
        tensors, facts = found
        check_same_run(facts, self.config, self.fingerprint())
        self.objective.load_state_dict(unflatten("objective", tensors))
        self.optimizers.load_state(tensors)
        self.position = Position(**facts["position"])
        self.resumed_generator = tensors.get("generator")
        return True

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the data to notice that they changed."""
        parts = {"train": self.train, "valid": self.valid}
        return {name: None if part is None else part.fingerprint() for name, part in parts.items()}

    # --------------------------------------------------------------- interruption

    def _ask_to_stop(self) -> None:
        """Stop after the step at hand; asked twice, at once."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True

    def _interrupt(self, generator: torch.Generator) -> None:
        self.save(generator)
        at = self.position
        raise InterruptedRunError(
            f"stopped in epoch {at.epoch + 1} after step {at.step} of {len(self.batches)}; saved"
        )


def _device(name: str) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{name!r} cannot be used ({reason})", where="device") from None
    return device
