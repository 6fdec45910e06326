"""Lower bounds: never above what the simulator gives, and memory that equals the simulator's."""

import math
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.costs import ModelCosts
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.explore.search.best_plans import Energy
from simulator.explore.search.bounds import SATURATED_GROUPS, Bounds
from simulator.explore.search.data_bounds import DataBound
from simulator.explore.search.least_durations import LeastDurations, Message, alone_s
from simulator.explore.search.space import Space
from simulator.faults import Faults
from simulator.models.catalog import find_spec
from simulator.models.layer import PointwiseShape
from simulator.network.base import Flow
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Routed
from simulator.program.program import RankProgram, Repetition, Task
from simulator.scenario import Scenario
from simulator.schedules import build_table, peak_in_flight, placement_of
from simulator.simulation import lower_scenario, resolve, simulate_on
from simulator.topology import load_topology

#: options that change what is communicated, where states live, and what the step waits for
OPTIONS = (
    (), (), (), (("gradient_compression", "onebit"),),
    (("gradient_collective", "reduce_scatter"),), (("gradient_compression", "fp16"),), (("bucket_bytes", 10_000_000),),
    (("offload_optimizer", "cpu"),), (("quantized_weights", True), ("quantized_gradients", True)), (("secondary_group", 2),),
    (("backward_prefetch", "none"),), (("limit_all_gathers", False),), (("no_sync", True),),
    (("recompute_gathers", True),), (("overlap_parameter_gather", True),),
    (("asynchronous_tp", True),), (("scatter_gather", True),), (("cp_comm_type", "p2p"),), (("cp_load_balance", False),),
    (("moe_dispatcher", "allgather"),), (("moe_imbalance", 1.3),), (("rank_order", "tp-cp-ep-pp-dp"),),
    (("sample_time_s", 0.01), ("loader_workers", 2)), (("pipeline_batch", 2),),
    (("optimizer", "muon"),), (("optimizer", "muon"), ("muon_tp_mode", "distributed")),
)  # fmt: skip
FRAMEWORKS = (
    "megatron",
    "megatron-core",
    "megatron-deepspeed",
    "deepspeed",
    "fsdp",
    "torchtitan-compile",
    "hf-eager",
    "automodel",
    "kempnerforge",
)


@lru_cache(maxsize=64)
def prepared(topology, model, gpus, batch, framework, overlap, network, schedule, precision, options=()):
    spec = find_spec(model)
    cluster = load_topology(topology, gpus)
    base = ParallelPlan(
        gpus=gpus, global_batch=batch, framework=framework, overlap=overlap, schedule=schedule, precision=precision,
        sequence_length=256, **dict(options),
    )  # fmt: skip
    scenario = Scenario(topology=topology, model=model, plan=base, network=network)
    plans = tuple(Space(topology=cluster, spec=spec, base=base, allowed={"cp": (1, 2)}).plans())
    return scenario, cluster, spec, plans


@settings(max_examples=40)
@given(
    topology=st.sampled_from(["bigred200", "dgx1-v100-16g", "emulated-1g", "jean-zay-v100-16g"]),
    model=st.sampled_from(["gpt2", "mixtral-8x7b"]),
    gpus=st.sampled_from([1, 4, 8, 12, 16]),
    per_gpu=st.sampled_from([1, 2, 6]),
    framework=st.sampled_from(FRAMEWORKS),
    overlap=st.sampled_from([None, True, False]),
    network=st.sampled_from(["flow", "alpha-beta"]),
    schedule=st.sampled_from(["1f1b", "1f1b", "1f1b-combined", "gpipe", "zb-1p", "dualpipe", "interlaced"]),
    precision=st.sampled_from(["bf16", "amp_bf16"]),
    options=st.sampled_from(OPTIONS),
    choice=st.randoms(use_true_random=False),
)
def test_no_simulation_undercuts_its_bound(
    topology, model, gpus, per_gpu, framework, overlap, network, schedule, precision, options, choice
):
    try:
        scenario, cluster, spec, plans = prepared(
            topology, model, gpus, gpus * per_gpu, framework, overlap, network, schedule, precision, options
        )
    except SimulatorError:
        assume(False)
    assume(plans)
    bounds = Bounds(scenario, cluster, spec)
    plan = choice.choice(plans)
    assume(not (plan.virtual_pp > 1 and plan.sharding in ("zero3", "hsdp")))
    try:
        layout = bounds.layout(plan)
        result = simulate_on(replace(scenario, plan=plan), cluster, spec)
    except InfeasiblePlanError:
        assume(False)
    seconds = result.metrics.iteration_time_s
    assert max(bounds.quick_s(layout), bounds.stage_s(layout)) <= seconds
    assert bounds.full_s(layout) <= bounds.run_s(layout) <= bounds.path_s(layout) <= seconds
    assert bounds.memory(layout) == result.memory
    breakdown = result.metrics.breakdown
    assert bounds.compute_s(layout) <= breakdown["compute_s"]
    energy = Energy.on(cluster, bounds)
    joules = energy.joules({"iteration_time_s": seconds, "breakdown": breakdown})
    assert energy.least_j(layout, bounds.quick_s(layout)) <= joules
    assert energy.least_j(layout, bounds.full_s(layout)) <= joules


