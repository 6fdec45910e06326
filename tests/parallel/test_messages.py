"""Messages of a pipeline whose stages wait for them on the stream that computes, beside the time steps of PyTorch's own schedule."""

from __future__ import annotations

from collections import defaultdict

import pytest

from simulator.engine import run
from simulator.models.layer import GemmShape, Layer, Model, Parameter
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.parallel.lower import lower
from simulator.plan import ParallelPlan
from simulator.program.startable import check
from tests.parallel.unit_costs import BACKWARD_PS, FORWARD_PS, NoLinks, UnitCosts

MESSAGE_PS = 100


def lowered(p, m, v, **settings):
    shape = GemmShape(m=1, n=1, k=1)
    backward = tuple(GemmShape(m=1, n=1, k=1, kernel_pass=kind) for kind in ("dgrad", "wgrad"))
    ends = [Layer(name=role, role=role, forward=(), backward=()) for role in ("embedding", "head")]
    weights = (Parameter(name="w", n_elements=10),)
    blocks = [Layer(name="block", forward=(shape,), backward=backward, parameters=weights) for _ in range(p * v)]
    model = Model(name="unit", layers=(ends[0], *blocks, ends[1]), n_parameters=1, model_flops_per_sequence=1.0)
    settings = {"dp": 1, "precision": "fp16", "micro_batch": 1, **settings}
    plan = ParallelPlan(pp=p, virtual_pp=v, global_batch=m * settings["dp"], gpus=p * settings["dp"], **settings)
    return lower(model, plan, gpus_per_node=8, boundary_bytes=1, unfold=settings["dp"] > 1).program


def makespan(p, m, v, **settings):
    return run(lowered(p, m, v, **settings), UnitCosts(MESSAGE_PS), lambda: AlphaBetaNetwork(NoLinks())).makespan_ps


def in_time_steps(schedules, p, m, v):
    """Time of ``PipelineScheduleMulti`` (PyTorch up to 2.9) on the order that the installed release computes.

    At each time step a rank runs its action, if any; then neighbours exchange what either has to send, and both wait for all of it.
    """
    schedule = schedules.ScheduleInterleaved1F1B.__new__(schedules.ScheduleInterleaved1F1B)
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = p, v, m
    schedule.number_of_rounds = max(1, m // p)
    schedule.microbatches_per_round = m // schedule.number_of_rounds
    rows = [schedule._calculate_single_rank_operations(rank) for rank in range(p)]
    ends, last = [0] * p, p * v - 1
    for step in range(max(map(len, rows))):
        actions = [row[step] if step < len(row) else None for row in rows]
        meets = defaultdict(set)
        for rank, action in enumerate(actions):
            if action is None:
                continue
            is_forward = action.computation_type == schedules.FORWARD
            ends[rank] += FORWARD_PS if is_forward else BACKWARD_PS
            if action.stage_index != (last if is_forward else 0):
                peer = (rank + (1 if is_forward else -1)) % p
                meets[rank].add(peer)
                meets[peer].add(rank)
        ready = list(ends)
        for rank, peers in meets.items():
            ends[rank] = max(ready[one] for one in (rank, *peers)) + MESSAGE_PS
    return max(ends)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 4, 5), (4, 16, 4), (8, 16, 3)])
def test_interleaved_stages_exchange_in_time_steps(p, m, v):
    """A message lengthens every pass, where it only delays the first ones of stages that go on.

    What is left out, that stages without a pass wait in exchanges too, is at most 5 % where a message takes a tenth of a forward.
    """
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stepped = in_time_steps(schedules, p, m, v)
    waiting, going_on = (
        makespan(p, m, v, framework="torchtitan", overlap_p2p=overlap, schedule="1f1b-interleaved")
        for overlap in (None, True)
    )
    assert going_on < waiting <= stepped
    assert waiting >= 0.95 * stepped


@pytest.mark.parametrize("sharding", ["none", "zero3"])
@pytest.mark.parametrize(("overlap", "n_messages"), [(None, 18), (True, 12)])
def test_a_stage_waits_for_both_messages_of_a_micro_batch(sharding, overlap, n_messages):
    """Three stages, 1F1B: ``Schedule1F1B`` waits for ``fwd_sends + bwd_recvs`` and for ``bwd_sends + fwd_recvs``, whatever shards the
    parameters. Where stages go on, the three micro-batches in flight make the way to the last stage and back in turn: four messages.
    """
    few, many = (makespan(3, m, 1, framework="fsdp2", sharding=sharding, overlap_p2p=overlap) for m in (9, 18))
    assert many - few == 9 * (FORWARD_PS + BACKWARD_PS) + n_messages * MESSAGE_PS


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"framework": "fsdp", "sharding": "zero2", "overlap": False},
        {"framework": "fsdp", "sharding": "zero3"},
        {"framework": "fsdp", "sharding": "zero3", "overlap": False},
        {"framework": "torchtitan", "sharding": "zero3", "launch_blocking": True},
        {"framework": "torch-pp", "sharding": "none"},
    ],
)
def test_hosts_that_wait_inside_passes_do_not_wait_for_each_other(settings, v):
    """They wait for a reduction, or for room to gather, behind a pass that waits for what was sent: neighbours receive it by then."""
    for m in (4, 8, 16):
        check(lowered(4, m, v, dp=2, **settings))
