"""Expert parallelism: bytes of every dispatcher, capacity and skew, and what runs beside the exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.costs import ModelCosts
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.kernels import RooflineKernels
from simulator.kernels.host import PIECE_S
from simulator.models.build import build_model
from simulator.models.catalog import find_spec, rename
from simulator.models.layer import CommunicationPoint, GemmShape, Launch
from simulator.models.setting import RankSetting
from simulator.parallel.context import LayerCollective, exchange_context
from simulator.parallel.expert import exchange_experts, expected_places, expert_load
from simulator.parallel.idle import idle_settings
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.rank_model import model_for
from simulator.parallel.stage import items_of, template_of
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork, Kernel, KernelRun
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology.device_file import load_device

SPEC = find_spec("mixtral-8x7b")
TOKENS = 2 * 1024
TOKEN_BYTES = 2 * SPEC.hidden


def plan_of(ep=8, **changes):
    return ParallelPlan(gpus=ep, dp=ep, ep=ep, micro_batch=2, global_batch=2 * ep, sequence_length=1024,
                        framework="megatron-core", **changes)  # fmt: skip


def items(plan, kind="F", spec=SPEC, gpus_per_node=8):
    model = build_model(
        spec,
        RankSetting(micro_batch=2, sequence_length=1024, ep=plan.ep, kernels="fused", expert_load=expert_load(plan)),
    )
    layer = next(layer for layer in model.layers if layer.name == "moe_block")
    communicators = Communicators(Mesh(plan, gpus_per_node), 0, folded=True)
    return [
        item
        for _, part in items_of(layer, kind)
        for item in exchange_experts(exchange_context(part, plan), plan, communicators)
    ]


def sent(*args, **kwargs):
    return [(i.collective, i.axis, i.n_bytes) for i in items(*args, **kwargs) if isinstance(i, LayerCollective)]


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
    """Two of eight experts: of 28 pairs 12 lie on one of two nodes, 16 on both, and none on one of eight ranks."""
    found = sent(plan_of(moe_dispatcher="deepep"), gpus_per_node=4)
    across, inside = round(TOKENS * TOKEN_BYTES * (12 * 1 + 16 * 2) / 28), TOKENS * TOKEN_BYTES * 2
    assert found == [("all_to_all", "ep:rail", across), ("all_to_all", "ep:local", inside)] * 2
    assert [axis for _, axis, _ in sent(plan_of(moe_dispatcher="deepep"), gpus_per_node=8)] == ["ep:local"] * 2


@pytest.mark.parametrize("kind", ["F", "B"])
def test_eight_bits_on_the_way_to_the_experts_only(kind):
    """DeepSeek-V3, arXiv:2412.19437, section 3.3.2: a byte an element and a scale of four bytes for every 128."""
    n_tokens, hidden = TOKENS * SPEC.top_k, SPEC.hidden
    there, back = n_tokens * (hidden + 4 * hidden // 128), n_tokens * 2 * hidden
    assert [n for _, _, n in sent(plan_of(moe_fp8_dispatch=True), kind)] == [there, back]


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


def test_the_busiest_rank_has_no_more_than_all_tokens():
    """Of n ranks with a mean of m tokens one has n m at most."""
    plan = ParallelPlan(gpus=8, ep=8, sharding="zero1", framework="megatron-core")
    assert expert_load(replace(plan, moe_imbalance=8.0).resolve(8)) == 8.0
    with pytest.raises(InfeasiblePlanError, match=r"moe_imbalance=8\.5 with ep=8: .* 8 times the mean"):
        replace(plan, moe_imbalance=8.5).resolve(8)
    assert expert_load(replace(plan, ep=1, moe_imbalance=8.5).resolve(8)) == 1.0


@pytest.mark.parametrize("kind", ["F", "B"])
def test_the_shared_expert_runs_beside_the_first_exchange(kind):
    spec = replace(SPEC, name="shared", shared_expert_hidden=4096)
    plain, beside = (items(plan_of(moe_shared_expert_overlap=on), kind, spec) for on in (False, True))
    assert not any(isinstance(i, CommunicationPoint) and i.operator == "shared" for i in plain + beside)
    first = next(i for i, item in enumerate(beside) if isinstance(item, LayerCollective))
    n_shared = beside[first].overlaps
    assert n_shared >= 3
    names = [getattr(item, "name", "") for item in beside[first + 1 : first + 1 + n_shared]]
    assert {"mlp_up", "mlp_down"} <= set(names)
    kernels = [sorted(repr(i) for i in some if not isinstance(i, LayerCollective)) for some in (plain, beside)]
    assert kernels[0] == kernels[1]


# -- axes of their own ------------------------------------------------------------------------------------------------

MIXTRAL = find_spec("mixtral-8x7b")


def expert_products(spec, **settings):
    """Grouped products of one block of one rank, forward and backward."""
    layer = next(
        one
        for one in build_model(spec, RankSetting(micro_batch=1, sequence_length=4096, **settings)).layers
        if one.is_block
    )
    return [k for k in (*layer.forward, *layer.backward) if isinstance(k, GemmShape) and k.name == "grouped_gemm"]


@pytest.mark.parametrize(
    ("tp", "cp", "ep", "etp", "split"),
    [(1, 1, 1, None, False), (2, 1, 1, None, True), (8, 1, 1, None, True), (2, 1, 1, None, False), (8, 1, 4, None, False),
     (4, 1, 8, 1, True), (4, 2, 4, 2, True), (1, 1, 2, 2, False), (2, 1, 8, 4, True)],
)  # fmt: skip
def test_experts_compute_the_same_however_they_are_laid_over_the_ranks(tp, cp, ep, etp, split):
    """Mixtral 8x7B (arXiv:2401.04088): 2 of 8 SwiGLU experts of 4,096 x 14,336 per token, three passes of 2 FLOPs a weight."""
    a_sequence = 4096 * 2 * 3 * (3 * 2 * 4096 * 14336)
    each = sum(k.n_flops for k in expert_products(MIXTRAL, tp=tp, cp=cp, ep=ep, etp=etp, sequence_parallel=split))
    assert each * tp * cp == pytest.approx(a_sequence, rel=1e-3)


@pytest.mark.parametrize(("kernels", "library"), [("compiled", "torch"), ("fused", ""), ("hf-eager", "")])
def test_torchtitan_runs_its_experts_through_torchs_grouped_product(kernels, library):
    """pytorch/torchtitan, ``models/moe``: ``torch._grouped_mm``; Transformer Engine calls cuBLAS, expert by expert."""
    products = expert_products(MIXTRAL, kernels=kernels)
    assert len(products) >= 6
    assert {(k.library, k.n_pieces) for k in products} == {(library, 1 if library else 8)}


def products_of_a_loop(kernels):
    return [(k.batch, k.in_turn) for k in expert_products(MIXTRAL, kernels=kernels)]


def test_a_loop_runs_experts_one_after_the_other():
    """huggingface/transformers, ``MixtralExperts.forward``; Transformer Engine spreads products over streams (``multi_tensor_gemm``)."""
    assert set(products_of_a_loop("hf-eager")) == {(8, True)}
    assert set(products_of_a_loop("fused")) == set(products_of_a_loop("compiled")) == {(8, False)}
    device, kernels = load_device("h100-sxm5-80g"), RooflineKernels()
    few = GemmShape(m=64, n=1536, k=2048, batch=32, name="grouped_gemm", n_pieces=32)
    one = kernels.duration_s(replace(few, batch=1), device)
    assert kernels.duration_s(replace(few, in_turn=True), device) == pytest.approx(32 * one)
    assert kernels.duration_s(few, device) < 16 * one


@pytest.mark.parametrize(
    ("changes", "n_waits"),
    [
        ({"framework": "hf-eager"}, 1),
        ({"framework": "megatron-core"}, 1),
        ({"framework": "megatron-core", "ep": 2, "dp": 2, "gpus": 2}, 1),  # for the exchange, not once more
        ({"framework": "torchtitan-compile"}, 0),  # offsets stay on the device
        ({"framework": "megatron-core", "moe_fused_experts": True}, 0),
        ({"framework": "megatron-core", "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}, 0),
        ({"framework": "megatron-core", "cuda_graphs": "full_iteration"}, 0),
    ],
)
def test_the_host_reads_how_many_tokens_each_expert_gets_without_an_exchange_too(changes, n_waits):
    """NVIDIA/Megatron-LM, ``token_dispatcher.py``: ``tokens_per_expert`` goes to the host, where a grouped product needs it."""
    plan = ParallelPlan(**{"gpus": 1, "dp": 1, "micro_batch": 1, "global_batch": 2, "sequence_length": 1024} | changes)
    layer = next(layer for layer in model_for(replace(SPEC, layers=1), plan).layers if layer.is_block)
    template = template_of(layer, "F", plan, Communicators(Mesh(plan), 0, folded=True))
    waits = [i for i, entry in enumerate(template.entries) if isinstance(entry.op, HostWork)]
    assert len(waits) == n_waits
    for place in waits:
        names = [k.name for e in template.entries[:place] if isinstance(e.op, KernelRun) for k in e.op.kernels]
        assert "router" in names and "grouped_gemm" not in names


def moved(spec, plan, **settings):
    """Collectives of experts and tensors in forward, by axis, in elements of 16 bits."""
    layer = next(
        one
        for one in build_model(spec, RankSetting(micro_batch=1, sequence_length=4096, **settings)).layers
        if one.is_block
    )
    template = template_of(layer, "F", plan, Communicators(Mesh(plan), 0, folded=True))
    ops = [entry.op for entry in template.entries if isinstance(entry.op, Collective)]
    return [(op.collective, op.axis, op.n_bytes // 2) for op in ops]


def test_tokens_of_ranks_that_share_an_expert_are_gathered_and_scattered():
    """Megatron-Core's all-to-all dispatcher: to the experts, gather over their tensor-parallel group, and back."""
    settings = {"tp": 4, "ep": 2, "sequence_parallel": True}
    plan = ParallelPlan(gpus=8, dp=2, micro_batch=1, sequence_length=4096, framework="megatron-core", **settings)
    routed = 4096 // 4 * 2 * 4096  # tokens of a rank, two experts each, hidden size
    assert moved(MIXTRAL, plan, **settings)[-4:] == [
        ("all_to_all", "ep", routed), ("all_gather", "etp", 4 * routed),
        ("reduce_scatter", "etp", 4 * routed), ("all_to_all", "ep", routed),
    ]  # fmt: skip


