"""Bytes by category against the published formulas, on layers small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.memory.estimate import OPTIMIZER_STEP, MemoryReport, check_host_memory, estimate
from simulator.models.layer import CommunicationPoint, Layer, Parameter, PointwiseShape
from simulator.plan import ParallelPlan
from simulator.topology.device_file import load_device

A100 = load_device("a100-sxm4-80g")
MIB = 1024 * 1024
#: parameters of a dense part and of the experts of one layer, per rank
DENSE, EXPERTS = 6_000_000, 4_000_000


def layer(dense=DENSE, experts=0, saved=0, transient=0):
    parameters = [Parameter(name="w", n_elements=dense)]
    parameters += [Parameter(name="experts", n_elements=experts, is_expert=True)] if experts else []
    return Layer(
        name="block",
        forward=(),
        backward=(),
        parameters=tuple(parameters),
        saved_bytes=saved,
        transient_bytes=transient,
    )


def memory(layers, *, shard_size=None, in_flight=1, **settings):
    """Categories of the only stage; ``dp`` ranks share the states unless another size is given."""
    plan = ParallelPlan(**({"dp": 1, "micro_batch": 1, "global_batch": 64 * settings.get("dp", 1)} | settings))
    n_shards = shard_size or (plan.dp * plan.cp if plan.sharding != "none" else 1)
    report = estimate([[layers]], [[in_flight]], plan, A100, shard_size=n_shards, first_ranks=[0])
    return report.by_category


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [("none", (2, 2, 12)), ("zero1", (2, 2, 12 / 64)), ("zero2", (2, 2 / 64, 12 / 64)), ("zero3", (2 / 64, 2 / 64, 12 / 64))],
)  # fmt: skip
def test_states_are_those_of_zero(sharding, expected):
    """Rajbhandari et al., arXiv:1910.02054, figure 1: 16 bytes a parameter, K = 12 of them Adam's, over 64 ranks."""
    found = memory([layer(64_000_000)], dp=64, sharding=sharding, framework="deepspeed", precision="fp16")
    held = tuple(found[key] / 64_000_000 for key in ("parameters", "gradients", "optimizer"))
    assert held == pytest.approx(expected)


def test_megatrons_optim_grads_shards_all_but_parameters():
    """Megatron-FSDP, ``data_parallel_sharding_strategy``: parameters whole in 16 bits, gradients and states over 64 ranks."""
    found = memory([layer(64_000_000)], dp=64, sharding="zero2", framework="megatron-core", precision="bf16")
    held = tuple(found[key] / 64_000_000 for key in ("parameters", "gradients", "optimizer", "buffers"))
    assert held == pytest.approx((2, 4 / 64, 12 / 64, 0))


@pytest.mark.parametrize(("framework", "dp", "sharding"), [("litgpt", 1, "none"), ("litgpt-fsdp-compile", 64, "zero3")])
def test_16_bit_weights_that_adam_steps_as_they_are_take_8_bytes(framework, dp, sharding):
    """``torch.optim.AdamW`` makes its moments like the parameters (``zeros_like``): weight, gradient and two moments in bf16."""
    found = memory([layer(64_000_000)], dp=dp, sharding=sharding, framework=framework, precision="bf16")
    held = tuple(dp * found[key] / 64_000_000 for key in ("parameters", "gradients", "optimizer"))
    assert held == pytest.approx((2, 2, 4))


def test_fsdp_that_keeps_its_parameters_holds_shards_and_all_that_it_gathered():
    """SHARD_GRAD_OP: fp32 shards and moments over 64 ranks, and between forward and backward every unit in the 16 bits that it
    was gathered in."""
    found = memory([layer(64_000_000)], dp=64, sharding="zero2", framework="fsdp", precision="amp_bf16")
    held = tuple(found[key] / 64_000_000 for key in ("parameters", "gradients", "optimizer", "buffers"))
    assert held == pytest.approx((4 / 64, 4 / 64, 8 / 64, 2))


