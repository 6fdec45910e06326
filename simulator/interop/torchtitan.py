"""torchtitan's TOML job files, both ways; dumped JSON configurations and ``--section.option`` overrides too.

References
----------
pytorch/torchtitan, ``torchtitan/config_manager.py`` and ``config/job_config.py`` (names and defaults).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.interop.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import Found, Table, flattened, json_keys, key
from simulator.interop.syntax import load_toml
from simulator.interop.typed_values import Reader
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec

_SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "1f1b-interleaved",
    "InterleavedZeroBubble": "zb-1p",
    "ZBVZeroBubble": "zb-v",
    "LoopedBFS": "gpipe",
    "1f1b": "1f1b",  # and the words of 2024
    "gpipe": "gpipe",
    "interleaved_1f1b": "1f1b-interleaved",
    "flexible_interleaved_1f1b": "1f1b-interleaved",
}
_WIDTHS = {"float32": "fp32", "bfloat16": "bf16"}

KEYS = Table(
    keys=(
        key("model.name", "text", default=""),
        key("model.flavor", "text", default=""),
        key("model.converters", "any", note="float8 is precision fp8"),
        key("float8.enable_float8_linear training.enable_float8_linear training.enable_fp8_linear", "switch",
            note="precision fp8, of old files"),
        key("float8.enable_fsdp_float8_all_gather", "switch", note="precision fp8, of old files"),
        key("training.seq_len training.max_context_length", "count", plan="sequence_length", default=2048),
        key("training.local_batch_size training.batch_size", "count", note="`micro_batch`; with pp, that of a rank"),
        key("training.num_tokens_per_microbatch_per_dp_rank", default=0),
        key("training.global_batch_size", default=-1, note="`global_batch`"),
        key("training.mixed_precision_param", plan="precision", words={"bfloat16": "bf16", "float32": "fp32"}, default="bfloat16"),
        key("training.mixed_precision_reduce", words={"float32": 4, "bfloat16": 2}, default="float32", note="`gradient_bytes`"),
        key("training.enable_cpu_offload", "switch", note="both offloads"),
        key("training.compile", "switch", note="of old files"),
        key("training.gradient_accumulation_steps", "count", note="of forks"),
        key("compile.enable", "switch", note="framework torchtitan-compile, where `compile.components` has the model"),
        key("compile.components", "any"),
        key("parallelism.data_parallel_replicate_degree training.data_parallel_replicate_degree", "count", default=1),
        key("parallelism.data_parallel_shard_degree training.data_parallel_shard_degree training.data_parallel_degree", default=-1),
        key("parallelism.tensor_parallel_degree training.tensor_parallel_degree", "count", plan="tp", default=1),
        key("parallelism.pipeline_parallel_degree experimental.pipeline_parallel_degree training.pipeline_parallel_degree",
            "count", plan="pp", default=1),
        key("parallelism.context_parallel_degree experimental.context_parallel_degree", "count", plan="cp", default=1),
        key("parallelism.expert_parallel_degree", "count", plan="ep", default=1),
        key("parallelism.enable_async_tensor_parallel experimental.enable_async_tensor_parallel", "switch", plan="asynchronous_tp"),
        key("parallelism.pipeline_parallel_schedule experimental.pipeline_parallel_schedule", plan="schedule", words=_SCHEDULES,
            default="1F1B", needs="pp"),
        key("parallelism.pipeline_parallel_microbatch_size", "count", default=1, note="`micro_batch` where pp is above 1"),
        key("parallelism.fsdp_reshard_after_forward", words=dict.fromkeys(("default", "always", "never")), default="default"),
        key("parallelism.context_parallel_rotate_method", plan="cp_comm_type",
            words={"allgather": "all_gather", "alltoall": "p2p"}, default="allgather", needs="cp"),
        key("parallelism.context_parallel_load_balancer", "any", note="`cp_load_balance`"),
        key("parallelism.expert_parallel_comm_backend", plan="moe_dispatcher",
            words={"standard": "alltoall", "deepep": "deepep"}, default="standard", needs="ep"),
        key("activation_checkpoint.mode", plan="recompute",
            words={"selective": "selective", "full": "full", "none": "none", "memory_budget": "selective"}, default="selective"),
        key("activation_checkpoint.selective_ac_option", "text", default="op",
            note="`op`: every second product; a number n: every n-th block whole, `recompute` full of so many"),
    ),
    irrelevant={
        "switches of Primus for kernels": "primus_turbo *sink_level training.mock_data",
        "files, logging and learning": "job profiling metrics optimizer lr_scheduler checkpoint fault_tolerance comm "
        "memory_estimation validation experimental debug hf_assets_path dump_folder model.tokenizer_path model.hf_assets_path "
        "model.print_after_conversion model.norm_type training.dataset training.dataset_path training.max_norm training.steps "
        "training.warmup_steps training.seed training.deterministic training.gc_* training.data_parallel_type training.dtype "
        "training.num_tokens_per_train_step",
        "how it is done, not what": "parallelism.enable_compiled_autograd parallelism.disable_loss_parallel "
        "parallelism.expert_tensor_parallel_degree parallelism.num_pp_microbatches "
        "parallelism.pipeline_parallel_expert_parallel_overlap parallelism.enable_approx_mid_reduce_scatter "
        "activation_checkpoint.memory_budget "
        "activation_checkpoint.early_stop activation_checkpoint.visualize_* "
        "activation_checkpoint.per_op_sac_* compile.backend quantize float8 mx",
    },
    missed={
        "stages that are cut otherwise": "parallelism.pipeline_parallel_layers_per_stage parallelism.pipeline_parallel_split_points "
        "parallelism.module_fqns_per_model_part",
        "a schedule of its own": "parallelism.pipeline_parallel_schedule_csv",
    },
)  # fmt: skip


def import_torchtitan(path: str | Path, *, overrides: tuple[str, ...] = ()) -> Imported:
    """Read a TOML job file or a dumped JSON configuration.

    Parameters
    ----------
    overrides : tuple of str
        Command-line words such as ``--training.seq_len 4096``, which win over the file.
    """
    data, locator = load_yaml(path) if Path(path).suffix == ".json" else (load_toml(path), None)
    reader = Reader(flattened(data, str(path)) | _overrides(overrides), str(path), locator=locator)
    return read_torchtitan(reader)


def read_torchtitan(reader: Reader, *, kind: str = "torchtitan") -> Imported:
    """Read settings that are already a mapping, written flat; see :func:`import_torchtitan`."""
    found = KEYS.read(reader)
    spec = _spec(found)
    settings = KEYS.fields(found, "plan") | _sharding(found) | _training(found, spec)
    if settings["pp"] > 1:  # the batch of a rank is cut into micro-batches of their own size
        if "global_batch" not in settings and "dp" in settings:
            settings["global_batch"] = settings["micro_batch"] * settings["dp"]
        settings["micro_batch"] = found["parallelism.pipeline_parallel_microbatch_size"]
    settings["sequence_parallel"] = settings["tp"] > 1
    parts = found["compile.components"]
    is_compiled = found["training.compile"] or (
        found["compile.enable"] and (not isinstance(parts, list) or "model" in parts)
    )
    settings["framework"] = "torchtitan-compile" if is_compiled else "torchtitan"
    if _is_float8(found):
        settings["precision"] = "fp8"
    KEYS.finish(found)
    return Imported(
        kind=kind,
        file=reader.file,
        spec=spec,
        settings=settings,
        accumulation=found["training.gradient_accumulation_steps"],
        report=reader.account.report(),
    )


def is_torchtitan(text: str) -> bool:
    """Whether a text has torchtitan's sections, as TOML or as JSON."""
    if {"training", "parallelism"} <= json_keys(text):
        return True
    sections = set(re.findall(r"(?m)^\s*\[(\w+)\]", text))
    return "training" in sections and bool(sections & {"parallelism", "experimental", "activation_checkpoint"})


