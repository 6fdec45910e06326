"""Hugging Face Accelerate's YAML, both ways: FSDP, DeepSpeed, Megatron and device-mesh settings in one file.

References
----------
huggingface/accelerate, ``accelerate/commands/config`` (names and defaults), ``utils/dataclasses.py`` (``DynamoBackend``).
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from simulator.interop.format import Format
from simulator.interop.key_table import Described, FoundKeys, nested, reader_of, shipped_table
from simulator.interop.trainers.deepspeed import import_deepspeed
from simulator.interop.trainers.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.trainers.meshes import mesh_of, outside_meshes
from simulator.interop.trainers.torchao import float8_settings
from simulator.plan.data_parallelism import ACCELERATES_LOOP, FSDP_STRATEGIES, mesh_sharding

_PRECISIONS = {"no": "fp32", "fp16": "amp_fp16", "bf16": "amp_bf16", "fp8": "fp8"}
#: who compiles, and backends of PyTorch's compiler that run operations as they are
_DYNAMO, _UNCOMPILED = "dynamo_config.dynamo_backend", ("no", "eager", "aot_eager")
_DEVICES = {"none": "none", "cpu": "cpu"}
_F, _D, _M, _P = "fsdp_config.", "deepspeed_config.", "megatron_lm_config.", "parallelism_config.parallelism_config_"

KEYS = shipped_table("accelerate")


def _describe(found: FoundKeys) -> Described:
    """Return what ``accelerate config`` wrote; a DeepSpeed file that it names is read too."""
    has_fsdp = any(name.startswith("fsdp_config") for name in found.reader.data)
    kind = found["distributed_type"] or ("FSDP" if has_fsdp else "NO")
    precision = _precision(found)
    settings: dict[str, Any] = {"framework": "hf-eager", "precision": precision}
    if found["num_processes"]:
        settings["gpus"] = found["num_processes"]
    if str(found[_DYNAMO] or "no").lower() not in _UNCOMPILED:
        settings["host"] = "compiled"
    if kind != "NO" and kind in _READERS:
        settings |= _READERS[kind](found) | {"precision": precision.removeprefix("amp_")}  # 16-bit working weights
    if kind == "DEEPSPEED" and found["deepspeed_config.deepspeed_config_file"]:
        settings |= _named_file(found, Path(found.reader.file))
    if precision == "fp8" and found["fp8_config.backend"].upper() == "AO":
        gathers = found["fp8_config.enable_fsdp_float8_all_gather"]
        settings |= float8_settings(found.reader, "fp8_config.backend", "", gathers=gathers)
    settings |= _mesh(found)
    return None, settings, None


import_accelerate = reader_of("accelerate", KEYS, _describe)


def is_accelerate(text: str) -> bool:
    """Whether a text has keys at its top that only Accelerate's files have."""
    if re.search(
        r"(?m)^(base_model|model_name_or_path|per_device_train_batch_size|device_train_microbatch_size)\s*:", text
    ):
        return False  # a file of the trainer, or of LLM Foundry
    return bool(re.search(r"(?m)^(distributed_type|fsdp_config)\s*:", text))


# ---- reading -----------------------------------------------------------------------------------------------------


def _precision(found: FoundKeys) -> str:
    value = found["mixed_precision"]
    word = "no" if value in (None, False) else value
    if not isinstance(word, str) or word not in _PRECISIONS:
        found.reader.fault(
            "mixed_precision", f"{value!r:.80} is not supported", hint=f"one of {', '.join(_PRECISIONS)}"
        )
    return _PRECISIONS[word]


def _fsdp(found: FoundKeys) -> dict[str, Any]:
    strategy, reshard = found[_F + "fsdp_sharding_strategy"], found[_F + "fsdp_reshard_after_forward"]
    known = list(FSDP_STRATEGIES)
    is_second = found[_F + "fsdp_version"] == 2
    if isinstance(strategy, int) and not isinstance(strategy, bool) and 1 <= strategy <= len(known):
        strategy = known[strategy - 1]
    if strategy is None and isinstance(reshard, str) and reshard in known:
        strategy = reshard
    if strategy is None:
        strategy = "SHARD_GRAD_OP" if reshard is False else "FULL_SHARD"
    if not isinstance(strategy, str) or strategy not in known:
        found.reader.fault(
            _F + "fsdp_sharding_strategy", f"{strategy!r:.80} is not known", hint=f"one of {', '.join(known)}"
        )
    settings = {
        "framework": "fsdp2" if is_second else "fsdp",
        "sharding": FSDP_STRATEGIES[strategy],
        "backward_prefetch": "pre",
    } | ACCELERATES_LOOP
    settings |= KEYS.fields(found, "plan")
    if found[_F + "fsdp_activation_checkpointing"]:
        settings["recompute"] = "full"
    if found[_F + "fsdp_offload_params"]:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    return settings


