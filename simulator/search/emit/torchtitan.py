"""A plan as torchtitan's TOML job file.

References
----------
pytorch/torchtitan, ``torchtitan/config/job_config.py`` (names and defaults).
"""

from __future__ import annotations

import re

from simulator.search.emit.record import Emission, Request, refuse, under

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
    })  # fmt: skip
    replicate, shard = _degrees(plan.dp, plan.sharding, plan.sharding_group)
    found = _FLAVOR.fullmatch(request.spec.name)
    model = [f'name = "{found.group(1)}"', f'flavor = "{found.group(2).upper()}"'] if found else []
    micro_batches = plan.n_micro_batches if plan.pp > 1 else 1
    sections = {
        "model": model,
        "training": [
            f"seq_len = {plan.sequence_length}", f"local_batch_size = {plan.micro_batch * micro_batches}",
            f"global_batch_size = {plan.global_batch}",
            f'mixed_precision_param = "{"bfloat16" if plan.precision == "bf16" else "float32"}"',
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
    if plan.pp > 1:
        sections["parallelism"] += [
            f'pipeline_parallel_schedule = "{_SCHEDULES[plan.schedule]}"',
            f"pipeline_parallel_microbatch_size = {plan.micro_batch}",
        ]
    text = "\n".join(
        "\n".join([f"[{name}]", *lines, ""]) for name, lines in sections.items() if lines or name != "model"
    )
    unsaid = {"gpus": "torchrun", "attention": "the model", "gradient_bytes": "fp32 in torchtitan"}
    for name in ("overlap", "overlap_parameter_gather", "scatter_gather", "bucket_bytes"):
        unsaid[name] = "torchtitan's own way"
    return Emission(text=text, plan=plan, unsaid=unsaid)


def _degrees(dp: int, sharding: str, group: int) -> tuple[int, int]:
    """Return replicate and shard degrees."""
    if sharding == "none":
        return dp, 1
    return (dp // group, group) if sharding == "hsdp" else (1, dp)
