"""The contrast of two views by the kernels that go over all items: the rows of the other view take the items' place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from talos.kernels import differentiable_user_batch_loss
from talos.losses import Softmax

__all__ = ["info_nce"]


def info_nce(first: Tensor, second: Tensor, temperature: float, *, bfloat16: bool = False) -> Tensor:
    """InfoNCE as in `talos.backbones.info_nce`: the softmax loss of anchors whose one positive is their own other view.

    `bfloat16` lets the core round the factors of its products, as for the loss itself.

    >>> info_nce(torch.eye(2), torch.eye(2), 1.0)     # log(1 + 1/e)
    tensor(0.3133)
    """
    rows = torch.arange(len(first) + 1, device=first.device)
    if len(first) == 0:
        return first.sum() + second.sum()
    return differentiable_user_batch_loss(
        F.normalize(first, dim=-1),
        second,
        rows,
        rows[:-1],
        None,
        Softmax(tau=temperature),
        exclude_positives=False,
        normalize_items=True,
        bfloat16=bfloat16,
    )
