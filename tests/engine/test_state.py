"""What a rank knows of its tasks, and what becomes of it when its replica is postponed: worked out by hand."""

from __future__ import annotations

from simulator.engine.components import postpone
from simulator.engine.state import RankState, Running, Stream
from simulator.engine.steady import _free_state, _rank_state
from simulator.program.op import HostWork, Kernel
from simulator.program.program import COMPUTE, HOST, RankProgram, Repetition, Task
from simulator.timeline import Span

KERNEL = Kernel(name="k", phase="forward", duration_s=3e-6)
SYNC = HostWork(name="sync", duration_s=0.0)


def growing(rest):
    """Two kernels, twice, and what is written down only when the host gets there."""
    tasks = (Task(KERNEL, micro_batch=0),) * 2 + (Task(KERNEL, micro_batch=1),) * 2
    return RankState(
        0, RankProgram(rank=0, members=(0,), tasks=(*tasks, *rest), stretch=Repetition(0, 4, 2)), 0, 0, grows=True
    )


def test_what_is_written_late_is_ready_since_its_last_dependency_ended():
    """One period more moves the last three by two tasks: they wait for tasks 4 and 5, which ended at 40 and 30, and for 3."""
    rank = growing((Task(SYNC, HOST, (2, 3)), Task(SYNC, HOST, (3, 2)), Task(SYNC, HOST, (1,))))
    rank.write_period(1)
    assert [task.micro_batch for task in rank.tasks] == [0, 0, 1, 1, 2, 2]
    rank.ended_ps = [5, 10, 15, -1, 40, 30]
    rank.write_rest(1, ())
    assert rank.ready_ps[6:] == [40, 40, 0]
    assert rank.n_waiting[6:] == [0, 0, 1]
    assert rank.dependents == {3: [8]}
    assert rank.ended_ps[6:] == [-1] * 3


def test_of_a_task_that_is_over_only_its_end_is_kept():
    """The second kernel waits for the first, issued at 2 and ready since 1, which ends at 9; nothing waits for the second."""
    rank = growing(())
    rank.issued_ps, rank.ready_ps, rank.dependents = [2, 0, 0, 0], [1, 0, 0, 0], {0: [1]}
    assert rank.end(0, 9) == [1]
    assert rank.ended_ps == [9, -1, -1, -1]
    assert rank.issued_ps == rank.ready_ps == [0] * 4
    assert [task.op is KERNEL for task in rank.tasks] == [False, True, True, True]
    assert rank.dependents == {}
    assert list(rank.end(1, 12)) == []


def test_a_stream_runs_tasks_in_the_order_in_which_they_were_issued():
    """Three are issued and two taken, one more is issued, and both that are left are taken."""
    stream = Stream()
    assert (stream.head, stream.waiting) == (-1, ())
    for index in (3, 5, 8):
        stream.put(index)
    assert (stream.head, stream.waiting) == (3, (3, 5, 8))
    assert [stream.take(), stream.take()] == [3, 5]
    stream.put(9)
    assert (stream.head, stream.waiting) == (8, (8, 9))
    assert [stream.take(), stream.take()] == [8, 9]
    assert (stream.head, stream.behind) == (-1, None), "an idle stream holds nothing"


def test_a_rank_that_is_postponed_is_later_all_that_it_was():
    """A task is over at 4, one runs since 5 until 8 at the earliest, and one has not begun; all that is 100 later."""
    rank = growing(())
    rank.host_ps = 7
    rank.issued_ps, rank.ready_ps, rank.ended_ps = [0, 2, 3, 0], [0, 4, 6, 0], [4, -1, -1, -1]
    for name in (COMPUTE, "copy"):
        stream = rank.streams[name] = Stream()
        stream.running = Running(1, 3, 5, 7, Span(KERNEL, 0, name, 5, 0))
        stream.running.end_ps = 8
    rank.streams[COMPUTE].running.generation = 2
    rank.streams["idle"] = Stream()
    assert postpone(rank, 100) == [rank.streams[COMPUTE].running], "the other has no end yet"
    assert rank.host_ps == 107
    assert rank.issued_ps == [0, 102, 103, 100]
    assert rank.ready_ps == [0, 104, 106, 100]
    assert rank.ended_ps == [104, -1, -1, -1]
    assert rank.generation == 1
    for name in (COMPUTE, "copy"):
        running = rank.streams[name].running
        assert (running.since_ps, running.floor_ps, running.end_ps, running.span.start_ps) == (105, 107, 108, 105)
        assert running.left_ps == 3


def waiting(indices, issued_ps, *, host_ps=12):
    """A rank whose compute stream holds tasks that were issued at these times."""
    rank = growing(())
    rank.host_ps = host_ps
    stream = rank.streams[COMPUTE] = Stream()
    for index, time_ps in zip(indices, issued_ps, strict=True):
        rank.issued_ps[index] = time_ps
        stream.put(index)
    return rank


def test_a_state_repeats_where_all_that_waits_was_issued_as_long_ago():
    """Of two tasks a period, both wait: a period later they are tasks 2 and 3, and the later one counts as much as the first."""
    stretch = Repetition(0, 4, 2)
    first = _rank_state(waiting((0, 1), (7, 9)), stretch, 0, 10)
    assert first is not None
    assert _rank_state(waiting((2, 3), (107, 109), host_ps=112), stretch, 2, 110) == first
    assert _rank_state(waiting((2, 3), (107, 108), host_ps=112), stretch, 2, 110) != first
    assert _rank_state(waiting((2,), (107,), host_ps=112), stretch, 2, 110) != first


def test_what_waits_from_before_the_periods_is_no_state_of_theirs():
    """Task 0 stands before a stretch that begins with task 2, whatever its host has got to."""
    for state in (_rank_state, _free_state):
        assert state(waiting((0,), (7,)), Repetition(2, 4, 2), 2, 10) is None
        assert state(waiting((2,), (7,)), Repetition(2, 4, 2), 2, 10) is not None