def test_experts_whole_on_a_rank_gather_nothing():
    settings = {"tp": 4, "ep": 8, "etp": 1, "sequence_parallel": True}
    plan = ParallelPlan(gpus=8, dp=2, micro_batch=1, sequence_length=4096, framework="megatron-core", **settings)
    assert {axis for _, axis, _ in moved(MIXTRAL, plan, **settings)} == {"tp", "ep"}


def test_parts_of_an_expert_are_summed_where_all_ranks_have_the_same_tokens():
    settings = {"tp": 4}
    plan = ParallelPlan(gpus=8, dp=2, micro_batch=1, sequence_length=4096, framework="torch-3d", **settings)
    assert moved(MIXTRAL, plan, **settings)[-1] == ("all_reduce", "tp", 4096 * 4096)


def test_expert_groups_are_megatrons():
    """``RankGenerator(tp=1, ep=4, dp=2, pp=2, cp=1, order="tp-cp-ep-dp-pp")`` beside tp = 2, dp = 4 on 16 ranks, by hand."""
    mesh = Mesh(ParallelPlan(gpus=16, tp=2, dp=4, pp=2, ep=4, etp=1, sequence_parallel=True).resolve(16))
    assert mesh.groups("ep", 1) == ((8, 9, 10, 11), (12, 13, 14, 15))
    assert mesh.groups("expert_dp", 0) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.groups("etp", 0) == tuple((rank,) for rank in range(8))
    assert mesh.groups("dp", 0) == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_every_rank_is_in_one_group_of_every_expert_axis():
    for tp, cp, dp, ep, etp in ((4, 2, 4, 8, 2), (2, 2, 3, 6, 1), (1, 2, 4, 2, 2), (8, 1, 2, 16, 1)):
        for order in ("tp-cp-ep-dp-pp", "tp-cp-dp-ep-pp", "tp-cp-ep-pp-dp", "cp-tp-dp-pp"):
            settings = {"tp": tp, "cp": cp, "dp": dp, "pp": 2, "ep": ep, "etp": etp}
            mesh = Mesh(
                ParallelPlan(gpus=2 * tp * cp * dp, rank_order=order, sequence_parallel=True, **settings).resolve(
                    2 * tp * cp * dp
                )
            )
            for axis, size in (("etp", etp), ("ep", ep), ("expert_dp", tp * cp * dp // (ep * etp))):
                groups = mesh.groups(axis, 1)
                assert {len(group) for group in groups} == {size}
                assert sorted(rank for group in groups for rank in group) == sorted(mesh.stage_ranks(1))


def test_megatron_refuses_experts_under_tensor_parallelism_without_sequence_parallelism():
    scenario = Scenario(topology="hgx-h200", model="mixtral-8x7b", plan=ParallelPlan(gpus=8, tp=8, micro_batch=1))
    with pytest.raises(InfeasiblePlanError, match="sequence parallelism only"):
        simulate(scenario)


def test_qwen3_235b_runs_as_nvidia_runs_it():
    """tp 2, pp 8, ep 32 on 256 GPUs (dgxc-benchmarking): experts lie over the tensor-parallel ranks, too."""
    plan = ParallelPlan(tp=2, pp=8, virtual_pp=4, ep=32, etp=1, sequence_parallel=True, micro_batch=1, global_batch=2048,
                        sequence_length=4096, framework="megatron-core", sharding="zero1")  # fmt: skip
    spec = find_spec("qwen3-235b-a22b")
    result = simulate(Scenario(topology="dgx-h100", model=spec.name, plan=replace(plan, gpus=256)))
    sizes = {row["axis"]: row["group_size"] for row in result.metrics.communication}
    assert (sizes["ep"], sizes["tp"], "etp" in sizes) == (32, 2, False)
    # 94 layers and both ends over 32 parts: the last stage has 11 layers and the output projection
    experts, attention, router = 128 // 32 * 3 * 4096 * 1536, (2 * 4096 * 8192 + 2 * 4096 * 512) // 2, 128 * 4096
    elements = 11 * (experts + attention + router) + 151936 * 4096 // 2
    assert result.memory.stages[-1].by_category["parameters"] / 2 == pytest.approx(elements, rel=1e-3)


def waits_of(kind="F", **changes):
    plan = plan_of(**changes)
    model = build_model(SPEC, RankSetting(micro_batch=2, sequence_length=1024, ep=plan.ep, kernels="fused"))
    layer = next(layer for layer in model.layers if layer.name == "moe_block")
    template = template_of(layer, kind, plan, Communicators(Mesh(plan, 8), 0, folded=True))
    return sum(isinstance(entry.op, HostWork) for entry in template.entries)


def test_the_host_waits_once_for_the_tokens_of_every_expert():
    """NVIDIA/Megatron-LM, token_dispatcher.py: the splits are copied to the host in forward; backward knows them."""
    assert [waits_of("F"), waits_of("B")] == [1, 0]
    assert waits_of(moe_dispatcher="deepep") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"cuda_graphs": "full_iteration"},
        {"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True},
    ],
)
def test_static_shapes_and_graphs_need_no_wait(changes):
    assert waits_of(**changes) == 0


