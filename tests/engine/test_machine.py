"""The engine's rules, one by one, on programs small enough to work out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import Interference, run
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import Flow
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import Block, Program, RankProgram, Task
from simulator.units import to_ps

US = 1_000_000


class NoLinks:
    links = ()


@dataclass
class FakeCosts:
    """Kernels last what they say; collectives take one microsecond per byte."""

    issue: int = 0
    factors: Interference = field(default_factory=Interference)

    def kind(self, rank):
        return 0

    def kernel_ps(self, kernel, rank):
        return to_ps(kernel.duration_s)

    def issue_ps(self, op, rank):
        return self.issue

    def flow(self, op):
        return Flow(latency_s=0.0, n_bytes=op.n_bytes, rate_cap_bytes_per_s=1e6)

    def interference(self, op):
        return self.factors


def kernel(us, name="k"):
    return Kernel(name=name, phase="forward", duration_s=us * 1e-6)


def collective(us, name="c"):
    return Collective(collective="all_reduce", axis="dp", n_bytes=us, groups=((0,),), name=name)


def one_rank(*tasks):
    return Program(ranks=(RankProgram(rank=0, members=(0,), tasks=tasks),))


def execute(program, costs=None):
    return run(program, costs or FakeCosts(), lambda: AlphaBetaNetwork(NoLinks()))


def times(timeline):
    return {span.op.name: (span.start_ps // US, span.end_ps // US) for span in timeline.spans}


def test_a_stream_runs_in_order_and_streams_run_at_the_same_time():
    timeline = execute(one_rank(Task(kernel(5, "a")), Task(kernel(7, "b")), Task(collective(4, "c"), "dp")))
    assert times(timeline) == {"a": (0, 5), "b": (5, 12), "c": (0, 4)}
    assert timeline.makespan_ps == 12 * US


def test_a_dependency_holds_back_another_stream():
    timeline = execute(
        one_rank(Task(kernel(5, "a")), Task(collective(4, "c"), "dp", (0,)), Task(kernel(1, "b"), after=(1,)))
    )
    assert times(timeline) == {"a": (0, 5), "c": (5, 9), "b": (9, 10)}


def test_the_host_issues_one_after_the_other():
    timeline = execute(
        one_rank(Task(kernel(1, "a")), Task(kernel(1, "b")), Task(kernel(1, "c"))), FakeCosts(issue=3 * US)
    )
    assert times(timeline) == {"a": (3, 4), "b": (6, 7), "c": (9, 10)}
    assert [span.host_wait_ps // US for span in timeline.spans] == [3, 2, 2]


def test_a_host_task_waits_and_delays_what_is_issued_later():
    sync = Task(HostWork(name="sync", duration_s=2e-6), "host", (0,))
    timeline = execute(one_rank(Task(kernel(10, "a")), sync, Task(kernel(1, "b"))), FakeCosts(issue=1 * US))
    assert times(timeline) == {"a": (1, 11), "sync": (11, 13), "b": (14, 15)}


def test_a_run_of_kernels_equals_its_kernels_issued_singly():
    kernels = (kernel(1), kernel(9), kernel(1), kernel(1))
    run_of = KernelRun(name="run", phase="forward", kernels=kernels)
    for issue in (0, 1 * US, 4 * US):
        costs = FakeCosts(issue=issue)
        together = execute(one_rank(Task(run_of)), costs).makespan_ps
        singly = execute(one_rank(*(Task(k) for k in kernels)), costs).makespan_ps
        assert together == singly


def test_a_collective_waits_for_its_last_participant():
    tasks = lambda us: (Task(kernel(us, "work")), Task(collective(4), "dp", (0,), key="x"))  # noqa: E731
    program = Program(ranks=tuple(RankProgram(rank=r, members=(r,), tasks=tasks(us)) for r, us in enumerate((3, 8))))
    spans = [span for span in execute(program).spans if span.op.name == "c"]
    assert [(s.rank, s.start_ps // US, s.end_ps // US) for s in spans] == [(0, 8, 12), (1, 8, 12)]


def test_a_transfer_needs_both_ends():
    send = Task(Transfer(n_bytes=2, pairs=((0, 1),), name="send"), "p2p", (0,), key="m")
    receive = Task(Transfer(n_bytes=2, pairs=((0, 1),), name="receive"), "p2p", key="m")
    program = Program(
        ranks=(
            RankProgram(rank=0, members=(0,), tasks=(Task(kernel(5, "a")), send)),
            RankProgram(rank=1, members=(1,), tasks=(receive, Task(kernel(1, "b"), after=(0,)))),
        )
    )
    assert times(execute(program))["b"] == (7, 8)


def test_compute_and_collective_slow_each_other_down():
    costs = FakeCosts(factors=Interference(compute=0.5, communication=1.0))
    timeline = execute(one_rank(Task(collective(4, "c"), "dp"), Task(kernel(10, "a"))), costs)
    assert times(timeline) == {"c": (0, 4), "a": (0, 12)}  # 4 us at half speed do 2 us of work


def test_a_block_replays_what_its_tasks_do():
    tasks = (Task(kernel(3, "a")), Task(collective(4, "c"), "tp", (0,)), Task(kernel(2, "b"), after=(1,)))
    block = Block(name="block", tasks=tasks)
    timeline = execute(one_rank(Task(block), Task(block), Task(kernel(1, "end"))))
    assert times(timeline)["end"] == (18, 19)
    inner = [(s.op.name, s.start_ps // US) for span in timeline.spans[:2] for s in span.expand()]
    assert inner == [("a", 0), ("c", 3), ("b", 7), ("a", 9), ("c", 12), ("b", 16)]
    assert timeline.n_events == 3  # two replays and a kernel


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    issue=st.integers(0, 15),
    before=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_block_is_exact_however_far_the_host_is_ahead(lengths, issue, before):
    tasks = tuple(Task(kernel(us)) for us in lengths)
    block = Block(name="block", tasks=tasks)
    costs = FakeCosts(issue=issue * US)
    folded = execute(one_rank(Task(kernel(before)), Task(block), Task(block)), costs).makespan_ps
    unfolded = execute(one_rank(Task(kernel(before)), *tasks, *tasks), costs).makespan_ps
    assert folded == unfolded


def test_the_same_program_gives_the_same_timeline():
    program = one_rank(Task(collective(4, "c"), "dp"), Task(kernel(10, "a")), Task(kernel(3, "b"), after=(0,)))
    assert execute(program) == execute(program)
