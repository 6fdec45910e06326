"""How one rank runs a model: batch, partition, precision and implementation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from simulator.errors import InfeasiblePlanError
from simulator.identity import distinct
from simulator.models.layer import GemmShape
from simulator.models.spec import ModelSpec
from simulator.plan import PRECISIONS, Attention, Precision, Recompute
from simulator.plan.framework import KernelStyle
from simulator.plan.vocabularies import Loss

#: how attention is computed, one kernel of mask and softmax among it
AttentionOperators = Attention | Literal["fused_softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetting:
    """Everything beside the model that decides which kernels one rank launches for one micro-batch."""

    micro_batch: int  #: Sequences.
    sequence_length: int  #: Tokens of one whole sequence, before context parallelism splits it.
    document_length: int = 0  #: Tokens of each document packed into it, within which attention stays; 0: it is one.
    #: Tokens of the document that the mean token is in, where documents are not of equal length; 0: they are.
    unequal_length: int = 0
    #: ``tp``, ``cp``, ``ep``: degrees of tensor, context and expert parallelism.
    tp: int = 1
    #: Whether the tensor-parallel ranks split the tokens between tensor-parallel regions.
    sequence_parallel: bool = False
    cp: int = 1
    ep: int = 1
    etp: int | None = None  #: Degree of the experts' own tensor parallelism; by default ``tp``.
    precision: str = "bf16"  #: One of :data:`simulator.plan.PRECISIONS`.
    kernels: KernelStyle = "megatron"
    #: ``flash``, ``eager``, or ``fused_softmax``: eager with Megatron's kernel of mask and softmax.
    attention: AttentionOperators = "flash"
    #: ``none``, ``selective`` (core attention; with ``compiled``: all but every second matrix product and the attention
    #: kernel), ``full`` (everything but the block's input).
    recompute: Recompute = "none"
    #: What selective recomputation recomputes; where empty what it is in this style.
    recompute_modules: tuple[str, ...] = ()
    offload_modules: tuple[str, ...] = ()  #: Whose inputs wait in host memory.
    captured_modules: tuple[str, ...] = ()  #: What runs as CUDA graphs of its own.
    #: What is in eight bits beside the products of layers: ``attention``, ``output``, ``activation``.
    narrow_modules: tuple[str, ...] = ()
    #: Whose products stay in 16 bits, those of ``attention``, ``mlp``, ``experts``, ``latent`` or ``mtp``; and of how many first
    #: and last blocks all do.
    unquantised_modules: tuple[str, ...] = ()
    unquantised_first: int = 0
    unquantised_last: int = 0
    lora_rank: int = 0  #: Rank of the adapters beside frozen weights; 0 trains every weight.
    lora_targets: tuple[str, ...] = ()  #: Projections that have adapters.
    fuses_operations: bool = (
        False  #: Whether norm, products and activation of a dense MLP are one sequence of fused operations.
    )
    router_fp32: bool = False  #: Whether routers compute in fp32.
    fuses_experts: bool = False  #: Whether one kernel serves all experts of a rank.
    permutes_by_scan: bool = False  #: Whether sorting tokens by expert visits all experts for every token.
    sorts_arrivals: bool = (
        False  #: Whether tokens arrive in the order of their senders, to be sorted by expert, and back.
    )
    #: Whether all rows of narrow experts are copied to be padded, and back.
    repacks_experts: bool = False
    #: Whether what experts save is copied out of buffers of static size, and back in backward.
    stashes_experts: bool = False
    left_sms: int = 0  #: SMs that fused products of experts leave to the exchange of tokens beside them.
    bias_summing: float = 0.0  #: By what share gradients of the first bias lengthen the fused product that sums them.
    stops_early: bool = False  #: Whether recomputation ends as soon as all that was saved is there again.
    expert_load: float = 1.0  #: Tokens of this rank's experts relative to an even share of all routed ones.
    #: Whether gradients of column-parallel products are reduced beside the products of their weights' gradients.
    reduces_beside: bool = True
    #: Whether norms are part of the modules whose products take what they make; and whether they find the largest element of it.
    merges_norms: bool = False
    norms_find_scales: bool = False
    casts_columns_apart: bool = (
        False  #: Whether columns that a Hadamard transform makes are quantised by a kernel of their own.
    )
    #: Whether a narrow input with one scale that backward gathers again is waited for before its gradient is computed.
    waits_for_gathers: bool = False
    #: Whether tokens that ranks gather or reduce along the sequence are copied together or apart by a kernel of their own.
    copies_sequence: bool = False
    #: Whether products that read one input reduce its gradient each by itself, and whether they gather it so, too.
    reduces_by_product: bool = False
    gathers_by_product: bool = False
    loss: Loss = "vocabulary"  #: Over what the loss is.
    loss_fp32: bool = False  #: Whether the fused cross-entropy takes, and saves, logits in fp32.
    has_unfused_swiglu: bool = False  #: Whether Megatron's gated activations run operation by operation.
    has_unfused_relu2: bool = False  #: Whether squared ReLUs that have no gate do.
    has_unfused_rope: bool = False  #: Whether its rotations do.
    n_documents: int = 1  #: Packed into a sequence, whose lengths a kernel has to be told; 1: it is one.
    rotates_by_document: bool = (
        False  #: Whether rotations that are not fused take them one after the other, by lengths that the host reads.
    )
    #: Whether eight-bit products with one scale a tensor take operands in any layout, none of which is transposed for them.
    any_layout: bool = False
    adapters_fp32: bool = False  #: Whether adapters are in fp32 beside 16-bit weights.
    gradient_bytes: int = 4  #: Of one element of the gradients that micro-batches add up.

    @property
    def unquantised(self) -> RankSetting:
        """The same where nothing is quantised."""
        return replace(self, precision=self.dtype, narrow_modules=()) if self.recipe.quantisation else self

    @property
    def recipe(self) -> Precision:
        """What the precision means."""
        return PRECISIONS[self.precision]

    @property
    def dtype(self) -> str:
        """Dtype of activations that enter matrix products."""
        return self.recipe.activations

    @property
    def weight_dtype(self) -> str:
        """Dtype in which the weights are stored on the rank."""
        return self.recipe.weights

    @property
    def gemm_dtype(self) -> str:
        """Dtype in which matrix products that no recipe narrows run."""
        return self.recipe.unquantised_products

    @property
    def is_autocast(self) -> bool:
        """Whether weights are cast at every use."""
        return self.recipe.is_autocast

    @property
    def is_sequence_parallel(self) -> bool:
        """Whether tokens outside tensor-parallel regions are split over the tensor-parallel ranks."""
        return self.sequence_parallel and self.tp > 1

    @property
    def splits_vocabulary(self) -> bool:
        """Whether the loss is over this rank's part of the logits, and sums of parts are reduced."""
        return self.loss in ("vocabulary", "torch-parallel")

    @property
    def expert_tp(self) -> int:
        """Degree of the experts' tensor parallelism."""
        return self.tp if self.etp is None else self.etp

    @property
    def gathers_expert_tokens(self) -> bool:
        """Whether the ranks that share an expert bring different tokens, which each of them needs all of."""
        return self.expert_tp > 1 and (self.tp == 1 or self.is_sequence_parallel)

    @property
    def sequence(self) -> int:
        """Tokens of one sequence on this context-parallel rank."""
        return self.sequence_length // self.cp

    @property
    def attended_length(self) -> int:
        """Tokens of the whole sequence that attention stays within: of one document where the kernel is told where each begins.

        Eager attention computes all scores and masks them. As many equal documents as fit in the sequence share it evenly; none of
        unequal ones is longer than it.
        """
        if not self.document_length or self.attention != "flash":
            return self.sequence_length
        if self.unequal_length:
            return min(self.unequal_length, self.sequence_length)
        return self.sequence_length // max(1, self.sequence_length // self.document_length)

    @property
    def tokens(self) -> int:
        """Tokens inside a tensor-parallel region."""
        return self.micro_batch * self.sequence

    @property
    def tokens_outside(self) -> int:
        """Tokens between tensor-parallel regions: norms, dropout, residuals."""
        return self.tokens // self.tp if self.is_sequence_parallel else self.tokens

    def check(self, spec: ModelSpec) -> None:
        """Check that the partition divides the model and its sequence."""
        if self.sequence_length % self.cp:
            raise InfeasiblePlanError(
                f"cp={self.cp} does not divide sequence_length={self.sequence_length} of {spec.name}",
                hint=f"cp must divide {self.sequence_length}",
            )
        split = self.sequence if self.is_sequence_parallel else 0
        if refused := partition_refusal(spec, tp=self.tp, ep=self.ep, etp=self.expert_tp, split_sequence=split):
            raise InfeasiblePlanError(refused[0], hint=refused[1])


