"""DeepSpeed's ``ds_config.json``: batch sizes, ZeRO stage, precision and buckets.

References
----------
deepspeedai/DeepSpeed, ``deepspeed/runtime/config.py`` and ``runtime/zero/config.py`` (names and defaults).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.interop.record import Imported, Reader, words
from simulator.plan import ParallelPlan

_IRRELEVANT = words(
    "steps_per_print wall_clock_breakdown flops_profiler comms_logger tensorboard wandb csv_monitor "
    "dump_state optimizer scheduler gradient_clipping prescale_gradients gradient_predivide_factor "
    "gradient_allreduce_op sparse_gradients zero_allow_untested_optimizer zero_force_ds_cpu_optimizer amp "
    "monitor_config memory_breakdown checkpoint data_efficiency curriculum_learning elasticity autotuning "
    "aio compression_training seed seq_parallel_communication_data_type "
    "torch_autocast compile timers hybrid_engine disable_allgather dataloader_drop_last "
    "use_data_before_expert_parallelism train_iters eigenvalue"
)

#: what only moves memory around, checks, saves, or is used where the backend lacks a collective (allgather_bucket_size)
_ZERO_IRRELEVANT = words(
    "allgather_partitions allgather_bucket_size contiguous_gradients round_robin_gradients "
    "stage3_model_persistence_threshold model_persistence_threshold "
    "stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save sub_group_size "
    "ignore_unused_parameters legacy_stage1 elastic_checkpoint load_from_fp32_weights log_trace_cache_warnings "
    "memory_efficient_linear zero_quantized_nontrainable_weights override_module_apply pipeline_loading_checkpoint "
    "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params "
    "stage3_allgather_sequential zeropp_loco_param mics_hierarchical_params_gather "
    "save_muon_momentum_buffer_in_memory"
)

#: plan setting -> its names in ``zero_optimization``, elements all of them
_ELEMENTS = {
    "prefetch_elements": ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    "persistence_elements": ("stage3_param_persistence_threshold", "param_persistence_threshold"),
    "max_live_elements": ("stage3_max_live_parameters", "max_live_parameters"),
    "max_reuse_elements": ("stage3_max_reuse_distance", "max_reuse_distance"),
}
_WIDTHS = {"fp32": 4, "float32": 4, "fp16": 2, "bf16": 2, "bfp16": 2, "float16": 2, "bfloat16": 2}


def import_deepspeed(path: str | Path, *, world_size: int = 0) -> Imported:
    """Read a ``ds_config.json``.

    Parameters
    ----------
    path : str or Path
        The file.
    world_size : int
        Data-parallel ranks, where the batch rule needs them; 0 if not known yet.

    Raises
    ------
    ConfigError
        If the batch sizes contradict one another, or a value cannot be understood.
    """
    data, locator = load_yaml(path)
    return read_deepspeed(Reader(data, str(path), locator=locator), world_size=world_size)


def read_deepspeed(reader: Reader, *, world_size: int = 0) -> Imported:
    """Read settings that are already a mapping; see :func:`import_deepspeed`."""
    settings: dict[str, Any] = {"framework": "deepspeed"}
    settings |= _batch(reader, world_size) | _precision(reader)
    settings |= _reduction(reader)
    settings |= _zero(reader, settings)
    parallel = reader.section("tensor_parallel")
    settings["tp"] = max(1, parallel.integer("autotp_size", default=0))
    parallel.irrelevant(["tp", "dtype", "enabled"])
    parallel.finish()
    ulysses = reader.positive("sequence_parallel_size", default=1)
    if ulysses > 1:
        settings |= {"cp": ulysses, "cp_comm_type": "a2a"}
    checkpointing = reader.section("activation_checkpointing")
    if checkpointing.data:
        reader.assume("recompute", "full", "activation_checkpointing is configured; the model must call it")
        settings["recompute"] = "full"
        checkpointing.irrelevant(list(checkpointing.data))
    reader.irrelevant(_IRRELEVANT)
    reader.finish()
    return Imported(kind="deepspeed", file=reader.file, settings=settings, report=reader.log.report())


def _size(reader: Reader, key: str) -> int:
    """Return a batch size, 0 where it is missing or ``auto``."""
    if reader.data.get(key) == "auto":
        reader.raw(key)
        reader.assume(key, "unset", "'auto' is filled in by the Hugging Face trainer")
        return 0
    return reader.positive(key) if reader.data.get(key) is not None else 0


def _batch(reader: Reader, world_size: int) -> dict[str, Any]:
    """Apply DeepSpeed's rule: train batch = micro-batch x accumulation x data-parallel ranks."""
    total = _size(reader, "train_batch_size")
    micro = _size(reader, "train_micro_batch_size_per_gpu")
    steps = _size(reader, "gradient_accumulation_steps")
    if not total and not micro:
        if any(reader.data.get(k) == "auto" for k in ("train_batch_size", "train_micro_batch_size_per_gpu")):
            return {}
        reader.fault(
            "",
            "neither 'train_batch_size' nor 'train_micro_batch_size_per_gpu' is given",
            hint="DeepSpeed derives the third of batch, micro-batch and accumulation from two of them",
        )
    if total and micro and steps:
        if total % (micro * steps) or (world_size and total != micro * steps * world_size):
            ranks = world_size or "a whole number of"
            reader.fault(
                "train_batch_size",
                f"{total} is not {micro} x {steps} x {ranks} data-parallel ranks",
                hint="the batch is micro-batch x gradient_accumulation_steps x data-parallel ranks",
            )
        return {"micro_batch": micro, "global_batch": total, "dp": total // (micro * steps)}
    if total and micro:
        return {"micro_batch": micro, "global_batch": total}
    if total:
        if not world_size:
            reader.assume("micro_batch", "the largest that fits", "only train_batch_size is given")
            return {"global_batch": total}
        return {"micro_batch": max(1, total // (world_size * (steps or 1))), "global_batch": total}
    if not world_size and (steps or 1) > 1:
        reader.assume("global_batch", f"{micro} x {steps} x dp", "train_batch_size follows from the ranks")
        return {"micro_batch": micro}
    return {"micro_batch": micro} | ({"global_batch": micro * (steps or 1) * world_size} if world_size else {})


def _enabled(reader: Reader, *keys: str) -> bool:
    section = reader.section(*keys)
    if section.data.get("enabled") == "auto":
        section.raw("enabled")
        section.assume("enabled", False, "'auto' is filled in by the Hugging Face trainer")
        section.irrelevant(list(section.data))
        return False
    value = section.boolean("enabled")
    section.irrelevant(list(section.data))
    return value


def _precision(reader: Reader) -> dict[str, Any]:
    bf16, fp16 = _enabled(reader, "bf16", "bfloat16"), _enabled(reader, "fp16")
    if bf16 and fp16:
        reader.fault("bf16", "bf16 and fp16 are both enabled")
    if not bf16 and not fp16:
        reader.assume("precision", "fp32", "neither bf16 nor fp16 is enabled")
    return {"precision": "bf16" if bf16 else "fp16" if fp16 else "fp32"}


def _reduction(reader: Reader) -> dict[str, Any]:
    """Read in which precision gradients are accumulated and reduced."""
    types = reader.section("data_types")
    wide = types.text("grad_accum_dtype", default="")
    types.finish()
    sent = reader.raw("communication_data_type")
    if sent is not None and str(sent) not in _WIDTHS:
        reader.fault("communication_data_type", f"{sent!r} is not known here", hint="fp32, fp16 or bf16")
    if sent is not None:
        return {"gradient_bytes": _WIDTHS[str(sent)]}
    return {"gradient_bytes": 4} if wide in ("fp32", "float32") else {}


def _zero(reader: Reader, settings: dict[str, Any]) -> dict[str, Any]:
    zero = reader.section("zero_optimization")
    stage = zero.integer("stage", default=0)
    if not 0 <= stage <= 3:
        zero.fault("stage", f"{stage} is not a ZeRO stage", hint="0, 1, 2 or 3")
    found: dict[str, Any] = {"sharding": f"zero{stage}" if stage else "none"}
    found["overlap"] = zero.boolean("overlap_comm", default=stage == 3)
    bucket = _elements(zero, "reduce_bucket_size", default=0)
    if bucket:
        found["bucket_bytes"] = bucket * ParallelPlan(**(settings | found)).reduced_bytes
    group = zero.integer("mics_shard_size", default=-1)
    if group > 1:
        found |= {"sharding": "hsdp", "sharding_group": group}
    if zero.integer("zero_hpz_partition_size", default=1) > 1:
        found["secondary_group"] = zero.integer("zero_hpz_partition_size")
    for name, theirs in (
        ("quantized_weights", "zero_quantized_weights"),
        ("quantized_gradients", "zero_quantized_gradients"),
    ):
        if zero.boolean(theirs):
            found[name] = True
    for name, keys in _ELEMENTS.items():
        key = next((key for key in keys if key in zero.data), keys[0])
        n_elements = _elements(zero, key, default=-1)
        if n_elements >= 0 and stage == 3:
            found[name] = n_elements
    scatters, whole = (
        zero.boolean("reduce_scatter", default=True),
        zero.boolean("use_multi_rank_bucket_allreduce", default=True),
    )
    if stage in (1, 2) and scatters and not whole:
        found["gradient_collective"] = "reduce"
    found |= _offload(zero)
    zero.irrelevant(_ZERO_IRRELEVANT)
    zero.finish()
    return found


def _elements(zero: Reader, key: str, *, default: int) -> int:
    """Return a number of elements; 'auto' is the trainer's, DeepSpeed's own default here."""
    if zero.data.get(key) == "auto":
        zero.raw(key)
        zero.assume(key, "DeepSpeed's default", "'auto' is filled in by the Hugging Face trainer")
        return default
    return round(zero.number(key, default=default))


def _offload(zero: Reader) -> dict[str, Any]:
    """Read what lives on the host, in the sections of today or the switches of old files."""
    found = {}
    for name, key, old in (
        ("offload_optimizer", "offload_optimizer", "cpu_offload"),
        ("offload_parameters", "offload_param", "cpu_offload_params"),
    ):
        section = zero.section(key)
        device = section.text("device", default="none", one_of=("none", "cpu", "nvme"))
        if device == "nvme":
            zero.fault(f"{key}.device", "offload to 'nvme' is not modelled", hint="'cpu' or 'none'")
        if section.number("ratio", default=1.0) != 1.0:
            zero.fault(f"{key}.ratio", "a partial offload is not modelled", hint="1.0")
        section.irrelevant(list(section.data))
        if device == "cpu" or zero.boolean(old):
            found[name] = "cpu"
    return found
