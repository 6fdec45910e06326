"""torchtitan's TOML job files, both ways; dumped JSON configurations too.

References
----------
pytorch/torchtitan, ``torchtitan/config_manager.py`` and ``config/job_config.py`` (names and defaults).
"""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import FoundKeys, flattened, json_keys, shipped_table
from simulator.interop.syntax import load_toml
from simulator.interop.trainers.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.trainers.meshes import copies_of_the_rest, mesh_of, outside_meshes
from simulator.interop.trainers.torchao import float8_settings
from simulator.interop.typed_values import Reader
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec
from simulator.plan.data_parallelism import mesh_sharding

KEYS = shipped_table("torchtitan")


def import_torchtitan(path: str | Path) -> Imported:
    """Read a TOML job file or a dumped JSON configuration."""
    data, locator = load_yaml(path) if Path(path).suffix == ".json" else (load_toml(path), None)
    return read_torchtitan(Reader(flattened(data, str(path)), str(path), locator=locator))


def read_torchtitan(reader: Reader, *, kind: str = "torchtitan") -> Imported:
    """Read settings that are already a mapping, written flat; see :func:`import_torchtitan`."""
    found = KEYS.read(reader)
    spec = _spec(found)
    settings = KEYS.fields(found, "plan") | _sharding(found) | _training(found, spec)
    if settings["pp"] > 1:  # the batch of a rank is cut into micro-batches of their own size
        if "global_batch" not in settings and "dp" in settings:
            settings["global_batch"] = settings["micro_batch"] * settings["dp"]
        settings["micro_batch"] = found["parallelism.pipeline_parallel_microbatch_size"]
        settings |= _stages(found, settings["schedule"], spec)
    if settings["ep"] > 1:
        settings["etp"] = found["parallelism.expert_tensor_parallel_degree"]
    settings["sequence_parallel"] = settings["tp"] > 1
    parts = found["compile.components"]
    has_model = not isinstance(parts, list) or "model" in parts
    is_compiled = found["training.compile"] or (found["compile.enable"] and has_model)
    settings["framework"] = KEYS.named("compile.enable").ours(is_compiled)
    settings |= _precision(found)
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
    sections = set(re.findall(r"(?m)^[ \t]*+\[(\w+)\]", text))
    return "training" in sections and bool(sections & {"parallelism", "experimental", "activation_checkpoint"})


# ---- reading -----------------------------------------------------------------------------------------------------


#: model and flavor, as torchtitan and presets of Primus have them -> model of the catalogue
CATALOGUE_NAMES = {
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-v3-16b": "deepseek-v2-lite",
    "llama4-17bx16e": "llama4-scout",
    "llama4-17bx128e": "llama4-maverick-400b",
}


#: schedules of PyTorch's that have no name here, of which another one stands in -> what that one lacks
_STAND_INS = {
    "LoopedBFS": "it is LoopedBFS with one stage a rank: with two, torchtitan's default, fill and drain take less",
    "InterleavedZeroBubble": "it is InterleavedZeroBubble with one stage a rank: with two, torchtitan's default, fill and drain take less",
}


def _spec(found: FoundKeys) -> ModelSpec | None:
    name, flavor = found["model.name"], found["model.flavor"]
    if not name:
        return None
    whole = f"{name}-{flavor}".lower().replace("_", "-")
    try:
        return find_spec(CATALOGUE_NAMES.get(whole, f"{name}-{flavor}"))
    except ConfigError as error:
        found.reader.miss("model.flavor", f"no catalogue model for {name} {flavor}: give --model. {error.hint}")
        return None


def _sharding(found: FoundKeys) -> dict[str, Any]:
    replicate = found["parallelism.data_parallel_replicate_degree"]
    shard = found["parallelism.data_parallel_shard_degree"]
    reshards, cp = (
        found["parallelism.fsdp_reshard_after_forward"] != "never",
        found["parallelism.context_parallel_degree"],
    )
    settings = mesh_sharding(replicate, shard, cp, reshards=reshards)
    if shard > 0:
        settings["dp"] = replicate * shard
    else:
        found.reader.assume("dp", "the rest of the ranks", "data_parallel_shard_degree = -1")
    if shard < 0 and replicate > 1:
        found.reader.miss("parallelism.data_parallel_replicate_degree", copies_of_the_rest(replicate))
    return settings


def _training(found: FoundKeys, spec: ModelSpec | None) -> dict[str, Any]:
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
    if found["training.dtype"] == "bfloat16":
        settings |= {"master_bytes": 2, "moment_bytes": 2}
    if found["training.enable_cpu_offload"]:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    if found["training.compile"]:
        found.reader.assume("compile", True, "training.compile of old files")
    if found["parallelism.context_parallel_degree"] > 1:
        balancer = found["parallelism.context_parallel_load_balancer"]
        settings["cp_load_balance"] = balancer not in (False, "None", "none", "")
    return settings


