"""Rings: every rank sends to the next; bandwidth-optimal, latency grows with the number of ranks.

References
----------
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009);
NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc`` (estimate, and structure of the latency terms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from simulator.collectives.algorithm import Algorithm, Case, Terms, by_name
from simulator.collectives.groups import Groups, Phase
from simulator.collectives.loads import Scales, Traffic
from simulator.collectives.messages import (
    Hops,
    Job,
    Nodes,
    Placed,
    by_node,
    channels_of,
    on_channels,
    pipeline,
    rotated,
)
from simulator.collectives.nccl import (
    CHAINS,
    LL,
    PROTOCOLS,
    REDUCING,
    RING_PASSES,
    SIMPLE,
    NcclQuestion,
    is_legacy,
    n_steps,
    post_us,
)
from simulator.collectives.shape import GroupShape
from simulator.collectives.table import Send, Table
from simulator.network.base import ChunkMessage, Rounds

#: bytes of one ring step that the threads of one channel move in one go under LL (512 threads x 8 B). NCCL takes a second channel from
#: twice as many for each rank on (``NCCL_LL_THREAD_THRESHOLD``), and a benchmark's broadcasts wait for each other from there on
#: (abci2, split=fit: times jump at 64, 128 and 256 KiB on 2, 4 and 8 nodes of four ranks, at twice those on nodes of eight)
LL_LINE_BYTES = 4096
#: share of the wire that is payload under LL: four bytes of flag for four of data
LL_WIRE_SHARE = 0.5
#: largest chunk of a ring step on one channel under Simple
SIMPLE_CHUNK_BYTES = 2 * 1024 * 1024
#: slices of such a chunk, which are messages of their own (NCCL, ``src/include/collectives.h``: chunks of ``NCCL_STEPS / 2`` in slices of
#: ``NCCL_STEPS / 4`` for all-reduce, all-gather and reduce-scatter)
SLICES = 2
#: payload of one slot under LL: eight lines of 512 threads, eight bytes each (``src/include/device.h``)
LL_SLOT_BYTES = 32 * 1024
#: what a node takes in before it passes it on in a chain of nodes (broadcast, reduce), on one channel, by protocol
CHAIN_CHUNK_BYTES = (LL_SLOT_BYTES, 512 * 1024, 1024 * 1024)

_LONGEST_8_BIT_RING = 8
#: rounds of a ring that are simulated before they repeat, for which many messages it is judged
REPEATED_ROUNDS = 32
_NEVER_US = 1e12


def _reduce_rounds(n: int) -> list[tuple[Send, ...]]:
    """Rank r ends with the sum of chunk r."""
    return [
        tuple(Send(source=r, target=(r + 1) % n, first=(r - step - 1) % n, reduce=True) for r in range(n))
        for step in range(n - 1)
    ]


def _gather_rounds(n: int) -> list[tuple[Send, ...]]:
    """Rank r starts with chunk r; all end with all."""
    return [tuple(Send(source=r, target=(r + 1) % n, first=(r - step) % n) for r in range(n)) for step in range(n - 1)]


def _one_round(collective: str, n: int) -> Table:
    """What everybody sends to the next in each round."""
    sends = tuple(Send(source=r, target=(r + 1) % n, first=r) for r in range(n))
    return Table(collective=collective, n_ranks=n, n_chunks=n, rounds=(sends,))


def all_reduce(n_ranks: int) -> Table:
    """Reduce-scatter around the ring, then all-gather: 2(n-1) rounds of 1/n of the bytes."""
    rounds = (*_reduce_rounds(n_ranks), *_gather_rounds(n_ranks))
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def reduce_scatter(n_ranks: int) -> Table:
    """n-1 rounds of 1/n of the bytes."""
    rounds = tuple(_reduce_rounds(n_ranks))
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """n-1 rounds of 1/n of the bytes."""
    rounds = tuple(_gather_rounds(n_ranks))
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def _chain(n: int, n_pieces: int, *, towards_root: bool) -> tuple[tuple[Send, ...], ...]:
    """Pieces one behind the other along the chain 0, 1, ... n-1, or back."""
    rounds = []
    for time in range(n - 1 + n_pieces - 1):
        sends = []
        for hop in range(n - 1):
            piece = time - hop
            if 0 <= piece < n_pieces:
                a, b = (n - 1 - hop, n - 2 - hop) if towards_root else (hop, hop + 1)
                sends.append(Send(source=a, target=b, first=piece, reduce=towards_root))
        rounds.append(tuple(sends))
    return tuple(rounds)


def broadcast(n_ranks: int, n_pieces: int = 8) -> Table:
    """Pieces of the root's buffer follow each other along the chain."""
    rounds = _chain(n_ranks, n_pieces, towards_root=False)
    return Table(collective="broadcast", n_ranks=n_ranks, n_chunks=n_pieces, rounds=rounds)


