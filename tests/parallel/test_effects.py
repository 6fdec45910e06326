"""Every setting of a plan changes time or memory somewhere, or says that it does not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from simulator.models.spec import ModelSpec
from simulator.models.transformer import graph_scopes
from simulator.parallel.idle import idle_settings
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

DENSE = ModelSpec(name="dense", architecture="llama", layers=8, hidden=1024, heads=16, ffn_hidden=4096, vocab=4096, max_positions=1024,
                  gated_mlp=True, activation="silu", positions="rotary", norm="rms_norm", norm_bias=False, mlp_bias=False,
                  attention_bias=False, attention_output_bias=False)  # fmt: skip
EXPERTS = replace(DENSE, name="experts", n_experts=16, top_k=4, expert_hidden=1024, shared_expert_hidden=1024)
BASE = {"gpus": 16, "micro_batch": 1, "global_batch": 64, "framework": "megatron-core"}
DDP = {"framework": "hf-eager", "precision": "amp_bf16"}
ZERO3 = {"framework": "deepspeed", "sharding": "zero3"}
FSDP = {"framework": "fsdp", "sharding": "zero3"}
PIPE = {"pp": 4, "tp": 2}
CONTEXT = {"cp": 4}
MOE = {"ep": 16}

EFFECTS = [
    ("gpus", 8, {}), ("tp", 2, {}), ("pp", 2, {}), ("cp", 2, {}),
    ("ep", 8, {"experts": True}),
    ("etp", 1, {"experts": True, "tp": 4, "ep": 2, "sequence_parallel": True}),
    ("virtual_pp", 2, PIPE), ("sharding", "zero1", {}), ("sharding", "zero2", {"framework": "deepspeed"}),
    ("sharding_group", 8, {"sharding": "zero1"}), ("outer_sharding", "optim", {"sharding": "zero3", "sharding_group": 8}),
    ("schedule", "zb-v", PIPE), ("schedule", "dualpipe", PIPE),
    ("pipeline_batch", 8, PIPE),
    ("micro_batch", 2, {}), ("global_batch", 128, {}), ("sequence_length", 512, {}), ("precision", "fp32", {}),
    ("document_length", 128, {}), ("document_spread", 1.0, {"document_length": 128}),
    ("document_length", 128, {**CONTEXT, "sequence_length": 16384}),
    ("recompute", "full", {}), ("attention", "eager", {}), ("sequence_parallel", True, {"tp": 4}), ("framework", "hf-eager", {}),
    ("overlap_p2p", False, {**PIPE, "virtual_pp": 2}), ("overlap_p2p", True, PIPE),
    ("overlap", False, {}), ("overlap_parameter_gather", True, {"sharding": "zero1"}),
    ("asynchronous_tp", True, {"tp": 4, "sequence_parallel": True, "micro_batch": 4}),
    ("scatter_gather", True, {"pp": 2, "tp": 8}), ("pipeline_layout", "Ett|ttt|tt|tL", PIPE),
    ("first_stage_layers", 1, PIPE), ("last_stage_layers", 1, PIPE),
    ("account_for_embedding", True, {"pp": 3, "gpus": 12}),
    ("rank_order", "tp-cp-ep-pp-dp", PIPE), ("rank_order", "tp-cp-dp-ep-pp", {"experts": True, "ep": 4}),
    ("bucket_bytes", 4_000_000, {}), ("bucket_bytes", 4_000_000, ZERO3), ("gradient_bytes", 2, {}),
    ("gradient_collective", "reduce_scatter", {"framework": "deepspeed", "sharding": "zero1"}),
    ("gradient_collective", "reduce", {"framework": "deepspeed", "sharding": "zero2"}), ("gradient_compression", "bf16", DDP),
    ("gradient_compression", "onebit", {"framework": "deepspeed", "sharding": "none"}),
    ("gradient_as_bucket_view", True, DDP), ("backward_prefetch", "none", FSDP), ("no_sync", True, FSDP),
    ("recompute_gathers", True, {**FSDP, "recompute": "full"}),
    ("optimizer_implementation", "foreach", {}), ("optimizer_implementation", "fused", FSDP),
    ("attention_kernel", "flash_attention_1", {}), ("launch_blocking", True, {}), ("rope_fusion", False, {}),
    ("backward_prefetch", "post", {**FSDP, "recompute": "full"}),
    ("forward_prefetch", True, FSDP), ("prefetch_depth", 2, {"framework": "fsdp2", "sharding": "zero3"}),
    ("limit_all_gathers", False, FSDP), ("secondary_group", 8, ZERO3),
    ("secondary_group", 8, {"framework": "torchtitan", "sharding": "zero3"}), ("quantized_weights", True, ZERO3),
    ("quantized_gradients", True, ZERO3), ("prefetch_elements", 0, ZERO3), ("persistence_elements", 2 * 10**6, ZERO3),
    ("max_live_elements", 10**6, ZERO3), ("max_reuse_elements", 10**6, {**ZERO3, "recompute": "full"}),
    ("offload_optimizer", "cpu", ZERO3), ("offload_optimizer", "cpu", {"sharding": "zero1"}), ("offload_parameters", "cpu", ZERO3),
    ("cp_comm_type", "all_gather", CONTEXT), ("cp_comm_type", "a2a", CONTEXT),
    ("cp_load_balance", False, {**CONTEXT, "sequence_length": 16384}),
    ("moe_dispatcher", "allgather", {"experts": True, **MOE}), ("moe_dispatcher", "deepep", {"experts": True, **MOE}),
    ("moe_capacity_factor", 0.5, {"experts": True}), ("moe_imbalance", 1.5, {"experts": True, **MOE}),
    ("moe_pad_to_capacity", True, {"experts": True, "ep": 4, "moe_imbalance": 1.5, "moe_capacity_factor": 1.25}),
    ("moe_fp8_dispatch", True, {"experts": True, **MOE}),
    ("delay_wgrad", False,
     {"experts": True, "ep": 2, "pp": 2, "virtual_pp": 2, "schedule": "1f1b-combined", "sequence_length": 4096}),
    ("moe_dispatcher_sms", 4, {"experts": True, **MOE, "moe_dispatcher": "deepep", "sequence_length": 8192}),
    ("moe_dispatcher_sms", 64, {"experts": True, **MOE, "moe_dispatcher": "hybridep", "moe_shared_expert_overlap": True,
     "sequence_length": 8192}),
    ("moe_dispatcher_sms", 64, {"experts": True, **MOE, "moe_dispatcher": "hybridep", "schedule": "1f1b-combined",
     "sequence_length": 8192}),
    ("moe_fused_experts", True, {"experts": True, "ep": 2}),
    ("moe_shared_expert_overlap", True, {"experts": True, **MOE}), ("cuda_graphs", "attn+mlp", {}), ("cuda_graphs", "full_iteration", {}),
    ("lora_rank", 16, {}), ("lora_targets", "qkv", {"lora_rank": 16}), ("offload_layers", 4, {}),
    ("offload_modules", "attn_norm", {"sequence_length": 2048}), ("moment_bytes", 2, {}),
    ("nccl_user_buffers", True, {"sharding": "zero1", "overlap": True}),
    ("master_bytes", 2, {}), ("optimizer", "muon", {}), ("optimizer", "muon", {"sharding": "zero1"}),
    ("muon_tp_mode", "distributed", {"optimizer": "muon", "tp": 2}), ("muon_tp_mode", "blockwise", {"optimizer": "muon", "tp": 2}),
    ("muon_tp_mode", "blockwise", {"optimizer": "muon", "etp": 2, "experts": True}),
    ("recompute_modules", "mlp", {"recompute": "selective"}), ("recompute_modules", "layernorm", {"recompute": "selective"}),
    ("recompute_modules", "moe_act", {"recompute": "selective", "experts": True}),
]  # fmt: skip
#: dp follows from the others; tests of what stands here are elsewhere, each beside its mechanism
ELSEWHERE = {
    "dp",
    "account_for_loss",
    "cuda",
    "fp8_modules",
    "fp8_param_gather",
    "bf16_modules",
    "bf16_first_layers",
    "bf16_last_layers",
    "fused_operations",
    "host",
    "release",
    "recompute_method",
    "recompute_layers",
    "loader_workers",
    "sample_bytes",
    "sample_time_s",
}


def outcome(changes):
    """Time, memory and the settings that are idle."""
    changes = dict(changes)
    spec = EXPERTS if changes.pop("experts", False) else DENSE
    result = simulate(Scenario(topology="dgx-a100-80g", model=spec.name, plan=ParallelPlan(**changes)), spec=spec)
    idle = dict(idle_settings(result.plan, has_experts=spec.has_experts, graph_scopes=graph_scopes(spec)))
    return result.timeline.makespan_ps, result.memory.by_category, idle


@pytest.mark.parametrize(("name", "value", "base"), EFFECTS, ids=[f"{name}={value}" for name, value, _ in EFFECTS])
def test_it_changes_time_or_memory(name, value, base):
    changed = outcome(BASE | base | {name: value})
    before = outcome({k: v for k, v in (BASE | base).items() if k != name or name in BASE})
    assert changed[:2] != before[:2]
    assert not changed[2] and not before[2]


@pytest.mark.parametrize(
    ("changes", "is_idle"),
    [
        ({"moe_capacity_factor": 4}, True),  # of a balanced router
        ({"moe_capacity_factor": 1.5, "moe_imbalance": 1.5}, True),
        ({"moe_capacity_factor": 1.25, "moe_imbalance": 1.5}, False),
        ({"moe_capacity_factor": 4, "moe_pad_to_capacity": True}, False),
        ({"moe_capacity_factor": 1.5, "moe_imbalance": 1.5, "moe_pad_to_capacity": True}, False),
        ({"moe_capacity_factor": 1.25, "ep": 1}, True),
    ],
)
def test_a_capacity_that_drops_nothing_is_named(changes, is_idle):
    base = BASE | {"experts": True, "ep": 4}
    with_it = outcome(base | changes)
    without = outcome(base | {key: value for key, value in changes.items() if key in ("moe_imbalance", "ep")})
    assert ("moe_capacity_factor" in with_it[2]) == is_idle == (with_it[:2] == without[:2])


def test_no_setting_is_forgotten():
    tried = {name for name, _, _ in EFFECTS}
    assert {f.name for f in fields(ParallelPlan)} - ELSEWHERE == tried


IDLE = [
    ("backward_prefetch", "post", {}), ("prefetch_elements", 1, {}), ("secondary_group", 2, {}), ("cp_comm_type", "a2a", {}),
    ("cp_load_balance", False, {}), ("moe_imbalance", 1.5, {"experts": True}), ("moe_dispatcher", "deepep", {"experts": True}),
    ("outer_sharding", "optim", {"sharding": "zero3"}),
    ("nccl_user_buffers", True, {"overlap": False}), ("nccl_user_buffers", True, {"tp": 8, "pp": 2}),
    ("offload_modules", "attn_norm", {"recompute": "full"}),
    ("offload_modules", "moe_act", {}),
    ("release", "26.06", {}), ("moe_dispatcher_sms", 8, {"experts": True, **MOE}),
    ("moe_dispatcher_sms", 4, {"experts": True, **MOE, "moe_dispatcher": "hybridep"}),
    ("moe_capacity_factor", 0.5, {}), ("moe_pad_to_capacity", True, {"experts": True}), ("gradient_as_bucket_view", True, {}),
    ("max_reuse_elements", 1, ZERO3), ("asynchronous_tp", True, {"tp": 4}), ("rank_order", "pp-dp-cp-ep-tp", {}),
    ("overlap_p2p", True, {}), ("overlap_p2p", False, {**PIPE, "schedule": "zb-v"}),
    ("forward_prefetch", True, {"framework": "fsdp2", "sharding": "zero3", **PIPE}), ("prefetch_depth", 2, FSDP),
    ("recompute_layers", 0, {"recompute": "full"}),
    ("cuda_graphs", "mamba", {}), ("cuda_graphs", "moe_router", {}), ("cuda_graphs", "mamba", {"experts": True}),
    ("document_length", 128, {"attention": "eager"}),
    ("document_length", 513, {"sequence_length": 1024}), ("document_spread", 1.0, {}),
    ("fused_operations", True, {"framework": "megatron-core"}), ("fused_operations", True, {"framework": "fsdp"}),
    ("etp", 2, {}), ("etp", 1, {"tp": 4, "sequence_parallel": True}),
    ("optimizer_implementation", "foreach", {"optimizer": "muon"}),
    ("muon_tp_mode", "blockwise", {"tp": 2}), ("muon_tp_mode", "distributed", {"optimizer": "muon"}),
    ("rope_fusion", False, {"framework": "fsdp"}), ("rope_fusion", False, {"release": "23.08"}),
    ("scatter_gather", True, {**PIPE, "sequence_parallel": True}),
    ("delay_wgrad", False, {"experts": True, "ep": 2, **PIPE, "virtual_pp": 2, "schedule": "1f1b-combined", "sequence_parallel": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "base"), IDLE, ids=[f"{name}={value}" for name, value, _ in IDLE])
def test_what_changes_nothing_is_named(name, value, base):
    changed, before = outcome(BASE | base | {name: value}), outcome(BASE | base)
    assert name in changed[2]
    assert changed[:2] == before[:2]
