"""How the rows of measurement files were timed, as their sources and notes say in prose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.calibration.cells import Cells
from simulator.collectives.benchmark import DTYPES
from simulator.dtypes import our_name, torch_name
from simulator.errors import ConfigError
from simulator.kernels.conditions import CONDITIONS, Conditions

_VERSION = re.compile(r"nccl[/_ -]?v?(\d+)[._](\d+)", re.IGNORECASE)
#: sources whose benchmarks drive so many GPUs from one process
_PER_PROCESS = {
    "microsoft/superbenchmark": 8,
    "public GitHub file id 33201577724": 8,
    "https://github.com/ROCm/rccl/issues/1562": 8,
}


def kernel_conditions(source: str, notes: str, kernel_pass: str = "forward") -> Conditions:
    """Tell from a row's source and notes how its kernel was timed; ``benchmark`` where they do not say.

    Examples
    --------
    >>> kernel_conditions("lab", "random weights, CUDA graph").name
    'graph_replay'
    """
    text = f"{source} {notes}".lower()
    if kernel_pass == "backward" and "autograd" in text:
        return CONDITIONS["autograd_flushed"]
    for phrase, name in (
        ("sustained power", "profiler"),
        ("cuda graph", "graph_replay"),
        ("encoder attention", "graph_replay"),
        ("inference prefill", "inference_prefill"),
        ("l2 flushed", "events_flushed"),
        ("_scaled_fp8_quant", "repeated"),
        ("_proj of", "profiler"),
    ):
        if phrase in text:
            return CONDITIONS[name]
    return CONDITIONS["benchmark"]


def library_kernel(notes: str) -> str:
    """Return the library kernel that a row's notes name, or nothing.

    Examples
    --------
    >>> library_kernel("kernel vllm_flash_attn, inference prefill")
    'vllm_flash_attn'
    >>> library_kernel("inference prefill, kernel vllm_flash_attn_fa3; sliding window 128")
    'vllm_flash_attn_fa3'
    """
    found = re.search(r"(?:^|, |hidden; )kernel (\w+)", notes)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConditions:
    """How a benchmark was run."""

    nccl: str | None = None  #: Version; None where it is not known, and that of the cluster file holds.
    gpus_per_process: int = 1  #: ``-g`` (times ``-t``): GPUs that one process drives.
    algorithm: str | None = None  #: What the run was made to take; None where NCCL chose.
    protocol: str | None = None
    eight_bit_float: bool = False  #: Whether elements are floats of eight bits.


def benchmark_conditions(cells: Mapping[str, str]) -> BenchmarkConditions:
    """Tell how the benchmark behind a row of a table of collectives was run: from the row's own cells, else from its source.

    Examples
    --------
    >>> benchmark_conditions({"source": "results/nccl_2_18/n2.g4/all_reduce.dat"}).nccl
    '2.18'
    >>> benchmark_conditions({"source": "microsoft/superbenchmark@700d6501f1:tests/data/nccl_allreduce.log"}).gpus_per_process
    8
    >>> benchmark_conditions({"algorithm": "ring/LL"}).protocol
    'll'
    """
    row = Cells(cells=cells)
    source = row.text("source")
    version = _VERSION.search(source)
    algorithm, _, protocol = row.text("algorithm").lower().partition("/")
    return BenchmarkConditions(
        nccl=row.text("nccl") or (f"{version[1]}.{version[2]}" if version else None),
        gpus_per_process=row.integer(
            "gpus_per_process", next((n for s, n in _PER_PROCESS.items() if source.startswith(s)), 1)
        ),
        algorithm=algorithm or None,
        protocol=protocol or row.text("protocol").lower() or None,
        eight_bit_float=_is_eight_bit_float(row.text("dtype").lower()),
    )


def _is_eight_bit_float(word: str) -> bool:
    """Whether elements are floats of eight bits, which long rings do not add up; in nccl-tests' words, or in people's."""
    if word and not torch_name(word):
        raise ConfigError(f"dtype '{word}' is unknown", hint=f"one of {', '.join(DTYPES)}")
    return our_name(word) == "fp8"
