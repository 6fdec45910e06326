"""A plan as the YAML of Hugging Face Accelerate: FSDP, plain data parallelism, or its Megatron plugin.

References
----------
huggingface/accelerate, ``accelerate/commands/config`` (names and defaults).
"""

from __future__ import annotations

import io
from typing import Any

from simulator.explore.emit.record import Emission, Request, refuse, under
from simulator.parallel.gradients import gradient_bytes
from simulator.parallel.mesh import Mesh

_FSDP = {"none": "NO_SHARD", "zero2": "SHARD_GRAD_OP", "zero3": "FULL_SHARD", "hsdp": "HYBRID_SHARD"}
_TRAINER = ("micro_batch", "global_batch", "sequence_length", "attention", "bucket_bytes", "scatter_gather",
            "overlap_parameter_gather", "overlap_p2p", "asynchronous_tp", "ep", "virtual_pp", "schedule", "first_stage_layers",
            "last_stage_layers", "gradient_bytes")  # fmt: skip


def emit_accelerate(request: Request) -> Emission:
    """Write what ``accelerate config`` writes.

    Raises
    ------
    InfeasiblePlanError
        If Accelerate has no word for something.
    """
    plan = request.plan
    is_fsdp = plan.framework_spec.data_parallel in ("fsdp", "fsdp2") or plan.sharding in ("zero2", "zero3", "hsdp")
    return _fsdp(request) if is_fsdp else _megatron(request)


def _header(request: Request, kind: str, precision: str) -> dict[str, Any]:
    plan = request.plan
    words = {"fp32": "no", "amp_fp16": "fp16", "amp_bf16": "bf16"}
    return {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": kind,
        "num_machines": -(-plan.gpus // request.gpus_per_node), "num_processes": plan.gpus,
        "mixed_precision": words.get(precision, precision),
    }  # fmt: skip


def _emission(request: Request, framework: str, data: dict[str, Any], unsaid: dict[str, str]) -> Emission:
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML().dump(data, text)
    plan = under(request.plan, framework)
    assert plan.micro_batch
    steps = plan.n_micro_batches
    said_elsewhere = dict.fromkeys(_TRAINER, "the training script")
    said_elsewhere["micro_batch"] = f"per_device_train_batch_size {plan.micro_batch}"
    said_elsewhere["global_batch"] = f"gradient_accumulation_steps {steps}"
    said_elsewhere["gradient_bytes"] = f"{gradient_bytes(plan)}, as the precision has it"
    return Emission(text=text.getvalue(), plan=plan, unsaid=said_elsewhere | unsaid)


def _fsdp(request: Request) -> Emission:
    plan = request.plan
    refuse("Accelerate's FSDP", {
        f"pp={plan.pp}": plan.pp > 1,
        f"ep={plan.ep}": plan.ep > 1,
        f"sharding {plan.sharding}": plan.sharding not in _FSDP,
        "sequence parallelism": plan.sequence_parallel,
        "selective recomputation": plan.recompute == "selective",
        f"sharding {plan.sharding} together with tp={plan.tp} cp={plan.cp}": plan.tp * plan.cp > 1 and plan.sharding == "zero2",
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
        f"offload_optimizer={plan.offload_optimizer} and offload_parameters={plan.offload_parameters}":
            plan.offload_optimizer != plan.offload_parameters,
        "communication that does not overlap": not plan.overlaps,
        f"cp_comm_type {plan.context_exchange}": plan.cp > 1 and plan.context_exchange == "a2a",
    })  # fmt: skip
    data = _header(request, "FSDP", plan.precision)
    data["fsdp_config"] = {
        "fsdp_sharding_strategy": _FSDP[plan.sharding],
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}[
            plan.backward_prefetch
        ],
        "fsdp_forward_prefetch": plan.forward_prefetch,
        "fsdp_limit_all_gathers": plan.limit_all_gathers,
        "fsdp_offload_params": plan.offload_parameters == "cpu",
        "fsdp_activation_checkpointing": plan.recompute == "full",
    }
    if plan.tp * plan.cp > 1 or plan.sharding == "hsdp":
        group = {"hsdp": Mesh(plan, request.gpus_per_node).sharding_group, "none": 1}.get(plan.sharding, plan.dp)
        sizes = {"dp_replicate": plan.dp // group, "dp_shard": group, "tp": plan.tp, "cp": plan.cp}
        data["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
        if plan.cp > 1:
            rotation = "allgather" if plan.context_exchange == "all_gather" else "alltoall"
            data["parallelism_config"]["parallelism_config_cp_comm_strategy"] = rotation
    return _emission(request, "fsdp", data, {"dp": "num_processes", "sequence_parallel": "off"})


def _megatron(request: Request) -> Emission:
    plan = request.plan
    refuse("Accelerate's Megatron plugin", {
        f"virtual_pp={plan.virtual_pp}": plan.virtual_pp > 1,
        f"cp={plan.cp}": plan.cp > 1,
        f"ep={plan.ep}": plan.ep > 1,
        "full recomputation": plan.recompute == "full",
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
    })  # fmt: skip
    data = _header(request, "MEGATRON_LM", plan.precision)
    data["megatron_lm_config"] = {
        "megatron_lm_tp_degree": plan.tp, "megatron_lm_pp_degree": plan.pp,
        "megatron_lm_num_micro_batches": plan.n_micro_batches,
        "megatron_lm_sequence_parallelism": plan.sequence_parallel,
        "megatron_lm_use_distributed_optimizer": plan.sharding == "zero1",
        "megatron_lm_recompute_activations": plan.recompute == "selective",
    }  # fmt: skip
    unsaid = {"dp": "num_processes", "cp": "1", "overlap": "Megatron's default", "sharding_group": "all"}
    return _emission(request, "megatron", data, unsaid)
