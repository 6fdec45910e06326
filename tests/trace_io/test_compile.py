"""Calls of a trace as operations of a program, and programs of plans made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import Interference, run
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.network.base import Flow
from simulator.program.op import Collective, Transfer
from simulator.trace_io.causes import HostWait, RankPlan
from simulator.trace_io.compile import (
    Times,
    communication,
    compile_laps,
    compile_program,
    operation_times,
    simulated_trace,
)
from simulator.trace_io.join import Joins
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.trace_record import (
    COMMUNICATION,
    COPY,
    CollectiveCall,
    DeviceOps,
    HostEvents,
    RankTrace,
    Step,
    Trace,
)
from simulator.trace_io.trace_record import COMPUTE as COMPUTE_KIND
from simulator.units import to_ps


def operation(rank=0, **cells):
    call = CollectiveCall(**{"collective": "all_reduce", "n_bytes": 64, **cells})
    return communication(call, rank, everybody=(0, 1, 2, 3), name="nccl", duration_s=2e-6, phase="backward")


@pytest.mark.parametrize(
    ("recorded", "simulated"), [("send_recv", "all_to_all"), ("all_reduce", "all_reduce"), ("all_gather", "all_gather")]
)
def test_grouped_sends_and_receives_are_an_all_to_all(recorded, simulated):
    found = operation(collective=recorded, ranks=(1, 3), group="tp")
    assert isinstance(found, Collective)
    assert (found.collective, found.axis, found.n_bytes, found.groups) == (simulated, "tp", 64, ((1, 3),))
    assert (found.duration_s, found.issue_s, found.phase) == (2e-6, 0.0, "backward")


def test_what_a_trace_does_not_say_is_everybody_and_no_bytes():
    found = operation(n_bytes=-1)
    assert (found.axis, found.n_bytes, found.groups) == ("world", 0, ((0, 1, 2, 3),))


@pytest.mark.parametrize(("rank", "collective", "peer"), [(1, "send", 2), (2, "recv", 1)])
def test_both_ends_of_a_message_are_one_transfer(rank, collective, peer):
    found = operation(rank, collective=collective, peer=peer)
    assert isinstance(found, Transfer)
    assert (found.pairs, found.n_bytes, found.duration_s) == (((1, 2),), 64, 2e-6)
    assert isinstance(operation(rank, collective=collective), Collective), "without a peer there are no two ends"


# -- programs of plans made by hand -----------------------------------------------------------------------------------------

US = 1000


def plan_of(
    ops,
    *,
    rank=0,
    after=(),
    waits=(),
    key=None,
    issue=(),
    lead=(),
    tail=(),
    first=(),
    calls=(),
    lanes=None,
    phase=(),
    **more,
):
    """A plan in the order of its operations: (kind, lane, start, end) in microseconds."""
    n = len(ops)
    kinds = {"k": COMPUTE_KIND, "c": COMMUNICATION, "m": COPY}
    start, end = (np.array([op[i] * US for op in ops], np.int64) for i in (2, 3))
    streams = sorted({op[1] for op in ops})
    numbers = iter(range(n))
    columns = DeviceOps(
        start_ns=start, end_ns=end, name=np.arange(n, dtype=np.int32),
        stream=np.array([streams.index(op[1]) for op in ops], np.int32), kind=np.array([kinds[op[0]] for op in ops], np.int8),
        launch=np.full(n, -1, np.int32), call=np.array([next(numbers) if op[0] == "c" and calls else -1 for op in ops], np.int32),
        n_bytes=np.full(n, -1, np.int64),
    )  # fmt: skip
    recorded = RankTrace(
        rank=rank, names=tuple(f"op{i}" for i in range(n)), streams=tuple(streams), ops=columns, calls=calls, **more
    )
    sparse = lambda given: np.array([dict(given).get(i, 0) * US for i in range(n)], np.int64)  # noqa: E731
    return RankPlan(
        rank=recorded, order=np.arange(n), lane=tuple(op[1] for op in ops), duration_ns=end - start, lead_ns=sparse(lead),
        tail_ns=sparse(tail), issue_ns=sparse(issue), after=tuple(dict(after).get(i, ()) for i in range(n)), waits=tuple(waits),
        key=key or {}, first=tuple(first), phase=tuple(phase) or ("forward",) * n,
    )  # fmt: skip


def whole_of(*plans, calls=(), transfer=()):
    trace = Trace(format="hand", ranks=tuple(plan.rank for plan in plans), world_size=len(plans), common_clock=True)
    return Reconstruction(
        trace=trace, joins=Joins(joined=(), offset_ns=(0,) * len(plans)), plans=plans, calls=calls,
        transfer_ns=tuple(us * US for us in transfer), members=tuple((plan.rank.rank,) for plan in plans), notes=("note",),
    )  # fmt: skip


class Recorded:
    """Everything takes what the trace says."""

    def kind(self, rank):
        return rank

    def kernel_ps(self, kernel, rank):
        return to_ps(kernel.lead_s + kernel.duration_s)

    def issue_ps(self, op, rank):
        return to_ps(op.issue_s or 0.0)

    def flow(self, op):
        return Flow(latency_s=op.duration_s, n_bytes=0, rate_cap_bytes_per_s=1.0)

    def interference(self, op):
        return Interference()


class NoLinks:
    links = ()


def replayed(whole):
    compiled = compile_program(whole)
    timeline = run(compiled.program, Recorded(), lambda: AlphaBetaNetwork(NoLinks()), detail=True)
    return operation_times(compiled, timeline)


def in_us(columns):
    return [(column / US).tolist() for column in columns]


def written(tasks):
    """Tasks as (name, stream, after)."""
    return [(task.op.name, task.stream, task.after) for task in tasks]


def test_kernels_that_nothing_interrupts_are_one_run():
    """Four kernels on the main lane, a copy beside the third that waits for the second and that the fourth waits for."""
    plan = plan_of(
        [("k", "0:7", 0, 10), ("k", "0:7", 10, 30), ("m", "0:9", 30, 35), ("k", "0:7", 30, 60), ("k", "0:7", 60, 70)],
        after={2: (1,), 4: (2,)}, phase=("forward", "forward", "forward", "backward", "backward"),
    )  # fmt: skip
    compiled = compile_program(whole_of(plan))
    (rank,) = compiled.program.ranks
    assert (rank.rank, rank.members) == (0, (0,))
    assert written(rank.tasks) == [
        ("2 kernels", "compute", ()),
        ("op2", "stream 9", (0,)),
        ("op3", "compute", ()),
        ("op4", "compute", (1,)),
    ]
    pair = rank.tasks[0].op
    assert [(kernel.name, kernel.duration_s, kernel.phase) for kernel in pair.kernels] == [
        ("op0", 10e-6, "forward"),
        ("op1", 20e-6, "forward"),
    ]
    assert (rank.tasks[2].op.phase, rank.tasks[2].op.lead_s) == ("backward", 0.0)
    assert in_us(replayed(whole_of(plan)).start) == [[0, 10, 30, 30, 60]]
    assert in_us(replayed(whole_of(plan)).end) == [[10, 30, 35, 60, 70]]


def test_the_host_issues_leads_and_waits_as_it_did():
    """Issues of 3, 1 and 2 us; the second kernel starts 4 us late for no known reason; the host works 5 us and waits for it."""
    plan = plan_of(
        [("k", "0:7", 3, 10), ("k", "0:7", 14, 30), ("k", "0:7", 32, 40)], issue={0: 3, 1: 1, 2: 2}, lead={1: 4},
        waits=[HostWait(before=2, op=1, work_ns=5 * US)],
    )  # fmt: skip
    tasks = compile_program(whole_of(plan)).program.ranks[0].tasks
    assert written(tasks) == [
        ("2 kernels", "compute", ()),
        ("host", "host", ()),
        ("wait for device", "host", (0,)),
        ("op2", "compute", ()),
    ]
    assert tasks[1].op.duration_s == 5e-6
    assert [kernel.issue_s for kernel in tasks[0].op.kernels] == [3e-6, 1e-6]
    times = replayed(whole_of(plan))
    assert (in_us(times.start), in_us(times.end)) == ([[3, 14, 32]], [[10, 30, 40]])
    idle = plan_of([("k", "0:7", 0, 10), ("k", "0:7", 10, 20)], waits=[HostWait(before=1, op=0, work_ns=0)])
    assert [task.op.name for task in compile_program(whole_of(idle)).program.ranks[0].tasks] == [
        "op0",
        "wait for device",
        "op1",
    ]


CALL = CollectiveCall(collective="all_reduce", n_bytes=64, group="dp", ranks=(0, 1))


def two_ranks():
    """Ranks that arrive at 10 and 25 us at a collective of 5 us; the first leaves it 2 us later than the second."""
    first = plan_of(
        [("k", "0:7", 0, 10), ("c", "0:20", 10, 30), ("k", "0:7", 32, 40)],
        key={1: 0},
        after={1: (0,), 2: (1,)},
        tail={1: 2},
        calls=(CALL,) * 2,
    )
    second = plan_of(
        [("k", "0:7", 0, 25), ("c", "0:20", 25, 30), ("k", "0:7", 30, 33)],
        rank=1,
        key={1: 0},
        after={1: (0,), 2: (1,)},
        calls=(CALL,) * 2,
    )
    return whole_of(first, second, calls=(CALL,), transfer=(5,))


def test_a_joined_collective_starts_with_the_last_arrival_and_takes_its_transfer():
    compiled = compile_program(two_ranks())
    first, second = (rank.tasks for rank in compiled.program.ranks)
    assert written(first) == [
        ("op0", "compute", ()),
        ("arrival", "stream 20", (0,)),
        ("op1", "stream 20", ()),
        ("op2", "compute", (2,)),
    ]
    assert first[2].op is second[2].op and first[2].key == second[2].key == (0, 0)
    assert (first[2].op.duration_s, first[2].op.axis, first[2].op.groups) == (5e-6, "dp", ((0, 1),))
    times = replayed(two_ranks())
    assert in_us(times.start) == [[0, 10, 30], [0, 25, 30]]
    assert in_us(times.end) == [[10, 30, 38], [25, 30, 33]]


def test_a_communication_without_partners_keeps_its_own_length():
    plan = plan_of([("c", "0:20", 2, 9), ("k", "0:7", 9, 12)], issue={0: 2}, after={1: (0,)}, calls=(CALL,))
    compiled = compile_program(whole_of(plan))
    tasks = compiled.program.ranks[0].tasks
    assert (tasks[1].key, tasks[1].op.duration_s, tasks[0].op.issue_s, tasks[0].op.layer) == (
        None,
        7e-6,
        2e-6,
        "arrival",
    )
    times = replayed(whole_of(plan))
    assert (in_us(times.start), in_us(times.end)) == ([[2, 9]], [[9, 12]])


def test_a_replay_is_a_trace_again():
    whole = two_ranks()
    trace = simulated_trace(whole, replayed(whole))
    first, second = trace.ranks
    assert (first.ops.start_ns / US).tolist() == [0, 10, 30] and (first.ops.end_ns / US).tolist() == [10, 32, 38]
    assert (second.ops.end_ns / US).tolist() == [25, 30, 33]
    assert (first.ops.launch.tolist(), trace.common_clock, trace.notes, first.notes) == ([-1] * 3, True, ("note",), ())
    late = np.array([50, 0, 10]) * US
    turned = simulated_trace(whole, Times(start=(late, late), end=(late + 5 * US, late + 5 * US)))
    assert (turned.ranks[1].ops.start_ns / US).tolist() == [0, 10, 50] and turned.ranks[1].ops.name.tolist() == [
        1,
        2,
        0,
    ]


STEPS = (Step(number=1, start_ns=-2 * US, end_ns=19 * US), Step(number=2, start_ns=20 * US, end_ns=41 * US))


def test_steps_keep_their_distance_to_their_first_operations():
    """Windows from 2 us before the first kernel to 1 us before the next window; the last ends 1 us behind its last kernel."""
    plan = plan_of([("k", "0:7", 0, 10), ("k", "0:7", 22, 40)], first=((1, 0), (2, 1)), steps=STEPS)
    times = Times(start=(np.array([0, 32]) * US,), end=(np.array([20, 68]) * US,))
    steps = simulated_trace(whole_of(plan), times).ranks[0].steps
    assert [(s.number, s.start_ns / US, s.end_ns / US, s.name, s.work_end_ns) for s in steps] == [
        (1, -2, 29, "ProfilerStep#1", -1), (2, 30, 69, "ProfilerStep#2", -1)]  # fmt: skip
    # what begins when the last window is over, such as the next step's copy, does not lengthen it, nor does a copy inside it
    behind = plan_of(
        [("k", "0:7", 0, 10), ("k", "0:7", 22, 40), ("m", "0:9", 30, 90), ("k", "0:7", 41, 99)],
        first=((1, 0), (2, 1)),
        steps=STEPS,
    )
    times = Times(start=(np.array([0, 32, 40, 80]) * US,), end=(np.array([20, 68, 100, 138]) * US,))
    assert [s.end_ns / US for s in simulated_trace(whole_of(behind), times).ranks[0].steps] == [29, 69]
    nothing = Times(start=(np.zeros(0, np.int64),), end=(np.zeros(0, np.int64),))
    assert simulated_trace(whole_of(plan_of([], steps=STEPS)), nothing).ranks[0].steps == ()
    unmarked = plan_of([("k", "0:7", 0, 10)])
    assert simulated_trace(whole_of(unmarked), Times(start=(np.array([0]),), end=(np.array([9]),))).ranks[0].steps == ()


def test_laps_repeat_the_steps_behind_the_first():
    """One kernel of 5 us, then steps of 10 + 20: the first lap ends at 35, the others 30 later, and each with a mark."""
    ops = [("k", "0:7", 0, 5), ("k", "0:7", 5, 15), ("k", "0:7", 15, 35)]
    plan = plan_of(ops, first=((0, 0), (1, 1)))
    program = compile_laps(whole_of(plan), 2)
    names = [(task.op.name, task.stream) for task in program.ranks[0].tasks]
    assert names == [
        ("3 kernels", "compute"),
        ("lap", "lap"),
        ("2 kernels", "compute"),
        ("lap", "lap"),
        ("2 kernels", "compute"),
        ("lap", "lap"),
    ]
    timeline = run(program, Recorded(), lambda: AlphaBetaNetwork(NoLinks()))
    assert [span.end_ps // 10**6 for span in timeline.spans if span.op.name == "lap"] == [35, 65, 95]
    assert [task.op.name for task in compile_laps(whole_of(plan), 0).ranks[0].tasks] == ["3 kernels"]
    alone = plan_of(ops, first=((0, 0),))
    assert [task.op.name for task in compile_laps(whole_of(alone), 1).ranks[0].tasks] == ["3 kernels", "lap"] * 2


def test_laps_wait_for_the_counterparts_of_what_came_before_them():
    """A prefetch on another stream in each step is awaited by the next one: the first's by the counterpart in the lap before."""
    ops = [("m", "0:9", 0, 8), ("k", "0:7", 8, 18), ("m", "0:9", 18, 22)]
    plan = plan_of(ops, first=((0, 0), (1, 1)), after={1: (0,), 2: (1,)}, issue={})
    program = compile_laps(whole_of(plan), 2)
    assert written(program.ranks[0].tasks) == [
        ("op0", "stream 9", ()), ("op1", "compute", (0,)), ("op2", "stream 9", (1,)), ("lap", "lap", (1, 2)),
        ("op1", "compute", (2,)), ("op2", "stream 9", (4,)), ("lap", "lap", (4, 5)),
        ("op1", "compute", (5,)), ("op2", "stream 9", (7,)), ("lap", "lap", (7, 8)),
    ]  # fmt: skip


