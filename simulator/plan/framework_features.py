"""What recipes of frameworks turn on from a release on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a framework's recipes turn on from a release on."""

    since: str  #: The first container that has it.
    precisions: tuple[str, ...]  #: Precisions whose recipes have it.
    settings: Mapping[str, Any] = field(hash=False)  #: What it means in a plan.

    def is_on(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether it belongs to a plan of these settings."""
        release, has_experts = str(settings.get("release") or ""), int(settings.get("ep") or 1) > 1
        return has_experts and release >= self.since and settings.get("precision") in self.precisions


#: Transformer Engine's fused operations over all experts are for MXFP8 (NVIDIA/TransformerEngine, pull requests 2622 and 2769)
FUSED_PRECISIONS = ("mxfp8",)
#: Megatron Bridge 26.06 (recipes under src/megatron/bridge/perf_recipes): grouped products fused with their activation, and whole
#: iterations as one graph over experts with paged buffers, attention in eight bits, for mixtures of experts in MXFP8
FUSED_EXPERTS = Feature(
    since="26.06",
    precisions=FUSED_PRECISIONS,
    settings={"moe_fused_experts": True, "cuda_graphs": "full_iteration", "fp8_modules": "attention"},
)
