"""Whole programs: bubbles of pipelines, how layers are split over stages, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.engine import run
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.build import build_model
from simulator.models.catalog import find_spec, rename
from simulator.models.layer import GemmShape, Layer, Model, Parameter
from simulator.models.setting import RankSetting
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.parallel.lower import blocks_of_parts, lower, split_layers
from simulator.parallel.rank_model import model_for
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.stage_layout import parse_layout
from simulator.program.op import Transfer
from simulator.program.program import Block
from simulator.program.startable import check
from simulator.schedules import SCHEDULES, placement_of
from tests.parallel.unit_costs import BACKWARD_PS, FORWARD_PS, NoLinks, UnitCosts


def model_of(n_layers):
    shape = GemmShape(m=1, n=1, k=1)
    backward = (replace(shape, kernel_pass="dgrad"), replace(shape, kernel_pass="wgrad"))
    kwargs = {"forward": (shape,), "backward": backward, "parameters": (Parameter(name="w", n_elements=10),)}
    empty = {"forward": (), "backward": ()}
    layers = (
        Layer(name="embedding", role="embedding", **empty),
        *(Layer(name="block", **kwargs) for _ in range(n_layers)),
        Layer(name="head", role="head", **empty),
    )
    return Model(name="unit", layers=layers, n_parameters=10 * n_layers, model_flops_per_sequence=1.0)


def makespan(p, m, *, schedule="1f1b", v=1, dp=1, **settings):
    plan = ParallelPlan(
        pp=p,
        dp=dp,
        virtual_pp=v,
        schedule=schedule,
        micro_batch=1,
        global_batch=m * dp,
        gpus=p * dp,
        precision="fp16",
        **{"framework": "megatron-core", **settings},
    )
    lowered = lower(model_of(p * v), plan, gpus_per_node=8, boundary_bytes=1)
    check(lowered.program)
    return run(lowered.program, UnitCosts(), lambda: AlphaBetaNetwork(NoLinks())).makespan_ps


@pytest.mark.parametrize(("p", "v", "batch"), [(3, 2, 3), (4, 3, 4), (3, 2, 6), (2, 2, 2)])
@pytest.mark.parametrize("overlap_p2p", [True, False])
def test_interleaved_pipelines_that_drain_within_a_step_have_their_bubble_each_time(p, v, batch, overlap_p2p):
    """Twelve micro-batches or many, whose messages block or not.

    In a batch of one micro-batch a stage all forwards run ahead, and none shares an exchange with a backward, although the next
    batch's forwards come behind the last backward.
    """
    for m in (12, 96):
        found = makespan(p, m, v=v, pipeline_batch=batch, overlap_p2p=overlap_p2p)
        assert found == (m * v + m // batch * (p - 1)) * (FORWARD_PS + BACKWARD_PS)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_bubble_of_plain_pipelines(schedule, p, m):
    assert makespan(p, m, schedule=schedule) == (m + p - 1) * (FORWARD_PS + BACKWARD_PS)


@pytest.mark.parametrize(("p", "batch"), [(1, 3), (1, 5), (2, 2), (4, 1)])
def test_a_pipeline_that_drains_within_a_step_has_its_bubble_each_time(p, batch):
    """Four micro-batches: without a pipeline nothing drains, whatever the number."""
    n_bubbles = 4 // batch if p > 1 else 0
    assert makespan(p, 4, pipeline_batch=batch) == (4 + n_bubbles * (p - 1)) * (FORWARD_PS + BACKWARD_PS)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-combined"])
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 4, 16)])
def test_bubble_of_interleaved_pipelines(p, v, m, schedule):
    assert makespan(p, m, v=v, schedule=schedule) == (m * v + p - 1) * (FORWARD_PS + BACKWARD_PS)


def test_pairs_send_each_output_before_what_only_they_need():
    """``TransformerModelChunkSchedulePlan.run`` of NVIDIA/Megatron-LM: beside the last attention, and the last weights' gradients."""
    plan = ParallelPlan(
        gpus=8, dp=4, pp=2, virtual_pp=2, ep=4, micro_batch=2, global_batch=64, sharding="none", schedule="1f1b-combined",
        framework="megatron-core",
    )  # fmt: skip
    spec = rename(find_spec("qwen3-30b-a3b"), "x", layers=8)
    model = build_model(spec, RankSetting(micro_batch=2, sequence_length=512, ep=4, precision="bf16"))
    first, _ = lower(model, plan, gpus_per_node=8, boundary_bytes=1).program.ranks
    starts = [i for i, task in enumerate(first.tasks) if getattr(task.op, "name", "") == "forward and backward"]
    n_between = 0
    for start, end in pairwise(starts):
        parts = [i for i in range(start, end) if not first.tasks[i].op.name.startswith("receive")]
        names = [first.tasks[i].op.name for i in parts]
        if (
            "send forward" in names and "send backward" in names
        ):  # what the first and the last chunk of all compute stays here
            pair, forward, gradient, backward, weights = parts
            assert (names[1], names[3]) == ("send forward", "send backward")
            assert first.tasks[forward].after == (pair,)
            assert first.tasks[backward].after == (gradient,)
            assert {kernel.shape.kernel_pass for kernel in first.tasks[weights].op.kernels} == {"wgrad"}
            n_between += 1
    assert n_between >= 4