@pytest.mark.parametrize(
    ("sharding", "expected"), [("none", (2, 4, 2)), ("zero1", (2, 4 / 64, 2)), ("zero2", (2, 4 / 64, 0)), ("zero3", (2 / 64, 4 / 64, 2))]
)  # fmt: skip
def test_a_trainer_on_ddp_that_shards_holds_no_copy_of_all_gradients(sharding, expected):
    """ZeRO (arXiv:1910.02054, figure 1) of weights that Adam steps in 16 bits: whole gradients are nowhere, nor a reducer's copy of
    them, where each rank keeps a 64th; of the only unit what is gathered remains."""
    found = memory([layer(64_000_000)], dp=64, sharding=sharding, framework="hf-eager", precision="bf16")
    held = tuple(found[key] / 64_000_000 for key in ("parameters", "optimizer", "buffers"))
    assert held == pytest.approx(expected)


def test_fp32_units_are_gathered_in_fp32():
    whole = 2 * DENSE  # the unit that computes and the next one
    assert (
        memory([layer(), layer()], dp=2, sharding="zero3", framework="fsdp", precision="fp32")["buffers"] == 4 * whole
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"framework": "megatron", "precision": "bf16"},
            (2, 4, 12),
        ),  # fp32 main gradients: 18 bytes (Megatron-LM, README)
        ({"framework": "megatron", "precision": "fp32"}, (4, 4, 8)),
        ({"framework": "deepspeed", "precision": "amp_bf16"}, (4, 4, 8)),
        ({"framework": "torchtitan", "precision": "bf16"}, (2, 4, 12)),
    ],
)
def test_bytes_of_a_parameter_follow_from_the_precision(settings, expected):
    found = memory([layer()], **settings)
    assert tuple(found[key] / DENSE for key in ("parameters", "gradients", "optimizer")) == expected


def test_one_bit_adam_keeps_what_signs_leave_out():
    """Errors of the sender in fp32, and of who averages an eighth (deepspeed/runtime/fp16/onebit/adam.py: worker and server error)."""
    found = memory([layer()], dp=8, framework="deepspeed", precision="fp16", gradient_compression="onebit")
    assert found["optimizer"] == (12 + 4) * DENSE + 4 * DENSE // 8


def test_without_masters_the_moments_have_16_bits():
    """hf-eager in pure bf16: torch.optim.AdamW keeps its states in the dtype of the parameters."""
    found = memory([layer()], framework="hf-eager", precision="bf16", global_batch=4)
    assert (found["parameters"], found["gradients"], found["optimizer"]) == (2 * DENSE, 2 * DENSE, 4 * DENSE)


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"framework": "automodel"}, 2),  # moments in 16 bits
        ({"framework": "hf-eager", "precision": "fp32", "release": "25.07"}, 4),
        ({"framework": "hf-eager", "precision": "fp32"}, 0),  # fused since PyTorch 2.8 (transformers/training_args.py)
        ({"framework": "hf-eager", "precision": "fp32", "optimizer_implementation": "foreach"}, 4),
        ({"framework": "fsdp", "dp": 8, "sharding": "zero3", "optimizer_implementation": "fused"}, 0),
        ({"framework": "fsdp", "dp": 8, "sharding": "zero3", "optimizer_implementation": "for-loop"}, 0),
        ({"framework": "fsdp", "dp": 8, "sharding": "zero3"}, 4 / 8),
        ({"framework": "automodel", "moment_bytes": 1}, 0),  # 8-bit Adam is fused
        ({"framework": "fsdp", "offload_optimizer": "cpu", "dp": 8, "sharding": "zero3"}, 0),
        ({"framework": "torchtitan"}, 0),  # fused by default (torchtitan/components/optimizer.py)
        ({"framework": "megatron"}, 0),
    ],
)
def test_roots_of_all_second_moments_at_once_are_one_moment_more(settings, each):
    """torch/optim/adam.py, ``_multi_tensor_adam``: ``torch._foreach_sqrt``; here beside gradients that stay over micro-batches, and
    working memory of the passes that is smaller and gone, like what they gather."""
    found, passes = memory([layer(transient=1000)], **settings), 1000
    gathered = found["buffers"] if settings.get("sharding") == "zero3" else 0
    assert found["transient"] == max(passes, round(each * DENSE) - gathered)


