"""XSimGCL: propagation with noise, and a contrastive loss between two of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from talos.backbones.base import Backbone
from talos.backbones.graph import BipartiteGraph, propagate
from talos.errors import ArgumentError

__all__ = ["XSimGCL", "info_nce", "perturb_"]

# Numbers drawn at a time: they stay in cache, and torch does not split so few between threads, which would cost
# more than it saves since only one thread can draw from a generator.
_NOISE_BLOCK = 2**15
# Logits held at a time: 8 MB in float32.
_LOGITS = 2**21


@torch.no_grad()
def perturb_(vectors: Tensor, epsilon: float, generator: torch.Generator | None) -> Tensor:
    """Add ε·sign(e)⊙x/‖x‖ to every row e in place, x uniform on [0, 1]^d; the gradient passes unchanged.

    The noise has length ε and points into the orthant of the vector; a zero stays zero. Drawn on the
    generator's device and block by block, because whole tables of noise cost more to write than to draw.

    >>> rows = perturb_(torch.tensor([[3.0, -3.0]]), 0.1, torch.Generator().manual_seed(0))
    >>> (rows - torch.tensor([[3.0, -3.0]])).norm()
    tensor(0.1000)
    """
    where = vectors.device if generator is None else generator.device
    dim = vectors.shape[-1]
    for block in torch.split(vectors, max(1, _NOISE_BLOCK // dim)):
        noise = torch.rand(block.shape, generator=generator, device=where, dtype=vectors.dtype)
        noise = noise.to(vectors.device)
        length = torch.linalg.vector_norm(noise, dim=-1, keepdim=True).clamp_(min=1e-12)
        block.addcdiv_(noise.mul_(block.sign()), length, value=epsilon)
    return vectors


class _InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, targets: Tensor, tau: float) -> Tensor:
        """Value and both gradients in one pass over blocks of anchors; n × n logits never exist."""
        n = len(anchors)
        value = anchors.new_zeros(())
        to_anchors, to_targets = torch.empty_like(anchors), torch.zeros_like(targets)
        step = max(1, _LOGITS // n)
        for start in range(0, n, step):
            here = slice(start, start + step)
            logits = anchors[here] @ targets.T / tau
            own = (anchors[here] * targets[here]).sum(-1) / tau
            total = torch.logsumexp(logits, dim=-1, keepdim=True)
            value += (total.squeeze(-1) - own).sum()
            share = logits.sub_(total).exp_()
            torch.sub(share @ targets, targets[here], out=to_anchors[here])
            to_targets.addmm_(share.T, anchors[here])
            to_targets[here] -= anchors[here]
        ctx.save_for_backward(to_anchors, to_targets)
        ctx.scale = 1.0 / (n * tau)
        return value / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        to_anchors, to_targets = ctx.saved_tensors
        scale = gradient * ctx.scale
        return to_anchors * scale, to_targets * scale, None


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """InfoNCE between two views: mean_a -log( e^{cos(x_a, y_a)/τ} / Σ_b e^{cos(x_a, y_b)/τ} ).

    Memory is bounded whatever the number of rows: the gradients come with the value, block by block. No rows
    give 0; a zero row has cosine 0 with everything. Not differentiable twice.

    `first` (n, d) are the anchors x, `second` (n, d) the targets y that they are compared with.

    >>> info_nce(torch.eye(2), torch.eye(2), 1.0)     # log(1 + 1/e)
    tensor(0.3133)
    """
    if len(first) == 0:
        return first.sum() + second.sum()
    x, y = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    return cast(Tensor, _InfoNCE.apply(x, y, temperature))  # type: ignore[no-untyped-call]


class XSimGCL(Backbone):
    """XSimGCL: LightGCN's propagation with noise while training, and a contrastive loss between layers.

    Yu, Xia, Chen, Cui, Hung, Yin: "XSimGCL: Towards Extremely Simple Graph Contrastive Learning for
    Recommendation", TKDE 2023. With Δ⁽ˡ⁾ = ε·sign(·)⊙x/‖x‖, x uniform on [0, 1]^d, while training and 0
    otherwise:

        e⁽ˡ⁾ = Â e⁽ˡ⁻¹⁾ + Δ⁽ˡ⁾,    e = 1/L Σ_{l=1..L} e⁽ˡ⁾    (layer 0 is left out)
        auxiliary loss = weight · [ InfoNCE(e_u, e_u⁽ˡ*⁾) + InfoNCE(e_i, e_i⁽ˡ*⁾) ]

    over the distinct users u and distinct items i of a batch, at most `contrast_rows` of each. The tables e⁽⁰⁾ start
    Xavier-uniform. The vector of a user or item without interactions is 0 (its noise too, as sign(0) = 0): its
    parameters get no gradient but that of weight decay.

    Args:
        graph: of the train interactions.
        dim: length of a vector.
        layers: L.
        epsilon: ε, the length of the noise; 0 for none.
        contrast_layer: l*, from 1 to L.
        contrast_temperature: of InfoNCE.
        contrast_weight: of the auxiliary loss; 0 leaves it out.
        contrast_rows: how many users and how many items of a batch are contrasted at most, evenly spread over their
            ids; None for all. A batch of 512 users may have many thousand items, and the time of InfoNCE grows with
            the square of that.
        generator: of the starting values.

    >>> from talos.data.interactions import Interactions
    >>> graph = BipartiteGraph.from_interactions(Interactions.from_ids([1, 1, 2], [7, 8, 8]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> model = XSimGCL(graph, dim=4, generator=generator)
    >>> users, items = model.vectors(training=True, generator=generator)
    >>> model.auxiliary_loss(torch.tensor([0, 1]), torch.tensor([1])).shape
    torch.Size([])
    """

    short_name = "xsimgcl"
    search_space: ClassVar[Mapping[str, Any]] = {
        "layers": [2, 3],
        "contrast_weight": {"low": 0.01, "high": 0.3, "log": True},
    }
    contrast = staticmethod(info_nce)

    def __init__(
        self,
        graph: BipartiteGraph,
        *,
        dim: int = 64,
        layers: int = 3,
        epsilon: float = 0.1,
        contrast_layer: int = 1,
        contrast_temperature: float = 0.1,
        contrast_weight: float = 0.1,
        contrast_rows: int | None = None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(graph.num_users, graph.num_items, dim=dim)
        checks = [
            (layers >= 1, "layers", layers, "1 or more"),
            (epsilon >= 0, "epsilon", epsilon, "0 or more"),
            (1 <= contrast_layer <= layers, "contrast_layer", contrast_layer, f"1 to {layers}, a layer"),
            (contrast_temperature > 0, "contrast_temperature", contrast_temperature, "more than 0"),
            (contrast_weight >= 0, "contrast_weight", contrast_weight, "0 or more"),
            (contrast_rows is None or contrast_rows >= 2, "contrast_rows", contrast_rows, "2 or more"),
        ]
        for valid, name, value, expected in checks:
            if not valid:
                raise ArgumentError(f"{value}", where=name, expected=expected)
        self.graph, self.layers, self.epsilon = graph, layers, epsilon
        self.contrast_layer, self.contrast_weight = contrast_layer, contrast_weight
        self.contrast_temperature, self.contrast_rows = contrast_temperature, contrast_rows
        self.users = nn.Parameter(torch.empty(graph.num_users, dim))
        self.items = nn.Parameter(torch.empty(graph.num_items, dim))
        for table in (self.users, self.items):
            nn.init.xavier_uniform_(table, generator=generator)
        # (final, layer l*) of users and of items, from the last training call.
        self._views: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def vectors(
        self, *, training: bool = False, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean of layers 1..L; while training each layer has noise from `generator`."""
        noisy = training and self.epsilon > 0
        if noisy and generator is None:
            raise ArgumentError("no generator", where="generator", expected="one, for the noise of training")
        sides: tuple[Tensor, Tensor] = self.users, self.items
        contrast, total = sides, None
        for layer in range(1, self.layers + 1):
            sides = propagate(self.graph, *sides)
            if noisy:
                for side in sides:
                    perturb_(side, self.epsilon, generator)
            if layer == self.contrast_layer:
                contrast = sides
            total = sides if total is None else (total[0] + sides[0], total[1] + sides[1])
        assert total is not None
        users, items = total[0] / self.layers, total[1] / self.layers
        kept = training and self.contrast_weight > 0
        self._views = ((users, contrast[0]), (items, contrast[1])) if kept else None
        return users, items

    def auxiliary_loss(self, users: Tensor, items: Tensor) -> Tensor | None:
        """InfoNCE of the users plus that of the items, times the weight; None if the weight is 0."""
        if self.contrast_weight == 0:
            return None
        if self._views is None:
            expected = "vectors(training=True) before it"
            raise ArgumentError("nothing to contrast", where="auxiliary_loss", expected=expected)
        of_users, of_items = (
            self.contrast(final[rows], layer[rows], self.contrast_temperature)
            for (final, layer), rows in zip(
                self._views, (self._contrasted(users), self._contrasted(items)), strict=True
            )
        )
        return self.contrast_weight * (of_users + of_items)

    def _contrasted(self, ids: Tensor) -> Tensor:
        """The distinct ones of some ids, at most `contrast_rows` of them."""
        rows: Tensor = torch.unique(ids)
        if self.contrast_rows is None or len(rows) <= self.contrast_rows:
            return rows
        places = torch.arange(self.contrast_rows, device=rows.device) * len(rows) // self.contrast_rows
        return rows[places]

    def __getstate__(self) -> dict[str, Any]:
        # The tensors for the auxiliary loss have autograd history, which cannot be copied; a copy has no use for them.
        return {**self.__dict__, "_views": None}

    def extra_repr(self) -> str:
        """Sizes and options, for `repr`."""
        names = (
            "layers", "epsilon", "contrast_layer", "contrast_temperature", "contrast_weight", "contrast_rows",
        )  # fmt: skip
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)}" for name in names)])
