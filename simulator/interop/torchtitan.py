"""torchtitan's TOML files, dumped JSON configurations and ``--section.option`` overrides.

References
----------
pytorch/torchtitan, ``torchtitan/config_manager.py`` and ``config/job_config.py`` (names and defaults).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from simulator.config import load_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.record import Imported, Reader, words
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec

#: sections that change neither time nor memory
_IRRELEVANT = words(
    "job profiling metrics optimizer lr_scheduler checkpoint fault_tolerance comm memory_estimation "
    "validation experimental debug hf_assets_path dump_folder"
)

#: options that change neither time nor memory, by section
_IRRELEVANT_OPTIONS = {
    "model": ["tokenizer_path", "hf_assets_path", "converters", "print_after_conversion", "norm_type"],
    "training": [
        "dataset",
        "dataset_path",
        "max_norm",
        "steps",
        "warmup_steps",
        "seed",
        "deterministic",
        "gc_freq",
        "gc_debug",
        "dtype",
        "data_parallel_type",
        "num_tokens_per_train_step",
    ],
    "parallelism": [
        "enable_compiled_autograd",
        "disable_loss_parallel",
        "expert_tensor_parallel_degree",
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_split_points",
        "pipeline_parallel_schedule_csv",
        "num_pp_microbatches",
        "module_fqns_per_model_part",
        "pipeline_parallel_expert_parallel_overlap",
        "enable_approx_mid_reduce_scatter",
    ],
    "activation_checkpoint": [
        "selective_ac_option",
        "memory_budget",
        "early_stop",
        "per_op_sac_force_recompute_mm_shapes_by_fqns",
        "visualize_memory_budget_pareto",
    ],
}

_SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "1f1b-interleaved",
    "InterleavedZeroBubble": "zb-1p",
    "ZBVZeroBubble": "zb-v",
    "LoopedBFS": "gpipe",
}


def import_torchtitan(path: str | Path, *, overrides: tuple[str, ...] = ()) -> Imported:
    """Read a TOML job file or a dumped JSON configuration.

    Parameters
    ----------
    path : str or Path
        The file; Python registries are not executed.
    overrides : tuple of str
        Command-line words such as ``--training.seq_len 4096``, which win over the file.

    Raises
    ------
    ConfigError
        If the file is not such a configuration or a value cannot be understood.
    """
    path = Path(path)
    if path.suffix == ".json":
        data, locator = load_yaml(path)
        reader = Reader(data, str(path), locator=locator)
    else:
        reader = Reader(_toml(path), str(path))
    _override(reader, overrides)
    spec = _spec(reader.section("model"))
    parallel = _parallelism(reader.section("parallelism"))
    settings = parallel | _training(reader.section("training"), spec)
    if parallel["pp"] > 1:  # the batch of a rank is cut into micro-batches of their own size
        if "global_batch" not in settings and "dp" in settings:
            settings["global_batch"] = settings["micro_batch"] * settings["dp"]
        settings["micro_batch"] = parallel["micro_batch"]
    checkpoint = reader.section("activation_checkpoint")
    mode = checkpoint.text("mode", default="selective", one_of=("selective", "full", "none", "memory_budget"))
    settings["recompute"] = "selective" if mode == "memory_budget" else mode
    _finish(checkpoint, "activation_checkpoint")
    compiled = reader.section("compile").boolean("enable") or _legacy_compile(reader)
    reader.section("compile").irrelevant(["components", "backend"])
    settings["framework"] = "torchtitan-compile" if compiled else "torchtitan"
    if _is_float8(reader):
        settings["precision"] = "fp8"
    reader.irrelevant(_IRRELEVANT)
    reader.finish()
    return Imported(kind="torchtitan", file=str(path), spec=spec, settings=settings, report=reader.log.report())


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _override(reader: Reader, words: tuple[str, ...]) -> None:
    for index, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        section, dot, option = name.partition(".")
        if not word.startswith("--") or not dot:
            continue
        following = words[index + 1] if index + 1 < len(words) else "--"
        given: Any = value if equals else True if following.startswith("--") else following
        reader.data.setdefault(section, {})[option.replace("-", "_")] = given


def _finish(section: Reader, name: str) -> None:
    section.irrelevant(_IRRELEVANT_OPTIONS[name])
    section.finish()


def _spec(model: Reader) -> ModelSpec | None:
    name, flavor = model.text("name", default=""), model.text("flavor", default="")
    _finish(model, "model")
    if not name:
        return None
    aliases = {"debugmodel": None, "llama3": "llama3", "llama2": "llama2", "deepseek_v3": "deepseek-v3"}
    if name == "deepseek_v3" and flavor.upper() == "671B":
        return find_spec("deepseek-v3")
    try:
        return find_spec(f"{aliases.get(name) or name}-{flavor}")
    except ConfigError as error:
        model.fault("flavor", f"no catalogue model for {name} {flavor}", hint=error.hint)


def _parallelism(r: Reader) -> dict[str, Any]:
    replicate = r.positive("data_parallel_replicate_degree", default=1)
    shard = r.integer("data_parallel_shard_degree", default=-1)
    settings: dict[str, Any] = {
        "tp": r.positive("tensor_parallel_degree", default=1),
        "pp": r.positive("pipeline_parallel_degree", default=1),
        "cp": r.positive("context_parallel_degree", default=1),
        "ep": r.positive("expert_parallel_degree", default=1),
        "asynchronous_tp": r.boolean("enable_async_tensor_parallel"),
    }
    settings["sequence_parallel"] = settings["tp"] > 1
    schedule = r.text("pipeline_parallel_schedule", default="1F1B", one_of=_SCHEDULES)
    if settings["pp"] > 1:
        settings["schedule"] = _SCHEDULES[schedule]
        settings["micro_batch"] = r.positive("pipeline_parallel_microbatch_size", default=1)
    reshard = r.text("fsdp_reshard_after_forward", default="default", one_of=("default", "always", "never"))
    full = "zero2" if reshard == "never" else "zero3"
    settings["sharding"] = "none" if shard == 1 else "hsdp" if replicate > 1 else full
    if replicate > 1 and shard > 1:
        settings["sharding_group"] = shard
    if settings["cp"] > 1:
        rotation = r.text("context_parallel_rotate_method", default="allgather", one_of=("allgather", "alltoall"))
        settings["cp_comm_type"] = "all_gather" if rotation == "allgather" else "p2p"
        balancer = r.raw("context_parallel_load_balancer")
        settings["cp_load_balance"] = balancer not in (False, "None", "none", "")
    if settings["ep"] > 1:
        backend = r.text("expert_parallel_comm_backend", default="standard", one_of=("standard", "deepep"))
        settings["moe_dispatcher"] = "deepep" if backend == "deepep" else "alltoall"
    r.irrelevant(["context_parallel_rotate_method", "context_parallel_load_balancer", "expert_parallel_comm_backend"])
    if shard > 0:
        settings["dp"] = replicate * shard
    else:
        r.assume("dp", "the rest of the ranks", "data_parallel_shard_degree = -1")
    _finish(r, "parallelism")
    return settings


def _training(r: Reader, spec: ModelSpec | None) -> dict[str, Any]:
    length = r.positive("seq_len", "max_context_length", default=2048)
    tokens = r.integer("num_tokens_per_microbatch_per_dp_rank", default=0)
    local = r.positive("local_batch_size", "batch_size", default=max(1, tokens // length) if tokens else 8)
    settings: dict[str, Any] = {"sequence_length": length, "micro_batch": local}
    total = r.integer("global_batch_size", default=-1)
    if total > 0:
        settings["global_batch"] = total
    param = r.text("mixed_precision_param", default="bfloat16", one_of=("bfloat16", "float32"))
    settings["precision"] = "bf16" if param == "bfloat16" else "fp32"
    reduce = r.text("mixed_precision_reduce", default="float32", one_of=("float32", "bfloat16"))
    if reduce == "bfloat16" and param == "bfloat16":
        settings["gradient_bytes"] = 2
    if r.boolean("enable_cpu_offload"):
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    if r.boolean("compile"):
        r.assume("compile", True, "training.compile of old files")
    _finish(r, "training")
    return settings


def _legacy_compile(reader: Reader) -> bool:
    training = reader.data.get("training")
    return isinstance(training, dict) and bool(training.get("compile"))


def _is_float8(reader: Reader) -> bool:
    """Tell whether linear layers run in eight bits: a converter is named, or an old file enables it."""
    for name in ("quantize", "float8", "mx"):
        section = reader.section(name)
        section.irrelevant(list(section.data))
    old = reader.data.get("float8")
    if isinstance(old, dict) and (old.get("enable_float8_linear") or old.get("enable_fsdp_float8_all_gather")):
        return True
    model = reader.data.get("model")
    converters = model.get("converters", []) if isinstance(model, dict) else []
    return isinstance(converters, list) and any("float8" in str(name) for name in converters)
