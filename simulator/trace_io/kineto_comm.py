"""Collective metadata in Kineto traces: from the kernel, from record_param_comms, from Input Dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simulator.trace_io.chrome import Args
from simulator.trace_io.columns import integer
from simulator.trace_io.communication import message_bytes, operation_name
from simulator.trace_io.record import CollectiveCall, DeviceOps, HostEvents


def call_of_args(
    args: Args,
    rank_list: Callable[[object], tuple[int, ...]],
    groups: Mapping[str, tuple[int, ...]],
    source: str,
) -> CollectiveCall:
    """Read the metadata that newer PyTorch writes on kernels and on record_param_comms."""
    operation = operation_name(args.collective) if args.collective else "unknown"
    in_nelems, out_nelems = integer(args.in_nelems), integer(args.out_nelems)
    group = "" if args.group is None else str(args.group)
    ranks = rank_list(args.group_ranks) or groups.get(group, ())
    size = integer(args.group_size, 0) or len(ranks)
    if len(ranks) != size and ranks and size:
        ranks = ()
    dtype = args.dtype or ""
    peer = -1
    if operation in ("send", "recv"):
        peer = integer(args.destination_rank if operation == "send" else args.source_rank)
    return CollectiveCall(
        collective=operation,
        n_bytes=message_bytes(operation, in_nelems, out_nelems, dtype, size),
        in_nelems=in_nelems,
        out_nelems=out_nelems,
        dtype=dtype,
        group=group,
        group_size=max(size, 0),
        ranks=ranks,
        sequence=integer(args.sequence),
        peer=peer,
        source=source if in_nelems >= 0 else "",
    )


def call_of_dims(name: str, args: Args | None) -> CollectiveCall:
    """Read kind and size from an operator's name (``nccl:all_reduce``) and its input shapes."""
    operation = operation_name(name) if ":" in name else "unknown"
    if args is None:
        return CollectiveCall(collective=operation)
    dims, types = args.input_dims, args.input_type
    dtype, nelems = "", -1
    if isinstance(dims, list) and isinstance(types, list):
        for shape, kind in zip(dims, types, strict=False):
            count = elements(shape)
            if count >= 0 and isinstance(kind, str) and kind:
                dtype, nelems = kind, count
                break
    if operation == "unknown" and isinstance(args.concrete_inputs, list):
        words = [operation_name(w) for w in args.concrete_inputs if isinstance(w, str)]
        operation = next((w for w in words if w != "unknown"), operation)
    return CollectiveCall(
        collective=operation,
        n_bytes=message_bytes(operation, nelems, nelems, dtype),
        in_nelems=nelems,
        dtype=dtype if nelems >= 0 else "",
        source="Input Dims" if nelems >= 0 else "",
    )


def elements(shape: Any) -> int:
    """Elements of a shape, or of a list of shapes; -1 for scalars and anything else."""
    if not isinstance(shape, list) or not shape:
        return -1
    if all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        count = 1
        for n in shape:
            count *= n
        return count if count < 2**62 else -1
    parts = [elements(part) for part in shape]
    return sum(parts) if parts and all(part >= 0 for part in parts) else -1


def enclosing(host: HostEvents, ops: DeviceOps, described: Mapping[int, object]) -> dict[int, tuple[int, ...]]:
    """Return for each operation the described host events around its launch, innermost first.

    Ids do not help: a kernel's external id may merely repeat its correlation id, so launch time on the launching
    thread decides.
    """
    if not described:
        return {}
    by_thread: dict[int, list[int]] = {}
    for index in sorted(described):
        by_thread.setdefault(int(host.thread[index]), []).append(index)
    starts = {thread: host.start_ns[np.array(indices)] for thread, indices in by_thread.items()}
    result: dict[int, tuple[int, ...]] = {}
    for op in np.flatnonzero((ops.launch >= 0) & (ops.kind == 1)):
        launch = int(ops.launch[op])
        thread = int(host.thread[launch])
        if thread not in by_thread:
            continue
        at = int(host.start_ns[launch])
        last = int(np.searchsorted(starts[thread], at, side="right"))
        around = [i for i in by_thread[thread][max(0, last - 4) : last] if host.end_ns[i] >= at]
        if around:
            result[int(op)] = tuple(reversed(around))
    return result
