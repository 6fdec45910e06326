"""Every gradient is summed once over the ranks that hold its parameter, and parameters come from those who share them.

The oracle is the definition: ranks of a stage hold the same dense parameters where their tensor-parallel coordinate is the same, and the
same experts where their coordinates on the experts' own axes are (Megatron-Core's parallel folding, arXiv:2504.14960).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.spec import ModelSpec
from simulator.parallel.lower import lower
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.program.op import Collective

EXPERTS = ModelSpec(
    name="experts", architecture="llama", layers=4, hidden=256, heads=8, ffn_hidden=1024, vocab=1024, max_positions=128,
    n_experts=8, top_k=2, expert_hidden=512, shared_expert_hidden=256, dense_blocks=(1,),
)  # fmt: skip
GRADIENTS, PARAMETERS = 4, 2  #: bytes as they are reduced and gathered
FRAMEWORKS = {
    "megatron-core": ("none", "zero1", "zero2", "zero3"), "deepspeed": ("none", "zero1", "zero2", "zero3"),
    "fsdp": ("none", "zero2", "zero3", "hsdp"), "torchtitan": ("none", "zero2", "zero3", "hsdp"), "hf-eager": ("none",),
}  # fmt: skip
POWERS = st.sampled_from((1, 2, 4))


@st.composite
def cases(draw, framework, sharding):
    """Plan, and whether the model predicts a further token by a module of its own, which has experts, too."""
    tp, cp, dp, pp, ep = (draw(POWERS) for _ in range(5))
    chosen = {
        "gpus": tp * cp * dp * pp, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": draw(st.sampled_from((None, 1, tp))),
        "framework": framework, "sharding": sharding, "overlap": draw(st.booleans()), "sequence_parallel": tp > 1,
        "sharding_group": draw(st.sampled_from((None, None, 2, 4))) if sharding != "none" else None,
        "micro_batch": 1, "global_batch": 4 * dp, "precision": "bf16", "gradient_bytes": GRADIENTS,
        "schedule": draw(st.sampled_from(("1f1b", "zb-1p"))) if pp > 1 else "1f1b",
    }  # fmt: skip
    if sharding == "zero1" and framework == "megatron-core":
        chosen["overlap_parameter_gather"] = draw(st.booleans()) and chosen["overlap"]
    return chosen, draw(st.booleans())


def holders(rank, plan):
    """Ranks with the same dense parameters, and those with the same experts, both in the order of Megatron-Core's ranks."""
    n_stage = plan.tp * plan.cp * plan.dp
    first, place = rank - rank % n_stage, rank % n_stage
    etp = plan.tp if plan.etp is None else plan.etp
    return {
        is_expert: [first + i for i in range(n_stage) if i % degree == place % degree]
        for is_expert, degree in ((False, plan.tp), (True, etp * plan.ep))
    }


def shards_of(rank, ranks, n_shards):
    """Those of ``ranks`` who share one state with a rank, and those who hold the same part of another copy of it."""
    place = ranks.index(rank)
    start = place - place % n_shards
    return tuple(ranks[start : start + n_shards]), tuple(ranks[place % n_shards :: n_shards])


def expected(rank, plan, n_elements):
    """Bytes of a step by collective and group; gathers as (fewest, most), for units may be kept."""
    sums, gathers = defaultdict(float), defaultdict(lambda: [0.0, 0.0])
    unit_wise = plan.sharding in ("zero3", "hsdp") or (
        plan.sharding == "zero2" and plan.framework in ("fsdp", "torchtitan")
    )
    once = plan.framework == "torchtitan" and plan.pp > 1
    every = (unit_wise or plan.sharding == "zero2") and not once
    repeats = plan.n_micro_batches if every else 1
    n_replicas = plan.dp * plan.cp
    group = plan.sharding_group or (max(1, 8 // plan.tp) if plan.sharding == "hsdp" else n_replicas)
    for is_expert, ranks in holders(rank, plan).items():
        n_bytes = n_elements[is_expert] * GRADIENTS * repeats
        n_shards = max(1, min(group, n_replicas) * len(ranks) // n_replicas)
        sharers, copies = shards_of(rank, ranks, n_shards)
        whole = plan.sharding == "none" or (plan.framework == "deepspeed" and plan.sharding in ("zero1", "zero2"))
        sums["all_reduce", tuple(ranks)] += n_bytes if whole and len(ranks) > 1 else 0
        if not whole:
            sums["reduce_scatter", sharers] += n_bytes if len(sharers) > 1 else 0
            # Megatron-FSDP: ``is_last_microbatch``
            n_times = 1 if plan.framework == "megatron-core" else repeats
            sums["all_reduce", copies] += n_bytes / n_shards * n_times / repeats if len(copies) > 1 else 0
        if plan.sharding != "none" and len(sharers) > 1:
            least = n_elements[is_expert] * PARAMETERS
            gathers[sharers][0] += least
            gathers[sharers][1] += least * (2 * plan.n_micro_batches if unit_wise and not once else 1)
    return {key: n for key, n in sums.items() if n}, dict(gathers)


def sent(program, rank):
    """Bytes that a rank's program reduces and gathers outside its layers, by collective and group."""
    found = defaultdict(float)
    for task in next(one for one in program.ranks if rank in one.members).tasks:
        if isinstance(task.op, Collective) and task.op.axis in (
            "dp", "shard", "replicate", "expert_dp", "expert_shard", "expert_replicate",
        ):  # fmt: skip
            assert len({place for group in task.op.groups for place in group}) == sum(map(len, task.op.groups))
            (group,) = [group for group in task.op.groups if rank in group]
            found[task.op.collective, tuple(sorted(group))] += task.op.n_bytes
    return found


@pytest.mark.parametrize(("framework", "sharding"), [(name, one) for name, some in FRAMEWORKS.items() for one in some])
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_gradient_is_reduced_once_over_those_who_hold_its_parameter(framework, sharding, data):
    chosen, predicts = data.draw(cases(framework, sharding))
    try:
        plan = ParallelPlan(**chosen).resolve(chosen["gpus"])
        model = model_for(replace(EXPERTS, mtp_layers=int(predicts)), plan)
        lowered = lower(model, plan, gpus_per_node=8, boundary_bytes=1024, all_micro_batches=True)
    except (ConfigError, InfeasiblePlanError):
        reject()
    for rank in (0, plan.gpus - 1):
        stage = rank * plan.pp // plan.gpus
        tensors = [p for chunk in lowered.chunks[stage] for layer in chunk for p in layer.parameters]
        n_elements = {kind: sum(p.n_elements for p in tensors if p.is_expert == kind) for kind in (False, True)}
        assert n_elements[False]
        sums, gathers = expected(rank, plan, n_elements)
        found = sent(lowered.program, rank)
        gathered = {group: found.pop((name, group)) for name, group in list(found) if name == "all_gather"}
        assert found == pytest.approx(sums, rel=1e-3)
        assert set(gathered) == set(gathers)
        for group, n_bytes in gathered.items():
            assert 0.999 * gathers[group][0] <= n_bytes <= 1.001 * gathers[group][1]
