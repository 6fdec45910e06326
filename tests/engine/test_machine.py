"""The engine's rules, one by one, on programs small enough to work out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import Interference, run
from simulator.engine.durations import BlockResult, between, is_serial
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import Flow
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import Block, Program, RankProgram, Task
from simulator.timeline import Span
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
    idle = Task(HostWork(name="idle", duration_s=0.0), "host", (0,))  # to wait is no work of the host: nothing to draw
    timeline = execute(one_rank(Task(kernel(10, "a")), idle, Task(kernel(1, "b"))), FakeCosts(issue=1 * US))
    assert times(timeline) == {"a": (1, 11), "b": (12, 13)}


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


@given(
    head=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    tail=st.lists(st.integers(1, 20), max_size=4),
    issue=st.integers(0, 15),
    before=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_block_in_which_the_host_waits_is_exact_too(head, tail, issue, before):
    def written(first, previous):
        """Kernels, a wait for the last of them, a collective beside and further kernels, behind what came before."""
        kernels = [Task(kernel(us), after=previous) for us in head[:1]] + [Task(kernel(us)) for us in head[1:]]
        last = first + len(kernels) - 1
        wait = Task(HostWork(name="wait", duration_s=0.0), "host", (last,))
        return (
            *kernels,
            wait,
            Task(collective(4), "ep", (last,)),
            *(Task(kernel(us), after=(last + 2,)) for us in tail),
        )

    block = Block(name="block", tasks=written(0, ()))
    n_tasks = len(block.tasks)
    costs = FakeCosts(issue=issue * US)
    folded = execute(one_rank(Task(kernel(before)), Task(block), Task(block), Task(kernel(1))), costs).makespan_ps
    ends = tuple(range(n_tasks - len(tail), n_tasks + 1)) if tail else (n_tasks,)
    second = written(1 + n_tasks, ends)
    unfolded = (Task(kernel(before)), *written(1, (0,)), *second, Task(kernel(1), after=(2 * n_tasks,)))
    assert folded == execute(one_rank(*unfolded), costs).makespan_ps


def test_a_host_that_waits_in_a_block_issues_nothing_behind_it_before():
    wait = Task(HostWork(name="wait", duration_s=0.0), "host", (0,))
    block = Block(name="block", tasks=(Task(kernel(10, "a")), wait, Task(kernel(1, "b"))))
    timeline = execute(one_rank(Task(block), Task(kernel(2, "end"))), FakeCosts(issue=4 * US))
    # a is issued at 4 and ends at 14; then b is issued until 18 and ends at 19, and the end is issued from 18 to 22
    assert times(timeline)["end"] == (22, 24)


def test_the_same_program_gives_the_same_timeline():
    program = one_rank(Task(collective(4, "c"), "dp"), Task(kernel(10, "a")), Task(kernel(3, "b"), after=(0,)))
    assert execute(program) == execute(program)


# -- interference in closed form --------------------------------------------------------------------------------------
#
# Alone the collective takes C and the kernel K. While both run, the kernel keeps the share a of its speed and the collective b.
# Both from 0 on: if C / b <= K / a the collective ends at C / b, and the kernel at C / b + K - a C / b; otherwise the kernel
# ends at K / a, and the collective at K / a + C - b K / a.

SHARES = [(0.5, 0.8), (0.8, 0.5), (1.0, 0.5), (0.5, 1.0), (0.25, 0.25)]


def both_ends(c, k, a, b):
    if c / b <= k / a:
        return c / b, c / b + k - a * c / b
    return k / a + c - b * k / a, k / a


def seconds(timeline):
    return {span.op.name: (span.start_ps / US, span.end_ps / US) for span in timeline.spans}


@pytest.mark.parametrize(("a", "b"), SHARES)
@pytest.mark.parametrize(("c", "k"), [(4, 10), (10, 4), (8, 8)])
def test_both_slow_each_other_down_by_their_own_shares(a, b, c, k):
    costs = FakeCosts(factors=Interference(compute=a, communication=b))
    found = seconds(execute(one_rank(Task(collective(c, "c"), "dp"), Task(kernel(k, "k"))), costs))
    ends = both_ends(c, k, a, b)
    assert found["c"] == (0, pytest.approx(ends[0], abs=1e-5)) and found["k"] == (0, pytest.approx(ends[1], abs=1e-5))


def test_a_kernel_inside_a_slowed_collective_runs_at_its_share_from_the_start():
    # 3 us of host work, then a kernel of 2 us at half speed: 3 to 7; the collective has lost 20 % of these 4 us
    costs = FakeCosts(factors=Interference(compute=0.5, communication=0.8))
    tasks = (Task(collective(20, "c"), "dp"), Task(HostWork(name="h", duration_s=3e-6), "host"), Task(kernel(2, "k")))
    found = seconds(execute(one_rank(*tasks), costs))
    assert found["k"] == (3, 7)
    assert found["c"] == (0, pytest.approx(20 + 4 * 0.2))


def test_a_kernel_behind_a_slowed_one_is_slow_until_the_collective_ends():
    # collective of 6 us at 0.75 while computing: 8 us; kernels do 4 us of work until then: 3 + 1, and 2 us at full speed
    costs = FakeCosts(factors=Interference(compute=0.5, communication=0.75))
    found = seconds(
        execute(one_rank(Task(collective(6, "c"), "dp"), Task(kernel(3, "a")), Task(kernel(3, "b"))), costs)
    )
    assert found == {"c": (0, 8), "a": (0, 6), "b": (6, 10)}


def test_of_two_collectives_the_worse_share_counts_and_both_are_slowed():
    costs = FakeCosts()
    costs.interference = lambda op: (
        Interference(compute=0.5, communication=0.5) if op.name == "c" else Interference(0.25, 1.0)
    )
    # to 4: d (4 us, not slowed), kernel at 0.25 does 1; c has done 2 of 3, ends at 6, kernel has done 2; 8 us more
    tasks = (Task(collective(3, "c"), "dp"), Task(collective(4, "d"), "tp"), Task(kernel(10, "k")))
    assert seconds(execute(one_rank(*tasks), costs)) == {"c": (0, 6), "d": (0, 4), "k": (0, 14)}


def test_a_collective_is_slow_while_any_of_its_ranks_computes():
    costs = FakeCosts(factors=Interference(compute=0.5, communication=0.5))
    first = (Task(collective(10, "c"), "dp", key="x"),)
    second = (Task(collective(10, "c"), "dp", key="x"), Task(kernel(2, "k")))
    program = Program(
        ranks=(RankProgram(rank=0, members=(0,), tasks=first), RankProgram(rank=1, members=(1,), tasks=second))
    )
    spans = execute(program, costs).spans
    assert [(s.op.name, s.rank, s.end_ps / US) for s in spans] == [("k", 1, 4), ("c", 0, 12), ("c", 1, 12)]


def test_messages_between_two_ranks_slow_nothing_down():
    costs = FakeCosts(factors=Interference(compute=0.5, communication=0.5))
    message = Task(Transfer(n_bytes=8, pairs=((0, 1),), name="send"), "p2p")
    assert seconds(execute(one_rank(message, Task(kernel(6, "k"))), costs)) == {"send": (0, 8), "k": (0, 6)}


def test_a_run_of_kernels_is_slowed_like_a_kernel_but_never_ahead_of_its_host():
    costs = FakeCosts(factors=Interference(compute=0.5, communication=1.0))
    run_of = KernelRun(name="run", phase="forward", kernels=(kernel(3), kernel(3)))
    assert seconds(execute(one_rank(Task(collective(4, "c"), "dp"), Task(run_of)), costs))["run"] == (0, 8)
    # a host of 5 us a launch: collective 5 to 9; kernels issued at 10 and 15, the second ends at 18 as it would alone
    costs = FakeCosts(issue=5 * US, factors=Interference(compute=0.5, communication=1.0))
    found = seconds(execute(one_rank(Task(collective(4, "c"), "dp"), Task(run_of)), costs))
    assert found == {"c": (5, 9), "run": (10, 18)}


def test_a_lagging_host_sets_the_start_of_a_collective():
    # launches at 2, 4 and 6 us; the collective needs the first kernel (2 to 12) and so starts at 12, the third launch waits for none
    tasks = (Task(kernel(10, "a")), Task(collective(4, "c"), "dp", (0,)), Task(kernel(1, "b")))
    assert seconds(execute(one_rank(*tasks), FakeCosts(issue=2 * US))) == {"a": (2, 12), "c": (12, 16), "b": (12, 13)}
    late = (Task(kernel(1, "a")), Task(kernel(1, "b")), Task(collective(4, "c"), "dp", (0,)))
    assert seconds(execute(one_rank(*late), FakeCosts(issue=2 * US)))["c"] == (6, 10)


def test_a_collective_that_all_ranks_reach_at_different_times_starts_with_the_last_launch():
    def tasks(n):
        return (*[Task(kernel(1, f"k{i}")) for i in range(n)], Task(collective(4, "c"), "dp", key="x"))

    program = Program(ranks=tuple(RankProgram(rank=r, members=(r,), tasks=tasks(n)) for r, n in enumerate((1, 3))))
    spans = [s for s in execute(program, FakeCosts(issue=2 * US)).spans if s.op.name == "c"]
    assert {(s.start_ps // US, s.end_ps // US) for s in spans} == {(8, 12)}  # the fourth launch of rank 1


def test_waiting_for_the_host_is_told_apart_from_work():
    run_of = KernelRun(name="run", phase="forward", kernels=(kernel(1), kernel(1), kernel(1)))
    (span,) = execute(one_rank(Task(run_of)), FakeCosts(issue=4 * US)).spans
    # launches at 4, 8 and 12: starts at 4, computes 3 us, ends at 13
    assert (span.start_ps // US, span.end_ps // US, span.host_wait_ps // US) == (4, 13, 4)
    assert span.host_idle_ps // US == 6


def test_a_collective_starts_with_the_latest_launch_though_it_was_noted_first():
    costs = FakeCosts()
    costs.kind, costs.issue_ps = (lambda rank: rank), (lambda op, rank: (5 if rank == 0 else 1) * US)
    task = Task(collective(4, "c"), "dp", key="x")
    program = Program(ranks=tuple(RankProgram(rank=rank, members=(rank,), tasks=(task,)) for rank in (0, 1)))
    assert {(s.start_ps // US, s.end_ps // US) for s in execute(program, costs).spans} == {(5, 9)}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        # (stream, what it waits for): kernels stand behind one another, and what waits for the last waits for all of them
        ([("compute", ()), ("compute", ()), ("tp", (1,)), ("compute", (2,))], True),
        ([("compute", ()), ("tp", (0,)), ("tp", (1,)), ("compute", (2,))], True),
        ([("compute", ()), ("host", (0,)), ("tp", (0,)), ("compute", (2,)), ("host", ())], True),
        ([("compute", ()), ("compute", ()), ("tp", (0,))], False),  # beside the second kernel
        ([("compute", ()), ("tp", (0,)), ("compute", ())], False),  # the second kernel beside it
        ([("tp", ()), ("dp", ()), ("compute", (1,))], False),  # beside the first of two collectives
        ([], True),
    ],
)
def test_compute_and_communication_are_serial_where_each_waits_for_all_of_the_other(tasks, expected):
    ops = {"compute": kernel(1), "host": HostWork(name="h", duration_s=0.0)}
    assert is_serial([Task(ops.get(stream, collective(1)), stream, after) for stream, after in tasks]) is expected


def test_a_block_with_some_lead_begins_each_part_when_device_and_host_allow_it():
    """Two kernels of 10 and 5 that the device could begin at 0 and 10; the host issues them at 4 and 20: with 6 of lead at -2 and 14."""

    def span(name, start, end, wait=0):
        return Span(kernel(end - start, name), 0, "compute", start, end, -1, wait)

    ample = BlockResult(15, 20, (span("a", 0, 10), span("b", 10, 15)), issued_ps=0)
    without = BlockResult(25, 0, (span("a", 4, 14, 4), span("b", 20, 25, 6)), issued_ps=20)
    found = between(ample, without, 6)
    assert [(one.op.name, one.start_ps, one.end_ps, one.host_wait_ps) for one in found.spans] == [
        ("a", 0, 10, 0),
        ("b", 14, 19, 4),
    ]
    assert (found.duration_ps, found.needed_lead_ps, found.issued_ps) == (19, 20, 14)
