"""The steady state of a pipeline is simulated once: exactly what writing every micro-batch down gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from simulator.analysis.metrics import measure
from simulator.costs import ModelCosts
from simulator.engine import Interference, run
from simulator.errors import SimulatorError
from simulator.faults import Faults
from simulator.interop import load_model
from simulator.network import NETWORKS, Flow
from simulator.parallel.repetition import ShortTable
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork, Kernel, KernelRun
from simulator.program.program import COMPUTE, HOST, Program, RankProgram, Repetition, Task
from simulator.program.stretch import insert_periods
from simulator.scenario import Scenario
from simulator.schedules import SCHEDULES
from simulator.simulation import LoweringMode, lower_scenario, resolve, topology_of
from simulator.topology.device_file import load_device
from simulator.units import to_ps


def lowered(**settings_):
    plan = ParallelPlan(**{"micro_batch": 1, **settings_})
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan)
    topology, spec = topology_of(scenario), load_model(scenario.model)
    scenario = resolve(scenario, topology, spec)
    return scenario, topology, lower_scenario(scenario, topology, spec)[1]


def both(scenario, topology, program):
    """Run a program as it is, and with every period written down."""
    costs = ModelCosts(topology, scenario)
    whole = insert_periods(program, program.n_omitted)
    return costs, [run(p, costs, lambda: NETWORKS[scenario.network](topology)) for p in (program, whole)]


def rows(timeline):
    return sorted(
        (s.rank, s.stream, s.start_ps, s.end_ps, s.micro_batch, s.host_wait_ps, s.host_idle_ps, s.op.name)
        for s in timeline.spans
    )


@given(
    pp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2]),
    n_micro_batches=st.integers(8, 48),
    schedule=st.sampled_from(["1f1b", "1f1b", "1f1b-interleaved", "interlaced", "zb-1p", "zb-v"]),
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    framework=st.sampled_from(["megatron", "megatron-core", "deepspeed", "fsdp", "ddp"]),
    overlap=st.booleans(),
    network=st.sampled_from(["flow", "alpha-beta"]),
)
@settings(max_examples=25, deadline=None)
def test_periods_left_out_change_nothing(pp, tp, dp, n_micro_batches, schedule, sharding, framework, overlap, network):
    virtual_pp = 3 if schedule == "1f1b-interleaved" else 1
    try:
        scenario, topology, found = lowered(
            gpus=pp * tp * dp, pp=pp, tp=tp, global_batch=n_micro_batches * dp, schedule=schedule, sharding=sharding,
            framework=framework, virtual_pp=virtual_pp, overlap=overlap,
        )  # fmt: skip
    except SimulatorError:
        assume(False)
    scenario = replace(scenario, network=network)
    costs, (short, whole) = both(scenario, topology, found.program)
    assert short.makespan_ps == whole.makespan_ps
    assert rows(short) == rows(whole)
    device = topology.device(0)
    assert measure(short, device, pipelined=True) == measure(whole, device, pipelined=True)
    assert costs.link_use(short)[0] == pytest.approx(costs.link_use(whole)[0])


@pytest.mark.parametrize(
    ("settings_", "n_micro_batches"),
    [
        ({"framework": "megatron"}, 256),
        ({"framework": "megatron-core", "tp": 2, "gpus": 16}, 255),  # the state comes again every other micro-batch
        ({"framework": "megatron", "schedule": "1f1b-interleaved", "virtual_pp": 3}, 160),
        # gradients accumulate without a pipeline, and a host that slices buffers waits for nothing
        ({"framework": "deepspeed", "sharding": "zero3", "pp": 1, "gpus": 2}, 48),
    ],
)
def test_long_pipelines_cost_no_more_than_short_ones(settings_, n_micro_batches):
    events = []
    for n in (n_micro_batches // 4, n_micro_batches):
        gpus = settings_.get("gpus", 8)
        dp = gpus // settings_.get("pp", 4) // settings_.get("tp", 1)
        scenario, topology, found = lowered(**{"gpus": gpus, "pp": 4, "global_batch": n * dp, **settings_})
        _, (short, whole) = both(scenario, topology, found.program)
        assert short.makespan_ps == whole.makespan_ps
        assert short.cycle is not None
        events.append(short.n_events)
        assert whole.n_events > n * 8
    assert events[1] < 1.5 * events[0]


@pytest.mark.parametrize(
    ("slow", "settings_"),
    [
        (((12, 1.2),), {"gpus": 16, "pp": 4, "tp": 2, "framework": "megatron"}),
        (((15, 1.5), (13, 1.1)), {"gpus": 16, "pp": 4, "tp": 1, "framework": "megatron-core", "sharding": "zero1"}),
        (((5, 1.3),), {"gpus": 8, "pp": 2, "tp": 2, "framework": "deepspeed", "sharding": "zero1"}),
        (((3, 2.0),), {"gpus": 8, "pp": 4, "framework": "megatron", "schedule": "1f1b-interleaved", "virtual_pp": 3}),
    ],
)
def test_replicas_that_meet_only_at_the_end_have_periods_of_their_own(slow, settings_):
    """A slow GPU delays its own replica: the others have another period, and all is as if every period were written down."""
    dp = settings_["gpus"] // settings_["pp"] // settings_.get("tp", 1)
    plan = ParallelPlan(**{"micro_batch": 8, "global_batch": 8 * 60 * dp, **settings_})
    scenario = Scenario(topology="selene", model="gpt2", plan=plan, faults=Faults(slow_ranks=slow))
    topology, spec = topology_of(scenario), load_model(scenario.model)
    scenario = resolve(scenario, topology, spec)
    program = lower_scenario(scenario, topology, spec, LoweringMode(jointly=False))[1].program
    assert program.n_omitted
    _, (short, whole) = both(scenario, topology, program)
    assert len({cycle.end_ps - cycle.start_ps for cycle in short.cycles.values()}) > 1
    assert short.n_events < whole.n_events
    assert short.makespan_ps == whole.makespan_ps
    assert rows(short) == rows(whole)
    measured = [measure(line, topology.device(0), pipelined=True) for line in (short, whole)]
    assert measured[0].breakdown == measured[1].breakdown
    assert measured[0].communication == measured[1].communication
    assert measured[0].phase_s == measured[1].phase_s


@pytest.mark.parametrize("n_rounds", [4, 5, 12])
def test_of_an_interleaved_pipeline_three_rounds_are_simulated(n_rounds):
    """Filling and draining it takes one round of as many micro-batches as stages; two states a round apart say the rest."""
    scenario, topology, found = lowered(
        gpus=4, pp=4, global_batch=4 * n_rounds, schedule="1f1b-interleaved", virtual_pp=3, framework="megatron"
    )
    _, (short, whole) = both(scenario, topology, found.program)
    assert rows(short) == rows(whole)
    n_passes = [
        sum(span.stream == COMPUTE and span.micro_batch >= 0 for span in one.simulated) for one in (short, whole)
    ]
    assert n_passes[0] * n_rounds == n_passes[1] * 3


def test_a_pipeline_of_which_all_stages_meet_has_a_steady_state():
    """The stage furthest above the last holds 1.5 times as many micro-batches as there are stages below it (arXiv:2411.05288)."""
    settings_ = {"gpus": 6, "pp": 6, "schedule": "interlaced", "framework": "megatron"}
    scenario, topology, found = lowered(global_batch=40, **settings_)
    _, (short, whole) = both(scenario, topology, found.program)
    assert rows(short) == rows(whole) and short.makespan_ps == whole.makespan_ps
    scenario, topology, found = lowered(global_batch=4000, **settings_)
    long = run(found.program, ModelCosts(topology, scenario), lambda: NETWORKS[scenario.network](topology))
    assert long.n_events == short.n_events < whole.n_events


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_a_pipeline_that_runs_both_ways_has_a_steady_state(name):
    """Each direction numbers its own micro-batches: half of a step's, or all of them where one copy goes down and up."""
    settings_ = {"gpus": 4, "pp": 4, "schedule": name, "framework": "megatron"}
    scenario, topology, found = lowered(global_batch=96, **settings_)
    _, (short, whole) = both(scenario, topology, found.program)
    assert rows(short) == rows(whole) and short.makespan_ps == whole.makespan_ps
    assert 1 + max(span.micro_batch for span in short.spans) == 96 // (2 if name == "dualpipe" else 1)
    scenario, topology, found = lowered(global_batch=9600, **settings_)
    long = run(found.program, ModelCosts(topology, scenario), lambda: NETWORKS[scenario.network](topology))
    assert long.n_events == short.n_events < whole.n_events


