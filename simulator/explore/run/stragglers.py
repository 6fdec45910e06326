"""Uneven steps: ranks that wait for slower ones, played over many jobs and steps of one simulated plan.

One step is simulated; its passes, the order of its schedule and what replicas wait for are then played with other durations,
all steps and replicas as arrays. Causes are sequence lengths, slow GPUs, the spread of clocks, pauses of hosts and late data.
What passes do not hold (messages between stages, reductions, the optimizer) takes as long as in the simulated step.

References
----------
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025: the causes, and the slowdown
as the time over that of a job whose operations all take the mean of their peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from simulator.analysis.critical_path import kind_of
from simulator.analysis.passes import passes_of, table_of
from simulator.answer import Result
from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.lengths import LengthMix, Lengths
from simulator.explore.run.run_request import parse_time
from simulator.parallel.mesh import Mesh
from simulator.program.op import COMMUNICATIONS
from simulator.program.program import COMPUTE
from simulator.schedules import Table, Turn, placement_of, turns
from simulator.simulation import simulate_on
from simulator.units import count_of, format_time, to_s

#: steps of replicas whose times are kept: 400 MiB
_MOST_PLAYED = 50_000_000
#: numbers that the arrays of one round hold: 256 MiB
_MOST_NUMBERS = 1 << 25
#: a job that is slower than this counts as straggling, as published
STRAGGLES = 1.1
#: rows and steps of the map by rank
_MOST_ROWS, MOST_STEPS = 64, 60


#: how often the engine is asked, while kernels become twice as slow, how long passes last; straight lines between
_N_BETWEEN = 6
#: shares of their work below which kernels are taken not to shorten a pass any more
_SHORTEST = 1.0 / 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """Why steps differ. Each is off by default."""

    #: Of the documents of a batch.
    lengths: Lengths | None = None
    #: (share of the GPUs, how many times as long their kernels take), for as long as a job runs.
    slow_gpus: tuple[float, float] = (0.0, 1.0)
    #: The same of nodes, all of whose GPUs are slow, and of nodes whose NICs are.
    slow_nodes: tuple[float, float] = (0.0, 1.0)
    slow_links: tuple[float, float] = (0.0, 1.0)
    #: Standard deviation of the GPUs' kernel times, for as long as a job runs: temperature, silicon.
    spread: float = 0.0
    #: A process stops for so long (garbage collection, a logger) once in so many steps.
    pause_s: float = 0.0
    pause_every_steps: float = 1.0
    #: Whether all processes pause in the same step, at its start.
    plans_pauses: bool = False
    #: The share of steps in which a replica's next batch comes late, and how late on average (exponential).
    stall_s: float = 0.0
    stall_share: float = 0.0

    def alone(self) -> Iterator[tuple[str, Causes]]:
        """Yield each cause that is on by its name, without the others."""
        if self.lengths is not None:
            yield "sequence lengths", Causes(lengths=self.lengths)
        if self.slow_gpus[0] > 0:
            yield "slow GPUs", Causes(slow_gpus=self.slow_gpus)
        if self.slow_nodes[0] > 0:
            yield "slow nodes", Causes(slow_nodes=self.slow_nodes)
        if self.slow_links[0] > 0:
            yield "slow links", Causes(slow_links=self.slow_links)
        if self.spread:
            yield "spread of clocks", Causes(spread=self.spread)
        if self.pause_s:
            plain = Causes(
                pause_s=self.pause_s, pause_every_steps=self.pause_every_steps, plans_pauses=self.plans_pauses
            )
            yield "planned pauses" if self.plans_pauses else "pauses of hosts", plain
        if self.stall_s:
            yield "late data", Causes(stall_s=self.stall_s, stall_share=self.stall_share)


def idle_causes(causes: Causes, n_nodes: int) -> list[str]:
    """Name causes that change nothing: a factor of one, and slow NICs of a job that uses none.

    Examples
    --------
    >>> idle_causes(Causes(slow_gpus=(0.1, 1.0), slow_links=(0.1, 2.0)), 1)
    ['--slow-gpus 0.1=1 has no effect', '--slow-links 0.1=2 has no effect: all GPUs are on one node']
    """
    found = []
    for flag in ("slow_gpus", "slow_nodes", "slow_links"):
        share, factor = getattr(causes, flag)
        said = f"--{flag.replace('_', '-')} {share:g}={factor:g} has no effect"
        if share and factor == 1.0:
            found.append(said)
        elif share and flag == "slow_links" and n_nodes == 1:
            found.append(f"{said}: all GPUs are on one node")
    return found


def parse_causes(
    lengths: str | None = None,
    *,
    is_packed: bool = True,
    slow_gpus: str | None = None,
    slow_nodes: str | None = None,
    slow_links: str | None = None,
    spread: float | None = None,
    pause: str | None = None,
    plans_pauses: bool = False,
    stall: str | None = None,
) -> Causes:
    """Read causes as the command line has them.

    Examples
    --------
    >>> parse_causes(slow_gpus="0.01=1.3", pause="200 ms/50 steps").pause_every_steps
    50.0
    """
    if plans_pauses and not pause:
        raise ConfigError("--planned-pauses says when pauses are, and there are none", hint="--pause '200 ms/50 steps'")
    if spread is not None and not 0 < spread < 1:
        raise ConfigError(f"--spread {spread:g}: a share between 0 and 1", hint="--spread 0.02")
    pause_s, pause_every_steps = _now_and_then(pause, "--pause") if pause else (0.0, 1.0)
    stall_s, stall_every = _now_and_then(stall, "--stall") if stall else (0.0, math.inf)
    causes = Causes(
        lengths=Lengths.parse(lengths, is_packed=is_packed) if lengths else None,
        slow_gpus=_share_and_factor(slow_gpus, "gpus"), slow_nodes=_share_and_factor(slow_nodes, "nodes"),
        slow_links=_share_and_factor(slow_links, "links"),
        spread=spread or 0.0, pause_s=pause_s, pause_every_steps=pause_every_steps, plans_pauses=plans_pauses,
        stall_s=stall_s, stall_share=1.0 / stall_every,
    )  # fmt: skip
    if causes == Causes():
        raise ConfigError(
            "no cause of uneven steps is given",
            hint="--lengths lognormal:600,1.2, --slow-gpus 0.01=1.3, --spread 0.02, --pause '200 ms/50 steps' or --stall '2 s/500 steps'",
        )
    return causes


#: what stands still for longer has failed, and what comes more seldom does not come
_MOST_PAUSE_S, _MOST_STEPS = 1e6, 1e12


def _now_and_then(text: str, flag: str) -> tuple[float, float]:
    """Read ``200 ms/50 steps``: seconds, and steps from one time to the next on average."""
    time, slash, often = text.partition("/")
    word = often.strip().removesuffix("steps").removesuffix("step").strip() or "1"
    if not slash or not word.replace(".", "", 1).isdigit() or float(word) < 1:
        raise ConfigError(f"{flag} {text}: a time, and once in how many steps", hint=f"{flag} '200 ms/50 steps'")
    seconds, steps = parse_time(time.strip(), flag, least_s=1e-9), float(word)
    if seconds > _MOST_PAUSE_S or steps > _MOST_STEPS:
        raise ConfigError(f"{flag} {text}: at most {_MOST_PAUSE_S:g} s, once in at most {_MOST_STEPS:g} steps")
    return seconds, steps


#: nothing that still works is slower
_MOST_FACTOR = 1_000_000


def _share_and_factor(text: str | None, what: str) -> tuple[float, float]:
    """Read ``0.01=1.3``: the share of what is slow, and how many times as long it takes."""
    if text is None:
        return 0.0, 1.0
    try:
        share, factor = map(float, text.split("="))
    except ValueError:
        share = factor = math.nan
    if not (0 < share <= 1 and 1 <= factor <= _MOST_FACTOR):
        raise ConfigError(
            f"--slow-{what} {text}: the share of them, above 0 and at most 1, and a factor from 1 to {_MOST_FACTOR:,}",
            hint=f"--slow-{what} 0.01=1.3",
        )
    return share, factor


class CauseRow(TypedDict):
    """What one cause does alone."""

    cause: str  #: In words.
    slowdown: float  #: Mean time of a step with this cause alone, over that of even steps.


class RanksRow(TypedDict):
    """What the ranks of one pipeline stage of one replica cost alone, everything else taking the mean of its peers.

    They meet in every layer, so that the slowest of them counts. Late data and planned pauses come in at the first stage; slow NICs,
    for which all ranks wait, are left out.
    """

    ranks: list[int]  #: A tensor- and context-parallel group; a single rank without these.
    stage: int  #: Pipeline stage.
    replica: int  #: Data-parallel replica.
    slowdown: float  #: Mean of ``steps``.
    steps: list[float]  #: Of each step, over the even one; the first 60 of a job.


class Straggling(TypedDict):
    """What uneven steps cost a plan."""

    iteration_time_s: float  #: Of the simulated step.
    #: Of a step in which everything takes the mean of its peers; differs where documents are shorter than the sequence.
    even_s: float
    mean_s: float  #: Of all played steps.
    p50_s: float  #: Median of the played steps.
    p95_s: float  #: Of the played steps, 5 % take longer.
    slowdown: float  #: Mean of the played steps over the even one.
    job_slowdown_p10: float  #: Slowdown that 90 % of the jobs exceed.
    job_slowdown_p90: float  #: Slowdown that 10 % of the jobs exceed.
    straggling_share: float  #: Share of the jobs that are at least 10 % slower than even ones.
    waiting_share: float  #: Share of its time that a mean replica waits for the slowest one.
    #: The simulated step over one in which every stage takes the mean of all stages: what uneven stages cost, always.
    stages_slowdown: float
    causes: list[CauseRow]  #: Each cause alone, the worst first.
    job: int  #: The job in the middle by its slowdown, which ``ranks`` are of.
    ranks: list[RanksRow]  #: By rank; where there are more than 64 groups of ranks, those that cost most.
    n_jobs: int  #: Jobs that were played.
    n_steps: int  #: Steps of each.
    seed: int  #: Of the draws.
    left_out: list[str]  #: What is taken as it is in the simulated step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Seconds of played passes, ``[job, step, replica]``: from the start of a step until a replica's last pass has ended."""

    replica_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """``[job, step]``: the slowest replica, for which the others wait at the gradients' reduction."""
        slowest: FloatArray = self.replica_s.max(axis=2)
        return slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """What was drawn of some jobs."""

    #: Seconds of every action of every stage, ``[job, step, replica]``, before replicas wait for one another.
    passes_s: list[list[FloatArray]]
    #: ``[job]``: whether a node of it has slow NICs.
    has_slow_link: BoolArray