@pytest.mark.parametrize("exchange", ["all_gather", "p2p", "a2a"])
def test_bounds_know_the_attention_of_context_parallelism(exchange):
    """Ranks that share a sequence compute other kernels than one that has it all, and shorter ones at times."""
    scenario, cluster, spec, plans = prepared(
        "dgx1-v100-16g", "gpt2", 4, 4, "megatron", None, "flow", "1f1b", "amp_bf16", (("cp_comm_type", exchange),)
    )
    bounds = Bounds(scenario, cluster, spec)
    plan = next(p for p in plans if (p.dp, p.tp, p.cp, p.micro_batch) == (2, 1, 2, 2) and p.sharding == "none")
    metrics = simulate_on(replace(scenario, plan=plan), cluster, spec).metrics
    layout = bounds.layout(plan)
    assert bounds.compute_s(layout) <= metrics.breakdown["compute_s"]
    assert bounds.compute_s(layout) == pytest.approx(metrics.breakdown["compute_s"], rel=0.05)
    assert bounds.quick_s(layout) <= metrics.iteration_time_s


def bounded(topology, model, plan, *, layers=0, **more):
    """Return bounds, the layout of a plan and its simulation, of a model of fewer layers if asked for."""
    cluster, spec = load_topology(topology, plan.gpus), find_spec(model)
    spec = replace(spec, layers=layers) if layers else spec
    scenario = resolve(Scenario(topology=topology, model=model, plan=plan, **more), cluster, spec)
    bounds = Bounds(scenario, cluster, spec)
    return bounds, bounds.layout(scenario.plan), simulate_on(scenario, cluster, spec)


@pytest.mark.parametrize("degrees", [{"dp": 5, "tp": 3}, {"dp": 7, "cp": 2}, {"dp": 5, "tp": 3, "pp": 3}])
@pytest.mark.parametrize("sharding", ["none", "zero3"])
@pytest.mark.parametrize("rank_order", ["tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp"])
def test_groups_may_lie_on_nodes_unequally(degrees, sharding, rank_order):
    plan = ParallelPlan(
        **degrees, gpus=math.prod(degrees.values()), micro_batch=1, global_batch=4 * degrees["dp"],
        sequence_length=960, framework="megatron" if sharding == "none" else "fsdp", sharding=sharding, rank_order=rank_order,
    )  # fmt: skip
    bounds, layout, result = bounded("polaris", "gpt2", plan)
    assert 0.0 < max(bounds.quick_s(layout), bounds.full_s(layout)) <= result.metrics.iteration_time_s


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-b200"])
def test_bounds_and_simulations_build_one_model(topology):
    """Of eight bits with one scale a tensor Blackwell keeps one layout, Hopper two (NVIDIA/TransformerEngine, ``quantizer.cpp``)."""
    plan = ParallelPlan(gpus=8, dp=8, framework="megatron-bridge", precision="fp8", micro_batch=1, global_batch=8)
    bounds, layout, _ = bounded(topology, "llama2-7b", plan)
    scenario = Scenario(topology=topology, model="llama2-7b", plan=layout.plan)
    model = lower_scenario(scenario, bounds.topology, find_spec("llama2-7b"))[0]
    assert layout.model.layers == model.layers
    casts = [i for i in model.layers[1].forward if isinstance(i, PointwiseShape) and i.name == "quantize"]
    assert {i.written_bytes / i.n_elements for i in casts} == {1 if topology == "dgx-b200" else 2}