@pytest.mark.parametrize("global_batch", [16, 48])
@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_left_out_of_a_schedule_is_what_a_longer_one_has(name, global_batch, monkeypatch):
    """Writing the omitted periods down gives the program of the schedule for all micro-batches."""
    plan = {"gpus": 4, "pp": 4, "global_batch": global_batch, "schedule": name, "framework": "megatron"}
    plan |= {} if SCHEDULES[name].n_chunks else {"virtual_pp": 3}
    short = lowered(**plan)[2].program
    monkeypatch.setattr("simulator.parallel.lower.shorten", lambda build, _, n, **__: ShortTable(build(n)))
    whole = lowered(**plan)[2].program
    assert not whole.n_omitted
    for ours, theirs in zip(insert_periods(short, short.n_omitted).ranks, whole.ranks, strict=True):
        assert [described(task) for task in ours.tasks] == [described(task) for task in theirs.tasks]


def described(task):
    return (task.op.name, task.stream, task.after, task.key, task.micro_batch)


# -- programs of a few tasks ----------------------------------------------------------------------------------------------


US = 1_000_000


class TinyCosts:
    """Hosts of several speeds, and one link of 1 MB/s for all: a collective of n bytes takes n microseconds and one more."""

    def __init__(self, issue_us, factors):
        self.issue_us, self.factors = issue_us, factors

    def kind(self, rank):
        return rank

    def kernel_ps(self, kernel, rank):
        return to_ps(kernel.duration_s)

    def interference(self, op):
        return self.factors

    def issue_ps(self, op, rank):
        return self.issue_us[rank] * US

    def flow(self, op):
        return Flow(latency_s=1e-6, n_bytes=op.n_bytes, links=(0,), weights=(1.0,))


