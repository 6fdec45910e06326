"""What frameworks, and what NVIDIA's containers bring with them, do from a release on: a fact for each thing in which releases differ."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.plan.vocabularies import OptimizerImplementation

#: first containers of Transformer Engine 1.11, 2.0 and 2.3
_ENGINE_1_11, _ENGINE_2_0, _ENGINE_2_3 = "24.12", "25.03", "25.07"
#: and of 2.7 and 2.11, and of Megatron's rotation of all packed documents at once
_ENGINE_2_7, _ENGINE_2_11, _MEGATRON_DOCUMENTS = "25.09", "26.02", "26.08"
#: and of 2.14
_ENGINE_2_14 = "26.04"
#: and of NeMo's recipes with the cross-entropy of 2.2
_ENGINE_LOSS = "25.04"
#: the container whose cuDNN sums the gradients of biases slowly
_SLOW_BIAS_SUMS = "26.06.01"


def is_before(release: str | None, first: str) -> bool:
    """Tell whether a container is older than the first one of something; one that is not named is the newest."""
    return (release or "99") < first


def is_within(release: str | None, span: tuple[str, str]) -> bool:
    """Tell whether a container is the first of a span, or later and before the one that ends it."""
    return not is_before(release, span[0]) and is_before(release, span[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFacts:
    """What one framework does at one release; two releases that agree in all of it run a plan alike."""

    optimizer_implementation: OptimizerImplementation  #: How Adam steps, where a plan does not say.
    adapters_fp32: bool  #: Whether adapters are in fp32 beside 16-bit weights.
    has_unfused_rope_and_swiglu: bool  #: Whether rotations and gated activations run operation by operation.
    has_unfused_relu2: bool  #: Whether squared ReLUs run operation by operation.
    #: Whether each shape of a weight, or of an expert's, has a tensor that stands for gradients which products have added to the main ones
    #: already (NVIDIA/TransformerEngine, ``pytorch/module/base.py``, ``get_dummy_wgrad``, of 2.3; of grouped products, of 2.10, which
    #: container 26.02 is the first here to have).
    keeps_placeholders: bool
    keeps_expert_placeholders: bool
    compiles_loss: bool  #: Whether the loss of a compiled model is compiled, too.
    #: Whether rotations that are not fused take packed documents one after the other (NVIDIA/Megatron-LM,
    #: ``core/models/common/embeddings/rope_utils.py``: with pull request 5243 of June 2026 ``_apply_rotary_pos_emb_thd`` reads the
    #: lengths on the host and rotates each document by itself; on 22 August 2026, commit d98e8a64, it rotates all of them by a gathered
    #: table).
    rotates_by_document: bool
    #: Whether backward waits for the narrow input that it gathers again before it goes on (NVIDIA/TransformerEngine, pull request 1620
    #: of April 2025: from 2.0 on the gathered tensor was transposed at once, and its gather did not overlap the gradient of the input
    #: any more). NeMo's container 25.04 has the commit bee4649c of March (NVIDIA/NeMo v2.3.0, ``requirements/manifest.json``), 25.02 an
    #: engine before 2.0 and 25.07 one of June.
    waits_for_gathers: bool
    #: Whether rows of experts in eight bits are padded by copying all of them (NVIDIA/TransformerEngine,
    #: ``pytorch/module/fp8_padding.py``, of September 2024; since pull request 1525 of April 2025 rows that need no padding are left
    #: alone).
    repacks_experts: bool
    #: Whether calls of Transformer Engine cost the host what they did before 2.11: containers before 26.02.
    has_early_modules: bool
    #: Whether norms find the largest element of what they make, for current scaling: Transformer Engine's since 2.7.
    norms_find_scales: bool
    #: Whether a tensor is read once more for columns that a Hadamard transform makes: before Transformer Engine 2.14 a kernel of
    #: their own cast them (NVIDIA/TransformerEngine, pull request 2555 of March 2026).
    casts_columns_apart: bool
    #: Whether the fused cross-entropy takes logits in fp32: Megatron-Core's own, until recipes took Transformer Engine's
    #: (``cross_entropy_fusion_impl = "te"``, NVIDIA/NeMo, commit 96578928 of April 2025).
    loss_fp32: bool
    #: Whether sorting tokens by expert visits all experts for every token, as Transformer Engine's kernels did before 2.7.
    permutes_by_scan: bool
    #: By what share of its time a fused product of experts sums the gradient of a bias in its epilogue (NVIDIA/cudnn-frontend, issue 256
    #: and pull request 322: 139.0 us without the sums, 155.6 with them, and 1,362.8 in its versions 1.24 and 1.25, which container
    #: 26.06.01 has).
    bias_summing: float

    @classmethod
    def of(
        cls,
        release: str | None,
        *,
        calls_modules: bool,
        optimizer_implementation: OptimizerImplementation,
        adapters_fp32: bool,
        has_unfused_rope_and_swiglu: bool,
        has_unfused_relu2: bool,
        compiles_loss: bool,
    ) -> ReleaseFacts:
        """Add to what a framework says of a release what Transformer Engine's modules do in it, where it calls them."""
        return cls(
            optimizer_implementation=optimizer_implementation,
            adapters_fp32=adapters_fp32,
            has_unfused_rope_and_swiglu=has_unfused_rope_and_swiglu,
            has_unfused_relu2=has_unfused_relu2,
            compiles_loss=compiles_loss,
            keeps_placeholders=calls_modules and not is_before(release, _ENGINE_2_3),
            keeps_expert_placeholders=calls_modules and not is_before(release, _ENGINE_2_11),
            rotates_by_document=calls_modules and is_before(release, _MEGATRON_DOCUMENTS),
            waits_for_gathers=calls_modules and is_within(release, (_ENGINE_2_0, _ENGINE_2_3)),
            repacks_experts=calls_modules and is_within(release, (_ENGINE_1_11, _ENGINE_2_3)),
            has_early_modules=calls_modules and is_before(release, _ENGINE_2_11),
            norms_find_scales=calls_modules and not is_before(release, _ENGINE_2_7),
            casts_columns_apart=calls_modules and is_before(release, _ENGINE_2_14),
            loss_fp32=calls_modules and is_before(release, _ENGINE_LOSS),
            permutes_by_scan=calls_modules and is_before(release, _ENGINE_2_7),
            bias_summing=(1362.8 if release == _SLOW_BIAS_SUMS else 155.6) / 139.0 - 1.0,
        )
