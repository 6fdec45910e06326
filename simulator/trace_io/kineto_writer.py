"""Writes Kineto-compatible JSON, one file per rank, that Holistic Trace Analysis reads with its ranks right.

What that tool needs, and therefore what is written: a blank between ``"rank":`` and the number, before the events;
``args.stream`` on device operations; a runtime call for every correlation id; communication kernels named ``nccl...``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from simulator.trace_io.communication import CommunicationNames, element_bytes
from simulator.trace_io.record import (
    COMMUNICATION,
    COPY,
    HOST_NODE,
    OPERATOR,
    RUNTIME,
    CollectiveCall,
    RankTrace,
    Trace,
)

#: the project's word -> PyTorch's
FRAMEWORK_NAMES = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter", "send": "send", "recv": "recv", "barrier": "barrier", "send_recv": "pointToPoint",
}  # fmt: skip
_KERNELS = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_to_all": "SendRecv",
    "broadcast": "Broadcast", "reduce": "Reduce", "send": "SendRecv", "recv": "SendRecv", "send_recv": "SendRecv",
}  # fmt: skip
_HOST_CATEGORIES = {RUNTIME: "cuda_runtime", OPERATOR: "cpu_op"}
_EXTRA_CORRELATION = 1 << 40


def write(trace: Trace, directory: str | Path, *, compress: bool = True) -> tuple[Path, ...]:
    """Write one file per rank into a directory.

    Parameters
    ----------
    trace : Trace
        Measured or simulated.
    directory : str or Path
        Made if need be.
    compress : bool
        Whether the files end in ``.json.gz``.

    Returns
    -------
    tuple of Path
        The files, in order of rank.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in trace.ranks:
        path = folder / f"rank{rank.rank}.pt.trace.json{'.gz' if compress else ''}"
        with gzip.open(path, "wb", compresslevel=5) if compress else open(path, "wb") as file:
            write_rank(rank, trace.world_size, file)  # type: ignore[arg-type]
        paths.append(path)
    return tuple(paths)


def write_rank(rank: RankTrace, world_size: int, file: IO[bytes]) -> None:
    """Write one rank."""
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": rank.device}] if rank.device else [],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": world_size,
            "pg_count": len(rank.groups),
            "pg_config": [
                {"pg_name": name, "pg_desc": name, "pg_size": len(ranks), "ranks": list(ranks)}
                for name, ranks in rank.groups.items()
            ],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": rank.epoch_ns,
    }
    # written by json, not msgspec: the readers' pattern wants a blank after the colon
    file.write(json.dumps(header)[:-1].encode() + b', "traceEvents": [\n')
    encode = msgspec.json.Encoder().encode
    first = True
    for event in _events(rank):
        file.write(b"" if first else b",\n")
        file.write(encode(event))
        first = False
    file.write(b'\n], "traceName": ' + json.dumps(f"rank{rank.rank}").encode() + b"}\n")


def _us(time_ns: int) -> msgspec.Raw:
    """Microseconds with three decimals, exactly."""
    sign, rest = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return msgspec.Raw(f"{sign}{rest // 1000}.{rest % 1000:03d}".encode())


def _events(rank: RankTrace) -> Iterator[dict[str, Any]]:
    device = rank.rank
    yield {
        "ph": "M",
        "name": "process_name",
        "pid": device,
        "tid": 0,
        "ts": 0,
        "args": {"name": f"rank {device}"},
    }
    for index, stream in enumerate(rank.streams):
        name = {"name": f"stream {stream.split(':', 1)[-1]}"}
        yield {"ph": "M", "name": "thread_name", "pid": device, "tid": index, "ts": 0, "args": name}
    yield from _host_events(rank)
    yield from _device_events(rank, device)
    if not len(rank.host):
        for step in rank.steps:
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step.number}",
                "pid": 1_000_000 + rank.rank,
                "tid": 1,
                "ts": _us(step.start_ns),
                "dur": _us(step.end_ns - step.start_ns),
            }