def partition_refusal(
    spec: ModelSpec, *, tp: int = 1, ep: int = 1, etp: int = 1, split_sequence: int = 0
) -> tuple[str, str] | None:
    """Return why tensor- and expert-parallel ranks cannot share a model out evenly, and a way out; None where they can.

    Parameters
    ----------
    etp : int
        Tensor-parallel degree of the experts.
    split_sequence : int
        Tokens of a sequence that the tensor-parallel ranks split; 0 where they split none.
    """
    rules: list[tuple[str, int, str, int]] = []
    for own in distinct(spec.specs_of_blocks):
        rules += [("heads", own.heads, "tp", tp), ("ffn_hidden", own.ffn_hidden, "tp", tp)]
        rules += [("experts", own.n_experts, "ep", ep)]
    if not {"M", "p"}.isdisjoint("".join(spec.blocks)):
        # NVIDIA/Megatron-LM, ``core/ssm/mamba_mixer.py``: "ngroups must be evenly divisible by tp_size"
        rules.append(("ssm_groups", spec.ssm_groups, "tp", tp))
    if ep > 1 and not spec.has_experts:
        return f"ep={ep}: {spec.name} has no experts to distribute", "use --ep 1"
    if spec.has_experts:
        rules.append(("expert_hidden", spec.expert_hidden, "etp", etp))
    rules.append(("sequence_length / cp", split_sequence, "tp", tp))
    for name, size, axis, degree in rules:
        if size % degree:
            common = math.gcd(*(other for _, other, with_axis, _ in rules if with_axis == axis))
            hint = _allowed_tp(spec, common) if axis == "tp" else f"{axis} must divide {common}"
            return f"{axis}={degree} does not divide {name}={size} of {spec.name}", hint
    for own in distinct(spec.specs_of_blocks):
        if _splits_heads(own, tp):
            common = math.gcd(*(size for _, size, axis, _ in rules if axis == "tp"))
            return f"tp={tp} would cut key-value heads of {spec.name}, which has {own.kv_heads}", _allowed_tp(
                spec, common
            )
    return partition_refusal(spec.image, tp=tp) if spec.image else None


