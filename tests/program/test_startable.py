"""Programs that cannot run are refused with the rank, the task and the reason."""

from __future__ import annotations

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.program.op import Collective, HostWork, Kernel, Transfer
from simulator.program.program import Program, RankProgram, Task
from simulator.program.startable import check

KERNEL = Kernel(name="k", phase="forward", duration_s=1e-6)


def collective(name, n_bytes=8):
    return Collective(collective=name, axis="dp", n_bytes=n_bytes, groups=((0, 1),), name=name)


def program(*ranks):
    return Program(ranks=tuple(RankProgram(rank=i, members=(i,), tasks=tuple(tasks)) for i, tasks in enumerate(ranks)))


def test_a_program_that_runs_passes():
    tasks = [Task(KERNEL), Task(collective("all_reduce"), "dp", (0,), "x")]
    check(program(tasks, tasks))


def test_a_dependency_on_a_later_task():
    with pytest.raises(InfeasiblePlanError, match=r"rank 0: task 0 .k. waits for task 1"):
        check(program([Task(KERNEL, after=(1,)), Task(KERNEL)]))


def test_unequal_sizes():
    ranks = [[Task(collective("all_reduce", n), "dp", key="x")] for n in (8, 16)]
    with pytest.raises(InfeasiblePlanError, match="ranks 0 and 1 disagree"):
        check(program(*ranks))


def test_different_collectives():
    ranks = [[Task(collective(name), "dp", key="x")] for name in ("all_reduce", "all_gather")]
    with pytest.raises(InfeasiblePlanError, match="disagree"):
        check(program(*ranks))


def test_collectives_in_another_order_deadlock():
    first, second = Task(collective("all_reduce"), "dp", key="x"), Task(collective("all_reduce"), "dp", key="y")
    with pytest.raises(InfeasiblePlanError, match="deadlocks: rank 0 waits on stream dp"):
        check(program([first, second], [second, first]))


def test_the_same_order_on_separate_streams_is_fine():
    first, second = Task(collective("all_reduce"), "a", key="x"), Task(collective("all_reduce"), "b", key="y")
    check(program([first, second], [second, first]))


def test_compute_that_waits_for_a_collective_behind_it_deadlocks():
    early = [
        Task(collective("all_reduce"), "dp", key="x"),
        Task(KERNEL, after=(0,)),
        Task(collective("all_gather"), "dp", (1,), "y"),
    ]
    late = [Task(collective("all_gather"), "dp", key="y"), Task(collective("all_reduce"), "dp", (0,), "x")]
    with pytest.raises(InfeasiblePlanError, match="deadlocks"):
        check(program(early, late))


def test_a_host_that_waits_before_it_posts_what_the_other_needs_deadlocks():
    sync = HostWork(name="sync", duration_s=0.0)
    one = [
        Task(collective("all_reduce"), "a", key="x"),
        Task(sync, "host", (0,)),
        Task(collective("all_reduce"), "b", key="y"),
    ]
    two = [
        Task(collective("all_reduce"), "b", key="y"),
        Task(sync, "host", (0,)),
        Task(collective("all_reduce"), "a", key="x"),
    ]
    with pytest.raises(InfeasiblePlanError, match="host waits at sync"):
        check(program(one, two))
    check(program(one, one))


def test_a_rank_that_never_joins():
    group = Collective(collective="all_reduce", axis="dp", n_bytes=8, groups=((0, 1, 2),), name="all_reduce")
    joins = [Task(group, "dp", key="x")]
    with pytest.raises(InfeasiblePlanError, match="rank 2 never posts all_reduce 'x', in which rank 0 waits for it"):
        check(program(joins, joins, [Task(KERNEL)]))
    check(program(joins, joins, joins))


def test_ranks_outside_the_program_need_not_join():
    group = Collective(collective="all_reduce", axis="dp", n_bytes=8, groups=((0, 1, 7),), name="all_reduce")
    check(program([Task(group, "dp", key="x")], [Task(group, "dp", key="x")]))


def test_unequal_counts():
    one, two = Task(collective("all_reduce"), "dp", key="x"), Task(collective("all_reduce"), "dp", key="y")
    with pytest.raises(InfeasiblePlanError, match="rank 1 never posts all_reduce 'y'"):
        check(program([one, two], [one]))
    with pytest.raises(InfeasiblePlanError, match="rank 0 posts communication 'x' twice"):
        check(program([one, one], [one]))


def test_a_send_without_its_receive():
    send = Task(Transfer(n_bytes=8, pairs=((0, 1),), name="send"), "pp", key="m")
    with pytest.raises(InfeasiblePlanError, match="rank 1 never posts transfer 'm'"):
        check(program([send], [Task(KERNEL)]))
    check(program([send], [send]))
