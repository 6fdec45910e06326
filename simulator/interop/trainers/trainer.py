"""Fine-tuning files around the Hugging Face Trainer: Axolotl's, LLaMA-Factory's, and its own arguments as YAML or JSON.

References
----------
axolotl-ai-cloud/axolotl, ``src/axolotl/utils/schemas``, ``integrations/liger`` and ``integrations/cut_cross_entropy``;
hiyouga/LLaMA-Factory, ``src/llamafactory/hparams``;
huggingface/transformers, ``training_args.py`` (names and defaults) and ``integrations/deepspeed.py`` (which values of a DeepSpeed
file must be the Trainer's).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.interop.format import Format
from simulator.interop.key_table import Described, FoundKeys, flattened, json_keys, reader_of, shipped_table
from simulator.interop.models.adapters import NO_LOGITS, QUANTIZED, adapter_settings, optimizer_settings
from simulator.interop.trainers.deepspeed import KEYS as DEEPSPEED_KEYS
from simulator.interop.trainers.deepspeed import read_deepspeed
from simulator.interop.trainers.megatron_flags import read_flags
from simulator.interop.trainers.nemo import megatron_name
from simulator.interop.trainers.torchao import float8_settings
from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec
from simulator.plan.data_parallelism import ACCELERATES_LOOP, FSDP_STRATEGIES, mesh_sharding
from simulator.plan.frameworks import liger_variant

#: keys that freeze weights in fewer bits
_QUANTIZED = ("load_in_4bit", "load_in_8bit", "quantization_bit")
KEYS = shipped_table("trainer")

_STRATEGIES = {word.lower(): ours for word, ours in FSDP_STRATEGIES.items()}


def _describe(found: FoundKeys) -> Described:
    """Return what a fine-tuning file says; a DeepSpeed file that it names is read too, where it lies beside it."""
    settings = (
        {"framework": "hf-eager"} | KEYS.fields(found, "plan") | _precision(found) | _attention(found) | _fsdp(found)
    )
    is_factory = found.given("finetuning_type", "stage", "cutoff_len")
    if found[
        "fsdp_config.activation_checkpointing"
    ]:  # inside the units (Accelerate, ``apply_activation_checkpointing``)
        settings |= {"recompute": "full", "recompute_gathers": False}
    elif _is_on(found["gradient_checkpointing"]):
        settings["recompute"] = "full"
    elif is_factory and not found["disable_gradient_checkpointing"]:
        settings["recompute"] = "full"
        found.reader.assume("recompute", "full", "LLaMA-Factory's default")
    if _is_on(found["torch_compile"]):
        settings["host"] = "compiled"
    spec = catalogue_model(found.reader, "base_model", found["base_model"])
    settings |= _deepspeed(found, spec) | _megatron(found) | _adapters(found, is_factory)
    settings |= optimizer_settings(found.reader, "optimizer" if found.given("optimizer") else "optim", "adamw_torch")
    if found["stage"] not in ("sft", "pt"):
        found.reader.miss("stage", f"{found['stage']}: other models or generation run beside training")
    settings |= _offload(found, spec) | _liger(found, settings["framework"])
    return spec, settings, found["gradient_accumulation_steps"]


#: switches of Axolotl's plugin of Liger's kernels, all of which a framework with Liger's kernels has on
_LIGER = words("liger_rope liger_rms_norm liger_glu_activation liger_fused_linear_cross_entropy")
_LIGERS_LOSS = "liger_fused_linear_cross_entropy"
#: words of Axolotl for checkpoints that wait in host memory
_OFFLOADS = ("offload", "unsloth")


def _liger(found: FoundKeys, framework: str) -> dict[str, Any]:
    """Return the framework with Liger's kernels, where they are on; note what a loss without logits would save."""
    reader, plugins = found.reader, str(found["plugins"] or "")
    if found["cut_cross_entropy"] or ("cut_cross_entropy" in plugins and found["cut_cross_entropy"] is None):
        key = "cut_cross_entropy" if found["cut_cross_entropy"] else "plugins"
        reader.miss(key, f"Cut Cross-Entropy {NO_LOGITS}")
    switched = [KEYS.named(name) for name in _LIGER if found[name]]
    if switched and "liger" not in plugins.lower():
        reader.assume(
            "kernels", "as without Liger", "its switches do nothing unless Axolotl's plugins name LigerPlugin"
        )
        switched = []
    if not (switched or found["use_liger_kernel"]):
        return {}
    name = reader.spelling((*KEYS.named("use_liger_kernel").names, *(name for key in switched for name in key.names)))
    variant = liger_variant(framework)
    if not variant:
        reader.miss(name, f"{framework} is described without Liger's kernels")
        return {}
    off = [one for one in _LIGER if not found[one]] if not found["use_liger_kernel"] else []
    if _LIGERS_LOSS in off:
        off.remove(_LIGERS_LOSS)
        variant = variant.replace("liger", "fused")
    if off:
        reader.miss(name, f"{', '.join(off)} of Liger's kernels are taken, too")
    return {"framework": variant}


