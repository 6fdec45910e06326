"""Outputs of benchmarks beside nccl-tests as rows of measured collectives: OSU, perftest's ``ib_*_bw``, nvbandwidth.

References
----------
OSU Micro-Benchmarks 7, ``c/util`` (headers and columns; a MB is 10^6 bytes); linux-rdma/perftest, ``src/perftest_resources.c``
(a MB is 2^20 bytes, a Gb 10^9 bits); NVIDIA/nvbandwidth, ``README.md`` (matrices in GB/s of 10^9 bytes, copies of 512 MiB).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, FormatPart
from simulator.interop.measurements.nccl_tests import PREFIX, CollectiveRow, CollectiveTable

#: word of OSU's title -> collective
_OSU = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "bcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "latency": "send_recv", "bandwidth": "send_recv",
}  # fmt: skip
_TITLE = re.compile(r"#\s*OSU\s+(?:MPI|NCCL|XCCL|MPI-CUDA)\S*\s+(?:MPI-)?(.*?)\s+Test", re.IGNORECASE)
_TWO = re.compile(PREFIX + r"(\d{1,15})\s+(\d{1,12}(?:\.\d+)?)(?:\s+[\d.]+)*\s*$")
_PERFTEST = re.compile(r"#bytes\s+#iterations\s+BW peak\[(MB|Gb)/sec\]\s+BW average\[(?:MB|Gb)/sec\]", re.IGNORECASE)
_PERF_ROW = re.compile(PREFIX + r"(\d{1,15})\s+(\d{1,12})\s+(\d{1,9}\.\d+)\s+(\d{1,9}\.\d+)")
_MATRIX = re.compile(r"memcpy \w+ (?:GPU|multinode)\S*.*bandwidth \(GB/s\)", re.IGNORECASE)
_COPY_BYTES = 512 << 20


def is_bandwidth_log(text: str) -> bool:
    """Whether a text has the title or the header of one of these benchmarks."""
    head = text[:200_000]
    return bool(_TITLE.search(head) or _PERFTEST.search(head)) or ("nvbandwidth" in head and bool(_MATRIX.search(head)))


def _row(n_bytes: int, time_s: float) -> CollectiveRow:
    rate = n_bytes / time_s
    return CollectiveRow(
        n_bytes=n_bytes, count=n_bytes, dtype="uint8", redop="none", root=-1, in_place=False, time_s=time_s,
        algbw_bytes_per_s=rate, busbw_bytes_per_s=rate,
    )  # fmt: skip


def _of_osu(text: str) -> list[tuple[str, list[CollectiveRow]]]:
    """Return the collective and the rows of every benchmark in a log."""
    found: list[tuple[str, list[CollectiveRow]]] = []
    in_rate = False
    for line in text.splitlines():
        title = _TITLE.search(line)
        if title:
            words = title[1].lower().replace(" ", "_")
            name = next((ours for word, ours in _OSU.items() if word in words), "")
            found.append((name, []))
        elif line.lstrip().startswith("#") or "Size" in line:
            in_rate = "bandwidth" in line.lower()
        elif found and (match := _TWO.match(line)) and int(match[1]) and float(match[2]) > 0.0:
            n_bytes, value = int(match[1]), float(match[2])
            found[-1][1].append(_row(n_bytes, n_bytes / (value * 1e6) if in_rate else value * 1e-6))
    return [(name, rows) for name, rows in found if rows]


def _of_perftest(text: str) -> list[tuple[str, list[CollectiveRow]]]:
    rows, unit = [], 0.0
    for line in text.splitlines():
        header, match = _PERFTEST.search(line), _PERF_ROW.match(line)
        if header:
            unit = float(1 << 20) if header[1].upper() == "MB" else 125e6
        elif match and unit and float(match[4]) > 0.0:
            rows.append(_row(int(match[1]), int(match[1]) / (float(match[4]) * unit)))
    return [("send_recv", rows)] if rows else []


def _of_nvbandwidth(text: str) -> list[tuple[str, list[CollectiveRow]]]:
    """Return a copy between GPUs at the mean rate of every matrix of pairs."""
    rows: list[CollectiveRow] = []
    cells: list[float] | None = None
    for line in [*text.splitlines(), "SUM"]:
        if _MATRIX.search(line):
            cells = [] if "GPU(row)" in line and "host" not in line.lower() else None
        elif cells is not None and line.startswith("SUM"):
            rows += [_row(_COPY_BYTES, _COPY_BYTES / (sum(cells) / len(cells) * 1e9))] if cells else []
            cells = None
        elif (
            cells is not None and re.match(r"\s*\d+\s+(?:N/A|[\d.]+)(?:\s|$)", line) and ("." in line or "N/A" in line)
        ):
            cells += [float(word) for word in line.split()[1:] if re.fullmatch(r"\d{1,6}\.\d+", word)]
    return [("send_recv", rows)] if rows else []


def import_bandwidth_log(
    path: str | Path, *, collective: str | None = None, gpus: int | None = None, nodes: int | None = None
) -> CollectiveTable:
    """Read an output, other lines mixed in.

    Options give what it does not tell: OSU's collectives do not say how many ranks ran.
    """
    text, file = read_text(path), str(path)
    is_osu, on_one_node = bool(_TITLE.search(text)), not _TITLE.search(text) and not _PERFTEST.search(text)
    runs = _of_osu(text) if is_osu else _of_nvbandwidth(text) if on_one_node else _of_perftest(text)
    if not runs:
        raise ConfigError(f"{file}: no result lines", hint="was the job cut off?")
    tables = []
    for told, rows in runs:
        name = told or collective
        if not name:
            raise ConfigError(f"{file}: which collective ran is not supported", hint="give --collective")
        ranks = 2 if name == "send_recv" else gpus or 0
        if not ranks:
            raise ConfigError(f"{file}: the output does not say how many ranks ran", hint="give --gpus, and --nodes")
        own = nodes or (0 if is_osu else 1 if on_one_node else 2)
        tables.append(
            CollectiveTable(file=file, collective=name, n_ranks=ranks, n_nodes=own, gpus_per_process=1, nccl="", rows=tuple(rows),
                            kind="bandwidth-log")
        )  # fmt: skip
    return replace(tables[0], later=tuple(tables[1:]))


BANDWIDTH_LOG = Format(
    gives="measurements",
    what="the output of OSU's benchmarks, of `ib_write_bw` and its like, or of nvbandwidth",
    sniff=is_bandwidth_log,
    read=import_bandwidth_log,
    options=("gpus", "collective", "nodes"),
    parts=(
        FormatPart(("Size", "Avg Latency(us)", "Bandwidth (MB/s)"), "OSU: a row each; collectives need `--gpus`"),
        FormatPart(("#bytes", "BW average"), "perftest: a message of one rank to another on the next node"),
        FormatPart(
            ("memcpy CE GPU(row) -> GPU(column)",), "nvbandwidth: a copy of 512 MiB at the mean rate of the pairs"
        ),
        FormatPart(
            ("Min Latency", "Max Latency", "BW peak", "MsgRate", "host"),
            "spread, or copies that no collective makes",
            is_read=False,
        ),
    ),
)
