"""The model as one rank of a plan runs it: the settings of its layers, from plan, framework and device."""

from __future__ import annotations

from dataclasses import replace

from simulator.dtypes import DTYPE_BYTES
from simulator.errors import InfeasiblePlanError
from simulator.models.build import build_model
from simulator.models.layer import Model
from simulator.models.recorded import RecordedModule
from simulator.models.setting import RankSetting
from simulator.models.spec import ModelSpec
from simulator.parallel.expert import expert_load, sorts_arrivals
from simulator.plan import ParallelPlan
from simulator.plan.fields import words_of
from simulator.plan.module_names import LORA_TARGETS
from simulator.plan.stage_layout import parse_layout
from simulator.schedules import find_schedule
from simulator.topology.device import Device


def n_predictions(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> int:
    """Count the multi-token predictions trained: the model's, or, as catalogues and config files leave them out, the layout's."""
    known = 0 if isinstance(spec, RecordedModule) else spec.mtp_layers
    return known or (
        "".join(parse_layout(plan.pipeline_layout)).count("m") if plan.pp > 1 and plan.pipeline_layout else 0
    )


def packed_length(plan: ParallelPlan, sequence_length: int) -> int:
    """Mean tokens of the documents in a sequence; 0 where it does not hold two of them, or is one."""
    length = plan.document_length or 0
    return length if 2 * length <= sequence_length else 0


def adapted_projections(plan: ParallelPlan) -> tuple[str, ...]:
    """Return the projections that have adapters: words of :data:`LORA_TARGETS`, all of them unless told."""
    return (words_of(plan.lora_targets) or LORA_TARGETS) if plan.lora_rank else ()


def _n_documents(plan: ParallelPlan, sequence_length: int) -> int:
    """Documents per sequence that the kernels know about; 1 where it is one, or where nothing tells them apart."""
    length = packed_length(plan, sequence_length) if plan.attention == "flash" else 0
    return round(sequence_length / length) if length else 1


def model_for(spec: ModelSpec | RecordedModule, plan: ParallelPlan, device: Device | None = None) -> Model:
    """Build a model's layers as one rank of a plan runs them, on a device of which kernels depend on what it can multiply."""
    if isinstance(spec, RecordedModule):
        return spec.model(plan)
    sequence_length = plan.sequence_length or spec.max_positions
    if n_predictions(spec, plan) != spec.mtp_layers:
        spec = replace(spec, mtp_layers=n_predictions(spec, plan))
    if plan.pp > 1 and (spec.image or spec.encoder_positions):
        raise InfeasiblePlanError(
            f"pp={plan.pp}: {spec.name} has two stacks over sequences of their own, whose tensors no stage boundary carries both",
            hint="use --pp 1",
        )
    framework, released = plan.framework_spec, plan.release_facts
    setting = RankSetting(
        micro_batch=plan.micro_batch, sequence_length=sequence_length, document_length=packed_length(plan, sequence_length),
        unequal_length=plan.attended_length if plan.document_spread else 0,
        tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp,
        sequence_parallel=plan.sequence_parallel, precision=plan.precision, kernels=framework.kernels,
        attention=plan.softmax_kernel or plan.attention, recompute=plan.recompute, recompute_modules=plan.recomputed_modules,
        offload_modules=plan.offloaded_modules, captured_modules=plan.captured_modules, narrow_modules=plan.narrow_modules,
        lora_rank=plan.lora_rank or 0,
        unquantised_modules=plan.unquantised_modules, unquantised_first=plan.bf16_first_layers, unquantised_last=plan.bf16_last_layers,
        lora_targets=adapted_projections(plan), fuses_experts=plan.moe_fused_experts, stashes_experts=plan.stashes_experts,
        fuses_operations=plan.fused_operations and framework.has_fused_layers and plan.precision_spec.quantisation is not None,
        bias_summing=released.bias_summing,
        left_sms=framework.margin_sms if plan.moe_fused_experts and find_schedule(plan.schedule).takes_turns else 0,
        permutes_by_scan=plan.permutes_by_scan, sorts_arrivals=sorts_arrivals(plan), stops_early=framework.stops_recompute_early,
        router_fp32=framework.router_fp32,
        expert_load=expert_load(plan), gradient_bytes=plan.reduced_bytes,
        reduces_beside=framework.reduces_beside_products and not plan.launch_blocking,
        repacks_experts=released.repacks_experts, loss_fp32=released.loss_fp32,
        merges_norms=framework.calls_modules, norms_find_scales=released.norms_find_scales,
        casts_columns_apart=released.casts_columns_apart,
        waits_for_gathers=released.waits_for_gathers and not plan.asynchronous_tp,
        copies_sequence=framework.copies_sequence and not plan.asynchronous_tp, adapters_fp32=released.adapters_fp32,
        reduces_by_product=framework.parallel_by_product,
        gathers_by_product=framework.parallel_by_product and framework.host != "compiled",
        loss=framework.loss if framework.host != "compiled" or released.compiles_loss else "torch-parallel",
        any_layout=device is not None and device.multiplies_any_layout,
        has_unfused_swiglu=released.has_unfused_rope_and_swiglu, has_unfused_relu2=released.has_unfused_relu2,
        has_unfused_rope=released.has_unfused_rope_and_swiglu or not plan.rope_fusion,
        n_documents=_n_documents(plan, sequence_length), rotates_by_document=released.rotates_by_document,
    )  # fmt: skip
    return build_model(spec, setting)


def boundary_bytes(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> int:
    """Bytes of the activation ``[micro_batch, sequence / cp, hidden]`` between two layers, of all copies of the residual stream."""
    if isinstance(spec, RecordedModule):
        return max((layer.output_bytes for layer in spec.model(plan).layers), default=0)
    sequence_length = plan.sequence_length or spec.max_positions
    element = DTYPE_BYTES[plan.precision_spec.activations]
    return plan.micro_batch * sequence_length // plan.cp * spec.stream_width * element
