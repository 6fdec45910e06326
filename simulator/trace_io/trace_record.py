"""The neutral record of a trace: what every reader returns, every writer takes, and every analysis works on.

Times are integer nanoseconds on one clock per file. Columns are NumPy arrays of one length, so that a trace of a
million events takes a few dozen megabytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]

#: larger ranks and world sizes are taken for damage
MAX_RANKS = 1 << 20
_LIMIT_US = 9.0e15
_LARGEST = 2**62
#: names of the runtime calls that launch a kernel, as a regular expression
KERNEL_LAUNCH = r"^(cuda|hip|cu)LaunchKernel"
#: kinds of device operations
COMPUTE, COMMUNICATION, COPY, HOST_NODE = 0, 1, 2, 3
#: kinds of host events
RUNTIME, OPERATOR, ANNOTATION = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """What a trace says about one communication kernel."""

    #: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``, ``gather``,
    #: ``scatter``, ``send``, ``recv``, ``send_recv``, ``barrier`` or ``unknown``.
    collective: str
    n_bytes: int = -1  #: As nccl-tests counts them; -1 where the trace does not say.
    #: Elements handed in and out on this rank; -1 where unknown.
    in_nelems: int = -1
    out_nelems: int = -1
    dtype: str = ""  #: As the trace names it.
    group: str = ""  #: Name of the process group, ``""`` where unknown.
    group_size: int = 0  #: 0 where unknown.
    ranks: tuple[int, ...] = ()  #: Global ranks of the group; empty where unknown.
    sequence: int = -1  #: Position within the group as the framework counts it; -1 where unknown.
    peer: int = -1  #: Global rank at the other end of a send or receive; -1 where it has none.
    source: str = ""


class _Rows:
    """Columns of one length."""

    __slots__: tuple[str, ...] = ()
    start_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Int64) -> Self:
        """Return what is at ``rows``, in that order."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceOps(_Rows):
    """Operations on one rank's device, ascending by start."""

    #: Half-open intervals. Shape [n].
    start_ns: Int64
    end_ns: Int64
    #: Indices into the rank's ``names`` and ``streams``. Shape [n].
    name: Int32
    stream: Int32
    #: :data:`COMPUTE`, :data:`COMMUNICATION`, :data:`COPY`, or :data:`HOST_NODE` for the host operators of formats that
    #: put hosts and devices into one graph. Shape [n].
    kind: Int8
    launch: Int32  #: Index of the host event that launched it, -1 where the trace has none. Shape [n].
    call: Int32  #: Index into the rank's ``calls`` for communication, else -1. Shape [n].
    n_bytes: Int64  #: Bytes of copies, else -1. Shape [n].


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostEvents(_Rows):
    """Events on one rank's host threads, ascending by start."""

    #: Half-open intervals; a parent encloses its children. Shape [n].
    start_ns: Int64
    end_ns: Int64
    #: Indices into the rank's ``names`` and ``threads``. Shape [n].
    name: Int32
    thread: Int32
    kind: Int8  #: :data:`RUNTIME`, :data:`OPERATOR` or :data:`ANNOTATION`. Shape [n].
    #: Ids of the format that join runtime calls to device operations and operators; -1 where absent. Shape [n].
    correlation: Int64
    external: Int64


#: of the columns of host events
HOST_TYPES = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int64)


def no_host() -> HostEvents:
    """Host events of a format that has none."""
    return HostEvents(**{name: np.empty(0, kind) for name, kind in zip(HostEvents.__slots__, HOST_TYPES, strict=True)})


class Allocations(NamedTuple):
    """What the allocator of a rank's device did, ascending by time: arrays of int64 [n].

    ``n_bytes`` is positive where memory was given out and negative where it came back; ``allocated`` and ``reserved`` are the
    totals then, -1 where the trace does not say.
    """

    time_ns: Int64
    n_bytes: Int64
    allocated: Int64
    reserved: Int64

    @property
    def in_use(self) -> Int64:
        """Bytes in use: the allocator's totals, or, where the trace has none, what was given out since it began."""
        return self.allocated if (self.allocated >= 0).any() else np.cumsum(self.n_bytes)


#: operators whose shapes tell a model's width, heads, vocabulary and batch
TELLING = re.compile(
    r"^(aten::(embedding|linear|addmm|matmul|baddbmm|scaled_dot_product_attention|_softmax|gelu|silu|rms_norm)"
    r"|flash_attn::_flash_attn_forward)$"
)