def test_uneven_layers_go_to_the_middle():
    plan = ParallelPlan(pp=4, gpus=4, dp=1)
    chunks = split_layers(model_of(10), plan, placement_of("1f1b", 4))
    assert [len(stage[0]) for stage in chunks] == [3, 3, 3, 3]  # embedding and head are layers too
    named = ParallelPlan(pp=4, gpus=4, dp=1, first_stage_layers=1, last_stage_layers=1)
    assert [len(stage[0]) for stage in split_layers(model_of(10), named, placement_of("1f1b", 4))] == [2, 4, 4, 2]


@pytest.mark.parametrize(
    ("pp", "first", "last", "said"),
    [(4, 5, 5, "first_stage_layers=5 and last_stage_layers=5 of 10 layers leave stages 2, 3 of 4 empty"),
     (4, 5, 4, "leave stages 3 of 4 empty"), (3, 9, None, "first_stage_layers=9 of 10 layers leave stages 3 of 3 empty"),
     (3, None, 11, "leave stages 1, 2 of 3 empty"), (2, 5, 4, "of 10 layers are not those of 2 stages"),
     (2, 6, 6, "of 10 layers are not those of 2 stages")],
)  # fmt: skip
def test_ends_that_leave_other_stages_empty_are_refused(pp, first, last, said):
    plan = ParallelPlan(pp=pp, gpus=pp, dp=1, first_stage_layers=first, last_stage_layers=last)
    with pytest.raises(InfeasiblePlanError, match=said):
        split_layers(model_of(10), plan, placement_of("1f1b", pp))


def test_ends_that_leave_a_layer_for_each_stage_are_taken():
    plan = ParallelPlan(pp=4, gpus=4, dp=1, first_stage_layers=4, last_stage_layers=4)
    assert [len(stage[0]) for stage in split_layers(model_of(10), plan, placement_of("1f1b", 4))] == [5, 1, 1, 5]


@pytest.mark.parametrize(
    ("layers", "pp", "virtual_pp", "counted", "sizes"),
    [(30, 4, 2, "embedding loss", (3, *[4] * 6, 3)), (31, 4, 2, "embedding", (3, *[4] * 7)), (31, 4, 2, "loss", (*[4] * 7, 3)),
     (46, 2, 1, "embedding loss", (23, 23)), (46, 4, 1, "embedding loss", (11, 12, 12, 11)), (2, 4, 1, "embedding loss", (0, 1, 1, 0)),
     (48, 4, 1, "embedding loss", None), (33, 4, 2, "loss", None)],
)  # fmt: skip
def test_embedding_and_loss_take_the_place_of_a_layer(layers, pp, virtual_pp, counted, sizes):
    """Megatron-Core, ``get_num_layers_to_build``: layers and what is accounted for, over stages and chunks, less what is there."""
    named = {f"account_for_{name}": True for name in counted.split()}
    schedule = "1f1b-interleaved" if virtual_pp > 1 else "1f1b"
    plan = ParallelPlan(pp=pp, virtual_pp=virtual_pp, schedule=schedule, framework="megatron-core", **named)
    if sizes is None:
        with pytest.raises(
            InfeasiblePlanError, match=f"{layers} layers and {len(named)} more .* do not divide over {pp * virtual_pp}"
        ):
            blocks_of_parts(model_of(layers), plan)
    else:
        assert tuple(blocks_of_parts(model_of(layers), plan)) == sizes


