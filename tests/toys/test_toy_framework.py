"""A framework is one entry of ``FRAMEWORKS``: facts, and nothing that asks for its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.plan import FRAMEWORKS
from simulator.plan.data_parallelism import DataParallelism
from simulator.plan.framework import Framework

JOB = ("--topology", "bigred200", "--model", "gpt2", "--gpus", 8, "--micro-batch", 1, "--global-batch", 8)
COMPARED = ("iteration_time_s", "breakdown", "communication", "memory", "bottleneck")


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """One that is another under a new name, and one of its own: whole parameters, buckets of 4 MB, ZeRO-1 by reduce-scatter."""
    for name in ("hf-eager", "megatron", "megatron-deepspeed", "deepspeed", "fsdp", "torchtitan-compile", "fused"):
        monkeypatch.setitem(FRAMEWORKS, f"{name}-again", replace(FRAMEWORKS[name], name=f"{name}-again"))
    own = DataParallelism(
        shardings=("none", "zero1"), bucket_bytes=4_000_000, scatters_gradients=True, splits_models=False
    )
    monkeypatch.setitem(FRAMEWORKS, "toy", Framework(name="toy", kernels="megatron", data_parallel=own, overlap=False))


@pytest.mark.parametrize("network", ["flow", "chunk", "alpha-beta"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("hf-eager", ()), ("megatron", ("--sharding", "zero1", "--tp", 2)), ("megatron-deepspeed", ("--pp", 2, "--tp", 2)),
     ("deepspeed", ("--sharding", "zero3")), ("fsdp", ("--sharding", "zero3")), ("torchtitan-compile", ("--sharding", "hsdp")),
     ("fused", ())],
)  # fmt: skip
def test_a_framework_under_another_name_gives_the_same_answer(answer_of, network, name, settings):
    command = (*JOB, *settings, "--network", network, "--framework")
    known, again = answer_of(*command, name), answer_of(*command, f"{name}-again")
    for key in COMPARED:
        assert known[key] == again[key], key


def test_its_facts_decide_how_gradients_are_reduced(answer_of):
    """GPT-2 has 124,439,808 parameters (Radford et al.); bf16 gradients of 4 MB a bucket, filled matrix by matrix."""
    plain = {row["collective"]: row for row in answer_of(*JOB, "--framework", "toy")["communication"]}
    assert set(plain) == {"all_reduce"}
    row = plain["all_reduce"]
    assert row["bytes"] == pytest.approx(2 * 124_439_808, rel=0.01)
    assert 4_000_000 <= row["bytes"] / row["count"] < 8_000_000
    sharded = {
        row["collective"] for row in answer_of(*JOB, "--framework", "toy", "--sharding", "zero1")["communication"]
    }
    assert sharded == {"reduce_scatter", "all_gather"}


def test_it_is_searched_and_explained_within_what_it_can_do(answer_of):
    found = answer_of("search", *JOB[:6], "--global-batch", 8, "--framework", "toy", "--axis", "micro_batch=1", "--axis", "recompute=none",
                      "--jobs", 1)  # fmt: skip
    plans = [row["plan"] for row in found["plans"]]
    assert {plan["framework"] for plan in plans} == {"toy"}
    assert {plan["sharding"] for plan in plans} == {"none", "zero1"}
    assert {(plan["tp"], plan["pp"]) for plan in plans} == {(1, 1)}, "it does not split models"
    explained = str(answer_of(*JOB, "--framework", "toy", "--explain")["explanation"])
    assert "--sharding zero1" in explained
