"""Where vectors start: directions from a factorisation, lengths of the random ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from talos.backbones import MF
from talos.config import RunConfig
from talos.data.datasets import synthetic
from talos.data.interactions import Interactions
from talos.evaluation.evaluate import evaluate
from talos.evaluation.ranking import DotScores
from talos.kernels.csr import TrainIndex
from talos.training import Trainer, plan_for
from talos.training.warm_start import singular_vectors, start_from


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_index() -> tuple[Interactions, TrainIndex]:
    data = synthetic(users=60, items=40, interactions=600, seed=1)
    return data, TrainIndex.from_interactions(data)


@pytest.mark.parametrize("how", ["als", "svd"])
@pytest.mark.parametrize("cosine", [True, False])
def test_lengths_are_kept_where_scores_are_cosines(how: str, cosine: bool) -> None:
    data, index = some_index()
    mf = MF(data.num_users, data.num_items, dim=6, generator=seeded())
    before = [table.detach().clone() for table in mf.tables()]
    start_from(how, mf, index, seeded(1), cosine=cosine)
    for table, old, degrees in zip(mf.tables(), before, (data.user_degrees, data.item_degrees), strict=True):
        assert not torch.equal(table, old)
        lengths = table.norm(dim=1)[torch.from_numpy(degrees > 0)]
        same = torch.isclose(lengths, old.norm(dim=1).mean(), rtol=1e-4)
        assert same.all() if cosine else not same.any()


def test_random_leaves_alone() -> None:
    data, index = some_index()
    mf = MF(data.num_users, data.num_items, dim=6, generator=seeded())
    before = mf.user_table.detach().clone()
    start_from("random", mf, index, seeded(1))
    assert torch.equal(mf.user_table, before)


@pytest.mark.parametrize("how", ["als", "svd"])
def test_who_has_nothing_keeps_a_random_vector(how: str) -> None:
    index = TrainIndex(
        indptr=torch.tensor([0, 2, 2, 4]), indices=torch.tensor([0, 1, 1, 2]), num_users=3, num_items=4
    )
    mf = MF(3, 4, dim=2, generator=seeded())
    user, item = mf.user_table[1].detach().clone(), mf.item_table[3].detach().clone()
    start_from(how, mf, index, seeded(1))
    assert torch.equal(mf.user_table[1], user)
    assert torch.equal(mf.item_table[3], item)
    assert torch.isfinite(mf.user_table).all()


def test_singular_vectors_against_numpy() -> None:
    data, index = some_index()
    dense = np.zeros((data.num_users, data.num_items))
    dense[np.repeat(np.arange(data.num_users), np.diff(data.indptr)), data.indices] = 1
    rows, columns = np.maximum(dense.sum(1), 1), np.maximum(dense.sum(0), 1)
    scaled = dense / np.sqrt(rows)[:, None] / np.sqrt(columns)
    users, items = singular_vectors(index, 40, seeded())  # all of them: nothing is left to chance
    np.testing.assert_allclose((users @ items.T).numpy(), scaled, atol=1e-4)
    values = np.linalg.svd(scaled, compute_uv=False)
    np.testing.assert_allclose((users.norm(dim=0) * items.norm(dim=0)).numpy()[:5], values[:5], rtol=1e-3)
    few, others = singular_vectors(index, 3, seeded())  # within what the missing ones are worth
    assert np.linalg.norm(scaled - (few @ others.T).numpy(), 2) < 1.15 * values[3]


def test_more_directions_than_there_are() -> None:
    _, index = some_index()
    users, items = singular_vectors(index, 100, seeded())
    assert users.shape[1] == items.shape[1] == 100
    assert not users[:, 40:].any()


@pytest.mark.parametrize("backbone", ["mf", "lightgcn", "xsimgcl"])
@pytest.mark.parametrize("how", ["als", "svd"])
def test_a_warm_start_is_ahead_before_the_first_epoch_ends(backbone: str, how: str) -> None:
    split = synthetic(users=150, items=80, interactions=3000, seed=2).split(seed=0)

    def recall(init: str) -> float:
        config = RunConfig().with_values(
            {"k": 5, "backbone.name": backbone, "backbone.dim": 8, "training.init": init,
             "training.epochs": 1, "optimizer.lr": 0.01}
        )  # fmt: skip
        trainer = Trainer(config, split.train)
        trainer.fit()
        report = evaluate(DotScores(*trainer.vectors()), split.test, seen=split.train, ks=[5])
        return report.metrics["recall@5"]

    assert recall(how) > recall("random") + 0.02


def test_directions_decide_not_lengths() -> None:
    data, index = some_index()
    mf = MF(data.num_users, data.num_items, dim=6, generator=seeded())
    start_from("svd", mf, index, seeded(1))
    users, _ = singular_vectors(index, 6, seeded(1))
    torch.testing.assert_close(F.normalize(mf.user_table.detach()), F.normalize(users))


def test_the_chosen_temperature_is_written_down_with_the_run() -> None:
    data, _ = some_index()
    plan = plan_for(RunConfig(k=2), data)
    assert plan.config.loss.options == {"tau": 0.1}
    assert "tau 0.1: for 40 items" in plan.notes
    given_one = RunConfig(k=2).with_values({"loss.tau": 0.3})
    assert plan_for(given_one, data).config.loss.options == {"tau": 0.3}