@pytest.mark.parametrize(("waited", "counterpart"), [(0, 3), (1, 4)])
def test_a_counterpart_is_as_far_from_the_end_of_its_stream(waited, counterpart):
    """Of two copies before the repeated step its kernel waits for one: in the next lap for the same of the step's own two."""
    ops = [("m", "0:9", 0, 2), ("m", "0:9", 2, 4), ("k", "0:7", 4, 8), ("m", "0:9", 4, 6), ("m", "0:9", 6, 8)]
    plan = plan_of(ops, first=((0, 0), (1, 2)), after={2: (waited,)})
    assert written(compile_laps(whole_of(plan), 1).ranks[0].tasks) == [
        ("op0", "stream 9", ()), ("op1", "stream 9", ()), ("op2", "compute", (waited,)), ("op3", "stream 9", ()),
        ("op4", "stream 9", ()), ("lap", "lap", (2, 4)),
        ("op2", "compute", (counterpart,)), ("op3", "stream 9", ()), ("op4", "stream 9", ()), ("lap", "lap", (6, 8)),
    ]  # fmt: skip


def test_hosts_of_later_laps_wait_for_counterparts_too():
    """The host waits in its repeated step for the first of two copies of before: in the next lap for the first of the step's own."""
    ops = [("m", "0:9", 0, 2), ("m", "0:9", 2, 4), ("k", "0:7", 4, 8), ("m", "0:9", 4, 6), ("m", "0:9", 6, 8)]
    plan = plan_of(ops, first=((0, 0), (1, 2)), waits=[HostWait(before=2, op=0, work_ns=0)])
    tasks = written(compile_laps(whole_of(plan), 1).ranks[0].tasks)
    assert [after for name, _, after in tasks if name == "wait for device"] == [(0,), (4,)]


