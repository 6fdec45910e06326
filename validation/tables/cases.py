"""The run behind a training row: model, plan and machine, with every assumption written down.

A row states what its publication states. What is blank is filled by the rules in this module, each of which
says how such runs are set up, never something about one source; ``assumed`` lists what they filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import ConfigError
from simulator.models.spec import ModelSpec
from simulator.plan import FRAMEWORKS, ParallelPlan, Recompute
from simulator.plan.frameworks import automodel_variant
from simulator.plan.module_names import FP8_MODULES
from simulator.plan.parallel_plan import SETTINGS
from simulator.plan.rules import batch_of
from simulator.plan.stage_layout import beside_ends
from simulator.plan.vocabularies import RECOMPUTES, Usual
from validation.tables.frameworks import (
    PUBLISHED,
    blocks_launches,
    cuda_of,
    framework_of,
    known_to,
    machine_of,
    power_limit_of,
    who_ran,
)
from validation.tables.launchers import launched_fields
from validation.tables.models import spec_of
from validation.tables.reader import Row
from validation.tables.recipes import (
    megatron_word,
    offloaded_when_sharded,
    optimizer_fields,
    overlaps_experts,
    precision_of,
    precision_word,
    read_task,
    recipe_fields,
    recomputed_modules,
    schedule_of,
    stated_settings,
)

#: what tables call things beside the plan's own words and their synonyms
_RECOMPUTE_WORDS = dict.fromkeys(
    ("op", "selective_op", "selective op", "core_attn", "attn"), "selective"
) | dict.fromkeys(("block", "uniform", "full_block", "full block", "activation checkpointing"), "full")
#: Megatron's guidance: the bubble (pp - 1) / n_micro_batches stays small when there are several per stage
_MICRO_BATCHES_PER_STAGE = 6
#: largest micro_batch x hidden of published Megatron runs, with full recomputation and without
_WIDTH_LIMITS = {True: 65536, False: 16384}
#: chunks per stage of published Megatron-Core recipes go up to about this
_MAX_CHUNKS = 8
#: attention kernel of the column ``kernels`` -> attention and kernel of the plan
_ATTENTIONS: dict[str, tuple[str, str | None]] = {
    "flash1": ("flash", "flash_attention_1"),
    "flash2": ("flash", "flash_attention_2"),
    "flash": ("flash", None),
    "cudnn": ("flash", "flash_attention"),
    # FlashAttention 3 reaches on H100 what cuDNN's kernels do (Shah et al., arXiv:2407.08608, figure 5), and 4 on Blackwell
    "flash3": ("flash", "flash_attention"),
    "flash4": ("flash", "flash_attention"),
    "torch": ("eager", None),
    "megatron_kernel": ("eager", "fused_softmax"),
}
#: NeMo container from which Transformer Engine prefers cuDNN's fused attention to FlashAttention 2 on Hopper
_CUDNN_ATTENTION = "24.05"
_NORM_KERNEL = "rms_norm_kernel"
#: framework -> who says that its runs keep all activations
_RECOMPUTES_NOTHING = {"llama3-4d": "arXiv:2407.21783, section 3.3.2, trains without activation checkpointing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated for a row; rows that measured several things of one run share an equal case."""

    #: Cluster file, and the transport where one is stated.
    topology: str
    transport: str
    spec: ModelSpec
    plan: ParallelPlan  #: Unresolved.
    #: What a row changes of the cluster's file, and a limit of power where it says that there is one.
    overrides: tuple[tuple[str, str], ...] = ()
    alternatives: tuple[ParallelPlan, ...] = ()  #: Tried in turn while the plan before does not fit in memory.


def _is_usual(framework: str, what: Usual) -> bool:
    return what in FRAMEWORKS[framework].usual


def _degrees(row: Row, assumed: list[str]) -> dict[str, int]:
    degrees = {axis: row.integer(axis, 1) or 1 for axis in ("tp", "pp", "cp", "ep")}
    gpus = row.integer("gpus")
    if gpus < 1:
        raise ConfigError(f"gpus={gpus}: a run has at least one")
    replica = degrees["tp"] * degrees["pp"] * degrees["cp"]
    dp = row.integer("dp", 0)
    if not dp:
        if gpus % replica:
            raise ConfigError(f"gpus={gpus} is not a multiple of tp x pp x cp = {replica}, and dp is not stated")
        dp = gpus // replica
        assumed.append(f"dp {dp}: what is left of {gpus} GPUs")
    return {**degrees, "gpus": gpus, "dp": dp}