class OperatorCall(NamedTuple):
    """An operator with the shapes and the type of its inputs, where the profiler recorded them."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str


class Operator(NamedTuple):
    """What a trace says about one operator's work where it holds no time."""

    shapes: tuple[tuple[int, ...], ...] = ()  #: Of its tensor inputs.
    dtype: str = ""  #: Of the first one, as the trace names it.
    n_bytes: int = 0  #: Of all tensors in and out, each once.
    on_device: bool = False  #: Whether any of them lives on an accelerator.
    work: int = -1  #: Number of the communication that it issues or, for a wait, waits for; -1 for anything else.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step as the host marked it; ``end_ns`` of the last one may cut its GPU work short.

    ``on_device`` says that the window was marked on the device's timeline instead, ``work_end_ns`` when its last kernel
    ended where that is known otherwise than from launches (-1 elsewhere).
    """

    number: int
    start_ns: int
    end_ns: int
    name: str = ""
    on_device: bool = False
    work_end_ns: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A recorded ordering between streams or of the host behind a stream."""

    #: When the host was in the call.
    start_ns: int
    end_ns: int
    kind: str  #: ``event``, ``stream``, ``device`` or ``stream_wait``.
    #: Index into ``streams`` of the stream that waits (``stream_wait``) or is waited for, -1 where unknown.
    stream: int = -1
    on_stream: int = -1  #: The stream whose event is waited for, -1 where unknown.
    record_ns: int = -1  #: Host time of the event record that is waited for, -1 where unknown.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace:
    """Everything one rank recorded."""

    rank: int  #: Global rank.
    world_size: int = 0  #: Ranks of the run as this rank knows it, 0 where it does not say.
    #: Tables that the columns index.
    names: tuple[str, ...]
    streams: tuple[str, ...]
    threads: tuple[str, ...] = ()
    ops: DeviceOps  #: Kernels and copies; for a run without accelerator the leaf operators of its threads.
    host: HostEvents = field(default_factory=no_host)  #: Runtime calls, operators and annotations; may be empty.
    calls: tuple[CollectiveCall, ...] = ()  #: Metadata of the communication kernels.
    steps: tuple[Step, ...] = ()  #: Ascending; empty where nothing marks them.
    syncs: tuple[Sync, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: Process group name -> global ranks.
    #: Device operations that must have ended before each one starts, where the format holds them (Chakra).
    dependencies: tuple[tuple[int, ...], ...] | None = None
    #: One per device operation, for formats without times (execution traces); empty for all others.
    operators: tuple[Operator, ...] = ()
    device: str = ""  #: Name of the accelerator, ``""`` where unknown.
    epoch_ns: int = 0  #: Wall clock of time 0.
    source: str = ""  #: File it came from.
    notes: tuple[str, ...] = ()  #: What the reader had to assume, skip or repair.
    cut: bool = False  #: Whether the file ended early.
    memory: Allocations | None = None  #: Where the profiler recorded them.
    #: How often operators that show the sizes of a model were called, by their shapes; empty where none were recorded.
    operator_calls: Mapping[OperatorCall, int] = field(default_factory=dict)

    @property
    def has_launches(self) -> bool:
        """Whether the host's launch of any operation is known."""
        return bool((self.ops.launch >= 0).any())

    def launched_ns(self, unknown: Int64 | int) -> Int64:
        """Return when the host launched each operation, and ``unknown`` where that is not known."""
        launch = self.ops.launch
        times = np.broadcast_to(np.asarray(unknown, np.int64), launch.shape).copy()
        known = launch >= 0
        times[known] = self.host.start_ns[launch[known]]
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds that every pipeline stage spent per micro-batch, without a timeline."""

    #: ``[rank][iteration][micro_batch]``.
    forward_s: tuple[tuple[tuple[float, ...], ...], ...]
    backward_s: tuple[tuple[tuple[float, ...], ...], ...]
    load_s: tuple[tuple[tuple[float, ...], ...], ...] = ()  #: The same for input loading; empty where unknown.
    iteration_s: tuple[tuple[float, ...], ...]  #: ``[rank][iteration]``, as measured around the whole step.
    #: Of every iteration, what it takes before and behind the pipeline; empty where unknown.
    rest_s: tuple[float, ...] = ()
    #: Degrees.
    dp: int = 1
    pp: int = 1
    tp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A whole trace: its ranks in ascending order and what was found out about the run."""

    format: str  #: Name of the reader.
    ranks: tuple[RankTrace, ...]  #: Those that were recorded.
    world_size: int  #: Ranks of the run, recorded or not.
    #: Degrees ``dp``, ``pp``, ``tp`` where the format states them.
    layout: Mapping[str, int] = field(default_factory=dict)
    stage_of: Mapping[int, int] = field(default_factory=dict)  #: Rank -> pipeline stage, where the format states it.
    stage_times: StageTimes | None = None  #: For formats that hold durations only.
    notes: tuple[str, ...] = ()
    common_clock: bool = False  #: Whether all ranks' times are on one clock, so that there is nothing to align.

    @property
    def n_ops(self) -> int:
        """Device operations over all ranks."""
        return sum(len(rank.ops) for rank in self.ranks)

    @property
    def n_host_events(self) -> int:
        """Host events over all ranks."""
        return sum(len(rank.host) for rank in self.ranks)


class Names:
    """Interns strings to indices while columns are built."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        self.index = {text: place for place, text in enumerate(known)}

    def __call__(self, text: str) -> int:
        """Return the index of ``text``, adding it if it is new."""
        found = self.index.get(text)
        if found is None:
            clean = text if text.isascii() else text.encode("utf-8", "replace").decode()
            if clean != text:
                return self(clean)
            found = self.index[text] = len(self.index)
        return found

    @property
    def table(self) -> tuple[str, ...]:
        """All strings, by index."""
        return tuple(self.index)


class OpRow(NamedTuple):
    """One device operation of a format whose rows are few enough to be objects for a while."""

    start_ns: int
    end_ns: int
    name: str
    stream: str
    kind: int
    call: CollectiveCall | None = None
    n_bytes: int = -1


class Columns(NamedTuple):
    """Rows as columns: the fields of a :class:`RankTrace` that they fill."""

    ops: DeviceOps
    calls: tuple[CollectiveCall, ...]
    names: tuple[str, ...]
    streams: tuple[str, ...]


def columns_of(rows: Sequence[OpRow], names: Names | None = None, *, streams: Sequence[str] = ()) -> Columns:
    """Turn rows, ascending by start, into columns."""
    table, lanes = names or Names(), Names(streams)
    is_call = np.array([row.call is not None for row in rows], bool)
    ops = DeviceOps(
        start_ns=np.array([row.start_ns for row in rows], np.int64),
        end_ns=np.array([row.end_ns for row in rows], np.int64),
        name=np.array([table(row.name) for row in rows], np.int32),
        stream=np.array([lanes(row.stream) for row in rows], np.int32),
        kind=np.array([row.kind for row in rows], np.int8),
        launch=np.full(len(rows), -1, np.int32),
        call=np.where(is_call, np.cumsum(is_call) - 1, -1).astype(np.int32),
        n_bytes=np.array([row.n_bytes for row in rows], np.int64),
    )
    return Columns(ops, tuple(row.call for row in rows if row.call is not None), table.table, lanes.table)


def join_launches(correlation: Int64, host: HostEvents) -> Int32:
    """Return for each correlation id the runtime call that carries it, -1 where there is none.

    Several operations may share one launch: a CUDA graph starts hundreds.
    """
    runtime = np.flatnonzero((host.kind == RUNTIME) & (host.correlation >= 0))
    result = np.full(len(correlation), -1, np.int32)
    if not len(runtime) or not len(correlation):
        return result
    ids = host.correlation[runtime]
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], correlation), len(ids) - 1)
    candidate = runtime[order[place]]
    hit = host.correlation[candidate] == correlation
    result[hit] = candidate[hit]
    return result


def number(value: object) -> float | None:
    """Read a number, also from text; None where it is none, not finite, or beyond what times in microseconds can be."""
    if type(value) is float or type(value) is int:
        result = value
    elif isinstance(value, str):
        try:
            result = float(value)
        except ValueError:
            return None
    else:
        return None
    return float(result) if -_LIMIT_US < result < _LIMIT_US else None


def integer(value: object, default: int = -1) -> int:
    """Read an integer, also from text or a whole float; ``default`` where it is none or does not fit 62 bits.

    Examples
    --------
    >>> integer("42"), integer(7.0), integer("x"), integer(None, 0)
    (42, 7, -1, 0)
    """
    if type(value) is int:
        result = value
    elif isinstance(value, str):
        try:
            result = int(value)
        except ValueError:
            return default
    elif isinstance(value, float) and math.isfinite(value):
        result = int(value)
    else:
        return default
    return result if -_LARGEST < result < _LARGEST else default


def rank_tuple(value: object) -> tuple[int, ...]:
    """Return a list of ranks as a tuple, empty where it is none."""
    known = isinstance(value, list) and len(value) <= MAX_RANKS
    ranks = value if known and isinstance(value, list) else []
    return tuple(ranks) if all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks) else ()