def _host_events(rank: RankTrace) -> Iterator[dict[str, Any]]:
    host = rank.host
    threads = [text.split(":", 1) for text in rank.threads]
    pids = [_number(parts[0], 1_000_000 + rank.rank) for parts in threads]
    tids = [_number(parts[-1], index + 1) for index, parts in enumerate(threads)]
    launching = set(rank.ops.launch[rank.ops.launch >= 0].tolist())
    starts, lengths = host.start_ns.tolist(), (host.end_ns - host.start_ns).tolist()
    for index, (start, length, name, thread, kind, correlation, external) in enumerate(
        zip(
            starts,
            lengths,
            host.name.tolist(),
            host.thread.tolist(),
            host.kind.tolist(),
            host.correlation.tolist(),
            host.external.tolist(),
            strict=True,
        )
    ):
        args: dict[str, int] = {}
        if external >= 0:
            args["External id"] = external
        if kind == RUNTIME:
            args["correlation"] = correlation if correlation >= 0 else _EXTRA_CORRELATION + index
            if correlation < 0 and index not in launching:
                del args["correlation"]
        yield {
            "ph": "X",
            "cat": _HOST_CATEGORIES.get(kind, "user_annotation"),
            "name": rank.names[name],
            "pid": pids[thread],
            "tid": tids[thread],
            "ts": _us(start),
            "dur": _us(length),
            "args": args,
        }


def _number(text: str, default: int) -> int:
    try:
        return int(text)
    except ValueError:
        return default


def _device_events(rank: RankTrace, device: int) -> Iterator[dict[str, Any]]:
    ops, host = rank.ops, rank.host
    communicates = CommunicationNames()
    numbers = _stream_numbers(rank)
    for index in range(len(ops)):
        kind, launch, start = int(ops.kind[index]), int(ops.launch[index]), int(ops.start_ns[index])
        stream = numbers[ops.stream[index]]
        name = rank.names[ops.name[index]]
        args: dict[str, Any] = {"device": device, "context": 1, "stream": stream}
        if launch >= 0:
            known = int(host.correlation[launch])
            args["correlation"] = known if known >= 0 else _EXTRA_CORRELATION + launch
        elif not len(host) and kind != HOST_NODE:
            args["correlation"] = index + 1
            yield _launch(rank.rank, index + 1, start)
        elif kind != HOST_NODE:
            args["correlation"] = 2 * _EXTRA_CORRELATION + index
        category = "kernel"
        if kind == COPY:
            category = "gpu_memset" if name.lower().startswith("memset") else "gpu_memcpy"
            if ops.n_bytes[index] >= 0:
                args["bytes"] = int(ops.n_bytes[index])
        if kind == HOST_NODE:
            category, args = "cpu_op", {}
        if kind == COMMUNICATION:
            call = rank.calls[ops.call[index]]
            args |= metadata(call)
            if not communicates(name):
                name = f"ncclDevKernel_{_KERNELS.get(call.collective, 'Generic')}({name})"
        yield {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": device if kind != HOST_NODE else 1_000_000 + rank.rank,
            "tid": stream,
            "ts": _us(start),
            "dur": _us(int(ops.end_ns[index]) - start),
            "args": args,
        }


def _stream_numbers(rank: RankTrace) -> list[int]:
    """Stream ids as the source had them where they are numbers, otherwise new ones."""
    found: list[int] = []
    for index, stream in enumerate(rank.streams):
        number = _number(stream.rsplit(":", 1)[-1], index)
        while number in found:
            number += 1000
        found.append(number)
    return found


def _launch(rank: int, correlation: int, start_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1_000_000 + rank,
        "tid": 1,
        "ts": _us(start_ns),
        "dur": _us(0),
        "args": {"correlation": correlation},
    }


def metadata(call: CollectiveCall) -> dict[str, Any]:
    """Return the metadata of a call as PyTorch writes them on the kernel."""
    args: dict[str, Any] = {}
    if call.collective in FRAMEWORK_NAMES:
        args["Collective name"] = FRAMEWORK_NAMES[call.collective]
    in_nelems, out_nelems, dtype = call.in_nelems, call.out_nelems, call.dtype
    if in_nelems < 0 and call.n_bytes >= 0:
        size = element_bytes(dtype) or 1
        dtype = dtype if element_bytes(dtype) else "Byte"
        in_nelems = out_nelems = call.n_bytes // size
    if in_nelems >= 0:
        args |= {"In msg nelems": in_nelems, "Out msg nelems": out_nelems, "dtype": dtype}
    if call.group_size or call.ranks:
        args["Group size"] = call.group_size or len(call.ranks)
    if call.group:
        args["Process Group Name"] = call.group
    if call.ranks:
        args["Process Group Ranks"] = str(list(call.ranks))
    if call.sequence >= 0:
        args["Seq"] = call.sequence
    if call.peer >= 0 and call.collective in ("send", "recv"):
        args["Dst Rank" if call.collective == "send" else "Src Rank"] = call.peer
    return args
