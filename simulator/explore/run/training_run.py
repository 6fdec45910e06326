"""From one iteration to a training run: days, GPU hours, cost, energy, and what checkpoints and failures add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.answer import Answer
from simulator.errors import ConfigError
from simulator.explore.run.checkpoint_policy import Policy
from simulator.explore.run.energy import (
    J_PER_KWH,
    PowerModel,
    Price,
    energy_kwh,
    failure_rates,
    power_model,
    price_of,
)
from simulator.explore.run.goodput import (
    Checkpoint,
    RunTime,
    daly_interval_s,
    expected_run,
    young_interval_s,
)
from simulator.explore.run.histories import FailureProcess, by_component, play_histories
from simulator.explore.run.placement import nodes_of_domain
from simulator.explore.run.restarts import RestartSeconds, in_words, mean_restart, restart_of, total_s
from simulator.explore.run.run_form import PlayedRuns, RunCheckpoint, RunEnergy, RunFailures, RunSeconds, TrainingRun
from simulator.explore.run.run_request import LinksInRun, Mtbf, RunRequest, parse_mtbf, stated_mtbf
from simulator.explore.run.shared_cluster import ContendingJob
from simulator.explore.run.shared_storage import write_factor
from simulator.plan import ParallelPlan
from simulator.plan.rank_order import data_parallel_share
from simulator.topology import Topology
from simulator.topology.operation_spec import operation_defaults
from simulator.topology.storage import total_rate_bytes_per_s
from simulator.units import S_PER_DAY, S_PER_HOUR, count_of, format_bytes, format_duration

#: checkpoints in peers' memory per one in storage where nothing is said to take a node and its peer at once
_SELDOM = 100


def whole_run(
    request: RunRequest,
    answer: Answer,
    plan: ParallelPlan,
    topology: Topology,
    policy: Policy,
) -> TrainingRun:
    """Return what a run takes: ``whole_run`` of the documented answer.

    Parameters
    ----------
    policy : Policy
        How checkpoints are taken.

    Raises
    ------
    InfeasiblePlanError
        If failures are so frequent that the run never ends.
    """
    iteration_s = float(answer["iteration_time_s"])
    n_iterations = request.n_iterations(plan.global_batch * plan.sequence_length)
    run = _operated(request, plan, topology, policy, n_iterations, iteration_s)
    time, low, high = (
        _expected(run, n_iterations, seconds)
        for seconds in (iteration_s, answer["confidence"]["low_s"], answer["confidence"]["high_s"])
    )
    power = power_model(topology, pue=request.pue, kg_co2_per_kwh=request.kg_co2_per_kwh)
    bill = _Bill(
        n_gpus=plan.gpus, power=power, gpu_w=power.gpu_w(answer["breakdown"]), price=price_of(topology, request.price)
    )
    n_samples = n_iterations * plan.global_batch
    n_tokens = n_samples * plan.sequence_length
    stalled_s = time.useful_s - n_iterations * iteration_s
    assumptions = (*run.assumptions, *_power_assumptions(power, bill.price))
    return {
        "tokens": n_tokens, "samples": n_samples, "iterations": n_iterations,
        "total_s": time.total_s, "days": time.total_s / S_PER_DAY, "low_days": low.total_s / S_PER_DAY,
        "high_days": high.total_s / S_PER_DAY, "goodput": (time.useful_s - stalled_s) / time.total_s,
        "time": RunSeconds(
            useful_s=time.useful_s - stalled_s, stalled_s=stalled_s, checkpoint_s=time.checkpoint_s, lost_s=time.lost_s,
            restart_s=time.restart_s),
        "gpu_hours": bill.gpu_hours(time.total_s), "cost": bill.cost(time.total_s),
        "currency": bill.price.currency if bill.price else "",
        "energy": _energy(bill, (time, low, high), n_tokens),
        "checkpoint": _checkpoint(run, iteration_s, time.n_checkpoints),
        "failures": _failures(run, time.n_failures),
        "played": _played(request, run.process, bill),
        "assumptions": [{"what": what, "value": value, "source": source} for what, value, source in assumptions],
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bill:
    """What time costs in money and energy."""

    n_gpus: int
    power: PowerModel
    gpu_w: float  #: Mean power of a board during iterations.
    price: Price | None

    def gpu_hours(self, total_s: float) -> float:
        """Return GPUs times hours."""
        return self.n_gpus * total_s / S_PER_HOUR

    def cost(self, total_s: float) -> float | None:
        """Return the price of the GPU hours; None without a price."""
        return self.gpu_hours(total_s) * self.price.gpu_hour if self.price else None

    def kwh(self, running_s: float, total_s: float) -> float:
        """Return the building's energy: boards run while iterations do and wait otherwise; nodes and building always draw."""
        boards_kwh = energy_kwh(self.gpu_w, running_s) + energy_kwh(self.power.idle_w, total_s - running_s)
        return self.n_gpus * (boards_kwh + energy_kwh(self.power.host_w, total_s)) * self.power.pue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operated:
    """How a run is operated."""

    process: FailureProcess
    policy: Policy  #: Its checkpoint with the share of those in storage.
    per_checkpoint: int
    mtbf: Mtbf
    restart: RestartSeconds
    assumptions: tuple[tuple[str, str, str], ...]


