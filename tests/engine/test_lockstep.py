"""Passes whose ranks are in step take what the engine finds event by event, and what is worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.metrics import exposed_by_axis, measure
from simulator.engine.costs import Interference
from simulator.engine.durations import FAR_AHEAD_PS, PassPart
from simulator.engine.lockstep import Turns, is_in_step
from simulator.engine.running import durations_of, run
from simulator.network import NETWORKS, Flow
from simulator.program.op import Collective, Kernel, KernelRun
from simulator.program.program import COMPUTE, Block, Program, RankProgram, Task
from simulator.timeline import Span, Timeline
from simulator.units import to_ps

US = 1_000_000


class Costs:
    """Ranks of several speeds, launches of 2 us, and a link of 1 MB/s: a collective of n bytes takes 1 us and n more."""

    def kind(self, rank):
        return rank

    def kernel_ps(self, kernel, rank):
        return to_ps(kernel.duration_s) * (1 + rank)

    def interference(self, op):
        return Interference(0.5, 0.5)

    def issue_ps(self, op, rank):
        return 2 * US

    def flow(self, op):
        return Flow(latency_s=1e-6, n_bytes=op.n_bytes, links=(0,), weights=(1.0,))


def network():
    return NETWORKS["flow"](SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=1e6)]))


def kernel(us):
    return Kernel(name="k", phase="forward", duration_s=us * 1e-6)


def tasks_of(steps, n_ranks, backs=()):
    """A whole number is a kernel of so many microseconds, a tuple a run of them, minus n a collective of n bytes.

    Each waits for the task that stands before it, or as many places further back as ``backs`` says, if there is one.
    """
    tasks = []
    for position, step in enumerate(steps):
        whom = position - 1 - (backs[position] if backs else 0)
        after = (whom,) if whom >= 0 else ()
        if isinstance(step, tuple):
            tasks.append(Task(KernelRun(name="run", phase="forward", kernels=tuple(map(kernel, step))), after=after))
        elif step > 0:
            tasks.append(Task(kernel(step), after=after))
        else:
            groups = (tuple(range(n_ranks)),)
            op = Collective(collective="all_reduce", axis="tp", n_bytes=-step, groups=groups, name="c")
            tasks.append(Task(op, "tp", after, ("c", position)))
    return tuple(tasks)


def parts_of(steps, offsets_us, leads_us, backs=()):
    blocks = [Block(name="pass", tasks=tasks_of(steps, len(offsets_us), backs), is_joint=True) for _ in offsets_us]
    return [
        PassPart(block, rank, rank, offset * US, FAR_AHEAD_PS if lead is None else lead * US)
        for rank, (block, offset, lead) in enumerate(zip(blocks, offsets_us, leads_us, strict=True))
    ]


@pytest.mark.parametrize(("lead_us", "end_us"), [(None, 26), (4, 26), (0, 28)])
def test_two_ranks_by_hand(lead_us, end_us):
    """Rank 1 takes twice as long. From 0 and 3 us, kernels of 5 us end at 5 and 13; 4 bytes take 1 + 4 us; 4 us more end at 22 and 26.

    Without a lead rank 1 launches at 5 and computes until 15, so that all is two microseconds later; its next launch is at 7, in time.
    """
    parts = parts_of((5, -4, 4), (0, 3), (lead_us, lead_us))
    found = durations_of(Costs(), network).joint(parts)
    assert found.results[1].duration_ps == (end_us - 3) * US
    assert found.results[0].duration_ps == (end_us - 4) * US
    assert [one.needed_lead_ps for one in found.results] == [2 * US] * 2
    spans = found.results[0].spans
    assert [span.op.name for span in spans] == ["k", "c", "k"]
    assert spans[1].duration_ps == 5 * US
    assert len(spans) == 3
    assert spans == found.results[0].spans != found.results[1].spans
    assert found.links == {0}
    assert not any(one.trails for one in found.results)


STEPS = st.lists(
    st.one_of(st.integers(1, 9), st.integers(-6, -1), st.tuples(st.integers(1, 5), st.integers(1, 5))),
    min_size=1,
    max_size=7,
)


STARTS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 30)), min_size=1, max_size=3)


@given(STEPS, STARTS, st.lists(st.integers(0, 3), min_size=7, max_size=7) | st.just([0] * 7), st.booleans())
@settings(max_examples=200, deadline=None)
def test_in_step_is_event_by_event(steps, starts, backs, detail):
    """The other way of the engine is taken where ranks are not in step; kernels and collectives slow each other to a half."""
    offsets = [offset - min(offset for offset, _ in starts) for offset, _ in starts]
    parts = parts_of(steps, offsets, [lead for _, lead in starts], backs)
    assert is_in_step([part.block for part in parts])
    found = durations_of(Costs(), network, detail=detail).joint(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.engine.lockstep.is_in_step", lambda blocks: False)
        expected = durations_of(Costs(), network, detail=detail).joint(parts)
    assert found.links == expected.links
    for ours, theirs in zip(found.results, expected.results, strict=True):
        assert ours._replace(spans=()) == theirs._replace(spans=())
        assert sorted(ours.spans, key=repr) == sorted(theirs.spans, key=repr)


@given(STEPS, STARTS, st.lists(st.integers(0, 3), min_size=7, max_size=7) | st.just([0] * 7))
@settings(max_examples=100, deadline=None)
def test_arrays_are_measured_as_the_spans_that_they_hold(steps, starts, backs):
    offsets = [offset - min(offset for offset, _ in starts) for offset, _ in starts]
    parts = parts_of(steps, offsets, [lead for _, lead in starts], backs)
    results = durations_of(Costs(), network).joint(parts).results
    measured = []
    for insides in ([one.spans for one in results], [tuple(one.spans) for one in results]):
        spans = tuple(
            Span(part.block, part.rank, COMPUTE, part.offset_ps, part.offset_ps + one.duration_ps, inner=inside)
            for part, one, inside in zip(parts, results, insides, strict=True)
        )
        assert [span.inner for span in spans] == insides
        members = {part.rank: (part.rank,) for part in parts}
        timeline = Timeline(simulated=spans, members=members, simulated_ps=max(span.end_ps for span in spans))
        measured.append((measure(timeline, None, pipelined=True), exposed_by_axis(timeline)))
    assert measured[0] == measured[1]


@pytest.mark.parametrize(("factor", "ends_us"), [(1.0, (8, 9)), (0.5, (12, 13.5))])
def test_a_kernel_beside_a_collective_by_hand(factor, ends_us):
    """After a kernel of 3 us, 4 bytes take 1 + 4 us, beside a kernel of 6 us: until 8 and 9 where nothing slows the other down.

    At half the speed each, the collective begins to move bytes at 4 and needs 8 us for them, until 12; in the 9 us since 3
    the kernel has done 4.5 of its 6, and ends at 13.5.
    """
    costs = Costs()
    costs.interference = lambda op: Interference(factor, factor)
    (part,) = parts_of((3, -4, 6), (0,), (None,), (0, 0, 1))
    (found,) = durations_of(costs, network).joint([part]).results
    ends = {span.stream: span.end_ps for span in found.spans}
    assert (ends["tp"], ends["compute"]) == tuple(us * US for us in ends_us)
    assert found.duration_ps == ends_us[1] * US


@pytest.mark.parametrize(
    ("compute", "communication", "ends_us"),
    [(1.0, 1.0, (8, 10)), (0.5, 0.5, (12, 14)), (0.5, 1.0, (8, 12)), (1.0, 0.5, (11, 10))],
)
def test_a_kernel_beside_a_collective_among_other_traffic_by_hand(compute, communication, ends_us):
    """The same two, of two ranks whose pass goes on in the machine's own network, as it does where other traffic may join.

    Launches take 2 us each, and times count from the first: the collective begins at 3 and its bytes at 4, when the second kernel does.
    Both at half speed: 4 bytes until 12, in which the kernel has done 4 of its 6 us. Only the kernel: 2 of 6 until 8. Only the
    collective: 3 of 4 bytes until the kernel ends at 10.
    """
    costs = Costs()
    costs.kernel_ps = lambda one, rank: to_ps(one.duration_s)
    costs.interference = lambda op: Interference(compute, communication)
    block = Block(name="pass", tasks=tasks_of((3, -4, 6), 2, (0, 0, 1)), is_joint=True)
    ranks = tuple(RankProgram(rank=r, members=(r,), tasks=(Task(block, key="pass"),)) for r in range(2))
    line = run(Program(ranks=ranks), costs, network, among_others=True)
    for span in line.simulated:
        start_us = span.start_ps / US
        ends = {inner.stream: start_us + inner.end_ps / US for inner in span.inner}
        assert (ends["tp"] - 2, ends["compute"] - 2) == ends_us


def test_kernels_of_a_run_behind_another_kernel_by_hand():
    """Without a lead every launch takes 2 us: the kernel's ends at 2, those of the run at 4 and 6; all take 1 us."""
    (part,) = parts_of((1, (1, 1)), (0,), (0,))
    (found,) = durations_of(Costs(), network, detail=True).joint([part]).results
    _, run = found.spans
    assert [(run.start_ps + one.start_ps, run.start_ps + one.end_ps) for one in run.inner] == [
        (4 * US, 5 * US),
        (6 * US, 7 * US),
    ]