def test_a_run_of_kernels_is_of_the_phase_in_which_it_begins():
    ops = [("k", "0:7", 0, 5), ("k", "0:7", 5, 15)]
    (task,) = compile_program(whole_of(plan_of(ops, phase=("forward", "backward")))).program.ranks[0].tasks
    assert (task.op.phase, [kernel.phase for kernel in task.op.kernels]) == ("forward", ["forward", "backward"])


def test_collectives_meet_lap_by_lap_where_all_ranks_repeat_them():
    def plan(rank, begin):
        ops = [("c", "0:20", 0, 5), ("k", "0:7", 5, 15), ("c", "0:20", 15, 20)]
        return plan_of(
            ops, rank=rank, key={0: 0, 2: 1}, after={1: (0,), 2: (1,)}, first=((0, 0), (1, begin)), calls=(CALL,) * 3
        )

    whole = whole_of(plan(0, 1), plan(1, 1), calls=(CALL, CALL), transfer=(5, 5))
    keys = [
        [task.key for task in rank.tasks if task.op.name in ("op0", "op2")] for rank in compile_laps(whole, 1).ranks
    ]
    assert keys == [[(0, 0), (0, 1), (1, 1)]] * 2
    # where one rank begins with the first collective already, no rank waits for a partner that never comes
    uneven = whole_of(plan(0, 1), plan(1, 0), calls=(CALL, CALL), transfer=(5, 5))
    keys = [
        [task.key for task in rank.tasks if task.op.name in ("op0", "op2")] for rank in compile_laps(uneven, 1).ranks
    ]
    assert keys == [[(0, 0), (0, 1), (1, 1)], [(0, 0), (0, 1), None, (1, 1)]]