@pytest.mark.parametrize("other", [{"first_stage_layers": 2}, {"last_stage_layers": 2}, {"pipeline_layout": "Ett|ttL"}])
def test_places_of_embedding_and_loss_beside_other_layouts_are_refused(other):
    """Megatron-Core, ``TransformerConfig``: neither stands beside the other."""
    with pytest.raises(InfeasiblePlanError, match="account_for_loss beside"):
        ParallelPlan(pp=2, gpus=2, account_for_loss=True, **other).resolve(2)


def test_stages_of_equal_parameters_count_embedding_and_head():
    """Ten blocks of 1 between ends of 2: 14 over two stages are 7 each, over three at most 5 (``partition_balanced``)."""
    model = model_of(10)
    weights = [2, *[1] * 10, 2]
    model = replace(
        model,
        layers=tuple(
            replace(layer, parameters=(Parameter(name="w", n_elements=weight),))
            for layer, weight in zip(model.layers, weights, strict=True)
        ),
    )
    for pp, sizes in ((2, [6, 6]), (3, [4, 5, 3])):
        plan = ParallelPlan(pp=pp, gpus=pp, dp=1, framework="scaling")
        assert [len(stage[0]) for stage in split_layers(model, plan, placement_of("1f1b", pp))] == sizes


def test_stages_of_nanotron_end_with_the_block_that_passes_their_share():
    """24 blocks of 42 M and a head of 103 M over eight stages of 3.3 blocks each (``build_model``): the last has the head alone."""
    model = model_of(24)
    weights = [103, *[42] * 24, 103]
    layers = [
        replace(layer, parameters=(Parameter(name="w", n_elements=weight),))
        for layer, weight in zip(model.layers, weights, strict=True)
    ]
    model = replace(model, layers=tuple(layers))
    for pp, blocks in ((2, [14, 10]), (4, [7, 7, 6, 4]), (8, [4, 3, 3, 4, 3, 3, 4, 0])):
        plan = ParallelPlan(pp=pp, gpus=pp, dp=1, framework="nanotron")
        sizes = [len(stage[0]) for stage in split_layers(model, plan, placement_of("1f1b", pp))]
        assert sizes == [blocks[0] + 1, *blocks[1:-1], blocks[-1] + 1]


def test_the_last_of_four_stages_has_fewer_blocks_in_libai():
    """Oneflow-Inc/libai, discussion 329: 24 blocks are 6, 7, 7 and 4; beside them stand embedding and head. Ends that are said win."""
    for stated, pp, blocks in (({}, 2, [12, 12]), ({}, 4, [6, 7, 7, 4]), ({"last_stage_layers": 3}, 4, [7, 7, 7, 3])):
        plan = ParallelPlan(pp=pp, gpus=pp, dp=1, framework="libai", **stated)
        sizes = [len(stage[0]) for stage in split_layers(model_of(24), plan, placement_of("1f1b", pp))]
        assert sizes == [blocks[0] + 1, *blocks[1:-1], blocks[-1] + 1]


def test_too_many_stages_are_refused():
    with pytest.raises(InfeasiblePlanError, match="3 layers cannot be split"):
        split_layers(model_of(3), ParallelPlan(pp=4, gpus=4, dp=1), placement_of("1f1b", 4))
    with pytest.raises(InfeasiblePlanError, match="not a multiple"):
        split_layers(model_of(10), ParallelPlan(pp=4, virtual_pp=2, gpus=4, dp=1), placement_of("1f1b", 4, 2))


def test_rank_classes_cost_the_same_for_any_number_of_replicas():
    plan = {"schedule": "1f1b", "v": 1}
    assert makespan(4, 8, **plan) == makespan(4, 8, dp=64, **plan)