def _precision(row: Row, framework: str, assumed: list[str]) -> str:
    text = row.text("precision").lower()
    if not text:
        assumed.append("precision bf16: not stated")
        return "bf16"
    known, words = precision_word(text), SETTINGS["precision"].words
    if known not in words:
        raise ConfigError(f"precision '{text}' is unknown", hint=", ".join(words))
    known = precision_of(row, known, assumed)
    if known in ("bf16", "fp16") and any(word in row.text("source").lower() for word in PUBLISHED["autocast"]):
        known = f"amp_{known}"
    if framework == "apex-ddp" and known == "amp_fp16":
        assumed.append("precision fp16 for amp_fp16: apex's O2 keeps weights and activations in 16 bits")
        return "fp16"
    if known != text:
        assumed.append(f"precision {known} for {text}")
    return known


def _sharding(row: Row, framework_text: str, assumed: list[str]) -> dict[str, Any]:
    text = row.text("sharding").lower()
    kind, _, group = text.partition(":")
    if not text and row.flag("fsdp") is not None:
        kind = "zero3" if row.flag("fsdp") else "zero1"
        assumed += [] if row.flag("fsdp") else ["sharding zero1: Megatron's recipes distribute the optimizer"]
    elif not text:
        stage = re.search(r"zero[- ]?([123])", framework_text)
        kind = f"zero{stage[1]}" if stage else "zero3" if "fsdp" in framework_text else "none"
        assumed.append(f"sharding {kind}: not stated")
    kind = SETTINGS["sharding"].synonyms.get(kind, kind)
    if kind not in ("none", "zero1", "zero2", "zero3", "hsdp"):
        raise ConfigError(f"sharding '{text}' is unknown", hint="none, zero1, zero2, zero3, hsdp or zero1:8")
    return {"sharding": kind, "sharding_group": int(group) if group.isdigit() else None}


def _attention(row: Row, framework: str, spec: ModelSpec, assumed: list[str]) -> dict[str, str | None]:
    """Return the attention that the row names; where blank, what is usual for its framework and its model.

    References
    ----------
    huggingface/transformers, release 4.36 (December 2023): Llama's attention and those after it are
    ``scaled_dot_product_attention``.
    """
    kernel = row.text("kernels").lower().split("+")[0]
    if kernel:
        if kernel not in _ATTENTIONS:
            raise ConfigError(f"kernels '{kernel}' is unknown", hint=", ".join(_ATTENTIONS))
        attention, name = _ATTENTIONS[kernel]
        return {"attention": attention, "attention_kernel": name}
    flash = row.flag("flash_attention")
    if flash is None:
        is_usual = _is_usual(framework, "flash")
        flash = is_usual or spec.gated_mlp
        models = " with models of Llama's kind" if spec.gated_mlp and not is_usual else ""
        assumed.append(f"attention {'flash' if flash else 'eager'}: usual for {framework}{models}")
    return {"attention": "flash" if flash else "eager"}


def _attention_kernel(row: Row, assumed: list[str]) -> dict[str, str | None]:
    """Return the attention kernel of NVIDIA's containers of old, where the row names one."""
    release = re.fullmatch(r"2\d\.\d\d", row.text("release"))
    if not release or "nvidia/nemo" not in row.text("source").lower() or release[0] >= _CUDNN_ATTENTION:
        return {}
    assumed.append(f"attention_kernel flash_attention_2: Transformer Engine's before container {_CUDNN_ATTENTION}")
    return {"attention_kernel": "flash_attention_2"}


def _recompute(
    row: Row, layers: int, stages: int, framework: str, assumed: list[str]
) -> tuple[dict[str, Any], tuple[Recompute, ...]]:
    """Return what is recomputed, and what to try next should the run not fit."""
    some = recomputed_modules(row, layers, stages, assumed)
    if some is not None:
        return some, ()
    text = row.text("recompute").lower()
    if not text and framework in _RECOMPUTES_NOTHING:
        assumed.append(f"recompute none: {_RECOMPUTES_NOTHING[framework]}")
        return {"recompute": "none"}, ()
    if not text:
        assumed.append("recompute: the lightest that fits, not stated")
        return {"recompute": RECOMPUTES[0]}, RECOMPUTES[1:]
    text = _RECOMPUTE_WORDS.get(text) or SETTINGS["recompute"].synonyms.get(text, text)
    if text not in RECOMPUTES:
        raise ConfigError(f"recompute '{text}' is unknown", hint="none, selective, full or full:4-layers")
    return {"recompute": text}, ()


