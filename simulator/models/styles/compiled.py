"""torch.compile: chains of pointwise operators and reductions fused into one kernel each.

References
----------
Ansel et al., "PyTorch 2", ASPLOS 2024, section 4 (fusion, min-cut partitioner: cheap pointwise results are
computed again in backward rather than saved).
"""

from __future__ import annotations

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import AttentionShape, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import (
    cast,
    copy,
    dropout,
    fused_norm,
    kernel,
    map_kernel,
    pointwise,
)
from simulator.models.styles.base import Style
from simulator.models.styles.megatron import fused_loss


class Compiled(Style):
    """One kernel per fusable chain; what a norm or an activation returns is computed again in backward."""

    merges_columns = False
    groups_experts = True
    saves_quantised = False
    recomputes_operators = True

    @property
    def is_autocast(self) -> bool:
        """Compiled code casts at use as eager code does; the casts of activations are fused away."""
        return self.setting.is_autocast

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append one fused norm kernel, recomputed beside its backward."""
        with self.tape.recomputed("inline"):
            return fused_norm(self.tape, self.spec.norm, x, width or self.spec.hidden, self.dtype)

    def activation(self, x: Tensor, *, bias: bool) -> Tensor:
        """Append the activation as one kernel, recomputed beside its backward."""
        with self.tape.recomputed("inline"):
            return pointwise(self.tape, self.activation_kernel, [x], saves=[x])

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Append activation and product as one kernel, recomputed beside its backward."""
        back = map_kernel(self.activation_kernel, [gate, up, gate], [gate, up], in_pass="backward")
        with self.tape.recomputed("inline"):
            return pointwise(self.tape, self.activation_kernel, [gate, up], saves=[gate, up], backward=[back])

    def rotary(self, x: Tensor) -> Tensor:
        """Append the rotation as one kernel each way."""
        return pointwise(self.tape, "rotary", [x])

    def eager_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append product, one kernel of scale, mask, softmax and dropout, and product."""
        scores = self.scores(copy(self.tape, q), copy(self.tape, k), shape)
        weights = pointwise(self.tape, "softmax", [scores], saves_output=True, row=shape.seq_k)
        weights = dropout(self.tape, weights, self.spec.dropout)
        return self.weighted_values(weights, copy(self.tape, v), shape)

    def residual(self, x: Tensor, branch: Tensor, *, bias: bool) -> Tensor:
        """Append dropout and addition as one kernel."""
        n, width = x.n_elements, DTYPE_BYTES[x.dtype]
        mask = n if self.spec.dropout else 0
        forward = kernel("add", n, 2 * n * width, n * width + mask, x.dtype)
        backward: list[LayerItem] = []
        if mask:
            backward.append(kernel("dropout", n, n * width + mask, n * width, x.dtype, in_pass="backward"))
        branch = self.tape.record(
            [cast(self.tape, branch, x.dtype)],
            n,
            x.dtype,
            forward=[forward],
            backward=backward,
            saved_bytes=mask,
            gradient="new" if mask else "alias",
        )
        return self.tape.record([x, branch], n, x.dtype, view=branch, gradient="alias")

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append the compiled cross-entropy: upcast fused, 16-bit logits saved."""
        return fused_loss(self, logits, n_tokens, vocab)