def host_s(ep, **changes):
    plan = plan_of(ep=ep, **{"moe_dispatcher": "deepep", **changes})
    result = simulate(Scenario(topology="dgx-h100", model=SPEC.name, plan=plan))
    costs = ModelCosts(result.topology, result.scenario)
    layer = next(layer for layer in result.model.layers if layer.name == "moe_block")
    kernels = [Kernel(name=i.name, phase="forward", shape=i) for i in layer.forward if isinstance(i, Launch)]
    return sum(costs.issue_ps(k, 0) for k in kernels) / 1e12


def test_every_local_expert_costs_its_launches():
    """Two grouped products of bf16 launch one kernel each per local expert: 2 x (4 - 1) more with 4 of 8 experts than with 1."""
    expert_s = PIECE_S[1]
    assert host_s(2) - host_s(8) == pytest.approx(2 * 4 * expert_s, rel=0.01)  # with one, there is nothing to loop over
    assert host_s(2, moe_fused_experts=True) == pytest.approx(host_s(8, moe_fused_experts=True))
    # and what an all-to-all delivered is sorted by expert, and back, in a launch of 20 us each
    sorting = host_s(2, moe_dispatcher="alltoall") - host_s(2) - (31 - 17) * 20e-6
    assert sorting == pytest.approx(2 * 20e-6)