def _deepspeed(found: FoundKeys) -> dict[str, Any]:
    """Return DeepSpeed's settings of the file itself."""
    stage, steps = found[_D + "zero_stage"], found[_D + "gradient_accumulation_steps"]
    settings: dict[str, Any] = {
        "framework": "deepspeed",
        "sharding": found.reader.zero_stage(_D + "zero_stage", stage),
        "overlap": stage == 3,
    }
    for name, theirs in (
        ("offload_optimizer", "offload_optimizer_device"),
        ("offload_parameters", "offload_param_device"),
    ):
        device = found[_D + theirs].lower()
        if device not in _DEVICES:
            found.reader.fault(_D + theirs, f"offload to {device!r} is not modelled", hint="cpu or none")
        if device == "cpu":
            settings[name] = "cpu"
    if steps not in (None, 1):
        found.reader.assume("global_batch", f"micro-batch x {steps} x dp", "gradient_accumulation_steps")
    return settings


def _named_file(found: FoundKeys, path: Path) -> dict[str, Any]:
    """Return the settings of the DeepSpeed file that is named."""
    name = found[_D + "deepspeed_config_file"]
    file = Path(name) if Path(name).is_absolute() else path.parent / name
    inner = import_deepspeed(file)
    found.automatic = inner.automatic
    found.reader.account.include(inner.report, f"{file.name}: ")
    return inner.settings


def _megatron(found: FoundKeys) -> dict[str, Any]:
    count = found[_M + "megatron_lm_num_micro_batches"]
    if count:
        found.reader.assume("global_batch", f"micro-batch x {count} x dp", "megatron_lm_num_micro_batches")
    return {
        "framework": "megatron",
        "tp": found[_M + "megatron_lm_tp_degree"],
        "pp": found[_M + "megatron_lm_pp_degree"],
        "sequence_parallel": found[_M + "megatron_lm_sequence_parallelism"],
        "sharding": "zero1" if found[_M + "megatron_lm_use_distributed_optimizer"] else "none",
        "recompute": "selective" if found[_M + "megatron_lm_recompute_activations"] else "none",
    }


_READERS = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron}


def _mesh(found: FoundKeys) -> dict[str, Any]:
    """Return the degrees of ``parallelism_config``."""
    if not any(name.startswith("parallelism_config") for name in found.reader.data):
        return {}
    replicate, shard = found[_P + "dp_replicate_size"], found[_P + "dp_shard_size"]
    ring, ulysses = found[_P + "cp_size"], found[_P + "sp_size"]
    if ring > 1 and ulysses > 1:
        message = "context and sequence parallelism together are not modelled"
        found.reader.fault(_P + "sp_size", message, hint="one of the two")
    settings: dict[str, Any] = {"tp": found[_P + "tp_size"], "cp": ring * ulysses}
    if found["distributed_type"] in (None, "FSDP") or found[_P + "dp_shard_size"] > 1:
        settings |= {"framework": "fsdp2"} | ACCELERATES_LOOP  # a device mesh is of the second version
    if ulysses > 1:
        settings["cp_comm_type"] = "a2a"
    elif ring > 1:
        settings["cp_comm_type"] = KEYS.named(_P + "cp_comm_strategy").ours(found[_P + "cp_comm_strategy"])
    if replicate * shard > 1:
        settings |= {"dp": replicate * shard} | mesh_sharding(replicate, shard, ring * ulysses)
    world = found["num_processes"]
    if world and settings.get("dp", 1) * settings["tp"] * settings["cp"] > world:
        found.reader.fault("parallelism_config", f"the degrees multiply up to more than num_processes={world}")
    return settings


# ---- writing -----------------------------------------------------------------------------------------------------

_WORDS = {"fp32": "no", "amp_fp16": "fp16", "amp_bf16": "bf16"}
_WRITTEN_STRATEGIES = {ours: word for word, ours in reversed(FSDP_STRATEGIES.items())}
#: fields of a plan that the training script decides
_TRAINER = (
    "micro_batch", "global_batch", "sequence_length", "attention", "bucket_bytes", "scatter_gather", "overlap_parameter_gather",
    "overlap_p2p", "asynchronous_tp", "ep", "virtual_pp", "schedule", "first_stage_layers", "last_stage_layers", "gradient_bytes",
    "account_for_embedding", "account_for_loss",
)  # fmt: skip


