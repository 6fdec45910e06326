"""What a layer becomes: tensor-parallel bytes per layer, overlap beside weight gradients, split backward, accumulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import CommunicationPoint, GemmShape
from simulator.models.setting import RankSetting
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.sharded import released_before_reuse
from simulator.parallel.stage import StageLayers, Tail, finish, in_pieces, items_of
from simulator.parallel.states import accumulation_traffic
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, KernelRun
from simulator.program.program import Block, TaskList


def plan_of(**changes):
    settings = {
        "gpus": 8,
        "tp": 4,
        "dp": 2,
        "micro_batch": 2,
        "global_batch": 8,
        "sequence_length": 512,
        "precision": "bf16",
    }
    return ParallelPlan(**(settings | changes))


def stage_of(plan):
    spec = find_spec("gpt2-medium")
    model = build_model(
        spec, RankSetting(micro_batch=plan.micro_batch, sequence_length=plan.sequence_length, tp=plan.tp,
        sequence_parallel=plan.sequence_parallel, precision=plan.precision, recompute=plan.recompute,
    ))  # fmt: skip
    communicators = Communicators(Mesh(plan, 8), 0, folded=True)
    return spec, model, StageLayers([model.layers], plan, communicators)


def collectives(tasks):
    return [task.op for task in tasks if isinstance(task.op, Collective)]


@pytest.mark.parametrize("kind", ["F", "B"])
def test_tensor_parallel_all_reduces_twice_per_layer_and_pass(kind):
    plan = plan_of()
    spec, model, stage = stage_of(plan)
    tasks = TaskList()
    finish(stage.steps(tasks, model.layers[1], kind, (), 0))
    message = 2 * plan.micro_batch * plan.sequence_length * spec.hidden
    assert [(c.collective, c.axis, c.n_bytes) for c in collectives(tasks.tasks)] == [("all_reduce", "tp", message)] * 2


def test_sequence_parallel_gathers_and_scatters_the_same_bytes():
    plan = plan_of(sequence_parallel=True)
    spec, model, stage = stage_of(plan)
    message = 2 * plan.micro_batch * plan.sequence_length * spec.hidden
    counts = {}
    for kind in ("F", "B"):
        tasks = TaskList()
        finish(stage.steps(tasks, model.layers[1], kind, (), 0))
        assert all(c.n_bytes == message for c in collectives(tasks.tasks))
        counts[kind] = sorted(c.collective for c in collectives(tasks.tasks))
    assert counts["F"] == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    # two gathers of output gradients and two of the saved inputs, for the weight gradients
    assert counts["B"] == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def test_the_input_gradients_all_reduce_runs_beside_the_weight_gradient():
    _, model, stage = stage_of(plan_of())
    tasks = TaskList()
    finish(stage.steps(tasks, model.layers[1], "B", (), 0))
    for index, task in enumerate(tasks.tasks):
        if isinstance(task.op, Collective):
            following = tasks.tasks[index + 1]
            assert isinstance(following.op, KernelRun)
            assert index not in following.after
            assert following.op.kernels[0].shape.kernel_pass == "wgrad"
            assert any(index in later.after for later in tasks.tasks[index + 2 :]) or index + 2 == len(tasks.tasks)


def test_full_recompute_repeats_forward_collectives():
    _, model, stage = stage_of(plan_of(recompute="full"))
    tasks = TaskList()
    finish(stage.steps(tasks, model.layers[1], "B", (), 0))
    assert len(collectives(tasks.tasks)) == 4
    assert {t.op.phase for t in tasks.tasks if isinstance(t.op, KernelRun)} == {"recompute", "backward"}


def test_split_backward_has_every_kernel_once():
    _, model, _ = stage_of(plan_of())
    layer = model.layers[1]
    whole = [i for _, items in items_of(layer, "B") for i in items]
    parts = [i for kind in ("I", "W") for _, items in items_of(layer, kind) for i in items]

    def known(found):
        return sorted(repr(replace(i, overlaps=0)) if isinstance(i, CommunicationPoint) else repr(i) for i in found)

    assert known(whole) == known(parts)
    weights = [i for _, items in items_of(layer, "W") for i in items]
    assert weights
    assert not any(isinstance(i, CommunicationPoint) for i in weights)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_without_weights_gradients_nothing_runs_beside_the_reduction(precision):
    """The norm's gradient, next in a pass of input gradients alone, is that of what is reduced; the gather still has its product."""
    plan = plan_of(sequence_parallel=True, precision=precision, framework="megatron-core")
    setting = RankSetting(
        micro_batch=2, sequence_length=512, tp=4, sequence_parallel=True, precision=precision, kernels="fused"
    )
    layer = build_model(find_spec("gpt2-medium"), setting).layers[1]
    points = [
        i for _, items in items_of(layer, "I") for i in items if isinstance(i, CommunicationPoint) and i.operator == "f"
    ]
    assert {(i.kernel_pass, i.overlaps) for i in points} == {("forward", 1), ("backward", 0)}
    _, _, stage = stage_of(plan)
    tasks = TaskList()
    finish(stage.steps(tasks, layer, "I", (), 0))
    for index, task in enumerate(tasks.tasks):
        if isinstance(task.op, Collective) and task.op.collective == "reduce_scatter":
            after = [t for t in tasks.tasks[index + 1 :] if isinstance(t.op, KernelRun)]
            assert not after or index in after[0].after


