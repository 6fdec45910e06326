"""Data parallelism: bucket sizes, and the bytes that each scheme sends per step (ZeRO's table)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import ModelCosts
from simulator.errors import InfeasiblePlanError
from simulator.models.layer import Layer, Parameter, PointwiseShape
from simulator.parallel.lower import data_parallel
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.replicated import fill_buckets, owned_tensors
from simulator.parallel.states import accumulation_traffic, optimizer_step
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork
from simulator.program.program import HOST, TaskList
from simulator.scenario import Scenario
from simulator.topology import load_topology

KERNEL = PointwiseShape(name="copy", n_elements=1, read_bytes=1, written_bytes=1)


def layers(sizes):
    return [
        Layer(name="block", forward=(KERNEL,), backward=(KERNEL,), parameters=(Parameter(name=f"p{i}", n_elements=n),))
        for i, n in enumerate(sizes)
    ]


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=30), st.integers(1, 10**9))
def test_buckets_hold_every_parameter_once_in_backward_order(sizes, cap_bytes):
    buckets = fill_buckets(layers(sizes), cap_bytes, cap_bytes, 2)
    assert sum(bucket.n_elements for bucket in buckets) == sum(sizes)
    triggers = [bucket.trigger for bucket in buckets]
    assert triggers == sorted(triggers, reverse=True)
    assert all(bucket.n_elements * 2 >= cap_bytes for bucket in buckets[:-1])


class PlayedStep(NamedTuple):
    strategy: object  # whose hooks were called
    tasks: list
    before_optimizer: list
    awaited: tuple  # what the optimizer waits for


def played_step(plan, stage, n_micro_batches=1):
    """Call the hooks of one step, as lowering does."""
    strategy = data_parallel(stage, plan, Communicators(Mesh(plan, 8), 0, folded=True))
    tasks, last = TaskList(), ()
    strategy.start_step(tasks)
    for micro_batch in range(n_micro_batches):
        is_last = micro_batch == n_micro_batches - 1
        for kind, order in (("F", range(len(stage))), ("B", reversed(range(len(stage))))):
            for position in order:
                needs = strategy.before_layer(tasks, position, kind, micro_batch)
                last = (tasks.add(KERNEL, after=needs),)
                strategy.after_layer(tasks, position, kind, micro_batch, last, is_last=is_last)
    awaited = strategy.finish_backward(tasks, last)
    before_optimizer = list(tasks.tasks)
    strategy.after_step(tasks, tasks.add(KERNEL, after=awaited))
    return PlayedStep(strategy, tasks.tasks, before_optimizer, awaited)


def step_tasks(plan, sizes):
    """The tasks of one step before its optimizer."""
    return played_step(plan, layers(sizes)).before_optimizer


def collectives_of(plan, sizes, n_micro_batches=1):
    return [
        task.op for task in played_step(plan, layers(sizes), n_micro_batches).tasks if isinstance(task.op, Collective)
    ]


def sent_bytes(plan, sizes, n_micro_batches=1):
    """Bytes of one step by collective, as nccl-tests counts them."""
    totals = {}
    for op in collectives_of(plan, sizes, n_micro_batches):
        totals[op.collective] = totals.get(op.collective, 0) + op.n_bytes
    return totals


SIZES = [50_000_000, 100_000_000, 100_000_000, 50_000_000]
PSI = sum(SIZES)


@pytest.mark.parametrize(
    ("framework", "sharding", "micro_batches", "expected"),
    [
        ("hf-eager", "none", 3, {"all_reduce": 2 * PSI}),
        ("megatron", "none", 3, {"all_reduce": 4 * PSI}),
        ("megatron", "zero1", 3, {"reduce_scatter": 4 * PSI, "all_gather": 2 * PSI}),
        ("deepspeed", "zero1", 3, {"all_reduce": 2 * PSI, "all_gather": 2 * PSI}),
        # Aleph-Alpha/scaling, core/optimizer/allreduce.py: 16-bit gradients are cast and all-reduced in fp32
        ("scaling", "zero1", 3, {"all_reduce": 4 * PSI, "all_gather": 2 * PSI}),
        # huggingface/nanotron, optim/zero.py and gradient_accumulator.py: fp32 sums once, to their owners
        ("nanotron", "zero1", 3, {"reduce_scatter": 4 * PSI, "all_gather": 2 * PSI}),
        # Dao-AILab/flash-attention, training/src/utils/ddp_zero1.py: DDP, and owners who broadcast their tensors
        ("flash-attn", "zero1", 3, {"all_reduce": 2 * PSI, "broadcast": 2 * PSI}),
        ("deepspeed", "zero2", 3, {"all_reduce": 3 * 2 * PSI, "all_gather": 2 * PSI}),
    ],
)
def test_bytes_of_replicated_schemes(framework, sharding, micro_batches, expected):
    plan = ParallelPlan(dp=8, gpus=8, sharding=sharding, framework=framework, precision="bf16", micro_batch=1,
                        global_batch=8 * micro_batches)  # fmt: skip
    assert sent_bytes(plan, SIZES, micro_batches) == expected


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_bytes_of_full_sharding_grow_with_micro_batches(micro_batches):
    plan = ParallelPlan(
        dp=8, gpus=8, sharding="zero3", framework="fsdp", precision="bf16", micro_batch=1, global_batch=8
    )
    assert sent_bytes(plan, SIZES, micro_batches) == {
        "all_gather": 2 * 2 * PSI * micro_batches,
        "reduce_scatter": 2 * PSI * micro_batches,
    }


def test_hybrid_sharding_reduces_shards_across_nodes():
    plan = ParallelPlan(
        dp=16, gpus=16, sharding="hsdp", framework="fsdp", precision="bf16", micro_batch=1, global_batch=16
    )
    assert sent_bytes(plan, SIZES) == {"all_gather": 4 * PSI, "reduce_scatter": 2 * PSI, "all_reduce": 2 * PSI // 8}


def test_one_rank_sends_nothing():
    plan = ParallelPlan(dp=1, gpus=1, framework="hf-eager", micro_batch=1, global_batch=1)
    assert sent_bytes(plan, SIZES) == {}


@pytest.mark.parametrize(("ep", "sharding"), [(8, "none"), (8, "zero1"), (2, "none"), (2, "zero1"), (2, "zero3")])
def test_experts_are_reduced_over_their_own_replicas_only(ep, sharding):
    dense, expert = 1_000_000, 4_000_000
    stage = [
        Layer(
            name="block", forward=(KERNEL,), backward=(KERNEL,),
            parameters=(Parameter(name="d", n_elements=dense), Parameter(name="e", n_elements=expert, is_expert=True)),
        )
    ]  # fmt: skip
    framework = "fsdp" if sharding == "zero3" else "megatron"
    plan = ParallelPlan(
        dp=8, ep=ep, gpus=8, sharding=sharding, framework=framework, precision="fp16", micro_batch=1, global_batch=8
    )
    step = played_step(plan, stage)
    sizes = {"dp": 0, "shard": 0, "expert_dp": 0}
    for task in step.tasks:
        if isinstance(task.op, Collective) and task.op.collective in ("all_reduce", "reduce_scatter"):
            sizes[task.op.axis] += task.op.n_bytes
    assert sizes["dp"] + sizes["shard"] == 2 * dense
    assert sizes["expert_dp"] == (2 * expert if ep < 8 else 0)
    replicas = 1 if sharding == "none" else 8
    assert step.strategy.n_optimizer_elements == dense // replicas + expert // max(1, replicas // ep)


def zero_plan(**changes):
    settings = {"dp": 16, "gpus": 16, "framework": "deepspeed", "sharding": "zero3", "precision": "bf16", "micro_batch": 1,
                "global_batch": 16}  # fmt: skip
    return ParallelPlan(**(settings | changes))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_zero3_gathers_twice_and_scatters_once_per_micro_batch(micro_batches):
    sent = sent_bytes(zero_plan(global_batch=16 * micro_batches), SIZES, micro_batches)
    assert sent == {"all_gather": 4 * PSI * micro_batches, "reduce_scatter": 2 * PSI * micro_batches}


def test_what_deepspeed_slices_costs_the_host_two_views_per_rank():
    """A slice and a chunk per rank of what is scattered, in front of its launch; what is gathered arrives in place."""
    sent = [task.op for task in step_tasks(zero_plan(), SIZES) if isinstance(task.op, Collective)]
    assert {op.host_s for op in sent if op.collective == "reduce_scatter"} == {16 * 2 * 5e-6}
    assert {op.host_s for op in sent if op.collective == "all_gather"} == {0.0}
    costs = ModelCosts(
        load_topology("dgx-a100-80g", 16), Scenario(topology="dgx-a100-80g", model="gpt2", plan=zero_plan())
    )
    one = next(op for op in sent if op.collective == "reduce_scatter")
    assert costs.issue_ps(one, 0) - costs.issue_ps(replace(one, host_s=0.0), 0) == 160_000_000


def test_old_deepspeed_slices_what_it_gathers_too_behind_the_device():
    """Lists of views (0.3): a slice and a chunk per rank of every message, once the device has nothing left to do."""
    tasks = step_tasks(zero_plan(framework="deepspeed-0.3"), SIZES)
    slices = [task for task in tasks if isinstance(task.op, HostWork) and task.op.name == "slice partitions"]
    sent = [task.op for task in tasks if isinstance(task.op, Collective)]
    assert {task.op.duration_s for task in slices} == {16 * 2 * 5e-6}
    assert all(task.after for task in slices)
    # nothing runs yet when the first tensors are gathered
    assert {op.host_s for op in sent} == {0.0, 16 * 2 * 5e-6}
    assert len(slices) + sum(op.host_s > 0 for op in sent) == len(sent)


def test_zero_plus_plus_slices_in_front_of_the_first_of_its_two_messages():
    plan = zero_plan(secondary_group=8, quantized_weights=True, quantized_gradients=True)
    sent = [task.op for task in step_tasks(plan, SIZES) if isinstance(task.op, Collective)]
    assert {op.host_s for op in sent if op.axis == "shard:local"} == {16 * 2 * 5e-6}
    assert {op.host_s for op in sent if op.axis == "shard:rail"} == {0.0}


def test_zero_plus_plus_sends_a_quarter():
    """Int8 forward and, of the second copy, backward; int4 all-to-alls inside and across two nodes: 2 Psi + Psi / 2 (1 + 1/8)."""
    plan = zero_plan(secondary_group=8, quantized_weights=True, quantized_gradients=True)
    assert sent_bytes(plan, SIZES) == {"all_gather": 2 * PSI, "all_to_all": PSI // 2 + PSI // 2 // 8}
    assert axis_bytes(plan, SIZES, "all_gather") == {"shard": PSI, "secondary": PSI}
    assert axis_bytes(plan, SIZES, "all_to_all") == {"shard:local": PSI // 2, "shard:rail": PSI // 16}


def test_one_bit_adam_sends_a_bit_an_element_there_and_back():
    """Tang et al., arXiv:2102.02888: signs to who averages a part, its signs to all, each with a scale of 4 bytes from 16 ranks."""
    plan = zero_plan(sharding="none", gradient_compression="onebit")
    assert sent_bytes(plan, SIZES, 3) == {"all_to_all": PSI // 8, "all_gather": PSI // 8 + 2 * 16 * 4}
    assert sent_bytes(zero_plan(sharding="none"), SIZES) == {"all_reduce": 2 * PSI}  # 16 times as much


def test_one_bit_adam_compresses_all_of_its_momentum_and_then_the_part_that_it_averaged():
    plan = zero_plan(sharding="none", gradient_compression="onebit")
    tasks = step_tasks(plan, SIZES)
    compressed = [task.op.kernels[0].shape.n_elements for task in tasks if "compress" in getattr(task.op, "name", "")]
    assert compressed == [sum(SIZES), sum(SIZES) // 16]


@pytest.mark.parametrize("changes", [{"sharding": "zero1"}, {"sharding": "none", "framework": "hf-eager"}])
def test_one_bit_adam_is_deepspeeds_and_shards_nothing(changes):
    with pytest.raises(InfeasiblePlanError, match="onebit"):
        zero_plan(gradient_compression="onebit", **changes).resolve(16)


def axis_bytes(plan, sizes, collective):
    totals = {}
    for op in collectives_of(plan, sizes):
        if op.collective == collective:
            totals[op.axis] = totals.get(op.axis, 0) + op.n_bytes
    return totals


@pytest.mark.parametrize(("bucket_elements", "n_messages"), [(10**9, 1), (2 * 10**8, 2), (10**8, 4), (1, 4)])
def test_zero3_reduces_whole_buckets(bucket_elements, n_messages):
    plan = zero_plan(bucket_bytes=2 * bucket_elements)
    scatters = [op for op in collectives_of(plan, SIZES) if op.collective == "reduce_scatter"]
    assert len(scatters) == n_messages
    assert sum(op.n_bytes for op in scatters) == 2 * PSI


def test_small_tensors_stay_whole_and_are_gathered_after_the_step():
    plan = zero_plan(persistence_elements=60_000_000)
    gathers = [op for op in collectives_of(plan, [*SIZES, 100_000_000]) if op.collective == "all_gather"]
    assert gathers[-1].phase == "optimizer"
    assert gathers[-1].n_bytes == 2 * 100_000_000


@pytest.mark.parametrize(("sharding", "device_bytes"), [("zero1", 0), ("zero3", 0)])
def test_an_offloaded_optimizer_sends_shards_over_and_back(sharding, device_bytes):
    plan = zero_plan(sharding=sharding, offload_optimizer="cpu")
    sent = sent_bytes(plan, SIZES)
    assert sent["copy_to_host"] == 2 * PSI // 16
    assert sent["copy_from_host"] == 2 * PSI // 16


def test_offloaded_parameters_come_from_the_host_for_every_gather():
    sent = sent_bytes(zero_plan(offload_optimizer="cpu", offload_parameters="cpu"), SIZES)
    assert (sent["copy_from_host"], sent["copy_to_host"]) == (2 * 2 * PSI // 16, 2 * PSI // 16)
    stepped_here = sent_bytes(zero_plan(offload_parameters="cpu"), SIZES)
    assert (stepped_here["copy_from_host"], stepped_here["copy_to_host"]) == (2 * 2 * PSI // 16, 2 * PSI // 16)


def test_without_whole_buckets_every_owner_gets_its_part():
    plan = zero_plan(sharding="zero2", gradient_collective="reduce")
    sent = sent_bytes(plan, SIZES)
    assert sent == {"reduce": 2 * PSI, "all_gather": 2 * PSI}
    assert len([op for op in collectives_of(plan, SIZES) if op.collective == "reduce"]) == 16


def test_a_gradient_hook_halves_fp32_gradients():
    plan = zero_plan(framework="hf-eager", sharding="none", precision="amp_bf16", gradient_compression="bf16")
    plain = zero_plan(framework="hf-eager", sharding="none", precision="amp_bf16")
    assert sent_bytes(plan, SIZES) == {"all_reduce": 2 * PSI}
    assert sent_bytes(plain, SIZES) == {"all_reduce": 4 * PSI}
    names = [{getattr(task.op, "name", "") for task in step_tasks(one, SIZES)} for one in (plan, plain)]
    assert ["compress gradients" in found for found in names] == [True, False]
    assert ["copy into bucket" in found for found in names] == [False, True]


@pytest.mark.parametrize(("recompute", "times"), [("none", 2), ("full", 3)])
def test_checkpoints_outside_units_gather_a_unit_once_more(recompute, times):
    """transformers, ``TrainingArguments``: under full sharding ``gradient_checkpointing`` "introduces a redundant AllGather operation in
    backward pass"; PyTorch's own stand inside the units and gather in forward and in backward."""
    for framework, expected in (("hf-fsdp", times), ("fsdp", 2)):
        sent = sent_bytes(zero_plan(framework=framework, recompute=recompute), SIZES, 1)
        assert sent["all_gather"] == expected * 2 * PSI, framework


