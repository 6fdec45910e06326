"""Personalised exchange and everything around one root: all-to-all, gather, scatter, send and receive.

References
----------
Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4 (pairwise exchange).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulator.collectives.algorithm import Case, MessagesAtOnce, Terms, by_name
from simulator.collectives.constants import Messages
from simulator.collectives.groups import Groups, Phase, nothing
from simulator.collectives.loads import Scales, Traffic, combine
from simulator.collectives.nccl import PROTOCOLS, SIMPLE, NcclQuestion
from simulator.collectives.table import Send, Table
from simulator.topology.cluster_spec import SOCKETS

#: all-to-all keeps every pair up to this many; beyond, node distances are sampled evenly
_MAX_PAIRS = 32_768
#: largest message on one channel that NCCL sends under LL inside a node (``src/enqueue.cc``: ``P2P_LL_THRESHOLD``)
LL_MESSAGE_BYTES = 16384
#: messages that are under way at once there, each on a channel of its own (``src/include/device.h``: ``MAXCHANNELS``, half each way)
MOST_CHANNELS = 32


def all_to_all(n_ranks: int) -> Table:
    """n-1 rounds; in round k all send to the rank k places on. Chunk ``i * n + j`` goes from i to j."""
    n = n_ranks
    rounds = tuple(
        tuple(Send(source=r, target=(r + k) % n, first=r * n + (r + k) % n) for r in range(n)) for k in range(1, n)
    )
    return Table(collective="all_to_all", n_ranks=n, n_chunks=n * n, rounds=rounds)


def gather(n_ranks: int) -> Table:
    """All send their chunk to rank 0 at once."""
    rounds = (tuple(Send(source=r, target=0, first=r) for r in range(1, n_ranks)),)
    return Table(collective="gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def scatter(n_ranks: int) -> Table:
    """Rank 0 sends every rank its chunk at once."""
    rounds = (tuple(Send(source=0, target=r, first=r) for r in range(1, n_ranks)),)
    return Table(collective="scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def send_recv(n_ranks: int) -> Table:
    """Every rank sends its chunk to the next."""
    rounds = (tuple(Send(source=r, target=(r + 1) % n_ranks, first=r) for r in range(n_ranks)),)
    return Table(collective="send_recv", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


class Exchange(MessagesAtOnce):
    """Grouped sends and receives: NCCL has one way of running them, and posts all messages at once."""

    name = "p2p"
    protocols = PROTOCOLS[SIMPLE:]
    is_tunable = False
    tables = by_name(all_to_all, gather, scatter, send_recv)

    def estimate_us(self, question: NcclQuestion, protocol: str) -> float:
        """Nothing: there is nothing to choose."""
        return 0.0

    def terms(self, case: Case) -> Terms:
        """Posting messages to many peers overlaps with moving the bytes of earlier ones, so it bounds the rate.

        Under sockets the same threads post and copy: there it adds to the latency. Inside a node the size of a message
        decides the protocol.
        """
        n, m = case.shape.n_ranks, case.shape.ranks_per_node
        if case.collective == "send_recv":
            return _terms(case, sent=(1.0, float(n > m)), n_peers=(1, int(n > m)), message_share=1.0)
        n_senders = m if case.collective == "all_to_all" else 1
        return _terms(case, sent=((m - 1) / n, n_senders * (n - m) / n), n_peers=(m - 1, n - m), message_share=1.0 / n)

    def phases(self, collective: str, groups: Groups) -> Sequence[Phase]:
        """All messages at once."""
        if collective == "all_to_all":
            return [_all_pairs(groups)]
        if collective == "send_recv":  # every rank to the next of its group, as the send-receive test does
            source, target = groups.flat.ravel(), np.roll(groups.flat, -1, axis=1).ravel()
            return [Phase(*groups.split(source, target, np.ones(source.size)))]
        n_groups, n = groups.flat.shape
        root, other = np.repeat(groups.given[:, 0], n), groups.flat.ravel()
        source, target = (other, root) if collective == "gather" else (root, other)
        return [Phase(*groups.split(source, target, np.full(n_groups * n, 1.0 / n)))]


def _terms(case: Case, *, sent: tuple[float, float], n_peers: tuple[int, int], message_share: float) -> Terms:
    """Price messages that the busiest rank exchanges at once with peers on its node, and on others.

    Bytes are those of the busiest GPU inside, of the busiest node through its NICs, and of one message, each per byte of size.
    """
    inside, between, n_bytes = case.inside.p2p, case.between.p2p, case.n_bytes
    posting_s = max(0, n_peers[0] - 1) * inside.peer_s
    if n_peers[1]:
        posting_s += n_peers[1] * _peer_s(between, message_share * n_bytes)
        by_threads = case.shape.transport_class in SOCKETS
        efficiency = between.efficiency[1] * (between.crowd if n_peers[1] > 1 else 1.0)
        return Terms(
            latency_s=between.base_s[1] + (posting_s if by_threads else 0.0),
            scales=Scales(inside=1.0 / inside.efficiency[1], nics=1.0 / efficiency, beyond=1.0),
            sent=sent,
            cap_bytes_per_s=n_bytes / posting_s if posting_s and n_bytes and not by_threads else math.inf,
        )
    fill_s = inside.fill_s * n_bytes / (n_bytes + inside.fill_bytes)
    simple = int(message_share * n_bytes > LL_MESSAGE_BYTES)
    turns = max(1.0, n_peers[0] / MOST_CHANNELS)
    by_line_s = turns * message_share * n_bytes / case.inside.line_bytes_per_s
    return Terms(
        latency_s=inside.base_s[simple] + posting_s + (fill_s if simple else by_line_s),
        scales=Scales(inside=1.0 / inside.efficiency[simple]),
        sent=sent,
        cap_bytes_per_s=case.sockets_bytes_per_s if n_peers[0] == 1 else math.inf,
    )


def _peer_s(messages: Messages, message_bytes: float) -> float:
    """Time to post one message to a peer on another node."""
    tiny = message_bytes <= messages.inject_bytes
    handshake_s = messages.handshake_s * message_bytes / (message_bytes + messages.handshake_bytes)
    return messages.peer_s * (messages.inject_factor if tiny else 1.0) + handshake_s


def _all_pairs(groups: Groups) -> Phase:
    """``1 / n`` bytes from every rank to every other."""
    n_groups, n = groups.flat.shape
    if n_groups * n * n <= _MAX_PAIRS or groups.ranks is None:
        source, target = np.repeat(groups.flat, n, axis=1).ravel(), np.tile(groups.flat, (1, n)).ravel()
        return Phase(*groups.split(source, target, np.full(source.size, 1.0 / n)))
    ranks, m, nodes = groups.ranks, groups.shape.ranks_per_node, groups.shape.n_nodes

    def shifted(distance: int, axis: int, bytes_each: float) -> Traffic:
        target = np.roll(ranks, -distance, axis=axis).ravel()
        return Traffic(source=ranks.ravel(), target=target, amount=np.full(ranks.size, bytes_each))

    inside = [shifted(distance, 2, 1.0 / n) for distance in range(1, m)]
    n_distances = min(nodes - 1, max(1, _MAX_PAIRS // groups.flat.size))
    distances = np.unique(np.linspace(1, nodes - 1, n_distances).round().astype(int)) if nodes > 1 else np.zeros(0)
    between = [shifted(int(distance), 1, m * (nodes - 1) / n / len(distances)) for distance in distances]
    return Phase(combine(inside) if inside else nothing(), combine(between) if between else nothing())
