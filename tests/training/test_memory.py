"""The tables of a step are allocated once: every step writes its gradients and unit vectors to the same memory."""

from __future__ import annotations

import pytest

from talos.config import RunConfig
from talos.data.splits import Split
from talos.kernels import library
from talos.training import Callback, Trainer


@pytest.mark.skipif(not library.levels(), reason="the compiled core was not built")
def test_steps_reuse_their_tables(planted: Split) -> None:
    seen: list[tuple[int, ...]] = []

    class Pointers(Callback):
        """Notes where the gradients of a step lie when the trainer has taken them back."""

        def on_step(self, epoch: int, step: int, loss: float) -> None:
            buffers, items = trainer.objective.gradient_buffers, trainer.objective.backbone.items
            gradients = [buffers.take(table) for table in trainer.parameters]
            seen.append((*(one.data_ptr() for one in gradients), buffers.unit_rows(items).data_ptr()))
            for table, gradient in zip(trainer.parameters, gradients, strict=True):
                table.grad = gradient  # and gives them back
            buffers.reclaim_(trainer.parameters)

    config = {
        "k": 5,
        "backbone": {"name": "mf", "dim": 8},
        "negatives": "all",
        "training": {"epochs": 2, "batch_size": 16},
    }
    trainer = Trainer(RunConfig.from_dict(config), planted.train, callbacks=[Pointers()])
    trainer.fit()
    assert len(seen) > 3
    assert len(set(seen)) == 1
    assert len(set(seen[0])) == 3  # users, items and unit items: none of them shares memory with another
