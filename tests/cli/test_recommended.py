"""What is recommended can be run as it is written, and takes the time that is said."""

import json

import pytest

DENSE = "--topology dgx-a100-80g --model gpt-6.7b --gpus 8 --micro-batch 1 --framework megatron-core"
LONG = "--topology dgx-h100 --model llama3-8b --gpus 8 --micro-batch 1 --framework megatron-core --sequence-length 32768 --sharding zero1"
SMALL = "--topology dgx-a100-80g --model gpt2 --gpus 8 --framework hf-eager --sequence-length 256"
SHARED = "--topology dgx-a100-80g --model gpt2 --gpus 8 --micro-batch 1 --framework megatron-core --sequence-length 256"
RECIPE = "--topology dgx-h100 --model gpt2 --gpus 8 --micro-batch 1 --framework megatron-bridge --sequence-length 256"

TINY = "--topology dgx-h100 --model gpt2 --gpus 8 --micro-batch 1 --global-batch 8 --sequence-length 256"


def answer(simulate, command):
    _, out, err = simulate(*command.split(), "--json")
    assert out, err
    return json.loads(out)


@pytest.mark.parametrize("command", [DENSE, LONG])
def test_ways_out_take_the_time_that_is_said(simulate, command):
    rows = [row for row in answer(simulate, command)["ways_out"] if row["iteration_time_s"]]
    assert rows
    for row in rows[:3]:
        found = answer(simulate, f"{command} {row['change']}")
        assert found["iteration_time_s"] == row["iteration_time_s"], row["change"]
        assert found["memory"]["fits"]


@pytest.mark.parametrize(
    ("command", "wanted"),
    [(SHARED, "--cp 2"), (SMALL, "--recompute full"), (RECIPE, "--tp 2"), (RECIPE, "--pp 2")],
)
def test_changes_carry_what_was_left_open(simulate, command, wanted):
    """The batch, a micro-batch that is the largest that fits, and what recipes set beside tensor parallelism."""
    changes = answer(simulate, f"{command} --explain")["explanation"]["changes"]
    rows = [row for row in changes if row["change"].startswith(wanted)]
    assert rows
    for row in rows:
        assert answer(simulate, f"{command} {row['change']}")["iteration_time_s"] == row["iteration_time_s"], row[
            "change"
        ]


@pytest.mark.parametrize(
    ("framework", "more", "degrees"),
    [
        (
            "torchtitan",
            "",
            "--tp 2 --dp 4",
        ),  # parallelize.py of its models: always with sequence parallelism of the norms
        ("megatron-bridge", "", "--tp 2 --dp 4"),  # with user buffers, too
        ("megatron-bridge", "--tp 2", "--tp 1 --dp 8"),
        ("megatron-core", "", "--tp 2 --dp 4"),  # its user chooses
    ],
)
def test_a_plan_with_other_tensor_parallelism_is_the_one_that_its_flags_give(simulate, framework, more, degrees):
    """Nothing beside the degrees has to be said, and nothing of what was derived for the old ones is."""
    command = f"{TINY} --framework {framework} {more}"
    changes = answer(simulate, f"{command} --explain")["explanation"]["changes"]
    (row,) = [row for row in changes if row["change"].startswith(degrees)]
    assert row["change"] == degrees
    assert row["iteration_time_s"] == answer(simulate, f"{command} {degrees}")["iteration_time_s"]


def test_forced_collectives_run_though_some_ways_out_cannot_use_them(simulate):
    """NCCL has no tree for reduce-scatters, which DDP does not need: the plan is simulated, ways out that need them are not."""
    changes = answer(simulate, f"{DENSE} --explain")["explanation"]["changes"]
    said = {row["change"]: row["iteration_time_s"] for row in changes if "--nccl-algo tree" in row["change"]}
    assert said
    for change, seconds in said.items():
        assert answer(simulate, f"{DENSE} {change}")["iteration_time_s"] == seconds