@pytest.mark.parametrize("settings", [{"launch_blocking": True}, {"framework": "megatron-2021"}])
def test_no_product_is_cut_twice(settings):
    """Neither where a host waits for every kernel nor where the framework runs no reduction beside a product."""
    plan = plan_of(sequence_parallel=True, asynchronous_tp=True, **({"framework": "megatron-core"} | settings))
    setting = RankSetting(micro_batch=2, sequence_length=512, tp=4, sequence_parallel=True, reduces_beside=False)
    layer = build_model(find_spec("gpt2-medium"), setting).layers[1]
    _, _, stage = stage_of(plan)
    pieces = {}
    for kind in ("F", "B"):
        tasks = TaskList()
        finish(stage.steps(tasks, layer, kind, (), 0))
        shapes = [k.shape for t in tasks.tasks if isinstance(t.op, KernelRun) for k in t.op.kernels]
        pieces[kind] = {s.name for s in shapes if isinstance(s, GemmShape) and s.batch > 1}
        assert {s.batch for s in shapes if isinstance(s, GemmShape)} <= {1, 4}
    is_cut = "launch_blocking" not in settings
    assert pieces["F"] == ({"qkv", "attention_output", "mlp_up", "mlp_down"} if is_cut else set())
    assert pieces["B"] == ({"attention_output", "mlp_down"} if is_cut else set())


def test_a_block_is_built_once():
    _, _, stage = stage_of(plan_of())
    assert stage.block(0, "F") is stage.block(0, "F")
    assert all(task.key is None for task in stage.block(0, "B").tasks)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"framework": "megatron", "precision": "bf16"}, (6, 4)),  # fp32 main gradients, in every micro-batch
        ({"framework": "megatron-deepspeed", "precision": "bf16"}, (6, 6)),  # which also clears the 16-bit ones
        ({"framework": "megatron", "precision": "fp16"}, (4, 2)),
        ({"framework": "megatron-core", "precision": "bf16"}, (0, 0)),  # in the epilogue
        ({"framework": "hf-eager", "precision": "amp_bf16"}, (8, 4)),
        ({"framework": "hf-eager", "precision": "amp_bf16", "global_batch": 4}, (0, 0)),  # one micro-batch
        ({"framework": "fsdp", "precision": "bf16", "sharding": "zero3"}, (0, 0)),
    ],
)
def test_gradient_accumulation_traffic(changes, expected):
    assert accumulation_traffic(plan_of(**changes)) == expected


