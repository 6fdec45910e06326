"""What the columns of performance recipes say about a plan: dispatcher, CUDA graphs, recomputed modules, float8 recipe.

A cell that the simulator has no word for is never passed over: where something near stands in for it that is noted, and
where nothing does the row is not predicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.errors import ConfigError
from simulator.plan import FRAMEWORKS
from simulator.plan.framework import Framework
from simulator.plan.framework_features import FUSED_EXPERTS
from simulator.plan.module_names import MEGATRON_GRAPHS
from simulator.plan.names import is_switch, parse_settings
from simulator.plan.parallel_plan import SETTINGS
from simulator.plan.precision import PRECISIONS
from simulator.plan.published import state_widths
from validation.tables.frameworks import PUBLISHED, month_of
from validation.tables.reader import Row

#: float8 recipes as precisions: torchtitan's, whose tensorwise scales each tensor by its own maximum, computed when it is
#: used, and Transformer Engine's delayed scaling, by the maxima of earlier steps
_FLOAT8 = {
    "tensorwise": "fp8_current", "rowwise": "fp8_rowwise", "rowwise_with_gw_hp": "fp8_rowwise_gw_hp", "delayed": "fp8",
}  # fmt: skip
#: what tables call precisions beside the plan's own words and their synonyms
_PRECISIONS = {"amp_fp8": "fp8", "fp8+bf16": "fp8", "bf16+fp8": "fp8", "amp": "amp_fp16"}
#: value of ``vocabulary_parallel`` -> schedule that computes the vocabulary's layers so
_VOCABULARY = {"interlaced": "interlaced"}
_TASKS = {"": "", "pretrain": "", "sft": "task sft: as pretraining, which updates all parameters, too", "lora": ""}
_TASK_SYNONYMS = {
    "pretraining": "pretrain",
    "finetune": "sft",
    "finetuning": "sft",
    "full_finetune": "sft",
    "peft": "lora",
}
#: what graphs by layer capture of any model
_LAYER_SCOPES = " ".join(scope for scope in MEGATRON_GRAPHS if scope not in ("moe", "full_iteration"))
#: rank of adapters where a row states none: NVIDIA's performance recipes (NeMo ``llama3_70b``, on ``linear_qkv`` only) and
#: AutoModel's (``match_all_linear``)
_LORA_RANK = 16
#: model, machine -> ``fp8_modules`` of the recipes that capture whole iterations (Megatron Bridge 26.06: ``fp8_dot_product_attention``
#: and ``fp8_output_proj``; an empty machine is any other)
_FP8_MODULES = {
    ("deepseek", "gb200"): "output", ("deepseek", ""): "attention+output", ("gpt-oss", ""): "attention+output",
    ("qwen3", ""): "attention",
}  # fmt: skip
#: from this release on, these recipes say so in functions that the table of cells was not read from
_IN_FUNCTIONS = "26.08"
_CONTAINER = r"v?(\d\d\.\d\d(?:\.\d\d)?)"
#: what tables write as a release: a container, a month or a day, a round of MLPerf
_RELEASE = re.compile(rf"{_CONTAINER}|20\d\d-\d\d(-\d\d)?|v\d\.\d")
#: sources whose releases are containers of NVIDIA, beside rows that name a recipe
_CONTAINERS = ("dgxc-benchmarking", "megatron-bridge", "nvidia/nemo")

#: sources that tune on SQuAD 1.1, packed to the sequence length (NVIDIA/NeMo, docs/source/performance/performance_summary.md)
_PACKS_SQUAD = ("nvidia/nemo@",)
#: mean tokens of its examples: 120 words of a paragraph, 11 of a question and 3 of an answer (Rajpurkar et al., arXiv:1606.05250;
#: the README of its authors) at 1.35 tokens a word, and the words of the prompt
_SQUAD_TOKENS = 190


#: dense models whose rows until 2026-02 stand under "Finetuning (LoRA) Performance" on their page, full sequences without padding
#: (NVIDIA-NeMo/Automodel, docs/performance-summary.md at 0f5e6c5f to ab383dfd)
_TUNED = ("automodel", ("llama3-", "qwen2.5-"), "2026-02")


def _task_of(row: Row, assumed: list[str]) -> str:
    """Return the task that a row states, or that of the section of its page where that says otherwise."""
    source, models, before = _TUNED
    is_tuned = source in row.text("source").lower() and row.text("model").lower().startswith(models)
    if is_tuned and row.text("task") == "pretrain" and row.text("release", "9") < before:
        assumed.append("task lora: the section of its page")
        return "lora"
    text = row.text("task").lower()
    return _TASK_SYNONYMS.get(text, text)


def read_task(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return what is trained, everything or low-rank adapters, and how long the documents are."""
    task = _task_of(row, assumed)
    if task not in _TASKS:
        raise ConfigError(f"task '{task}' is unknown", hint="pretrain, sft or lora")
    assumed += [_TASKS[task]] if _TASKS[task] else []
    documents = {}
    if task in ("sft", "lora") and row.text("source").lower().startswith(_PACKS_SQUAD):
        documents = {"document_length": _SQUAD_TOKENS}
        assumed.append(f"document_length {_SQUAD_TOKENS}: SQuAD, packed to the sequence length")
    return {**documents, **(_adapters(row, assumed) if task == "lora" else {})}