def reduce(n_ranks: int, n_pieces: int = 8) -> Table:
    """Pieces are summed along the chain towards the root."""
    rounds = _chain(n_ranks, n_pieces, towards_root=True)
    return Table(collective="reduce", n_ranks=n_ranks, n_chunks=n_pieces, rounds=rounds)


def hop_bytes(collective: str, n_ranks: int) -> float:
    """Bytes that each rank of a ring sends per byte of size."""
    return n_steps(collective, n_ranks) / n_ranks


class Ring(Algorithm):
    """NCCL's ring: several channels, each a ring that leaves and enters the nodes at another GPU."""

    name = "ring"
    has_one_pattern = True
    tables = by_name(all_reduce, all_gather, reduce_scatter, broadcast, reduce)

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """NCCL's estimate; rings of more than eight ranks do not add up 8-bit floats."""
        shape, collective, channels, figures = question.shape, question.collective, question.channels, question.figures
        n, bus, row, column = shape.n_ranks, question.bus, question.row, question.column
        if question.eight_bit_float and collective in REDUCING and n > _LONGEST_8_BIT_RING:
            return _NEVER_US + question.n_bytes
        if protocol == "ll":
            reduces = shape.n_nodes > 1 or collective in ("all_reduce", "reduce")
            bus = min(question.most_of_ll, figures.ring_ll[0 if reduces else 1] * bus)
        elif protocol == "ll128":
            share = figures.ring_ll128_alone if shape.ranks_per_node == 1 else 0.92
            bus = min(share * bus, channels.found * figures.ll128_of.get(collective, figures.ring_ll128[row][column]))
        latency_us = self._latency_us(question, protocol)
        if protocol == "simple" and collective == "all_reduce" and shape.n_nodes > 1:
            first_bytes = figures.plateau_bytes or 64 * channels.n_channels
            latency_us *= figures.plateau[min(row, 2)] if question.n_bytes / n >= first_bytes else 1.0
        return question.time_us(latency_us, bus / hop_bytes(collective, n))

    def _latency_us(self, question: NcclQuestion, protocol: str) -> float:
        shape, collective, figures = question.shape, question.collective, question.figures
        base = figures.ring.base[PROTOCOLS.index(protocol)]
        intra, inter = question.intra_us(figures.ring, protocol), question.inter_us(figures.ring, protocol)
        steps = n_steps(collective, shape.n_ranks)
        if collective in CHAINS:
            if shape.wiring == "switch" and shape.n_nodes == 1:  # all rings visit the GPUs in the same order
                return base + intra
            hop = intra if shape.n_nodes == 1 else inter
            if protocol == "simple":
                inside = figures.tree.pcie if shape.wiring == "pcie" else figures.tree.nvlink
                hop = (inside if shape.n_nodes == 1 else figures.tree.net)[SIMPLE]
            return base + steps * hop
        leaves_all = collective == "all_reduce" and shape.n_nodes > 1 and figures.leaves_every_node
        n_inter = RING_PASSES[collective] * (shape.n_nodes - (not leaves_all))
        post = post_us(shape, protocol) if shape.n_nodes > 1 and figures.posts else 0.0
        return base + (steps - n_inter) * max(intra, post) + n_inter * inter

    def terms(self, case: Case) -> Terms:
        """Steps inside and between nodes, what the threads of a channel do in each, and the bytes of the ring."""
        shape, inside, between, p = case.shape, case.inside, case.between, case.p
        n, m, n_channels = shape.n_ranks, shape.ranks_per_node, case.n_channels
        is_chain = case.collective in CHAINS
        n_inside, n_between = self.steps(case)
        latency_s, steps_s, handshakes_s = inside.ring.base_s[p], n_inside * inside.ring.hop_s[p], 0.0
        if shape.n_nodes > 1:
            message_bytes = case.n_bytes / (n * n_channels)
            latency_s += between.ring.base_s[p]
            steps_s += n_between * between.ring.hop_s[p]
            handshakes_s = n_between * case.handshake_s(message_bytes, between.rendezvous.ring_bytes)
            if is_chain:
                chunk_bytes = min(case.n_bytes / n_channels, CHAIN_CHUNK_BYTES[p])
                rate = shape.n_nics * shape.nic_bytes_per_s * between.ring.efficiency[p]
                latency_s += n_between * chunk_bytes * n_channels / rate
        if p == LL:
            n_lines = n if is_chain else n_inside + n_between
            latency_s += n_lines * min(case.n_bytes / n, LL_LINE_BYTES) / inside.line_bytes_per_s
        elif p == SIMPLE:
            chunk_bytes = min(case.n_bytes / ((1 if is_chain else n) * n_channels), SIMPLE_CHUNK_BYTES)
            latency_s += inside.tail * chunk_bytes * n_channels / (shape.nvlink_bytes_per_s * inside.ring.efficiency[p])
        traffic = hop_bytes(case.collective, n)
        share = _inside_share(shape)
        wire, lines_bytes_per_s = self._between(case)
        copied = 0.0 if is_chain else self._copied(case)
        terms = Terms(
            latency_s=latency_s,
            scales=Scales(
                inside=(traffic + copied / share) / inside.ring.efficiency[p] if m > 1 else 0.0,
                nics=traffic / wire,
                beyond=traffic,
            ),
            sent=(share, float(shape.n_nodes > 1)),
            cap_bytes_per_s=min(lines_bytes_per_s, case.sockets_bytes_per_s) / traffic,
        )
        return self._overlapped(case, terms, steps_s, handshakes_s)

    def _overlapped(self, case: Case, terms: Terms, steps_s: float, handshakes_s: float) -> Terms:
        """Add the latency of the steps to that of a price, but for what passes while bytes move.

        Under LL a step of a node moves one line per channel in any case, and NCCL takes as many channels as there are lines:
        bytes take time of their own only beyond that. Under the other protocols a part of a step may be on its way while the
        one before it is still passed on. Chains, and LL between nodes, wait for every hop. The next slice's handshake is done while the
        one before it is still on the wire.
        """
        shape, hidden_s = case.shape, 0.0
        if case.collective not in CHAINS and shape.n_nodes == 1:
            moved_bytes = case.inside.overlap[case.p] * case.n_bytes
            if case.p == LL and not is_legacy(shape):
                moved_bytes = min(case.n_bytes, case.n_channels * LL_LINE_BYTES * shape.n_ranks)
            hidden_s = min(steps_s, moved_bytes / terms.rate_bytes_per_s(shape))
        elif case.collective not in CHAINS and case.p == SIMPLE:
            hidden_s = min(handshakes_s, (1.0 - 1.0 / SLICES) * case.n_bytes / terms.rate_bytes_per_s(shape))
        return replace(terms, latency_s=terms.latency_s + steps_s + handshakes_s - hidden_s)

    def steps(self, case: Case) -> tuple[int, int]:
        """Steps within nodes and between nodes that follow one another.

        A chunk goes once around the ring in each pass, but for one hop: where that lies inside a node, the chunk has left every
        node by the end. (NCCL's estimate counts one hop between nodes less.)
        """
        n, nodes = case.shape.n_ranks, case.shape.n_nodes
        if case.collective in CHAINS:
            return (0, 0) if case.pipelined and (nodes == 1 or _has_one_channel(case)) else (n - nodes, nodes - 1)
        n_between = RING_PASSES[case.collective] * (nodes if 1 < nodes < n else nodes - 1)
        return n_steps(case.collective, n) - n_between, n_between

    def _between(self, case: Case) -> tuple[float, float]:
        """Share of the wire that payload has between nodes, and the rate that channels reach whatever the wire allows.

        What a ring under LL reaches alone is what its small slices on their way allow; others may use the wire beside them, but
        for the flags. Where the threads behind sockets are the limit, all that a NIC carries waits for them.
        """
        ring, shape, p = case.between.ring, case.shape, case.p
        share = ring.efficiency[p]
        if shape.n_nodes > 1 and _has_one_channel(case):  # and so one NIC
            return share, LL_WIRE_SHARE * shape.nic_bytes_per_s
        if p != LL or shape.n_nodes == 1 or share > LL_WIRE_SHARE or ring.socket_bytes_per_s[p] < math.inf:
            return share, math.inf
        return LL_WIRE_SHARE, share * shape.n_nics * shape.nic_bytes_per_s

    def _copied(self, case: Case) -> float:
        """Weight of the local copy of a rank's own share, which takes no link, in bytes of its NVLinks."""
        own = case.inside.copy_reduce if case.collective == "all_reduce" else case.inside.copy_gather
        whole = case.shape.node_nvlink_bytes_per_s or case.shape.nvlink_bytes_per_s
        return own / case.shape.n_ranks * case.shape.nvlink_bytes_per_s / whole

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """One byte over every hop of the rings, inside and between nodes."""
        inside = groups.inside_ring()
        if groups.regular:
            share = _inside_share(groups.shape)
            inside = Traffic(source=inside.source, target=inside.target, amount=inside.amount * share)
        return [Phase(inside, groups.node_ring())]

    def messages(self, job: Job, groups: Sequence[Sequence[int]]) -> tuple[ChunkMessage, ...]:
        """Return the messages of all channels of all groups; too many are refused before they are written down."""
        if job.collective not in CHAINS:
            job.check(n_steps(job.collective, job.shape.n_ranks) * _n_lanes(job, groups))
        return on_channels(job, groups, self._channel)

    def rounds(self, job: Job, groups: Sequence[Sequence[int]]) -> Callable[[], Rounds] | None:
        """Return what makes the rounds of all rings: whoever sends a chunk sends another one next, to the same neighbour."""
        return None if job.collective in CHAINS else partial(self._rounds, job, groups)

    def _rounds(self, job: Job, groups: Sequence[Sequence[int]]) -> Rounds:
        job.check(REPEATED_ROUNDS * _n_lanes(job, groups))
        lanes: list[ChunkMessage] = []
        before: list[int] = []
        for group in groups:
            nodes = by_node(group, job.topology.gpus_per_node)
            n_channels = channels_of(nodes)
            for channel in range(n_channels):
                first = len(lanes)
                (placed,) = self._channel(job, nodes, channel, n_channels, only_first=True)
                lanes += placed.steps()
                before += [first + (place - 1) % len(group) for place in range(len(group))]
        return Rounds(lanes=tuple(lanes), before=tuple(before), n_rounds=n_steps(job.collective, job.shape.n_ranks))

    def _channel(
        self, job: Job, nodes: Nodes, channel: int, n_channels: int, *, only_first: bool = False
    ) -> list[Placed]:
        """Place one ring of several.

        The threads of a ring take one step after the other; a chain, which is a ring from its root on, passes pieces
        on as they come. A channel is one thread block with its share of the bytes and of the links: it goes no faster
        while the bytes of another channel have not yet come as far.
        """
        order = [rank for members in nodes for rank in rotated(members, channel)]
        n = len(order)
        traffic = hop_bytes(job.collective, n)
        loads = Hops(job, nodes, channel, job.terms.scales.per(traffic))
        if job.collective in CHAINS:
            order = rotated(order, order.index(nodes[0][0]))
            n_pieces, latency_s = pipeline(job, n - 1)
            table = (broadcast if job.collective == "broadcast" else reduce)(n, n_pieces)
            cap = job.rate_bytes_per_s / n_channels
        else:
            table = _one_round(job.collective, n) if only_first else self.tables[job.collective](n)
            latency_s = job.terms.latency_s / n_steps(job.collective, n)
            cap = job.terms.cap_bytes_per_s * traffic / n_channels
        return [
            Placed(
                table=table,
                n_bytes=job.n_bytes / n_channels,
                ranks=order,
                loads=loads,
                latency_s=latency_s,
                rate_cap_bytes_per_s=cap,
                streams=job.collective in CHAINS,
            )
        ]


def _n_lanes(job: Job, groups: Sequence[Sequence[int]]) -> int:
    """Messages of one round, over all channels of all groups."""
    return sum(len(group) * channels_of(by_node(group, job.topology.gpus_per_node)) for group in groups)


def _has_one_channel(case: Case) -> bool:
    """Whether a chain is so small that NCCL runs it on one channel."""
    return case.collective in CHAINS and case.protocol == "ll" and case.n_bytes < 2 * LL_LINE_BYTES * case.shape.n_ranks


def _inside_share(shape: GroupShape) -> float:
    """Share of a GPU's hops that stay in its node, over all channels."""
    return (shape.ranks_per_node - 1) / shape.ranks_per_node if shape.n_nodes > 1 else 1.0
