"""What nccl-tests would report: the conditions of a benchmark on top of the price of a collective.

A benchmark issues one operation after the other without waiting, so a broadcast or reduce costs its root no hops; and
when one process drives all GPUs of a node, the host's launches bound the rate of operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.collectives.constants import Between, Inside
from simulator.collectives.cost import Terms, constants_of, lone_time_s
from simulator.collectives.plan import Described, describe_collective
from simulator.collectives.shape import GroupShape


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
        ``-g`` (times ``-t``): GPUs that one process drives.
    constants : tuple, optional
        Constants to use instead of the shipped ones.
    """
    described = describe_collective(
        collective, n_bytes, shape, algorithm=algorithm, protocol=protocol, pipelined=True, constants=constants
    )
    time_s = lone_time_s(n_bytes, shape, described.terms)
    if gpus_per_process > 1:
        inside, _ = constants or constants_of(shape)
        grouped = described.label.startswith("p2p")
        time_s = max(time_s, gpus_per_process * (inside.launch_grouped_s if grouped else inside.launch_s))
    return BenchmarkTime(time_s=time_s, label=described.label, described=described)


def without_latency(price: Terms) -> Terms:
    """Return the same price with no start-up: what an endless stream of operations would see."""
    return replace(price, latency_s=0.0)