def _operated(
    request: RunRequest, plan: ParallelPlan, topology: Topology, policy: Policy, n_iterations: int, iteration_s: float
) -> _Operated:
    """Fill in what the request leaves open: rate of failures, checkpoints, restarts."""
    checkpoint, write_source = policy.checkpoint, policy.checkpoint.source
    if request.write_s is not None:
        checkpoint, write_source = replace(checkpoint, write_s=request.write_s), "--checkpoint-time"
    mtbf = _mtbf(request, topology)
    mtbf_s = mtbf.job_s(topology.n_gpus, topology.n_hosts)
    any_s = _with_links_s(mtbf_s, request.links.ended_every_s)
    phases, restart_source = restart_of(request.restart, topology)
    random_share = any_s / mtbf_s if math.isfinite(mtbf_s) else 0.0  # links take nothing with them
    node_share = random_share * (1.0 - request.domain_share) * mtbf.hardware_share
    load_s = _read_s(policy, random_share * request.domain_share, node_share)
    restart = mean_restart(phases, load_s=load_s, hardware_share=random_share * mtbf.hardware_share)
    per_checkpoint, interval_source = _interval(
        request, n_iterations, iteration_s, checkpoint.write_s, any_s, least_s=policy.lag_s
    )
    shared_every, stored_every = _every(request, policy, mtbf, per_checkpoint * iteration_s, mtbf_s)
    checkpoint = _with_tiers(policy, checkpoint, shared_every, stored_every)
    process = FailureProcess(
        useful_s=n_iterations * iteration_s, work_s=iteration_s * per_checkpoint, write_s=checkpoint.write_s, mtbf_s=mtbf_s,
        restart_s=total_s(restart), hardware_share=mtbf.hardware_share, n_spares=request.n_spares,
        repair_s=request.repair_s, lag_s=policy.lag_s, domain_share=request.domain_share,
        domain_nodes=nodes_of_domain(request.domain_nodes, topology), shared_every=shared_every, stored_every=stored_every,
        stalls=request.links.stalls, ended_every_s=request.links.ended_every_s,
        elastic_loss=data_parallel_share(plan, topology.gpus_per_host) if request.is_elastic else None,
    )  # fmt: skip
    assumptions = (
        ("mean time between failures", _mtbf_words(mtbf, mtbf_s), mtbf.source),
        *_link_assumptions(request.links),
        ("restart", f"{format_duration(process.restart_s)}: {in_words(restart)}", restart_source),
        ("checkpoint", f"{format_bytes(checkpoint.n_bytes)} in {format_duration(checkpoint.write_s)}", write_source),
        ("checkpoint interval", count_of(per_checkpoint, "iteration"), interval_source),
    )
    return _Operated(
        process=process, policy=replace(policy, checkpoint=checkpoint), per_checkpoint=per_checkpoint, mtbf=mtbf,
        restart=restart, assumptions=assumptions,
    )  # fmt: skip


