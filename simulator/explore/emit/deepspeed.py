"""A plan as DeepSpeed's ``ds_config.json``.

References
----------
deepspeedai/DeepSpeed, ``deepspeed/runtime/config.py`` (names and the batch rule).
"""

from __future__ import annotations

import json
from typing import Any

from simulator.explore.emit.record import Emission, Request, refuse, under
from simulator.parallel.gradients import gradient_bytes
from simulator.plan import ParallelPlan

_STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}


def emit_deepspeed(request: Request) -> Emission:
    """Write a ``ds_config.json``: alone for data parallelism, beside Megatron's arguments for the rest.

    Raises
    ------
    InfeasiblePlanError
        If DeepSpeed has no word for something.
    """
    is_companion = request.plan.framework == "megatron-deepspeed"
    plan = under(request.plan, request.plan.framework if is_companion else "deepspeed")
    is_ulysses = plan.cp > 1 and plan.context_exchange == "a2a"
    alone = plan.tp * (plan.cp if is_ulysses else 1)
    refuse("ds_config.json", {
        f"tp={plan.tp} pp={plan.pp} cp={plan.cp} ep={plan.ep} without Megatron":
            not is_companion and plan.model_parallel * plan.ep > alone,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
        "selective recomputation": plan.recompute == "selective" and not is_companion,
    })  # fmt: skip
    zero: dict[str, Any] = {"stage": _STAGES[plan.sharding], "overlap_comm": plan.overlaps}
    zero |= _options(plan)
    data: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.n_micro_batches,
        "bf16": {"enabled": plan.precision == "bf16"},
        "fp16": {"enabled": plan.precision == "fp16"},
        "zero_optimization": zero,
    }
    if plan.cp > 1 and not is_companion:
        data["sequence_parallel_size"] = plan.cp
    if gradient_bytes(plan) == 4:
        data["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.tp > 1 and not is_companion:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.recompute == "full":
        data["activation_checkpointing"] = {"partition_activations": False}
    unsaid = {"gpus": "the launcher", "sequence_length": "the data loader", "attention": "the model"}
    for name in (
        "sequence_parallel",
        "asynchronous_tp",
        "scatter_gather",
        "overlap_parameter_gather",
        "overlap_p2p",
        "schedule",
    ):
        unsaid[name] = "the model"
    if gradient_bytes(plan) != 4:
        unsaid["gradient_bytes"] = "follows from the precision"
    if is_companion:
        where = "Megatron's arguments"
        unsaid |= dict.fromkeys(("framework", "tp", "pp", "virtual_pp", "cp", "ep", "recompute"), where)
        unsaid |= dict.fromkeys(("first_stage_layers", "last_stage_layers"), where)
    return Emission(text=json.dumps(data, indent=2) + "\n", plan=plan, unsaid=unsaid)


def _options(plan: ParallelPlan) -> dict[str, Any]:
    """Return the options of ``zero_optimization`` that differ from DeepSpeed's defaults."""
    options: dict[str, tuple[Any, bool]] = {
        "reduce_bucket_size": ((plan.bucket_bytes or 0) // gradient_bytes(plan), plan.bucket_bytes is not None),
        "mics_shard_size": (plan.sharding_group, plan.sharding == "hsdp"),
        "zero_hpz_partition_size": (plan.secondary_group, (plan.secondary_group or 1) > 1),
        "zero_quantized_weights": (True, plan.quantized_weights),
        "zero_quantized_gradients": (True, plan.quantized_gradients),
        "stage3_prefetch_bucket_size": (plan.prefetch_elements, plan.prefetch_elements is not None),
        "stage3_param_persistence_threshold": (plan.persistence_elements, plan.persistence_elements is not None),
        "stage3_max_live_parameters": (plan.max_live_elements, plan.max_live_elements is not None),
        "stage3_max_reuse_distance": (plan.max_reuse_elements, plan.max_reuse_elements is not None),
        "use_multi_rank_bucket_allreduce": (False, plan.gradient_collective == "reduce"),
        "offload_optimizer": ({"device": "cpu"}, plan.offload_optimizer == "cpu"),
        "offload_param": ({"device": "cpu"}, plan.offload_parameters == "cpu"),
    }
    return {name: value for name, (value, is_set) in options.items() if is_set}