def _virtual_pp(row: Row, degrees: Mapping[str, int], layers: int, framework: str, assumed: list[str]) -> int:
    """Return chunks per stage; where blank, an interleaved run divides the layers of a stage, as recipes do and Megatron-LM's flags not."""
    stated = row.integer("virtual_pp", 0)
    if stated or degrees["pp"] == 1:
        return max(stated, 1)
    said = f"{row.text('framework')} {row.text('schedule')}".lower()
    interleaves = "interleav" in said or (_is_usual(framework, "interleaving") and "megatron-lm" not in said)
    counted = layers + 2 if layers % degrees["pp"] else layers
    per_stage = counted // degrees["pp"]
    divisors = [n for n in range(2, per_stage + 1) if per_stage % n == 0]
    if not interleaves or counted % degrees["pp"] or not divisors:
        chunks = 1
    elif _is_usual(framework, "interleaving"):
        chunks = max(n for n in divisors if n <= max(_MAX_CHUNKS, divisors[0]))
    else:
        chunks = divisors[0]
    assumed.append(f"virtual_pp {chunks}: not stated")
    return chunks


def _schedule(row: Row, virtual_pp: int) -> str:
    text = row.text("schedule").lower()
    text = SETTINGS["schedule"].synonyms.get(text, text)
    if text in ("", "1f1b"):
        text = "1f1b-interleaved" if virtual_pp > 1 else "1f1b"
    return schedule_of(row, text, virtual_pp)


def _micro_batch(
    row: Row, degrees: Mapping[str, int], hidden: int, framework: str, recompute: str, assumed: list[str]
) -> int | None:
    """Return sequences per micro-batch; where blank, the largest power of two with a small bubble."""
    stated = row.integer("micro_batch", 0)
    if stated and _is_usual(framework, "local_batch") and degrees["pp"] > 1:
        pieces = stated // max(1, stated // degrees["pp"])
        size = stated // pieces if stated % pieces == 0 else 1
        if size != stated:
            assumed.append(f"micro_batch {size}: the local batch of {stated} is split over the pipeline")
        return size
    if stated:
        return stated
    batch = row.integer("global_batch", 0) // degrees["dp"]
    if not batch:
        assumed.append("micro_batch: the largest that fits, neither it nor global_batch is stated")
        return None
    stages = degrees["pp"]
    size = 1
    while (
        batch % (2 * size) == 0
        and (stages == 1 or 2 * size * _MICRO_BATCHES_PER_STAGE * stages <= batch)
        and 2 * size * hidden <= _WIDTH_LIMITS[recompute == "full"]
    ):
        size *= 2
    assumed.append(f"micro_batch {size}: not stated; the largest with {_MICRO_BATCHES_PER_STAGE} per stage")
    return size


def _sequence_parallel(row: Row, tp: int, framework: str, recompute: str, assumed: list[str]) -> bool:
    """Return the stated value; where blank, what came with its framework.

    Megatron's sequence parallelism and selective recomputation are one publication (Korthikanti et al.,
    2022), later recipes have both.
    """
    stated = row.flag("sequence_parallel")
    if tp == 1:
        return False
    if stated is not None:
        return stated
    by_recipe = FRAMEWORKS[framework].parallel_recipe.get("sequence_parallel", False)
    chosen = by_recipe or _is_usual(framework, "sequence_parallel")
    chosen = chosen or (framework == "megatron" and recompute == "selective")
    assumed.append(f"sequence_parallel {'on' if chosen else 'off'}: usual for {framework}, recompute {recompute}")
    return chosen