@pytest.mark.parametrize("schedule", [name for name, one in SCHEDULES.items() if one.n_chunks])
@pytest.mark.parametrize("framework", ["megatron", "megatron-core", "fsdp"])
@pytest.mark.parametrize("p", [3, 4])
def test_every_schedule_runs_to_the_end(schedule, framework, p):
    if schedule == "dualpipe" and p % 2:
        pytest.skip("mirrors stages")
    plan = ParallelPlan(
        pp=p,
        dp=2,
        schedule=schedule,
        micro_batch=1,
        global_batch=16,
        gpus=2 * p,
        sequence_length=4,
        framework=framework,
        precision="bf16",
        sharding="zero3",
    )
    lowered = lower(model_of(8), plan, gpus_per_node=8, boundary_bytes=1)
    check(lowered.program)
    assert run(lowered.program, UnitCosts(), lambda: AlphaBetaNetwork(NoLinks())).makespan_ps > 0


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (8, 16)])
@pytest.mark.parametrize("dp", [1, 2])
def test_bubble_of_dualpipe(p, m, dp):
    """(p / 2 - 1) (T_F&B + T_B - 3 T_W) beside the work of m micro-batches; T_F&B = T_F + T_B where nothing is hidden."""
    t_f, t_b, t_w = FORWARD_PS, BACKWARD_PS, BACKWARD_PS // 2
    bubble = (p // 2 - 1) * (t_f + t_b + t_b - 3 * t_w)
    assert makespan(p, m, schedule="dualpipe", dp=dp) == m * (t_f + t_b) + bubble


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (3, 8), (4, 8), (5, 11)])
def test_bubble_of_dualpipe_v(p, m):
    """The same of half as many stages, each with two chunks, which a gradient may pass from one to the other of in one stage."""
    t_f, t_b, t_w = FORWARD_PS, BACKWARD_PS, BACKWARD_PS // 2
    bubble = (p - 1) * (t_f + t_b + t_b - 3 * t_w)
    assert makespan(p, m, v=2, schedule="dualpipe-v") == 2 * m * (t_f + t_b) + bubble


def test_dualpipe_holds_two_copies_and_reduces_them_together():
    plan = ParallelPlan(pp=4, dp=2, schedule="dualpipe", micro_batch=1, global_batch=16, gpus=8, precision="fp16")
    lowered = lower(model_of(4), plan, gpus_per_node=8, boundary_bytes=1)
    assert [[len(chunk) for chunk in stage] for stage in lowered.chunks] == [[2, 2], [1, 1], [1, 1], [2, 2]]
    reduced = [[t.op for t in r.tasks if getattr(t.op, "axis", "") == "copies"] for r in lowered.program.ranks]
    assert [op.n_bytes for ops in reduced for op in ops] == [2 * 10 * 2] * 4
    assert [ops[0].groups[0] for ops in reduced] == [(0, 6), (2, 4), (2, 4), (0, 6)]
    blocks = [t.op.name for t in lowered.program.ranks[0].tasks if isinstance(t.op, Block)]
    assert blocks.count("forward and backward") == 3  # two of the main steps, one of the cool-down


def vocabulary_model(n_layers, vocab):
    gemms = [
        GemmShape(m=4, n=vocab, k=2),
        GemmShape(m=4, n=2, k=vocab, kernel_pass="dgrad"),
        GemmShape(m=vocab, n=2, k=4, kernel_pass="wgrad"),
    ]
    head = Layer(
        name="head",
        role="head",
        forward=(gemms[0],),
        backward=tuple(gemms[1:]),
        parameters=(Parameter(name="e", n_elements=2 * vocab),),
    )
    plain = model_of(n_layers)
    embedding = replace(plain.layers[0], parameters=head.parameters)
    return replace(plain, layers=(embedding, *plain.layers[1:-1], head))


