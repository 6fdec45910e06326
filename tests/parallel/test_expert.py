"""Expert parallelism: bytes of every dispatcher, capacity and skew, and what runs beside the exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import CommunicationPoint, GemmShape
from simulator.parallel.context import Exchange, exchange_context
from simulator.parallel.expert import FP8_SHARE, exchange_experts, expected_distinct, expert_load
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.stage import items_of
from simulator.plan import ParallelPlan

SPEC = find_spec("mixtral-8x7b")
TOKENS = 2 * 1024
TOKEN_BYTES = 2 * SPEC.hidden


def plan_of(ep=8, **changes):
    return ParallelPlan(gpus=ep, dp=ep, ep=ep, micro_batch=2, global_batch=2 * ep, sequence_length=1024,
                        framework="megatron-core", **changes)  # fmt: skip


def items(plan, kind="F", spec=SPEC, gpus_per_node=8):
    model = build_model(
        spec, micro_batch=2, sequence_length=1024, ep=plan.ep, kernels="fused", expert_load=expert_load(plan)
    )
    layer = next(layer for layer in model.layers if layer.name == "moe_block")
    communicators = Communicators(Mesh(plan, gpus_per_node), 0, folded=True)
    return [
        item
        for _, part in items_of(layer, kind)
        for item in exchange_experts(exchange_context(part, plan), plan, communicators)
    ]


def sent(*args, **kwargs):
    return [(i.collective, i.axis, i.n_bytes) for i in items(*args, **kwargs) if isinstance(i, Exchange)]


@pytest.mark.parametrize("kind", ["F", "B"])
def test_every_copy_of_every_token_goes_and_returns(kind):
    n_bytes = TOKENS * SPEC.top_k * TOKEN_BYTES
    assert sent(plan_of(), kind) == [("all_to_all", "ep", n_bytes)] * 2


def test_allgather_brings_all_tokens_to_all_ranks():
    n_bytes = TOKENS * TOKEN_BYTES * 8
    assert sent(plan_of(moe_dispatcher="allgather")) == [
        ("all_gather", "ep", n_bytes),
        ("reduce_scatter", "ep", n_bytes),
    ]


def test_deepep_sends_one_copy_per_node_and_rank():
    found = sent(plan_of(moe_dispatcher="deepep"), gpus_per_node=4)
    across = round(TOKENS * TOKEN_BYTES * expected_distinct(2, SPEC.top_k))
    inside = round(TOKENS * TOKEN_BYTES * expected_distinct(8, SPEC.top_k))
    assert found == [("all_to_all", "ep:rail", across), ("all_to_all", "ep:local", inside)] * 2
    assert [axis for _, axis, _ in sent(plan_of(moe_dispatcher="deepep"), gpus_per_node=8)] == ["ep:local"] * 2


@pytest.mark.parametrize("kind", ["F", "B"])
def test_eight_bits_on_the_way_to_the_experts_only(kind):
    n_bytes = TOKENS * SPEC.top_k * TOKEN_BYTES
    assert [n for _, _, n in sent(plan_of(moe_fp8_dispatch=True), kind)] == [round(FP8_SHARE * n_bytes), n_bytes]


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({}, 1.0),
        ({"moe_imbalance": 1.5}, 1.5),
        ({"moe_imbalance": 1.5, "moe_capacity_factor": 1.25}, 1.25),  # the rest is dropped
        ({"moe_imbalance": 1.1, "moe_capacity_factor": 1.25}, 1.1),
        ({"moe_capacity_factor": 0.75}, 0.75),
        ({"moe_capacity_factor": 1.25, "moe_pad_to_capacity": True}, 1.25),
    ],
)
def test_the_busiest_rank_sets_bytes_and_rows(changes, load):
    plan = plan_of(**changes)
    assert expert_load(plan) == load
    assert sent(plan)[0][2] == pytest.approx(load * TOKENS * SPEC.top_k * TOKEN_BYTES, rel=1e-3)
    flops = [
        sum(i.n_flops for i in items(p) if isinstance(i, GemmShape) and i.name == "grouped_gemm")
        for p in (plan, plan_of())
    ]
    assert flops[0] / flops[1] == pytest.approx(load, rel=1e-2)


def test_one_rank_has_all_experts():
    assert expert_load(plan_of(ep=1, moe_imbalance=2.0)) == 1.0
    assert sent(plan_of(ep=1)) == []


@pytest.mark.parametrize("kind", ["F", "B"])
def test_the_shared_expert_runs_beside_the_first_exchange(kind):
    spec = replace(SPEC, name="shared", shared_expert_hidden=4096)
    plain, beside = (items(plan_of(moe_shared_expert_overlap=on), kind, spec) for on in (False, True))
    assert not any(isinstance(i, CommunicationPoint) and i.operator == "shared" for i in plain + beside)
    first = next(i for i, item in enumerate(beside) if isinstance(item, Exchange))
    n_shared = beside[first].overlaps
    assert n_shared >= 3
    names = [getattr(item, "name", "") for item in beside[first + 1 : first + 1 + n_shared]]
    assert {"mlp_up", "mlp_down"} <= set(names)
    kernels = [sorted(repr(i) for i in some if not isinstance(i, Exchange)) for some in (plain, beside)]
    assert kernels[0] == kernels[1]