def _adapters(row: Row, assumed: list[str]) -> dict[str, Any]:
    notes, settings = row.text("notes").lower(), row.text("settings")
    rank = re.search(r"lora rank (\d+)", notes)
    if rank is None and "lora_rank=" not in settings:
        assumed.append(f"lora_rank {_LORA_RANK}: not stated")
    targets = "qkv+proj" if "attention qkv and proj" in notes else "qkv"
    if "automodel" in row.text("source").lower():
        return {"lora_rank": int(rank[1]) if rank else _LORA_RANK}
    if rank is None and "lora_targets=" not in settings:
        assumed.append("lora_targets qkv: not stated, as in NVIDIA's performance recipes")
    return {"lora_rank": int(rank[1]) if rank else _LORA_RANK, "lora_targets": targets}


def stated_settings(row: Row) -> dict[str, Any]:
    """Return the settings of a plan that the row states by their own names: ``asynchronous_tp=false offload_optimizer=cpu``."""
    fields: dict[str, Any] = {}
    for word in sorted(row.text("settings").split(), key=lambda one: is_switch(one.partition("=")[0])):
        key, _, value = word.partition("=")
        found = parse_settings(key, value, fields) if value else None
        if found is None:
            raise ConfigError(
                f"settings '{word}' is not a setting of a plan with its value", hint="key=value, as in plan files"
            )
        fields |= found
    return fields


def precision_word(text: str) -> str:
    """Return the plan's word for a precision as tables write it, or what is written where there is none.

    Examples
    --------
    >>> precision_word("FP8-MX"), precision_word("bf16-mixed"), precision_word("fp7")
    ('mxfp8', 'amp_bf16', 'fp7')
    """
    synonyms = {**SETTINGS["precision"].synonyms, **_PRECISIONS}
    plain = text.lower()
    underlined = plain.replace("-", "_")
    return synonyms.get(plain) or synonyms.get(underlined, underlined)


def precision_of(row: Row, precision: str, assumed: list[str]) -> str:
    """Return the precision with the float8 recipe that the row states."""
    recipe = row.text("float8_recipe").lower()
    if not recipe:
        return precision
    if recipe not in _FLOAT8:
        raise ConfigError(f"float8_recipe '{recipe}' is unknown", hint=", ".join(_FLOAT8))
    if precision != "fp8":
        raise ConfigError(f"float8_recipe '{recipe}' goes with precision fp8, not {precision}")
    return _word("precision", _FLOAT8[recipe], "float8_recipe", recipe, assumed, stands_in="fp8")