def test_the_bound_is_tight_where_nothing_overlaps():
    """One GPU, and a pipeline of equal stages: what is left out is small."""
    for gpus, pp in ((1, 1), (4, 2)):
        scenario, cluster, spec, plans = prepared(
            "bigred200", "gpt-1.3b", gpus, 8 * gpus, "megatron", None, "flow", "1f1b", "bf16"
        )
        plan = next(p for p in plans if p.pp == pp and p.tp == 1 and p.virtual_pp == 1 and p.micro_batch == 4)
        bounds = Bounds(scenario, cluster, spec)
        seconds = simulate_on(replace(scenario, plan=plan), cluster, spec).metrics.iteration_time_s
        assert bounds.full_s(bounds.layout(plan)) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("schedule, degrees", [
    ("1f1b-combined", {"dp": 8, "ep": 8}), ("1f1b-combined", {"dp": 16, "ep": 16}),
    ("1f1b-combined", {"dp": 8, "pp": 2, "ep": 8, "virtual_pp": 4}),
    ("1f1b-combined", {"dp": 8, "tp": 2, "ep": 4, "sequence_parallel": True}), ("dualpipe-v", {"dp": 8, "pp": 2, "ep": 8}),
])  # fmt: skip
@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_passes_that_take_turns_end_no_sooner_than_their_exchanges_and_their_pairs(schedule, degrees, sharding):
    """Sixteen ranks' exchanges over the network decide alone, and what pairs take from each other is known to the engine."""
    gpus = degrees["dp"] * degrees.get("tp", 1) * degrees.get("pp", 1)
    plan = ParallelPlan(
        **degrees, gpus=gpus, micro_batch=1, global_batch=8 * degrees["dp"], sequence_length=1024, framework="megatron-core",
        sharding=sharding, schedule=schedule, recompute="full",
    )  # fmt: skip
    bounds, layout, result = bounded("dgx-h100", "qwen3-30b-a3b", plan)
    seconds = result.metrics.iteration_time_s
    assert bounds.quick_s(layout) <= bounds.full_s(layout) <= bounds.run_s(layout) <= bounds.path_s(layout) <= seconds
    exchanged_s = sum(row["total_s"] for row in result.metrics.communication if row["axis"].startswith("ep"))
    if degrees.get("pp", 1) == 1 and schedule == "1f1b-combined":
        assert bounds.full_s(layout) >= 0.9 * exchanged_s


def test_pairs_in_a_pipeline_are_counted_with_what_runs_behind_their_first_message():
    """Most of a pair is the engine's own: a bound that left out its block would be at two thirds of the iteration."""
    plan = ParallelPlan(
        gpus=16, dp=8, pp=2, ep=8, virtual_pp=4, micro_batch=1, global_batch=128, sequence_length=4096, framework="megatron-core",
        sharding="none", schedule="1f1b-combined", cuda_graphs="attn+moe_router",
    )  # fmt: skip
    bounds, layout, result = bounded("dgx-h100", "qwen3-30b-a3b", plan)
    assert 0.9 <= bounds.run_s(layout) / result.metrics.iteration_time_s <= 1.0


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("n_micro_batches", [1, 4, 40])
@pytest.mark.parametrize("degrees", [{"dp": 8, "ep": 8}, {"dp": 8, "tp": 2, "ep": 4, "sequence_parallel": True}])
def test_turns_among_gathers_and_reductions_are_followed_through_the_whole_step(degrees, n_micro_batches, sharding):
    """Each pass gathers or reduces: without the order of a step's tasks a bound knows only the busiest stream, half of it here."""
    plan = ParallelPlan(
        **degrees, gpus=8 * degrees.get("tp", 1), micro_batch=1, global_batch=8 * n_micro_batches, sequence_length=2048,
        framework="megatron-core", sharding=sharding, schedule="1f1b-combined",
    )  # fmt: skip
    bounds, layout, result = bounded("dgx-h100", "qwen3-30b-a3b", plan)
    assert 0.8 <= bounds.path_s(layout) / result.metrics.iteration_time_s <= 1.0