def _offload(found: FoundKeys, spec: ModelSpec | None) -> dict[str, Any]:
    """Return the blocks whose checkpoints wait in host memory: all of them, of a model that is known."""
    kind = found["gradient_checkpointing"]
    if kind not in (*_OFFLOADS, "offload_disk"):
        return {}
    if kind in _OFFLOADS and spec is not None:
        return {"offload_layers": spec.layers}
    why = f"{kind}: what is kept of blocks is taken as on the GPU"
    found.reader.miss("gradient_checkpointing", why + (": give its blocks as --offload-layers" if spec is None else ""))
    return {}


def _adapters(found: FoundKeys, is_factory: bool) -> dict[str, Any]:
    """Return the settings of adapters, in the words of Axolotl, of LLaMA-Factory and of scripts around peft."""
    reader, kind = found.reader, found["adapter"] or (found["finetuning_type"] or "lora" if is_factory else "")
    if not kind and found["use_peft"]:
        kind = "lora"
    if kind in ("", "full", "none"):
        return {}
    if kind not in ("lora", "qlora"):
        reader.miss("finetuning_type" if is_factory else "adapter", f"{kind} is taken as training of all weights")
        return {}
    if is_factory and not found["finetuning_type"]:
        reader.assume("finetuning_type", "lora", "LLaMA-Factory's default")
    if any(_is_on(found[name]) for name in _QUANTIZED) or kind == "qlora":
        reader.miss(next((name for name in _QUANTIZED if _is_on(found[name])), "adapter"), QUANTIZED)
    modules = (
        True
        if found["lora_target_linear"] or (is_factory and not found["lora_target_modules"])
        else found["lora_target_modules"]
    )
    return adapter_settings(reader, reader.spelling(("lora_target_modules", "lora_target")), found["lora_r"], modules)


#: what only LLaMA-Factory's way through Megatron-Core has, under Megatron's names, and the settings that follow
_MEGATRON = words(
    "tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size expert_model_parallel_size "
    "sequence_parallel use_distributed_optimizer overlap_grad_reduce overlap_param_gather recompute_granularity recompute_method "
    "recompute_num_layers"
)
_SETTINGS = words(
    "framework sharding precision overlap overlap_parameter_gather sequence_parallel virtual_pp schedule recompute "
    "recompute_method recompute_layers"
)


def _megatron(found: FoundKeys) -> dict[str, Any]:
    """Return what LLaMA-Factory's way through Megatron-Core says, read as Megatron's flags."""
    data, names = found.reader.data, {megatron_name(name): name for name in _MEGATRON}
    if not found.given(*_MEGATRON[:2], "expert_model_parallel_size", "use_distributed_optimizer"):
        return {}
    precision = next((word for word in ("fp8", "fp16") if word in found["mixed_precision"]), "bf16")
    flags = {flag: data[name] for flag, name in names.items() if name in data}
    flags |= {"fp8-format": "hybrid", "bf16": True} if precision == "fp8" else {precision: True}
    settings = read_flags(Reader(flags, found.reader.file, locator=found.reader.locator, names=names)).settings
    return {name: settings[name] for name in _SETTINGS if name in settings}