# ---- reading -----------------------------------------------------------------------------------------------------


def _overrides(words: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for index, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and "." in name:
            following = words[index + 1] if index + 1 < len(words) else "--"
            given[name.replace("-", "_")] = value if equals else True if following.startswith("--") else following
    return given


#: model and flavor, as torchtitan and presets of Primus have them -> model of the catalogue
CATALOGUE_NAMES = {
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-v3-16b": "deepseek-v2-lite",
    "llama4-17bx16e": "llama4-scout",
    "llama4-17bx128e": "llama4-maverick-400b",
}


def _spec(found: Found) -> ModelSpec | None:
    name, flavor = found["model.name"], found["model.flavor"]
    if not name:
        return None
    whole = f"{name}-{flavor}".lower().replace("_", "-")
    try:
        return find_spec(CATALOGUE_NAMES.get(whole, f"{name}-{flavor}"))
    except ConfigError as error:
        found.reader.miss("model.flavor", f"no catalogue model for {name} {flavor}: give --model. {error.hint}")
        return None


def _sharding(found: Found) -> dict[str, Any]:
    replicate = found["parallelism.data_parallel_replicate_degree"]
    shard = found["parallelism.data_parallel_shard_degree"]
    full = "zero2" if found["parallelism.fsdp_reshard_after_forward"] == "never" else "zero3"
    settings: dict[str, Any] = {"sharding": "none" if shard == 1 else "hsdp" if replicate > 1 else full}
    if replicate > 1 and shard > 1:
        settings["sharding_group"] = shard
    if shard > 0:
        settings["dp"] = replicate * shard
    else:
        found.reader.assume("dp", "the rest of the ranks", "data_parallel_shard_degree = -1")
    return settings


def _training(found: Found, spec: ModelSpec | None) -> dict[str, Any]:
    tokens, length = found["training.num_tokens_per_microbatch_per_dp_rank"], found["training.seq_len"]
    per_rank = max(1, tokens // length) if tokens else 8
    settings: dict[str, Any] = {"micro_batch": found["training.local_batch_size"] or per_rank}
    if found["training.global_batch_size"] > 0:
        settings["global_batch"] = found["training.global_batch_size"]
    is_narrow = found["training.mixed_precision_param"] == "bfloat16"
    if is_narrow and found["training.mixed_precision_reduce"] == "bfloat16":
        settings["gradient_bytes"] = 2
    if found["activation_checkpoint.mode"] == "selective":
        settings |= _every_nth_block(found, spec)
    if found["training.enable_cpu_offload"]:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    if found["training.compile"]:
        found.reader.assume("compile", True, "training.compile of old files")
    if found["parallelism.context_parallel_degree"] > 1:
        balancer = found["parallelism.context_parallel_load_balancer"]
        settings["cp_load_balance"] = balancer not in (False, "None", "none", "")
    return settings


def _every_nth_block(found: Found, spec: ModelSpec | None) -> dict[str, Any]:
    """Return the recomputation of every n-th block, where blocks and not operators are selected."""
    option = str(found["activation_checkpoint.selective_ac_option"])
    if not option.isdigit() or option == "0" or spec is None:
        return {}
    stages = found["parallelism.pipeline_parallel_degree"]
    count = max(1, spec.layers // stages // int(option))
    return {"recompute": "full", "recompute_method": "block", "recompute_layers": count}


def _is_float8(found: Found) -> bool:
    """Tell whether linear layers run in eight bits: a converter is named, or an old file enables it."""
    converters = found["model.converters"]
    named = isinstance(converters, list) and any("float8" in str(name) for name in converters)
    return named or found["float8.enable_float8_linear"] or found["float8.enable_fsdp_float8_all_gather"]


# ---- writing -----------------------------------------------------------------------------------------------------

_FLAVOR = re.compile(r"(llama2|llama3|llama3\.1)-(\d+b)")


def write_torchtitan(request: Request) -> Emission:
    """Write a job file."""
    plan = under(request.plan, ("torchtitan", "torchtitan-compile"))
    refuse_to_write("torchtitan", {
        f"virtual_pp={plan.virtual_pp}": plan.virtual_pp > 1,
        "tensor parallelism without sequence parallelism": plan.tp > 1 and not plan.sequence_parallel,
        f"sharding {plan.sharding}": plan.sharding == "zero1",
        f"offload_optimizer={plan.offload_optimizer} and offload_parameters={plan.offload_parameters}":
            plan.offload_optimizer != plan.offload_parameters,
    } | KEYS.unsayable(said(plan)))  # fmt: skip
    group = plan.sharding_ranks(request.gpus_per_node) if plan.sharding in ("none", "hsdp") else plan.dp
    flat = KEYS.written(said(plan), "plan") | {
        "training.local_batch_size": plan.micro_batch * (plan.n_micro_batches if plan.pp > 1 else 1),
        "training.global_batch_size": plan.global_batch,
        "training.mixed_precision_reduce": "bfloat16" if plan.reduced_bytes == 2 else "float32",
        "training.enable_cpu_offload": plan.offload_parameters == "cpu",
        "parallelism.data_parallel_replicate_degree": plan.dp // group,
        "parallelism.data_parallel_shard_degree": group,
        "parallelism.fsdp_reshard_after_forward": "never" if plan.sharding == "zero2" else "always",
        "compile.enable": plan.framework == "torchtitan-compile",
    }
    flavor = _FLAVOR.fullmatch(request.spec.name)
    if flavor:
        flat |= {"model.name": flavor[1], "model.flavor": flavor[2].upper()}
    if plan.pp > 1:
        flat["parallelism.pipeline_parallel_microbatch_size"] = plan.micro_batch
    if plan.cp > 1 and not plan.cp_load_balance:
        flat["parallelism.context_parallel_load_balancer"] = "None"
    unsaid = {"gpus": "torchrun", "attention": "the model"}
    for name in ("overlap", "overlap_p2p", "overlap_parameter_gather", "scatter_gather", "bucket_bytes"):
        unsaid[name] = "torchtitan's own way"
    return Emission(text=_toml(flat), plan=plan, unsaid=unsaid)


def _toml(flat: dict[str, Any]) -> str:
    """Write ``section.option`` keys, one section after the other."""
    sections: dict[str, list[str]] = {"model": [], "training": [], "parallelism": []}
    for name, value in flat.items():
        section, _, option = name.partition(".")
        word = f'"{value}"' if isinstance(value, str) else str(value).lower()
        sections.setdefault(section, []).append(f"{option} = {word}")
    return "\n".join("\n".join([f"[{name}]", *lines, ""]) for name, lines in sections.items() if lines)


TORCHTITAN = Format(
    gives="plan and model",
    what="a TOML or JSON of torchtitan",
    sniff=is_torchtitan,
    read=import_torchtitan,
    table=KEYS,
    write=write_torchtitan,
    file="train.toml",
)