@pytest.mark.parametrize("framework", ["hf-fsdp", "fsdp"])
@pytest.mark.parametrize(("gathers", "times"), [(True, 3), (False, 2)])
def test_where_checkpoints_stand_is_the_trainers_to_say(framework, gathers, times):
    """``activation_checkpointing`` of Accelerate's plugin wraps what is inside the units (``apply_activation_checkpointing``), whoever
    calls it; any trainer may checkpoint whole units."""
    sent = sent_bytes(zero_plan(framework=framework, recompute="full", recompute_gathers=gathers), SIZES, 1)
    assert sent["all_gather"] == times * 2 * PSI


def test_fsdp_that_keeps_its_parameters_gathers_once_per_micro_batch():
    plan = zero_plan(framework="fsdp", sharding="zero2", global_batch=32)
    assert sent_bytes(plan, SIZES, 2) == {"all_gather": 2 * PSI * 2, "reduce_scatter": 2 * PSI * 2}


def test_fsdp_that_keeps_its_parameters_gathers_16_bits_and_adds_up_shards():
    """MixedPrecision(param_dtype=bf16) casts the shard before it is gathered, and the sum of gradients is the reduced shard's,
    under SHARD_GRAD_OP as under FULL_SHARD (torch/distributed/fsdp)."""
    plan = zero_plan(framework="fsdp", sharding="zero2", precision="amp_bf16", global_batch=32)
    assert sent_bytes(plan, SIZES, 2)["all_gather"] == 2 * PSI * 2
    assert accumulation_traffic(plan) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, "gather reduce"), ({"backward_prefetch": "post"}, "gather reduce"), ({"backward_prefetch": "none"}, "reduce gather"),
    ],
)  # fmt: skip
def test_fsdp_gathers_the_next_unit_before_it_reduces_this_one(changes, order):
    """Behind the first unit's backward: its reduction and the gather of the unit after next, in the order of the stream."""
    plan = zero_plan(framework="fsdp", **changes)
    backward = [op for op in collectives_of(plan, SIZES) if op.phase == "backward"]
    first_reduction = next(i for i, op in enumerate(backward) if op.collective == "reduce_scatter")
    assert first_reduction == (2 if order == "gather reduce" else 1)


