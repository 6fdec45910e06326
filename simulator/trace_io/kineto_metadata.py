"""The metadata on events of Kineto traces, in both directions: what events say of collectives, and how that is written.

:class:`Args` is the one table: readers decode into it, the writer takes its keys from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from simulator.dtypes import element_bytes
from simulator.trace_io.collective_names import FRAMEWORK_NAMES, message_bytes, operation_name
from simulator.trace_io.json_stream import Listed, clean
from simulator.trace_io.trace_record import CollectiveCall, integer, rank_tuple

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that anything here reads; all others are skipped while decoding."""

    stream: Number = None
    device: Number = None
    correlation: Number = None
    external_id: Number = msgspec.field(default=None, name="External id")
    external_id_2021: Number = msgspec.field(default=None, name="external id")
    bytes: Number = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_nelems: Number = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Number = msgspec.field(default=None, name="Out msg nelems")
    group_size: Number = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: Number = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Number = msgspec.field(default=None, name="Seq")
    source_rank: Number = msgspec.field(default=None, name="Src Rank")
    destination_rank: Number = msgspec.field(default=None, name="Dst Rank")
    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    input_type: Any = msgspec.field(default=None, name="Input type")
    concrete_inputs: Any = msgspec.field(default=None, name="Concrete Inputs")
    allocated_by: Number = msgspec.field(default=None, name="Bytes")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    total_allocated: Number = msgspec.field(default=None, name="Total Allocated")
    total_reserved: Number = msgspec.field(default=None, name="Total Reserved")
    wait_on_stream: Number = None
    wait_on_record: Number = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class Event(msgspec.Struct, gc=False):
    """One trace event, as far as anything here reads it."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


_EVENT_FIELDS = msgspec.structs.fields(Event)[:-1]
_ARGS_FIELDS = msgspec.structs.fields(Args)
#: field of :class:`Args` -> key in a trace
KEY = {spec.name: spec.encode_name for spec in _ARGS_FIELDS}


def to_event(value: object) -> Event | None:
    """Turn a decoded object into an Event, dropping fields of the wrong type; None if it is no object."""
    if not isinstance(value, dict):
        return None
    event = Event()
    _fill(event, _EVENT_FIELDS, value)
    args = value.get("args")
    if isinstance(args, dict):
        event.args = Args()
        _fill(event.args, _ARGS_FIELDS, args)
    return event


def _fill(target: Event | Args, fields: Sequence[msgspec.structs.FieldInfo], values: Mapping[str, Any]) -> None:
    for spec in fields:
        if spec.encode_name in values and _fits(values[spec.encode_name], spec.type):
            setattr(target, spec.name, clean(values[spec.encode_name]))


def _fits(value: object, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(value, bool):
        return False
    return isinstance(value, str) or (kind == Number and isinstance(value, int | float))


EVENTS = Listed(
    "traceEvents", Event, to_event, "a Kineto trace is an object with 'traceEvents', or a bare list of events"
)


def rank_list(value: object) -> tuple[int, ...]:
    """Read ranks from a list or from the text of one; empty where the text was cut (``...``) or is malformed.

    Examples
    --------
    >>> rank_list("[0, 4, 8]"), rank_list([1, 2]), rank_list("[0, 1, ...]")
    ((0, 4, 8), (1, 2), ())
    """
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\[[\d\s,]*\]\s*", value):
            return ()
        value = [int(word) for word in re.findall(r"\d{1,9}", value)]
    return rank_tuple(value)


def call_of_args(args: Args, groups: Mapping[str, tuple[int, ...]], source: str) -> CollectiveCall:
    """Read the metadata that newer PyTorch writes on kernels and on record_param_comms."""
    operation = operation_name(args.collective) if args.collective else "unknown"
    in_nelems, out_nelems = integer(args.in_nelems), integer(args.out_nelems)
    group = "" if args.group is None else str(args.group)
    ranks = rank_list(args.group_ranks) or groups.get(group, ())
    size = integer(args.group_size, 0) or len(ranks)
    peer = {"send": args.destination_rank, "recv": args.source_rank}.get(operation)
    return CollectiveCall(
        collective=operation, n_bytes=message_bytes(operation, in_nelems, out_nelems, args.dtype or "", size),
        in_nelems=in_nelems, out_nelems=out_nelems, dtype=args.dtype or "", group=group, group_size=max(size, 0),
        ranks=ranks if len(ranks) == size else (), sequence=integer(args.sequence), peer=integer(peer),
        source=source if in_nelems >= 0 else "",
    )  # fmt: skip


def call_of_dims(name: str, args: Args | None) -> CollectiveCall:
    """Read kind and size from an operator's name (``nccl:all_reduce``) and its input shapes."""
    operation = operation_name(name) if ":" in name else "unknown"
    if args is None:
        return CollectiveCall(collective=operation)
    dtype, nelems = "", -1
    if isinstance(args.input_dims, list) and isinstance(args.input_type, list):
        for shape, kind in zip(args.input_dims, args.input_type, strict=False):
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
        dtype=dtype,
        source="Input Dims" if nelems >= 0 else "",
    )


def elements(shape: Any) -> int:
    """Elements of a shape, or of a list of shapes; -1 for scalars and anything else."""
    if not isinstance(shape, list) or not shape:
        return -1
    if all(type(n) is int and n >= 0 for n in shape):
        count = 1
        for n in shape:
            count *= n
        return count if count < 2**62 else -1
    parts = [elements(part) for part in shape]
    return sum(parts) if all(part >= 0 for part in parts) else -1


def metadata(call: CollectiveCall) -> dict[str, Any]:
    """Return the metadata of a call as PyTorch writes them on the kernel."""
    in_nelems, out_nelems, dtype = call.in_nelems, call.out_nelems, call.dtype
    if in_nelems < 0 and call.n_bytes >= 0:
        dtype = dtype if element_bytes(dtype) else "Byte"
        in_nelems = out_nelems = call.n_bytes // element_bytes(dtype)
    sized = in_nelems >= 0
    words = FRAMEWORK_NAMES.get(call.collective)
    size = call.group_size or len(call.ranks)
    said: dict[str, object] = {
        "collective": words[0] if words else None,
        "in_nelems": in_nelems if sized else None,
        "out_nelems": out_nelems if sized else None,
        "dtype": dtype if sized else None,
        "group_size": size or None,
        "group": call.group or None,
        "group_ranks": str(list(call.ranks)) if call.ranks else None,
        "sequence": call.sequence if call.sequence >= 0 else None,
        "destination_rank": call.peer if call.peer >= 0 and call.collective == "send" else None,
        "source_rank": call.peer if call.peer >= 0 and call.collective == "recv" else None,
    }
    return {KEY[name]: value for name, value in said.items() if value is not None}
