"""Implementation styles: which kernels a framework launches for the same mathematics."""

from __future__ import annotations

from simulator.models.styles.base import Style
from simulator.models.styles.compiled import Compiled
from simulator.models.styles.hand_written import HandWritten
from simulator.models.styles.hf_eager import HfEager
from simulator.models.styles.megatron import Fused, Megatron
from simulator.models.styles.torch_modules import EagerFusedNorm, TorchModules

#: name in :class:`simulator.plan.Framework` -> style
STYLES: dict[str, type[Style]] = {
    "hf-eager": HfEager,
    "torch-modules": TorchModules,
    "eager-fused-norm": EagerFusedNorm,
    "megatron": Megatron,
    "compiled": Compiled,
    "fused": Fused,
    "hand-written": HandWritten,
}
