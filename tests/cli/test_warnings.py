"""Warnings on the terminal."""

from __future__ import annotations

import json
import sys

import pytest

from simulator.cli.inputs import write_warnings
from simulator.cli.shared import complain


def test_each_warning_is_said_once(capsys):
    said = set()
    write_warnings(["a", "a"], said=said)
    write_warnings(["a", "b"], said=said, kind="note")
    assert capsys.readouterr().err == "warning: a\nnote: b\n"


def test_a_terminal_breaks_complaints_between_words_and_a_log_keeps_them_whole(monkeypatch, capsys):
    text = "error: rank 0 needs 122.9 GiB of 39.39 GiB\nhint: --pp 8 --dp 1 fits with 27.96 GiB"
    complain(text)
    assert capsys.readouterr().err == text + "\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    complain(text)
    assert capsys.readouterr().err.splitlines() == [
        "error: rank 0 needs 122.9 GiB",
        "of 39.39 GiB",
        "hint: --pp 8 --dp 1 fits with",
        "27.96 GiB",
    ]


def test_a_graph_that_megatron_cannot_capture_is_a_warning_of_its_own(simulate):
    """On standard error and in the answer, not among what is not modelled."""
    job = (
        "-t",
        "dgx-b200",
        "-m",
        "qwen3-30b-a3b-4layers",
        "--gpus",
        8,
        "--ep",
        8,
        "--micro-batch",
        1,
        "--sequence-length",
        512,
    )
    set_ = ("--framework", "megatron-core", "--set", "cuda_graphs=full_iteration", "--precision", "mxfp8")
    _, out, err = simulate(*job, *set_, "--set", "moe_fused_experts=true", "--json")
    said = json.loads(out)["provenance"]["warnings"]
    assert len(said) == 1 and f"warning: {said[0]}\n" in err
    assert "Megatron-Core cannot capture" in err and "give --set moe_dispatcher=hybridep, or" in err
    _, out, err = simulate(*job, *set_, "--set", "moe_fused_experts=true", "--set", "moe_dispatcher=hybridep", "--json")
    assert json.loads(out)["provenance"]["warnings"] == [] and "cannot capture" not in err


@pytest.mark.parametrize(
    ("pp", "more", "is_refused"),
    [
        (5, (), True),
        (4, ("--virtual-pp", 2), True),
        (5, ("--schedule", "dualpipe-v"), True),
        (4, (), False),
        (5, ("--set", "first_stage_layers=2", "--set", "last_stage_layers=1"), False),
        (5, ("--set", "first_stage_layers=2", "--set", "last_stage_layers=2"), True),
    ],
)
def test_layers_that_do_not_divide_are_refused_by_megatron_core_unless_a_layout_is_said(simulate, pp, more, is_refused):
    """GPT-2 has 12; they must divide over ``pipeline_model_parallel_size``. The layout that is named takes the very same time."""
    job = ("-t", "dgx-h100", "-m", "gpt2", "--gpus", pp, "--pp", pp, "--framework", "megatron-core", "--micro-batch", 1)
    job = (*job, "--global-batch", 16, "--sequence-length", 256, "--json")
    _, out, err = simulate(*job, *more)
    answer = json.loads(out)
    said = [text for text in answer["provenance"]["warnings"] if "Megatron-Core itself refuses 12 layers" in text]
    assert len(said) == is_refused == ("warning: Megatron-Core itself refuses" in err)
    assert sum(map(sum, answer["stages"])) == 12
    if is_refused:
        chunks = more if "--virtual-pp" in more or "--schedule" in more else ()
        n_chunks = len(answer["stages"][0])  # two of DualPipeV, whatever virtual_pp is
        assert f"over pp x virtual_pp = {pp} x {n_chunks}, which" in said[0]
        layout = said[0].rpartition("pipeline_layout='")[2].rstrip("'")
        _, out, err = simulate(*job, *chunks, "--set", f"pipeline_layout={layout}")
        again = json.loads(out)
        assert (again["iteration_time_s"], again["stages"]) == (answer["iteration_time_s"], answer["stages"])
        assert not again["provenance"]["warnings"] and "refuses" not in err


@pytest.mark.parametrize(("rank", "is_warned"), [(16, False), (768, False), (769, True)])
def test_adapters_above_the_hidden_size_are_warned_of(simulate, rank, is_warned):
    """GPT-2 is 768 wide: of a higher rank, an adapter is larger than what it adapts."""
    job = ("-t", "dgx-h100", "-m", "gpt2", "--gpus", 1, "--micro-batch", 1, "--sequence-length", 128, "--json")
    _, out, err = simulate(*job, "--lora-rank", rank)
    assert (f"lora_rank={rank} is above the model's hidden size of 768" in err) is is_warned
    assert len(json.loads(out)["provenance"]["warnings"]) == is_warned