def test_first_bucket_of_ddp_is_one_mebibyte_unless_the_size_is_given():
    small = [100_000] * 200  # 0.4 MB each in fp32
    plan = zero_plan(framework="hf-eager", sharding="none", precision="fp32")
    sizes = [op.n_bytes for op in collectives_of(plan, small)]
    assert (sizes[0], sizes[1]) == (1_200_000, 26_400_000)
    given_size = [op.n_bytes for op in collectives_of(zero_plan(framework="hf-eager", sharding="none", precision="fp32",
                                                                bucket_bytes=4_000_000), small)]  # fmt: skip
    assert set(given_size) == {4_000_000}


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=40), st.integers(2, 4))
def test_every_tensor_has_one_owner(n_elements, n_ranks):
    owned = owned_tensors(n_elements, n_ranks)
    assert sorted(count for one in owned for count in one) == sorted(n_elements)
    assert max(map(sum, owned)) - min(map(sum, owned)) <= max(n_elements)


def test_owners_broadcast_every_tensor_once():
    plan = ParallelPlan(gpus=4, dp=4, framework="torch-ddp", sharding="zero1", precision="fp32", micro_batch=1).resolve(
        4
    )
    assert sent_bytes(plan, SIZES) == {"all_reduce": 4 * PSI, "broadcast": 4 * PSI}
    roots = [op.groups[0][0] for op in collectives_of(plan, [40, 10, 20, 30]) if op.collective == "broadcast"]
    assert roots == [0, 1, 2, 3]


