"""What recipes of frameworks turn on from a release on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.plan.releases import is_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a framework's recipes turn on from a release on."""

    since: str  #: The first container that has it.
    precisions: tuple[str, ...]  #: Precisions whose recipes have it.
    settings: Mapping[str, Any] = field(hash=False)  #: What it means in a plan.

    def is_on(self, settings: Mapping[str, Any], *, is_mixture: bool) -> bool:
        """Tell whether it belongs to a plan of these settings for such a model; a release that is not named is the newest."""
        has_it = not is_before(settings.get("release"), self.since)
        return is_mixture and has_it and settings.get("precision") in self.precisions


#: Transformer Engine's fused operations over all experts are for MXFP8 (NVIDIA/TransformerEngine, pull requests 2622 and 2769)
FUSED_PRECISIONS = ("mxfp8",)
#: Megatron Bridge 26.06 (recipes under src/megatron/bridge/perf_recipes): grouped products fused with their activation, and whole
#: iterations as one graph over experts with paged buffers, which only HybridEP fills, attention in eight bits, for mixtures of
#: experts in MXFP8
FUSED_EXPERTS = Feature(
    since="26.06",
    precisions=FUSED_PRECISIONS,
    settings={
        "moe_fused_experts": True,
        "cuda_graphs": "full_iteration",
        "fp8_modules": "attention",
        "moe_dispatcher": "hybridep",
    },
)
