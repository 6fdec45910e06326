"""What nccl-tests would report: the conditions of a benchmark on top of the price of a collective.

A benchmark issues one operation after the other without waiting, so a broadcast or reduce costs its root no
hops; and when one process drives all GPUs of a node, the host's launches bound the rate of operations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.collectives.constants import Between, Inside
from simulator.collectives.cost import constants_of, lone_time_s
from simulator.collectives.plan import Described, describe_collective
from simulator.collectives.shape import GroupShape

_VERSION = re.compile(r"nccl[_ -]?v?(\d+)[._](\d+)", re.IGNORECASE)
_PER_PROCESS = re.compile(r"nGpus (\d+)|-g (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a benchmark was run.

    Parameters
    ----------
    nccl : str or None
        Version; None where it is not known, and that of the cluster file holds.
    gpus_per_process : int
        ``-g`` (times ``-t``): GPUs that one process drives.
    """

    nccl: str | None = None
    gpus_per_process: int = 1


def conditions_of(source: str, notes: str) -> Conditions:
    """Read the conditions of a benchmark from what is said about it.

    Examples
    --------
    >>> conditions_of("results/nccl_2_18/n2.g4/all_reduce.dat", "")
    Conditions(nccl='2.18', gpus_per_process=1)
    >>> conditions_of("", "nThread 1 nGpus 8 (single process)").gpus_per_process
    8
    """
    version = _VERSION.search(source) or _VERSION.search(notes)
    per_process = _PER_PROCESS.search(notes) if "single process" in notes else None
    return Conditions(
        nccl=f"{version[1]}.{version[2]}" if version else None,
        gpus_per_process=int(per_process[1] or per_process[2]) if per_process else 1,
    )


def launch_floor_s(label: str, gpus_per_process: int, inside: Inside) -> float:
    """Least time between operations that one process can issue to all its GPUs."""
    if gpus_per_process <= 1:
        return 0.0
    return gpus_per_process * (inside.launch_grouped_s if label.startswith("p2p") else inside.launch_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTime:
    """Predicted time of one operation of a benchmark, and what was chosen."""

    time_s: float
    label: str
    described: Described


def benchmark_time_s(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    gpus_per_process: int = 1,
    constants: tuple[Inside, Between] | None = None,
) -> BenchmarkTime:
    """Predict what nccl-tests prints for a collective that has the machine for itself.

    Parameters
    ----------
    collective : str
        As in :data:`simulator.collectives.COLLECTIVES`.
    n_bytes : int
        Size as nccl-tests counts it.
    shape : GroupShape
        The communicator.
    algorithm, protocol : str, optional
        As ``NCCL_ALGO`` and ``NCCL_PROTO``.
    gpus_per_process : int
        GPUs that one process drives.
    constants : tuple, optional
        Constants to use instead of the shipped ones.
    """
    described = describe_collective(
        collective,
        n_bytes,
        shape,
        algorithm=algorithm,
        protocol=protocol,
        pipelined=True,
        constants=constants,
    )
    inside, _ = constants or constants_of(shape)
    floor_s = launch_floor_s(described.label, gpus_per_process, inside)
    time_s = max(floor_s, lone_time_s(n_bytes, shape, described.terms))
    return BenchmarkTime(time_s=time_s, label=described.label, described=described)
