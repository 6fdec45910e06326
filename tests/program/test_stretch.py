"""Periods of programs: found where tasks repeat, and written down again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.program.op import HostWork, Kernel
from simulator.program.program import HOST, Occurrence, Program, RankProgram, Repetition, Task
from simulator.program.stretch import find_stretch, insert_periods, leave_out_one, shifted

SYNC = HostWork(name="sync", duration_s=0.0)


def kernel(name):
    return Kernel(name=name, phase="forward", duration_s=1e-6)


FIRST, PASS, LAST = kernel("first"), kernel("pass"), kernel("last")


def row(n_periods):
    """A first task, periods of a pass and a wait, and a last task that waits for the last pass."""
    tasks = [Task(FIRST)]
    for period in range(n_periods):
        tasks.append(Task(PASS, after=(len(tasks) - 1 - (period > 0),), key=("pass", period), micro_batch=period))
        tasks.append(Task(SYNC, HOST, (len(tasks) - 1,)))
    return (*tasks, Task(LAST, after=(len(tasks) - 2,)))


def starts(n_periods):
    return [1 + 2 * period for period in range(n_periods)]


@given(written=st.integers(4, 12), more=st.integers(0, 12))
def test_written_and_omitted_periods_are_those_of_a_longer_program(written, more):
    tasks = row(written)
    stretch = find_stretch(tasks, starts(written), 1 + 2 * written, 1)
    assert stretch is not None
    assert (stretch.end, stretch.length) == (1 + 2 * written, 2)
    rank = RankProgram(rank=0, members=(0,), tasks=tasks, stretch=stretch)
    program = Program(ranks=(rank,), n_omitted=more, period_micro_batches=1)
    for n in {0, more // 2, more}:
        longer = insert_periods(program, n)
        assert longer.ranks[0].tasks == row(written + n)
        assert longer.n_omitted == more - n
        assert longer.n_periods == program.n_periods + n


def test_fewer_than_two_equal_periods_are_no_stretch():
    assert find_stretch(row(1), starts(1), 3, 1) is None
    assert find_stretch((), [], 0, 1) is None


def test_a_host_that_waits_for_nothing_runs_ahead_by_the_same_in_every_period():
    tasks = tuple(Task(PASS, micro_batch=i) for i in range(8))
    assert find_stretch(tasks, list(range(8)), 8, 1) == Repetition(0, 8, 1)


def test_a_host_that_waits_only_later_gets_there_after_all_that_it_issued_before():
    passes = tuple(Task(PASS, micro_batch=i) for i in range(8))
    waits = Task(SYNC, stream=HOST, after=(7,))
    assert find_stretch((*passes, waits), list(range(8)), 8, 1) is None


def test_what_follows_may_not_wait_for_what_stands_in_front():
    tasks = (*row(6)[:-1], Task(LAST, after=(0,)))
    assert find_stretch(tasks, starts(6), 13, 1) is None


def test_an_irregular_period_ends_the_stretch():
    tasks = list(row(8))
    tasks[5] = tasks[5]._replace(op=LAST)
    found = find_stretch(tasks, starts(8), 17, 1)
    assert found == Repetition(
        6, 17, 2
    )  # five whole periods, and the wait of the irregular one, which is like the others


def program_of(tasks, n_omitted=0):
    """Four periods of two tasks behind a first one, and what ends the program."""
    rank = RankProgram(rank=0, members=(0,), tasks=tuple(tasks), stretch=Repetition(1, 9, 2))
    return Program(ranks=(rank,), n_omitted=n_omitted, period_micro_batches=1)


@pytest.mark.parametrize("n_omitted", [0, 5])
def test_one_period_more_is_left_out_and_written_down_again(n_omitted):
    program = program_of(row(4), n_omitted)
    shorter = leave_out_one(program)
    assert shorter.ranks[0].tasks == row(3)
    assert shorter.n_omitted == n_omitted + 1
    assert insert_periods(shorter, 1) == program


def test_nothing_more_is_left_out_where_hosts_run_ahead_or_what_follows_waits_for_the_first_period():
    ahead = program_of([Task(PASS, micro_batch=i) for i in range(10)])
    reaching = program_of([*row(4)[:-1], Task(LAST, after=(2,))])
    for program in (ahead, reaching):
        assert leave_out_one(program) is program


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, None),
        (("a", 3), ("a", 5)),
        (("a", 4), ("a", 4)),
        (("a", Occurrence("F", 3, 7)), ("a", Occurrence("F", 5, 17))),
        ("step", "step"),
    ],
)
def test_keys_move_with_their_micro_batch(key, expected):
    moved = shifted(Task(PASS, after=(1, 6), key=key, micro_batch=3), 10, 2, first=5)
    assert moved == Task(PASS, after=(1, 16), key=expected, micro_batch=5)