def test_threads_of_a_process_group_take_collectives_in_turns():
    plan = ParallelPlan(gpus=4, dp=4, framework="torch-ddp", bucket_bytes=1, micro_batch=1).resolve(4)
    communicators = Communicators(Mesh(plan, 8, 2), 0, folded=True)
    strategy = data_parallel(layers(SIZES), plan, communicators)
    tasks = TaskList()
    for _ in range(4):
        strategy.collective(tasks, "all_reduce", "dp", 8, ())
    assert [task.stream for task in tasks.tasks] == ["dp 0", "dp 1", "dp 0", "dp 1"]


def test_on_processors_nothing_is_issued_before_the_compute_before_it_has_ended():
    tasks = TaskList()
    first = tasks.add(KERNEL)
    message = tasks.add(KERNEL, "dp")
    tasks.add(KERNEL, after=(message,))
    tasks.issue_in_turn()
    assert [task.after for task in tasks.tasks] == [(), (first,), (message,)]


# -- what waits for what -----------------------------------------------------------------------------------------------


def waits_of_torch(n_units, *, forward, backward):
    """What each gather of a step waits for: torch's own queue of freed units, asked by the hooks of ``_runtime_utils.py`` in turn."""
    queue = pytest.importorskip("torch.distributed.fsdp._limiter_utils")._FreeEventQueue()
    found, gathered = [], set()

    def unshard(unit, way):
        if 0 <= unit < n_units and (way, unit) not in gathered:
            gathered.add((way, unit))
            found.append(queue.dequeue_if_needed())

    for unit in range(n_units):
        unshard(unit, "F")
        if forward:
            unshard(unit + 1, "F")
        queue.enqueue(unit)
    for unit in reversed(range(n_units)):
        unshard(unit, "B")
        if backward == "pre":
            unshard(unit - 1, "B")
        queue.enqueue(2 * n_units - 1 - unit)
        if backward == "post":
            unshard(unit - 1, "B")
    return found