def _every_nth_block(found: FoundKeys, spec: ModelSpec | None) -> dict[str, Any]:
    """Return the recomputation of every n-th block, where blocks and not operators are selected."""
    option = str(found["activation_checkpoint.selective_ac_option"])
    if not option.isdigit() or option == "0" or spec is None:
        return {}
    stages = found["parallelism.pipeline_parallel_degree"]
    count = max(1, spec.layers // stages // int(option))
    return {"recompute": "full", "recompute_method": "block", "recompute_layers": count}


def _precision(found: FoundKeys) -> dict[str, Any]:
    """Return the precision of linear layers in eight bits: a converter is named, or an old file enables it.

    References
    ----------
    pytorch/torchtitan, ``components/quantization/float8.py`` and ``mx.py``: ``quantize.linear.mx``, before ``mx``.
    """
    named = found["model.converters"]
    converters = [str(name) for name in named] if isinstance(named, list) else []
    is_old = named is None and found["float8.enable_float8_linear"]
    if is_old or any("float8" in name for name in converters):
        key = "quantize.linear.float8.recipe_name"
        gathers = found["quantize.linear.float8.enable_fsdp_float8_all_gather"]
        return float8_settings(found.reader, _spelling(found, key), found[key], gathers=gathers)
    if any(name.rpartition(".")[2] == "mx" for name in converters):
        recipe = found["quantize.linear.mx.recipe_name"]
        if not recipe.startswith("mxfp8"):
            found.reader.miss(_spelling(found, "quantize.linear.mx.recipe_name"), f"{recipe} is taken as mxfp8")
        return {"precision": "mxfp8"}
    return {}


def _spelling(found: FoundKeys, name: str) -> str:
    return found.reader.spelling(KEYS.named(name).names)


def _stages(found: FoundKeys, schedule: str, spec: ModelSpec | None) -> dict[str, Any]:
    """Return how many stages a rank has: two under schedules of several, unless the layers of one are given.

    References
    ----------
    pytorch/torchtitan, ``distributed/pipeline_parallel.py``: ``stages_per_rank = 1 if is_single_stage_schedule else 2``, and
    ``ceil((n_layers + 1 + 1) / layers_per_stage)`` stages, where embedding and head count as a layer each.
    """
    name, degree = found["parallelism.pipeline_parallel_schedule"], found["parallelism.pipeline_parallel_degree"]
    if missing := _STAND_INS.get(name):
        found.reader.assume("schedule", schedule, missing)
    per_stage, key = (
        found["parallelism.pipeline_parallel_layers_per_stage"],
        "parallelism.pipeline_parallel_layers_per_stage",
    )
    if schedule != "1f1b-interleaved":
        if per_stage:
            found.reader.miss(key, "stages that are cut otherwise")
        return {}
    n_stages = ceil((spec.layers + 2) / per_stage) if per_stage and spec is not None else 2 * degree
    if n_stages % degree:
        found.reader.miss(key, f"{n_stages} stages over {degree} ranks: two a rank are taken")
        n_stages = 2 * degree
    return {"virtual_pp": n_stages // degree}


# ---- writing -----------------------------------------------------------------------------------------------------

_FLAVOR = re.compile(r"(llama2|llama3|llama3\.1)-(\d+b)")


def write_torchtitan(request: Request) -> Emission:
    """Write a job file."""
    plan = under(request.plan, tuple(KEYS.named("compile.enable").words.values()))
    refuse_to_write("torchtitan", {
        f"virtual_pp={plan.virtual_pp}": plan.virtual_pp > 1,
        "tensor parallelism without sequence parallelism": plan.tp > 1 and not plan.sequence_parallel,
        f"sharding {plan.sharding}": plan.sharding == "zero1",
        **outside_meshes(plan, request.gpus_per_node),
        f"offload_optimizer={plan.offload_optimizer} and offload_parameters={plan.offload_parameters}":
            plan.offload_optimizer != plan.offload_parameters,
    } | KEYS.unsayable(said(plan)))  # fmt: skip
    replicas, shards = mesh_of(plan, request.gpus_per_node)
    flat = KEYS.written(said(plan), "plan") | {
        "training.local_batch_size": plan.micro_batch * (plan.n_micro_batches if plan.pp > 1 else 1),
        "training.global_batch_size": plan.global_batch,
        "training.mixed_precision_reduce": "bfloat16" if plan.reduced_bytes == 2 else "float32",
        "training.enable_cpu_offload": plan.offload_parameters == "cpu",
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.data_parallel_shard_degree": shards,
        "parallelism.fsdp_reshard_after_forward": "never" if plan.sharding == "zero2" else "always",
        "compile.enable": KEYS.named("compile.enable").theirs(plan.framework),
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