def test_interlaced_stages_share_the_vocabulary_and_meet_once_per_micro_batch():
    plan = ParallelPlan(
        pp=4, dp=1, schedule="interlaced", micro_batch=1, global_batch=8, gpus=4, precision="fp16", sequence_length=4
    )
    lowered = lower(vocabulary_model(8, 64), plan, gpus_per_node=8, boundary_bytes=16)
    check(lowered.program)
    assert [[len(chunk) for chunk in stage] for stage in lowered.chunks] == [[2, 2]] * 4
    for stage in lowered.chunks:
        embedding, head = stage[1]
        assert (embedding.n_parameters, head.n_parameters) == (2 * 64 // 4, 2 * 64 // 4)
        assert [k.n_flops for k in (*head.forward, *head.backward)] == [2 * 4 * 2 * 64 / 4] * 3
    for rank in lowered.program.ranks:
        sent = [(t.op.name, t.op.n_bytes) for t in rank.tasks if getattr(t.op, "axis", "") == "pipe"]
        assert sorted(sent) == sorted([("output", 16), ("loss", 8 * 4), ("input gradient", 16), ("embedding", 16)] * 8)
        assert not any(getattr(t.op, "axis", "") == "embedding" for t in rank.tasks)
        meetings = [t for t in rank.tasks if getattr(t.op, "name", "") == "output"]
        computed = [any(rank.tasks[i].stream == "compute" for i in t.after) for t in meetings]
        assert computed == [rank is lowered.program.ranks[-1]] * 8  # whose forward the head reads


@pytest.mark.parametrize(
    ("changes", "sent", "gathered"),
    [
        ({}, 256, 1024),
        ({"sequence_parallel": True}, 256, 0),
        ({"scatter_gather": False}, 1024, 0),
        ({"framework": "megatron-deepspeed"}, 256, 1024),
        ({"framework": "megatron-core"}, 1024, 0),
    ],
)
def test_bytes_between_stages(changes, sent, gathered):
    """The boundary tensor of every micro-batch once forward and once backward: whole, or a tensor-parallel rank's share.

    Narayanan et al., arXiv:2104.04473, section 4.1 (Megatron-LM); DeepSpeed, ``runtime/pipe/engine.py``.
    """
    fields = {"framework": "megatron", **changes}
    plan = ParallelPlan(pp=2, tp=4, dp=1, micro_batch=1, global_batch=3, gpus=8, precision="fp16", **fields)
    lowered = lower(model_of(2), plan, gpus_per_node=8, boundary_bytes=1024)
    for rank in lowered.program.ranks:
        ops = [op for t in rank.tasks for op in ([i.op for i in t.op.tasks] if isinstance(t.op, Block) else [t.op])]
        assert [op.n_bytes for op in ops if isinstance(op, Transfer)] == [sent] * 6
        assert [op.n_bytes for op in ops if getattr(op, "name", "") == "boundary"] == [gathered] * 3 * (gathered > 0)


@pytest.mark.parametrize("virtual", [1, 2])
def test_both_ends_of_a_message_say_who_sends_it_to_whom(virtual):
    """Activations go down and gradients up the stages: stage s to s + 1 (of chunks from the last to the first, too), and back."""
    plan = ParallelPlan(pp=4, dp=1, virtual_pp=virtual, schedule="1f1b" if virtual == 1 else "1f1b-interleaved", micro_batch=1,
                        global_batch=8, gpus=4, precision="fp16", framework="megatron")  # fmt: skip
    lowered = lower(model_of(8), plan, gpus_per_node=4, boundary_bytes=1, unfold=True)
    ends = {}
    for rank in lowered.program.ranks:
        for task in rank.tasks:
            if isinstance(task.op, Transfer):
                ends.setdefault(task.key, []).append((rank.rank, task.op))
    assert ends
    for (one, first), (other, second) in ends.values():
        assert first.pairs == second.pairs
        ((source, target),) = first.pairs
        sender = one if first.name.startswith("send") else other
        assert (source, {source, target}) == (sender, {one, other})
        assert (target - source) % 4 == (1 if first.phase == "forward" else 3)


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [({"framework": "megatron"}, True), ({"framework": "megatron", "overlap_p2p": True}, False),
     ({"framework": "megatron", "schedule": "zb-1p"}, False), ({"framework": "libai"}, False)],
)  # fmt: skip
def test_the_pass_behind_a_blocking_send_waits_for_it(settings, blocks):
    """megatron/core/pipeline_parallel/p2p_communication.py: ``batch_p2p_sync`` waits for the message before going on."""
    plan = ParallelPlan(pp=2, dp=1, micro_batch=1, global_batch=4, gpus=2, precision="fp16", **settings)
    (first, _) = lower(model_of(4), plan, gpus_per_node=8, boundary_bytes=1, unfold=True).program.ranks
    sends = {
        i for i, task in enumerate(first.tasks) if isinstance(task.op, Transfer) and task.op.name.startswith("send")
    }
    waits = [task for task in first.tasks if task.stream == "compute" and sends.intersection(task.after)]
    assert bool(waits) == blocks