def _ends(layers: int, pp: int, virtual_pp: int, framework: str, assumed: list[str]) -> dict[str, int]:
    """Return uneven ends where embedding and head count as layers: ``layers + 2`` divides over the stages.

    Where it does not, NVIDIA's recipes leave the last stage, which has the loss, what equal stages before it leave.

    References
    ----------
    NVIDIA-NeMo/Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``: 61 layers over 16 stages are 4 each, and 1 beside MTP and loss.
    """
    stages = pp * virtual_pp
    each = -(-layers // stages)
    last = layers - each * (stages - 1)
    if (
        _is_usual(framework, "own_recipes")
        and pp > 1 == virtual_pp
        and layers % stages
        and beside_ends(layers, stages) is None
        and last > 0
    ):
        assumed.append(f"last stage with {last} of {layers} layers, the others with {each}")
        return {"first_stage_layers": each, "last_stage_layers": last}
    ends = (beside_ends(layers, stages) or [0])[0]
    if pp == 1 or layers % stages == 0 or not ends:
        return {}
    assumed.append(f"first and last stage with one layer fewer: {layers} + 2 layers divide over {stages}")
    return {"first_stage_layers": ends, "last_stage_layers": ends}


def _usual(row: Row, degrees: Mapping[str, int], framework: str, assumed: list[str]) -> dict[str, Any]:
    """Return what a framework, by the name that the row gives it, is known to do with such a plan."""
    said = row.text("framework").lower()
    facts: dict[str, Any] = {}
    if degrees["tp"] > 1 and re.search(r"async[ -]?tp", said):
        facts["asynchronous_tp"] = True
    if "apex" in said or "paddle" in said:
        facts["overlap"] = False
        assumed.append("overlap off: these trainers reduce once, after accumulation")
    if degrees["cp"] > 1 and _is_usual(framework, "unbalanced_context"):
        facts["cp_load_balance"] = False
        assumed.append("cp_load_balance off: torchtitan's tables are older than its balancer")
    if blocking := blocks_launches(row.text("source"), degrees["gpus"]):
        facts["launch_blocking"] = True
        assumed.append(blocking)
    local = re.search(r"local batch (\d+)", row.text("notes").lower())
    if _is_usual(framework, "drained_batch") and degrees["pp"] > 1 and local:
        facts["pipeline_batch"] = int(local[1]) // max(1, row.integer("micro_batch", 1))
        assumed.append(f"pipeline_batch {facts['pipeline_batch']}: its local batch, one call of the schedule")
    if _is_usual(framework, "parameter_gather") and degrees["dp"] > 1:
        facts["overlap_parameter_gather"] = True
        assumed.append("parameter gather overlapped: usual for megatron-core")
    return facts


def _expert_split(degrees: Mapping[str, int], framework: str, assumed: list[str]) -> dict[str, int]:
    """Return the experts' own tensor-parallel degree where theirs cannot be that of the dense layers."""
    ranks = degrees["dp"] * degrees["cp"] * degrees["tp"]
    says_how = bool(FRAMEWORKS[framework].expert_recipe)
    if says_how and degrees["ep"] > ranks:
        assumed.append(f"ep {ranks} for the printed {degrees['ep']}: a stage has no more ranks")
        return {"ep": ranks}
    if says_how or degrees["dp"] * degrees["cp"] % degrees["ep"] == 0:
        return {}
    assumed.append(
        f"etp 1: ep {degrees['ep']} does not divide dp x cp, so experts lie over the tensor-parallel ranks, too"
    )
    return {"etp": 1}


def _heavier(row: Row, plan: ParallelPlan, layers: int, recompute: Sequence[Recompute]) -> Iterator[ParallelPlan]:
    """Yield what to try in turn should a run not fit: smaller chunks where they are not stated, then more recomputation.

    Before that, adapters save activations in eight bits, as MLPerf's smaller machines do (``FP8_ACTIVATION`` of their shell files).
    Behind it come what "no checkpointing" leaves open, norms that are computed again; where recomputation is stated torchtitan's local
    batch in pieces (gradient accumulation); and full sharding of a plan without model parallelism, whose column some tables leave
    at its default.
    """
    if plan.framework in _RECOMPUTES_NOTHING:
        yield replace(plan, recompute="selective", recompute_modules="layernorm")
    if _is_usual(plan.framework, "local_batch") and plan.pp == 1 and not recompute:
        yield from (
            replace(plan, micro_batch=n) for n in range(plan.micro_batch - 1, 0, -1) if plan.micro_batch % n == 0
        )
    if not recompute:
        return
    if plan.lora_rank and plan.precision_spec.quantisation and "activation" not in plan.narrow_modules:
        words = [word for word in FP8_MODULES if word in (*plan.narrow_modules, "activation")]
        plan = replace(plan, fp8_modules="+".join(words))
        yield plan
    is_open = not row.text("virtual_pp") and plan.virtual_pp > 1
    if is_open and layers % plan.pp == 0 and layers // plan.pp > plan.virtual_pp:
        plan = replace(plan, virtual_pp=layers // plan.pp)
        yield plan
    yield from (replace(plan, recompute=mode) for mode in recompute)
    if (
        _is_usual(plan.framework, "own_recipes")
        and plan.model_parallel == 1
        and plan.sharding == "zero1"
        and not plan.lora_rank
    ):
        sharded = replace(plan, sharding="zero3", recompute="none", offload_layers=offloaded_when_sharded(row) or None)
        yield from (replace(sharded, recompute=mode) for mode in RECOMPUTES)


def _framework(row: Row, degrees: Mapping[str, int], assumed: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the framework behind a row, and how it shards and issues kernels."""
    text = who_ran(row)
    if row.text("kernels").lower().endswith(f"+{_NORM_KERNEL}"):
        text += " fused rmsnorm"
    sharding = _sharding(row, text, assumed)
    named = framework_of(
        text,
        model_parallel=degrees["tp"] * degrees["pp"] * degrees["cp"],
        sharding=sharding["sharding"],
        flash=bool(row.flag("flash_attention")),
        only_megatron=megatron_word(row),
    )
    framework = named.framework
    assumed += [named.why] if named.why else []
    if (
        FRAMEWORKS[framework].splits
        and degrees["tp"] * degrees["pp"] * degrees["cp"] > 1
        and sharding["sharding"] != "none"
    ):
        framework = "torchtitan"
        assumed.append("framework torchtitan: PyTorch's fully_shard under tensor or pipeline parallelism")
    if framework == "automodel":
        framework = automodel_variant(degrees)
        if framework != "automodel":
            assumed.append(f"framework {framework}: AutoModel's default where nothing splits a model of Hugging Face")
    usual = FRAMEWORKS[framework].recipe.get("sharding")
    if usual and "sharding none: not stated" in assumed:
        assumed[assumed.index("sharding none: not stated")] = (
            f"sharding {usual}: not stated, as in recipes of {framework}"
        )
        sharding["sharding"] = usual
    return framework, {**sharding, **named.settings}


def case_of(row: Row) -> tuple[Case, tuple[str, ...]]:
    """Return the run behind a training row and what was assumed about it."""
    machine, changes = row.machine()
    assumed: list[str] = []
    task = read_task(row, assumed)
    degrees = _degrees(row, assumed)
    framework, sharding = _framework(row, degrees, assumed)
    pad = 128 * degrees["tp"] if _is_usual(framework, "padded_vocabulary") else 1
    spec, about_model = spec_of(row, pad_vocab_to=pad, fused_style=framework in ("fused", "compiled-ddp"))
    topology, different, where = machine_of(row.text("source"), machine)
    changes |= different
    cuda, when = known_to(topology, *cuda_of(row.text("source"), row.text("framework"), row.text("release")))
    assumed += filter(None, (*about_model, where, when))
    recompute, heavier = _recompute(row, spec.layers, degrees["pp"], framework, assumed)
    virtual_pp = _virtual_pp(row, degrees, spec.layers, framework, assumed)
    fields: dict[str, Any] = {
        **degrees,
        **sharding,
        **_ends(spec.layers, degrees["pp"], virtual_pp, framework, assumed),
        **_usual(row, degrees, framework, assumed),
        **recipe_fields(row, framework, assumed),
        **task,
        **optimizer_fields(row, framework, assumed),
        **_expert_split(degrees, framework, assumed),
        **recompute,
        **_attention(row, framework, spec, assumed),
        **_attention_kernel(row, assumed),
        "framework": framework,
        "cuda": cuda or None,
        "virtual_pp": virtual_pp,
        "schedule": overlaps_experts(row, _schedule(row, virtual_pp), degrees, virtual_pp, assumed),
        "micro_batch": _micro_batch(row, degrees, spec.hidden, framework, recompute["recompute"], assumed),
        "global_batch": row.integer("global_batch", 0) or None,
        "sequence_length": row.integer("seq_len", spec.max_positions),
        "precision": _precision(row, framework, assumed),
        "sequence_parallel": _sequence_parallel(row, degrees["tp"], framework, recompute["recompute"], assumed),
    }
    fields |= launched_fields(row, spec.layers, degrees["pp"], assumed) | stated_settings(row)
    plan = ParallelPlan.of(fields, is_mixture=spec.has_experts)
    if not plan.global_batch and plan.micro_batch:
        plan = replace(plan, global_batch=batch_of(plan, degrees["dp"]))
        assumed.append(f"global_batch {plan.global_batch}: not stated, as the command line fills it")
    if limit := power_limit_of(row.text("notes"), topology):
        changes["power.gpu_cap"] = limit
    case = Case(
        topology=topology,
        transport=row.text("transport"),
        spec=spec,
        plan=plan,
        overrides=tuple(changes.items()),
        alternatives=tuple(_heavier(row, plan, spec.layers, heavier)),
    )
    return case, tuple(assumed)