def schedule_of(row: Row, schedule: str, virtual_pp: int) -> str:
    """Return the schedule with the way in which the row computes the layers of the vocabulary."""
    how = row.text("vocabulary_parallel").lower()
    if how in ("", "none"):
        return schedule
    known = _VOCABULARY.get(how, how if how in SETTINGS["schedule"].words else "")
    if not known or virtual_pp > 1 or schedule not in ("1f1b", known):
        raise ConfigError(f"vocabulary_parallel '{how}' with schedule {schedule} is not simulated")
    return known


def recipe_fields(row: Row, framework: str, assumed: list[str]) -> dict[str, Any]:
    """Return the settings that the columns of a recipe state.

    The month of a run is its release for the kernels of Megatron-LM's own modules, for losses that came to be compiled, and for
    adapters. Of Transformer Engine the container gives it.
    """
    fields: dict[str, Any] = {"pipeline_layout": row.text("pp_layout") or None} | _offloaded(row, assumed)
    if row.flag("fused_grouped_mlp"):
        fields["moe_fused_experts"] = True
    release = container_of(row)
    if release and (row.text("recipe") or any(word in row.text("source").lower() for word in _CONTAINERS)):
        fields["release"] = release
    elif row.text("release") and not _RELEASE.fullmatch(row.text("release")):
        assumed.append(
            f"release {row.text('release')}: neither a container (26.06) nor a month, current software taken"
        )
    fields |= _published(row, FRAMEWORKS[framework], assumed)
    dispatcher = row.text("dispatcher").lower()
    if dispatcher:
        fields["moe_dispatcher"] = _word(
            "moe_dispatcher", dispatcher, "dispatcher", dispatcher, assumed, stands_in="deepep"
        )
    fields |= _whole_iterations(row, assumed) or _graphs(row, assumed)
    return (
        fields | _fp8_flags(row) | _torchao_flags(row) | _dropped(row, assumed) | _registered(row, framework, assumed)
    )


def _published(row: Row, framework: Framework, assumed: list[str]) -> dict[str, Any]:
    """Return the month of a run as its release, where its framework changed at one."""
    source, said = row.text("source").lower(), row.text("release")
    has_own_modules = framework.rope_and_swiglu_fused_since and not framework.calls_modules
    depends = has_own_modules or "nvidia/megatron-lm" in source or row.text("task") == "lora"
    has_month = re.fullmatch(r"20\d\d-\d\d", said) is not None
    if not (depends and has_month) and not framework.loss_eager_in:
        return {}
    month = month_of(f"{source} {row.text('framework').lower()}", said)
    if month is None:
        return {}
    release = f"{month[0] % 100}.{month[1]:02}"
    assumed.append(f"release {release}: the software of the month of publication")
    return {"release": release}


def megatron_word(row: Row) -> str:
    """Return a cell of a row that only Megatron-Core has a meaning for; empty where there is none.

    Tensor and pipeline parallelism in block-scaled precisions are Transformer Engine's; torchtitan's MXFP8 is named by its sources.
    """
    for column in ("dispatcher", "pp_layout"):
        if row.text(column):
            return f"{column} {row.text(column)}"
    for column in ("fused_grouped_mlp", "moe_a2a_overlap", "nccl_ub"):
        if row.flag(column):
            return column
    scaled, is_split = precision_word(row.text("precision")), any(row.integer(axis, 1) > 1 for axis in ("tp", "pp"))
    quantisation = PRECISIONS[scaled].quantisation if scaled in PRECISIONS else None
    has_blocks = quantisation is not None and quantisation.block > 1
    return f"{scaled} beside tensor or pipeline parallelism" if has_blocks and is_split else ""


def container_of(row: Row) -> str:
    """Return the container that a row's release names (``v25.05`` is 25.05); empty where it is a month, a round or a word."""
    found = re.fullmatch(_CONTAINER, row.text("release").lower())
    return found[1] if found else ""