@pytest.mark.parametrize(("release", "more"), [("26.02", 31 - 17), ("25.05", 72 - 17)])
def test_kernels_between_router_and_exchange_are_those_that_were_counted(release, more):
    """NVIDIA/Megatron-LM, deepseek-v3-gb200-optimization, 2.1.4 and 2.2.1: 72 before the fused router, 31 with it, 17 with DeepEP."""
    flex, exchange = (host_s(8, moe_dispatcher=name, release=release) for name in ("deepep", "alltoall"))
    assert exchange - flex == pytest.approx(more * 20e-6)


def test_routers_of_nvidias_recipes_compute_in_fp32():
    """``moe_router_dtype = "fp32"`` (NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/models); Megatron-Core has none."""
    products = {}
    for name in ("megatron-core", "megatron-bridge"):
        model = model_for(SPEC, ParallelPlan.of({"gpus": 8, "ep": 8, "framework": name, "micro_batch": 1}))
        items = [item for layer in model.layers for item in layer.backward]
        products[name] = {item.dtype for item in items if getattr(item, "name", "") == "router"}
    assert products == {"megatron-core": {"bf16"}, "megatron-bridge": {"tf32"}}


def test_a_dispatcher_with_few_sms_is_bound_by_them():
    """Dispatch in bf16 at 4 SMs against 24: more than four times slower on H100 (dispatch table: 2,068 against 498 us in fp8)."""

    def moved_s(n_sms):
        plan = plan_of(moe_dispatcher="deepep", moe_dispatcher_sms=n_sms)
        result = simulate(Scenario(topology="dgx-h100", model=SPEC.name, plan=plan))
        return sum(row["total_s"] for row in result.metrics.communication if row["axis"].startswith("ep"))

    assert moved_s(4) > 2 * moved_s(24)