def test_what_the_last_layers_have_not_saved_yet_is_room_for_the_first():
    """Layers that save 100 and 300, and need 500 and 50 beside: the first has 600 with its own, the second 450; where backward is
    split, the second's 300 wait for the gradients of its weights."""
    layers = [layer(saved=100, transient=500), layer(saved=300, transient=50)]
    for schedule, peak in (("1f1b", 600), ("zb-1p", 900)):
        found = memory(layers, framework="megatron", schedule=schedule)
        assert found["activations"] + found["transient"] == peak


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
@pytest.mark.parametrize(
    ("settings", "n_replicas"), [({"ep": 4}, 2), ({"ep": 8}, 1), ({"tp": 2, "ep": 8, "etp": 1}, 2)]
)
def test_experts_are_sharded_over_their_own_replicas(sharding, settings, n_replicas):
    """Of 8 data-parallel ranks (times tp), ep x etp share one copy of the experts (Rajbhandari et al., DeepSpeed-MoE, section 4)."""
    found = memory(
        [layer(experts=EXPERTS)], dp=8, sharding=sharding, framework="megatron", sequence_parallel=True, **settings
    )
    assert found["optimizer"] == 12 * (DENSE // 8 + EXPERTS // n_replicas)
    parameters = DENSE // 8 + EXPERTS // n_replicas if sharding == "zero3" else DENSE + EXPERTS
    assert found["parameters"] == 2 * parameters


def test_experts_that_lie_like_dense_layers_are_sharded_like_them():
    found = memory([layer(experts=EXPERTS)], dp=8, sharding="zero1", framework="megatron")
    assert found["optimizer"] == 12 * (DENSE + EXPERTS) // 8


@pytest.mark.parametrize(
    ("settings", "n_units"),
    [({"framework": "fsdp", "backward_prefetch": "none"}, 2), ({"framework": "fsdp"}, 3), ({"framework": "torchtitan"}, 3),
     ({"framework": "fsdp", "backward_prefetch": "none", "forward_prefetch": True}, 3), ({"framework": "fsdp", "overlap": False}, 2),
     ({"framework": "torchtitan", "prefetch_depth": 2}, 4),
     ({"framework": "torchtitan", "prefetch_depth": 2, "backward_prefetch": "none"}, 3),
     ({"framework": "fsdp", "prefetch_depth": 2}, 3), ({"framework": "fsdp", "limit_all_gathers": False}, 5)],
)  # fmt: skip
def test_fsdp_holds_the_unit_that_runs_and_those_gathered_ahead(settings, n_units):
    """The wrapper: two in its queue, and one more where the next is prefetched before the current one computes (what torch's own
    queue says: tests/parallel/test_data.py). `fully_shard`: parameters and the two buffers of an overlapped copy-out."""
    found = memory([layer()] * 5, dp=8, sharding="zero3", **settings)
    assert found["buffers"] == 2 * n_units * DENSE


@pytest.mark.parametrize(("ep", "n_gathered"), [(8, 5 * DENSE), (4, 5 * (DENSE + EXPERTS)), (1, 5 * (DENSE + EXPERTS))])
def test_experts_without_replicas_are_not_gathered(ep, n_gathered):
    """Where every one of 8 ranks has experts of its own there is nothing to gather of them."""
    settings = {"framework": "fsdp", "limit_all_gathers": False, "ep": ep}
    assert memory([layer(experts=EXPERTS)] * 5, dp=8, sharding="zero3", **settings)["buffers"] == 2 * n_gathered


def test_whole_experts_of_tensor_parallel_layers_have_replicas_of_their_own():
    """64 GPUs as dp 8 and tp 8, experts over 8 of them, each whole on one: 8 ranks share every expert, and gather it."""
    settings = {"dp": 8, "tp": 8, "sharding": "zero3", "framework": "megatron-core"}
    over_8_ranks = memory([layer(experts=EXPERTS)] * 5, ep=8, etp=1, **settings)["buffers"]
    no_copies = memory([layer(experts=EXPERTS)] * 5, ep=64, etp=1, **settings)["buffers"]
    assert over_8_ranks == no_copies * (DENSE + EXPERTS) // DENSE


def test_of_units_of_different_size_the_largest_counts_for_each_under_the_limiter():
    """And no more than all units together."""
    layers = [layer(dense=n) for n in (1_000_000, 5_000_000, 2_000_000, 4_000_000, 4_000_000)]
    assert memory(layers, dp=8, sharding="zero3", framework="fsdp")["buffers"] == 2 * 3 * 5_000_000
    assert memory(layers[:2], dp=8, sharding="zero3", framework="fsdp")["buffers"] == 2 * 6_000_000


def test_what_is_outside_the_blocks_stays_gathered_all_the_time():
    """The root unit of FSDP, embedding and head: not freed after forward (``_post_forward_reshard``: ``not state._is_root``)."""
    ends = [replace(layer(dense=7_000_000), name=name, role=name) for name in ("embedding", "head")]
    layers = [ends[0], *[layer()] * 4, ends[1]]
    assert memory(layers, dp=8, sharding="zero3", framework="fsdp")["buffers"] == 2 * (14_000_000 + 3 * DENSE)


@pytest.mark.parametrize(
    ("settings", "ahead"),
    [({}, 50_000_000), ({"prefetch_elements": 9_000_000}, 9_000_000), ({"prefetch_elements": 0}, DENSE),
     ({"max_live_elements": 20_000_000}, 20_000_000)],
)  # fmt: skip
def test_deepspeed_holds_the_unit_that_runs_and_its_prefetch_bucket(settings, ahead):
    """stage3_prefetch_bucket_size 5e7, within stage3_max_live_parameters (1e9); one gradient bucket beside, here of all gradients."""
    found = memory([layer()] * 40, dp=8, sharding="zero3", framework="deepspeed", **settings)
    assert found["buffers"] == 2 * (DENSE + ahead) + 2 * 40 * DENSE


def test_no_more_is_gathered_than_there_is():
    """A stage of two units under a bucket of 5e7 elements: ZeRO-3 holds them whole beside its shards, ZeRO-2 the same without."""
    found = memory([layer()] * 2, dp=8, sharding="zero3", framework="deepspeed")
    assert found["buffers"] == 2 * 2 * DENSE + 2 * 2 * DENSE


def test_only_full_sharding_gathers():
    assert memory([layer()] * 4, dp=8, sharding="zero1", framework="megatron")["buffers"] == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"framework": "hf-eager"}, 2 * DENSE),  # DDP's buckets hold a copy of all gradients
        ({"framework": "hf-eager", "gradient_as_bucket_view": True}, 0),
        ({"framework": "hf-eager", "precision": "fp32"}, 4 * DENSE),
        ({"framework": "deepspeed", "bucket_bytes": 1_000_000, "overlap": False}, 1_000_000),
        ({"framework": "deepspeed", "bucket_bytes": 1_000_000, "overlap": True}, 2_000_000),
        ({"framework": "deepspeed", "overlap": True}, 2 * 2 * DENSE),  # 5e8 elements hold them all
        ({"framework": "megatron"}, 0),
        ({"framework": "deepspeed", "dp": 1}, 0),
    ],
)
def test_buckets(settings, expected):
    assert memory([layer()], **({"dp": 8} | settings))["buffers"] == expected


