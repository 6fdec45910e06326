"""Words of settings that several parts share, and the groups of settings."""

from __future__ import annotations

from typing import Literal, get_args

from simulator.plan import framework_schedules as pipelines

Sharding = Literal["none", "zero1", "zero2", "zero3", "hsdp"]
OuterSharding = Literal["none", "optim"]
Recompute = Literal["none", "selective", "full"]
#: the lightest first
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
RecomputeMethod = Literal["uniform", "block"]
Optimizer = Literal["adam", "muon"]
#: How Adam steps: in one operation over all tensors, operation by operation over all of them, or tensor by tensor.
OptimizerImplementation = Literal["fused", "foreach", "for-loop"]
#: What Muon orthogonalises of a matrix that tensor-parallel ranks share: the gathered whole on every rank, each rank's part by itself, or
#: the whole by all of them together.
MuonMode = Literal["duplicated", "blockwise", "distributed"]
Attention = Literal["flash", "eager"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
AttentionKernel = Literal["flash_attention", "flash_attention_1", "flash_attention_2", "flash_attention_triton",
                          "fused_softmax"]  # fmt: skip
GradientCollective = Literal["all_reduce", "reduce_scatter", "reduce"]
Compression = Literal["none", "fp16", "bf16", "onebit"]
Offload = Literal["none", "cpu"]
ContextExchange = Literal["p2p", "all_gather", "a2a"]
#: Over what the loss is: a rank's part of the ``vocabulary``; ``gathered`` logits, where a head replicates its output; ``torch``,
#: ``torch.nn.functional.cross_entropy`` of gathered logits; ``torch-fp32``, of logits that are widened before they are gathered;
#: ``torch-parallel``, of a rank's part of widened ones (PyTorch's ``loss_parallel``); ``linear``, fused with the product that makes
#: its logits, of which there is never more than a piece (Liger's ``fused_linear_cross_entropy``).
Loss = Literal["vocabulary", "gathered", "torch", "torch-fp32", "torch-parallel", "linear"]
#: What published runs of a framework have where they do not say: ``flash`` attention; ``interleaving`` of a pipeline's stages;
#: ``sequence_parallel``, wherever tensors are split; ``parameter_gather`` beside forward; ``padded_vocabulary``, to 128 rows for each
#: tensor-parallel rank; ``unbalanced_context``, ranks of which are not equally long under a causal mask; ``local_batch``, which a pipeline
#: splits into micro-batches and gradient accumulation into pieces; ``drained_batch``, a local batch after which the pipeline drains; and
#: ``own_recipes``, which set model by model what no cell of a table says: uneven ends, full sharding, widths of states.
Usual = Literal["flash", "interleaving", "sequence_parallel", "parameter_gather", "padded_vocabulary", "unbalanced_context",
                "local_batch", "drained_batch", "own_recipes"]  # fmt: skip
#: what people type, whatever the case -> pipeline schedule
SCHEDULE_NAMES = {
    **{name: name for name in (*pipelines.TORCH.schedules, *pipelines.INTERNEVO.schedules, *pipelines.COMBINED)},
    **{name: name for name in pipelines.OTHER_PROGRAMS},
    **dict.fromkeys(("zb-h1", "zbh1"), "zb-1p"), **dict.fromkeys(("zb-h2", "zbh2"), "zb-2p"),
    **dict.fromkeys(("zbv", "zbvzerobubble"), "zb-v"), "dualpipev": "dualpipe-v",
    **dict.fromkeys(("interleaved", "interleaved1f1b", "interleaved-1f1b"), "1f1b-interleaved"),
}  # fmt: skip
#: groups of settings and their headings
GROUPS = {name: name.capitalize() for name in ("degrees", "batch", "sharding", "pipeline", "precision")} | {
    "recompute": "Recomputation and offloading", "overlap": "Overlap", "experts": "Experts", "software": "Software",
    "tuning": "Fine-tuning", "data": "Data loading"}  # fmt: skip
