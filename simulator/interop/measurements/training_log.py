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
                "split": "",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tool:
    """How the log of a tool tells how long its steps took."""

    name: str
    metric: str = "iteration_time_s"
    marks: str  #: What lines of steps have and no other.
    values: Callable[[str], tuple[float, ...]]
    columns: Callable[[str], dict[str, str]]
    is_of_one_gpu: bool = False  #: Whether values are rates of one GPU.


def _numbers(*marks_and_units: tuple[str, float]) -> Callable[[str], tuple[float, ...]]:
    """Return a reader of the numbers behind the first of some marks that a text has."""

    def read(text: str) -> tuple[float, ...]:
        found = (_floats(f"{mark} {{0,4}}NUMBER", text, unit) for mark, unit in marks_and_units)
        return next((values for values in found if values), ())

    return read


_TITAN_STEP = r"\bstep: {0,8}\d{1,9}.{1,200}?\b[tw]ps:"
#: the first that finds steps in a log is its tool
_TOOLS = (
    _Tool(
        name="MLPerf",
        marks=":::MLLOG",
        values=lambda text: _of_mlperf(text)[0],
        columns=lambda text: _of_mlperf(text)[1],
    ),
    _Tool(
        name="Megatron-LM",
        marks=r"elapsed time per iteration \(m?s\)",
        values=_numbers((r"elapsed time per iteration \(ms\):", 1e-3), (r"elapsed time per iteration \(s\):", 1.0)),
        columns=lambda text: _batch(text) | _megatron(text),
    ),
    _Tool(
        name="NeMo",
        marks="train_step_timing",
        values=_numbers((r"train_step_timing(?: in s)?[:=]", 1.0)),
        columns=lambda text: _batch(text) | {"framework": "NeMo"},
    ),
    _Tool(
        name="torchtitan",
        metric="tokens_per_s",
        marks=_TITAN_STEP,
        values=lambda text: _floats(f"{_TITAN_STEP} {{0,8}}NUMBER", _plain(text)),
        columns=lambda text: {"framework": "torchtitan"} | _mesh(text),
        is_of_one_gpu=True,
    ),
    _Tool(
        name="DeepSpeed",
        marks=r"iter time \(s\): ",
        values=_numbers((r"iter time \(s\):", 1.0)),
        columns=lambda text: _batch(text) | {"framework": "DeepSpeed"},
    ),
    _Tool(
        name="DeepSpeed",
        metric="samples_per_s",
        marks="SamplesPerSec=",
        values=_numbers((r"\b(?:Curr)?SamplesPerSec=", 1.0)),
        columns=lambda text: _batch(text) | {"framework": "DeepSpeed"},
    ),
    _Tool(
        name="Trainer",
        marks="train_steps_per_second",
        values=lambda text: tuple(
            1.0 / rate for rate in _floats(r"train_steps_per_second[\"'] {0,2}: {0,2}[\"']?NUMBER", text) if rate
        ),
        columns=lambda text: {"framework": "hf-eager"},
    ),
)


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
    head = _plain(text[:200_000])  # torchtitan colours its lines
    return any(re.search(tool.marks, head if tool.is_of_one_gpu else text) for tool in _TOOLS)


def import_training_log(path: str | Path, *, gpus: int | None = None) -> TrainingLog:
    """Read a log, other lines mixed in; ``gpus`` is how many ran, where the log does not tell."""
    text = read_text(path)
    for tool in _TOOLS:
        values = tuple(value for value in tool.values(text) if 0.0 < value < 1e9)
        if values:
            columns = tool.columns(text) | ({"gpus": str(gpus)} if gpus else {})
            if tool.is_of_one_gpu:
                if not columns.get("gpus"):
                    raise ConfigError(
                        f"{path}: {tool.name} logs tokens of one GPU, and not how many ran", hint="give --gpus"
                    )
                values = tuple(value * int(columns["gpus"]) for value in values)
            return TrainingLog(file=str(path), tool=tool.name, metric=tool.metric, values=values, columns=columns)
    raise ConfigError(
        f"{path}: no steps of {', '.join(dict.fromkeys(tool.name for tool in _TOOLS))}",
        hint="give the log of the rank that prints, usually the last",
    )


TRAINING_LOG = Format(
    gives="measurements",
    what="a training log of Megatron-LM, NeMo, torchtitan, DeepSpeed, the Trainer of transformers, or MLPerf",
    sniff=is_training_log,
    read=import_training_log,
    options=("gpus",),
    parts=(
        *(FormatPart((tool.name,), f"steps, as `{tool.metric}`") for tool in _TOOLS),
        FormatPart(tuple(_ARGUMENTS), "the job, where Megatron-LM prints its arguments"),
        FormatPart(
            ("loss", "learning rate", "memory", "TFLOP/s"), "not the time, or another writing of it", is_read=False
        ),
    ),
)
