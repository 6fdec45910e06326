"""Costs in whole units of time, under which the makespan of a pipeline can be counted by hand."""

from __future__ import annotations

from simulator.engine import Interference
from simulator.network.base import Flow
from simulator.program.op import Transfer

FORWARD_PS, BACKWARD_PS = 1000, 2000


class NoLinks:
    links = ()


class UnitCosts:
    """Every layer's forward takes 1000 ps, its backward 2000 ps, a message as long as is said; other communication and hosts are free."""

    def __init__(self, message_ps=0):
        self.message_ps = message_ps

    def kind(self, rank):
        return 0

    def kernel_ps(self, kernel, rank):
        if kernel.shape.kernel_pass in ("dgrad", "wgrad"):
            return BACKWARD_PS // 2
        return FORWARD_PS if kernel.phase == "forward" else 0

    def issue_ps(self, op, rank):
        return 0

    def flow(self, op):
        return Flow(latency_s=self.message_ps * 1e-12 if isinstance(op, Transfer) else 0.0, n_bytes=0.0)

    def interference(self, op):
        return Interference()