def check_blocks(shape: GemmShape, precision: str, block: int) -> None:
    """Check that operands and result of a product, all of which are quantised, are made of whole blocks of a precision.

    Raises
    ------
    InfeasiblePlanError
        Some dimension is no multiple of ``block``, which libraries refuse.
    """
    sizes = (("tokens", shape.m), ("outputs", shape.n), ("inputs", shape.k))
    if wrong := [f"{size} {name}" for name, size in sizes if size % block]:
        raise InfeasiblePlanError(
            f"precision={precision} scales blocks of {block} elements, which do not divide the {' and '.join(wrong)} of {shape.name}",
            hint=f"sizes of a rank that {block} divides, by --sequence-length, --tp or the model; or --precision fp8_current, "
            "or leave its modules in 16 bits (--set bf16_modules=...)",
        )


def _allowed_tp(spec: ModelSpec, common: int) -> str:
    """Say which divisors of what all sizes have in common leave key-value heads whole."""
    fitting = [
        tp
        for tp in range(1, common + 1)
        if common % tp == 0 and not any(_splits_heads(own, tp) for own in distinct(spec.specs_of_blocks))
    ]
    if all(fitting[-1] % tp or tp in fitting for tp in range(1, fitting[-1])):
        return f"tp must divide {fitting[-1]}"
    return f"tp must be one of {', '.join(map(str, fitting))}"


def _splits_heads(spec: ModelSpec, tp: int) -> bool:
    """Whether ranks would get parts of key-value heads, which no framework computes with.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/attention.py``: as many query groups as a multiple of the ranks, or the reverse.
    """
    return not spec.is_latent_attention and max(spec.kv_heads, tp) % min(spec.kv_heads, tp) != 0