@pytest.mark.parametrize("n_units", [1, 2, 4, 7])
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("backward", ["pre", "post", "none"])
def test_the_host_waits_for_what_torchs_queue_says(n_units, forward, backward):
    """torch/distributed/fsdp: ``_unshard`` waits for an event of the queue, which ``_reshard`` fills when it frees."""
    plan = zero_plan(framework="fsdp", sharding="zero3", forward_prefetch=forward, backward_prefetch=backward)
    tasks = step_tasks(plan, [1_000_000] * n_units)
    passes = [index for index, task in enumerate(tasks) if task.op is KERNEL]
    waits, waiting = [], None
    for task in tasks:
        if isinstance(task.op, HostWork) and task.op.name == "rate limiter":
            waiting = passes.index(*task.after)
        elif isinstance(task.op, Collective) and task.op.collective == "all_gather":
            waits.append(waiting)
            waiting = None
    assert waits == waits_of_torch(n_units, forward=forward, backward=backward)


def test_what_is_kept_for_backward_is_never_freed():
    """SHARD_GRAD_OP: only ``_reshard`` with ``free_unsharded_flat_param`` fills the queue of events."""
    tasks = step_tasks(zero_plan(framework="fsdp", sharding="zero2"), SIZES)
    assert not any(isinstance(task.op, HostWork) and task.op.name == "rate limiter" for task in tasks)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("framework", ["fsdp2", "torchtitan"])
