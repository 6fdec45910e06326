"""The main job end to end: determinism, conservation, goldens, scaling, published figures, folded against unfolded."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.answer import to_json
from simulator.collectives import plan_collective
from simulator.engine import Interference, run
from simulator.errors import InfeasiblePlanError
from simulator.interop import load_model
from simulator.network import NETWORKS, lone_flow_s
from simulator.network.base import Flow
from simulator.plan import ParallelPlan
from simulator.program.op import KernelRun
from simulator.program.program import COMPUTE, Block
from simulator.scenario import Scenario
from simulator.simulation import lower_scenario, resolve, simulate
from simulator.topology import load_topology

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden")

#: name -> (GPUs, settings): every axis and its ways of communicating once
PLANS = {
    "one GPU": (1, {}),
    "ddp": (4, {"framework": "hf-eager"}),
    "ddp, two nodes": (8, {"framework": "hf-eager", "global_batch": 16}),
    "zero1": (8, {"sharding": "zero1"}),
    "zero2, deepspeed": (8, {"sharding": "zero2", "framework": "deepspeed", "global_batch": 16}),
    "zero3, deepspeed": (8, {"sharding": "zero3", "framework": "deepspeed"}),
    "fsdp": (8, {"sharding": "zero3", "framework": "fsdp"}),
    "hsdp": (8, {"sharding": "hsdp", "framework": "fsdp"}),
    "tensor": (4, {"tp": 4}),
    "tensor and sequence": (8, {"tp": 4, "sequence_parallel": True, "recompute": "full"}),
    "context": (4, {"cp": 2}),
    "pipeline": (4, {"pp": 4, "global_batch": 8}),
    "gpipe": (4, {"pp": 2, "global_batch": 8, "schedule": "gpipe"}),
    "interleaved": (4, {"pp": 4, "virtual_pp": 3, "global_batch": 8, "schedule": "1f1b-interleaved"}),
    "all three": (8, {"pp": 2, "tp": 2, "global_batch": 8}),
    "all three, sharded": (8, {"pp": 2, "tp": 2, "global_batch": 8, "sharding": "zero1", "sequence_parallel": True}),
}


def scenario_of(gpus, *, model="gpt2", unfold=False, **settings):
    plan = ParallelPlan(gpus=gpus, **{"micro_batch": 1, **settings})
    return Scenario(topology="bigred200", model=model, plan=plan, unfold=unfold)


def planned(name, **changes):
    gpus, settings = PLANS[name]
    return scenario_of(gpus, **settings, **changes)


# -- determinism ----------------------------------------------------------------------------------------------


def test_the_same_scenario_gives_the_same_bytes_in_another_process():
    code = (
        "import json\n"
        "from simulator.answer import to_json\n"
        "from simulator.plan import ParallelPlan\n"
        "from simulator.scenario import Scenario\n"
        "from simulator.simulation import simulate\n"
        "plan = ParallelPlan(gpus=8, tp=2, pp=2, micro_batch=1, global_batch=8, sharding='zero1')\n"
        "print(json.dumps(to_json(simulate(Scenario(topology='bigred200', model='gpt2', plan=plan)))))\n"
    )
    answers = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code]
        answers.append(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert answers[0] == answers[1] != b""


@pytest.mark.parametrize("name", ["fsdp", "all three"])
def test_what_ran_before_changes_nothing(name):
    first = simulate(planned(name))
    simulate(planned("zero1"))
    second = simulate(planned(name))
    assert to_json(first) == to_json(second)
    assert render(first.timeline) == render(second.timeline)


# -- conservation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_spans_on_a_stream_never_overlap(name):
    timeline = simulate(planned(name), detail=True).timeline
    streams: dict[tuple[int, str], list] = {}
    for outer in timeline.spans:
        for span in outer.expand():
            streams.setdefault((span.rank, span.stream), []).append(span)
    for spans in streams.values():
        spans.sort(key=lambda span: (span.start_ps, span.end_ps))
        assert all(earlier.end_ps <= later.start_ps for earlier, later in pairwise(spans))
        assert spans[0].start_ps >= 0
        assert spans[-1].end_ps <= timeline.makespan_ps


@pytest.mark.parametrize("name", PLANS)
def test_categories_add_up_to_the_iteration(name):
    answer = to_json(simulate(planned(name)))
    times = dict(answer["breakdown"])
    overlapped_s = times.pop("overlapped_communication_s")
    assert sum(times.values()) == pytest.approx(answer["iteration_time_s"], rel=1e-9)
    assert min(*times.values(), overlapped_s) >= 0.0
    assert (
        times["exposed_communication_s"] + overlapped_s <= sum(row["total_s"] for row in answer["communication"]) + 1e-9
    )


@pytest.mark.parametrize("name", PLANS)
def test_derived_figures_agree_with_each_other(name):
    scenario = planned(name)
    result = simulate(scenario)
    answer, plan = to_json(result), result.plan
    assert plan.dp * plan.tp * plan.pp * plan.cp == plan.gpus == scenario.plan.gpus
    assert answer["samples_per_s"] * answer["iteration_time_s"] == pytest.approx(plan.global_batch)
    assert answer["tokens_per_s"] == pytest.approx(answer["samples_per_s"] * plan.sequence_length)
    assert 0.0 < answer["mfu"] < 1.0
    memory = answer["memory"]
    assert memory["fits"] == (memory["peak_bytes"] <= memory["capacity_bytes"])
    assert 0.0 < answer["confidence"]["low_s"] < answer["confidence"]["high_s"]  # residuals may be one-sided


@pytest.mark.parametrize("name", PLANS)
def test_the_makespan_is_no_less_than_the_work_of_any_stream(name):
    timeline = simulate(planned(name)).timeline
    busy_ps: dict[tuple[int, str], int] = {}
    for span in timeline.spans:
        key = (span.rank, span.stream)
        busy_ps[key] = busy_ps.get(key, 0) + span.duration_ps
    assert max(busy_ps.values()) <= timeline.makespan_ps == max(span.end_ps for span in timeline.spans)


# -- folded and unfolded --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_one_rank_per_class_gives_what_all_ranks_give(name):
    folded, unfolded = simulate(planned(name)), simulate(planned(name, unfold=True))
    assert len(unfolded.timeline.members) == folded.plan.gpus
    assert folded.timeline.makespan_ps == unfolded.timeline.makespan_ps
    assert folded.metrics.iteration_time_s == unfolded.metrics.iteration_time_s
    assert folded.metrics.breakdown == pytest.approx(unfolded.metrics.breakdown, rel=1e-9, abs=1e-12)
    assert folded.link_busy_s == pytest.approx(unfolded.link_busy_s)
    assert max(unfolded.link_busy_s.values(), default=0.0) <= unfolded.metrics.iteration_time_s
    for rank, members in folded.timeline.members.items():
        expected = [(s.stream, s.start_ps, s.end_ps) for s in folded.timeline.of_rank(rank)]
        for member in members:
            assert sorted((s.stream, s.start_ps, s.end_ps) for s in unfolded.timeline.of_rank(member)) == sorted(
                expected
            )


# -- golden timelines -----------------------------------------------------------------------------------------


class RoundCosts:
    """A microsecond for each kernel, ten for each communication: goldens do not move when constants are refitted."""

    def kind(self, rank):
        """Return the same kind for all ranks."""
        return 0

    def kernel_ps(self, kernel, rank):
        """Return a microsecond."""
        return 1_000_000

    def issue_ps(self, op, rank):
        """Return a tenth of a microsecond."""
        return 100_000

    def flow(self, op):
        """Return a flow that is all latency."""
        return Flow(latency_s=1e-5, n_bytes=0.0, label="ten microseconds")

    def interference(self, op):
        """Return no interference."""
        return Interference()


def render(timeline):
    """Write a timeline down: one span a line, in nanoseconds, after the number of events."""
    lines = [f"{timeline.n_events} events, {timeline.makespan_ps // 1000} ns"]
    for span in sorted(timeline.spans, key=lambda s: (s.rank, s.stream, s.start_ps)):
        op = span.op
        n_kernels = len(op.kernels) if isinstance(op, KernelRun) else len(op.tasks) if isinstance(op, Block) else 1
        what = f"{type(op).__name__} {op.name} {n_kernels} {span.micro_batch}"
        lines.append(f"{span.rank} {span.stream} {span.start_ps // 1000} {span.end_ps // 1000} {what}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "gpus", "settings"),
    [
        ("fsdp", 4, {"sharding": "zero3", "framework": "fsdp"}),
        ("pipeline", 4, {"pp": 2, "global_batch": 8, "framework": "megatron-core"}),
    ],
)
def test_golden_timeline(name, gpus, settings):
    """Golden, not theory: what two layers of GPT-2 did when last looked at. UPDATE_GOLDEN=1 writes it anew."""
    scenario = scenario_of(gpus, **settings)
    topology = load_topology("bigred200", gpus)
    spec = replace(load_model("gpt2"), layers=2)
    _, lowered, _ = lower_scenario(resolve(scenario, topology, spec), topology, spec)
    timeline = run(lowered.program, RoundCosts(), lambda: NETWORKS["alpha-beta"](topology))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(timeline), encoding="utf-8")
    assert render(timeline) == path.read_text(encoding="utf-8")


# -- scaling and published figures ----------------------------------------------------------------------------


def test_gpt2_large_is_flat_within_a_node_and_drops_across_two():
    rates = {}
    for gpus in (1, 2, 4, 8):
        scenario = scenario_of(gpus, model="gpt2-large", framework="megatron", sharding="zero1", micro_batch=8)
        rates[gpus] = to_json(simulate(scenario))["tokens_per_s"] / gpus
    assert min(rates[2], rates[4]) > 0.85 * rates[1]
    assert rates[8] < 0.6 * rates[4]


def test_a_link_twice_as_fast_never_costs_time():
    for gpus in (2, 4, 8):
        slow = simulate(scenario_of(gpus, sharding="zero1"))
        fast = simulate(replace(slow.scenario, overrides=(("node.nvlink.bandwidth_per_link", "50 GB/s"),)))
        assert fast.metrics.iteration_time_s <= slow.metrics.iteration_time_s


def gpt_350m(gpus):
    return simulate(scenario_of(gpus, model="gpt-350m", precision="fp16", sharding="zero1", micro_batch=4))


@pytest.mark.parametrize(
    ("gpus", "low_s", "high_s"),
    [
        pytest.param(
            4, 0.004, 0.005,
            marks=pytest.mark.xfail(
                strict=True, reason="2.7 ms at the 204 GB/s of the study's own all-reduce table; no mechanism gives the rest"
            ),
        ),
        (8, 0.9 * 0.062, 1.1 * 0.062),
    ],
)  # fmt: skip
def test_big_red_gathers_and_scatters_gpt_350m_as_published(gpus, low_s, high_s):
    """Jia 2024: 4 to 5 ms each for 700 MB inside a node, 62 ms each over two nodes."""
    table = {row["collective"]: row for row in gpt_350m(gpus).metrics.communication}
    for collective in ("all_gather", "reduce_scatter"):
        row = table[collective]
        assert row["bytes"] == pytest.approx(0.7e9, rel=0.05)
        assert row["count"] == 1
        assert low_s <= row["total_s"] <= high_s


def test_big_red_communicates_much_more_from_four_to_eight_gpus():
    inside, across = (gpt_350m(gpus).metrics.communication_fraction for gpus in (4, 8))
    assert inside < 0.1
    assert across > 3 * inside


def big_red_all_reduce_s(gpus, n_bytes):
    topology = load_topology("bigred200", gpus)
    return lone_flow_s(plan_collective("all_reduce", n_bytes, (tuple(range(gpus)),), topology), topology)


@pytest.mark.parametrize(("gpus", "low", "high"), [(4, 123e9, 205e9), (8, 9.3e9, 9.8e9)])
def test_big_red_bus_bandwidth_grows_with_size_into_the_published_range(gpus, low, high):
    """Jia 2024, table 1: 123 to 205 GB/s inside a node, up to 9.8 GB/s over two."""
    sizes = [n * 2**20 for n in (16, 32, 64, 128, 192)]
    busbw = [2 * (gpus - 1) / gpus * n_bytes / big_red_all_reduce_s(gpus, n_bytes) for n_bytes in sizes]
    assert busbw == sorted(busbw)
    assert low <= busbw[-1] <= high
    assert busbw[0] >= 0.9 * low


def test_big_red_all_reduce_is_within_a_tenth_of_the_measured_on_average(shared):
    errors: dict[int, list[float]] = {4: [], 8: []}
    with (shared / "measurements" / "collectives.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["topology"] == "bigred200":
                predicted_s = big_red_all_reduce_s(int(row["gpus"]), int(row["size_bytes"]))
                errors[int(row["gpus"])].append(abs(predicted_s / (float(row["time_us"]) * 1e-6) - 1))
    assert all(len(found) == 12 for found in errors.values())
    everything = [error for found in errors.values() for error in found]
    assert sum(everything) / len(everything) < 0.1


def test_the_last_reduction_ends_after_backward():
    timeline = simulate(planned("ddp")).timeline
    backward_ps = max(
        s.end_ps for s in timeline.spans if s.stream == COMPUTE and "backward" in s.op.name and s.micro_batch >= 0
    )
    reductions = [s for s in timeline.spans if s.stream != COMPUTE and getattr(s.op, "collective", "") == "all_reduce"]
    assert max(s.end_ps for s in reductions) > backward_ps


def test_an_open_micro_batch_is_the_largest_power_of_two_that_fits():
    """Short sequences of a small model: many more than 64."""
    asked = Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(gpus=1, sequence_length=64))
    result = simulate(asked)
    found = result.plan.micro_batch
    assert found > 64 and found & (found - 1) == 0
    twice = simulate(replace(asked, plan=replace(asked.plan, micro_batch=2 * found)))
    assert result.memory.fits and not twice.memory.fits
    of_batch = replace(asked, plan=replace(asked.plan, global_batch=64))
    assert simulate(of_batch).plan.micro_batch == 64  # all of it, and no more


@pytest.mark.parametrize(
    ("topology", "model", "gpus", "fits"),
    [
        ("gb200-nvl72", "llama3-405b", 8, False),
        ("gb200-nvl72", "llama3-405b", 32, True),
        ("dgx-b200", "llama2-70b", 8, True),
    ],
)
def test_offloaded_states_lie_in_the_memory_of_their_host(topology, model, gpus, fits):
    """ZeRO-Offload holds 12 bytes a parameter at least: of 405B, four GPUs of eight have 2.4 TB, of 32 0.6.

    A tray of an NVL72 rack has 960 GiB for its four GPUs, whatever its 17 neighbours have.
    """
    plan = ParallelPlan(
        gpus=gpus, framework="deepspeed", sharding="zero3", offload_optimizer="cpu", micro_batch=1, recompute="full"
    )
    scenario = Scenario(topology=topology, model=model, plan=plan)
    if fits:
        assert simulate(scenario).metrics.iteration_time_s > 0
    else:
        with pytest.raises(InfeasiblePlanError, match=r"4 GPUs of a host offload need .* of its 960 GiB"):
            simulate(scenario)
