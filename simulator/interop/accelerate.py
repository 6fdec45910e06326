"""Hugging Face Accelerate's YAML: FSDP, DeepSpeed and Megatron settings in one file.

References
----------
huggingface/accelerate, ``accelerate/commands/config`` (names and defaults).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.record import Imported, Reader, words

_IRRELEVANT = words(
    "compute_environment debug downcast_bf16 enable_cpu_affinity gpu_ids machine_rank main_process_ip "
    "main_process_port main_training_function num_machines rdzv_backend same_network tpu_env tpu_name "
    "tpu_zone tpu_use_cluster tpu_use_sudo use_cpu dynamo_config fp8_config ipex_config mpirun_config "
    "commands deepspeed_hostfile tpu_vm env"
)

_FSDP_IRRELEVANT = words(
    "fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params fsdp_state_dict_type "
    "fsdp_sync_module_states fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_version fsdp_ignored_modules "
    "fsdp_backward_prefetch_policy fsdp_mixed_precision_policy"
)

_STRATEGIES = {
    "FULL_SHARD": "zero3",
    "SHARD_GRAD_OP": "zero2",
    "NO_SHARD": "none",
    "HYBRID_SHARD": "hsdp",
    "HYBRID_SHARD_ZERO2": "hsdp",
}

_PREFETCH = {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post", "NO_PREFETCH": "none"}

_PRECISIONS = {"no": "fp32", "fp16": "amp_fp16", "bf16": "amp_bf16", "fp8": "fp8"}

_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")


def import_accelerate(path: str | Path) -> Imported:
    """Read the YAML that ``accelerate config`` writes.

    Parameters
    ----------
    path : str or Path
        The file. A DeepSpeed file that it names is read too.

    Raises
    ------
    ConfigError
        If a value cannot be understood.
    """
    path = Path(path)
    data, locator = load_yaml(path)
    r = Reader(data, str(path), locator=locator)
    kind = r.text("distributed_type", default="FSDP" if "fsdp_config" in r.data else "NO", one_of=_KINDS)
    precision = _precision(r)
    settings: dict[str, Any] = {"framework": "hf-eager", "precision": precision}
    world = r.integer("num_processes", default=0)
    if world:
        settings["gpus"] = world
    if kind == "FSDP":
        settings |= _fsdp(r.section("fsdp_config"), precision)
    elif kind == "DEEPSPEED":
        settings |= _deepspeed(r.section("deepspeed_config"), path, precision)
    elif kind == "MEGATRON_LM":
        settings |= _megatron(r.section("megatron_lm_config"), precision)
    settings |= _parallelism(r.section("parallelism_config"), world)
    r.irrelevant(_IRRELEVANT)
    r.finish()
    return Imported(kind="accelerate", file=str(path), settings=settings, report=r.log.report())


def _precision(r: Reader) -> str:
    value = r.raw("mixed_precision")
    word = "no" if value in (None, False) else value
    if word not in _PRECISIONS:
        r.fault("mixed_precision", f"{value!r} is not known here", hint=f"one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[word]


def _narrow(precision: str) -> str:
    """Return the precision in which sharded or partitioned implementations run: 16-bit working weights."""
    return precision.removeprefix("amp_")


def _fsdp(r: Reader, precision: str) -> dict[str, Any]:
    strategy = r.raw("fsdp_sharding_strategy")
    if isinstance(strategy, int) and 1 <= strategy <= len(_STRATEGIES):
        strategy = list(_STRATEGIES)[strategy - 1]
    if strategy is None:
        strategy = "FULL_SHARD" if r.boolean("fsdp_reshard_after_forward", default=True) else "SHARD_GRAD_OP"
    if strategy not in _STRATEGIES and not isinstance(strategy, bool):
        r.fault("fsdp_sharding_strategy", f"{strategy!r} is not known", hint=f"one of {', '.join(_STRATEGIES)}")
    r.boolean("fsdp_reshard_after_forward", default=True)
    settings: dict[str, Any] = {
        "framework": "fsdp",
        "sharding": _STRATEGIES[strategy],
        "precision": _narrow(precision),
    }
    if r.boolean("fsdp_activation_checkpointing"):
        settings["recompute"] = "full"
    prefetch = r.text("fsdp_backward_prefetch", default="BACKWARD_PRE", one_of=_PREFETCH)
    settings["backward_prefetch"] = _PREFETCH[prefetch]
    settings["forward_prefetch"] = r.boolean("fsdp_forward_prefetch")
    settings["limit_all_gathers"] = r.boolean("fsdp_limit_all_gathers", default=True)
    if r.boolean("fsdp_offload_params"):
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    r.irrelevant(_FSDP_IRRELEVANT)
    r.finish()
    return settings


def _deepspeed(r: Reader, path: Path, precision: str) -> dict[str, Any]:
    name = r.text("deepspeed_config_file", default="")
    if name:
        file = Path(name) if Path(name).is_absolute() else path.parent / name
        inner = import_deepspeed(file)
        for ours, theirs in (
            (r.log.used, inner.report.used),
            (r.log.irrelevant, inner.report.irrelevant),
            (r.log.unknown, inner.report.unknown),
            (r.log.assumed, inner.report.assumed),
        ):
            ours.extend(f"{file.name}: {entry}" for entry in theirs)
        r.irrelevant(list(r.data))
        return inner.settings
    stage = r.integer("zero_stage", default=2)
    steps = r.integer("gradient_accumulation_steps", default=1)
    offload = {}
    for name, key in (
        ("offload_optimizer", "offload_optimizer_device"),
        ("offload_parameters", "offload_param_device"),
    ):
        device = r.text(key, default="none").lower()
        if device not in ("none", "cpu"):
            r.fault(key, f"offload to {device!r} is not modelled", hint="cpu or none")
        if device == "cpu":
            offload[name] = "cpu"
    if steps > 1:
        r.assume("global_batch", f"micro-batch x {steps} x dp", "gradient_accumulation_steps")
    r.irrelevant(
        words(
            "gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher "
            "deepspeed_hostfile deepspeed_moe_layer_cls_names"
        )
    )
    r.finish()
    sharding = f"zero{stage}" if stage else "none"
    return {
        "framework": "deepspeed",
        "sharding": sharding,
        "overlap": stage == 3,
        "precision": _narrow(precision),
        **offload,
    }


def _megatron(r: Reader, precision: str) -> dict[str, Any]:
    settings = {
        "framework": "megatron",
        "precision": _narrow(precision),
        "tp": r.positive("megatron_lm_tp_degree", default=1),
        "pp": r.positive("megatron_lm_pp_degree", default=1),
        "sequence_parallel": r.boolean("megatron_lm_sequence_parallelism"),
        "sharding": "zero1" if r.boolean("megatron_lm_use_distributed_optimizer") else "none",
        "recompute": "selective" if r.boolean("megatron_lm_recompute_activations") else "none",
    }
    count = r.integer("megatron_lm_num_micro_batches", default=0)
    if count:
        r.assume("global_batch", f"micro-batch x {count} x dp", "megatron_lm_num_micro_batches")
    r.irrelevant(["megatron_lm_gradient_clipping"])
    r.finish()
    return settings


def _parallelism(r: Reader, world: int) -> dict[str, Any]:
    if not r.data:
        return {}
    prefix = "parallelism_config_"
    replicate = r.positive(f"{prefix}dp_replicate_size", default=1)
    shard = r.positive(f"{prefix}dp_shard_size", default=1)
    ring, ulysses = r.positive(f"{prefix}cp_size", default=1), r.positive(f"{prefix}sp_size", default=1)
    if ring > 1 and ulysses > 1:
        r.fault(f"{prefix}sp_size", "context and sequence parallelism together are not modelled", hint="one of the two")
    settings: dict[str, Any] = {"tp": r.positive(f"{prefix}tp_size", default=1), "cp": ring * ulysses}
    rotation = r.text(f"{prefix}cp_comm_strategy", default="allgather", one_of=("allgather", "alltoall"))
    if ulysses > 1:
        settings["cp_comm_type"] = "a2a"
    elif ring > 1:
        settings["cp_comm_type"] = "all_gather" if rotation == "allgather" else "p2p"
    if replicate * shard > 1:
        settings["dp"] = replicate * shard
        settings["sharding"] = "none" if shard == 1 else "hsdp" if replicate > 1 else "zero3"
        if replicate > 1 and shard > 1:
            settings["sharding_group"] = shard
    if world and settings.get("dp", 1) * settings["tp"] * settings["cp"] > world:
        r.fault("", f"the degrees multiply up to more than num_processes={world}")
    r.irrelevant([key for key in r.data if key.startswith(prefix)])
    r.finish()
    return settings