@st.composite
def periodic(draw):
    """One to three ranks whose periods have kernels, perhaps a collective that all of them meet in, and perhaps a host that waits."""
    n_ranks = draw(st.integers(1, 3))
    meets, waits = draw(st.booleans()), draw(st.lists(st.booleans(), min_size=n_ranks, max_size=n_ranks))
    reduce = Collective(
        collective="all_reduce", axis="dp", n_bytes=draw(st.integers(1, 6)), groups=(tuple(range(n_ranks)),), name="c"
    )
    n_written, n_omitted = draw(st.integers(2, 4)), draw(st.integers(0, 40))
    n_tail = draw(st.sampled_from([0, 3, 60]))
    ranks = []
    for rank in range(n_ranks):
        lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
        kernels = [Kernel(name=f"k{i}", phase="forward", duration_s=us * 1e-6) for i, us in enumerate(lengths)]
        tasks = [Task(Kernel(name="first", phase="forward", duration_s=draw(st.integers(0, 20)) * 1e-6))]
        for period in range(n_written):
            begin = len(tasks)
            tasks += [Task(one, micro_batch=period) for one in kernels]
            if meets:
                # the first kernel of the next period does not wait for it, so that both may run at once
                tasks.append(Task(reduce, "dp", (len(tasks) - 1,), ("c", period), period))
            if waits[rank]:
                tasks.append(Task(HostWork(name="sync", duration_s=0.0), HOST, (len(tasks) - 1,)))
            length = len(tasks) - begin
        tasks.append(
            Task(Kernel(name="last", phase="optimizer", duration_s=2e-6), after=(len(tasks) - 1 - waits[rank],))
        )
        stretch = Repetition(1, len(tasks) - 1, length)
        # behind it many launches of hardly any work, which use up whatever lead the host has gained
        tasks += [Task(Kernel(name="tail", phase="optimizer", duration_s=1e-6))] * n_tail
        ranks.append(RankProgram(rank=rank, members=(rank,), tasks=tuple(tasks), stretch=stretch))
    issue_us = draw(st.lists(st.integers(0, 8), min_size=n_ranks, max_size=n_ranks))
    factors = Interference(*draw(st.sampled_from([(1.0, 1.0), (0.5, 1.0), (0.5, 0.8)])))
    return Program(ranks=tuple(ranks), n_omitted=n_omitted, period_micro_batches=1), TinyCosts(issue_us, factors)


