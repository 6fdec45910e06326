"""NeMo AutoModel's YAML: a model of Hugging Face under FSDP2, fine-tuned or trained.

References
----------
NVIDIA-NeMo/Automodel, ``examples`` and ``nemo_automodel/components/distributed`` (names and defaults).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from simulator.interop.format import Format, having
from simulator.interop.key_table import Described, FoundKeys, reader_of, shipped_table
from simulator.interop.models.adapters import NO_LOGITS, adapter_settings, optimizer_settings
from simulator.interop.trainers.torchao import float8_settings
from simulator.interop.trainers.trainer import catalogue_model
from simulator.plan import SETTINGS
from simulator.plan.frameworks import automodel_variant

KEYS = shipped_table("automodel")
#: modules that have adapters where a file says all linear ones
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _named(data: dict[str, Any]) -> dict[str, Any]:
    """Name the strategy after the class that a recipe gives in its place, ``...distributed.ddp.DDPManager``, and what is recomputed."""
    target, recomputed = "distributed._target_", "distributed.activation_checkpointing"
    named = str(data.get(target) or "").rpartition(".")[2].removesuffix("Manager").lower()
    is_full = data.get(recomputed)
    told = {recomputed: "full" if is_full else "none"} if isinstance(is_full, bool) else {}
    return data | ({target: named} if named else {}) | told


def _describe(found: FoundKeys) -> Described:
    """Return what a recipe says."""
    reader = found.reader
    degrees = {axis: _degree(found, axis) for axis in ("tp", "cp", "pp", "ep")}
    settings: dict[str, Any] = KEYS.fields(found, "plan") | degrees
    settings["framework"] = _framework(found, degrees)
    for axis, name in (("ep", "moe_dispatcher"), ("tp", "sequence_parallel")):
        if degrees[axis] == 1:
            settings.pop(name, None)
    named = found["model.pretrained_model_name_or_path"]
    spec = catalogue_model(reader, "model.pretrained_model_name_or_path", named) if named else None
    settings["sharding"] = KEYS.named("distributed.strategy").ours(found["distributed.strategy"])
    if _degree(found, "dp") > 1:
        settings |= {"dp": _degree(found, "dp")}
        settings["gpus"] = settings["dp"] * degrees["tp"] * degrees["cp"] * degrees["pp"]
    if _degree(found, "dp_replicate") > 1:
        settings["sharding"] = "hsdp"
        if "dp" in settings:
            settings["sharding_group"] = settings["dp"] // _degree(found, "dp_replicate") * degrees["cp"]
    settings |= _batch(found, degrees["pp"], spec.layers if spec else 0)
    if length := found["packed_sequence.packed_sequence_size"] or found["dataset.seq_length"]:
        settings["sequence_length"] = length
    if found["compile.enabled"]:
        settings["host"] = "compiled"
    if found["fp8.enabled"]:
        gathers = found["fp8.enable_fsdp_float8_all_gather"]
        settings |= float8_settings(reader, "fp8.recipe_name", found["fp8.recipe_name"], gathers=gathers)
    if "FusedLinear" in str(found["loss_fn._target_"]):
        reader.miss("loss_fn._target_", f"this loss {NO_LOGITS}")
    if found["peft.dim"]:
        settings |= adapter_settings(reader, "peft.target_modules", found["peft.dim"], _adapted(found), _MODULES)
    return spec, settings | optimizer_settings(reader, "optimizer._target_", "torch.optim.AdamW"), None


def _adapted(found: FoundKeys) -> list[str]:
    """Return the modules that patterns such as ``*_proj`` name, all linear ones where there is none."""
    named = found["peft.target_modules"]
    patterns = [
        str(one) for one in (named if isinstance(named, list) else [] if named in (None, True, False) else [named])
    ]
    found_modules: list[str] = []
    for pattern in patterns:
        last = pattern.rpartition(".")[2]
        found_modules += [one for one in _MODULES if fnmatchcase(one, last)] or [last]
    return found_modules


def _degree(found: FoundKeys, axis: str) -> int:
    """Return a degree, 1 where the file leaves it open as ``none``."""
    name = f"distributed.{axis}_size"
    value = found[name]
    if value is None or str(value).lower() in ("none", "null", "-1"):
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found.reader.fault(name, f"{value!r:.40} is not a degree", hint="a whole number, or none")
    return value


def _framework(found: FoundKeys, degrees: dict[str, int]) -> str:
    """Return whose kernels run: Transformer Engine's, Liger's patches of plain modules, or the modules alone."""
    if "te" in (found["model.backend.attn"], found["model.backend.linear"]):
        return "automodel-te"
    return automodel_variant(degrees, wants_liger=bool(found["model.use_liger_kernel"]))


def _batch(found: FoundKeys, pp: int, layers: int) -> dict[str, Any]:
    """Return the micro-batch, and of a pipeline its schedule, which drains after each local batch."""
    local = found["step_scheduler.local_batch_size"]
    if pp == 1:
        return {"micro_batch": local}
    micro, per_stage = found["distributed.pipeline.pp_microbatch_size"], found["distributed.pipeline.layers_per_stage"]
    settings: dict[str, Any] = {"micro_batch": micro, "pipeline_batch": max(1, local // micro)}
    if found["distributed.pipeline.pp_schedule"]:
        settings["schedule"] = SETTINGS["schedule"].parse(str(found["distributed.pipeline.pp_schedule"]).lower())
    if layers and per_stage:
        settings["virtual_pp"] = max(1, -(-layers // (pp * per_stage)))
    return settings


AUTOMODEL = Format(
    gives="plan and model",
    what="YAML of NeMo AutoModel",
    sniff=having(r"^step_scheduler\s*:", r"^distributed\s*:", r"^model\s*:"),
    read=reader_of("automodel", KEYS, _describe, _named),
    table=KEYS,
)