def _dropped(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return how tokens are dropped where they are: as ``MegatronTokenDropCallback`` of NeMo and its heirs do it."""
    if not row.flag("token_drop"):
        return {}
    assumed.append("moe_capacity_factor 1.0, moe_pad_to_capacity: token_drop 1, as NVIDIA's recipes drop")
    return {"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}


def _registered(row: Row, framework: str, assumed: list[str]) -> dict[str, Any]:
    if not row.flag("nccl_ub"):
        return {}
    if FRAMEWORKS[framework].data_parallel.registers_buffers:
        return {"nccl_user_buffers": True}
    assumed.append(f"nccl_ub 1: without them, which {framework} does not register")
    return {}


def _offloaded(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return which modules, or how many layers, wait in host memory: as stated, or as the row's recipe has it."""
    text = row.text("offload_modules").lower()
    stated = re.fullmatch(r"(\d+) layers", text)
    if stated:
        return {"offload_layers": int(stated[1])}
    if text:
        return {} if text == "none" else {"offload_modules": SETTINGS["offload_modules"].parse(text)}
    recipe = re.sub(r"_(BASE_CONFIG|V\d)$", "", row.text("recipe"))
    layers = PUBLISHED["offloaded_layers"].get(recipe, 0) if row.flag("fsdp") else 0
    assumed += [f"offload_layers {layers}: cpu_offloading_num_layers of {recipe}"] if layers else []
    return {"offload_layers": layers} if layers else {}


def offloaded_when_sharded(row: Row) -> int:
    """Return the layers that wait in host memory in the fully sharded recipe of a row's model and machine; 0 without one."""
    model = row.text("model").upper().replace("-", "_").replace("LLAMA3_405B", "LLAMA31_405B")
    recipe = f"{model}_PRETRAIN_CONFIG_{row.text('topology').partition('-')[0].upper()}_"
    return min((count for name, count in PUBLISHED["offloaded_layers"].items() if name.startswith(recipe)), default=0)


def optimizer_fields(row: Row, framework: str, assumed: list[str]) -> dict[str, Any]:
    """Return the widths of the optimizer's states in recipes whose states are not fp32."""
    model = row.text("model").lower()
    if "own_recipes" not in FRAMEWORKS[framework].usual or row.text("task") == "lora":
        return {}
    if container_of(row).startswith("24."):
        assumed.append("master_bytes 2: apex's distributed fused Adam keeps the remainders of master weights (NeMo 1)")
        return {"master_bytes": 2}
    widths = state_widths(model)
    said = ", ".join(f"{name} {width}" for name, width in widths.items())
    assumed += [f"{said}: the precision-aware optimizer of this model's recipe"] if widths else []
    return widths


def _whole_iteration_words(row: Row) -> str:
    """Return the ``fp8_modules`` of a recipe in MXFP8 that captures whole iterations; nothing of any other."""
    model, release = row.text("model").lower(), container_of(row)
    found = {machine: words for (name, machine), words in _FP8_MODULES.items() if model.startswith(name)}
    is_said = row.text("cuda_graph_impl").lower() == "full_iteration" or release >= _IN_FUNCTIONS
    if not (found and is_said and row.flag("recipe_matches") and row.text("precision").lower() == "mxfp8"):
        return ""
    return found.get(row.text("topology").partition("-")[0], found[""])


def _whole_iterations(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return what the recipes that capture whole iterations set beside their cells; nothing for other rows."""
    words = _whole_iteration_words(row)
    if not words:
        return {}
    assumed.append(f"fp8_modules {words}, cuda_graphs full_iteration: this recipe's functions")
    fields = {
        "fp8_modules": SETTINGS["fp8_modules"].parse(words),
        **{key: FUSED_EXPERTS.settings[key] for key in ("cuda_graphs", "moe_fused_experts")},
    }
    return fields | ({"moe_dispatcher": "hybridep"} if container_of(row) >= _IN_FUNCTIONS else {})


def _fp8_flags(row: Row) -> dict[str, Any]:
    """Return what MLPerf's shell files put in eight bits beside the products of layers, as the notes print their flags."""
    flags = dict(re.findall(r"(FP8_DPA|FP8_ACTIVATION|NVTE_DPA_FP8_RECIPE)=(\w+)", row.text("notes")))
    has_attention = flags.get("FP8_DPA", "0") in ("1", "True") or "Float8" in flags.get("NVTE_DPA_FP8_RECIPE", "")
    words = ["attention"] if has_attention and flags.get("NVTE_DPA_FP8_RECIPE") != "F16" else []
    words += ["activation"] if flags.get("FP8_ACTIVATION") == "True" else []
    return {"fp8_modules": "+".join(words)} if words else {}


def _torchao_flags(row: Row) -> dict[str, Any]:
    """Return what torchtitan's converters leave in 16 bits: linear layers and grouped products are quantised one by one."""
    found = re.search(r"MXFP8 (linears|grouped GEMM) only", row.text("notes"))
    return {"bf16_modules": "experts" if found[1] == "linears" else "attention+mlp"} if found else {}


def _graphs(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return what is captured: the stated scope, or what an implementation captures where none is stated."""
    graphs, scope = row.text("cuda_graph_impl").lower(), row.text("cuda_graph_scope").lower()
    if graphs in ("", "none"):
        return {"cuda_graphs": "none"} if graphs else {}
    if not scope:
        scope = "full_iteration" if graphs in ("full_iteration", "full") else _LAYER_SCOPES
        assumed.append(f"cuda_graph_scope {scope}: not stated, graphs by {graphs}")
    return {"cuda_graphs": SETTINGS["cuda_graphs"].parse(scope)}


def recomputed_modules(row: Row, layers: int, stages: int, assumed: list[str]) -> dict[str, Any] | None:
    """Return what of the plan says which modules are recomputed; None where neither column says anything."""
    text = row.text("recompute").lower()
    some = re.fullmatch(r"full:(\d+)-?layers", text)
    if some:
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": int(some[1])}
    if text == "selective-every-2nd-layer":
        assumed.append("recompute every second layer: the first half of a stage's layers")
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": max(1, layers // stages // 2)}
    modules = row.text("recompute_modules").lower()
    n_blocks = row.integer("recompute_num_layers", 0)
    if n_blocks and not text and modules in ("", "full block"):  # as Megatron Bridge's ``_set_recompute_overrides``
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": n_blocks}
    is_whole = row.flag("recipe_matches") and "mlcommons" not in row.text("source").lower()
    if (
        not text and not modules and is_whole
    ):  # MLPerf's shell files name degrees and batch, not all that their base file sets
        return {"recompute": "none"}  # the whole recipe is known, and it names nothing
    if text or not modules:
        return None
    if modules in ("none", "full"):
        return {"recompute": modules}
    if modules == "full block":
        return {"recompute": "full"}
    if modules.startswith("selective"):
        return {"recompute": "selective"}
    return {"recompute": "selective", "recompute_modules": SETTINGS["recompute_modules"].parse(modules)}


def _word(key: str, word: str, column: str, stated: str, assumed: list[str], *, stands_in: str) -> str:
    """Return a word of a setting, or what stands in for one that it does not have."""
    if word in SETTINGS[key].words:
        return word
    assumed.append(f"{column} {stated}: predicted as {stands_in}")
    return stands_in


def overlaps_experts(row: Row, schedule: str, degrees: Mapping[str, int], virtual_pp: int, assumed: list[str]) -> str:
    """Return the schedule under which experts' communication runs beside other micro-batches, where the row says that it does."""
    if not row.flag("moe_a2a_overlap") and not _whole_iteration_words(row):
        return schedule
    if degrees["pp"] > 1 and virtual_pp == 1:
        assumed.append("moe_a2a_overlap 1: without it, as it needs virtual stages")
        return schedule
    return "1f1b-combined"
