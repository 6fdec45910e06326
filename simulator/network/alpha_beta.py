"""The classical cost model: latency plus bytes over bandwidth, each flow as if it were alone."""

from __future__ import annotations

from typing import ClassVar

from simulator.network.flow import FlowNetwork


class AlphaBetaNetwork(FlowNetwork):
    """NetworkModel without contention: a flow takes ``latency + n_bytes / rate`` whatever else is in flight.

    Links still bound the rate of each flow; only sharing between flows is left out. Cheap, and the reference
    against which contention shows.

    References
    ----------
    Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
    """

    contends: ClassVar[bool] = False
    plays_others: ClassVar[bool] = False