def is_trainer(text: str) -> bool:
    """Whether a text names a model to be trained, and its batch or its data."""
    keys = json_keys(text)

    def has(*names: str) -> bool:
        return bool(keys & set(names)) or any(
            re.search(rf"(?m)^[ \t{{]*+[\"']?{name}[\"']?[ \t]*:", text) for name in names
        )

    model = has("base_model", "model_name_or_path")
    return has("per_device_train_batch_size") or (
        model and has("micro_batch_size", "cutoff_len", "finetuning_type", "sequence_len")
    )


def _is_on(value: Any) -> bool:
    return value not in (None, False, "false", "", "no", "none", "disabled", "None")


def _precision(found: FoundKeys) -> dict[str, Any]:
    """Return the precision: 16-bit working weights under FSDP or DeepSpeed, autocast without them.

    References
    ----------
    axolotl-ai-cloud/axolotl, ``core/builders/base.py``: ``fp8`` is Accelerate's, by torchao's recipe of tensors.
    """
    if found["fp8"]:
        return float8_settings(found.reader, "fp8", "", gathers=found["fp8_enable_fsdp_float8_all_gather"])
    is_sharded = found["fsdp"] is not None or found["deepspeed"] is not None or _has_fsdp_config(found)
    prefix = "" if is_sharded else "amp_"
    if _is_on(found["pure_bf16"]):
        return {"precision": "bf16"}
    if found["bf16"] in (True, "auto", "full", "true", "pure_bf16") and found["bf16"] is not False:
        if found["bf16"] == "auto":
            found.reader.assume("precision", "bf16", "'auto' takes it on GPUs of Ampere and later")
        return {"precision": f"{prefix}bf16"}
    if found["fp16"] in (True, "auto", "true"):
        return {"precision": f"{prefix}fp16"}
    return {"precision": "tf32" if found["tf32"] is True else "fp32"}


def _attention(found: FoundKeys) -> dict[str, Any]:
    named = str(found["flash_attention"]).lower()
    if found["eager_attention"] or named in ("eager", "disabled"):
        return {"attention": "eager"}
    return {"attention": "flash"}  # scaled_dot_product_attention is the default of transformers


def _has_fsdp_config(found: FoundKeys) -> bool:
    return any(name.startswith("fsdp_config") and value is not None for name, value in found.reader.data.items())


def _fsdp(found: FoundKeys) -> dict[str, Any]:
    options = found["fsdp"]
    said = [str(one).lower() for one in options] if isinstance(options, list) else str(options or "").lower().split()
    if not said and not _has_fsdp_config(found):
        return {}
    strategy, reshard = (
        str(found["fsdp_config.sharding_strategy"] or "").lower(),
        found["fsdp_config.reshard_after_forward"],
    )
    named = next(
        (word for word in (*said, strategy) if word in _STRATEGIES),
        "shard_grad_op" if reshard is False else "full_shard",
    )
    settings: dict[str, Any] = {
        "framework": "hf-fsdp2" if found["fsdp_version"] == 2 or found.given("dp_shard_size") else "hf-fsdp",
        "sharding": _STRATEGIES[named],
    } | ACCELERATES_LOOP
    if found["dp_shard_size"] and found["dp_replicate_size"] > 1:
        settings |= mesh_sharding(found["dp_replicate_size"], found["dp_shard_size"], found["context_parallel_size"])
    if found["fsdp_config.offload_params"] or "offload" in said:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    return settings


