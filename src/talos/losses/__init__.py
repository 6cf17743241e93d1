"""Losses for recommenders: Talos and ten rivals behind one call.

Every loss is an `nn.Module` with `loss(pos, neg, *, threshold=None, mask=None)` → one value per positive,
unreduced, and says in `loss.needs` what it asks of a trainer. Nothing here knows where scores, negatives or
thresholds come from, and nothing but torch is needed.

>>> import torch
>>> loss = Talos(tau=0.1)
>>> pos, neg = torch.tensor([0.8, 0.1]), torch.tensor([[0.3, 0.2], [0.4, -0.5]])
>>> loss(pos, neg, threshold=torch.tensor([0.3, 0.3]))
tensor([-1.7213,  1.5426])
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from talos.errors import ArgumentError, nearest
from talos.losses.adversarial import AdvInfoNCE
from talos.losses.adversary import Adversary
from talos.losses.base import Loss, Needs, UserSeparableLoss
from talos.losses.bpr import BPR
from talos.losses.partial_auc import LLPAUC
from talos.losses.parts import NegativePart
from talos.losses.reduction import reduce_per_positive, reduce_per_user
from talos.losses.softmax import BilateralSoftmax, PairwiseSoftmax, Softmax, SoftmaxAtK
from talos.losses.talos import Talos
from talos.losses.temperature import AdaptiveTau, DRORadius, Schedule, geometric_schedule, tau_for
from talos.losses.topk import AATP, RecallSurrogate, SmoothI

__all__ = [
    "AATP",
    "BPR",
    "LLPAUC",
    "SHORT_NAMES",
    "AdaptiveTau",
    "AdvInfoNCE",
    "Adversary",
    "BilateralSoftmax",
    "DRORadius",
    "Loss",
    "Needs",
    "NegativePart",
    "PairwiseSoftmax",
    "RecallSurrogate",
    "Schedule",
    "SmoothI",
    "Softmax",
    "SoftmaxAtK",
    "Talos",
    "UserSeparableLoss",
    "by_name",
    "geometric_schedule",
    "reduce_per_positive",
    "reduce_per_user",
    "tau_for",
]

SHORT_NAMES: dict[str, type[Loss]] = {
    exported.short_name: exported
    for exported in (globals().get(name) for name in __all__)
    if isinstance(exported, type) and issubclass(exported, Loss) and exported.short_name
}
"""Short name → class, for configurations and the command line: the losses among `__all__`."""


def by_name(
    name: str,
    *,
    k: int | None = None,
    num_users: int | None = None,
    num_items: int | None = None,
    generator: torch.Generator | None = None,
    **hyperparameters: Any,
) -> Loss:
    """The loss of a short name.

    `k`, `num_users`, `num_items` and `generator` describe the run and go to those that ask (`Loss.context`);
    hyperparameters must be arguments of the loss.

    >>> by_name("sl", tau=0.2, k=20)
    Softmax(tau=0.2)
    >>> by_name("rs@k", k=20)
    RecallSurrogate(k=20, tau1=0.1, tau2=1.0)
    >>> by_name("talso")
    Traceback (most recent call last):
    talos.errors.ArgumentError: name: no loss is called 'talso'; expected a short name (did you mean 'talos'?)
    >>> by_name("sl", tua=0.2)
    Traceback (most recent call last):
    talos.errors.ArgumentError: tua: the loss 'sl' has no such argument (did you mean 'tau'?)
    """
    if name not in SHORT_NAMES:
        raise ArgumentError(
            f"no loss is called {name!r}",
            where="name",
            expected="a short name",
            hint=nearest(name, SHORT_NAMES),
        )
    loss = SHORT_NAMES[name]
    signature = inspect.signature(loss).parameters
    accepted = [argument for argument in signature if argument not in loss.context]
    for argument in hyperparameters:
        if argument not in accepted:
            hint = nearest(argument, accepted)
            raise ArgumentError(f"the loss {name!r} has no such argument", where=argument, hint=hint)
    run = {"k": k, "num_users": num_users, "num_items": num_items, "generator": generator}
    given = {key: value for key, value in run.items() if key in loss.context and value is not None}
    required = [key for key, argument in signature.items() if argument.default is argument.empty]
    missing = [key for key in required if key not in given and key not in hyperparameters]
    if missing:
        raise ArgumentError("is missing", where=missing[0], expected=f"a value, for the loss {name!r}")
    return loss(**given, **hyperparameters)
