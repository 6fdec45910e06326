"""A plan as torchtitan's TOML job file.

References
----------
pytorch/torchtitan, ``torchtitan/config/job_config.py`` (names and defaults).
"""

from __future__ import annotations

import re

from simulator.explore.emit.record import Emission, Request, refuse, under
from simulator.parallel.gradients import gradient_bytes
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan

_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe"}
_FRAMEWORKS = ("torchtitan", "torchtitan-compile")
_FLAVOR = re.compile(r"(llama2|llama3|llama3\.1)-(\d+b)")


def emit_torchtitan(request: Request) -> Emission:
    """Write a job file.

    Raises
    ------
    InfeasiblePlanError
        If torchtitan has no word for something.
    """
    plan = under(request.plan, request.plan.framework if request.plan.framework in _FRAMEWORKS else "torchtitan")
    refuse("torchtitan", {
        f"virtual_pp={plan.virtual_pp}": plan.virtual_pp > 1,
        f"schedule {plan.schedule}": plan.pp > 1 and plan.schedule not in _SCHEDULES,
        "tensor parallelism without sequence parallelism": plan.tp > 1 and not plan.sequence_parallel,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp32"),
        f"sharding {plan.sharding}": plan.sharding == "zero1",
        f"offload_optimizer={plan.offload_optimizer} and offload_parameters={plan.offload_parameters}":
            plan.offload_optimizer != plan.offload_parameters,
        f"cp_comm_type {plan.context_exchange}": plan.cp > 1 and plan.context_exchange == "a2a",
        f"moe_dispatcher {plan.moe_dispatcher}": plan.ep > 1 and plan.moe_dispatcher == "allgather",
    })  # fmt: skip
    replicate, shard = _degrees(plan.dp, plan.sharding, Mesh(plan, request.gpus_per_node).sharding_group)
    found = _FLAVOR.fullmatch(request.spec.name)
    model = [f'name = "{found.group(1)}"', f'flavor = "{found.group(2).upper()}"'] if found else []
    micro_batches = plan.n_micro_batches if plan.pp > 1 else 1
    sections = {
        "model": model,
        "training": [
            f"seq_len = {plan.sequence_length}", f"local_batch_size = {plan.micro_batch * micro_batches}",
            f"global_batch_size = {plan.global_batch}",
            f'mixed_precision_param = "{"bfloat16" if plan.precision == "bf16" else "float32"}"',
            f'mixed_precision_reduce = "{"bfloat16" if gradient_bytes(plan) == 2 else "float32"}"',
            f"enable_cpu_offload = {str(plan.offload_parameters == 'cpu').lower()}",
        ],
        "parallelism": [
            f"data_parallel_replicate_degree = {replicate}", f"data_parallel_shard_degree = {shard}",
            f"tensor_parallel_degree = {plan.tp}", f"pipeline_parallel_degree = {plan.pp}",
            f"context_parallel_degree = {plan.cp}", f"expert_parallel_degree = {plan.ep}",
            f"enable_async_tensor_parallel = {str(plan.asynchronous_tp).lower()}",
            f'fsdp_reshard_after_forward = "{"never" if plan.sharding == "zero2" else "always"}"',
        ],
        "activation_checkpoint": [f'mode = "{plan.recompute}"'],
        "compile": [f"enable = {str(plan.framework == 'torchtitan-compile').lower()}"],
    }  # fmt: skip
    sections["parallelism"] += _exchanges(plan)
    if plan.pp > 1:
        sections["parallelism"] += [
            f'pipeline_parallel_schedule = "{_SCHEDULES[plan.schedule]}"',
            f"pipeline_parallel_microbatch_size = {plan.micro_batch}",
        ]
    text = "\n".join(
        "\n".join([f"[{name}]", *lines, ""]) for name, lines in sections.items() if lines or name != "model"
    )
    unsaid = {"gpus": "torchrun", "attention": "the model"}
    for name in ("overlap", "overlap_p2p", "overlap_parameter_gather", "scatter_gather", "bucket_bytes"):
        unsaid[name] = "torchtitan's own way"
    return Emission(text=text, plan=plan, unsaid=unsaid)


def _exchanges(plan: ParallelPlan) -> list[str]:
    """How keys and values, and tokens of experts, are exchanged."""
    lines = []
    if plan.cp > 1:
        rotation = "allgather" if plan.context_exchange == "all_gather" else "alltoall"
        lines.append(f'context_parallel_rotate_method = "{rotation}"')
        lines += ['context_parallel_load_balancer = "None"'] * (not plan.cp_load_balance)
    if plan.ep > 1:
        lines.append(f'expert_parallel_comm_backend = "{"deepep" if plan.moe_dispatcher == "deepep" else "standard"}"')
    return lines


def _degrees(dp: int, sharding: str, group: int) -> tuple[int, int]:
    """Return replicate and shard degrees."""
    if sharding == "none":
        return dp, 1
    return (dp // group, group) if sharding == "hsdp" else (1, dp)
