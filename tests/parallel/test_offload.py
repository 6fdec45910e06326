"""Offload and second copies: what is on the device, and how long the host takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.kernels.host import copy_bytes_per_s, cpu_adam_s
from simulator.models.catalog import find_spec
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.stage import StageLayers
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology.device_file import load_device

SPEC = find_spec("gpt2-large")


def run(**changes):
    settings = {
        "gpus": 16,
        "micro_batch": 1,
        "global_batch": 16,
        "framework": "deepspeed",
        "sharding": "zero3",
        "sequence_length": 256,
    }
    plan = ParallelPlan(**(settings | changes))
    return simulate(Scenario(topology="dgx-a100-80g", model="gpt2-large", plan=plan), spec=SPEC)


def test_offloaded_states_are_not_on_the_device():
    here = run().memory.by_category
    optimizer = run(offload_optimizer="cpu").memory.by_category
    both = run(offload_optimizer="cpu", offload_parameters="cpu").memory.by_category
    assert here["optimizer"] == pytest.approx(12 * SPEC.n_parameters / 16, rel=0.01)
    assert (optimizer["optimizer"], optimizer["gradients"]) == (0, 0)
    assert optimizer["parameters"] == here["parameters"] > 0
    assert (both["parameters"], both["optimizer"]) == (0, 0)
    assert both["buffers"] == here["buffers"]


def test_unsharded_gradients_stay_where_backward_makes_them():
    here, away = (run(sharding="zero1", **o).memory.by_category for o in ({}, {"offload_optimizer": "cpu"}))
    assert away["gradients"] == here["gradients"] > 0
    assert away["optimizer"] == 0


@pytest.mark.parametrize(
    ("framework", "count", "words"),
    [
        ("megatron-core", 35, ""),
        ("megatron-core", 36, "Megatron-Core itself refuses offload_layers=36 of 36 blocks; give 35 at most"),
        ("deepspeed", 36, ""),
        ("megatron-core", 100, "Megatron-Core itself refuses offload_layers=100 of 36 blocks; give 35 at most"),
        *((name, 100, "so that the plan runs as with offload_layers=36") for name in ("megatron-core", "deepspeed")),
    ],
)
def test_more_blocks_on_the_host_than_there_are_is_said(framework, count, words):
    """GPT-2 large has 36 blocks; Megatron-Core's ``cpu_offloading_num_layers`` is below ``num_layers``."""
    found = run(framework=framework, sharding="zero1", offload_layers=count).warnings
    assert [words in text for text in found] == [True] * bool(words)


def test_a_second_copy_takes_its_share_of_memory():
    extra = run(secondary_group=8).memory.by_category["parameters"] - run().memory.by_category["parameters"]
    assert extra == pytest.approx(2 * SPEC.n_parameters / 8, rel=0.01)


def test_the_processors_of_a_node_step_all_its_ranks():
    device = load_device("a100-sxm4-80g")
    assert cpu_adam_s(device, 10**9, 1) == pytest.approx(0.24)  # ZeRO-Offload, table 4
    assert cpu_adam_s(device, 10**8, 8) == pytest.approx(8 * 0.024)
    found = run(offload_optimizer="cpu").metrics.breakdown["optimizer_s"]
    assert found == pytest.approx(SPEC.n_parameters / 16 * 8 * 0.24e-9, rel=0.01)


def test_sockets_share_their_ranks_and_are_as_slow_as_slow_memory():
    """The same parameters on 8 GPUs. Two sockets step 1e9 parameters in 0.24 s (ZeRO-Offload, table 4), also those of 2023 beside H200s;
    a DGX-1's have DDR4-2400 in four channels for the DGX-2's DDR4-2666 in six; trays of four GPUs have two, Alps' nodes four."""
    per_rank = SPEC.n_parameters / 8
    for topology, n_ranks, seconds in (
        ("dgx2-v100", 8, 0.24),
        ("dgx1-v100-32g", 8, 0.24 * (6 * 2666) / (4 * 2400)),
        ("hgx-h200", 8, 0.24),
        ("gb200-nvl72", 4, 0.24),
        ("alps", 4, 0.12),
    ):
        plan = ParallelPlan(
            gpus=8, micro_batch=1, global_batch=8, framework="deepspeed", sharding="zero3", sequence_length=256,
            offload_optimizer="cpu", precision="fp16",
        )  # fmt: skip
        found = simulate(Scenario(topology=topology, model="gpt2-large", plan=plan), spec=SPEC).metrics.breakdown[
            "optimizer_s"
        ]
        assert found == pytest.approx(n_ranks * per_rank * seconds * 1e-9, rel=0.01), topology