class StepModel:
    """The passes of one step that was simulated in detail, to be played with other durations."""

    def __init__(self, result: Result, say: Callable[[str], None] = lambda _: None) -> None:
        plan = result.plan
        self.plan, self._say = plan, say
        self.table: Table = table_of(plan)
        if any(action.is_paired for row in self.table for action in row):
            raise InfeasiblePlanError(
                f"schedule {plan.schedule} runs passes in pairs, which cannot be played one by one",
                hint="use another --schedule, such as 1f1b or zb-1p",
            )
        placement = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
        self.turns: list[Turn] = turns(self.table, placement)
        self._stages = {report.rank: report.stage for report in result.memory.stages}
        self.passes_s = _passes_s(result, self.table, self._stages)
        self._known_s = {0: self.passes_s}
        #: shares of a stage's passes that compute, and that attention takes
        self.compute, self.attention = _shares(result, self._stages)
        base_s = float(self._play([[np.full(1, one) for one in row] for row in self.passes_s], 1)[0])
        self.iteration_s = result.metrics.iteration_time_s
        #: time of a step that its passes do not explain
        self.rest_s = self.iteration_s - base_s
        self._result = result
        mesh = Mesh(plan, result.topology.gpus_per_host)
        #: ``[replica, stage, rank]``
        self._ranks = np.array([
            [
                [mesh.rank(tp=t, replica=r * plan.cp + c, pp=p) for c in range(plan.cp) for t in range(plan.tp)]
                for p in range(plan.pp)
            ]
            for r in range(plan.dp)
        ])  # fmt: skip
        hosts = [result.topology.host_of(rank) for rank in range(plan.gpus)]
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        #: the node of each, where NVLink joins several the tray
        self._nodes = np.array([numbers[host] for host in hosts])[self._ranks]
        #: replicas that wait for one another in every pass
        self.coupled = [np.array(group) for group in mesh.coupled_replicas() if len(group) > 1]

    def _play(self, durations: list[list[FloatArray]], width: int) -> FloatArray:
        """Return when the last pass ends, for ``width`` sets of durations."""
        ends: dict[tuple[int, int], FloatArray] = {}
        uses = self._n_uses()
        last = np.zeros(width)
        for turn in self.turns:
            start = np.zeros(width)
            for place in turn.after:
                start = np.maximum(start, ends[place])
                uses[place] -= 1
                if not uses[place]:
                    del ends[place]
            end = start + durations[turn.stage][turn.first]
            if uses.get((turn.stage, turn.first)):
                ends[turn.stage, turn.first] = end
            last = np.maximum(last, end)
        return last

    def _n_uses(self) -> dict[tuple[int, int], int]:
        uses: dict[tuple[int, int], int] = {}
        for turn in self.turns:
            for place in turn.after:
                uses[place] = uses.get(place, 0) + 1
        return uses

    def even_stages_s(self) -> float:
        """Seconds of the step if every pass of a kind took the mean of its peers on all stages."""
        sums: dict[str, list[float]] = {}
        for row, times in zip(self.table, self.passes_s, strict=True):
            for action, time_s in zip(row, times, strict=True):
                sums.setdefault(action.kind, []).append(time_s)
        means = {key: float(np.mean(values)) for key, values in sums.items()}
        even = [[np.full(1, means[a.kind]) for a in row] for row in self.table]
        return float(self._play(even, 1)[0]) + self.rest_s

    def play(self, causes: Causes, *, n_jobs: int, n_steps: int, seed: int = 0) -> Played:
        """Play jobs: slow GPUs and clocks stay with a job, everything else is drawn anew in every step."""
        found = []
        for drawn in self._draws(causes, n_jobs, n_steps, seed):
            durations = [[self._met(one).reshape(-1) for one in row] for row in drawn.passes_s]
            shape = (len(drawn.has_slow_link), n_steps, self.plan.dp)
            played = self._play(durations, int(np.prod(shape))).reshape(shape) + self.rest_s
            if drawn.has_slow_link.any():
                played += self._slow_nics_s(causes.slow_links[1]) * drawn.has_slow_link[:, None, None]
            found.append(played)
        return Played(replica_s=np.concatenate(found))

    def _draws(self, causes: Causes, n_jobs: int, n_steps: int, seed: int) -> Iterator[_Drawn]:
        """Draw the passes of jobs, of as many at once as memory is meant to hold."""
        plan, rows = self.plan, self.table
        at_once = max(1, _MOST_NUMBERS // (sum(map(len, rows)) * n_steps * plan.dp))
        rng = np.random.default_rng(seed)
        mix = causes.lengths.mix(plan.sequence_length, rng) if causes.lengths else None
        for first in range(0, n_jobs, at_once):
            yield self._draw(causes, mix, (min(at_once, n_jobs - first), n_steps, plan.dp), rng)

    def _draw(
        self, causes: Causes, mix: LengthMix | None, shape: tuple[int, int, int], rng: np.random.Generator
    ) -> _Drawn:
        """Draw the passes of some jobs, ``[job, step, replica]``."""
        plan, rows = self.plan, self.table
        n_ranks = plan.tp * plan.cp
        slow = _gpu_factors(causes, (shape[0], shape[2], plan.pp, n_ranks), self._nodes, rng)
        full = np.ones(1), np.ones(1)
        shapes = [mix.draw(plan.micro_batch, shape, rng) if mix else full for _ in range(plan.n_micro_batches)]
        late = _Delays(causes, shape, n_ranks, [len(row) for row in rows], rng)
        passes_s = [
            [
                self._pass_s(stage, index, *shapes[max(0, action.micro_batch)], slow[:, None, :, stage])
                + late.of(stage, index) + np.zeros(shape)
                for index, action in enumerate(row)
            ]
            for stage, row in enumerate(rows)
        ]  # fmt: skip
        share = causes.slow_links[0]
        has_one = np.zeros(shape[0], bool)
        if share > 0:
            has_one = rng.random(shape[0]) < 1.0 - (1.0 - share) ** self._result.topology.n_nodes
        return _Drawn(passes_s=passes_s, has_slow_link=has_one)

    def by_ranks(self, causes: Causes, job: int, *, n_jobs: int, n_steps: int, seed: int = 0) -> list[RanksRow]:
        """Play a job of :meth:`play` anew, once for each stage: with its passes alone as they are, all others even."""
        at = job
        for drawn in self._draws(causes, n_jobs, n_steps, seed):
            if at < len(drawn.has_slow_link):
                break
            at -= len(drawn.has_slow_link)
        even, even_s = self._even(causes.lengths, seed), self.even_s(causes.lengths, seed)
        is_met = np.isin(np.arange(self.plan.dp), np.concatenate([*self.coupled, np.zeros(0)]))
        rows = []
        for stage, own in enumerate(drawn.passes_s):
            durations = list(even)
            durations[stage] = [
                np.where(is_met, np.maximum(one[at, :MOST_STEPS], mean), one[at, :MOST_STEPS]).reshape(-1)
                for one, mean in zip(own, even[stage], strict=True)
            ]
            width = min(n_steps, MOST_STEPS) * self.plan.dp
            slowdowns = (self._play(durations, width).reshape(-1, self.plan.dp) + self.rest_s) / even_s
            if self.plan.dp > 1:  # the step waits for the other replicas, too
                slowdowns = np.maximum(slowdowns, 1.0)
            rows += [
                RanksRow(
                    ranks=sorted(self._ranks[replica, stage].tolist()), stage=stage, replica=replica,
                    slowdown=float(steps.mean()), steps=steps.tolist(),
                )
                for replica, steps in enumerate(slowdowns.T)
            ]  # fmt: skip
        rows = sorted(rows, key=lambda row: -row["slowdown"])[:_MOST_ROWS]
        return sorted(rows, key=lambda row: row["ranks"])

    def _slow_nics_s(self, factor: float) -> float:
        """Return how much longer a step takes where the NICs of a node are so many times as slow: all wait for them, whichever it is."""
        result = self._result
        faults = replace(result.scenario.faults, slow_links=(("node0.nic", factor),))
        scenario = replace(result.asked, faults=faults)
        slow = simulate_on(scenario, faults.apply(result.topology), result.spec)
        return slow.metrics.iteration_time_s - self.iteration_s

    def _pass_s(
        self, stage: int, index: int, tokens: FloatArray | float, squares: FloatArray | float, slow: FloatArray
    ) -> FloatArray:
        """Seconds of a pass with these shares of its tokens and of their squares, on GPUs so many times as slow.

        Slow kernels first fill the gaps in which the GPU waits for its host, which launches as fast as ever, and fast ones widen
        them.
        """
        compute, attention = self.compute[stage], self.attention[stage]
        scaled = slow * ((compute - attention) * tokens + attention * squares)
        factor = np.maximum(_SHORTEST, scaled / compute if compute else np.ones_like(scaled))
        steps = _N_BETWEEN * np.log2(factor)
        known = range(math.floor(steps.min()), math.ceil(steps.max()) + 1)
        lasting: FloatArray = np.interp(
            factor, [2.0 ** (n / _N_BETWEEN) for n in known], [self._uniform_s(n)[stage][index] for n in known]
        )
        return lasting

    def _uniform_s(self, step: int) -> list[list[float]]:
        """Seconds of all passes, as the engine plays them where all kernels take ``2 ** (step / _N_BETWEEN)`` times as long."""
        if step not in self._known_s:
            result, factor = self._result, 2.0 ** (step / _N_BETWEEN)
            faults = result.scenario.faults
            slow = dict.fromkeys(range(self.plan.gpus), 1.0) | dict(faults.slow_ranks)
            faults = replace(faults, slow_ranks=tuple((rank, factor * one) for rank, one in slow.items()))
            self._say(f"kernels that take {factor:.2f} times as long")
            scenario = replace(result.asked, faults=faults)
            played = simulate_on(scenario, result.topology, result.spec, detail=True, say=self._say)
            self._known_s[step] = _passes_s(played, self.table, self._stages)
        return self._known_s[step]

    def even_s(self, lengths: Lengths | None = None, seed: int = 0) -> float:
        """Seconds of a step whose micro-batches all have the mean length."""
        return float(self._play(self._even(lengths, seed), 1)[0]) + self.rest_s

    def _even(self, lengths: Lengths | None, seed: int) -> list[list[FloatArray]]:
        """Seconds of the passes of such a step."""
        mix = lengths.mix(self.plan.sequence_length, np.random.default_rng(seed)) if lengths else None
        tokens, squares = mix.mean if mix else (1.0, 1.0)
        one = np.ones(1)
        return [
            [self._pass_s(stage, index, tokens, squares, one) for index in range(len(row))]
            for stage, row in enumerate(self.table)
        ]

    def _met(self, times: FloatArray) -> FloatArray:
        """Let replicas that meet inside a pass take as long as the slowest of them."""
        for group in self.coupled:
            times[..., group] = times[..., group].max(axis=-1, keepdims=True)
        return times


def _passes_s(result: Result, table: Table, stages: dict[int, int]) -> list[list[float]]:
    """Seconds of every action of every stage."""
    by_stage = {stages[rank]: one for rank, one in passes_of(result.timeline, table, stages).items()}
    found = []
    for stage, row in enumerate(table):
        own = iter(by_stage[stage])
        times: list[float] = []
        while len(times) < len(row):
            action = row[len(times)]
            if action.kind == "V":
                times.append(0.0)
                continue
            one = next(own)
            times.append(to_s(one.end_ps - one.start_ps))
        found.append(times)
    return found


def _shares(result: Result, stages: dict[int, int]) -> tuple[list[float], list[float]]:
    """Return which shares of the passes of each stage compute, and are attention."""
    n_stages = result.plan.pp
    whole, compute, attention = (np.zeros(n_stages) for _ in range(3))
    for outer, n in result.timeline.counted:
        if outer.stream != COMPUTE or outer.rank not in stages:
            continue
        for span in outer.expand():
            phase = getattr(span.op, "phase", "")
            if phase in ("forward", "backward", "recompute") and not isinstance(span.op, COMMUNICATIONS):
                compute[stages[outer.rank]] += n * (span.duration_ps - span.host_idle_ps)
                attention[stages[outer.rank]] += n * span.duration_ps * (kind_of(span.op).name == "attention")
    for rank, passes in passes_of(result.timeline, table_of(result.plan), stages).items():
        whole[stages[rank]] += sum(one.end_ps - one.start_ps for one in passes if one.kind != "O")
    compute_shares, attention_shares = (np.minimum(1.0, part / whole).tolist() for part in (compute, attention))
    return compute_shares, attention_shares


def _gpu_factors(
    causes: Causes, shape: tuple[int, int, int, int], nodes: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return ``[job, replica, stage]``: how many times as long kernels take on the slowest of a stage's ranks."""
    share, factor = causes.slow_gpus
    slow = np.ones(shape)
    if causes.spread:
        slow *= np.maximum(0.5, 1.0 + causes.spread * rng.standard_normal(shape))
    if share > 0:
        slow *= np.where(rng.random(shape) < share, factor, 1.0)
    if causes.slow_nodes[0] > 0:
        is_slow = rng.random((shape[0], nodes.max() + 1)) < causes.slow_nodes[0]
        slow *= np.where(is_slow[:, nodes], causes.slow_nodes[1], 1.0)
    slowest: FloatArray = slow.max(axis=3)
    return slowest


class _Delays:
    """What makes passes begin late: pauses of processes and data."""

    def __init__(
        self,
        causes: Causes,
        shape: tuple[int, int, int],
        n_ranks: int,
        n_actions: Sequence[int],
        rng: np.random.Generator,
    ) -> None:
        often = 1.0 / causes.pause_every_steps
        self._pause_s = causes.pause_s
        self._first = np.zeros(shape)
        self._where: list[IntArray] = []
        if causes.pause_s and causes.plans_pauses:  # all stop at once: the first pass of the first stage says it
            self._first += causes.pause_s * (rng.random(shape[:2]) < often)[:, :, None]
        elif causes.pause_s:
            for n in n_actions:
                happens = rng.random(shape) < 1.0 - (1.0 - often) ** n_ranks
                self._where.append(np.where(happens, rng.integers(n, size=shape), -1))
        if causes.stall_s:
            self._first += rng.exponential(causes.stall_s, shape) * (rng.random(shape) < causes.stall_share)

    def of(self, stage: int, index: int) -> FloatArray | float:
        """Return how late a pass begins."""
        late: FloatArray | float = self._pause_s * (self._where[stage] == index) if self._where else 0.0
        return late + self._first if stage == index == 0 else late


def straggle(
    result: Result,
    causes: Causes,
    *,
    n_jobs: int = 100,
    n_steps: int = 20,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Straggling, Played]:
    """Play a plan with uneven steps, from a result that was simulated in detail."""
    model = StepModel(result, say)
    if n_jobs * n_steps * result.plan.dp > _MOST_PLAYED:
        raise ConfigError(
            f"--histories {n_jobs}, --steps {n_steps}, {result.plan.dp} replicas: {_MOST_PLAYED:,} steps of replicas are played at most",
            hint="a hundred jobs of twenty steps tell means to a few per cent",
        )
    even_s = model.even_s(causes.lengths, seed)
    played = model.play(causes, n_jobs=n_jobs, n_steps=n_steps, seed=seed)
    rows = []
    for name, one in causes.alone():
        alone = model.play(one, n_jobs=n_jobs, n_steps=n_steps, seed=seed)
        slowdown = float(alone.step_s.mean()) / model.even_s(one.lengths, seed)
        rows.append(CauseRow(cause=name, slowdown=slowdown))
    step_s = played.step_s
    jobs = step_s.mean(axis=1) / even_s
    middle = int(np.argsort(jobs)[len(jobs) // 2])
    left_out = ["messages between stages, reductions and the optimizer", "hosts that run ahead and so hide a pause"]
    return Straggling(
        iteration_time_s=model.iteration_s, even_s=even_s, mean_s=float(step_s.mean()),
        p50_s=float(np.quantile(step_s, 0.5)), p95_s=float(np.quantile(step_s, 0.95)),
        slowdown=float(step_s.mean()) / even_s, job_slowdown_p10=float(np.quantile(jobs, 0.1)),
        job_slowdown_p90=float(np.quantile(jobs, 0.9)), straggling_share=float((jobs >= STRAGGLES).mean()),
        waiting_share=float((1.0 - played.replica_s / step_s[:, :, None]).mean()),
        stages_slowdown=model.iteration_s / model.even_stages_s(),
        causes=sorted(rows, key=lambda row: -row["slowdown"]), job=middle,
        ranks=model.by_ranks(causes, middle, n_jobs=n_jobs, n_steps=n_steps, seed=seed),
        n_jobs=n_jobs, n_steps=n_steps, seed=seed, left_out=left_out,
    ), played  # fmt: skip


def in_words(found: Straggling) -> str:
    """Say what uneven steps cost."""
    jobs, low, high = found["straggling_share"], found["job_slowdown_p10"], found["job_slowdown_p90"]
    n_jobs, n_steps = found["n_jobs"], found["n_steps"]
    among = (
        f"; {jobs:.0%} of the jobs are at least {STRAGGLES - 1:.0%} slower, 80% lie between {low:.3f} and {high:.3f}"
    )
    return (
        f"{format_time(found['mean_s'])} per step on average over {count_of(n_jobs, 'job')} of "
        f"{count_of(n_steps, 'step')}, {found['slowdown']:.3f} times the even {format_time(found['even_s'])}"
        f"{among if n_jobs > 1 else ''}; a replica waits {found['waiting_share']:.1%} of its time for the slowest"
    )
