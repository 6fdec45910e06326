"""Logs of training runs as one measured row: Megatron's, NeMo's, torchtitan's, DeepSpeed's, the Trainer's and MLPerf's.

A run gives the median of its steps after the first tenth (at least three) of them, which compile, warm up and fill caches.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/training.py`` (``training_log``) and ``arguments.py`` (``_print_args``); NVIDIA/NeMo,
``nemo/lightning/pytorch/callbacks/progress_printer.py``; pytorch/torchtitan, ``torchtitan/components/metrics.py``;
deepspeedai/DeepSpeed, ``deepspeed/utils/timer.py``; huggingface/transformers, ``trainer_utils.py`` (``speed_metrics``);
mlcommons/logging, ``mlperf_logging/mllog`` (``:::MLLOG`` lines).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from simulator.config import parse_json, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, FormatPart

_NUMBER = r"([0-9][0-9,]{0,14}(?:\.[0-9]{1,12})?(?:e[-+]?[0-9]{1,2})?)"
#: argument of Megatron-LM, printed at the start -> column of a training row
_ARGUMENTS = {
    "num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn", "padded_vocab_size": "vocab", "seq_length": "seq_len", "world_size": "gpus",
    "data_parallel_size": "dp", "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "virtual_pp", "context_parallel_size": "cp", "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch", "global_batch_size": "global_batch", "num_experts": "experts", "moe_router_topk": "top_k",
}  # fmt: skip
_ARGUMENT = re.compile(r"(?m)^(?:\S{0,20}[:\]]?)?[ \t]*+([a-z][a-z0-9_]{1,60}) \.{3,120} (\S{1,80})\s*$")
#: steps that are left out at the start, of at least so many
_LEAST_WARM_UP, _SHARE_OF_WARM_UP = 3, 10
_LINE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """What a log tells of one run."""

    #: Where it comes from, and which tool wrote it.
    file: str
    tool: str
    metric: str  #: ``iteration_time_s``, or a rate in the names of ``simulate validate``.
    values: tuple[float, ...]  #: Of every step that was logged.
    #: What the log tells of the job, in the columns of training rows.
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def steady(self) -> tuple[float, ...]:
        """Values after the warm-up; all of them where there are too few."""
        first = max(_LEAST_WARM_UP, len(self.values) // _SHARE_OF_WARM_UP)
        return self.values[first:] if len(self.values) > 2 * first else self.values[len(self.values) > 1 :]

    def measurements(self, topology: str, *, transport: str = "") -> list[dict[str, str]]:
        """Return the run as a row of a table of training runs, for ``simulate validate``."""
        given = {"topology": topology, "transport": transport, "gpus": "", **self.columns}
        return [
            {
                "row_id": Path(self.file).stem,
                "source": self.file,
                **given,
                "metric": self.metric,
                "value": f"{median(self.steady):.6g}",
                "split": "user",
            }
        ]


def _floats(pattern: str, text: str, scale: float = 1.0) -> tuple[float, ...]:
    found = re.findall(pattern.replace("NUMBER", _NUMBER), text)
    return tuple(float(one.replace(",", "")) * scale for one in found)


def _megatron(text: str) -> dict[str, str]:
    """Return what Megatron prints of its arguments."""
    found = {name: value for name, value in _ARGUMENT.findall(text) if value != "None"}
    columns = {ours: found[name] for name, ours in _ARGUMENTS.items() if found.get(name, "").isdigit()}
    precision = next((name for name in ("bf16", "fp16") if found.get(name) == "True"), "")
    is_fp8 = found.get("fp8", found.get("fp8_format", "None")) not in ("None", "False")
    if found:
        columns["precision"] = "fp8" if is_fp8 else precision or "fp32"
        is_llama = found.get("swiglu") == "True" and found.get("normalization") == "RMSNorm"
        columns["architecture"] = "llama" if is_llama else "gpt"
        columns["framework"] = "Megatron-LM"
        columns["sharding"] = "zero1" if found.get("use_distributed_optimizer") == "True" else "none"
        columns["sequence_parallel"] = "1" if found.get("sequence_parallel") == "True" else "0"
        recompute = found.get("recompute_granularity", "none")
        columns["recompute"] = recompute if recompute in ("full", "selective") else "none"
    return columns


def _last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    return found[-1] if found else ""


def _batch(text: str) -> dict[str, str]:
    batch = _last(r"global[ _]batch[ _]size[:=]\s{0,8}(\d{1,9})\b", text)
    return {"global_batch": batch} if batch else {}


def _mlperf(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of MLPerf's lines."""
    for line in text.splitlines():
        _, mark, rest = line[:_LINE].partition(":::MLLOG")
        if mark:
            try:
                data = parse_json(rest)
            except ValueError:
                continue
            if isinstance(data, dict):
                yield str(data.get("key")), data.get("value")