@pytest.mark.parametrize(
    ("n_ranks", "published"), [(8, (764.03, 737.13)), (16, (706.95, 666.26)), (32, (642.23, 605.15))]
)
def test_hybridep_carries_tokens_at_the_rates_that_its_authors_print(n_ranks, published):
    """deepseek-ai/DeepEP, branch hybrid-ep: bf16 on GB200, kernels alone, 32 SMs, 4,096 tokens of 7,168, top 8: both ways, GB/s."""
    spec = rename(
        find_spec("deepseek-v3"), "x", layers=2, dense_layers=1, mtp_layers=0, expert_groups=0
    )  # tests/test_hybrid_ep.py: any
    plan = ParallelPlan.of({
        "gpus": n_ranks, "dp": n_ranks, "ep": n_ranks, "micro_batch": 1, "sequence_length": 4096, "moe_dispatcher": "hybridep",
        "framework": "megatron-bridge", "global_batch": n_ranks, "overlap": False, "overlap_parameter_gather": False,
    })  # fmt: skip
    rows = simulate(Scenario(topology="gb200-nvl72", model="x", plan=plan), spec=spec).metrics.communication
    rates = [row["algbw_bytes_per_s"] / 1e9 for row in rows if row["axis"] == "ep:local"]
    assert rates == [pytest.approx(sum(published) / 2, rel=0.1)]


def test_exchanges_run_beside_other_micro_batches_without_a_pipeline():
    """Megatron-Core's combined 1F1B: NVIDIA-NeMo/Megatron-Bridge PR 3862 has Qwen3-30B at 41.25 s without and 31.31 s with it."""

    def exposed_s(schedule):
        plan = replace(plan_of(), schedule=schedule, global_batch=8 * 16)
        return simulate(Scenario(topology="dgx-h100", model=SPEC.name, plan=plan)).metrics.breakdown[
            "exposed_communication_s"
        ]

    assert exposed_s("1f1b-combined") < 0.6 * exposed_s("1f1b")


