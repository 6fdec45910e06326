"""What the shell completes, flags of other tools, and what a first-time user gets wrong."""

import pytest
from typer.testing import CliRunner

from simulator.cli import completion
from simulator.cli.main import app, register_commands
from simulator.cli.options import other_flag, our_flags
from simulator.config.names import near_misses


def test_names_are_completed():
    assert "polaris" in completion.topologies("pol")
    assert "gpt3-175b" in completion.models("gpt3-")
    assert all(word.startswith("gpt3-") for word in completion.models("gpt3-"))
    assert "zb-1p" in completion.schedules("zb")
    assert completion.networks("al") == ["alpha-beta"]
    assert completion.devices("h100-sxm5-8") == ["h100-sxm5-80g"]
    assert completion.protocols("ll") == ["ll", "ll128"] and completion.algorithms("ri") == ["ring"]
    assert completion.placements("s") == ["slurm"] and completion.policies("s") == ["sync"]
    assert completion.objectives("gpu") == ["gpu-hours", "gpus"]
    assert completion.failure_rates("no") == ["none"] and "llama3-2024" in completion.failure_rates("llama3")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("simulate replay --gpu h100-sxm5-8", "h100-sxm5-80g"), ("simulate replay --schedule zb-v", "zb-v"),
        ("simulate --nccl-proto ll12", "ll128"), ("simulate --mtbf llama3-20", "llama3-2024"),
        ("simulate search --objective ener", "energy"), ("simulate --topology bigr", "bigred200"),
    ],
)  # fmt: skip
def test_a_shell_completes_the_values_of_an_option(words, value, monkeypatch, capsys):
    """As a shell asks: the words so far and the place of the one to complete, in the environment."""
    monkeypatch.setenv("_SIMULATE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setattr("sys.argv", ["simulate"])
    register_commands()
    with pytest.raises(SystemExit):
        app(prog_name="simulate")
    assert capsys.readouterr().out.split() == [value]


def test_files_are_completed_by_their_endings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plan.yaml", "plan.txt", ".hidden.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "inner.yaml").touch()
    complete = completion.files(".yaml")
    assert complete("pl") == ["plan.yaml", "plans/"]
    assert complete("plans/") == ["plans/inner.yaml"]
    assert complete("nowhere/") == []


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["--tensor-parallel", "4"], ["--tp", "4"]),
        (["--pipeline-model-parallel-size=2"], ["--pp=2"]),
        (["--seq-length", "2048", "--zero", "2"], ["--sequence-length", "2048", "--sharding", "2"]),
        (["--tp", "2", "tensor_parallel", "--json"], ["--tp", "2", "tensor_parallel", "--json"]),
    ],
)
def test_flags_of_other_tools_are_understood(given, ours):
    assert our_flags(given) == ours


# what Megatron-LM's arguments.py, torchtitan's job config and Hugging Face's TrainingArguments say that these do
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--use-distributed-optimizer", "--sharding zero1"),
        ("--recompute-activations", "--recompute selective"),
        ("--num-layers-per-virtual-pipeline-stage", "--virtual-pp"),
        ("--train-iters", "--iterations"),
        ("--parallelism.data_parallel_shard_degree=4", "--sharding zero3"),
        ("--activation_checkpoint.mode", "--recompute"),
        ("--gradient_checkpointing", "--recompute full"),
        ("--overlap-moe-expert-parallel-comm", "--set overlap_moe_expert_parallel_comm=true"),
    ],
)
def test_flags_of_other_tools_with_other_values_are_answered_with_ours(theirs, ours):
    assert f"say {ours}" in other_flag([theirs])


def test_our_own_flags_are_not_taken_for_those_of_other_tools():
    assert not other_flag(
        ["--recompute", "full", "--iterations", "5", "--attention=flash", "--compile.mode", "max-autotune"]
    )


def test_a_shortened_name_is_answered_with_those_that_it_begins():
    pool = ["dgx-h100", "dgx2-v100", "dgx-a100-40g", "dgx-a100-80g"]
    assert near_misses("dgx-a100", pool)[:2] == ["dgx-a100-40g", "dgx-a100-80g"]
    assert near_misses("dgx-", pool) == pool[:1] + pool[2:]  # at most three
    assert near_misses("dgx", pool) == []  # begins all of them, and is near to none


def test_a_missing_model_is_one_line(monkeypatch):
    register_commands()
    monkeypatch.setattr("sys.argv", ["simulate", "-t", "polaris"])
    done = CliRunner().invoke(app, ["-t", "polaris"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "--model" in done.stderr and "simulate models list" in done.stderr


def test_a_schedule_takes_the_flags_of_a_plan(simulate):
    drawn = {
        simulate("schedule", "1f1b-interleaved", "--micro-batches", 4, *flags)
        for flags in (("--stages", 2, "--chunks", 3), ("--pp", 2, "--virtual-pp", 3))
    }
    assert len(drawn) == 1 and next(iter(drawn))[0] == 0


@pytest.mark.parametrize("arguments", [["schedule", "zb-1p"], ["topology", "show", "polaris"]])
def test_what_stands_alone_is_drawn_into_a_page(arguments, tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*arguments, "--plot", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