def test_copies_of_what_was_gathered_run_beside_exchanges_inside_passes():
    """On a slow network a block's copies hide behind the reduction before it: added to it they would be more than the step takes."""
    plan = ParallelPlan(
        gpus=8, dp=4, tp=2, micro_batch=1, global_batch=8, sequence_length=512, framework="megatron-core", sharding="hsdp",
        sequence_parallel=True, lora_rank=8, offload_parameters="cpu",
    )  # fmt: skip
    bounds, layout, result = bounded("emulated-1g", "llama3-8b", plan, layers=2)
    assert 0.99 <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0


@pytest.mark.parametrize("n_micro_batches", [1, 2, 8])
@pytest.mark.parametrize(("topology", "gpus", "least"), [("dgx-h100", 16, 0.6), ("emulated-1g", 8, 0.85)])
def test_what_copies_exchange_once_a_step_is_not_overestimated(topology, gpus, least, n_micro_batches):
    plan = ParallelPlan(
        gpus=gpus, dp=gpus, micro_batch=1, global_batch=gpus * n_micro_batches, sequence_length=1024, framework="megatron-core",
        sharding="zero3", sharding_group=gpus // 2, outer_sharding="optim",
    )  # fmt: skip
    bounds, layout, result = bounded(topology, "llama3-8b", plan, layers=8)
    assert least <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0
    assert bounds.memory(layout).peak_bytes == result.memory.peak_bytes