def test_a_release_brings_its_features_where_nothing_else_is_said():
    """Megatron Bridge 26.06: fused experts in graphs of the whole iteration for mixtures in MXFP8, and for nothing else."""
    recipe = {"framework": "megatron-bridge", "ep": 8, "precision": "mxfp8"}
    new = ParallelPlan.of({**recipe, "release": "26.06"})
    assert (new.moe_fused_experts, new.cuda_graphs) == (True, "full_iteration")
    assert ParallelPlan.of({**recipe, "release": "26.06", "cuda_graphs": "none"}).cuda_graphs == "none"
    for other in ({"release": "26.04"}, {"release": "26.06", "precision": "bf16"}, {"release": "26.06", "ep": 1}):
        assert not ParallelPlan.of({**recipe, **other}).moe_fused_experts
    with pytest.raises(ConfigError, match="container"):
        ParallelPlan(release="newest")


@pytest.mark.parametrize(
    ("settings", "is_early"),
    [
        ({"framework": "megatron-bridge", "release": "25.11"}, True),
        ({"framework": "megatron-core", "release": "25.11"}, True),
        ({"framework": "megatron-bridge", "release": "26.02"}, False),
        ({"framework": "megatron-bridge"}, False),
        ({"framework": "fsdp2", "release": "25.11"}, False),
    ],
)
def test_containers_before_26_02_have_a_transformer_engine_that_costs_the_host_more(settings, is_early):
    """NVIDIA's software versions: container 25.11 has Transformer Engine 2.9, 26.02 has 2.12; pull request 2377 came with 2.11."""
    plan = ParallelPlan.of(settings)
    assert plan.release_facts.has_early_modules is is_early


#: fit rows MB-0061 and MB-0227 of the frontier table: Qwen3 30B on 8 GB200, eager experts in 26.02 and whole graphs in 26.06
@pytest.mark.parametrize(
    ("changes", "measured_s"),
    [
        ({"release": "26.02", "cuda_graphs": "moe_router+moe_preprocess"}, 10.05),
        ({"release": "26.06", "schedule": "1f1b-combined"}, 6.44),
    ],
)
def test_graphs_and_fused_experts_make_what_was_measured(changes, measured_s):
    settings = {
        "framework": "megatron-bridge", "precision": "mxfp8", "dp": 8, "ep": 8, "micro_batch": 4, "global_batch": 512,
        "sequence_length": 4096, "moe_dispatcher": "hybridep",
    }  # fmt: skip
    scenario = Scenario(
        topology="gb200-nvl72", model="qwen3-30b-a3b", plan=ParallelPlan.of({"gpus": 8, **settings, **changes})
    )
    assert simulate(scenario).metrics.iteration_time_s == pytest.approx(measured_s, rel=0.15)


