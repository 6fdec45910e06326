"""Played histories of a run: failures at random moments, restarts, spare nodes and their repair.

:mod:`simulator.explore.run.goodput` gives the mean in closed form; a history says how far single runs lie around it, and what the
closed form cannot: jobs that wait because every spare node is being repaired. All histories advance together, one failure each
at a time, as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.units import format_duration

#: failures in one history beyond which it is not played; a year of a job that fails every quarter of an hour has two thirds
_MOST_FAILURES = 50_000
#: histories, each with times of all its spare nodes
_MOST_PLAYED = 2_000_000
#: a link that goes down within so many seconds is the one that just did
_SAME_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureProcess:
    """What a run goes through."""

    useful_s: float  #: Iterations that count.
    work_s: float  #: Of them, between two checkpoints.
    write_s: float  #: Time that training stands still for a checkpoint.
    mtbf_s: float  #: Mean time between failures of the job, exponentially distributed.
    restart_s: float  #: From a failure to the first iteration after it, undisturbed.
    hardware_share: float = 1.0  #: Share of the failures that take a node away for repair.
    n_spares: int | None = None  #: Nodes that stand by; None for as many as are needed.
    repair_s: float = 0.0  #: Until a failed node is a spare again.
    lag_s: float = 0.0  #: From the moment that a checkpoint is taken until it counts.
    #: Share of the failures that take ``domain_nodes`` nodes at once (rack, switch, NVLink domain), and checkpoints in peers' memory.
    domain_share: float = 0.0
    domain_nodes: int = 1
    stored_every: int = 1  #: Checkpoints of which one is in storage, too; those between are lost with a domain.
    shared_every: int = 1  #: Checkpoints of which one lies beyond its node, too; those between are lost with a node.
    stalls: float = 1.0  #: How many times as long work takes for links that come and go.
    ended_every_s: tuple[
        float, ...
    ] = ()  #: From one time to the next that each link goes down for so long that the job ends.
    #: Share of its speed that a job loses while a node is missing and it goes on without; None where it waits.
    elastic_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """Seconds and counts of every history, arrays of one length."""

    #: ``waiting_s`` is spent until a node is repaired, ``lost_s`` on work that failures undid.
    total_s: FloatArray
    checkpoint_s: FloatArray
    lost_s: FloatArray
    restart_s: FloatArray
    waiting_s: FloatArray
    n_failures: IntArray

    def quantile_s(self, share: float) -> float:
        """Return the time within which this share of the histories ended."""
        return float(np.quantile(self.total_s, share))


class _Spares:
    """When each spare node of each history is free again."""

    def __init__(self, process: FailureProcess, n_histories: int) -> None:
        self._process = process
        self._free_s = np.zeros((n_histories, process.n_spares or 0))

    def wait_s(self, who: IntArray, now_s: FloatArray, is_node: BoolArray, is_domain: BoolArray) -> FloatArray:
        """Take spares for every history whose failure broke nodes; return how long each waits for the last of them."""
        process = self._process
        waits = np.zeros(len(who))
        if process.n_spares is None:
            return waits
        for n_nodes, which in ((1, is_node), (process.domain_nodes, is_domain)):
            chosen = np.flatnonzero(which)
            if n_nodes > process.n_spares:  # the broken nodes themselves must come back
                waits[chosen] = process.repair_s
                continue
            rows = who[chosen]
            order = self._free_s[rows].argsort(axis=1)[:, :n_nodes]
            waits[chosen] = np.maximum(0.0, self._free_s[rows, order[:, -1]] - now_s[chosen]) if len(rows) else 0.0
            again_s = now_s[chosen] + np.maximum(process.repair_s, waits[chosen])
            self._free_s[rows[:, None], order] = again_s[:, None]
        return waits


class _Failures:
    """What fails when, and what it takes with it."""

    def __init__(self, process: FailureProcess, n_histories: int, rng: np.random.Generator) -> None:
        self._process, self._rng = process, rng
        #: ``[link, history]``: when each link goes down first
        self._first_s = [rng.random(n_histories) * every_s for every_s in process.ended_every_s]

    def next_s(self, who: IntArray, now_s: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return how long each history has until something fails, and whether that is a link."""
        gap_s = self._rng.exponential(self._process.mtbf_s, len(who))
        is_link = np.zeros(len(who), dtype=bool)
        for first_s, every_s in zip(self._first_s, self._process.ended_every_s, strict=True):
            down_s = np.mod(first_s[who] - now_s, every_s)
            down_s[down_s < _SAME_S] += every_s  # this is the time that it is down now
            is_link |= down_s < gap_s
            gap_s = np.minimum(gap_s, down_s)
        return gap_s, is_link

    def breaks(self, is_link: BoolArray) -> tuple[BoolArray, BoolArray]:
        """Tell which failures take a node, and which take a domain; links take neither."""
        process, n = self._process, len(is_link)
        is_domain, is_node = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        if process.domain_share:
            is_domain = (self._rng.random(n) < process.domain_share) & ~is_link
        if process.n_spares is not None or process.shared_every > 1:
            is_node = (self._rng.random(n) < process.hardware_share) & ~is_domain & ~is_link
        return is_node, is_domain


