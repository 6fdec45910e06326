"""DeepSpeed's ``ds_config.json``, both ways: batch sizes, ZeRO stage, precision and buckets.

References
----------
deepspeedai/DeepSpeed, ``deepspeed/runtime/config.py`` and ``runtime/zero/config.py`` (names, defaults, the batch rule);
huggingface/transformers, ``integrations/deepspeed.py`` (what becomes of ``auto``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import FoundKeys, flattened, json_keys, nested, shipped_table
from simulator.interop.trainers.emission import Emission, Request, refuse_to_write, said, under
from simulator.interop.typed_values import Reader, words
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.data_parallelism import ZERO_STAGES

#: optimizers with two fp32 moments and gradients reduced as they are
_ADAM_LIKE = ("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "torch_adam", "lamb", "fusedlamb")
KEYS = shipped_table("deepspeed")
#: sizes that the Trainer takes for ``auto`` -> our setting, elements of a hidden size, and those in words
#: (``HfTrainerDeepSpeedConfig.trainer_config_finalize``)
_OF_HIDDEN: Mapping[str, tuple[str, Callable[[int], int], str]] = {
    "zero_optimization.reduce_bucket_size": ("bucket_bytes", lambda hidden: hidden**2, "the hidden size squared"),
    "zero_optimization.stage3_prefetch_bucket_size": (
        "prefetch_elements", lambda hidden: hidden**2 * 9 // 10, "0.9 of the hidden size squared",
    ),
    "zero_optimization.stage3_param_persistence_threshold": (
        "persistence_elements", lambda hidden: 10 * hidden, "10 hidden sizes",
    ),
}  # fmt: skip


def import_deepspeed(path: str | Path, *, gpus: int = 0) -> Imported:
    """Read a ``ds_config.json``; ``gpus`` are the data-parallel ranks of its batch rule, 0 if not known yet."""
    data, locator = load_yaml(path)
    return read_deepspeed(Reader(flattened(data, str(path)), str(path), locator=locator), n_ranks=gpus)


def is_deepspeed(text: str) -> bool:
    """Whether a text is a JSON object with a batch size or a ZeRO section of DeepSpeed's."""
    return bool(json_keys(text) & {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"})


# ---- reading -----------------------------------------------------------------------------------------------------


def read_deepspeed(reader: Reader, *, n_ranks: int = 0, hidden: int = 0) -> Imported:
    """Read settings that are already a mapping, written flat; see :func:`import_deepspeed`.

    ``hidden`` is the hidden size of the model, 0 where it is not known: sizes that are ``auto`` follow from it.
    """
    automatic = _left_to_the_trainer(reader, hidden)
    found = KEYS.read(reader)
    if (
        reader.has("zero_optimization.offload_optimizer.device")
        and found["zero_optimization.offload_optimizer.ratio"] != 1.0
    ):
        reader.fault("zero_optimization.offload_optimizer.ratio", "a partial offload is not modelled", hint="1.0")
    settings: dict[str, Any] = {"framework": "deepspeed"}
    settings |= (
        KEYS.fields(found, "plan", defaults=False)
        | _batch(found, automatic, n_ranks)
        | _precision(found, automatic)
        | _zero(found)
    )
    settings |= _reduction(found, settings)
    settings |= _optimizer(found, settings)
    if found["compile.enabled"] or found["compile.disable"] is False:
        settings["host"] = "compiled"
    settings["tp"] = max(1, found["tensor_parallel.autotp_size"])
    if settings.get("cp", 1) > 1:
        settings["cp_comm_type"] = "a2a"
    if any(name.startswith("activation_checkpointing.") for name in reader.data):
        reader.assume("recompute", "full", "activation_checkpointing is configured; the model must call it")
        settings["recompute"] = "full"
    KEYS.finish(found)
    sizes = tuple(field for key, (field, _, _) in _OF_HIDDEN.items() if automatic & {*KEYS.named(key).names})
    settings |= sizes_of_hidden(sizes, hidden, settings)
    return Imported(
        kind="deepspeed", file=reader.file, settings=settings, accumulation=found["gradient_accumulation_steps"],
        automatic=sizes, report=reader.account.report(),
    )  # fmt: skip


def _left_to_the_trainer(reader: Reader, hidden: int) -> set[str]:
    """Take the keys out whose value is ``auto``, and return those that count."""
    names = [name for name, value in reader.data.items() if value == "auto" and KEYS.knows(name)]
    is_third = str(reader.data.get("zero_optimization.stage")) == "3"
    for name in list(names):
        reader.raw(name)
        del reader.data[name]
        _, size, in_words = _OF_HIDDEN.get(KEYS.named(name).names[0], ("", None, ""))
        if size is None:
            reader.assume(name, "unset", "'auto' is filled in by the Hugging Face trainer")
        elif not is_third and "stage3" in KEYS.named(name).names[0]:
            names.remove(name)
        elif hidden:
            reader.assume(name, size(hidden), f"'auto' becomes {in_words} in the Hugging Face trainer")
        else:
            why = f"'auto' becomes {in_words} in the Hugging Face trainer, which counts where --model says it"
            reader.assume(name, "DeepSpeed's default", why)
    return set(names)


def sizes_of_hidden(automatic: Collection[str], hidden: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among ``automatic`` of a model of a hidden size, 0 where it is not known.

    Examples
    --------
    >>> sizes_of_hidden(("bucket_bytes", "persistence_elements"), 4096, {"framework": "deepspeed", "precision": "bf16"})
    {'bucket_bytes': 33554432, 'persistence_elements': 40960}
    """
    found = {field: size(hidden) for field, size, _ in _OF_HIDDEN.values() if hidden and field in automatic}
    if settings.get("overlap") is False:
        found.pop("prefetch_elements", None)  # nothing is gathered ahead
    if "bucket_bytes" in found:
        widths = {name: settings[name] for name in ("framework", "precision", "gradient_bytes") if name in settings}
        found["bucket_bytes"] *= ParallelPlan(**widths).reduced_bytes
    return found


def _batch(found: FoundKeys, automatic: set[str], n_ranks: int) -> dict[str, Any]:
    """Apply DeepSpeed's rule: train batch = micro-batch x accumulation x data-parallel ranks."""
    reader, total = found.reader, found["train_batch_size"]
    micro, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    if not total and not micro:
        if automatic & {"train_batch_size", "train_micro_batch_size_per_gpu"}:
            return {}
        reader.fault(
            "",
            "neither 'train_batch_size' nor 'train_micro_batch_size_per_gpu' is given",
            hint="DeepSpeed derives the third of batch, micro-batch and accumulation from two of them",
        )
    if total and micro and steps:
        if total % (micro * steps) or (n_ranks and total != micro * steps * n_ranks):
            ranks = n_ranks or "a whole number of"
            reader.fault(
                "train_batch_size",
                f"{total} is not {micro} x {steps} x {ranks} data-parallel ranks",
                hint="the batch is micro-batch x gradient_accumulation_steps x data-parallel ranks",
            )
        return {"dp": total // (micro * steps)}
    if total and not micro:
        if n_ranks:
            return {"micro_batch": max(1, total // (n_ranks * (steps or 1)))}
        reader.assume("micro_batch", SETTINGS["micro_batch"].unset, "only train_batch_size is given")
    elif micro and not total:
        if n_ranks:
            return {"global_batch": micro * (steps or 1) * n_ranks}
        if (steps or 1) > 1:
            reader.assume("global_batch", f"{micro} x {steps} x dp", "train_batch_size follows from the ranks")
    return {}


def _optimizer(found: FoundKeys, settings: dict[str, Any]) -> dict[str, Any]:
    """Return how the optimizer communicates; note one that does so, or keeps something, otherwise than what is taken."""
    name, warm_up = found["optimizer.type"], found["optimizer.params.freeze_step"]
    if re.search(r"one_?bit|zero_?one", name, re.IGNORECASE):
        if settings["sharding"] != "none":
            found.reader.miss("optimizer.type", f"{name} was not made for ZeRO: taken as Adam")
            return {}
        if "adam" not in name.lower() or "zero" in name.lower():
            found.reader.miss(
                "optimizer.type", f"{name} is taken as OneBitAdam, which synchronises one bit at every step"
            )
        found.reader.assume("gradient_compression", "onebit", f"steps after the warm-up, {warm_up or 100000} of {name}")
        return {"gradient_compression": "onebit"}
    if name.lower() not in _ADAM_LIKE:
        found.reader.miss("optimizer.type", f"the states of {name} are taken as Adam's")
    return {}


def _precision(found: FoundKeys, automatic: set[str]) -> dict[str, Any]:
    bf16, fp16 = found["bf16.enabled"], found["fp16.enabled"]
    if bf16 and fp16:
        found.reader.fault("bf16", "bf16 and fp16 are both enabled")
    if bf16 or fp16:
        return {"precision": "bf16" if bf16 else "fp16"}
    if found["torch_autocast.enabled"]:
        return {"precision": KEYS.named("torch_autocast.dtype").ours(found["torch_autocast.dtype"])}
    if found["amp.enabled"]:
        return {"precision": "amp_fp16"}
    if automatic & {"bf16.enabled", "fp16.enabled", "bfloat16.enabled"}:
        return {}
    found.reader.assume("precision", "fp32", "neither bf16 nor fp16 is enabled")
    return {"precision": "fp32"}


def _zero(found: FoundKeys) -> dict[str, Any]:
    """Return what the section of ZeRO decides."""
    stage, group = found["zero_optimization.stage"], found["zero_optimization.mics_shard_size"] or -1
    overlap = found["zero_optimization.overlap_comm"]
    settings: dict[str, Any] = {
        "sharding": found.reader.zero_stage("zero_optimization.stage", stage),
        "overlap": stage == 3 if not isinstance(overlap, bool) else overlap,
    }
    if group > 1 and stage == 3:  # at other stages DeepSpeed does not look at it
        settings |= {"sharding": "hsdp", "sharding_group": group}
    is_cut = (
        found["zero_optimization.reduce_scatter"] and not found["zero_optimization.use_multi_rank_bucket_allreduce"]
    )
    if stage in (1, 2) and is_cut:
        settings["gradient_collective"] = "reduce"
    for name, old in (("offload_optimizer", "cpu_offload"), ("offload_parameters", "cpu_offload_params")):
        if found[f"zero_optimization.{old}"]:
            settings[name] = "cpu"
    return settings


def _reduction(found: FoundKeys, settings: dict[str, Any]) -> dict[str, Any]:
    """Return in which width gradients are reduced, in which buckets, and what stage 3 keeps and fetches ahead."""
    changed: dict[str, Any] = {}
    sent, kept = found["communication_data_type"], found["data_types.grad_accum_dtype"]
    if sent is not None:
        changed["gradient_bytes"] = KEYS.named("communication_data_type").ours(sent)
    elif kept in ("fp32", "float32"):
        changed["gradient_bytes"] = 4
    for one in KEYS.keys:
        if one.plan.endswith("_elements"):
            value = settings.pop(one.plan, None)
            if value is not None and value >= 0 and found["zero_optimization.stage"] == 3:
                changed[one.plan] = round(value)
    bucket = round(found["zero_optimization.reduce_bucket_size"] or 0)
    if bucket:
        changed["bucket_bytes"] = bucket * ParallelPlan(**(settings | changed)).reduced_bytes
    return changed


# ---- writing -----------------------------------------------------------------------------------------------------

#: sharding of a plan -> ZeRO's stage
STAGES = {ours: stage for stage, ours in enumerate(ZERO_STAGES)} | {"hsdp": 3}
#: fields that a model or a data loader decides, and where
_ELSEWHERE = {"gpus": "the launcher", "sequence_length": "the data loader"} | dict.fromkeys(
    words("attention sequence_parallel asynchronous_tp scatter_gather overlap_parameter_gather overlap_p2p schedule"),
    "the model",
)


def write_deepspeed(request: Request) -> Emission:
    """Write a ``ds_config.json``: alone for data parallelism, beside Megatron's arguments for the rest."""
    plan = under(request.plan, ("deepspeed", "megatron-deepspeed"))
    beside_megatron = plan.framework_spec.has_megatron_layers
    is_ulysses = plan.cp > 1 and plan.context_exchange == "a2a"
    alone = plan.tp * (plan.cp if is_ulysses else 1)
    refuse_to_write("ds_config.json", {
        f"tp={plan.tp} pp={plan.pp} cp={plan.cp} ep={plan.ep} without Megatron":
            not beside_megatron and plan.model_parallel * plan.ep > alone,
        f"precision {plan.precision}": plan.precision not in ("bf16", "fp16", "fp32"),
        "selective recomputation": plan.recompute == "selective" and not beside_megatron,
    })  # fmt: skip
    flat = KEYS.written(said(plan), "plan") | {
        "gradient_accumulation_steps": plan.n_micro_batches,
        "bf16.enabled": plan.precision == "bf16",
        "fp16.enabled": plan.precision == "fp16",
        "zero_optimization.stage": STAGES[plan.sharding],
        "zero_optimization.overlap_comm": plan.overlaps,
    }
    if plan.sharding == "hsdp":
        flat["zero_optimization.mics_shard_size"] = plan.sharding_group
    if plan.bucket_bytes:
        flat["zero_optimization.reduce_bucket_size"] = plan.bucket_bytes // plan.reduced_bytes
    if plan.gradient_collective == "reduce":
        flat["zero_optimization.use_multi_rank_bucket_allreduce"] = False
    if plan.reduced_bytes == 4:
        flat["data_types.grad_accum_dtype"] = "fp32"
    if plan.recompute == "full":
        flat["activation_checkpointing.partition_activations"] = False
    unsaid = dict(_ELSEWHERE)
    if beside_megatron:
        flat.pop("sequence_parallel_size", None)
        where = "Megatron's arguments"
        unsaid |= dict.fromkeys(("framework", "tp", "pp", "virtual_pp", "cp", "ep", "recompute"), where)
        ends = ("first_stage_layers", "last_stage_layers", "account_for_embedding", "account_for_loss")
        unsaid |= dict.fromkeys(ends, where)
    elif plan.tp > 1:
        flat["tensor_parallel.autotp_size"] = plan.tp
    if plan.reduced_bytes != 4:
        unsaid["gradient_bytes"] = "follows from the precision"
    return Emission(text=json.dumps(nested(flat), indent=2) + "\n", plan=plan, unsaid=unsaid)


DEEPSPEED = Format(
    gives="plan",
    what="DeepSpeed's `ds_config.json`",
    sniff=is_deepspeed,
    read=import_deepspeed,
    options=("gpus",),
    table=KEYS,
    write=write_deepspeed,
    file="ds_config.json",
)