# -- what other commands are given and do not use -------------------------------------------------------------------

DENSE = ("-t", "bigred200", "-m", "gpt2", "--micro-batch", 2)
ONE_NODE = "all GPUs are on one node"
NO_EXPERTS = "--set moe_imbalance=1.2 has no effect: the model has no experts"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "gpus=1", "gpus=2", "--moe-imbalance", 1.2), [NO_EXPERTS]),
        # with two stages each holds two chunks of layers; without stages there is nothing to divide
        (
            ("compare", "gpus=4,pp=2,global_batch=16", "gpus=4", "--virtual-pp", 2),
            ["B: --virtual-pp 2 has no effect: pp=1"],
        ),
        (("stragglers", "--gpus", 2, "--spread", 0.01, "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (("stragglers", "--gpus", 2, "--slow-gpus", "0.1=1", "--spread", 0.01), ["--slow-gpus 0.1=1 has no effect"]),
        (
            ("stragglers", "--gpus", 2, "--slow-links", "0.5=9", "--slow-nodes", "0.5=1"),
            ["--slow-nodes 0.5=1 has no effect", f"--slow-links 0.5=9 has no effect: {ONE_NODE}"],
        ),
        (("stragglers", "--gpus", 8, "--slow-links", "0.5=9"), []),
        (("stragglers", "--gpus", 2, "--spread", 0.01, "--unpacked"), ["--unpacked has no effect without --lengths"]),
        (("requirements", "--gpus", "8,16", "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (("search", "--gpus", 2, "--global-batch", 8, "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (
            ("search", "--gpus", 2, "--global-batch", 8, "--format", "csv"),
            ["--format has no effect without --out FOLDER"],
        ),
        (
            ("search", "--gpus", 2, "--global-batch", 8, "--tp", 2, "--axis", "tp=1"),
            ["tp=2 has no effect: an axis gives tp its values"],
        ),
    ],
)
def test_commands_name_what_they_are_given_and_do_not_use(simulate, words, said):
    code, _, err = simulate(*words, *DENSE)
    warnings = [line.removeprefix("warning: ") for line in err.splitlines() if line.startswith("warning: ")]
    assert (code, warnings) == (0, said)


def test_a_sweep_names_what_no_row_uses(simulate, tmp_path):
    """Chunks of stages are of use to the row with two stages, experts' settings to none."""
    words = (
        "sweep",
        *DENSE,
        "--gpus",
        4,
        "--global-batch",
        16,
        "--moe-imbalance",
        1.2,
        "--virtual-pp",
        2,
        "--out",
        tmp_path,
    )
    _, _, err = simulate(*words, "--axis", "pp=1,2")
    assert f"warning: {NO_EXPERTS}" in err and "virtual-pp" not in err
    _, _, err = simulate(*words, "--axis", "gpus=1,4")
    assert "warning: --virtual-pp 2 has no effect: pp=1" in err and "warning: gpus=4 has no effect: an axis" in err


NIC = "node.nics.latency=9us"
OF_A_RUN = "only a whole run asks for it (simulate --tokens, --epochs or --iterations)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), [f"{NIC} has no effect: {ONE_NODE}"]),
        (("--set", "fabric.latency=9us"), [f"{name} has no effect: {ONE_NODE}" for name in ("fabric.latency=9us", NIC)]),
        (("--iterations", 10), [f"{NIC} has no effect: {ONE_NODE}"]),
        (("--set", "failures.detection=9h"), [f"failures.detection=9h has no effect: {OF_A_RUN}", f"{NIC} has no effect: {ONE_NODE}"]),
        (("--set", "price.gpu_hour=9"), [f"{NIC} has no effect: {ONE_NODE}", f"price.gpu_hour=9 has no effect: {OF_A_RUN}"]),
        (
            ("--set", "node.cpu.memory_bandwidth=9GB/s"),
            [
                "node.cpu.memory_bandwidth=9GB/s has no effect: only an optimizer on the host reads from it (--offload-optimizer cpu)",
                f"{NIC} has no effect: {ONE_NODE}",
            ],
        ),
    ],
)  # fmt: skip
def test_values_of_the_cluster_that_nothing_asks_for_are_named(simulate, words, said):
    """What is named changes nothing but the list of what was given."""

    def answer(*more):
        code, out, err = simulate(*DENSE, "--gpus", 4, "--json", *more)
        found = json.loads(out)
        (found[0] if isinstance(found, list) else found).pop("provenance", None)
        return code, found, [line.removeprefix("warning: ") for line in err.splitlines()]

    with_it = answer("--set", NIC, *words)
    kept = ("--iterations", 10) if "--iterations" in words else ()
    assert with_it[::2] == (0, said)
    assert with_it[1] == answer(*kept)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mtbf", "none", "--restart-time", "3h"), ["--restart-time"]),
        (("--mtbf", "none", "--failure-domain", "2=0.1"), ["--failure-domain"]),
        (("--mtbf", "none", "--histories", 3, "--spare-nodes", 1), ["--histories", "--spare-nodes"]),
        (("--mtbf", "3h/job", "--restart-time", "3h"), []),
        (("--mtbf", "none", "--restart-time", "3h", "--flapping", "node0.nic=5s/10min"), []),
        (("--mtbf", "none", "--checkpoint-time", "3min"), []),
    ],
)
def test_flags_about_failures_are_named_where_nothing_fails(simulate, words, said):
    """What is named leaves time, energy and cost of the run as they are."""
    run = (*DENSE, "--gpus", 8, "--iterations", 10**6, "--json")
    _, out, err = simulate(*run, *words)
    reason = "has no effect where nothing fails (--mtbf none)"
    assert [line for line in err.splitlines() if "fails" in line] == [f"warning: {flag} {reason}" for flag in said]
    if said:
        with_it, plain = (json.loads(text)["whole_run"] for text in (out, simulate(*run, "--mtbf", "none")[1]))
        kept = ("total_s", "goodput", "time", "gpu_hours", "cost", "energy", "checkpoint", "played")
        assert {name: with_it[name] for name in kept} == {name: plain[name] for name in kept}


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (8, ("--set", NIC)),
        ("4,8", ("--set", NIC)),
        ("8,4", ("--set", NIC)),
        (4, ("--iterations", 9999, "--set", "failures.detection=9h", "--set", "price.gpu_hour=9")),
        (4, ("--iterations", 9999, "--checkpoint-policy", "async", "--set", NIC)),  # it leaves the node
        (4, ("--set", "storage.bandwidth=9GB/s", "--set", "node.nics.bandwidth=9Gb/s")),  # data come through NICs
        (4, ("--set", "node.cpu.memory_bandwidth=9GB/s", "--sharding", "zero1", "--offload-optimizer", "cpu")),
    ],
)
def test_values_of_the_cluster_that_count_are_not_named(simulate, gpus, words):
    _, _, err = simulate(*DENSE, "--gpus", gpus, *words)
    assert "has no effect" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", 4, "--axis", "node.nics.latency=1us,9us"), [f"the axis node.nics.latency has no effect: {ONE_NODE}"]),
        (("--axis", "gpus=4,8", "--axis", "node.nics.latency=1us,9us"), []),
        # a value that is the default says nothing by itself
        (("--gpus", 4, "--axis", "moe_imbalance=1,1.2"), ["the axis moe_imbalance has no effect: the model has no experts"]),
        (("--gpus", 8, "--axis", "virtual_pp=1,2", "--axis", "pp=1,2", "--global-batch", 32), []),
        (("--gpus", 4, "--axis", "price.gpu_hour=1,2"), []),  # rows have what a billion tokens cost
    ],
)  # fmt: skip
def test_a_sweep_names_axes_that_change_no_row(simulate, tmp_path, words, said):
    _, _, err = simulate("sweep", *DENSE, *words, "--out", tmp_path, "--plot", "none")
    assert [line.removeprefix("warning: ") for line in err.splitlines() if "no effect" in line] == said