def test_fully_shard_gathers_as_many_units_ahead_as_it_is_told(framework, depth):
    """``set_modules_to_forward_prefetch`` of the next units: when one computes, they have been asked for, and nothing twice."""
    plan = zero_plan(framework=framework, sharding="zero3", forward_prefetch=True, prefetch_depth=depth)
    tasks = step_tasks(plan, [1_000_000] * 5)
    is_gather = [isinstance(task.op, Collective) and task.op.collective == "all_gather" for task in tasks]
    passes = [index for index, task in enumerate(tasks) if task.op is KERNEL][:5]
    assert [sum(is_gather[:index]) for index in passes] == [min(5, unit + 1 + depth) for unit in range(5)]
    assert sum(is_gather) == 2 * 5


def test_streams_of_fully_shard_wait_for_a_buffer_and_its_host_for_nothing():
    """``FSDPParamGroup.wait_for_unshard``: in forward a gather follows the copy-out of the unit before the last, whose buffer is freed
    then; in backward, where the buffer is freed at once, that of the last."""
    plan = zero_plan(framework="fsdp2", sharding="zero3")
    tasks = step_tasks(plan, [1_000_000] * 5)
    copies = [index for index, task in enumerate(tasks) if "copy-out" in getattr(task.op, "name", "")]
    gathers = [task for task in tasks if isinstance(task.op, Collective) and task.op.collective == "all_gather"]
    waits = [[copies.index(index) for index in task.after if index in copies] for task in gathers]
    assert waits == [[], [], [0], [1], [2], [4], [5], [6], [7], [8]]
    assert not any(isinstance(task.op, HostWork) and task.after for task in tasks)


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp32", 4), ("amp_bf16", 2)])
def test_what_is_copied_out_is_as_wide_as_what_was_gathered(precision, width):
    """``foreach_all_gather_copy_out`` splits one buffer into the parameters of the unit, in the type that was gathered."""
    tasks = step_tasks(zero_plan(framework="fsdp2", sharding="zero3", precision=precision), [1_000_000] * 3)
    copies = [task.op for task in tasks if "copy-out" in getattr(task.op, "name", "")]
    shapes = [kernel.shape for op in copies for kernel in op.kernels]
    assert shapes and {(one.read_bytes, one.written_bytes) for one in shapes} == {(width * 1e6, width * 1e6)}


@pytest.mark.parametrize(
    ("framework", "sharding"), [("hf-eager", "none"), ("megatron", "zero1"), ("deepspeed", "zero2"), ("fsdp", "zero3")]
)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_optimizer_waits_for_every_reduction(framework, sharding, overlap):
    plan = ParallelPlan(
        dp=8, gpus=8, sharding=sharding, framework=framework, overlap=overlap, micro_batch=1, global_batch=8
    )
    step = played_step(plan, layers(SIZES))
    tasks = step.before_optimizer
    reduced = {
        i for i, task in enumerate(tasks) if isinstance(task.op, Collective) and task.op.collective != "all_gather"
    }
    waited, reached = list(step.awaited), set()
    while waited:
        index = waited.pop()
        if index not in reached:
            reached.add(index)
            waited += tasks[index].after
            if tasks[index].stream != HOST:  # what is on a stream has waited for all before it there
                waited += [i for i in range(index) if tasks[i].stream == tasks[index].stream]
    assert reduced and reduced <= reached


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("framework", ["deepspeed", "megatron", "torch-3d"])
def test_zero2_reduces_in_every_micro_batch_without_overlap_too(framework, overlap):
    """Who keeps a shard of the gradients cannot sum them whole (ZeRO, SC 2020, section 5.2; ``runtime/zero/stage_1_and_2.py``)."""
    plan = ParallelPlan(
        dp=8,
        gpus=8,
        sharding="zero2",
        framework=framework,
        overlap=overlap,
        micro_batch=1,
        global_batch=32,
        gradient_bytes=2,
    )
    collective = "all_reduce" if framework == "deepspeed" else "reduce_scatter"
    assert sent_bytes(plan, SIZES, 4)[collective] == 4 * 2 * PSI


