"""XSimGCL: propagation with noise, and a contrastive loss between two of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from talos.backbones.graph import BipartiteGraph, GraphBackbone, propagate
from talos.checks import require
from talos.errors import ArgumentError
from talos.kernels.batch import differentiable_user_batch_loss
from talos.kernels.csr import Batch
from talos.losses import Softmax

__all__ = ["XSimGCL", "info_nce", "perturb_"]

# Numbers drawn at a time: they stay in cache, and torch does not split so few between threads, which would cost
# more than it saves since only one thread can draw from a generator.
_NOISE_BLOCK = 2**15


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
    for block in torch.split(vectors, max(1, _NOISE_BLOCK // vectors.shape[-1])):
        noise = torch.rand(block.shape, generator=generator, device=where, dtype=vectors.dtype)
        noise = noise.to(vectors.device)
        length = torch.linalg.vector_norm(noise, dim=-1, keepdim=True).clamp_(min=1e-12)
        block.addcdiv_(noise.mul_(block.sign()), length, value=epsilon)
    return vectors


def info_nce(first: Tensor, second: Tensor, temperature: float, *, bfloat16: bool = False) -> Tensor:
    """InfoNCE between two views: mean_a -log( e^{cos(x_a, y_a)/τ} / Σ_b e^{cos(x_a, y_b)/τ} ).

    It is the softmax loss of anchors whose one positive is their own other view, so n × n logits are never held. No
    rows give 0; a zero row has cosine 0 with everything. Not differentiable twice.

    Args:
        first: (n, d), the anchors x.
        second: (n, d), the targets y that they are compared with.
        temperature: τ.
        bfloat16: let the core round the factors of its products to bfloat16.

    >>> info_nce(torch.eye(2), torch.eye(2), 1.0)     # log(1 + 1/e)
    tensor(0.3133)
    """
    if len(first) == 0:
        return first.sum() + second.sum()
    rows = torch.arange(len(first) + 1, device=first.device)
    return differentiable_user_batch_loss(
        F.normalize(first, dim=-1),
        second,
        rows,
        rows[:-1],
        None,
        Softmax(tau=temperature),
        excluded=None,
        normalize_items=True,
        bfloat16=bfloat16,
    )


class XSimGCL(GraphBackbone):
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
    >>> model.items(generator=generator).shape
    torch.Size([2, 4])
    """

    short_name = "xsimgcl"
    search_space: ClassVar[Mapping[str, Any]] = {
        "layers": [2, 3],
        "contrast_weight": {"low": 0.01, "high": 0.3, "log": True},
    }
    shown = (
        *GraphBackbone.shown,
        "layers",
        "epsilon",
        "contrast_layer",
        "contrast_temperature",
        "contrast_weight",
        "contrast_rows",
    )

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
        super().__init__(graph, dim=dim)
        for fits, name, value, expected in (
            (layers >= 1, "layers", layers, "1 or more"),
            (epsilon >= 0, "epsilon", epsilon, "0 or more"),
            (1 <= contrast_layer <= layers, "contrast_layer", contrast_layer, f"1 to {layers}, a layer"),
            (contrast_temperature > 0, "contrast_temperature", contrast_temperature, "more than 0"),
            (contrast_weight >= 0, "contrast_weight", contrast_weight, "0 or more"),
            (contrast_rows is None or contrast_rows >= 2, "contrast_rows", contrast_rows, "2 or more"),
        ):
            require(fits, f"{value}", where=name, expected=expected)
        self.layers, self.epsilon = layers, epsilon
        self.has_auxiliary_loss = contrast_weight > 0
        self.contrast_layer, self.contrast_weight = contrast_layer, contrast_weight
        self.contrast_temperature, self.contrast_rows = contrast_temperature, contrast_rows
        self.user_table = nn.Parameter(torch.empty(graph.num_users, dim))
        self.item_table = nn.Parameter(torch.empty(graph.num_items, dim))
        for table in self.tables():
            nn.init.xavier_uniform_(table, generator=generator)
        # (final, layer l*) of users and of items, from the last training step
        self._views: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def propagated(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The mean of layers 1 to L; in training mode each layer has noise from `generator`."""
        noisy = self.training and self.epsilon > 0
        require(
            generator is not None or not noisy,
            "no generator",
            where="generator",
            expected="one, for the noise of training",
        )
        sides: tuple[Tensor, Tensor] = self.user_table, self.item_table
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
        views = (users, contrast[0]), (items, contrast[1])
        self._views = views if self.training and self.has_auxiliary_loss else None
        return users, items

    def auxiliary_loss(self, batch: Batch, *, bfloat16: bool = False) -> Tensor:
        """InfoNCE of the users plus that of the positives, times the weight."""
        if self._views is None:
            raise ArgumentError(
                "nothing to contrast", where="auxiliary_loss", expected="items() in training mode before it"
            )
        users, items = self._views
        of_users = self._contrast(*users, batch.users + self.first_user, bfloat16)
        return self.contrast_weight * (of_users + self._contrast(*items, batch.positives.items, bfloat16))

    def _contrast(self, final: Tensor, layer: Tensor, ids: Tensor, bfloat16: bool) -> Tensor:
        """InfoNCE of the distinct ones of some ids, at most `contrast_rows` of them."""
        rows = torch.unique(ids)
        if self.contrast_rows is not None and len(rows) > self.contrast_rows:
            rows = rows[
                torch.arange(self.contrast_rows, device=rows.device) * len(rows) // self.contrast_rows
            ]
        return info_nce(final[rows], layer[rows], self.contrast_temperature, bfloat16=bfloat16)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_views": None}