def written_beside(
    checkpoint: Checkpoint, others: Sequence[ContendingJob], request: RunRequest, topology: Topology
) -> Checkpoint:
    """Return a checkpoint that takes longer for other jobs' checkpoints, which fail and write as often as Daly says."""
    mtbf = _mtbf(request, topology)
    rate = total_rate_bytes_per_s(topology.storage, writes=True) if topology.storage is not None else math.inf
    if math.isinf(rate) or not others:
        return checkpoint
    writers = []
    for job in others:
        write_s = job["checkpoint_s"]
        work_s = daly_interval_s(write_s, mtbf.job_s(job["gpus"], len(job["nodes"]) * topology.node.hosts))
        writers.append((job["checkpoint_bytes"] / write_s, write_s / (work_s + write_s)))
    factor = write_factor(rate, checkpoint.n_bytes / checkpoint.write_s, writers)
    return replace(checkpoint, write_s=factor * checkpoint.write_s)


def _with_links_s(mtbf_s: float, ended_every_s: Sequence[float]) -> float:
    """Return the mean time between failures where links end the job, too, as if they went down at random."""
    rate = 1.0 / mtbf_s + sum(1.0 / every_s for every_s in ended_every_s)
    return 1.0 / rate if rate else math.inf


def _link_assumptions(links: LinksInRun) -> list[tuple[str, str, str]]:
    found = []
    if links.stalls > 1.0:
        found.append(
            ("links that come and go", f"steps of {links.stalls:.4f} times the length on average", "--flapping")
        )
    if links.ended_every_s:
        every = ", ".join(f"every {format_duration(every_s)}" for every_s in links.ended_every_s)
        found.append(("links that end the job", f"{every}, each a failure with its restart", "--flapping"))
    return found


def _expected(run: _Operated, n_iterations: int, iteration_s: float) -> RunTime:
    """Return the expected time of the run where an iteration takes so long while all links are up."""
    process = run.process
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    random_share = mtbf_s / process.mtbf_s if math.isfinite(process.mtbf_s) else 0.0
    domain_share = random_share * process.domain_share
    node_share = random_share * (1.0 - process.domain_share) * process.hardware_share
    return expected_run(
        n_iterations, iteration_s * process.stalls, iterations_per_checkpoint=run.per_checkpoint, write_s=process.write_s,
        mtbf_s=mtbf_s, restart_s=process.restart_s, lag_s=process.lag_s, domain_share=domain_share,
        stored_every=process.stored_every, hardware_share=node_share / (1.0 - domain_share) if domain_share < 1.0 else 0.0,
        shared_every=process.shared_every,
    )  # fmt: skip


def _power_assumptions(power: PowerModel, price: Price | None) -> list[tuple[str, str, str]]:
    found = [
        ("power of a GPU", _power_words(power), power.sources["gpu"]),
        ("power of its share of the node", f"{power.host_w:.4g} W", power.sources["host"]),
        ("PUE", f"{power.pue:.4g}", power.sources["pue"]),
        ("emissions", f"{power.kg_co2_per_kwh:.4g} kg CO2 per kWh", power.sources["grid"]),
    ]
    if price:
        found.append(("price", f"{price.gpu_hour:g} {price.currency}".strip() + " per GPU hour", price.source))
    return found