def test_a_bucket_of_deepspeed_has_5e8_elements():
    found = memory([layer(900_000_000)], dp=8, framework="deepspeed", overlap=False)
    assert found["buffers"] == 2 * 500_000_000


@pytest.mark.parametrize(
    ("degrees", "n"),
    [({}, 0), ({"dp": 2}, 1), ({"cp": 2}, 1), ({"tp": 2}, 1), ({"pp": 2}, 1), ({"dp": 4, "ep": 2}, 2), ({"dp": 2, "tp": 2, "pp": 2}, 3),
     ({"tp": 4, "dp": 2, "etp": 2, "ep": 2, "sequence_parallel": True}, 4)],
)  # fmt: skip
def test_every_axis_with_several_ranks_has_a_communicator(degrees, n):
    found = memory([layer(experts=DENSE)], **({"dp": 1} | degrees))
    assert found["communicators"] == n * 500 * MIB


def test_the_context_is_as_large_as_measured():
    """0.4 to 0.6 GiB on H200 and A100 with PyTorch 2."""
    assert 0.4 * 1024 * MIB < memory([layer()], dp=1)["context"] < 0.6 * 1024 * MIB


def test_activations_are_held_per_micro_batch_in_flight_and_the_largest_transient_once():
    found = memory(
        [layer(saved=100, transient=7_000), layer(saved=50, transient=9_000)], in_flight=4, framework="torch-3d"
    )
    assert (found["activations"], found["transient"]) == (4 * 150, 9_000)
    assert found["fragmentation"] == round(0.3 * (600 + 9_000))  # measured for unfused modules: GMLake, ASPLOS 2024


