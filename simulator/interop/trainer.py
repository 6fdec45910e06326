"""Fine-tuning files around the Hugging Face Trainer: Axolotl's, LLaMA-Factory's, and its own arguments as YAML or JSON.

References
----------
axolotl-ai-cloud/axolotl, ``src/axolotl/utils/schemas``; hiyouga/LLaMA-Factory, ``src/llamafactory/hparams``;
huggingface/transformers, ``training_args.py`` (names and defaults).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.interop.accelerate import FSDP_STRATEGIES
from simulator.interop.adapters import QUANTIZED, adapter_settings, optimizer_settings
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.format import Format
from simulator.interop.key_table import Described, Found, Table, json_keys, key, reader_of
from simulator.interop.typed_values import Reader
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec

#: keys that freeze weights in fewer bits
_QUANTIZED = ("load_in_4bit", "load_in_8bit", "quantization_bit")
KEYS = Table(
    keys=(
        key("micro_batch_size per_device_train_batch_size", "count", plan="micro_batch", note="8 in the Trainer, 1 in Axolotl"),
        key("gradient_accumulation_steps", "count", default=1, note="`global_batch` = micro-batch x this x dp"),
        key("sequence_len cutoff_len max_seq_length max_length", "count", plan="sequence_length"),
        key("bf16", "any", note="`precision`"),
        key("fp16", "any", note="`precision`"),
        key("pure_bf16", "any", note="`precision`: weights in 16 bits, and no others"),
        key("tf32", "any", note="`precision`, where neither is on"),
        key("gradient_checkpointing", "any", note="`recompute` full"),
        key("disable_gradient_checkpointing", "switch", note="of LLaMA-Factory, which recomputes unless told"),
        key("flash_attention flash_attn attn_implementation", "any", note="`attention`"),
        key("xformers_attention sdp_attention", "switch", note="`attention` flash"),
        key("eager_attention", "switch", note="`attention` eager"),
        key("fsdp", "any", note="`sharding`"),
        key("fsdp_version fsdp_config.fsdp_version", default=1),
        key("fsdp_config.sharding_strategy fsdp_config.fsdp_sharding_strategy", "any", note="`sharding`"),
        key("fsdp_config.reshard_after_forward fsdp_config.fsdp_reshard_after_forward", "any", note="`sharding`: false is zero2"),
        key("fsdp_config.offload_params fsdp_config.fsdp_offload_params", "switch", note="both offloads"),
        key("fsdp_config.activation_checkpointing fsdp_config.fsdp_activation_checkpointing", "switch", note="`recompute` full"),
        key("deepspeed", "any", note="read too, where it lies beside the file"),
        key("torch_compile", "any", note="`host` compiled"),
        key("tensor_parallel_size tensor_model_parallel_size", "count", plan="tp", default=1),
        key("context_parallel_size sequence_parallel_degree", "count", plan="cp", default=1),
        key("expert_parallel_size expert_model_parallel_size", "count", plan="ep", default=1),
        key("dp_shard_size", "count", note="of Axolotl: ranks that share one copy"),
        key("dp_replicate_size", "count", default=1),
        key("base_model model_name_or_path", "text", default="", note="a model of the catalogue where it is one"),
        key("adapter", "text", default="", note="of Axolotl: lora or qlora, else all weights are trained"),
        key("finetuning_type", "text", default="", note="of LLaMA-Factory: lora unless it says full"),
        key("use_peft", "switch", note="of scripts around peft: lora"),
        key("lora_r lora_rank", "count", default=8, note="`lora_rank`"),
        key("lora_target_modules lora_target", "any", note="`lora_targets`: all in LLaMA-Factory, else those of queries and values"),
        key("lora_target_linear", "switch", note="`lora_targets`: all"),
        *(key(name, "any", note="said, not modelled: frozen weights are taken as 16 bits") for name in _QUANTIZED),
        key("optimizer", "any", note="Adam's states are taken; `moment_bytes` of 8-bit ones"),
        key("optim", "any", note="the same"),
        key("pipeline_model_parallel_size", "count", plan="pp", default=1, note="of LLaMA-Factory with Megatron-Core"),
        key("virtual_pipeline_model_parallel_size", "count", note="the same: `virtual_pp`"),
        key("sequence_parallel", "switch", note="the same: `sequence_parallel`"),
        key("use_distributed_optimizer", "switch", note="the same: `sharding` zero1"),
        key("mixed_precision", "text", default="bf16", note="the same: `precision`"),
        key("stage", "text", default="sft", note="of LLaMA-Factory: sft or pt; others run more than one model"),
        key("overlap_grad_reduce", "switch", note="the same: `overlap`"),
        key("overlap_param_gather", "switch", note="the same: `overlap_parameter_gather`"),
        key("recompute_granularity", words={"full": "full", "selective": "selective", "none": "none"}, note="the same"),
    ),
    irrelevant={
        "the task and its data": "use_packed* export_hf* *dataset* data* *prompt* chat_template template *token* "
        "val_set_size *split* max_samples do_train do_eval "
        "sample_packing* pad_to_sequence_len eval* metric* load_best* remove_unused* group_by_length preprocess* packing "
        "dataloader* *workers train_on_* roles* trust_remote_code model_type tokenizer* is_* *revision* plugins strict neat_packing "
        "shuffle* streaming mask_history image_* video_* beta pref_* *_processing* special_tokens* type_of_model cls_model_config",
        "learning": "learning_rate lr_* *warmup* weight_decay max_grad_norm num_* max_steps *epoch* *_steps adam_* "
        "seed loss* cosine_* loraplus* "
        "noisy_* neftune* resume* save* auto_resume* early_stopping* optim_* ddp_timeout",
        "logging": "logging* wandb* report_to output_dir overwrite* plot_loss hub_* mlflow* use_tensorboard comet* debug push_to* "
        "run_name local_rank profiler* swanlab*",
        "how it is done, not what": "fsdp_config fsdp_final* gradient_checkpointing_kwargs torch_compile_* experts_implementation "
        "torch_dtype low_cpu* cut_cross* ddp_find* ddp_bucket* lora_* peft_* quantization_method bnb_* pissa* "
        "use_reentrant* ray_* device_map",
    },
    missed={
        "adapters of another kind": "peft*_type use_dora peft_use_dora lora_modules_to_save additional_target relora* oft_*",
        "other models or generation run beside training": "rl ref_model* reward_model* teacher* use_kt kt_*",
        "frozen layers": "unfrozen_parameters freeze_* train_mm_proj_only",
        "activations on the host": "activation_offloading",
        "weights rounded in training": "qat* quantization_aware*",
        "fused or other kernels": "liger_* lora_*_kernel unsloth use_unsloth* enable_liger*",
        "an optimizer of its own": "use_galore use_badam use_apollo use_muon use_adam_mini galore_*",
        "precision": "fp8* use_fp8*",
    },
)  # fmt: skip

_STRATEGIES = {word.lower(): ours for word, ours in FSDP_STRATEGIES.items()}


def _describe(found: Found) -> Described:
    """Return what a fine-tuning file says; a DeepSpeed file that it names is read too, where it lies beside it."""
    settings = (
        {"framework": "hf-eager"} | KEYS.fields(found, "plan") | _precision(found) | _attention(found) | _fsdp(found)
    )
    is_factory = found.given("finetuning_type", "stage", "cutoff_len")
    if _is_on(found["gradient_checkpointing"]) or found["fsdp_config.activation_checkpointing"]:
        settings["recompute"] = "full"
    elif is_factory and not found["disable_gradient_checkpointing"]:
        settings["recompute"] = "full"
        found.reader.assume("recompute", "full", "LLaMA-Factory's default")
    if _is_on(found["torch_compile"]):
        settings["host"] = "compiled"
    settings |= _deepspeed(found, Path(found.reader.file)) | _megatron(found) | _adapters(found, is_factory)
    settings |= optimizer_settings(found.reader, "optimizer" if found.given("optimizer") else "optim", "adamw_torch")
    if found["stage"] not in ("sft", "pt"):
        found.reader.miss("stage", f"{found['stage']}: other models or generation run beside training")
    spec = catalogue_model(found.reader, "base_model", found["base_model"])
    return spec, settings, found["gradient_accumulation_steps"]


def _adapters(found: Found, is_factory: bool) -> dict[str, Any]:
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


def _megatron(found: Found) -> dict[str, Any]:
    """Return what only LLaMA-Factory's way through Megatron-Core has: its degrees and its optimizer."""
    names = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
        "use_distributed_optimizer",
    )
    if not found.given(*names):
        return {}
    virtual = found["virtual_pipeline_model_parallel_size"] or 1
    return {
        "framework": "megatron-core",
        "sharding": "zero1" if found["use_distributed_optimizer"] else "none",
        "recompute": found["recompute_granularity"] or "none",
        "precision": next((word for word in ("fp8", "fp16") if word in found["mixed_precision"]), "bf16"),
        "overlap": found["overlap_grad_reduce"],
        "overlap_parameter_gather": found["overlap_param_gather"],
        "sequence_parallel": found["sequence_parallel"],
        "virtual_pp": virtual,
        "schedule": "1f1b-interleaved" if virtual > 1 else "1f1b",
    }  # fmt: skip


