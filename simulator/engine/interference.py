"""Interference: compute and collectives of one rank that run at the same time slow each other down.

A compute task that shares its device with collectives keeps the smallest of their factors of its speed; a collective keeps
its own factor as long as any of its participants computes. Rates change only when a task or a collective starts or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.engine.state import Communication, RankState, Running, Stream
from simulator.network.base import NetworkModel


def compute_rate(rank: RankState) -> float:
    """Return the fraction of its speed that compute keeps beside the rank's collectives."""
    return min((factors.compute for factors in rank.collectives.values()), default=1.0)


def computes(rank: RankState, now_ps: int) -> bool:
    """Whether a rank's compute stream is at work: not where its next task still waits for the host."""
    return rank.running is not None and rank.running.since_ps <= now_ps


def settle(running: Running, rate: float, now_ps: int) -> None:
    """Book the work done at the old rate, and go on at ``rate``."""
    if now_ps > running.since_ps:
        running.left_ps = max(0, running.left_ps - round((now_ps - running.since_ps) * running.rate))
        running.since_ps = now_ps
    running.rate = rate


def change_rate(
    rank: RankState, stream: Stream, now_ps: int, schedule_end: Callable[[RankState, Stream, Running], None]
) -> None:
    """Slow down or speed up the compute task that runs on a rank now."""
    running = rank.running
    if running is None:
        return
    rate = compute_rate(rank)
    if rate != running.rate:
        settle(running, rate, now_ps)
        if running.generation:
            schedule_end(rank, stream, running)


def slow_collectives(
    rank: RankState, network: NetworkModel, in_flight: Mapping[int, Communication], now_ps: int
) -> None:
    """Scale the rank's collectives by whether any of their participants computes."""
    for handle, factors in rank.collectives.items():
        if factors.communication != 1.0:
            busy = any(computes(other, now_ps) for other, _ in in_flight[handle].participants)
            network.set_slowdown(handle, factors.communication if busy else 1.0, now_ps)