def test_a_host_launches_every_task_of_a_block():
    """Three launches of one kernel, 2 us each, and one collective's; a block within a block has as many."""
    one = kernel(1)
    inner = Block(name="inner", tasks=(Task(one), Task(one)))
    block = Block(name="pass", tasks=(Task(one), *tasks_of((-4,), 2), Task(one), Task(one), Task(inner)))
    assert durations_of(Costs(), network).host_ps(block, 0, 0) == (4 + 2) * 2 * US


def test_equal_spans_of_two_runs_have_one_hash():
    runs = [durations_of(Costs(), network).joint(parts_of((5, -4, 4), (0, 1), (9, 9))).results for _ in range(2)]
    (first, later), (again, _) = ([one.spans for one in found] for found in runs)
    assert first == again
    assert len({first, again}) == 1
    assert first != later


def test_what_is_not_in_step():
    """Two streams of collectives, and ranks that do different things, are for the clock."""
    first = Block(name="pass", tasks=tasks_of((5, -4, 4), 2), is_joint=True)
    assert is_in_step([first, first])
    other = Block(name="pass", tasks=(*first.tasks, Task(first.tasks[1].op, "cp", (2,), "other")), is_joint=True)
    assert not is_in_step([other, other])
    assert not is_in_step([first, Block(name="pass", tasks=first.tasks[:2], is_joint=True)])
    slower = Block(name="pass", tasks=(first.tasks[0]._replace(op=kernel(6)), *first.tasks[1:]), is_joint=True)
    assert not is_in_step([first, slower])
    keyless = Block(name="pass", tasks=(first.tasks[0], first.tasks[1]._replace(key=None)), is_joint=True)
    assert not is_in_step([keyless, keyless])