def test_copies_take_the_measured_rate_of_the_link():
    device = load_device("a100-sxm4-80g")
    assert (copy_bytes_per_s(device, to_host=False), copy_bytes_per_s(device, to_host=True)) == (26.8e9, 26.2e9)
    copies = {
        row["collective"]: row for row in run(offload_optimizer="cpu").metrics.communication if row["axis"] == "host"
    }
    assert copies["copy_from_host"]["algbw_bytes_per_s"] == pytest.approx(26.8e9, rel=0.02)
    assert copies["copy_to_host"]["bytes"] == pytest.approx(2 * SPEC.n_parameters / 16, rel=0.01)


def host_bytes(**changes):
    rows = run(**changes).metrics.communication
    return {row["collective"]: row["bytes"] for row in rows if row["axis"] == "host"}


ONE = {"gpus": 1, "global_batch": 1, "offload_optimizer": "cpu"}


@pytest.mark.parametrize(
    ("changes", "from_host", "to_host"),
    [
        (ONE | {"sharding": "zero1"}, 2, 2),
        (ONE, 2, 2),
        (ONE | {"offload_parameters": "cpu"}, 2 * 2, 2),
        ({"framework": "fsdp", "offload_optimizer": "cpu", "offload_parameters": "cpu"}, 2 * 4 / 16, 4 / 16),
    ],
)
def test_states_on_the_host_move_with_one_replica_too_and_those_of_fsdp_in_fp32(changes, from_host, to_host):
    """Bytes a parameter, by hand. Gradients go to the host, and what was stepped there comes back, or the parameters for forward and for
    backward. FSDP's shards are the fp32 masters: 13 billion parameters of fairseq need 256 GB of host memory on one GPU (its README).
    """
    sent = host_bytes(**changes)
    assert sent["copy_from_host"] == pytest.approx(from_host * SPEC.n_parameters, rel=0.05)  # embedding: forward alone
    assert sent["copy_to_host"] == pytest.approx(to_host * SPEC.n_parameters, rel=0.01)


def test_activations_of_layers_wait_on_the_host():
    """``cpu_offloading_num_layers``: what these blocks save leaves the device and comes back, once a micro-batch, beside compute."""
    plan = ParallelPlan(gpus=8, micro_batch=1, global_batch=16, framework="megatron-core", sharding="zero1")
    found = {}
    for n_layers in (0, 8):
        scenario = Scenario(topology="dgx-h100", model="llama2-7b", plan=replace(plan, offload_layers=n_layers))
        found[n_layers] = simulate(scenario)
    block = found[0].model.layers[1]
    assert block.name == "block"
    categories = [found[n].memory.by_category for n in (0, 8)]
    assert categories[0]["activations"] - categories[1]["activations"] == 8 * block.saved_bytes
    assert categories[1]["transient"] <= categories[0]["transient"] + 2 * block.saved_bytes
    copies = [row for row in found[8].metrics.communication if row["axis"] == "host"]
    assert sum(row["bytes"] for row in copies) == 2 * 2 * 8 * block.saved_bytes
    slower = found[8].metrics.iteration_time_s / found[0].metrics.iteration_time_s
    assert 1.0 <= slower < 1.2
    groups = Communicators(Mesh(plan.resolve(8), 8), 0, folded=True)
    layers = StageLayers([[replace(block, offloaded_bytes=64)]], plan, groups)
    for kind, way in (("F", "copy_to_host"), ("B", "copy_from_host")):
        ops = [task.op for task in layers.block(0, kind).tasks if task.stream == "host copies"]
        assert [(op.collective, op.n_bytes) for op in ops] == [(way, 64)]


