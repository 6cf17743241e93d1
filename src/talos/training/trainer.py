"""The one training loop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talos import losses, negatives, thresholds
from talos.backbones import Backbone
from talos.config import RunConfig
from talos.distributed import ALONE, Group, join_gradients_
from talos.errors import ArgumentError, ConfigError, DataError, TalosError
from talos.interactions import Interactions
from talos.shards import Share
from talos.training.batches import Place, generator_for
from talos.training.callbacks import Callback
from talos.training.checkpoint import Checkpoints, flatten, unflatten
from talos.training.objective import Objective
from talos.training.optim import RowAdam
from talos.training.parallel import divide
from talos.training.plan import Plan, make_plan

__all__ = ["InterruptedRunError", "Position", "Trainer"]


class InterruptedRunError(TalosError):
    """Training was asked to stop, and stopped where it can go on."""

    exit_code = 130


@dataclass
class Position:
    """Where a run is: epochs done, the pass within the epoch, steps done in the pass; and the best so far."""

    epoch: int = 0
    pass_number: int = 0  # 0 is the model's own pass, further ones belong to adversaries
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    best: float = -math.inf
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    finished: bool = False


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
            thresholds and optimiser state of its own range of users (and of items, see `talos.training.division`).

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
        loss = losses.by_name(
            config.loss.name, k=config.k, generator=generator, **context, **config.loss.options
        )
        self.plan: Plan = make_plan(config, loss.needs, train)
        self.config = config = self.plan.config
        self.division = divide(config, train, valid, group, self.device)
        source = negatives.parse(config.negatives)
        source.check(self.division.index)
        threshold = None
        if config.threshold.name != "none":
            threshold = thresholds.by_name(
                config.threshold.name,
                k=config.k,
                num_positives=self.division.user_degrees,
                num_users=len(self.division.users),
                num_items=train.num_items,
                **config.threshold.options,
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
        self._make_optimizers()
        self.position = Position()
        self.checkpoints = None
        if folder is not None:
            self.checkpoints = Checkpoints(
                folder,
                keep=config.training.keep_checkpoints,
                group=group,
                parts=self.division.parts(self.objective, self.optimizer),
            )
        self.best: dict[str, Tensor] | None = None
        self.resumed_generator: Tensor | None = None  # its state in the middle of a pass
        self.stop_requested = False

    def _make_optimizers(self) -> None:
        """The model's optimiser, that of joint adversaries, and one for each adversary with its own epochs."""
        options, loss = self.config.optimizer, self.objective.loss
        lr = float(options.lr)
        self.optimizer = RowAdam(
            self.objective.backbone.parameters(), lr=lr, weight_decay=options.weight_decay
        )
        joint = [group for group in loss.adversaries() if group.when == "joint"]
        self.joint = joint
        self.joint_optimizer = (
            torch.optim.Adam([g.param_group(loss, lr=lr) for g in joint]) if joint else None
        )
        self.adversaries = [group for group in loss.adversaries() if group.when == "own-epoch"]
        self.adversary_optimizers = [
            torch.optim.Adam([group.param_group(loss, lr=lr)]) for group in self.adversaries
        ]
        self.parameters = list(self.objective.parameters())
        self.own_parameters = list(self.division.own_parameters(self.objective.backbone).values())
        for parameter in self.parameters:  # the same bits everywhere, whatever each process computed
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
            with self._stop_signals():
                while not self._is_over():
                    self.objective.loss.set_progress(at.epoch / settings.epochs)
                    self._set_rates(float(self.config.optimizer.lr_decay) ** at.epoch)
                    for number, adversary in enumerate([None, *self._due()]):
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
        optimizers = self._optimizers(adversary)
        while at.step < len(self.batches):
            for group in self.joint:
                group.clamp_(self.objective.loss)
            batch, place = self.batches.batch(order, at.step), self.batches.place(order, at.step)
            value = self._step_gradients(batch, place, generator, frozen=adversary is not None)
            for optimizer in optimizers:
                optimizer.step()
            for parameter in self.parameters:
                parameter.grad = None
            at.step += 1
            if adversary is None:
                at.loss_sum += value
                for callback in self.callbacks:
                    callback.on_step(at.epoch, at.step, at.loss_sum / at.step)
            if self.group.any(self.stop_requested) and at.step < len(self.batches):
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
        total = join_gradients_(self.group, self.parameters, self.own_parameters, value.item())
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

    def _due(self) -> list[int]:
        """Which adversaries get an epoch of their own after this epoch of the model."""
        epoch = self.position.epoch
        return [
            i
            for i, group in enumerate(self.adversaries)
            if group.due(epochs_done=epoch + 1, times_done=epoch // (group.every_epochs or 1))
        ]

    def _optimizers(self, adversary: int | None) -> list[torch.optim.Optimizer]:
        if adversary is not None:
            return [self.adversary_optimizers[adversary]]
        return [self.optimizer] if self.joint_optimizer is None else [self.optimizer, self.joint_optimizer]

    def _set_rates(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.config.optimizer.lr) * factor

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

    def _weights(self) -> dict[str, Tensor]:
        """What the finished model is made of."""
        parts = {"backbone": self.objective.backbone, "threshold": self.objective.threshold}
        return flatten("best", {name: part.state_dict() for name, part in parts.items() if part is not None})[
            0
        ]

    def _keep_best(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.save_best(self.position.best_epoch, self._weights())
        else:
            self.best = {name: tensor.clone() for name, tensor in self._weights().items()}

    def _restore_best(self) -> None:
        """Back to the weights that did best on validation; the last ones where there is no validation."""
        if self.position.best_epoch == 0:
            return
        best = self.best if self.checkpoints is None else self.checkpoints.load_best(self.position.best_epoch)
        assert best is not None
        self.objective.backbone.load_state_dict(unflatten("best.backbone", best))
        if self.objective.threshold is not None:
            self.objective.threshold.load_state_dict(unflatten("best.threshold", best))

    def _named_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        named: dict[str, torch.optim.Optimizer] = {"model": self.optimizer}
        if self.joint_optimizer is not None:
            named["joint"] = self.joint_optimizer
        return named | {f"adversary{i}": optimizer for i, optimizer in enumerate(self.adversary_optimizers)}

    def save(self, generator: torch.Generator | None = None) -> None:
        """A checkpoint of everything, from which training goes on to the same result, bit by bit."""
        if self.checkpoints is None:
            return
        at = self.position
        tensors = flatten("objective", self.objective.state_dict())[0]
        for name, optimizer in self._named_optimizers().items():
            tensors |= flatten(f"optimizer.{name}", optimizer.state_dict()["state"])[0]
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
        if facts["data"] != self.fingerprint():
            raise DataError(
                "the data differ from those of the checkpoint",
                where="--resume",
                expected="the data it began with",
            )
        # rows are rows, whoever has them: a run may go on divided in another way
        facts["config"]["training"]["parallel"] = self.config.training.parallel
        different = [
            name for name, value in self.config.as_dict().items() if facts["config"].get(name) != value
        ]
        if different:
            raise ConfigError(
                f"{', '.join(different)} differ from those of the checkpoint",
                where="--resume",
                expected="the settings it began with",
            )
        self.objective.load_state_dict(unflatten("objective", tensors))
        for name, optimizer in self._named_optimizers().items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in unflatten(f"optimizer.{name}", tensors).items():
                number, _, slot = key.partition(".")
                state.setdefault(int(number), {})[slot] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        self.position = Position(**facts["position"])
        self.resumed_generator = tensors.get("generator")
        return True

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the data to notice that they changed."""
        parts = {"train": self.train, "valid": self.valid}
        return {name: None if part is None else part.fingerprint() for name, part in parts.items()}

    # --------------------------------------------------------------- interruption

    @contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Within this block SIGINT and SIGTERM ask for a stop after the step at hand, instead of breaking it off.

        Only where there is something to go on from, and only in the main thread, where Python allows it.
        """
        if self.checkpoints is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self.stop_requested:  # asked twice: at once
                raise KeyboardInterrupt
            self.stop_requested = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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