@given(periodic())
@settings(max_examples=150, deadline=None)
def test_whatever_repeats_is_what_writing_it_down_gives(case):
    """Hosts ahead, behind and drifting, ranks that are unequally fast, meetings and interference: to the picosecond."""
    program, costs = case
    links = SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=1e6)])
    short, whole = (
        run(one, costs, lambda: NETWORKS["flow"](links))
        for one in (program, insert_periods(program, program.n_omitted))
    )
    assert short.makespan_ps == whole.makespan_ps
    assert rows(short) == rows(whole)
    device = load_device("v100-sxm2-16g")
    assert measure(short, device, pipelined=True) == measure(whole, device, pipelined=True)


@pytest.mark.parametrize(("kernel_us", "issue_us"), [(3, 1), (1, 3), (2, 2)])
def test_a_steady_state_is_found_and_ends_the_simulation(kernel_us, issue_us):
    """One launch and the slower of host and device for every other kernel: a thousand periods cost what a few do."""
    one = Kernel(name="k", phase="forward", duration_s=kernel_us * 1e-6)
    events = []
    for n_omitted in (10, 1000):
        tasks = (Task(one), *(Task(one, micro_batch=i) for i in range(4)), Task(one))
        rank = RankProgram(rank=0, members=(0,), tasks=tasks, stretch=Repetition(1, 5, 1))
        program = Program(ranks=(rank,), n_omitted=n_omitted, period_micro_batches=1)
        found = run(program, TinyCosts([issue_us], Interference()), lambda: NETWORKS["flow"](SimpleNamespace(links=[])))
        assert found.makespan_ps == (issue_us + kernel_us + max(issue_us, kernel_us) * (5 + n_omitted)) * US
        events.append(found.n_events)
    assert events[0] == events[1] < 10


@given(
    lengths_us=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    issue_us=st.integers(1, 8),
    n_written=st.integers(2, 5),
    n_omitted=st.integers(1, 60),
    period_micro_batches=st.sampled_from([1, 4]),
)
@example(lengths_us=[9, 5, 9, 8], issue_us=8, n_written=5, n_omitted=54, period_micro_batches=4)
@example(lengths_us=[9, 5, 9, 8], issue_us=8, n_written=5, n_omitted=54, period_micro_batches=1)
@settings(max_examples=100, deadline=None)
def test_each_kernel_begins_when_it_is_launched_and_the_one_before_is_done(
    lengths_us, issue_us, n_written, n_omitted, period_micro_batches
):
    """Written out by hand: a host that gains on its device in some periods, and is late for kernels of the same ones."""
    kernels = [Kernel(name=f"k{i}", phase="forward", duration_s=us * 1e-6) for i, us in enumerate(lengths_us)]
    none = Task(Kernel(name="none", phase="forward", duration_s=0.0))
    tasks = (none, *(Task(one, micro_batch=i) for i in range(n_written) for one in kernels), none)
    rank = RankProgram(rank=0, members=(0,), tasks=tasks, stretch=Repetition(1, len(tasks) - 1, len(kernels)))
    program = Program(ranks=(rank,), n_omitted=n_omitted, period_micro_batches=period_micro_batches)
    found = run(program, TinyCosts([issue_us], Interference()), lambda: NETWORKS["flow"](SimpleNamespace(links=[])))
    end_us = 0
    for n_launches, length_us in enumerate((0, *lengths_us * (n_written + n_omitted), 0), start=1):
        end_us = max(end_us, issue_us * n_launches) + length_us
    assert found.makespan_ps == end_us * US


EQUAL = [(lengths, issue) for lengths in [((3,), (3,)), ((2, 5), (2, 5))] for issue in [(0, 0), (1, 1), (7, 7)]]
UNEQUAL = [
    (((3,), (3,)), (0, 7)),
    (((2, 5), (2, 5)), (7, 0)),
    (((9, 1, 4), (2, 2, 2)), (1, 1)),
    (((9, 1, 4), (2, 2, 2)), (0, 7)),
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("case", "meets"), [(case, meets) for case in EQUAL + UNEQUAL for meets in (False, True)])
def test_whatever_two_ranks_do_over_and_over_is_simulated_a_few_times(case, meets, waits):
    """Baccelli et al., section 3.7: what commutes with shifts of time ends in a cycle, of at most six periods here. Twenty times as
    many cycles cost no event more, and take twenty times as long. Ranks that are unequally fast and do not meet have a cycle each."""
    lengths_us, issue_us = case
    factors = Interference(compute=0.5, communication=0.8)
    links = SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=1e6)])
    found = {}
    for n_omitted in (60, 120, 1260):
        program = two_ranks(lengths_us, n_omitted=n_omitted, meets=meets, waits=waits)
        found[n_omitted] = run(program, TinyCosts(issue_us, factors), lambda: NETWORKS["flow"](links))
    assert found[60].n_events == found[120].n_events == found[1260].n_events < 150
    times = {n: line.makespan_ps for n, line in found.items()}
    assert times[1260] - times[60] == 20 * (times[120] - times[60])
    whole = insert_periods(program, n_omitted)
    assert run(whole, TinyCosts(issue_us, factors), lambda: NETWORKS["flow"](links)).makespan_ps == times[1260]