@pytest.mark.parametrize(
    ("modules", "sbh"),
    [
        ("attn_norm", 2),
        ("qkv_linear", 2),
        ("core_attn", 6),
        ("core_attn+attn_proj", 8),
        ("mlp_norm", 2),
        ("attn_norm+qkv_linear+mlp_norm", 6),
    ],
)
def test_inputs_of_modules_wait_on_the_host(modules, sbh):
    """Activations of Korthikanti et al., arXiv:2205.05198, section 4.1, in 16 bits: 2sbh for the input of a norm, of QKV and of the
    projection, 6sbh for queries, keys and values. A pipeline holds them once for each micro-batch in flight.
    """
    plan = ParallelPlan(
        gpus=8, pp=2, dp=4, micro_batch=1, global_batch=32, framework="megatron-core", sequence_length=4096
    )
    away = replace(plan, offload_modules=modules)
    here, there = (simulate(Scenario(topology="dgx-h100", model="gpt-6.7b", plan=one)) for one in (plan, away))
    each = sbh * 4096 * 4096
    block = next(layer for layer in there.model.layers if layer.name == "block")
    assert block.offloaded_bytes == pytest.approx(each, rel=0.01)  # and the statistics of the softmax
    activations = [found.memory.by_category["activations"] for found in (here, there)]
    assert activations[0] - activations[1] == 2 * 16 * block.offloaded_bytes
    copies = [row for row in there.metrics.communication if row["axis"] == "host"]
    assert sum(row["bytes"] for row in copies) == 2 * 8 * 32 // 2 * block.offloaded_bytes
    assert here.metrics.iteration_time_s <= there.metrics.iteration_time_s < 1.2 * here.metrics.iteration_time_s


def test_what_stays_small_is_not_worth_a_copy():
    """Tensors below 2**20 elements stay (Megatron-Core's ``min_offloaded_tensor_size``): here 1024 x 512."""
    plan = ParallelPlan(
        gpus=8, micro_batch=1, framework="megatron-core", sequence_length=512, offload_modules="attn_norm"
    )
    found = simulate(Scenario(topology="dgx-h100", model="gpt2-medium", plan=plan))
    assert not any(layer.offloaded_bytes for layer in found.model.layers)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"offload_modules": "attn_proj"}, "offload_modules=attn_proj without core_attn"),
        (
            {"offload_modules": "moe_act", "recompute": "selective", "recompute_modules": "moe"},
            "moe_act with recompute_modules=moe",
        ),
        ({"offload_modules": "core_attn", "offload_layers": 2}, "offload_modules=core_attn beside offload_layers=2"),
        ({"offload_modules": "core_attn", "framework": "fsdp"}, "is Megatron-Core's, not one of fsdp"),
        ({"offload_modules": "core_attn", "framework": "automodel-te"}, "is Megatron-Core's, not one of automodel-te"),
        ({"nccl_user_buffers": True, "framework": "deepspeed"}, "nccl_user_buffers is Megatron-Core's"),
        ({"nccl_user_buffers": True, "framework": "automodel-te"}, "nccl_user_buffers is Megatron-Core's"),
    ],
)
def test_modules_that_cannot_wait_on_the_host(changes, text):
    with pytest.raises(InfeasiblePlanError, match=text):
        ParallelPlan(**({"micro_batch": 1, "framework": "megatron-core"} | changes)).resolve(8)


@pytest.mark.parametrize("recomputed", ["core_attn", "layernorm+mlp"])
def test_inputs_of_experts_wait_beside_other_modules_that_are_recomputed(recomputed):
    """Recomputing all of ``moe`` keeps the block's input alone; what else is recomputed leaves the inputs of its products to be moved."""
    plan = ParallelPlan(micro_batch=1, framework="megatron-core", recompute="selective", recompute_modules=recomputed,
                        offload_modules="expert_fc1+moe_act").resolve(8)  # fmt: skip
    assert plan.offloaded_modules == ("expert_fc1", "moe_act")


def test_a_pipeline_does_not_offload_by_layer():
    with pytest.raises(InfeasiblePlanError, match="offload_layers=2 with pp=2"):
        ParallelPlan(offload_layers=2, pp=2, micro_batch=1).resolve(8)
