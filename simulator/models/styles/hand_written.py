"""CUDA written for one model: what follows from each other runs as one kernel, at the rate of memory."""

from __future__ import annotations

from simulator.models.liveness import Tensor
from simulator.models.ops import kernel, map_kernel, pointwise
from simulator.models.styles.megatron import Fused


class HandWritten(Fused):
    """The kernels of llm.c: loss and its gradient at once, norms at the rate of memory, no copies around attention.

    References
    ----------
    karpathy/llm.c@f1e2ace651, ``llmc/fused_classifier.cuh`` (reads the logits twice and overwrites them with their gradient),
    ``llmc/layernorm.cuh``, ``llmc/cudnn_att.cpp`` (one gradient of queries, keys and values).
    """

    merges_gradients = True

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append a norm that streams its rows; backward adds up the weights' gradients as others do."""
        width = width or self.spec.hidden
        statistics = 8 * (x.n_elements // width)
        back = map_kernel("layer_norm", [x, x], [x], extra_bytes=statistics, row=width, in_pass="backward")
        return pointwise(self.tape, "residual_norm", [x], saves=[x], saved_bytes=statistics, backward=[back])

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append one kernel that leaves the gradient where the logits were."""
        if self.setting.tp > 1:
            return super().loss(logits, n_tokens, vocab)
        both = kernel("classifier", logits.n_elements, 2 * logits.n_bytes, logits.n_bytes, logits.dtype)
        return self.tape.record([logits], 1, "fp32", forward=[both], saves=[logits])