def _check_extent(process: FailureProcess, n_histories: int) -> None:
    """Refuse what would take hours or gigabytes."""
    if process.useful_s > _MOST_FAILURES * process.mtbf_s:
        raise InfeasiblePlanError(
            f"--histories: a played run of {format_duration(process.useful_s)} meets {process.useful_s / process.mtbf_s:,.0f} failures "
            f"or more, and {_MOST_FAILURES:,} are played at most",
            hint="leave --histories out for the means alone, or ask about a shorter run",
        )
    most = _MOST_PLAYED // max(1, process.n_spares or 0)
    if n_histories > most:
        spare = f" with {process.n_spares:,} spare nodes" if process.n_spares else ""
        raise ConfigError(
            f"--histories {n_histories}: at most {most:,}{spare}", hint="a thousand tell quantiles to 1 %"
        )


def play_histories(process: FailureProcess, n_histories: int, seed: int = 0) -> Histories:
    """Play a run many times."""
    _check_extent(process, n_histories)
    rng = np.random.default_rng(seed)
    spares, failures = _Spares(process, n_histories), _Failures(process, n_histories, rng)
    left_s = np.full(n_histories, process.useful_s * process.stalls)
    total_s, checkpoint_s, lost_s, restart_s, waiting_s = (np.zeros(n_histories) for _ in range(5))
    n_failures = np.zeros(n_histories, dtype=np.int64)
    runs = np.ones(n_histories, dtype=bool)
    work_s = process.work_s * process.stalls
    cycle_s = work_s + process.write_s
    active = np.arange(n_histories)
    while len(active):
        gap_s, is_link = failures.next_s(active, total_s[active])
        running = runs[active]
        cycles_left = np.ceil(left_s[active] / work_s)
        need_s = np.where(running, left_s[active] + cycles_left * process.write_s, process.restart_s)
        fails = gap_s < need_s
        spent_s = np.where(fails, gap_s, need_s)
        total_s[active] += spent_s
        finished = np.floor(np.maximum(0.0, gap_s - process.lag_s) / cycle_s)
        cycles = np.where(running, np.where(fails, finished, cycles_left), 0.0)
        kept_s = np.minimum(cycles * work_s, left_s[active])
        left_s[active] -= kept_s
        checkpoint_s[active] += cycles * process.write_s
        lost_s[active] += np.where(running & fails, spent_s - kept_s - cycles * process.write_s, 0.0)
        restart_s[active] += np.where(running, 0.0, spent_s)
        n_failures[active] += fails
        failed = active[fails]
        is_node, is_domain = failures.breaks(is_link[fails])
        for hit, every in ((failed[is_node], process.shared_every), (failed[is_domain], process.stored_every)):
            n_kept = np.rint((process.useful_s * process.stalls - left_s[hit]) / work_s)
            back_s = np.mod(n_kept, every) * work_s
            left_s[hit] += back_s
            lost_s[hit] += back_s
        waits = spares.wait_s(failed, total_s[failed], is_node, is_domain)
        if process.elastic_loss is not None:  # slower instead of idle, and another restart when the node is back
            loss = np.minimum(1.0, process.elastic_loss * np.where(is_domain, process.domain_nodes, 1))
            waits = np.where(waits > 0.0, waits * loss + process.restart_s, 0.0)
        total_s[failed] += waits
        waiting_s[failed] += waits
        runs[active] = ~fails  # a failure leads to a restart, an undisturbed restart to iterations
        active = active[~running | fails]
        if len(active) and n_failures.max() > _MOST_FAILURES:
            raise InfeasiblePlanError(
                f"after {_MOST_FAILURES:,} failures a played run has not ended",
                hint="write checkpoints more often: --checkpoint-interval, or fewer GPUs",
            )
    return Histories(
        total_s=total_s, checkpoint_s=checkpoint_s, lost_s=lost_s, restart_s=restart_s, waiting_s=waiting_s,
        n_failures=n_failures,
    )  # fmt: skip


def by_component(n_failures: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Return expected failures by component, and under ``other`` what the published shares leave."""
    named = {name: n_failures * share for name, share in shares.items()}
    rest = n_failures - sum(named.values())
    return {**named, "other": rest} if named and rest > 1e-9 * n_failures else named
