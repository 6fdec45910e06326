"""Real jobs, simulated with kernels calibrated here, and single messages of theirs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Interference, run
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.timeline import Timeline
from simulator.topology.graph import Topology
from simulator.units import to_ps, to_s
from validation.jobs.calibrated import CalibratedKernels
from validation.jobs.programs import JobProgram


class _Costs:
    """Kernels as calibrated, communication from the topology; a CPU issues what it computes."""

    def __init__(self, topology: Topology, kernels: Sequence[CalibratedKernels], interference: Interference) -> None:
        self._topology = topology
        self._kernels = kernels
        self._interference = interference

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Calibrated duration, unless the program states one."""
        if kernel.shape is None:
            return to_ps(kernel.duration_s or 0.0)
        return to_ps(self._kernels[rank].duration_s(kernel.shape, self._topology.device(rank)))

    def issue_ps(self, op: Op, rank: int) -> int:
        """Nothing: the thread that issues is the one that computes."""
        return 0

    def kind(self, rank: int) -> Hashable:
        """Each rank has kernels of its own."""
        return rank

    def flow(self, op: Collective | Transfer) -> Flow:
        """What gloo does between the ranks."""
        if isinstance(op, Transfer):
            return plan_transfer(op.n_bytes, op.pairs, self._topology)
        return plan_collective(op.collective, op.n_bytes, op.groups, self._topology)

    def interference(self, op: Collective) -> Interference:
        """Communication runs on the processors that compute."""
        return self._interference


def simulate_job(job: JobProgram, topology: Topology, kernels: CalibratedKernels, *, share: float = 1.0) -> Timeline:
    """Simulate one step of a job with calibrated kernels.

    Parameters
    ----------
    job : JobProgram
    topology : Topology
        As many ranks as the job has.
    kernels : CalibratedKernels
        Of every rank; how many tensors each updates is the job's.
    share : float
        What compute and communication keep of their speed beside each other: both need the processors.
    """
    own = [replace(kernels, n_tensors=n_tensors) for n_tensors in job.n_tensors]
    return run(job.program, _Costs(topology, own, Interference(share, share)), lambda: FlowNetwork(topology))


def message_s(kind: str, n_bytes: int, topology: Topology) -> float:
    """Predicted seconds of one message by itself: a collective of all ranks, or ``p2p`` from the first to the second."""
    if kind == "p2p":
        return _alone_s(plan_transfer(n_bytes, ((0, 1),), topology), topology)
    groups = (tuple(range(topology.n_gpus)),)
    return _alone_s(plan_collective(kind, n_bytes, groups, topology), topology)


def _alone_s(flow: Flow, topology: Topology) -> float:
    network = FlowNetwork(topology)
    network.start(flow, 0)
    end_ps = 0
    while (next_ps := network.next_completion_ps()) is not None:
        end_ps = next_ps
        network.advance(next_ps)
    return to_s(end_ps)