def write_accelerate(request: Request) -> Emission:
    """Write what ``accelerate config`` writes: FSDP, plain data parallelism, or the Megatron plugin."""
    from ruamel.yaml import YAML

    plan = request.plan
    is_fsdp = plan.framework_spec.data_parallel.orders_gathers or plan.sharding in ("zero2", "zero3", "hsdp")
    kind, flat, unsaid = _written_fsdp(request) if is_fsdp else _written_megatron(request)
    head = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": kind,
        "num_machines": -(-plan.gpus // request.gpus_per_node), "num_processes": plan.gpus,
        "mixed_precision": _WORDS.get(plan.precision, plan.precision),
    }  # fmt: skip
    text = io.StringIO()
    YAML().dump(nested(head | flat), text)
    has_mesh = any(name.startswith(_P) for name in flat)
    is_second = has_mesh or plan.framework_spec.data_parallel.fsdp_version == 2
    plan = under(plan, ("fsdp2" if is_second else "fsdp",) if is_fsdp else ("megatron",))
    elsewhere = dict.fromkeys(_TRAINER, "the training script") | {
        "micro_batch": f"per_device_train_batch_size {plan.micro_batch}",
        "global_batch": f"gradient_accumulation_steps {plan.n_micro_batches}",
        "gradient_bytes": f"{plan.reduced_bytes}, as the precision has it",
    }
    return Emission(text=text.getvalue(), plan=plan, unsaid=elsewhere | unsaid)


def _written_fsdp(request: Request) -> tuple[str, dict[str, Any], dict[str, str]]:
    plan = request.plan
    refuse_to_write("Accelerate's FSDP", {
        f"pp={plan.pp}": plan.pp > 1,
        f"ep={plan.ep}": plan.ep > 1,
        f"sharding {plan.sharding}": plan.sharding not in _WRITTEN_STRATEGIES,
        **outside_meshes(plan, request.gpus_per_node),
        "sequence parallelism": plan.sequence_parallel,
        "selective recomputation": plan.recompute == "selective",
        f"sharding {plan.sharding} together with tp={plan.tp} cp={plan.cp}": plan.tp * plan.cp > 1 and plan.sharding == "zero2",
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
        f"offload_optimizer={plan.offload_optimizer} and offload_parameters={plan.offload_parameters}":
            plan.offload_optimizer != plan.offload_parameters,
        "communication that does not overlap": not plan.overlaps,
        f"cp_comm_type {plan.context_exchange}": plan.cp > 1 and plan.context_exchange == "a2a",
    })  # fmt: skip
    flat = {
        _F + "fsdp_sharding_strategy": _WRITTEN_STRATEGIES[plan.sharding],
        _F + "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **({_F + "fsdp_version": 2} if plan.framework_spec.data_parallel.fsdp_version == 2 else {}),
        **KEYS.written(said(plan), "plan"),
        _F + "fsdp_offload_params": plan.offload_parameters == "cpu",
        _F + "fsdp_activation_checkpointing": plan.recompute == "full",
    }
    if plan.tp * plan.cp > 1 or plan.sharding == "hsdp":
        replicas, shards = mesh_of(plan, request.gpus_per_node)
        sizes = {"dp_replicate": replicas, "dp_shard": shards, "tp": plan.tp, "cp": plan.cp}
        flat |= {f"{_P}{name}_size": size for name, size in sizes.items()}
        if plan.cp > 1:
            flat[_P + "cp_comm_strategy"] = KEYS.named(_P + "cp_comm_strategy").theirs(plan.context_exchange)
    waits = (
        "on, Accelerate's default" if plan.defers_reduction else "off: GradientAccumulationPlugin(sync_each_batch=True)"
    )
    return "FSDP", flat, {"dp": "num_processes", "sequence_parallel": "off", "no_sync": waits}


def _written_megatron(request: Request) -> tuple[str, dict[str, Any], dict[str, str]]:
    plan = request.plan
    refuse_to_write("Accelerate's Megatron plugin", {
        f"virtual_pp={plan.virtual_pp}": plan.virtual_pp > 1,
        f"cp={plan.cp}": plan.cp > 1,
        f"ep={plan.ep}": plan.ep > 1,
        "full recomputation": plan.recompute == "full",
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
    })  # fmt: skip
    flat = {
        _M + "megatron_lm_tp_degree": plan.tp, _M + "megatron_lm_pp_degree": plan.pp,
        _M + "megatron_lm_num_micro_batches": plan.n_micro_batches,
        _M + "megatron_lm_sequence_parallelism": plan.sequence_parallel,
        _M + "megatron_lm_use_distributed_optimizer": plan.sharding == "zero1",
        _M + "megatron_lm_recompute_activations": plan.recompute == "selective",
    }  # fmt: skip
    return (
        "MEGATRON_LM",
        flat,
        {"dp": "num_processes", "cp": "1", "overlap": "Megatron's default", "sharding_group": "all"},
    )


ACCELERATE = Format(
    gives="plan",
    what="an Accelerate YAML, with FSDP, DeepSpeed or Megatron",
    sniff=is_accelerate,
    read=import_accelerate,
    table=KEYS,
    write=write_accelerate,
    file="accelerate.yaml",
)