def _energy(bill: _Bill, times: tuple[RunTime, RunTime, RunTime], n_tokens: int) -> RunEnergy:
    """Return what the run draws, and for a token at both ends of the intervals of time and power, which are independent."""
    kwh, low_kwh, high_kwh = (bill.kwh(time.useful_s + time.lost_s, time.total_s) for time in times)
    power, deviation = bill.power, operation_defaults().power.deviation
    j_per_token = kwh * J_PER_KWH / n_tokens if n_tokens else 0.0
    return {
        "kwh": kwh, "gpu_w": bill.gpu_w, "host_w_per_gpu": power.host_w, "pue": power.pue,
        "mean_w": kwh * J_PER_KWH / times[0].total_s, "j_per_token": j_per_token,
        "low_j_per_token": j_per_token * (1.0 - math.hypot(1.0 - low_kwh / kwh, deviation)),
        "high_j_per_token": j_per_token * (1.0 + math.hypot(high_kwh / kwh - 1.0, deviation)),
        "kg_co2": kwh * power.kg_co2_per_kwh, "kg_co2_per_kwh": power.kg_co2_per_kwh,
    }  # fmt: skip


def _every(request: RunRequest, policy: Policy, mtbf: Mtbf, interval_s: float, mtbf_s: float) -> tuple[int, int]:
    """Return of how many checkpoints one leaves its node, and of how many one goes to storage.

    Young's optimum for the failures that need it: those of whole domains, those of nodes and domains.
    """

    def optimum(write_s: float, share: float) -> int:
        if not share or math.isinf(mtbf_s):
            return _SELDOM
        return max(1, round(young_interval_s(write_s, mtbf_s / share) / interval_s))

    if not policy.stays_in_memory:
        return 1, 1
    stored_every = optimum(policy.storage.write_s, request.domain_share)
    if policy.shared is None:
        return 1, stored_every
    beyond = request.domain_share + (1.0 - request.domain_share) * mtbf.hardware_share
    shared_every = min(stored_every, optimum(policy.shared.write_s, beyond))
    return shared_every, max(1, round(stored_every / shared_every)) * shared_every


def _checkpoint(run: _Operated, iteration_s: float, count: int) -> RunCheckpoint:
    process, checkpoint = run.process, run.policy.checkpoint
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    fails = math.isfinite(mtbf_s)
    return {
        "bytes": checkpoint.n_bytes, "writers": checkpoint.n_writers, "policy": run.policy.name, "write_s": checkpoint.write_s,
        "lag_s": run.policy.lag_s, "shared_every": process.shared_every, "stored_every": process.stored_every,
        "interval_iterations": run.per_checkpoint, "interval_s": run.per_checkpoint * iteration_s, "count": count,
        "young_interval_s": young_interval_s(checkpoint.write_s, mtbf_s) if fails else None,
        "daly_interval_s": daly_interval_s(checkpoint.write_s, mtbf_s) if fails else None,
    }  # fmt: skip


def _failures(run: _Operated, expected: float) -> RunFailures:
    process = run.process
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    n_random = expected * mtbf_s / process.mtbf_s if math.isfinite(process.mtbf_s) else 0.0
    by_part = by_component(n_random, run.mtbf.components)
    if process.ended_every_s:
        by_part["links that come and go"] = expected - n_random
    return {
        "mtbf_s": mtbf_s if math.isfinite(mtbf_s) else None, "expected": expected,
        "restart_s": process.restart_s, "restart_phases": run.restart, "domain_nodes": process.domain_nodes,
        "domain_share": process.domain_share, "by_component": by_part,
    }  # fmt: skip


def _played(request: RunRequest, process: FailureProcess, bill: _Bill) -> PlayedRuns | None:
    """Return what the histories that are asked for say."""
    if not request.n_histories or (math.isinf(process.mtbf_s) and not process.ended_every_s):
        return None
    found = play_histories(process, request.n_histories, request.seed)
    mean_s, waiting_s = float(found.total_s.mean()), float(found.waiting_s.mean())
    still_s = float((found.checkpoint_s + found.restart_s).mean()) + (0.0 if request.is_elastic else waiting_s)
    return {
        "histories": len(found.total_s), "seed": request.seed, "mean_days": mean_s / S_PER_DAY,
        "p10_days": found.quantile_s(0.1) / S_PER_DAY, "p50_days": found.quantile_s(0.5) / S_PER_DAY,
        "p90_days": found.quantile_s(0.9) / S_PER_DAY, "goodput": float((process.useful_s / found.total_s).mean()),
        "failures": float(found.n_failures.mean()), "gpu_hours": bill.gpu_hours(mean_s), "cost": bill.cost(mean_s),
        "kwh": bill.kwh(mean_s - still_s, mean_s), "waiting_days": waiting_s / S_PER_DAY,
        "is_elastic": request.is_elastic, "spares": request.n_spares, "repair_s": request.repair_s,
    }  # fmt: skip


