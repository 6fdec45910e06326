"""Recipes around Megatron-Core in YAML: NeMo's, Megatron Bridge's overrides, Primus' and Megatron's functional tests.

All of them name Megatron's own settings in sections of theirs: each is rewritten as Megatron's flags, and read by the table
of :mod:`simulator.interop.trainers.megatron_flags`.

References
----------
NVIDIA/NeMo, ``examples/nlp/language_modeling/conf`` (1.x) and ``nemo/lightning`` (2.x); NVIDIA-NeMo/Megatron-Bridge,
``src/megatron/bridge/training/config.py``; AMD-AGI/Primus, ``examples/megatron/configs``; NVIDIA/Megatron-LM,
``tests/functional_tests/test_cases``; omry/omegaconf (interpolations).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator.config import content_in_words, parse_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import flattened
from simulator.interop.models.adapters import adapter_settings
from simulator.interop.trainers.megatron_bridge import (
    FRAMEWORK,
    has_sections,
    is_bridge,
    precision_first,
    recipe_flags,
    settle,
    settle_gate,
)
from simulator.interop.trainers.megatron_flags import LISTS, read_flags
from simulator.interop.trainers.megatron_model import KEYS, LAYERS
from simulator.interop.trainers.torchtitan import CATALOGUE_NAMES, read_torchtitan
from simulator.interop.typed_values import Reader, unknown, words
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec
from simulator.plan.data_parallelism import NEMO_FSDP

#: NeMo's name -> Megatron's, where they differ by more than hyphens
_NAMES = {
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "num_moe_experts": "num-experts",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "overlap_grad_sync": "overlap-grad-reduce",
    "overlap_param_sync": "overlap-param-gather",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "encoder_seq_length": "seq-length",
    "sequence_length": "seq-length",
    "num_nodes": "nnodes",
    "devices": "nproc-per-node",
    "num_nodes_per_job": "nnodes",
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "layernorm_zero_centered_gamma": "apply-layernorm-1p",
    "persist_layer_norm": "no-persist-layer-norm",
    "mtp_hybrid_override_pattern": "mtp-hybrid-pattern",
}
_ACTIVATIONS = {"swiglu": "swiglu", "geglu": "geglu", "reglu": "reglu"}
_PRECISIONS = {
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "fp16": "fp16",
}
#: words of NeMo 1 for gradients that are reduced in fp32
_WIDE = ("fp32", "32", "float32", "torch.float32")
#: where the rank of adapters stands, its default, and what has adapters by default
_RANKS = ("peft.lora_tuning.adapter_dim", "peft.dim", "peft_dim", "lora.dim")
_DEFAULT_RANK = 32
_PROJECTIONS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
#: sections whose keys are no settings of the model or of its parallelism
_OTHER = words("exp_manager run hydra log logger checkpoint peft scheduler data nsys_profile ENV_VARS METRICS")
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")


def import_recipe(
    path: str | Path, *, define: list[str] | None = None, nodes: int | None = None, gpus_per_node: int | None = None
) -> Imported:
    """Read a recipe; what a Python recipe that it changes would say is not in it, and is not made up."""
    data, locator = parse_yaml(read_text(path), str(path), later_wins=True)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, found {content_in_words(data)}")
    variables = dict(one.partition("=")[::2] for one in define or ())
    flat = resolved(flattened(data, str(path)), variables)
    framework = next((name for name in flat if re.fullmatch(r"modules\.\w+\.framework", name)), "")
    if framework and flat[framework] == "torchtitan":
        return _titan_of_primus(Reader(_overrides(flat), str(path)), flat)
    of_bridge = has_sections(data)
    flags, places = _flags(precision_first(flat) if of_bridge else flat)
    reader = Reader(flags, str(path), locator=locator, names=places)
    if framework and flat[framework] not in ("megatron", "megatron_bridge"):
        raise ConfigError(
            f"{path}: {framework}: {flat[framework]!r:.40} is not modelled", hint="megatron or torchtitan"
        )
    images = next(
        (name for name in flat if re.match(r"model\.(?:num_classes|vision\.|unet_config|first_stage)", name)), ""
    )
    if images:
        raise ConfigError(f"{path}: {images}: a model of images is not modelled", hint="record it with --module")
    is_primus = "modules" in data and flat.get(framework) != "megatron_bridge"
    has_sizes = reader.has(*LAYERS) and reader.has("hidden-size")
    is_whole = (has_sizes and "MODEL_ARGS" not in data) or "--num-layers" in str(data)
    named = _named_model(flat, reader) if framework else None
    if is_primus and not reader.has("bf16", "fp16"):
        reader.assume("precision", "bf16", "the default of Primus")
        reader.data["bf16"] = True
    is_gated = settle_gate(reader)
    if of_bridge:
        settle(reader, flat, is_gated=is_gated)
    tuned = _adapters(flat, reader)
    family = _family(data, flat, reader)
    imported = read_flags(reader, family, nodes, gpus_per_node, is_partial=not is_whole and not is_primus)
    if of_bridge and imported.settings["framework"] == "megatron-core":
        imported.settings["framework"] = FRAMEWORK
    buckets = next((value for name, value in flat.items() if name.endswith("optim.bucket_cap_mb")), None)
    if isinstance(buckets, int) and not isinstance(buckets, bool) and 0 < buckets < 10**6:
        imported.settings["bucket_bytes"] = buckets << 20
    return Imported(
        kind="nemo",
        file=str(path),
        spec=imported.spec or named,
        settings=imported.settings | tuned,
        report=reader.account.report(),
    )


def _family(data: Mapping[str, Any], flat: Mapping[str, Any], reader: Reader) -> str:
    """Return ``gpt`` or ``t5``, where a method without a number recomputes none of the blocks."""
    is_t5 = any(name.startswith("model.encoder.") for name in flat) or "mcore_t5" in str(data.get("model", ""))
    if is_t5 and reader.data.get("recompute-method") == "block" and not reader.data.get("recompute-num-layers"):
        reader.data["recompute-granularity"] = "none"
    return "t5" if is_t5 else "gpt"


def _overrides(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file of Primus changes in its presets."""
    found = ((name.partition(".overrides."), value) for name, value in flat.items())
    return {name: value for (_, is_inside, name), value in found if is_inside}


