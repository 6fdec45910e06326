"""A plan as DeepSpeed's ``ds_config.json``.

References
----------
deepspeedai/DeepSpeed, ``deepspeed/runtime/config.py`` (names and the batch rule).
"""

from __future__ import annotations

import json
from typing import Any

from simulator.parallel.gradients import gradient_bytes
from simulator.search.emit.record import Emission, Request, refuse, under

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
    model_parallel = plan.model_parallel * plan.ep
    refuse("ds_config.json", {
        f"tp={plan.tp} pp={plan.pp} cp={plan.cp} ep={plan.ep} without Megatron": not is_companion and model_parallel > plan.tp,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
        "selective recomputation": plan.recompute == "selective" and not is_companion,
    })  # fmt: skip
    zero: dict[str, Any] = {"stage": _STAGES[plan.sharding], "overlap_comm": plan.overlaps}
    if plan.bucket_bytes:
        zero["reduce_bucket_size"] = plan.bucket_bytes // 2
    if plan.sharding == "hsdp":
        zero["zero_hpz_partition_size"] = plan.sharding_group
    data: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.n_micro_batches,
        "bf16": {"enabled": plan.precision == "bf16"},
        "fp16": {"enabled": plan.precision == "fp16"},
        "zero_optimization": zero,
    }
    if gradient_bytes(plan) == 4:
        data["data_types"] = {"grad_accum_dtype": "fp32"}
    if plan.tp > 1 and not is_companion:
        data["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.recompute == "full":
        data["activation_checkpointing"] = {"partition_activations": False}
    unsaid = {"gpus": "the launcher", "sequence_length": "the data loader", "attention": "the model"}
    for name in ("sequence_parallel", "asynchronous_tp", "scatter_gather", "overlap_parameter_gather", "schedule"):
        unsaid[name] = "the model"
    if gradient_bytes(plan) != 4:
        unsaid["gradient_bytes"] = "follows from the precision"
    if is_companion:
        where = "Megatron's arguments"
        unsaid |= dict.fromkeys(("framework", "tp", "pp", "virtual_pp", "cp", "ep", "recompute"), where)
        unsaid |= dict.fromkeys(("first_stage_layers", "last_stage_layers"), where)
    return Emission(text=json.dumps(data, indent=2) + "\n", plan=plan, unsaid=unsaid)
