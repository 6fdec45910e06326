"""What nccl-tests would report for a collective: the conditions of a benchmark on top of its price, and its table.

A benchmark issues one operation after the other without waiting, so a broadcast or reduce costs its root no
hops; and when one process drives all GPUs of a node, the host's launches bound the rate of operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from simulator import collectives
from simulator.collectives.constants import Between, Inside
from simulator.collectives.nccl import REDUCING
from simulator.collectives.plan import plan_collective
from simulator.collectives.shape import GroupShape, check_transport, shape_of
from simulator.collectives.table import SHARED, bus_factor
from simulator.collectives.tuner import check_choice, constants_of, describe_collective
from simulator.config import check_word
from simulator.dtypes import element_bytes
from simulator.errors import ConfigError
from simulator.network import NETWORKS, lone_flow_s
from simulator.topology.graph import Topology

#: element types by the names that nccl-tests prints
DTYPES = (
    "int8",
    "uint8",
    "fp8_e4m3",
    "fp8_e5m2",
    "half",
    "bfloat16",
    "int32",
    "uint32",
    "float",
    "int64",
    "uint64",
    "double",
)
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}


def launch_floor_s(label: str, gpus_per_process: int, inside: Inside) -> float:
    """Least time between operations that one process can issue to all its GPUs."""
    if gpus_per_process <= 1:
        return 0.0
    return gpus_per_process * (inside.launch_grouped_s if label.startswith("p2p") else inside.launch_s)


def benchmark_time_s(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    eight_bit_float: bool = False,
    gpus_per_process: int = 1,
    constants: tuple[Inside, Between] | None = None,
) -> float:
    """Predict what nccl-tests prints for a collective that has the machine for itself.

    Parameters
    ----------
    n_bytes : int
        Size as nccl-tests counts it.
    """
    constants = constants or constants_of(shape)
    described = describe_collective(
        collective, n_bytes, shape, algorithm=algorithm, protocol=protocol, eight_bit_float=eight_bit_float, pipelined=True,
        constants=constants,
    )  # fmt: skip
    floor_s = launch_floor_s(described.choice.label, gpus_per_process, constants[0])
    return max(floor_s, described.terms.lone_time_s(n_bytes, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRow:
    """What nccl-tests prints in a line of its table."""

    n_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow(PrintedRow):
    """One line of the table, and what was chosen."""

    label: str


def size_range(smallest_bytes: int, largest_bytes: int, factor: int = 2) -> tuple[int, ...]:
    """Sizes from the smallest to the largest, each ``factor`` times the one before (``-b -e -f``).

    Examples
    --------
    >>> size_range(8, 64, 2)
    (8, 16, 32, 64)
    """
    if smallest_bytes < 1 or largest_bytes < smallest_bytes or factor < 2:
        raise ConfigError(
            f"sizes from {smallest_bytes} to {largest_bytes} by a factor of {factor} make no range",
            hint="give at least 1 byte, a largest size that is not smaller, and a factor of 2 or more",
        )
    sizes, size = [], smallest_bytes
    while size <= largest_bytes:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


def benchmark_table(
    collective: str,
    topology: Topology,
    sizes_bytes: Sequence[int],
    *,
    n_gpus: int | None = None,
    dtype: str = "float",
    transport: str | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    gpus_per_process: int = 1,
    nccl: str | None = None,
    network: str = "flow",
) -> tuple[BenchmarkRow, ...]:
    """Predict the table of nccl-tests for one collective over the first GPUs of a topology.

    Parameters
    ----------
    sizes_bytes : sequence of int
        Sizes as nccl-tests counts them.
    dtype : str
        Type as nccl-tests names it, for the ``count`` column.
    """
    n_ranks = topology.n_gpus if n_gpus is None else n_gpus
    _check_names(collective=collective, type=dtype, network=network)
    check_choice(algorithm, protocol)
    check_transport(topology, transport)
    _check_sizes(topology, n_ranks, gpus_per_process)
    group = (tuple(range(n_ranks)),)
    inside, _ = constants_of(shape_of(group[0], topology, transport, nccl=nccl))
    rows = []
    for n_bytes in sizes_bytes:
        flow = plan_collective(
            collective, n_bytes, group, topology, transport=transport, algorithm=algorithm, protocol=protocol,
            eight_bit_float=dtype.startswith("fp8"), nccl=nccl, pipelined=True,
        )  # fmt: skip
        floor_s = launch_floor_s(flow.label, gpus_per_process, inside)
        time_s = max(lone_flow_s(flow, topology, network), floor_s)
        rows.append(row_of(collective, n_bytes, n_ranks, dtype=dtype, time_s=time_s, label=flow.label))
    return tuple(rows)


def _check_names(**given: str | None) -> None:
    known: Mapping[str, Collection[str]] = {
        "collective": collectives.COLLECTIVES,
        "type": DTYPES,
        "network": NETWORKS,
    }
    for what, name in given.items():
        if name:
            check_word(what, name, known[what])


def _check_sizes(topology: Topology, n_ranks: int, gpus_per_process: int) -> None:
    if n_ranks < 2:
        raise ConfigError(f"{n_ranks} GPUs: a collective needs two or more", hint="give --gpus")
    if n_ranks > topology.n_gpus:
        raise ConfigError(f"{n_ranks} GPUs asked for, {topology.name} has {topology.n_gpus}")
    if not 1 <= gpus_per_process <= topology.gpus_per_node:
        raise ConfigError(
            f"one process drives {gpus_per_process} GPUs, and a node has {topology.gpus_per_node}",
            hint=f"give 1 to {topology.gpus_per_node}",
        )


def row_of(collective: str, n_bytes: int, n_ranks: int, *, dtype: str, time_s: float, label: str) -> BenchmarkRow:
    """Return a line of the table: rates and counts as nccl-tests defines them."""
    share = n_ranks if collective in SHARED else 1
    algbw = n_bytes / time_s
    return BenchmarkRow(
        n_bytes=n_bytes,
        count=n_bytes // element_bytes(dtype) // share,
        dtype=dtype,
        redop="sum" if collective in REDUCING else "none",
        root=0 if collective in _ROOTED else -1,
        time_s=time_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * bus_factor(collective, n_ranks),
        label=label,
    )
