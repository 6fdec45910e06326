"""A laboratory's own PyTorch modules under Megatron-style parallelism, with a fused norm."""

from __future__ import annotations

from simulator.models.liveness import Tensor
from simulator.models.ops import layer_norm, rms_norm
from simulator.models.styles.hf_eager import HfEager


class EagerFusedNorm(HfEager):
    """Unfused operators as the Python code names them, but norms from a fused kernel.

    References
    ----------
    Hagemann et al., "Efficient Parallelization Layouts for Large-Scale Distributed Model Training",
    arXiv:2311.05610, section 4.1: the fused RMSNorm kernel beside otherwise plain modules.
    """

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append one fused norm kernel."""
        append = layer_norm if self.spec.norm == "layer_norm" else rms_norm
        return append(self.tape, x, width or self.spec.hidden, self.dtype)