def two_ranks(lengths_us, *, n_omitted, meets, waits):
    """Two ranks whose periods are kernels and, if they meet, a collective that the next period waits for."""
    reduce = Collective(collective="all_reduce", axis="dp", n_bytes=3, groups=((0, 1),), name="c")
    ranks = []
    for rank, lengths in enumerate(lengths_us):
        tasks, met = [Task(Kernel(name="first", phase="forward", duration_s=5e-6))], 0
        for period in range(4):
            for us in lengths:
                kernel = Kernel(name="k", phase="forward", duration_s=us * 1e-6)
                tasks.append(Task(kernel, after=(met,) if meets else (), micro_batch=period))
            if meets:
                met = len(tasks)
                tasks.append(Task(reduce, "dp", (met - 1,), ("c", period), period))
            if waits:
                tasks.append(Task(HostWork(name="sync", duration_s=0.0), HOST, (len(tasks) - 1,)))
        length = (len(tasks) - 1) // 4
        tasks.append(Task(Kernel(name="last", phase="optimizer", duration_s=2e-6), after=(len(tasks) - 1 - waits,)))
        ranks.append(
            RankProgram(rank=rank, members=(rank,), tasks=tuple(tasks), stretch=Repetition(1, len(tasks) - 1, length))
        )
    return Program(ranks=tuple(ranks), n_omitted=n_omitted, period_micro_batches=1)


def launched_late(n_omitted, *, n_slow):
    """Two ranks that meet at the end only: launches of 7 us for kernels of 3 us, and a host that waits for what is long done.

    Whoever is slow has ``n_slow`` kernels more in each period. A period is a run of two kernels and single ones; its end waits for
    the run, which ended while the host launched the others.
    """
    kernel = Kernel(name="k", phase="forward", duration_s=3e-6)
    pair = KernelRun(name="pair", phase="forward", kernels=(kernel, kernel))
    reduce = Collective(collective="all_reduce", axis="dp", n_bytes=3, groups=((0, 1),), name="c")
    ranks = []
    for rank in range(2):
        tasks = [Task(kernel)]
        for period in range(4):
            first = len(tasks)
            tasks += [Task(pair, micro_batch=period), *[Task(kernel, micro_batch=period)] * (1 + n_slow * rank)]
            tasks.append(Task(HostWork(name="sync", duration_s=0.0), HOST, (first,)))
        stretch = Repetition(1, len(tasks), (len(tasks) - 1) // 4)
        tasks.append(Task(reduce, "dp", (len(tasks) - 2,), "end"))
        ranks.append(RankProgram(rank=rank, members=(rank,), tasks=tuple(tasks), stretch=stretch))
    return Program(ranks=tuple(ranks), n_omitted=n_omitted, period_micro_batches=1)


@pytest.mark.parametrize("n_slow", [1, 4])
@pytest.mark.parametrize("n_omitted", [1, 5, 40])
def test_hosts_that_launch_late_are_postponed_with_their_replica(n_omitted, n_slow):
    """Every launch is 7 us behind the last, the first one included; the last kernel and the reduction (1 us + 3 us) follow."""
    program = launched_late(n_omitted, n_slow=n_slow)
    links = SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=1e6)])
    costs = TinyCosts([7, 7], Interference())
    short, whole = (
        run(one, costs, lambda: NETWORKS["flow"](links)) for one in (program, insert_periods(program, n_omitted))
    )
    n_launches = 1 + (4 + n_omitted) * (3 + n_slow) + 1
    assert short.makespan_ps == whole.makespan_ps == (7 * n_launches + 1 + 3) * US
    assert rows(short) == rows(whole)
    assert {cycle.n_more for cycle in short.cycles.values()} == {n_omitted}
