"""Parallel aggregated trees: logarithmic depth with the bytes of a ring, where every node has one GPU.

References
----------
Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv:2506.20252 (2025);
NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.collectives import binomial
from simulator.collectives.ages import LinkLatency
from simulator.collectives.algorithm import Algorithm, Case, Terms, by_name
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales
from simulator.collectives.messages import Hops, Job, Nodes, Placed, on_channels
from simulator.collectives.nccl import PROTOCOLS, SIMPLE, NcclQuestion, log_nodes
from simulator.collectives.ring import hop_bytes
from simulator.collectives.shape import GroupShape
from simulator.network.base import ChunkMessage

_LATENCY_US = LinkLatency((8.0, 8.0, 8.0), (0.0, 0.0, 4.0), (0.0, 0.0, 4.0), (0.0, 0.0, 14.0))


class Pat(Algorithm):
    """NCCL's PAT, for all-gather and reduce-scatter between nodes with one GPU each."""

    name = "pat"
    protocols = PROTOCOLS[SIMPLE:]
    has_one_pattern = True
    tables = by_name(binomial.all_gather, binomial.reduce_scatter)

    def is_enabled(self, collective: str, shape: GroupShape) -> bool:
        """It needs one GPU on each of several nodes."""
        return shape.ranks_per_node == 1 and shape.n_nodes > 1

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate."""
        latency_us = _LATENCY_US.base[SIMPLE] + 2.8 * question.shape.n_ranks
        latency_us += log_nodes(question.shape) * question.inter_us(_LATENCY_US, "simple") / 3.5
        return question.time_us(latency_us, binomial.RING_SHARE * question.bus)

    def terms(self, case: Case) -> Terms:
        """As many hops as a tree has levels, each of which hands on what a ring's does, and the bytes of a ring."""
        between = case.between
        traffic = hop_bytes(case.collective, case.shape.n_ranks)
        latency_s = case.inside.ring.base_s[SIMPLE] + between.ring.base_s[SIMPLE]
        latency_s += self.handshakes_s(case, between.rendezvous.tree_bytes)
        return Terms(
            latency_s=latency_s + log_nodes(case.shape) * between.ring.hop_s[SIMPLE],
            scales=Scales(nics=traffic / (binomial.RING_SHARE * between.ring.efficiency[SIMPLE]), beyond=traffic),
            sent=(0.0, 1.0),
        )

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """One byte from every node to the next: the bytes of the ring, taken to pass the same links."""
        return [Phase(groups.inside_ring(), groups.node_ring())]

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of all groups."""
        return on_channels(job, groups, self._channel)

    def _channel(self, job: Job, nodes: Nodes, channel: int, n_channels: int) -> list[Placed]:
        order = [members[0] for members in nodes]
        table = self.tables[job.collective](len(order))
        loads = Hops(job, nodes, channel, job.terms.scales.per(hop_bytes(job.collective, len(order))))
        latency_s = job.terms.latency_s / len(table.rounds)
        return [Placed(table=table, n_bytes=job.n_bytes, ranks=order, loads=loads, latency_s=latency_s)]