def _mtbf(request: RunRequest, topology: Topology) -> Mtbf:
    """Return the flag's, the cluster file's or the default mean time between failures."""
    if request.mtbf is not None:
        return request.mtbf
    said = topology.spec.failures
    source = f"cluster file: {said.source or 'no source given'}" if said else ""
    if said and (said.node_mtbf_s or said.gpu_mtbf_s):
        return stated_mtbf(said, source)
    device = topology.device(0).name
    for name, rate in failure_rates().items():
        if device.startswith(rate.devices):
            return parse_mtbf(name)
    return parse_mtbf(operation_defaults().failures)


def _read_s(policy: Policy, domain_share: float, node_share: float) -> float:
    """Return how long reading a checkpoint takes on average: failures of domains and nodes take checkpoints with them."""
    if not policy.stays_in_memory:
        return policy.checkpoint.read_s
    shared = policy.shared or policy.checkpoint
    stays = (1.0 - domain_share - node_share) * policy.checkpoint.read_s
    return domain_share * policy.storage.read_s + node_share * shared.read_s + stays


def _with_tiers(policy: Policy, checkpoint: Checkpoint, shared_every: int, stored_every: int) -> Checkpoint:
    """Return a checkpoint with its share of those that leave their node, and of those that go to storage."""
    if not policy.stays_in_memory:
        return checkpoint
    shared_s = policy.shared.write_s / shared_every if policy.shared else 0.0
    return replace(checkpoint, write_s=checkpoint.write_s + shared_s + policy.storage.write_s / stored_every)


def _interval(
    request: RunRequest, n_iterations: int, iteration_s: float, write_s: float, mtbf_s: float, *, least_s: float
) -> tuple[int, str]:
    """Return iterations between checkpoints: as asked, or those of Daly's interval, or one checkpoint at the end.

    None begins before the one before has arrived, ``least_s`` after its start (Mohan et al., CheckFreq, FAST 2021).
    """
    least = math.ceil(least_s / iteration_s)
    asked = request.interval_iterations
    if request.interval_s is not None:
        asked = max(1, round(request.interval_s / iteration_s))
    if asked is not None:
        if asked < least:
            raise ConfigError(
                f"--checkpoint-interval of {asked:,} steps: a checkpoint takes {format_duration(least_s)} to arrive",
                hint=f"--checkpoint-interval '{least} steps', or faster storage",
            )
        return asked, "--checkpoint-interval"
    if math.isinf(mtbf_s):
        return n_iterations, "one at the end: nothing fails"
    best_s = daly_interval_s(write_s, mtbf_s)
    best = max(1, round(best_s / iteration_s))
    if best < least:
        return min(n_iterations, least), "as soon as the one before has arrived"
    return min(n_iterations, best), "the optimum: Daly 2006, after Young 1974"


def _mtbf_words(mtbf: Mtbf, job_s: float) -> str:
    if math.isinf(mtbf.seconds):
        return "nothing fails"
    words = f"{format_duration(mtbf.seconds)} per {'GPU' if mtbf.per == 'gpu' else mtbf.per}"
    return words if mtbf.per == "job" else f"{words}, {format_duration(job_s)} for the job"


def _power_words(power: PowerModel) -> str:
    parts = ((power.compute_w, "computing"), (power.communication_w, "communicating"), (power.idle_w, "waiting"))
    return ", ".join(f"{watts:.4g} W {what}" for watts, what in parts)