@pytest.mark.parametrize("words", [("compare", "gpus=4", "gpus=8"), ("stragglers", "--spread", 0.01)])
def test_commands_about_one_job_take_one_number_of_gpus(simulate, words):
    code, _, err = simulate(*words, *DENSE, "--gpus", "4,8")
    assert code == 3 and "--gpus 4,8: this command takes one number" in err


def test_flags_beside_two_saved_answers_have_no_effect(simulate, tmp_path):
    _, out, _ = simulate(*DENSE, "--gpus", 1, "--json")
    (tmp_path / "a.json").write_text(out)
    code, _, err = simulate("compare", tmp_path / "a.json", tmp_path / "a.json", "--tp", 2)
    assert (code, err) == (0, "warning: --tp has no effect: both sides are answers\n")


@pytest.mark.parametrize("flag", ["--trace", "--memory-trace"])
def test_no_output_is_written_over_a_file_that_is_read(simulate, tmp_path, flag):
    plan = tmp_path / "ds.json"
    plan.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}')
    before = plan.read_bytes()
    code, _, err = simulate("-t", "bigred200", "-m", "gpt2", "--gpus", 2, "--deepspeed", plan, flag, plan)
    assert code == 3 and f"{flag} {plan}: would be written over the file that is read" in err
    assert plan.read_bytes() == before


def test_what_a_preset_sets_is_not_the_users(simulate):
    preset = ("--preset", "qwen3-30b-a3b-gb300-nvl72-8-mxfp8", "--json")
    assert "has no effect" not in simulate(*preset)[2]
    assert "--set moe_dispatcher_sms=12 has no effect" in simulate(*preset, "--set", "moe_dispatcher_sms=12")[2]
