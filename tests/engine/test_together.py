"""Several programs on one clock: rates and phases that can be worked out by hand."""

from __future__ import annotations

import pytest

from simulator.engine.durations import TouchedError
from simulator.engine.together import run_together
from simulator.network import FlowNetwork
from simulator.program.op import Collective, Kernel
from simulator.program.program import Block, Program, RankProgram, Task
from tests.engine.two_links import CAPACITY, US, LinkCosts, Wires


def job(compute_us, *bytes_):
    """A kernel, then messages at the same time."""
    tasks = [Task(Kernel(name="k", phase="forward", duration_s=compute_us * 1e-6))] if compute_us else []
    for place, n in enumerate(bytes_):
        op = Collective(collective="all_reduce", axis="dp", n_bytes=n, groups=((0,),))
        tasks.append(Task(op, f"dp{place}", (0,) if compute_us else ()))
    return Program(ranks=(RankProgram(rank=0, members=(0,), tasks=tuple(tasks)),))


def steps_us(jobs, *, starts_us=(0, 0), n=6):
    """Durations of the first job's steps, and of the others', until the first has done so many."""
    found = run_together(
        jobs, lambda: FlowNetwork(Wires()), starts_ps=[one * US for one in starts_us], shared=frozenset({0}),
        is_enough=lambda done: len(done[0]) >= n,
    )  # fmt: skip
    return [[(one.end_ps - one.start_ps) / US for one in steps] for steps in found]


def test_two_equal_jobs_on_one_saturated_link_each_have_half_its_rate():
    first, second = steps_us([(job(0, 100 * CAPACITY), LinkCosts()), (job(0, 100 * CAPACITY), LinkCosts())])
    assert first == pytest.approx([200.0] * 6)
    assert second == pytest.approx([200.0] * len(second))


def test_jobs_on_links_of_their_own_are_as_fast_as_alone():
    jobs = [(job(30, 100 * CAPACITY), LinkCosts(0)), (job(10, 70 * CAPACITY), LinkCosts(1))]
    first, second = steps_us(jobs)
    assert first == pytest.approx([130.0] * 6)
    assert second == pytest.approx([80.0] * len(second))


def test_a_link_is_shared_by_flows_not_by_jobs():
    """Max-min fairness gives each of four equal flows a quarter; when the job with one is done, the other has it all."""
    jobs = [(job(0, *[100 * CAPACITY] * 3), LinkCosts()), (job(1000, 100 * CAPACITY), LinkCosts())]
    first, _ = steps_us(jobs, starts_us=(1000, 0), n=1)
    assert first == pytest.approx([400.0])


def test_jobs_that_take_turns_lose_nothing():
    """Half a step computes and half communicates: half a step apart they never meet (CASSINI, NSDI 2024)."""
    jobs = [(job(100, 100 * CAPACITY), LinkCosts()), (job(100, 100 * CAPACITY), LinkCosts())]
    first, second = steps_us(jobs, starts_us=(0, 100))
    assert first == pytest.approx([200.0] * 6)
    assert second == pytest.approx([200.0] * len(second))


def test_jobs_in_step_meet_every_time():
    """100 of computing, then two of 100 over one link: 300 instead of 200."""
    jobs = [(job(100, 100 * CAPACITY), LinkCosts()), (job(100, 100 * CAPACITY), LinkCosts())]
    first, second = steps_us(jobs)
    assert first == pytest.approx([300.0] * 6)
    assert second == pytest.approx([300.0] * len(second))


def test_jobs_a_little_apart_meet_for_the_rest():
    """One begins to send 40 before the other: 40 alone, then 60 + 60 at half the rate, and the other has 40 left alone."""
    jobs = [(job(100, 100 * CAPACITY), LinkCosts()), (job(100, 100 * CAPACITY), LinkCosts())]
    first, second = steps_us(jobs, starts_us=(0, 40), n=1)
    assert first == pytest.approx([100 + 40 + 2 * 60])
    first, second = steps_us(jobs, starts_us=(0, 40), n=2)
    assert second[0] == pytest.approx(100 + 2 * 60 + 40)


def test_a_block_that_takes_shared_links_is_refused():
    inner = job(10, 10 * CAPACITY).ranks[0].tasks
    program = Program(ranks=(RankProgram(rank=0, members=(0,), tasks=(Task(Block(name="pass", tasks=inner)),)),))
    with pytest.raises(TouchedError):
        steps_us([(program, LinkCosts(0)), (job(10), LinkCosts(1))])
    first, _ = steps_us([(program, LinkCosts(1)), (job(10), LinkCosts(0))])
    assert first == pytest.approx([20.0] * 6)