def test_each_chunk_has_its_own_number_in_flight():
    plan = ParallelPlan(dp=1, micro_batch=1, global_batch=8)
    chunks = [[[layer(saved=10)], [layer(saved=100)]]]
    assert estimate(chunks, [[3, 2]], plan, A100, shard_size=1, first_ranks=[0]).by_category["activations"] == 230


def test_what_is_offloaded_is_not_on_the_device():
    states = memory([layer()], dp=8, sharding="zero2", framework="deepspeed", offload_optimizer="cpu")
    assert (states["optimizer"], states["gradients"], states["parameters"]) == (0, 0, 2 * DENSE)
    both = memory(
        [layer()], dp=8, sharding="zero3", framework="deepspeed", offload_optimizer="cpu", offload_parameters="cpu"
    )
    assert both["parameters"] == 0
    first = memory([layer()], dp=8, sharding="zero1", framework="deepspeed", offload_optimizer="cpu")
    assert first["gradients"] == 2 * DENSE  # ZeRO-1 keeps all gradients where they were made


def test_a_second_copy_is_sharded_over_its_own_group():
    """ZeRO++ hpZ (arXiv:2306.10209, section 3.2): a second 16-bit copy over the ranks of a node."""
    found = memory([layer()], dp=16, sharding="zero3", framework="deepspeed", secondary_group=8)
    assert found["parameters"] == 2 * DENSE // 16 + 2 * DENSE // 8
    wide = memory([layer()], dp=16, sharding="zero3", framework="fsdp2", precision="fp32", secondary_group=8)
    assert (
        wide["parameters"] == 4 * DENSE // 16 + 4 * DENSE // 8
    )  # backward gathers it as wide as forward gathers the shards
    capped = memory([layer()], dp=4, sharding="zero3", framework="deepspeed", secondary_group=8)
    assert capped["parameters"] == 2 * DENSE // 4 + 2 * DENSE // 4


