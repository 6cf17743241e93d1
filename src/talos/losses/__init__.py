"""Losses for recommenders: Talos and ten rivals behind one call.

Every loss is an `nn.Module` with `loss(pos, neg, *, threshold=None, mask=None)` → one value per positive,
unreduced; `loss.needs` states what it asks of a trainer. Nothing here knows where scores, negatives or thresholds
come from, and nothing but torch is needed. `talos.registry` makes losses by name.

>>> import torch
>>> loss = Talos(tau=0.1)
>>> pos, neg = torch.tensor([0.8, 0.1]), torch.tensor([[0.3, 0.2], [0.4, -0.5]])
>>> loss(pos, neg, threshold=torch.tensor([0.3, 0.3]))
tensor([-1.7213,  1.5426])
"""

from talos.losses.adversarial import AdvInfoNCE
from talos.losses.base import Adversary, ListLoss, Loss, Needs, PairwiseLoss, Scores, UserSeparableLoss
from talos.losses.functional import reduce_per_positive, reduce_per_user
from talos.losses.partial_auc import LLPAUC
from talos.losses.phi import PairPhi, Phi
from talos.losses.softmax import BPR, BilateralSoftmax, PairwiseSoftmax, Softmax, SoftmaxAtK
from talos.losses.talos import Talos
from talos.losses.temperature import AdaptiveTau, DRORadius, Schedule, geometric_schedule, tau_for
from talos.losses.topk import AATP, RecallSurrogate, SmoothI

__all__ = [
    "AATP",
    "BPR",
    "LLPAUC",
    "AdaptiveTau",
    "AdvInfoNCE",
    "Adversary",
    "BilateralSoftmax",
    "DRORadius",
    "ListLoss",
    "Loss",
    "Needs",
    "PairPhi",
    "PairwiseLoss",
    "PairwiseSoftmax",
    "Phi",
    "RecallSurrogate",
    "Schedule",
    "Scores",
    "SmoothI",
    "Softmax",
    "SoftmaxAtK",
    "Talos",
    "UserSeparableLoss",
    "geometric_schedule",
    "reduce_per_positive",
    "reduce_per_user",
    "tau_for",
]