def test_interleaved_stages_that_block_send_and_receive_of_a_pair_at_once():
    """megatron/core/pipeline_parallel/schedules.py, interleaved without overlap_p2p_comm: forward_step, backward_step, then
    send_forward_backward_recv_forward_backward for the next pair; stages that run all forwards ahead take turns instead.
    """
    plan = ParallelPlan(pp=4, dp=1, virtual_pp=2, schedule="1f1b-interleaved", micro_batch=1, global_batch=8, gpus=4,
                        precision="fp16", framework="megatron")  # fmt: skip
    ranks = lower(model_of(8), plan, gpus_per_node=4, boundary_bytes=1, unfold=True).program.ranks
    words = {
        "receive forward": "f",
        "receive backward": "b",
        "send forward": "F",
        "send backward": "B",
        "synchronise": "|",
    }
    row = "".join(words.get(task.op.name, "." if task.stream == "compute" and task.op.name != "optimizer" else "")
                  for task in ranks[1].tasks)  # fmt: skip
    # 2 x (4 - 1 - 1) + 4 = 8 forwards ahead of 16; then 8 pairs, then 8 backwards
    ahead, pairs = "f|.F" * 8, "fb|..FB" * 8
    assert row.startswith(ahead + pairs + "b|.B")


@pytest.mark.parametrize("n_micro_batches", [4, 8, 12])
@pytest.mark.parametrize("virtual", [2, 4])
def test_hosts_that_wait_in_experts_do_not_wait_for_each_other(simulated, virtual, n_micro_batches):
    """They learn how many tokens came from a device that waits for messages: whoever waits for one needs the other's posted."""
    settings = {"gpus": 8, "pp": 4, "virtual_pp": virtual, "ep": 2, "schedule": "1f1b-interleaved", "micro_batch": 1,
                "global_batch": 2 * n_micro_batches, "sequence_length": 256, "framework": "megatron"}  # fmt: skip
    blocking, hidden = (
        simulated("polaris", "mixtral-8x7b", overlap_p2p=overlap, **settings) for overlap in (False, True)
    )
    assert blocking.metrics.iteration_time_s > hidden.metrics.iteration_time_s


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_the_published_layout_of_deepseek_v3():
    """Megatron Bridge's recipe for 16 stages of two chunks: 61 layers, one prediction layer, embedding and loss apart."""
    stages = parse_layout("Et*3|(tt|)*29m|L")
    assert (len(stages), stages[0], stages[1], stages[-2:]) == (32, "Ettt", "tt", ("m", "L"))
    assert sum(stage.count("t") for stage in stages) == 61


def test_a_layout_with_a_prediction_module_trains_it():
    """DeepSeek-V3 has 671B parameters and a module of 11.5B of its own (deepseek-ai/DeepSeek-V3, ``README_WEIGHTS.md``), which neither
    the catalogue nor its ``config.json`` counts; without a pipeline a layout says nothing."""
    plan = ParallelPlan(gpus=2, micro_batch=1, sequence_length=4096, framework="megatron-core")
    more = []
    for pp, layout in ((2, "Et*61|L"), (1, "Et*61mL"), (2, "Et*61m|L")):
        model = model_for(find_spec("deepseek-v3"), replace(plan, pp=pp, pipeline_layout=layout))
        more.append(sum(layer.n_parameters for layer in model.layers) - model.n_parameters)
    assert more[:2] == [0, 0]
    assert more[2] == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize(("text", "stages"), [("EttL", ("EttL",)), ("E|t*2|,L", ("E", "tt", "L")), ("E(t|)*2 tL", ("Et", "t", "tL")),
                                              ("E((t|)*2t)*2L", ("Et", "t", "tt", "t", "tL"))])  # fmt: skip
def test_layouts_are_read(text, stages):
    assert parse_layout(text) == stages


@pytest.mark.parametrize(
    "text",
    [
        "tt",
        "Et",
        "tEL",
        "EtLt",
        "Etxl",
        "E(tL",
        "E" + "(" * 500,
        "E(((t*9999)*9999)*9999)L",
        "Emt|L",
        "E t*999999999999 L",
    ],
)
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(ConfigError, match="pipeline_layout"):
        ParallelPlan(pp=2, pipeline_layout=text)


LISTED = [["embedding", "decoder"], [], ["decoder", "decoder"], ["Decoder ", "mtp", "loss"]]


@pytest.mark.parametrize("form", [LISTED, tuple(map(tuple, LISTED)), str(LISTED), json.dumps(LISTED), "Et||tt|tmL"])
def test_a_layout_may_be_lists_of_words(form):
    """Megatron-Core, ``PipelineParallelLayerLayout``: lists of names of ``LayerType``, whatever their case and blanks."""
    assert SETTINGS["pipeline_layout"].parse(form) == "Et||tt|tmL"


