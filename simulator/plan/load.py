"""Plan files: YAML whose keys are those of the command-line flags."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import Field, create_model

from simulator.config import Fault, Locator, Spec, load_yaml, raise_faults, validate
from simulator.errors import ConfigError
from simulator.plan.parallel_plan import ParallelPlan

#: what other tools, and people, call a setting
OTHER_NAMES = {
    "zero": "sharding",
    "zero_stage": "sharding",
    "fsdp": "sharding",
    "data_parallel": "dp",
    "tensor_parallel": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallel": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel": "cp",
    "context_parallel_size": "cp",
    "expert_parallel": "ep",
    "expert_model_parallel_size": "ep",
    "interleave": "virtual_pp",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "mbs": "micro_batch",
    "micro_batch_size": "micro_batch",
    "gbs": "global_batch",
    "global_batch_size": "global_batch",
    "batch_size": "global_batch",
    "dtype": "precision",
    "activation_checkpointing": "recompute",
    "checkpointing": "recompute",
    "bucket_cap_mb": "bucket_bytes",
    "reduce_bucket_size": "bucket_bytes",
    "overlap_comm": "overlap",
    "overlap_grad_reduce": "overlap",
    "overlap_param_gather": "overlap_parameter_gather",
    "tp_comm_overlap": "asynchronous_tp",
    "zero_hpz_partition_size": "secondary_group",
    "reshard_after_forward": "secondary_group",
    "cp_type": "cp_comm_type",
    "capacity_factor": "moe_capacity_factor",
    "world_size": "gpus",
}


def load_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan file: the settings it makes, in the names of :class:`ParallelPlan`.

    Parameters
    ----------
    path : str or Path
        YAML whose keys are those of the command-line flags, with hyphens or underscores.

    Raises
    ------
    ConfigError
        With every fault of the file, its line and near misses.
    """
    data, locator = load_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a plan file is a mapping of settings", hint="for example 'tp: 8'")
    _refuse_other_names(data, locator)
    spelled = {str(key).replace("-", "_"): str(key) for key in data}
    hints = get_type_hints(ParallelPlan)
    fields_of: dict[str, Any] = {
        f.name: (hints[f.name] | None, Field(default=None, alias=spelled.get(f.name))) for f in fields(ParallelPlan)
    }
    spec = validate(data, create_model("PlanFile", __base__=Spec, **fields_of), locator)
    return dict(spec.model_dump(exclude_unset=True))


def _refuse_other_names(data: dict[Any, Any], locator: Locator) -> None:
    """Name the setting where a key is another tool's word for it."""
    meant = {key: OTHER_NAMES.get(str(key).replace("-", "_").lower()) for key in data}
    faults = [
        Fault(place=locator.key((str(key),)), path=(str(key),), message=f"unknown key. Did you mean {name!r}?")
        for key, name in meant.items()
        if name
    ]
    if faults:
        raise_faults(faults, locator)
