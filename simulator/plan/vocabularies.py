"""Words of settings that several parts share, and the groups of settings."""

from __future__ import annotations

from typing import Literal, get_args

Sharding = Literal["none", "zero1", "zero2", "zero3", "hsdp"]
Recompute = Literal["none", "selective", "full"]
#: the lightest first
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
RecomputeMethod = Literal["uniform", "block"]
Optimizer = Literal["adam", "muon"]
#: How Adam steps: in one operation over all tensors, operation by operation over all of them, or tensor by tensor.
OptimizerImplementation = Literal["fused", "foreach", "for-loop"]
Attention = Literal["flash", "eager"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
AttentionKernel = Literal["flash_attention", "flash_attention_1", "flash_attention_2", "flash_attention_triton",
                          "fused_softmax"]  # fmt: skip
GradientCollective = Literal["all_reduce", "reduce_scatter", "reduce"]
Compression = Literal["none", "fp16", "bf16", "onebit"]
Offload = Literal["none", "cpu"]
ContextExchange = Literal["p2p", "all_gather", "a2a"]
#: groups of settings and their headings
GROUPS = {name: name.capitalize() for name in ("degrees", "batch", "sharding", "pipeline", "precision")} | {
    "recompute": "Recomputation and offloading", "overlap": "Overlap", "experts": "Experts", "software": "Software",
    "tuning": "Fine-tuning", "data": "Data loading"}  # fmt: skip