@pytest.mark.parametrize(
    ("form", "said"),
    [([["embedding", "encoder"]], "'encoder' of a stage is unknown"), (["embedding", "loss"], "neither a layout"),
     ("[[embedding, decoder], loss]", "neither a layout"), ({"a": 1}, "neither a layout")],
)  # fmt: skip
def test_lists_that_are_no_layout_are_refused(form, said):
    with pytest.raises(ConfigError, match=f"^pipeline_layout.*{said}") as caught:
        SETTINGS["pipeline_layout"].parse(form)
    assert "embedding, decoder" in caught.value.hint


def layout_of(n_layers, layout, *, pp, n_predicting=0, **settings):
    plan = ParallelPlan(pp=pp, gpus=pp, pipeline_layout=layout, micro_batch=1, **settings).resolve(pp)
    plain = model_of(n_layers)
    extra = tuple(replace(plain.layers[1], name="mtp", role="prediction") for _ in range(n_predicting))
    model = replace(plain, layers=(*plain.layers[:-1], *extra, plain.layers[-1]))
    chunks = split_layers(model, plan, placement_of(plan.schedule, pp, plan.virtual_pp))
    return plan.virtual_pp, [["".join(one.name[0] for one in chunk) for chunk in stage] for stage in chunks]


def test_a_layout_places_every_layer():
    assert layout_of(5, "Et|tt|t|tL", pp=2) == (2, [["eb", "b"], ["bb", "bh"]])
    assert layout_of(3, "E|tt|tm|L", pp=4, n_predicting=1) == (1, [["e"], ["bb"], ["bm"], ["h"]])
    assert layout_of(3, "Et|t|tL", pp=3, n_predicting=2)[1][-1] == ["bmmh"]
    assert layout_of(4, "Ett|ttL", pp=2, schedule="dualpipe")[1] == [["ebb", "bbh"], ["bbh", "ebb"]]


@pytest.mark.parametrize(("n_layers", "layout", "pp"), [(4, "Ett|tL", 2), (3, "Ett|tL", 3), (3, "Ett|tmL", 2)])
def test_a_layout_that_does_not_fit_is_refused(n_layers, layout, pp):
    with pytest.raises(InfeasiblePlanError, match="pipeline_layout"):
        layout_of(n_layers, layout, pp=pp)


def test_a_layout_of_even_parts_is_an_even_split():
    times = []
    for settings in ({"virtual_pp": 2}, {"pipeline_layout": "Et|t|t|tL"}):
        plan = ParallelPlan(
            pp=2, dp=1, micro_batch=1, global_batch=8, gpus=2, framework="megatron-core", **settings
        ).resolve(2)
        lowered = lower(model_of(4), plan, gpus_per_node=8, boundary_bytes=1)
        times.append(run(lowered.program, UnitCosts(), lambda: AlphaBetaNetwork(NoLinks())).makespan_ps)
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("pp", "virtual_pp", "layout"),
    [
        (4, 4, "Et*4|(t*4|)*14tL"), (2, 8, "Et*4|(t*4|)*14tL"), (8, 2, "Et*4|(t*4|)*14tL"), (4, 2, "Et*8|(t*8|)*6t*5L"),
        (8, 4, "Et|(tt|)*30L"),
    ],
)  # fmt: skip
def test_61_layers_interleave_as_nvidia_lays_them_out(pp, virtual_pp, layout):
    """Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``: its layouts of DeepSeek-V3 by pipeline and virtual stages."""
    settings = {
        "pp": pp,
        "virtual_pp": virtual_pp,
        "schedule": "1f1b-interleaved",
        "micro_batch": 1,
        "framework": "megatron-core",
    }
    sizes = {}
    for given in ({}, {"pipeline_layout": layout}):
        plan = ParallelPlan(**settings, **given).resolve(64)
        stages = split_layers(model_of(61), plan, placement_of(plan.schedule, pp, virtual_pp))
        sizes[bool(given)] = [[len(chunk) for chunk in chunks] for chunks in stages]
    assert sizes[False] == sizes[True]


def test_frameworks_without_layouts_need_equal_chunks():
    plan = ParallelPlan(pp=4, virtual_pp=4, schedule="1f1b-interleaved", micro_batch=1, framework="megatron").resolve(
        64
    )
    with pytest.raises(InfeasiblePlanError, match="61 layers are not a multiple"):
        split_layers(model_of(61), plan, placement_of(plan.schedule, 4, 4))