def _of_mlperf(text: str) -> tuple[tuple[float, ...], dict[str, str]]:
    events = list(_mlperf(text))
    times = [
        v["train_step_time"]
        for k, v in events
        if k == "tracked_stats" and isinstance(v, dict) and "train_step_time" in v
    ]
    batch = next((v for k, v in events if k == "global_batch_size"), None)
    length = next((v for k, v in events if k == "max_sequence_length"), None)
    rates = [v["throughput"] for k, v in events if k == "tracked_stats" and isinstance(v, dict) and "throughput" in v]
    if not times and isinstance(batch, int) and not isinstance(batch, bool):
        times = [batch / one for one in rates if isinstance(one, int | float) and one > 0]
    columns = {"global_batch": batch, "seq_len": length}
    told = {k: str(v) for k, v in columns.items() if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**9}
    return tuple(float(one) for one in times if isinstance(one, int | float) and 0 < one < 10**6), told  # fmt: skip


Values = Callable[[str], tuple[float, ...]]
#: tool -> metric, how its steps are found, and what else the log tells; the first that finds steps is it
_TOOLS: dict[str, tuple[str, Values, Callable[[str], dict[str, str]]]] = {
    "MLPerf": ("iteration_time_s", lambda text: _of_mlperf(text)[0], lambda text: _of_mlperf(text)[1]),
    "Megatron-LM": (
        "iteration_time_s",
        lambda text: (
            _floats(r"elapsed time per iteration \(ms\): {0,4}NUMBER", text, 1e-3)
            or _floats(r"elapsed time per iteration \(s\): {0,4}NUMBER", text)
        ),
        lambda text: _batch(text) | _megatron(text),
    ),
    "NeMo": (
        "iteration_time_s",
        lambda text: _floats(r"train_step_timing(?: in s)?[:=] {0,4}NUMBER", text),
        lambda text: _batch(text) | {"framework": "NeMo"},
    ),
    "torchtitan": (
        "tokens_per_s",
        lambda text: _floats(r"\bstep: {0,8}\d{1,9}.{1,200}?\b[tw]ps: {0,8}NUMBER", _plain(text)),
        lambda text: {"framework": "torchtitan"} | _mesh(text),
    ),
    "DeepSpeed": (
        "iteration_time_s",
        lambda text: _floats(r"iter time \(s\): {0,4}NUMBER", text),
        lambda text: _batch(text) | {"framework": "DeepSpeed"},
    ),
    "DeepSpeed's rate": (
        "samples_per_s",
        lambda text: _floats(r"\b(?:Curr)?SamplesPerSec= {0,4}NUMBER", text),
        lambda text: _batch(text) | {"framework": "DeepSpeed"},
    ),
    "Trainer": (
        "iteration_time_s",
        lambda text: tuple(
            1.0 / rate for rate in _floats(r"train_steps_per_second[\"'] {0,2}: {0,2}[\"']?NUMBER", text) if rate
        ),
        lambda text: {"framework": "hf-eager"},
    ),
}


def _mesh(text: str) -> dict[str, str]:
    """Return the ranks of torchtitan's mesh, ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``."""
    sizes = re.search(r"device mesh with \[[^\]]{1,200}\], \[([\d, ]{1,60})\]", text)
    return {"gpus": str(math.prod(map(int, re.findall(r"\d{1,9}", sizes[1]))))} if sizes else {}


def _plain(text: str) -> str:
    """Return a text without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]{0,12}m", "", text)


def is_training_log(text: str) -> bool:
    """Whether a text has lines of steps of one of the tools, and is no script that quotes some."""
    if text.startswith("#!"):
        return False
    marks = r"elapsed time per iteration \(m?s\)|train_step_timing|:::MLLOG|iter time \(s\): |SamplesPerSec=|train_steps_per_second"
    return bool(re.search(marks, text)) or bool(
        re.search(r"step: {0,8}\d{1,9}.{1,200}?\b[tw]ps: ", _plain(text[:200_000]))
    )


def import_training_log(path: str | Path, *, gpus: int | None = None) -> TrainingLog:
    """Read a log, other lines mixed in; ``gpus`` is how many ran, where the log does not tell."""
    text = read_text(path)
    for tool, (metric, values_of, columns_of) in _TOOLS.items():
        values = tuple(value for value in values_of(text) if 0.0 < value < 1e9)
        if values:
            columns = columns_of(text) | ({"gpus": str(gpus)} if gpus else {})
            if tool == "torchtitan":  # its rate is of one GPU
                if not columns.get("gpus"):
                    raise ConfigError(
                        f"{path}: torchtitan logs tokens of one GPU, and not how many ran", hint="give --gpus"
                    )
                values = tuple(value * int(columns["gpus"]) for value in values)
            return TrainingLog(
                file=str(path), tool=tool.removesuffix("'s rate"), metric=metric, values=values, columns=columns
            )
    raise ConfigError(
        f"{path}: no steps of {', '.join(_TOOLS)}", hint="give the log of the rank that prints, usually the last"
    )


TRAINING_LOG = Format(
    gives="measurements",
    what="a training log of Megatron-LM, NeMo, torchtitan, DeepSpeed, the Trainer of transformers, or MLPerf",
    sniff=is_training_log,
    read=import_training_log,
    options=("gpus",),
    parts=(
        *(FormatPart((tool,), f"steps, as `{metric}`") for tool, (metric, _, _) in _TOOLS.items()),
        FormatPart(tuple(_ARGUMENTS), "the job, where Megatron-LM prints its arguments"),
        FormatPart(
            ("loss", "learning rate", "memory", "TFLOP/s"), "not the time, or another writing of it", is_read=False
        ),
    ),
)
