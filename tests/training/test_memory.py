"""The tables of a step are allocated once: every step writes its gradients and unit vectors to the same memory."""

from __future__ import annotations

import pytest

from talos.config import RunConfig
from talos.data.splits import Split
from talos.kernels import core
from talos.training import Callback, Trainer


@pytest.mark.skipif(not core.levels(), reason="the compiled core was not built")
def test_steps_reuse_their_tables(planted: Split) -> None:
    seen: list[tuple[int, ...]] = []

    class Pointers(Callback):
        """Notes where the gradients of a step are when the trainer has kept their memory, and the unit vectors."""

        def on_step(self, epoch: int, step: int, loss: float) -> None:
            kept = [vars(table)["kept_gradient"] for table in trainer.parameters]
            seen.append(tuple(one.data_ptr() for one in (*kept, trainer.objective._unit_items)))

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