def test_a_pass_that_is_postponed_goes_on_as_it_would_have():
    """Kernels of 3 and 6 us, behind which a collective may begin; others of 8 and 16 us beside it go at a half of their speed.

    It lasts from 6 to 11. Rank 0 has done 3 us of its second kernel before and does 2.5 beside it: the rest ends at 13.5. Rank 1
    has 13.5 us left at 11.
    """
    parts = parts_of((3, -4, 8), (0, 0), (None, None), (0, 0, 1))
    durations = durations_of(Costs(), network)
    for by_ps in (0, 1000 * US):
        one = Turns(Costs(), network).begin(parts, range(2), 0, durations)
        op, at_ps = one.go_on()
        assert (op.n_bytes, at_ps) == (4, 6 * US)
        assert one.begin(at_ps, 0.5)
        assert one.change_ps == 38 * US, "rank 1 would be done with 16 us at half its speed"
        before = one.state(at_ps, with_hosts=True)
        one.postpone(by_ps)
        assert one.state(at_ps + by_ps, with_hosts=True) == before
        assert one.change_ps == 38 * US + by_ps
        one.meet(11 * US + by_ps)
        assert one.change_ps is None
        assert one.go_on() is None
        assert [result.duration_ps for result in one.results()] == [13.5 * US, 24.5 * US]
