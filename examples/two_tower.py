"""Talos in an ordinary PyTorch two-tower loop; the five lines that are new are marked.

    python examples/two_tower.py [--plain]

With --plain the same loop runs the softmax loss it had before.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.losses import Talos  # 1
from talos.thresholds import QuantileRegression  # 2

K = 10


class Tower(nn.Module):
    """Features (here: an id) to a unit vector."""

    def __init__(self, size: int, dim: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(size, dim)
        self.layer = nn.Linear(dim, dim)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.table(ids)
        return F.normalize(vectors + self.layer(vectors), dim=-1)


def make_data(users: int = 300, items: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clicks of users with one of eight tastes; a training and a test matrix of booleans."""
    rng = torch.Generator().manual_seed(seed)
    taste = torch.randint(0, 8, (users, 1), generator=rng) == torch.randint(0, 8, (1, items), generator=rng)
    clicks = torch.rand(users, items, generator=rng) < torch.where(taste, 0.4, 0.01)
    held_out = clicks & (torch.rand(users, items, generator=rng) < 0.3)
    return clicks & ~held_out, held_out


def recall_at_k(user_tower: Tower, item_tower: Tower, train: Tensor, test: Tensor) -> float:
    with torch.no_grad():
        scores = user_tower(torch.arange(len(train))) @ item_tower(torch.arange(train.shape[1])).T
    best = scores.masked_fill(train, -2).topk(K).indices
    hits = test.gather(1, best).sum(dim=1)
    asked = test.sum(dim=1)
    return (hits / asked.clamp(min=1))[asked > 0].mean().item()


def train_towers(plain: bool = False, epochs: int = 8, seed: int = 0) -> float:
    torch.manual_seed(seed)
    train, test = make_data()
    num_users, num_items = train.shape
    user_tower, item_tower = Tower(num_users), Tower(num_items)
    optimizer = torch.optim.Adam([*user_tower.parameters(), *item_tower.parameters()], lr=0.03)

    loss_fn, beta = Talos(tau=0.1), QuantileRegression(num_users, k=K, num_items=num_items, lr=0.01)  # 3

    pairs = train.nonzero()
    for _ in range(epochs):
        for batch in pairs[torch.randperm(len(pairs))].split(256):
            users, clicked = batch.T
            sampled = torch.randint(0, num_items, (len(batch), 100))
            mask = train[users[:, None], sampled]
            vectors = user_tower(users)
            pos = (vectors * item_tower(clicked)).sum(dim=-1)
            neg = torch.einsum("bd,bnd->bn", vectors, item_tower(torch.arange(num_items))[sampled])
            if plain:
                loss = (torch.logsumexp(neg.masked_fill(mask, -10) / 0.1, dim=-1) - pos / 0.1).mean()
            else:
                loss = loss_fn(pos, neg, threshold=beta.value(users), mask=mask).mean()  # 4
                beta.update(users, pos.detach(), neg.detach(), mask=mask)  # 5
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return recall_at_k(user_tower, item_tower, train, test)


def main() -> None:
    parser = argparse.ArgumentParser(description="Talos in a two-tower loop.")
    parser.add_argument("--plain", action="store_true", help="train with the softmax loss instead")
    args = parser.parse_args()
    print(f"recall@{K}: {train_towers(plain=args.plain):.3f}")


if __name__ == "__main__":
    main()