def _titan_of_primus(reader: Reader, flat: Mapping[str, Any]) -> Imported:
    """Read a file of Primus that runs torchtitan: its preset of a model, and defaults of Primus.

    References
    ----------
    AMD-AGI/Primus, ``primus/configs/modules/torchtitan/pre_trainer.yaml``.
    """
    preset = next((str(value) for name, value in flat.items() if re.fullmatch(r"modules\.\w+\.model", name)), "")
    for name, value in (("compile.enable", True), ("activation_checkpoint.mode", "none"), ("training.seq_len", 2048)):
        if name not in reader.data:
            reader.data[name] = value
            reader.assume(name, value, "the default of Primus")
    spec = _named_model(flat, reader)
    imported = read_torchtitan(reader, kind="nemo")
    if "fp8" in preset.lower():
        imported.settings["precision"] = "fp8"
    return replace(imported, spec=spec)


def _adapters(flat: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """Return the settings of adapters, in the words of NeMo, of Megatron Bridge and of Primus."""
    leaves = {
        re.sub(r"^.*?(?=(?:peft|lora)\b)", "", name): value
        for name, value in flat.items()
        if re.search(r"\b(peft|lora)\b", name)
    }
    scheme = str(leaves.get("peft.peft_scheme") or leaves.get("peft") or "")
    is_lora = scheme == "lora" or leaves.get("lora.enabled") is True or (not scheme and "peft.dim" in leaves)
    if scheme not in ("", "lora", "none", "null", "None"):
        reader.account.miss("peft_scheme", f"{scheme:.40} is taken as training of all weights")
    if not is_lora:
        return {}
    rank = next((leaves[name] for name in _RANKS if name in leaves), None)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        rank = _DEFAULT_RANK
        reader.assume("lora_rank", rank, "the default of NeMo and Megatron Bridge")
    modules = next((value for name, value in leaves.items() if name.endswith("target_modules")), None)
    return adapter_settings(
        reader, "target_modules", rank, modules, ("attention_qkv",) if "peft.peft_scheme" in leaves else _PROJECTIONS
    )


def is_recipe(text: str) -> bool:
    """Whether a text has the sections of one of these recipes."""

    def has(*patterns: str) -> bool:
        return all(re.search(rf"(?m)^[ \t]*+[\"']?{pattern}[\"']?[ \t]*:", text) for pattern in patterns)

    is_nemo = has("trainer", "model", "micro_batch_size") and has("tensor_model_parallel_size")
    is_test = has("MODEL_ARGS") and (has("trainer\\.num_nodes") or has("--num-layers"))
    is_primus = has("modules", r"\w+_trainer", "framework")
    return is_nemo or is_test or is_primus or is_bridge(text)


#: settings that refer to each other one after the other, and characters of all that they come to
_MOST_REFERENCES, _MOST_TEXT = 20, 1_000_000


def resolved(flat: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Replace the interpolations of OmegaConf: references, the environment, and NeMo's arithmetic."""
    done: dict[str, Any] = dict(flat)
    begun: set[str] = set()  # each is settled once: what refers back to it finds it as it stands
    n_written = 0

    def value_of(text: str, name: str, depth: int) -> Any:
        function, colon, rest = text.partition(":")
        if colon and function in ("multiply", "divide_floor", "divide_ceil", "oc.env", "add"):
            parts = [one.strip() for one in rest.split(",")]
            if function == "oc.env":
                return variables.get(parts[0], parts[1] if len(parts) > 1 else unknown(parts[0]))
            if not all(re.fullmatch(r"-?\d{1,12}", one) for one in parts) or len(parts) != 2 or parts[1] == "0":
                return unknown(text)
            a, b = map(int, parts)
            return {"multiply": a * b, "add": a + b, "divide_floor": a // b, "divide_ceil": -(-a // b)}[function]
        if colon:  # ${NAME:default} of Primus
            return variables.get(function, None if rest == "null" else rest)
        if text.startswith("."):
            dots = len(text) - len(text.lstrip("."))
            parent = name.split(".")[:-dots]
            target = ".".join([*parent, text.lstrip(".")])
        else:
            target = text
        for one in (target, target.partition(".")[2]):
            if one in done and one != name:
                return settled(one, depth + 1)
        return variables.get(text, unknown(text))

    def replaced(name: str, depth: int, match: re.Match[str]) -> str:
        nonlocal n_written
        text = str(value_of(match[1], name, depth))
        n_written += len(text)
        if n_written > _MOST_TEXT:
            raise ConfigError(f"{name}: its references to other settings expand without limit")
        return text

    def settled(name: str, depth: int = 0) -> Any:
        value = done[name]
        if name in begun or depth == _MOST_REFERENCES:
            return value
        begun.add(name)
        for _ in range(_MOST_REFERENCES):
            if not (isinstance(value, str) and _INTERPOLATION.search(value)):
                break
            whole = _INTERPOLATION.fullmatch(value)
            replace = partial(replaced, name, depth)
            value = value_of(whole[1], name, depth) if whole else _INTERPOLATION.sub(replace, value)
        done[name] = value
        return value

    for name in flat:
        settled(name)
    return done


def _flags(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings as Megatron's flags, and where each stands."""
    flags: dict[str, Any] = {}
    places: dict[str, str] = {}

    def take(flag: str, value: Any, name: str) -> None:
        if flag not in flags or name.count(".") < places[flag].count("."):
            flags[flag], places[flag] = value, name

    for name, value in flat.items():
        parts = name.removeprefix("MODEL_ARGS.").split(".")
        leaf = parts[-1].removeprefix("--")
        if parts[-2:] == ["activation_func", "_target_"]:
            leaf = "activation_func"
        if re.fullmatch(r"_[a-z]+_", leaf):
            continue  # of Hydra: what makes an object of the section
        is_aside = any(part in _OTHER for part in parts[:-1]) and leaf not in (
            "micro_batch_size",
            "global_batch_size",
            "seq_length",
        )
        if is_aside or value is None or (parts[0] == "model" and "data" in parts[1:-1]):
            continue
        if "tokenizer" in parts[:-1]:
            leaf = {"type": "tokenizer-model", "model": "tokenizer-model", "library": "tokenizer-type"}.get(
                leaf, "tokenizer-" + leaf
            )
        if "decoder" in parts[:-1]:
            if leaf == "num_layers":
                take("decoder-num-layers", value, name)
            continue
        for flag, given in _flag(leaf, value, parts).items():
            take(flag, given, name)
    return flags, places


def _flag(leaf: str, value: Any, parts: list[str]) -> dict[str, Any]:
    """Return the flags that say what one setting of a recipe says."""
    text = str(value).lower()
    if leaf == "activation":
        word = text.removeprefix("fast-")
        return {"glu-activation": word} if word in _ACTIVATIONS else {"squared-relu": text == "squared-relu"}
    if leaf == "fsdp" and isinstance(value, bool):
        return {"use-megatron-fsdp": value}
    if leaf == "fsdp_sharding_strategy":
        theirs = KEYS.named("data-parallel-sharding-strategy").theirs(NEMO_FSDP.get(text))
        return {"data-parallel-sharding-strategy": theirs or value}
    if leaf in ("grad_reduce_in_fp32", "grad_sync_dtype"):
        is_wide = value if leaf == "grad_reduce_in_fp32" else text in _WIDE
        return {"accumulate-allreduce-grads-in-fp32": is_wide, "grad-reduce-in-bf16": is_wide is False}
    if leaf == "mixed_precision" and recipe_flags(text):
        return recipe_flags(text)
    if leaf in ("bias", "add_bias_linear"):
        return {"disable-bias-linear": value is False}
    if leaf == "share_embeddings_and_output_weights":
        return {"untie-embeddings-and-output-weights": value is False}
    if leaf == "overlap_p2p_comm":
        return {"no-overlap-p2p-communication": value is False}
    if leaf == "precision" and ("trainer" in parts or parts[:-1] == ["model"]):
        return {_PRECISIONS[text]: True} if text in _PRECISIONS else {}
    if leaf == "name" and "optim" in parts:
        return {"use-distributed-optimizer": "distributed" in text}
    if leaf in ("fp8", "fp4"):
        return {f"{leaf}-format": value} if value not in (False, "null", "none") else {}
    if leaf in ("fp8_e4m3", "fp8_hybrid", "mcore_gpt", "mcore_t5"):
        return {}
    if leaf == "transformer_engine":
        return {"transformer-impl": "transformer_engine" if value else "local"}
    if leaf == "activations_checkpoint_method":  # without a granularity, NeMo takes the full one
        return {"activations-checkpoint-method" if "encoder" not in parts else "recompute-method": value}
    if leaf == "use_flash_attention":
        return {"attention-backend": "flash" if value else "auto"}
    if leaf == "position_embedding_type":
        return {"position-embedding-type": text}
    if leaf == "normalization":
        return {"normalization": text.removesuffix("1p") if text.startswith("layernorm") else value}
    flag = megatron_name(leaf)
    if isinstance(value, str) and re.fullmatch(r"\[[\w ,]*\]", value) and flag in LISTS:
        value = re.split(r"[ ,]+", value.strip("[]"))  # as the tests of Megatron-LM write several values
    return {flag: value, **({"group-query-attention": True} if flag == "num-query-groups" else {})}


def megatron_name(leaf: str) -> str:
    """Return Megatron's flag for the name of a setting in a recipe."""
    return _NAMES.get(leaf, leaf.replace("_", "-"))


def _named_model(flat: Mapping[str, Any], reader: Reader) -> ModelSpec | None:
    """Return the catalogue's model for the preset that a file of Primus names."""
    preset = next((str(value) for name, value in flat.items() if name.endswith(".model")), "")
    name = re.sub(r"-fp8$", "", preset.removesuffix(".yaml").lower().replace("_", "-"))
    for one in (CATALOGUE_NAMES.get(name, name), re.sub(r"^llama3\.[13]-", "llama3-", name)):
        try:
            spec = find_spec(one)
        except ConfigError:
            continue
        reader.assume("model", spec.name, f"the preset {preset} of Primus is not in the file")
        return spec
    reader.account.miss("model", f"the preset {preset} of Primus is not in the file: give --model")
    return None


NEMO = Format(
    gives="plan and model",
    what="YAML of NeMo, Megatron Bridge, Primus, or a functional test of Megatron-LM",
    sniff=is_recipe,
    read=import_recipe,
    options=("define", "nodes", "gpus_per_node"),
    table=KEYS,
)
