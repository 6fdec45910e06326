"""Passes in which ranks compute and meet in turns take what the engine finds event by event, and what is worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.costs import Interference
from simulator.engine.durations import FAR_AHEAD_PS, Part
from simulator.engine.lockstep import alternates
from simulator.engine.machine import durations_of
from simulator.network import NETWORKS, Flow
from simulator.program.op import Collective, Kernel, KernelRun
from simulator.program.program import Block, Task
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


def tasks_of(steps, n_ranks):
    """A whole number is a kernel of so many microseconds, a tuple a run of them, minus n a collective of n bytes."""
    tasks = []
    for position, step in enumerate(steps):
        after = (position - 1,) if tasks else ()
        if isinstance(step, tuple):
            tasks.append(Task(KernelRun(name="run", phase="forward", kernels=tuple(map(kernel, step))), after=after))
        elif step > 0:
            tasks.append(Task(kernel(step), after=after))
        else:
            groups = (tuple(range(n_ranks)),)
            op = Collective(collective="all_reduce", axis="tp", n_bytes=-step, groups=groups, name="c")
            tasks.append(Task(op, "tp", after, ("c", position)))
    return tuple(tasks)


def parts_of(steps, offsets_us, leads_us):
    blocks = [Block(name="pass", tasks=tasks_of(steps, len(offsets_us)), is_joint=True) for _ in offsets_us]
    return [
        Part(block, rank, rank, offset * US, FAR_AHEAD_PS if lead is None else lead * US)
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
    assert [span.op.name for span in found.results[0].spans] == ["k", "c", "k"]
    assert found.links == {0}
    assert not any(one.trails for one in found.results)


STEPS = st.lists(
    st.one_of(st.integers(1, 9), st.integers(-6, -1), st.tuples(st.integers(1, 5), st.integers(1, 5))),
    min_size=1,
    max_size=7,
)


@given(
    STEPS, st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 30)), min_size=1, max_size=3), st.booleans()
)
@settings(max_examples=150, deadline=None)
def test_in_turns_is_event_by_event(steps, starts, detail):
    """The other way of the engine is taken where a pass does not alternate."""
    offsets = [offset - min(offset for offset, _ in starts) for offset, _ in starts]
    parts = parts_of(steps, offsets, [lead for _, lead in starts])
    assert alternates([part.block for part in parts])
    found = durations_of(Costs(), network, detail=detail).joint(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.engine.lockstep.alternates", lambda blocks: False)
        expected = durations_of(Costs(), network, detail=detail).joint(parts)
    assert found.links == expected.links
    for ours, theirs in zip(found.results, expected.results, strict=True):
        assert ours._replace(spans=()) == theirs._replace(spans=())
        assert sorted(ours.spans, key=repr) == sorted(theirs.spans, key=repr)


def test_what_does_not_alternate():
    """Compute beside a collective, two streams of collectives, and ranks that do different things are for the clock."""
    first = Block(name="pass", tasks=tasks_of((5, -4, 4), 2), is_joint=True)
    assert alternates([first, first])
    beside = Block(name="pass", tasks=(*first.tasks[:2], first.tasks[2]._replace(after=(0,))), is_joint=True)
    assert not alternates([beside, beside])
    other = Block(name="pass", tasks=(*first.tasks, Task(first.tasks[1].op, "cp", (2,), "other")), is_joint=True)
    assert not alternates([other, other])
    assert not alternates([first, Block(name="pass", tasks=first.tasks[:2], is_joint=True)])
    keyless = Block(name="pass", tasks=(first.tasks[0], first.tasks[1]._replace(key=None)), is_joint=True)
    assert not alternates([keyless, keyless])
