"""Weights in eight and four bits: what Transformer Engine keeps of them between micro-batches, and what travels."""

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.models.catalog import find_spec
from simulator.models.transformer import graph_scopes
from simulator.parallel.idle import idle_settings

SPEC = find_spec("llama2-7b")
#: weights of linear layers: four projections of attention, and gate, up and down of the MLP
N_LINEAR = SPEC.layers * SPEC.hidden * (4 * SPEC.hidden + 3 * SPEC.ffn_hidden)


def answer(topology, precision, **changes):
    plan = {"gpus": 8, "micro_batch": 1, "sharding": "zero1", "framework": "megatron-core"} | changes
    return simulate(Scenario(topology=topology, model=SPEC.name, plan=ParallelPlan(precision=precision, **plan)))


def parameters(topology, precision, **changes):
    return answer(topology, precision, **changes).memory.by_category["parameters"]


@pytest.mark.parametrize(
    ("topology", "precision", "bytes_each"),
    [
        ("dgx-h100", "fp8", 2.0),  # rows and columns: Hopper multiplies no other layout
        ("dgx-h100", "fp8_block", 2 * (1 + 4 / 128)),  # an fp32 scale for 128 elements
        ("dgx-b200", "fp8_current", 1.0),  # one scale for all, and any layout
        ("dgx-b200", "mxfp8", 2 * (1 + 1 / 32)),
        ("dgx-b200", "nvfp4", 2 * (1 / 2 + 1 / 16)),
        ("mi355x-8", "mxfp4", 2 * (1 / 2 + 1 / 32)),
    ],
)
def test_casts_of_weights_stay_beside_16_bits(topology, precision, bytes_each):
    """``get_weight_workspace`` caches a weight's cast for the micro-batches of a step."""
    found = parameters(topology, precision) - parameters(topology, "bf16")
    assert found == pytest.approx(N_LINEAR * bytes_each, rel=1e-6)


@pytest.mark.parametrize(("topology", "bytes_each"), [("dgx-h100", 2.0), ("dgx-b200", 1.0)])
def test_weights_that_are_narrow_themselves_have_no_16_bits(topology, bytes_each):
    found = parameters(topology, "fp8_current", fp8_param_gather=True) - parameters(topology, "bf16")
    assert found == pytest.approx(N_LINEAR * (bytes_each - 2.0), abs=1)


def test_narrow_weights_halve_what_is_gathered():
    wide, narrow = (answer("dgx-h100", "fp8_current", fp8_param_gather=one) for one in (False, True))
    gathered = [
        sum(row["bytes"] for row in one.answer["communication"] if row["collective"] == "all_gather")
        for one in (wide, narrow)
    ]
    assert gathered[1] == pytest.approx(gathered[0] / 2, rel=0.01)


def test_full_shards_keep_no_casts():
    """What was gathered is freed behind each unit, and its cast with it."""
    found = [parameters("dgx-h100", one, sharding="zero3") for one in ("bf16", "fp8")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("precision", "changes"),
    [("bf16", {}), ("nvfp4", {}), ("fp8", {"lora_rank": 16}), ("fp8", {"sharding": "none", "framework": "torchtitan"})],
)
def test_it_has_no_effect_where_no_weight_has_eight_bits(precision, changes):
    plan = answer("dgx-b200", precision, fp8_param_gather=True, **changes).plan
    assert "fp8_param_gather" in dict(idle_settings(plan, has_experts=False, graph_scopes=graph_scopes(SPEC)))