@pytest.mark.parametrize("sharding", ["none", "zero1"])
@pytest.mark.parametrize("unfold", [False, True])
def test_experts_have_replicas_where_dense_layers_have_none(sharding, unfold):
    """Eight tensor-parallel ranks hold four copies of half of the experts each: one of the dense layers, 8 / (ep 2 x etp 1) of the
    experts, whose gradients are reduced and states sharded over four (Megatron-Core, ``parallel_state.py``: expert data parallelism).
    """
    plan = ParallelPlan(
        gpus=8, tp=8, ep=2, etp=1, micro_batch=1, global_batch=2, sequence_length=1024, sequence_parallel=True,
        framework="megatron-core", sharding=sharding,
    )  # fmt: skip
    spec = replace(SPEC, layers=2)
    n_experts = 2 * SPEC.n_experts // 2 * 3 * SPEC.hidden * SPEC.expert_hidden
    assert not [name for name, _ in idle_settings(plan.resolve(8)) if name == "sharding"]
    found = simulate(Scenario(topology="dgx-h100", model="x", plan=plan, unfold=unfold), spec=spec)
    rows = {row["collective"]: row for row in found.metrics.communication if row["axis"] == "expert_dp"}
    assert {row["group_size"] for row in rows.values()} == {4}
    if sharding == "none":
        assert {name: row["bytes"] for name, row in rows.items()} == {"all_reduce": 4 * n_experts}
    else:
        assert {name: row["bytes"] for name, row in rows.items()} == {
            "reduce_scatter": 4 * n_experts,
            "all_gather": 2 * n_experts,
        }
    memory = found.memory.by_category
    n_dense = memory["parameters"] // 2 - n_experts
    assert memory["optimizer"] == 12 * (n_dense + n_experts // (1 if sharding == "none" else 4))


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_experts_are_reduced_and_gathered_beside_compute_as_dense_layers_are(sharding):
    """Megatron-Core has bucket groups of its own for experts, which start and wait like the others
    (``distributed_data_parallel.py``, ``expert_parallel_bucket_groups``): a step sends each gradient and parameter once either way.
    """
    plan = ParallelPlan(gpus=32, ep=8, micro_batch=1, global_batch=64, sequence_length=4096, framework="megatron-core",
                        sharding=sharding, overlap=False)  # fmt: skip
    spec = replace(SPEC, layers=4)
    n_experts = 4 * SPEC.n_experts // 8 * 3 * SPEC.hidden * SPEC.expert_hidden
    expected = (
        {"all_reduce": 4 * n_experts}
        if sharding == "none"
        else {"reduce_scatter": 4 * n_experts, "all_gather": 2 * n_experts}
    )
    hidden = {}
    for overlap, gathers_ahead in ((False, False), (True, False), (True, sharding != "none")):
        changed = replace(plan, overlap=overlap, overlap_parameter_gather=gathers_ahead)
        metrics = simulate(Scenario(topology="dgx-h100", model="x", plan=changed), spec=spec).metrics
        rows = {row["collective"]: row for row in metrics.communication if row["axis"] == "expert_dp"}
        assert {name: row["bytes"] for name, row in rows.items()} == expected
        hidden[overlap, gathers_ahead] = metrics.breakdown["overlapped_communication_s"]
        counts = {name: row["count"] for name, row in rows.items()}
        assert all(
            (count > 1) == (overlap and (gathers_ahead or name != "all_gather")) for name, count in counts.items()
        )
    assert sorted(hidden, key=hidden.__getitem__) == sorted(hidden)


def test_places_are_counted_over_all_choices_of_experts():
    """Four experts on two ranks, two chosen: of the six pairs two lie on one rank."""
    assert expected_places(2, 2, 4) == pytest.approx((2 * 1 + 4 * 2) / 6)
    assert expected_places(4, 3, 4) == 3.0


@pytest.mark.parametrize(
    ("n_places", "n_experts", "top_k", "n_groups", "n_open"),
    [
        (8, 256, 8, 8, 4),
        (4, 256, 8, 8, 4),
        (32, 256, 8, 8, 4),
        (2, 64, 6, 8, 3),
        (8, 128, 8, 0, 0),
        (8, 8, 2, 0, 0),
        (16, 32, 8, 4, 2),
    ],
)
def test_tokens_go_to_the_places_of_their_distinct_experts(n_places, n_experts, top_k, n_groups, n_open):
    """Against draws of 20,000 tokens: groups first, then distinct experts of these."""
    random = np.random.default_rng(0)
    hits = 0
    groups_of = np.arange(n_experts) // (n_experts // (n_groups or 1))
    for _ in range(20_000):
        groups = random.choice(n_groups, n_open, replace=False) if n_groups else [0]
        experts = random.choice(np.flatnonzero(np.isin(groups_of, groups)), top_k, replace=False)
        hits += len(set(experts * n_places // n_experts))
    found = expected_places(n_places, top_k, n_experts, n_groups, n_open)
    assert found == pytest.approx(hits / 20_000, rel=0.01)


def test_a_dispatcher_takes_no_more_sms_than_there_are():
    """NVIDIA, H100 datasheet: 132 SMs of the SXM board."""
    spec = rename(find_spec("deepseek-v2-lite"), "small")
    spec = replace(spec, layers=2)
    settings = {
        "gpus": 8,
        "ep": 8,
        "micro_batch": 1,
        "sequence_length": 4096,
        "sharding": "zero1",
        "framework": "megatron-core",
    }
    settings |= {"moe_dispatcher": "hybridep", "moe_shared_expert_overlap": True}

    def step(n_sms):
        plan = ParallelPlan(**settings, moe_dispatcher_sms=n_sms)
        return simulate(Scenario(topology="dgx-h100", model=spec.name, plan=plan), spec=spec).metrics.iteration_time_s

    assert step(16) < step(132)
    with pytest.raises(InfeasiblePlanError, match=r"moe_dispatcher_sms=133: .* has 132 SMs"):
        step(133)