def _deepspeed(found: FoundKeys, spec: ModelSpec | None) -> dict[str, Any]:
    """Return the settings of the DeepSpeed file that is named, with what the Trainer fills into it."""
    name, path = found["deepspeed"], Path(found.reader.file)
    if not isinstance(name, str) or not name:
        return {}
    file = next((one for one in (path.parent / name, path.parent / Path(name).name) if one.is_file()), None)
    if file is None:
        found.reader.miss("deepspeed", f"{name} is not here: give it with --deepspeed")
        return {"framework": "deepspeed"}
    data, locator = load_yaml(file)
    reader = Reader(flattened(data, str(file)), str(file), locator=locator)
    _fill(found, reader, file.name)
    inner = read_deepspeed(reader, hidden=spec.hidden if spec is not None else 0)
    found.reader.account.include(inner.report, f"{file.name}: ")
    found.automatic = inner.automatic
    unsaid = {("precision", "fp32"), ("tp", 1)}  # which the Trainer may say otherwise
    return {one: value for one, value in inner.settings.items() if (one, value) not in unsaid}


def _fill(found: FoundKeys, theirs: Reader, file: str) -> None:
    """Write the Trainer's values for ``auto`` into a DeepSpeed file's, and refuse others that differ, as the Trainer does."""
    precision = _precision(found)["precision"].removeprefix("amp_")
    says_precision = found.given("bf16", "fp16") and not _is_on(found["pure_bf16"])
    values: dict[str, tuple[str, Any, bool]] = {  # key of DeepSpeed -> key here, value here, whether they must agree
        "train_micro_batch_size_per_gpu": ("micro_batch_size", found["micro_batch_size"], True),
        "gradient_accumulation_steps": ("gradient_accumulation_steps", found["gradient_accumulation_steps"], True),
        **{f"{word}.enabled": (word, precision == word, says_precision) for word in ("bf16", "fp16")},
    }
    if found["micro_batch_size"] is None:
        del values["train_micro_batch_size_per_gpu"]
    elif theirs.data.get("train_batch_size") == "auto":
        del theirs.data["train_batch_size"]  # follows from the ranks
    differing: dict[str, str] = {}
    for name, (key, ours, must_agree) in values.items():
        spelling = theirs.spelling(DEEPSPEED_KEYS.named(name).names)
        value = theirs.data.get(spelling)
        if value == "auto" or (value is None and ours):
            theirs.data[spelling] = ours
        elif value is not None and value != ours and must_agree:
            here = found.reader.spelling(KEYS.named(key).names)
            told = f"{ours}".lower() + (" by default" if not found.given(here) else "")
            differing[here] = f"{told} beside {spelling}: {str(value).lower()} of {file}"
    if differing:
        (here, first), *rest = differing.items()
        hint = f'write "auto" in {file}, or the same values: transformers stops where they differ'
        found.reader.fault(here, "; ".join([first, *(f"{other}: {text}" for other, text in rest)]), hint=hint)


def catalogue_model(reader: Reader, key_name: str, named: str) -> ModelSpec | None:
    """Return the model of the catalogue that a file names under a key, where it is one; say so, or that it is not."""
    name = named.rsplit("/", 1)[-1].lower()
    plain = name.replace("meta-", "").removeprefix("nvidia-").replace("llama-", "llama")
    short = re.sub(r"[-_](hf|instruct|thinking|chat|base|it|bf16|fp8|v\d[\d.]*|\d{4})\b", "", plain)
    for one in (name, short):
        try:
            spec = find_spec(one) if one else None
        except ConfigError:
            continue
        if spec is not None:
            reader.assume("model", spec.name, f"the catalogue's for {named}")
            return spec
    if name:
        reader.miss(key_name, f"{named} is not in the catalogue: give --model")
    return None


TRAINER = Format(
    gives="plan and model",
    what="YAML of Axolotl or LLaMA-Factory, or arguments of the Hugging Face Trainer",
    sniff=is_trainer,
    read=reader_of("trainer", KEYS, _describe),
    table=KEYS,
)