def test_groups_of_a_distributed_optimizer_sum_their_shards():
    """Megatron-Core with two optimizer instances of four ranks: reduce-scatter inside, all-reduce of a quarter across."""
    plan = ParallelPlan(
        dp=8, gpus=8, sharding="zero1", sharding_group=4, framework="megatron", micro_batch=1, global_batch=8
    )
    assert sent_bytes(plan, SIZES) == {"reduce_scatter": 4 * PSI, "all_reduce": 4 * PSI // 4, "all_gather": 2 * PSI}


@pytest.mark.parametrize(
    ("forward", "backward", "ahead"),
    [(False, "pre", "B"), (True, "pre", "FB"), (True, "post", "F"), (False, "none", "")],
)
def test_fsdp_issues_the_next_gather_before_or_behind_a_units_kernels(forward, backward, ahead):
    """torch/distributed/fsdp: ``forward_prefetch`` and ``BackwardPrefetch.BACKWARD_PRE`` issue it before the unit computes."""
    plan = ParallelPlan(dp=8, gpus=8, sharding="zero3", framework="fsdp", micro_batch=1, global_batch=8, forward_prefetch=forward,
                        backward_prefetch=backward, limit_all_gathers=False)  # fmt: skip
    tasks = step_tasks(plan, SIZES)
    launches = [
        t.op.collective if isinstance(t.op, Collective) else "kernel"
        for t in tasks
        if t.op is KERNEL or isinstance(t.op, Collective)
    ]
    kernels = [i for i, what in enumerate(launches) if what == "kernel"]
    # what is issued between the passes of two units: in forward before the first, in backward before the last unit's
    first, turn = launches[: kernels[0]], launches[kernels[len(SIZES) - 1] + 1 : kernels[len(SIZES)]]
    assert (first.count("all_gather"), turn.count("all_gather")) == (1 + ("F" in ahead), 1 + ("B" in ahead))


@pytest.mark.parametrize(
    ("settings", "read", "written"),
    [({"framework": "megatron", "precision": "bf16"}, 4 + 12, 12 + 2), ({"framework": "torchtitan", "precision": "bf16"}, 4 + 12, 12),
     ({"framework": "hf-eager", "precision": "fp32"}, 4 + 12, 12), ({"framework": "hf-eager", "precision": "bf16"}, 2 + 6, 6),
     ({"framework": "compiled-ddp", "precision": "bf16"}, 2 + 6, 6),
     ({"framework": "automodel-te", "precision": "fp8", "optimizer_implementation": "fused"}, 2 + 6, 6)],
)  # fmt: skip
def test_adam_reads_gradient_weight_and_moments_and_writes_what_it_changed(settings, read, written):
    """Kingma and Ba, arXiv:1412.6980: two moments; masters in fp32 and the 16-bit weight where there is one besides, or all in 16 bits."""
    (run,) = optimizer_step(1000, ParallelPlan(dp=8, **settings))
    adam = next(kernel for kernel in run.kernels if kernel.shape.name == "adamw_fused")
    # Megatron's main_grad.float(): of gradients that were reduced in 16 bits, where the optimizer has masters in 32
    assert not any(kernel.shape.name == "cast" for kernel in run.kernels)
    (narrow,) = optimizer_step(1000, ParallelPlan(dp=8, **settings, gradient_bytes=2))
    casts = settings["framework"] == "megatron" and settings["precision"] == "bf16"
    assert sum(kernel.shape.name == "cast" for kernel in narrow.kernels) == casts
    assert (adam.shape.read_bytes / 1000, adam.shape.written_bytes / 1000) == (read, written)


#: operations of torch/optim/adam.py, ``_multi_tensor_adam``, with decay: what each reads and writes of weight w, gradient g, moments m and
#: v and the tensor t of the roots
FOREACH = (("w", "w"), ("mg", "m"), ("v", "v"), ("vg", "v"), ("v", "t"), ("t", "t"), ("t", "t"), ("wmt", "w"))


@pytest.mark.parametrize(
    ("settings", "width"),
    [({"framework": "fsdp", "precision": "bf16", "sharding": "zero3"}, 4), ({"framework": "automodel", "precision": "bf16"}, 2),
     ({"framework": "hf-eager", "precision": "fp32", "release": "24.01"}, 4), ({"framework": "torch-tp", "precision": "fp32"}, 4)],
)  # fmt: skip
def test_adam_operation_by_operation_passes_eight_times_over_memory(settings, width):
    (run,) = optimizer_step(1000, ParallelPlan(dp=8, gradient_bytes=width, **settings))
    (adam,) = (kernel.shape for kernel in run.kernels if kernel.shape.name.startswith("adamw"))
    assert adam.read_bytes / 1000 == width * sum(len(read) for read, _ in FOREACH)
    assert adam.written_bytes / 1000 == width * sum(len(written) for _, written in FOREACH)


@pytest.mark.parametrize("micro_batches", [2, 5])
def test_fully_shard_under_a_pipeline_gathers_and_reduces_once(micro_batches):
    """torch.distributed.pipelining synchronises in the last backward; torchtitan does not reshard after forward then."""
    settings = {
        "dp": 4,
        "pp": 2,
        "gpus": 8,
        "sharding": "zero3",
        "precision": "bf16",
        "micro_batch": 1,
        "global_batch": 20,
    }
    plan = ParallelPlan(framework="torchtitan", **settings)
    assert sent_bytes(plan, SIZES, micro_batches) == {"all_gather": 2 * PSI, "reduce_scatter": 4 * PSI}
    wrapper = ParallelPlan(framework="fsdp", **settings)
    once_each = {"all_gather": 4 * PSI * micro_batches, "reduce_scatter": 2 * PSI * micro_batches}
    assert sent_bytes(wrapper, SIZES, micro_batches) == once_each


def test_each_rank_broadcasts_what_it_owns_at_once():
    """InternEvo flattens: as many broadcasts as ranks that own something, and every parameter travels once."""
    plan = ParallelPlan(
        dp=8, gpus=8, framework="internevo", sharding="zero1", precision="bf16", micro_batch=1, global_batch=8
    )
    stage = layers(SIZES * 4)
    strategy = data_parallel(stage, plan, Communicators(Mesh(plan, 8), 0, folded=True))
    tasks = TaskList()
    strategy.after_step(tasks, tasks.add(KERNEL))
    sent = [task.op.n_bytes for task in tasks.tasks if isinstance(task.op, Collective)]
    assert len(sent) == 8 and sum(sent) == 2 * 4 * PSI


def alive_units(plan, sizes):
    """Most units of a step that are gathered and that the host does not know to be over."""
    tasks = step_tasks(plan, sizes)
    over, gathered, most = -1, [], 0
    for index, task in enumerate(tasks):
        if isinstance(task.op, HostWork) and task.after:
            over = max(over, *task.after)
        if isinstance(task.op, Collective) and task.op.collective == "all_gather":
            users = [i for i, later in enumerate(tasks) if later.op is KERNEL and index in later.after]
            gathered = [use for use in gathered if use > over] + [users[0]]
            most = max(most, len(gathered))
    return most


@pytest.mark.parametrize(("backward", "n_alive"), [("pre", 3), ("none", 2)])
@pytest.mark.parametrize("n_units", [4, 7])
def test_as_many_units_are_alive_as_memory_is_counted_for(n_units, backward, n_alive):
    """Zhao et al., arXiv:2304.11277, section 3.4: at most two all-gathers in flight, or the host waits; forward gathers the second
    behind the unit that runs, and backward one more before it. From forward to backward there are no more."""
    plan = ParallelPlan(
        dp=8, gpus=8, sharding="zero3", framework="fsdp", micro_batch=1, global_batch=8, backward_prefetch=backward
    )
    sizes = [1_000_000] * n_units
    assert alive_units(plan, sizes) == plan.gathered_units == n_alive
    assert alive_units(replace(plan, limit_all_gathers=False), sizes) == 2 * n_units