def is_trainer(text: str) -> bool:
    """Whether a text names a model to be trained, and its batch or its data."""
    keys = json_keys(text)

    def has(*names: str) -> bool:
        return bool(keys & set(names)) or any(re.search(rf"(?m)^[\s{{]*[\"']?{name}[\"']?\s*:", text) for name in names)

    model = has("base_model", "model_name_or_path")
    return has("per_device_train_batch_size") or (
        model and has("micro_batch_size", "cutoff_len", "finetuning_type", "sequence_len")
    )


def _is_on(value: Any) -> bool:
    return value not in (None, False, "false", "", "no", "none", "disabled", "None")


def _precision(found: Found) -> dict[str, Any]:
    """Return the precision: 16-bit working weights under FSDP or DeepSpeed, autocast without them."""
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


def _attention(found: Found) -> dict[str, Any]:
    named = str(found["flash_attention"]).lower()
    if found["eager_attention"] or named in ("eager", "disabled"):
        return {"attention": "eager"}
    return {"attention": "flash"}  # scaled_dot_product_attention is the default of transformers


def _has_fsdp_config(found: Found) -> bool:
    return any(name.startswith("fsdp_config") and value is not None for name, value in found.reader.data.items())


def _fsdp(found: Found) -> dict[str, Any]:
    options = found["fsdp"]
    words = [str(one).lower() for one in options] if isinstance(options, list) else str(options or "").lower().split()
    if not words and not _has_fsdp_config(found):
        return {}
    strategy, reshard = (
        str(found["fsdp_config.sharding_strategy"] or "").lower(),
        found["fsdp_config.reshard_after_forward"],
    )
    named = next(
        (word for word in (*words, strategy) if word in _STRATEGIES),
        "shard_grad_op" if reshard is False else "full_shard",
    )
    settings: dict[str, Any] = {
        "framework": "fsdp2" if found["fsdp_version"] == 2 or (found.given("dp_shard_size")) else "fsdp",
        "sharding": _STRATEGIES[named],
    }
    if found["dp_shard_size"] and found["dp_replicate_size"] > 1:
        settings |= {"sharding": "hsdp", "sharding_group": found["dp_shard_size"]}
    if found["fsdp_config.offload_params"] or "offload" in words:
        settings |= {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
    return settings


def _deepspeed(found: Found, path: Path) -> dict[str, Any]:
    """Return the settings of the DeepSpeed file that is named."""
    name = found["deepspeed"]
    if not isinstance(name, str) or not name:
        return {}
    file = next((one for one in (path.parent / name, path.parent / Path(name).name) if one.is_file()), None)
    if file is None:
        found.reader.miss("deepspeed", f"{name} is not here: give it with --deepspeed")
        return {"framework": "deepspeed"}
    inner = import_deepspeed(file)
    found.reader.account.include(inner.report, f"{file.name}: ")
    taken = {"micro_batch", "global_batch", "dp"} if found.given("micro_batch_size") else set()
    return {one: value for one, value in inner.settings.items() if one not in taken}


def catalogue_model(reader: Reader, key_name: str, named: str) -> ModelSpec | None:
    """Return the model of the catalogue that a file names under a key, where it is one; say so, or that it is not."""
    name = named.rsplit("/", 1)[-1].lower()
    short = re.sub(r"[-_](hf|instruct|chat|base|it|v\d[\d.]*|\d{4})\b", "", name.replace("meta-", "")).replace(
        "llama-", "llama"
    )
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