@pytest.mark.parametrize("n_micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize(("topology", "least"), [("dgx-h100", 0.75), ("emulated-1g", 0.85)])
def test_reductions_that_wait_for_the_last_micro_batch_count_once(topology, least, n_micro_batches):
    plan = ParallelPlan(
        gpus=8, dp=8, micro_batch=1, global_batch=8 * n_micro_batches, sequence_length=1024, framework="kempnerforge", sharding="zero3"
    )  # fmt: skip
    bounds, layout, result = bounded(topology, "llama3-8b", plan, layers=8)
    assert least <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0
    assert bounds.memory(layout).peak_bytes == result.memory.peak_bytes


def test_copies_of_what_was_gathered_add_to_passes_that_exchange_nothing():
    """A seventh of this step copies gathered parameters out and gradients in; without them the bound would be at three quarters of it."""
    plan = ParallelPlan(
        gpus=8, dp=8, micro_batch=1, global_batch=8, sequence_length=1024, framework="fsdp2", sharding="zero3"
    )
    bounds, layout, result = bounded("dgx-h100", "llama3-8b", plan, layers=8)
    assert 0.88 <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0


def test_a_plan_that_the_hosts_cannot_hold_keeps_the_bound_of_its_streams():
    """Its simulation says why it does not run; a search goes on."""
    plan = ParallelPlan(
        gpus=4, dp=4, ep=4, micro_batch=1, global_batch=8, sequence_length=1024, framework="megatron-core", sharding="zero3",
        schedule="1f1b-combined", offload_optimizer="cpu",
    )  # fmt: skip
    cluster, spec = load_topology("bigred200", 4), find_spec("mixtral-8x22b")
    scenario = Scenario(topology="bigred200", model="mixtral-8x22b", plan=plan)
    with pytest.raises(InfeasiblePlanError, match="offload need"):
        lower_scenario(scenario, cluster, spec)
    bounds = Bounds(scenario, cluster, spec)
    layout = bounds.layout(plan)
    assert bounds.path_s(layout) == bounds.run_s(layout) == bounds.full_s(layout) > 0.0


def test_passes_outside_pairs_hide_nothing():
    """As many micro-batches as stages leave few pairs; warm-up and cool-down wait for all of their exchanges."""
    plan = ParallelPlan(
        gpus=16, dp=8, pp=2, ep=8, virtual_pp=2, micro_batch=1, global_batch=16, sequence_length=4096, framework="megatron-core",
        sharding="none", schedule="1f1b-combined",
    )  # fmt: skip
    bounds, layout, result = bounded("dgx-h100", "qwen3-30b-a3b", plan)
    assert 0.8 <= bounds.run_s(layout) / result.metrics.iteration_time_s <= 1.0


@pytest.mark.parametrize("slow", [0, 3])
def test_one_slow_gpu_makes_no_other_slow(slow):
    """The first GPU stands for all of a kind in a bound, unless it is the slow one."""
    plan = ParallelPlan(gpus=4, pp=4, micro_batch=2, global_batch=16, sequence_length=512, framework="megatron")
    bounds, layout, result = bounded("bigred200", "gpt2", plan, faults=Faults(slow_ranks=((slow, 2.5),)))
    assert bounds.compute_s(layout) <= result.metrics.breakdown["compute_s"]
    assert bounds.run_s(layout) <= result.metrics.iteration_time_s


@pytest.mark.parametrize("long", [1, 2])
def test_the_longest_stage_of_a_pipeline_decides_wherever_it_stands(long):
    """Twenty of 24 layers stand on the second or third of five stages, each of which is a whole node."""
    layers = ["Et", "t", "t", "t", "tL"]
    layers[long] = 20 * "t"
    plan = ParallelPlan(
        gpus=20, pp=5, pipeline_layout="|".join(layers), micro_batch=4, global_batch=512, sequence_length=2048,
        framework="megatron-core",
    )  # fmt: skip
    bounds, layout, result = bounded("polaris", "gpt-1.3b", plan)
    assert 0.9 <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0


@pytest.mark.parametrize(
    "degrees", [{"tp": 2, "cp": 2, "micro_batch": 3}, {"tp": 4, "virtual_pp": 6, "micro_batch": 6}]
)
def test_a_host_that_is_the_limit_issues_no_slower_than_in_the_engine(degrees):
    """Calls of Transformer Engine's modules take a host longer than plain launches, which stand in one run with them."""
    plan = ParallelPlan(
        gpus=8, pp=2, global_batch=96, sequence_length=256, framework="megatron-core", sequence_parallel=True, **degrees
    )
    bounds, layout, result = bounded("bigred200", "gpt2", plan)
    assert bounds.full_s(layout) <= result.metrics.iteration_time_s


def test_pipelines_both_ways_gather_the_shards_of_each_chunk_for_half_of_the_micro_batches():
    """On 1 Gb/s nothing but gathers and reductions counts."""
    plan = ParallelPlan(
        gpus=4, pp=2, sharding="zero3", schedule="dualpipe", micro_batch=1, global_batch=16, sequence_length=256, framework="fsdp",
    )  # fmt: skip
    bounds, layout, result = bounded("emulated-1g", "gpt2", plan)
    assert 0.8 <= bounds.full_s(layout) / result.metrics.iteration_time_s <= 1.0


def test_groups_that_are_done_first_make_room_for_the_others():
    """On a DGX-1, whose GPUs have unequal NVLinks, two of four pairs reduce in half of the time of the others."""
    plan = ParallelPlan(
        gpus=8, tp=4, cp=2, micro_batch=4, global_batch=8, sequence_length=256, precision="amp_bf16", sharding="zero2",
        sequence_parallel=True, overlap=False, framework="megatron-core",
    )  # fmt: skip
    bounds, layout, result = bounded("dgx1-v100-16g", "mixtral-8x7b", plan)
    assert max(bounds.full_s(layout), bounds.run_s(layout)) <= result.metrics.iteration_time_s


def test_interleaved_passes_exchange_both_messages_at_once():
    """Each of eight chunks sends twice for each micro-batch, and waits once for both messages."""
    plan = ParallelPlan(
        gpus=16, tp=2, dp=2, pp=4, ep=2, virtual_pp=8, micro_batch=3, global_batch=96, sequence_length=256, framework="deepspeed",
        overlap=True,
    )  # fmt: skip
    bounds, layout, result = bounded("bigred200", "mixtral-8x7b", plan, network="alpha-beta")
    assert 0.9 <= bounds.run_s(layout) / result.metrics.iteration_time_s <= 1.0


def test_messages_that_are_exchanged_share_the_links_that_both_take():
    """A stage on each node: what it sends forward and backward at once leaves through the same two NICs."""
    plan = ParallelPlan(
        gpus=16, dp=4, pp=4, virtual_pp=3, micro_batch=8, global_batch=512, sequence_length=256, framework="megatron",
        overlap_p2p=False,
    )  # fmt: skip
    bounds, layout, result = bounded("bigred200", "gpt2", plan)
    assert 0.993 <= bounds.run_s(layout) / result.metrics.iteration_time_s <= 1.0


@pytest.mark.parametrize(("link_s", "waited_s"), [({0: 2.0}, 29.0), ({}, 21.0)])
def test_as_many_exchanges_as_messages_of_one_kind(monkeypatch, link_s, waited_s):
    """Of four micro-batches the second of two stages sends four activations and eight gradients, of 1 s latency and 2 s each.

    Eight exchanges begin with a latency and the link has twelve messages, 8 + 24 s; where nothing contends eight take 3 s each.
    Nothing waits for the last message.
    """
    monkeypatch.setattr(Bounds, "_message", lambda *_: Message(alone_s=3.0, latency_s=1.0, busy_s=link_s))
    layout = SimpleNamespace(plan=None, placement=placement_of("1f1b", 2, 2))
    counts = {(kind, chunk): 4 for kind in "FB" for chunk in range(2)}
    assert Bounds._waited_s(Bounds.__new__(Bounds), layout, 1, counts) == waited_s


def test_messages_of_one_chunk_come_one_after_the_other(monkeypatch):
    """The second of three stages sends four activations and four gradients of 3 s each; nothing waits for the last."""
    monkeypatch.setattr(Bounds, "_message", lambda *_: Message(alone_s=3.0, latency_s=1.0, busy_s={0: 2.0}))
    layout = SimpleNamespace(plan=None, placement=placement_of("1f1b", 3, 1))
    assert Bounds._waited_s(Bounds.__new__(Bounds), layout, 1, {("F", 0): 4, ("B", 0): 4}) == 21.0


@pytest.mark.parametrize(("pp", "held"), [(1, 1), (2, 2), (4, 2)])
def test_a_pipeline_that_drains_holds_no_more_than_it_takes_at_once(pp, held):
    """1F1B's first stage holds as many micro-batches as there are stages, or as begin before it drains."""
    plan = ParallelPlan(
        gpus=4, pp=pp, pipeline_batch=2, micro_batch=1, global_batch=32, sequence_length=256, framework="megatron-core",
    )  # fmt: skip
    bounds, layout, result = bounded("bigred200", "gpt2", plan)
    assert bounds._peak_in_flight(layout)[0] == (held,)
    assert bounds.memory(layout) == result.memory


def shared_and_alone(scenario, cluster, spec, plans, bound=Bounds.run_s):
    """Yield bounds that have seen all plans so far, and those of the last plan alone: both say the same of it."""
    shared = Bounds(scenario, cluster, spec)
    for plan in plans:
        alone = Bounds(scenario, cluster, spec)
        assert bound(shared, shared.layout(plan)) == bound(alone, alone.layout(plan))
        yield shared, alone


def test_of_single_plans_little_is_remembered_at_a_time(monkeypatch):
    """With room for three plans, bounds of ten are what they are by themselves."""
    scenario, cluster, spec, plans = prepared("bigred200", "gpt2", 4, 8, "megatron", None, "flow", "1f1b", "bf16")
    monkeypatch.setattr("simulator.explore.search.bounds.MOST_PLANS", 3)
    monkeypatch.setattr("simulator.explore.search.pass_times._MOST_PLANS", 3)
    for shared, _ in shared_and_alone(scenario, cluster, spec, plans[:10]):
        memories = shared._mesh_of, shared._passes._settings, shared._alone
        assert all(len(list(memory.items())) <= 3 for memory in memories)


def test_tasks_of_layers_are_let_go_where_they_have_become_many(monkeypatch):
    """With room for those of a few layers, bounds are what they are by themselves."""
    scenario, cluster, spec, plans = prepared("bigred200", "gpt2", 4, 8, "megatron", None, "flow", "1f1b", "bf16")
    most_alone, most_shared = 0, 0
    monkeypatch.setattr("simulator.explore.search.pass_times._MOST_TEMPLATES", 6)
    for shared, alone in shared_and_alone(scenario, cluster, spec, plans):
        numbers = [sum(len(here.templates) for here in one._passes._circumstances.values()) for one in (shared, alone)]
        most_shared, most_alone = max(most_shared, numbers[0]), max(most_alone, numbers[1])
    assert 6 < most_shared <= 6 + most_alone


@pytest.mark.parametrize(
    ("topology", "gpus", "pp", "places"), [("gb200-nvl72", 16, 4, 1), ("dgx-h100", 16, 4, 2), ("dgx-h100", 32, 2, 2)]
)
def test_stages_that_lie_alike_in_one_nvlink_domain_share_their_passes(topology, gpus, pp, places):
    """Experts that stay in a rack exchange the same tokens over the same links, whichever trays they are on.

    One half of a node may have other links than the other half, and a stage on two nodes is a place of its own.
    """
    mixture = replace(
        find_spec("mixtral-8x7b"), name="small mixture", layers=8, hidden=512, ffn_hidden=1024, expert_hidden=1024,
        heads=8, kv_heads=8, head_dim=64, vocab=1024,
    )  # fmt: skip
    base = ParallelPlan(
        gpus=gpus, global_batch=2 * gpus, framework="megatron-core", schedule="1f1b-combined", sequence_length=256,
    )  # fmt: skip
    scenario = Scenario(topology=topology, model="mixtral-8x7b", plan=base)
    allowed = {"pp": (pp,), "tp": (1, 2), "ep": (4,), "recompute": ("none",), "micro_batch": (1,), "virtual_pp": (2,)}
    cluster = load_topology(topology, gpus)
    plans = list(Space(topology=cluster, spec=mixture, base=base, allowed=allowed).plans())
    assert plans
    for _, alone in shared_and_alone(scenario, cluster, mixture, plans):
        assert len(alone._passes._circumstances) == places


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan"])
def test_plans_that_share_passes_have_the_bounds_that_they_have_alone(framework):
    """Passes of equal layers differ by sharding, and by whether there are earlier gradients to be added to."""
    scenario, cluster, spec, plans = prepared("bigred200", "gpt2", 8, 16, framework, None, "flow", "1f1b", "bf16")
    few = [plan for plan in plans if plan.recompute == "none"][:80]
    assert len(list(shared_and_alone(scenario, cluster, spec, few, Bounds.full_s))) == len(few)


def test_messages_of_stages_that_are_not_outermost_are_shared_by_one_mesh():
    """Which ranks of two stages exchange, and over which links, follows from all axes inside of the pipeline."""
    options = (("rank_order", "tp-cp-ep-pp-dp"),)
    scenario, cluster, spec, plans = prepared(
        "bigred200", "gpt2", 16, 64, "megatron", None, "flow", "1f1b", "bf16", options
    )
    of_stages = [plan for plan in plans if plan.pp == 4 and plan.recompute == "none" and plan.virtual_pp == 1]
    assert len({plan.tp for plan in of_stages}) > 1
    few = sorted(of_stages, key=lambda plan: -plan.tp)[::3]
    assert len(list(shared_and_alone(scenario, cluster, spec, few))) == len(few)


def test_shards_of_one_rank_gather_nothing():
    """Hybrid sharding whose groups are one rank has nothing to gather, in a search as in a run."""
    plan = ParallelPlan(
        gpus=16, tp=4, pp=2, sharding="hsdp", micro_batch=1, global_batch=32, sequence_length=256, framework="torchtitan",
    )  # fmt: skip
    bounds, layout, result = bounded("bigred200", "gpt2", plan)
    assert 0 < bounds.full_s(layout) <= result.metrics.iteration_time_s * (1 + 1e-9)


def test_groups_of_many_plans_are_let_go(monkeypatch):
    """With room for the groups of one stage, bounds are what they are by themselves, and flows of a few plans are kept at most."""
    scenario, cluster, spec, plans = prepared("bigred200", "gpt2", 4, 8, "megatron", None, "flow", "1f1b", "bf16")
    monkeypatch.setattr("simulator.explore.search.bounds.MOST_RANKS", 4)
    for plan, both in zip(plans[:10], shared_and_alone(scenario, cluster, spec, plans[:10]), strict=True):
        shared, alone = both
        assert len(shared._communicators) <= plan.pp
    assert len(list(shared.costs._flows.items())) <= 3 * len(list(alone.costs._flows.items()))


@given(pp=st.integers(2, 8), n_groups=st.integers(SATURATED_GROUPS, 8), virtual_pp=st.integers(1, 4))
def test_more_micro_batches_than_saturate_hold_no_more(pp, n_groups, virtual_pp):
    def peak(n_micro_batches):
        return peak_in_flight(build_table("1f1b", pp, n_micro_batches, n_chunks=virtual_pp), virtual_pp)

    assert peak(n_groups * pp) == peak(SATURATED_GROUPS * pp)


def test_a_flow_alone():
    cluster = load_topology("bigred200", 8)
    link = cluster.links[0]
    assert alone_s(Flow(latency_s=2.0, n_bytes=0.0), cluster) == 2.0
    assert alone_s(Flow(latency_s=1.0, n_bytes=10.0, alone_bytes_per_s=5.0), cluster) == 3.0
    flow = Flow(latency_s=0.0, n_bytes=1e9, links=(0,), weights=(2.0,))
    assert alone_s(flow, cluster) == pytest.approx(2e9 / link.bandwidth_bytes_per_s)


class FixedDurations(LeastDurations):
    """Durations by name of the operation, for closed forms."""

    def __init__(self, seconds):
        self.seconds = seconds

    def op_s(self, op):
        return self.seconds[op.name], 0.1


def collective(name):
    return Collective(collective="all_reduce", axis="tp", n_bytes=1, groups=((0, 1),), name=name)


def test_what_a_dispatcher_sends_is_bound_the_same_whatever_was_asked_before():
    cluster, groups = load_topology("dgx-h100", 8), (tuple(range(8)),)
    plan = ParallelPlan(gpus=8, dp=8, ep=8, micro_batch=1, global_batch=8, moe_dispatcher="deepep")
    costs = ModelCosts(cluster, Scenario(topology="dgx-h100", model="mixtral-8x7b", plan=plan))
    tokens = Routed(n_tokens=4096, token_bytes=8192.0, n_places=2.0, n_all=8)
    ops = [
        Collective(collective="all_to_all", axis=axis, n_bytes=1 << 20, groups=groups, name=name, phase=phase, routed=routed)
        for axis in ("ep:local", "ep") for name in ("dispatch", "combine") for phase in ("forward", "backward")
        for routed in (tokens, tokens._replace(n_tokens=512))
    ]  # fmt: skip
    alone = [LeastDurations(costs).communication_s(op) for op in ops]
    assert len(set(alone)) > 4, "kernels, directions and tokens differ"
    for order in (1, -1):
        durations = LeastDurations(costs)
        assert [durations.communication_s(op) for op in ops[::order]] == alone[::order]


def test_the_longest_path_through_streams_and_dependencies():
    tasks = [
        Task(collective("a"), "x"),
        Task(collective("b"), "y"),
        Task(collective("c"), "x", (1,)),
        Task(collective("d"), "y", (0,)),
    ]
    durations = FixedDurations({"a": 2.0, "b": 3.0, "c": 1.0, "d": 4.0})
    assert durations.tasks_s(tasks) == (7.0, pytest.approx(0.4))
    assert durations.tasks_s([]) == (0.0, 0.0)


@pytest.mark.parametrize("waits, seconds", [(True, 10 * (2.0 + 3.0)), (False, 2.0 + 10 * 3.0)])
def test_periods_that_are_left_out_take_what_their_circles_do(waits, seconds):
    """Ten periods of a kernel of 2 s and a collective of 3 s behind it: each kernel waits for the collective before, or for none."""
    tasks = []
    for period in range(3):
        tasks.append(Task(collective("kernel"), "compute", (2 * period - 1,) if waits and period else ()))
        tasks.append(Task(collective("sum"), "dp", (2 * period,)))
    rank = RankProgram(rank=0, members=(0,), tasks=tuple(tasks), stretch=Repetition(2, 6, 2))
    durations = FixedDurations({"kernel": 2.0, "sum": 3.0})
    assert durations.program_s(rank, 7) == seconds
    assert durations.program_s(rank, 0) == seconds - 7 * (5.0 if waits else 3.0)


def test_reductions_behind_a_backward():
    launches = ((1.0, 2.0), (float("inf"), 3.0))
    bound = DataBound(launches=launches)
    # the backward runs from 6 to 10: launched at 7 and at 10, on one stream
    assert bound.after_backward_s(10.0, 4.0) == 13.0
    # where the first takes long, the second waits for it
    assert DataBound(launches=((1.0, 9.0), (float("inf"), 3.0))).after_backward_s(10.0, 4.0) == 19.0
    sharded = DataBound(before_s=1.0, copied_s=2.0, awaited_s=4.0)
    assert sharded.after_backward_s(10.0, 4.0) == 17.0
    assert sharded.after_backward_s(10.0, 4.0, is_own=False) == 11.0
    # copies run while passes exchange
    assert sharded.after_backward_s(10.0, 4.0, exchanged_s=0.5) == 16.5
    assert sharded.after_backward_s(10.0, 4.0, exchanged_s=5.0) == 15.0