@pytest.mark.parametrize(
    ("settings", "whole"),
    [({"framework": "fsdp", "sharding": "zero2"}, 4 * DENSE // 16), ({"framework": "deepspeed", "sharding": "zero1"}, 2 * DENSE),
     ({"framework": "fsdp", "sharding": "zero3"}, 4 * DENSE // 16 + 2 * DENSE // 8)],
)  # fmt: skip
def test_only_what_is_gathered_in_both_passes_has_a_second_copy(settings, whole):
    """ZeRO++ and FSDP2's ``reshard_after_forward=8``: backward gathers within 8 ranks what forward gathered over all 16.

    FSDP's shards are fp32, what it gathers has 16 bits.
    """
    assert memory([layer()], dp=16, secondary_group=8, **settings)["parameters"] == whole


def test_the_fullest_stage_decides():
    plan = ParallelPlan(dp=1, pp=3, micro_batch=1, global_batch=8)
    chunks = [[[layer(saved=n)]] for n in (10, 30, 20)]
    report = estimate(chunks, [[1], [1], [1]], plan, A100, shard_size=1, first_ranks=[0, 4, 8])
    assert (report.stage, report.rank, len(report.stages)) == (1, 4, 3)


def test_the_verdict_is_exact_and_pytorchs_figures_leave_out_what_is_not_its_own():
    parts = {"parameters": 60, "activations": 30, "fragmentation": 4, "context": 5, "communicators": 1}
    full = MemoryReport(by_category=parts, rank=0, stage=0, capacity_bytes=100)
    assert (full.peak_bytes, full.allocated_bytes, full.reserved_bytes, full.fits) == (100, 90, 94, True)
    assert not MemoryReport(by_category=parts, rank=0, stage=0, capacity_bytes=99).fits


def test_the_verdict_names_the_layer_that_needs_most_and_its_largest_operator():
    def kernel(name, n_bytes):
        return PointwiseShape(name=name, n_elements=1, read_bytes=n_bytes, written_bytes=0.0)

    small = replace(layer(transient=5), name="small", forward=(kernel("copy", 900),))
    point = CommunicationPoint(operator="g", n_bytes=10**9)
    large = replace(
        layer(transient=6),
        name="large",
        forward=(kernel("add", 10), point),
        backward=(kernel("mul", 20), kernel("gelu", 5)),
    )
    plan = ParallelPlan(dp=1, micro_batch=1, global_batch=8)
    report = estimate([[[small, large]]], [[1]], plan, A100, shard_size=1, first_ranks=[0])
    assert report.peak_at == "large (operator mul)"
    bare = estimate([[[layer(transient=5)]]], [[1]], plan, A100, shard_size=1, first_ranks=[0])
    assert (bare.peak_at, estimate([[[]]], [[1]], plan, A100, shard_size=1, first_ranks=[0]).peak_at) == ("block", "")


def test_the_sentence_says_what_is_missing_and_what_is_largest():
    parts = {"parameters": 3 * 2**30, "optimizer": 4 * 2**30}
    report = MemoryReport(by_category=parts, rank=5, stage=2, capacity_bytes=5 * 2**30, peak_at="head (operator gemm)")
    assert report.explain() == (
        "rank 5 (stage 2) needs 7 GiB of 5 GiB at its peak, in layer head (operator gemm): 2 GiB too much; the largest part is "
        "optimizer states with 4 GiB"
    )
    at_step = replace(report, peak_at=OPTIMIZER_STEP).explain()
    assert "of 5 GiB at its peak, in the optimizer step: 2 GiB too much" in at_step


def test_offloaded_states_fit_into_the_host():
    """ZeRO-Offload keeps 12 bytes of fp32 states and 2 of gradients for each parameter on the hosts (arXiv:2101.06840, section 4)."""
    plan = ParallelPlan(framework="deepspeed", sharding="zero2", precision="fp16", offload_optimizer="cpu", dp=16)
    chunks = [[[layer(dense=10**9)]]]
    check_host_memory(chunks, plan, 16, n_ranks=8, host_bytes=7e9)  # of two nodes, each has half of 14 GB
    with pytest.raises(InfeasiblePlanError, match="8 GPUs of a host"):
        check_host_memory(chunks, plan, 16, n_ranks=8, host_bytes=6.9e9)
    check_host_memory(chunks, plan, 16, n_ranks=8, host_bytes=None)


def test_frozen_weights_have_no_states_on_the_host():
    """LoRA (arXiv:2106.09685, section 4.2): states are of what is trained; here a thousandth of the weights, on one rank."""
    frozen = Parameter(name="w", n_elements=10**9, is_trained=False)
    adapted = replace(layer(), parameters=(frozen, Parameter(name="a", n_elements=10**6)))
    plan = ParallelPlan(
        framework="deepspeed", sharding="zero2", precision="fp16", offload_optimizer="cpu", dp=1, lora_rank=8
    )
    check_host_memory([[[adapted]]], plan, 1, n_ranks=1, host_bytes=14e6)
    with pytest.raises(InfeasiblePlanError):
        check_host_memory([[[adapted]]], plan, 1, n_ranks=1, host_bytes=13.9e6)


def test_experts_on_the_host_are_sharded_over_their_own_replicas():
    """Sixteen ranks, experts in groups of eight: each expert's 14 bytes an element are shared by the two ranks that hold it."""
    expert = Parameter(name="e", n_elements=10**9, is_expert=True)
    chunks = [[[replace(layer(), parameters=(expert,))]]]
    plan = ParallelPlan(framework="deepspeed", sharding="zero2", precision="fp16", offload_optimizer="cpu", dp=16, ep=8)
    check_host_memory(chunks, plan, 16, n_ranks=8, host_bytes=8 * 14e9 / 2)
    with pytest.raises(InfeasiblePlanError):
        check_host_memory(chunks, plan, 16, n_ranks=8, host_bytes=8 * 14e9 / 2 - 1)


@pytest.mark.parametrize(
    ("name", "precision", "saved"),
    [("h100-sxm5-80g", "fp8", 2 * DENSE), ("b200", "fp8", 2 * DENSE), ("b200", "mxfp8", 0),
     ("b200", "nvfp4", 2 * DENSE * 7 // 8)],  # twice 4 bits and a scale of 8 for each 16: 9/8 of a byte instead of 2
)  # fmt: skip
def test_frozen_weights_in_eight_bits_save_half_where_one_copy_serves_both_directions(name, precision, saved):
    """Scales of blocks differ by direction, so that both are kept, which is as much as 16 bits; with one scale one is transposed."""
    frozen = Parameter(name="w", n_elements=2 * DENSE, is_trained=False)
    adapter = Parameter(name="a", n_elements=1000)
    adapted = replace(layer(), parameters=(frozen, adapter))
    plan = ParallelPlan(
        dp=1, micro_batch=1, global_batch=8, lora_rank=8, precision=precision, framework="megatron-core"
    )
    device = load_device(name)
    found = estimate([[[adapted]]], [[1]], plan, device, shard_size=1, first_ranks=[0]).by_category
    assert found["parameters"] == 2 * (2 * DENSE + 1000) - saved
    assert (found["gradients"], found["optimizer"]) == (4 * 1000, 12 * 1000)  # of the adapters alone
    whole = replace(plan, dp=8)
    assert (
        estimate([[[adapted]]], [[1]], whole, device, shard_size=8, first_ranks=[0]).by_category["parameters"]
        == found["parameters"]
    )
    sharded = estimate(
        [[[adapted]]], [[1]], replace(whole, sharding="zero3"), device, shard_size=8, first_ranks=[0]
    ).by_category
    assert sharded["parameters"] == found["parameters"] // 8


def test_sharded_once_under_a_pipeline_means_gathered_whole_for_the_step():
    """`fully_shard` keeps what it gathered until the last backward, and gradients whole until they are reduced."""
    found = memory([layer()] * 5, dp=8, pp=2, sharding="zero3", framework="torchtitan")
    assert found["buffers"] == 2 * 5 * DENSE
    assert (found["gradients"], found["parameters"]) == (4 * 5 * DENSE, 4 * 5 * DENSE // 8)


def test_llama_3_shards_the_sum_of_gradients_too():
    """arXiv:2407.21783, section 3.3.2: FSDP "shards optimizer states and gradients", parameters stay gathered after forward."""
    found = memory([layer()] * 5, dp=8, pp=2, sharding="zero3", framework="llama3-4d")
    assert (found["buffers"], found["gradients"]) == (2 * 5 * DENSE, 4 * 5 * DENSE // 8)


@pytest.mark.parametrize(
    ("precision", "width"), [("bf16", 2), ("fp8", 1), ("fp8_current", 1), ("mxfp8", 2), ("nvfp4", 2)]
)
def test_fully_sharded_weights_with_one_scale_are_kept_and_gathered_in_eight_bits(precision, width):
    """``fp8_param_gather`` of Megatron Bridge's mixed-precision recipes; what is outside the blocks has no narrow weights."""
    head = replace(layer(dense=7_000_000), name="head", role="head")
    found = memory([*[layer()] * 4, head], dp=8, sharding="zero3", framework="megatron-bridge", precision=precision)
    n_units = (found["buffers"] - 2 * 7_000_000) / DENSE / width
    assert n_units == pytest.approx(round(n_units)) and n_units >= 2
    assert found["parameters"] == width * (4 * DENSE + 7_000_000) // 8


def test_graphs_have_a_pool_of_their_own_for_temporaries():
    """PyTorch, CUDA semantics: nothing else may use what a graph's pool holds while it is not replayed."""
    layers = [layer(saved=100, transient=7_000), layer(transient=9_000)]
    assert memory(layers, framework="megatron-core", cuda_graphs="full_iteration")["graphs"] == 9_000
    assert memory(layers, framework="megatron-core")["graphs"] == 0
    assert memory(layers, framework="megatron-core", host="graphs")["graphs"] == 9_000  # of whole layers


@pytest.mark.parametrize(("n_micro_batches", "gradients"), [(1, 0), (2, 2 * DENSE)])
def test_gradients_that_are_freed_with_every_step_hide_behind_activations_where_one_backward_makes_them(
    n_micro_batches, gradients
):
    """``zero_grad(set_to_none=True)``, PyTorch's default: they appear in backward as activations go, unless they are accumulated."""
    settings = {"framework": "hf-eager", "precision": "bf16", "global_batch": n_micro_batches}
    assert memory([layer(saved=10 * DENSE)], **settings)["gradients"] == gradients


def test_without_experts_there_is_no_communicator_for_them():
    degrees = {"tp": 4, "dp": 2, "etp": 2, "sequence_parallel": True}
    assert memory([layer()], **degrees)["communicators"] == 2 * 500 * MIB