def test_deepspeed_releases_what_is_used_again_too_late():
    assert released_before_reuse([453_000_000, 151_000_000, 604_000_000, 604_000_000], 10**9) == [
        604_000_000,
        151_000_000,
        453_000_000,
    ]
    assert released_before_reuse([100_000_000] * 4, 10**9) == []


def test_asynchronous_tensor_parallelism_runs_collectives_beside_their_products():
    _, model, stage = stage_of(plan_of(sequence_parallel=True, asynchronous_tp=True))
    tasks = TaskList()
    finish(stage.steps(tasks, model.layers[1], "F", (), 0))
    for index, task in enumerate(tasks.tasks):
        if isinstance(task.op, Collective) and task.op.collective == "all_gather":
            consumer = tasks.tasks[index + 1]
            assert len(consumer.op.kernels) == 1
            assert index not in consumer.after
        if isinstance(task.op, Collective) and task.op.collective == "reduce_scatter":
            assert index - 1 not in task.after
            assert len(tasks.tasks[index - 1].op.kernels) == 1


def test_asynchronous_tensor_parallelism_cuts_the_products_that_wait_for_each_other_alone():
    """Transformer Engine: as many pieces as ranks, along tokens, next to a gather or a scatter; ``ub_bulk_dgrad`` leaves a product whole.

    The gradient of the input, beside which the input is gathered again, is whole, as is that of the weight, beside which the former is
    scattered; the scatter begins behind the former.
    """
    plan = plan_of(sequence_parallel=True, asynchronous_tp=True, framework="megatron-core")
    _, model, stage = stage_of(plan)
    layer, tokens = model.layers[1], plan.micro_batch * plan.sequence_length
    cut = {"F": {"qkv", "attention_output", "mlp_up", "mlp_down"}, "B": {"attention_output dgrad", "mlp_down dgrad"}}
    for kind, expected in cut.items():
        tasks = TaskList()
        finish(stage.steps(tasks, layer, kind, (), 0))
        shapes = [k.shape for t in tasks.tasks if isinstance(t.op, KernelRun) for k in t.op.kernels]
        products = [s for s in shapes if isinstance(s, GemmShape)]
        pieces = {s.name + (" dgrad" if s.kernel_pass == "dgrad" else ""): s for s in products if s.batch > 1}
        assert set(pieces) == expected
        assert {(s.batch, s.m) for s in pieces.values()} == {(plan.tp, tokens // plan.tp)}
        whole = [i for i in (layer.forward if kind == "F" else layer.backward) if isinstance(i, GemmShape)]
        assert sum(s.n_flops for s in products) == sum(s.n_flops for s in whole)
    for index, task in enumerate(tasks.tasks):
        if isinstance(task.op, Collective) and task.op.collective == "reduce_scatter":
            before = tasks.tasks[index - 1].op.kernels[-1].shape
            assert (before.kernel_pass, index - 1 in task.after) == ("dgrad", True)
            assert index not in tasks.tasks[index + 1].after
            assert tasks.tasks[index + 1].op.kernels[0].shape.kernel_pass == "wgrad"


def test_agreeing_on_a_scale_is_no_turn():
    """The largest element of a tensor is an all-reduce of four bytes, behind which no other pass finds time to compute."""
    n_stops, n_sent = {}, {}
    for precision in ("fp8", "fp8_current"):
        plan = plan_of(sequence_parallel=True, precision=precision, framework="megatron-core")
        _, model, stage = stage_of(plan)
        tasks = TaskList()
        n_stops[precision] = sum(1 for _ in stage.steps(tasks, model.layers[1], "B", (), 0))
        n_sent[precision] = sorted((c.collective, c.n_bytes) for c in collectives(tasks.tasks))
    assert n_stops["fp8"] == n_stops["fp8_current"] == len(n_sent["fp8"])
    assert n_sent["fp8_current"] == sorted([*n_sent["fp8"], ("all_reduce", 4), ("all_reduce", 4)])


def test_a_product_is_cut_along_its_tokens_where_they_divide():
    product = GemmShape(m=12, n=5, k=7, batch=3)
    cut = in_pieces(product, 4)
    assert (cut.m, cut.n, cut.k, cut.batch, cut.n_flops) == (3, 5, 7, 12, product.n_flops)
    assert in_pieces(product, 5) is product
    assert in_pieces(None, 4) is None


def pair_of_experts():
    """The blocks of a forward and a backward of two layers of a mixture, in turns, and both passes by themselves."""
    plan = plan_of(
        tp=1,
        pp=2,
        virtual_pp=2,
        dp=4,
        ep=4,
        global_batch=32,
        moe_dispatcher="hybridep",
        schedule="1f1b-combined",
        framework="megatron-core",
    )
    spec = find_spec("qwen3-30b-a3b")
    layers = build_model(spec, RankSetting(micro_batch=2, sequence_length=512, ep=4, precision="bf16")).layers[1:3]
    stage = StageLayers([layers, layers], plan, Communicators(Mesh(plan, 8), 0, folded=True))
    return stage.paired_blocks(0, 1), (stage.block(0, "F"), stage.block(1, "B"))


@pytest.mark.parametrize("tp", [1, 2])
def test_under_tensor_parallelism_a_pair_is_left_whole(tp):
    """Latent attention begins with products that no rank shares, whose weights' gradients nothing of the group runs beside."""
    plan = plan_of(
        tp=tp, pp=2, virtual_pp=2, dp=4 // tp, ep=2, global_batch=32, sequence_parallel=tp > 1, schedule="1f1b-combined",
        framework="megatron-core",
    )  # fmt: skip
    setting = RankSetting(micro_batch=2, sequence_length=512, ep=2, tp=tp, sequence_parallel=tp > 1, kernels="fused")
    layers = build_model(find_spec("deepseek-v3"), setting).layers[5:7]
    stage = StageLayers([layers, layers], plan, Communicators(Mesh(plan, 8), 0, folded=True))
    assert (stage.paired_blocks(0, 1)[1] == Tail()) == (tp > 1)


def kernels_of(blocks):
    ops = [op for one in blocks for op in ([task.op for task in one.tasks] if isinstance(one, Block) else [one])]
    runs = [op for op in ops if isinstance(op, KernelRun)]
    return sorted(f"{kernel.phase} {kernel.shape}" for run in runs for kernel in run.kernels)


def test_a_pair_takes_turns_as_megatron_core_does():
    """``TransformerLayerSchedulePlan.run`` of NVIDIA/Megatron-LM, which names both streams in its docstring:

    combine_bwd | dispatch_fwd -> dispatch_bwd | combine_fwd beside attn_fwd | mlp_bwd -> mlp_fwd | attn_bwd.
    """
    (both, _), _ = pair_of_experts()
    order = [
        (task.op.phase, task.op.name if isinstance(task.op, Collective) else "compute")
        for task in both.tasks
        if isinstance(task.op, Collective) or (isinstance(task.op, KernelRun) and len(task.op.kernels) > 2)
    ]
    layer = [
        ("backward", "combine"), ("forward", "compute"), ("forward", "dispatch"), ("backward", "compute"),
        ("backward", "dispatch"), ("forward", "compute"), ("forward", "combine"), ("backward", "compute"),
    ]  # fmt: skip
    assert order == layer * 2


def test_a_pair_ends_with_what_its_neighbours_need_not_wait_for():
    """``TransformerModelChunkSchedulePlan.run``: the last attention's backward behind the forward, its weights' gradients last of all."""
    (both, tail), passes = pair_of_experts()
    assert both.tasks[-1].op.phase == "forward"
    assert tail.gradient.kernels[0].name == "flash_attention"
    assert {kernel.shape.kernel_pass for kernel in tail.weights.kernels} == {"wgrad"}
    assert not [kernel for kernel in tail.gradient.kernels if kernel.shape.kernel_pass == "wgrad"]
    assert kernels_of((both, *tail)) == kernels_of(passes)