def test_the_second_step_begins_with_the_first_operation_that_its_host_launched():
    host = HostEvents(**{name: np.array(column) for name, column in {
        "start_ns": [0, 18 * US, 21 * US, 23 * US], "end_ns": [US, 19 * US, 22 * US, 24 * US], "name": [0] * 4, "thread": [0] * 4,
        "kind": [0] * 4,
        "correlation": [-1] * 4, "external": [-1] * 4}.items()})  # fmt: skip
    plan = plan_of(
        [("k", "0:7", 0, 10), ("m", "0:7", 25, 26), ("k", "0:7", 26, 40)], first=((1, 0), (2, 2)), steps=STEPS
    )
    launched = replace(
        plan, rank=replace(plan.rank, host=host, ops=replace(plan.rank.ops, launch=np.array([0, 2, 3], np.int32)))
    )
    names = [task.op.name for task in compile_laps(whole_of(launched), 1).ranks[0].tasks]
    assert names == ["3 kernels", "lap", "2 kernels", "lap"]
    # what nothing launched belongs to no step of the host, though events of the step are the host's last ones
    unknown = replace(
        plan, rank=replace(plan.rank, host=host, ops=replace(plan.rank.ops, launch=np.array([-1, 1, 3], np.int32)))
    )
    assert len(compile_laps(whole_of(unknown), 1).ranks[0].tasks) == 4
    assert compile_laps(whole_of(unknown), 1).ranks[0].tasks[2].op.name == "op2"
    early = replace(
        plan, rank=replace(plan.rank, host=host, ops=replace(plan.rank.ops, launch=np.array([0, 1, 3], np.int32)))
    )
    assert [task.op.name for task in compile_laps(whole_of(early), 1).ranks[0].tasks] == [
        "3 kernels",
        "lap",
        "op2",
        "lap",
    ]


def test_pairs_of_messages_are_in_the_order_that_the_trace_says():
    assert operation(1, collective="recv", peer=2, ranks=(2, 1)).pairs == ((2, 1),)
    assert operation(3, collective="send", peer=0).pairs == ((0, 3),)
    assert operation(3, collective="send", peer=0, ranks=(0, 1, 3)).pairs == ((0, 3),)


def test_arrivals_are_as_late_as_recorded_and_streams_keep_their_names():
    plan = plan_of([("k", "0:7", 0, 5), ("c", "0:nccl:2", 5, 9)], lead={1: 3}, calls=(CALL,) * 2)
    _, arrival, message = compile_program(whole_of(plan)).program.ranks[0].tasks
    assert (arrival.op.lead_s, arrival.stream, message.stream) == (3e-6, "stream nccl:2", "stream nccl:2")
