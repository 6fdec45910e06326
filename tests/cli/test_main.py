"""The main command: exit statuses, one JSON document, and messages that say the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.answer import MEMORY_MARGIN
from simulator.cli.main_flags import FLAGS
from simulator.cli.options import MEMORY_MARGIN_HELP
from simulator.cli.shared import say
from simulator.explore.presets import read_preset
from simulator.explore.run.checkpoint_policy import POLICIES
from simulator.plan.published import PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--topology", "bigred200", "--model", "gpt2", "--micro-batch", "1")

#: four GPUs in two islands without a link between them
ISLANDS = """\
device: a100-sxm4-40g
vertices:
  g0: {kind: gpu}
  g1: {kind: gpu}
  g2: {kind: gpu}
  g3: {kind: gpu}
edges:
  - {source: g0, target: g1, kind: nvlink, bandwidth: 100 GB/s, latency: 1 us}
  - {source: g2, target: g3, kind: nvlink, bandwidth: 100 GB/s, latency: 1 us}
"""

DOCUMENTED = {
    "iteration_time_s",
    "samples_per_s",
    "tokens_per_s",
    "tflops_per_gpu",
    "mfu",
    "breakdown",
    "communication_fraction",
    "communication",
    "memory",
    "bottleneck",
    "confidence",
    "provenance",
}
BREAKDOWN = {
    "compute_s",
    "exposed_communication_s",
    "overlapped_communication_s",
    "bubble_s",
    "optimizer_s",
    "host_s",
    "data_s",
}
COMMUNICATION = {"collective", "axis", "count", "bytes", "total_s", "algbw_bytes_per_s", "busbw_bytes_per_s"}


def in_a_process(*arguments):
    code = "from simulator.cli.main import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# -- answers --------------------------------------------------------------------------------------------------


def test_json_is_one_document_with_the_documented_keys(simulate):
    code, out, err = simulate(*SMALL, "--gpus", 8, "--sharding", "zero1", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert set(answer) >= DOCUMENTED
    assert set(answer["breakdown"]) == BREAKDOWN
    assert {row["collective"] for row in answer["communication"]} == {"all_gather", "reduce_scatter"}
    assert all(set(row) >= COMMUNICATION for row in answer["communication"])
    assert set(answer["memory"]) >= {"peak_bytes", "capacity_bytes", "fits"}
    assert set(answer["confidence"]) == {"low_s", "high_s", "basis"}
    assert answer["bottleneck"]["kind"] in ("nic", "fabric", "pcie")
    assert answer["provenance"]["scenario"]["model"] == "gpt2"


def test_a_list_of_gpus_gives_a_row_each(simulate):
    code, out, _ = simulate(*SMALL, "--gpus", "1,2,4", "--json")
    rows = json.loads(out)["scaling"]
    assert code == 0
    assert [row["gpus"] for row in rows] == [1, 2, 4]
    assert all(set(row) >= DOCUMENTED for row in rows)


def test_the_answer_for_people_says_what_matters(simulate):
    code, out, _ = simulate(*SMALL, "--gpus", 8, "--explain")
    assert code == 0
    for word in ("iteration", "tokens/s", "TFLOP/s", "MFU", "all_reduce", "busbw", "GiB", "fits", "busiest link"):
        assert word.lower() in out.lower(), word


def test_the_scaling_table_for_people_has_a_row_per_count(simulate):
    code, out, _ = simulate(*SMALL, "--gpus", "1,4")
    assert code == 0
    assert "tokens/s" in out


def test_flags_win_over_the_environment_over_set_over_the_plan_file(simulate, tmp_path, monkeypatch):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "gpus: 4\nsequence-length: 128\nrecompute: full\nprecision: fp16\nattention: eager\n", encoding="utf-8"
    )
    monkeypatch.setenv("SIMULATE_PLAN__PRECISION", "fp32")
    monkeypatch.setenv("SIMULATE_PLAN__ATTENTION", "flash")
    changes = ("--set", "recompute=selective", "--set", "precision=tf32")
    code, out, _ = simulate(*SMALL, "--plan", path, *changes, "--attention", "eager", "--json")
    plan = json.loads(out)["provenance"]["scenario"]["plan"]
    assert code == 0
    assert (plan["gpus"], plan["sequence_length"]) == (4, 128)
    assert plan["recompute"] == "selective"
    assert plan["precision"] == "fp32"
    assert plan["attention"] == "eager"


def test_a_published_recipe_fills_in_for_flags_and_not_for_a_plan_file(simulate, tmp_path, monkeypatch):
    """What a file leaves open is the framework's default: the file is the plan."""
    monkeypatch.setitem(PUBLISHED, ("megatron-core", "gpt2", "bigred200", 4), {"tp": 2})
    path = tmp_path / "plan.yaml"
    path.write_text("recompute: full\n", encoding="utf-8")
    job = ("--topology", "bigred200", "--model", "gpt2", "--gpus", 4, "--framework", "megatron-core", "--json")
    for more, tp in (((), 2), (("--plan", path), 1)):
        code, out, err = simulate(*job, *more)
        assert code == 0
        assert json.loads(out)["provenance"]["scenario"]["plan"]["tp"] == tp
        assert ("published recipe" in err) is (tp == 2)


def test_a_search_takes_of_a_published_recipe_what_it_does_not_choose(simulate, monkeypatch):
    recipe = {"tp": 2, "pipeline_layout": "Et*6|t*6L", "global_batch": 8, "precision": "fp16"}
    monkeypatch.setitem(PUBLISHED, ("megatron-core", "gpt2", "bigred200", 2), recipe)
    job = (
        "--topology",
        "bigred200",
        "--model",
        "gpt2",
        "--gpus",
        2,
        "--framework",
        "megatron-core",
        "--sequence-length",
        256,
    )
    code, out, err = simulate("search", *job, "--axis", "micro_batch=1", "--axis", "recompute=none", "--json")
    assert code == 0
    assert (
        "published recipe for gpt2 on 2 GPUs of bigred200 with megatron-core: global_batch=8, precision=fp16\n" in err
    )
    plans = [row["plan"] for row in json.loads(out)["plans"]]
    assert {(plan["global_batch"], plan["precision"], plan["pipeline_layout"]) for plan in plans} == {(8, "fp16", None)}
    assert {plan["tp"] for plan in plans} == {1, 2}


#: a recipe for four GPUs of one of two clusters
RECIPE = {("megatron-core", "gpt2", "bigred200", 4): {"tp": 2, "global_batch": 8}}
OF_RECIPE = ("--model", "gpt2", "--framework", "megatron-core", "--micro-batch", 1, "--sequence-length", 256)


@pytest.mark.parametrize(
    ("words", "tps"),
    [
        (("-t", "bigred200", "--gpus", "1,4"), {1: 1, 4: 2}),
        (("-t", "bigred200,dgx-a100-80g", "--gpus", 4), {"bigred200": 2, "dgx-a100-80g": 1}),
        (("sweep", "-t", "bigred200", "--axis", "gpus=1,4", "--plot", "none"), {1: 1, 4: 2}),
        (("sweep", "-t", "bigred200", "--gpus", 4, "--axis", "tp=1,4", "--plot", "none"), {1: 1, 4: 4}),
    ],
)
def test_each_of_several_takes_the_recipe_that_names_it_as_alone(simulate, monkeypatch, tmp_path, words, tps):
    """And what an axis says wins; the note is said once, and names who has no recipe."""
    monkeypatch.chdir(tmp_path)
    for key, recipe in RECIPE.items():
        monkeypatch.setitem(PUBLISHED, key, recipe)
    code, out, err = simulate(*words, *OF_RECIPE, "--json")
    assert code == 0
    found = json.loads(out)
    rows = found.get("rows") or [
        {"gpus": row["gpus"], **row["provenance"]["scenario"]["plan"]} for row in found["scaling"]
    ]
    axis = next(iter(found.get("axes", {"gpus": ()})))
    assert {row[axis]: row["tp"] for row in rows} == tps
    assert {row["global_batch"] for row in rows if row["tp"] == 2 or axis == "tp"} == {8}
    assert err.count("published recipe for gpt2 on 4 GPUs of bigred200 with megatron-core: ") == 1
    assert ("no published recipe for " in err) is (axis != "tp")


def test_a_note_says_what_a_recipe_is_for_and_what_it_leaves_out(simulate):
    """Megatron Bridge fuses experts and captures whole iterations in MXFP8 alone."""
    job = ("-t", "gb300-nvl72", "-m", "qwen3-30b-a3b", "--framework", "megatron-bridge", "--gpus", 8, "--json")
    for words, is_said in (((), False), (("--precision", "nvfp4"), True)):
        _, _, err = simulate(*job, *words)
        (note,) = [line for line in err.splitlines() if "published recipe" in line]
        assert ("it is for precision=mxfp8, so that with nvfp4 it leaves out " in note) is is_said
        assert all((name in note) is is_said for name in ("moe_fused_experts=True", "cuda_graphs=full_iteration"))


def test_sides_of_a_comparison_take_their_recipes(simulate, monkeypatch):
    monkeypatch.setitem(PUBLISHED, *next(iter(RECIPE.items())))
    job = ("-t", "bigred200", *OF_RECIPE, "--json")
    code, out, err = simulate("compare", "gpus=1", "gpus=4", *job)
    assert code == 0
    changed = {row["setting"]: (row["a"], row["b"]) for row in json.loads(out)["inputs"]}
    assert changed["tp"] == ("1", "2") and changed["global_batch"] == ("1", "8")
    assert err.count("settings of the published recipe for gpt2 on 4 GPUs") == 1


def test_a_search_over_sizes_takes_the_recipe_of_each(simulate, monkeypatch):
    monkeypatch.setitem(PUBLISHED, ("megatron-core", "gpt2", "bigred200", 4), {"tp": 2, "precision": "fp16"})
    job = ("search", "-t", "bigred200", "--gpus", "2,4", "--global-batch", 8, *OF_RECIPE)
    code, out, err = simulate(*job, "--axis", "recompute=none", "--axis", "sharding=none", "--json")
    assert code == 0
    found = {one["gpus"]: one["best"]["plan"]["precision"] for one in json.loads(out)["searches"]}
    assert found == {2: "bf16", 4: "fp16"}
    assert "published recipe for gpt2 on 4 GPUs of bigred200 with megatron-core: precision=fp16\n" in err


def test_a_command_with_one_plan_for_several_sizes_says_that_it_leaves_a_recipe_out(simulate, monkeypatch):
    monkeypatch.setitem(PUBLISHED, ("megatron-core", "gpt2", "bigred200", 8), {"precision": "fp16"})
    for gpus, said in (("8", "settings of the published recipe"), ("8,16", "is left out")):
        code, _, err = simulate("requirements", "-t", "bigred200", "--gpus", gpus, *OF_RECIPE, "--json")
        assert code == 0
        assert said in err and "precision=fp16" in err


def test_set_changes_the_topology(simulate):
    def time_s(*changes):
        return json.loads(simulate(*SMALL, "--gpus", 8, *changes, "--json")[1])["iteration_time_s"]

    assert time_s("--set", "node.nics.bandwidth=400 Gb/s") < time_s()


def test_a_trace_is_written(simulate, tmp_path):
    path = tmp_path / "trace.json"
    code, out, err = simulate(*SMALL, "--gpus", 2, "--trace", path, "--json")
    assert (code, err) == (0, f"wrote {path}\n")
    json.loads(out)
    assert any(event["ph"] == "X" for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def test_the_shipped_file_by_its_file_name_in_a_process():
    done = in_a_process("--topology", "bigred200.yaml", "--model", "gpt2-large", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["fits"]
    assert done.stderr == ""


# -- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("--tensor-model-parallel-size", 2), "tp", 2),  # Megatron-LM
        (("--parallelism.tensor_parallel_degree", 2), "tp", 2),  # torchtitan
        (("--parallelism.pipeline_parallel_degree=2",), "pp", 2),
        (("--train_micro_batch_size_per_gpu", 2), "micro_batch", 2),  # DeepSpeed
        (("--training.global_batch_size", 8), "global_batch", 8),
    ],
)
def test_flags_of_other_tools_are_understood(simulate, words, key, value):
    code, out, err = simulate("-t", "bigred200", "-m", "gpt2", "--gpus", 4, *words, "--json")
    assert code == 0, err
    assert json.loads(out)["provenance"]["scenario"]["plan"][key] == value


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--nodes", "--gpus"), ("--num_nodes=2", "--gpus"), ("--batch-size", "--micro-batch"), ("--bf16", "--precision bf16"),
        ("--gradient-accumulation-steps", "--global-batch"), ("--cluster", "--topology"), ("--fsdp", "--sharding"),
        ("--zero_optimization.stage", "--sharding zero1"), ("--activation-checkpointing", "--recompute"),
    ],
)  # fmt: skip
def test_flags_that_mean_something_else_are_answered_with_ours(simulate, flag, ours):
    code, out, err = simulate("-t", "bigred200", "-m", "gpt2", flag, "2")
    assert (code, out) == (2, "")
    assert err.startswith(f"there is no {flag.partition('=')[0]}; say {ours}")
    assert simulate("search", "-t", "bigred200", "-m", "gpt2", flag, "2")[2] == err


@pytest.mark.parametrize("command", ["sweep", "search", "compare", "requirements", "stragglers"])
def test_a_page_is_asked_for_by_the_same_word_everywhere(simulate, command):
    assert "--report" in simulate(command, "--help")[1]


def test_flags_that_a_command_has_itself_are_not_refused(simulate):
    """``collective --dtype``, which plans call ``--precision``."""
    words = ("-t", "bigred200", "--gpus", 4, "--dtype", "half", "--max", "1MiB")
    assert simulate("collective", "all_reduce", *words)[0] == 0


def test_a_terminal_breaks_lines_between_words_and_a_file_does_not(monkeypatch, capsys):
    line = "  not certain: latencies are round figures"
    say(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say(line)
    assert capsys.readouterr().out == "  not certain: latencies\n    are round figures\n"
    say("stage 0 | F0 F1 F2 F3 F4", hang=" | ")
    assert capsys.readouterr().out == "stage 0 | F0 F1 F2 F3 F4\n"
    say("stage 0 | F0 F1 F2 F3 F4 F5", hang=" | ")
    assert capsys.readouterr().out == "stage 0 | F0 F1 F2 F3 F4\n          F5\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology", "bigred20", "--model", "gpt2"), "Did you mean 'bigred200'?"),
        (("--topology", "bigred200", "--model", "gpt2-larg"), "did you mean 'gpt2-large'"),
        (("--topology", "missing.yaml", "--model", "gpt2"), "missing.yaml"),
        (("--topology", "bigred200", "--model", "missing/config.json"), "missing/config.json"),
        ((*SMALL, "--network", "flood"), "flow"),
        ((*SMALL, "--framework", "megatronn"), "megatron"),
        ((*SMALL, "--sharding", "zero9"), "zero3"),
        ((*SMALL, "--precision", "fp17"), "fp16"),
        ((*SMALL, "--schedule", "1f1c", "--pp", "2", "--gpus", "2"), "1f1b"),
        ((*SMALL, "--gpus", "many"), "--gpus many"),
        ((*SMALL, "--gpus", "0"), "--gpus 0"),
        ((*SMALL, "--gpus", "8", "--transport", "pigeons"), "pigeons"),
        ((*SMALL, "--set", "node.nicks.bandwidth=1 GB/s"), "nicks"),
        ((*SMALL, "--set", "nothing"), "key=value"),
        ((*SMALL, "--tp", "0"), "at least 1"),
        ((*SMALL, "--iterations", "0"), "--iterations 0"),
        ((*SMALL, "--pue", "0"), "--pue 0"),
        ((*SMALL, "--histories", "0"), "--histories 0"),
    ],
)
def test_invalid_input_is_3_with_a_message(simulate, arguments, message):
    code, out, err = simulate(*arguments)
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert message in err


def test_whole_runs_of_several_jobs_are_without_links_that_flap(simulate):
    """One job on one node has nothing to do with a network card that the other job waits for."""
    job = ("--topology", "dgx-a100-80g", "--model", "gpt2", "--flapping", "node0.nic=5 s/10 min", "--tokens", "1e9")
    code, out, err = simulate(*job, "--gpus", "8,16", "--json")
    assert code == 0 and "their whole runs are without it" in err
    assert [row["whole_run"]["time"]["stalled_s"] for row in json.loads(out)["scaling"]] == [0.0, 0.0]
    code, out, err = simulate(*job, "--gpus", "16", "--json")
    assert code == 0 and "whole runs" not in err
    assert json.loads(out)["whole_run"]["time"]["stalled_s"] > 0


def test_a_typo_in_a_cluster_file_is_3_with_line_and_near_miss(simulate, tmp_path):
    text = (ROOT / "topologies" / "clusters" / "bigred200.yaml").read_text(encoding="utf-8")
    path = tmp_path / "cluster.yaml"
    path.write_text(
        text.replace("links_per_peer:", "links_per_pear:").replace("nodes: 64", "nodes: sixty"), encoding="utf-8"
    )
    lines = path.read_text(encoding="utf-8").splitlines()
    code, out, err = simulate("--topology", path, "--model", "gpt2")
    assert (code, out) == (3, "")
    for word in ("links_per_pear", "nodes: sixty"):  # all faults of a file at once, each with its place
        line = next(i for i, text in enumerate(lines, start=1) if word in text)
        assert f"cluster.yaml:{line}:" in err
    assert "links_per_peer" in err


def test_a_typo_in_a_plan_file_is_3_with_line_and_near_miss(simulate, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("tp: 2\nmicro-bach: 4\nsequence-length: long\n", encoding="utf-8")
    code, out, err = simulate("--topology", "bigred200", "--model", "gpt2", "--plan", path)
    assert (code, out) == (3, "")
    assert "plan.yaml:2:" in err
    assert "micro_batch" in err
    assert "plan.yaml:3:" in err  # all faults at once


def test_a_disconnected_graph_is_3_and_names_both_ends(simulate, tmp_path):
    path = tmp_path / "islands.yaml"
    path.write_text(ISLANDS, encoding="utf-8")
    code, out, err = simulate("--topology", path, "--model", "gpt2", "--micro-batch", 1)
    assert (code, out) == (3, "")
    assert "g2" in err and ("g0" in err or "g1" in err)
    code, *_ = simulate("--topology", path, "--model", "gpt2", "--micro-batch", 1, "--gpus", 2)
    assert code == 0


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        (("--gpus", "8", "--tp", "3"), "8 GPUs are not a multiple of tp x pp x cp = 3 x 1 x 1 = 3"),
        (("--gpus", "8", "--dp", "3"), "dp x tp x pp x cp = 3 x 1 x 1 x 1 = 3"),
        (("--gpus", "8", "--global-batch", "12"), "global batch 12 is not a multiple"),
        (("--gpus", "8", "--pp", "8", "--virtual-pp", "4"), "12 layers"),
    ],
)
def test_degrees_that_do_not_multiply_up_are_4(simulate, changes, numbers):
    code, out, err = simulate(*SMALL, *changes)
    assert (code, out) == (4, "")
    assert numbers in err
    assert "hint: " in err


def test_a_plan_that_does_not_fit_is_4_with_its_way_out(simulate):
    command = ("--topology", "bigred200", "--model", "gpt2-xl", "--gpus", "1", "--micro-batch", "64")
    code, out, err = simulate(*command)
    assert code == 4
    assert "does not fit" in err and "GiB too much" in err
    assert "hint: --micro-batch" in err
    code, out, err = simulate(*command, "--json")
    assert code == 4
    assert json.loads(out)["memory"]["fits"] is False
    assert "does not fit" in err


def test_the_way_out_works(simulate):
    command = ("--topology", "bigred200", "--model", "gpt2-xl", "--gpus", "1")
    _, _, err = simulate(*command, "--micro-batch", "64")
    hint = next(line for line in err.splitlines() if line.startswith("hint: "))
    code, *_ = simulate(*command, *hint.split()[1:3])
    assert code == 0


@pytest.mark.parametrize("arguments", [("--nope",), ("--gpus",), ("--tp", "two"), ("nothing",)])
def test_wrong_usage_is_2(simulate, arguments):
    code, out, _ = simulate(*SMALL, *arguments)
    assert (code, out) == (2, "")


def test_a_missing_model_is_2(simulate):
    code, _, err = simulate("--topology", "bigred200")
    assert code == 2
    assert "--model" in err


@pytest.mark.parametrize(
    ("changes", "code"), [(("--model", "gpt2-larg"), 3), (("--tp", "3", "--gpus", "8"), 4), (("--gpus", "100000"), 3)]
)
def test_a_mistake_under_json_is_one_document_too(simulate, changes, code):
    status, out, err = simulate(*SMALL, *changes, "--json")
    assert status == code
    assert json.loads(out)["error"]["message"] in err


def test_a_mistake_in_a_process_shows_no_traceback():
    done = in_a_process("--topology", "bigred200", "--model", "gpt2", "--tp", "3", "--gpus", "8")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_fault_worth_a_traceback():
    command = f"{sys.executable} -c 'from simulator.cli.main import main; main()' models list | head -n 1"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flag", [("--with", "other.yaml"), ("--local-steps", "7"), ("--placement", "random"), ("--slow-rank", "3=1.5")]
)
def test_flags_about_one_answer_are_refused_for_several_clusters(simulate, flag):
    code, _, err = simulate("-t", "dgx-h100,dgx-b200", "-m", "gpt2", "--gpus", 8, "--micro-batch", 1, *flag)
    assert code == 3 and f"{flag[0]} is about one answer" in err


def test_a_checkpoint_begins_after_the_one_before_has_arrived(simulate):
    """A node of eight GPUs writes 16 bytes or so for each of 124 million parameters at 10 MB/s: minutes, not one step."""
    job = (
        "-t",
        "dgx-h100",
        "-m",
        "gpt2",
        "--gpus",
        8,
        "--micro-batch",
        1,
        "--tokens",
        "1B",
        "--checkpoint-policy",
        "async",
    )
    slow = ("--set", "storage.bandwidth=10 MB/s", "--mtbf", "3 h/job")
    code, out, _ = simulate(*job, *slow, "--json")
    checkpoint = json.loads(out)["whole_run"]["checkpoint"]
    assert code == 0 and checkpoint["interval_s"] >= checkpoint["lag_s"] > checkpoint["bytes"] / 10e6 * 0.99
    code, _, err = simulate(*job, *slow, "--checkpoint-interval", "1 steps")
    assert code == 3 and "to arrive" in err


#: two leaves joined by an eighth of what their nodes could use, and a job of four nodes whose gathers notice it
_FABRIC = ("nodes=16", "fabric.nodes_per_leaf=8", "fabric.oversubscription=64")
ON_TWO_LEAVES = [
    *("-t", "dgx-a100-40g", "-m", "gpt-1.3b", "--gpus", 32, "--sharding", "zero3", "--framework", "fsdp"),
    *("--micro-batch", 4, "--json", *(word for one in _FABRIC for word in ("--set", one))),
]


def test_a_published_recipe_fills_what_is_left_open_but_no_plan_of_a_file(simulate, tmp_path):
    """Megatron-Bridge runs Qwen3-30B-A3B on 8 GB200 with micro-batches of 4; a file says the whole plan."""
    job = ("-t", "gb200-nvl72", "-m", "qwen3-30b-a3b", "--framework", "megatron-bridge", "--json")
    (tmp_path / "plan.yaml").write_text("ep: 8\nmicro_batch: 2\n", encoding="utf-8")
    said = {}
    for name, more in {"open": (), "file": ("--plan", tmp_path / "plan.yaml"), "sizes": ("--gpus", "4,8")}.items():
        gpus = () if "--gpus" in more else ("--gpus", 8)
        _, _, err = simulate(*job, *gpus, *more)
        said[name] = "published recipe" in err and "micro_batch=4" in err
    assert said == {"open": True, "file": False, "sizes": True}


@pytest.mark.parametrize("cap", ["300", "300 s", "6kW/room"])
def test_a_cap_that_is_no_power_is_refused_by_its_flag(simulate, cap):
    code, _, err = simulate("--topology", "dgx-h100", "--model", "gpt2", "--gpus", 1, "--power-cap", cap)
    assert code == 3 and f"--power-cap {cap}" in err and "gpu_cap" not in err


def test_the_answer_is_that_of_the_job_on_its_nodes(simulate):
    """Gathers that cross from leaf to leaf are exposed, on one leaf they are not."""
    apart, together, plain = (
        json.loads(simulate(*ON_TWO_LEAVES, *where)[1])
        for where in (("--placement", "0-1,8-9"), ("--placement", "4-7"), ())
    )
    assert apart["iteration_time_s"] == apart["neighbours"]["jobs"][0]["alone_s"] > 1.05 * plain["iteration_time_s"]
    assert together["iteration_time_s"] == pytest.approx(plain["iteration_time_s"], rel=1e-9)


def test_the_answer_on_free_nodes_is_that_of_the_fastest_placement(simulate, tmp_path):
    """Two nodes are free on one leaf and four on the other: the job runs on the four, whichever their numbers."""
    (tmp_path / "free").write_text("0-1,10-13")
    found = json.loads(simulate(*ON_TWO_LEAVES, "--nodes-free", tmp_path / "free")[1])
    there = json.loads(simulate(*ON_TWO_LEAVES, "--placement", "10-13")[1])
    assert found["placements"][0]["nodes"] == [10, 11, 12, 13]
    assert found["iteration_time_s"] == found["placements"][0]["iteration_time_s"] == there["iteration_time_s"]


def test_one_margin_of_memory_holds_for_every_command(simulate, tmp_path):
    """The help of all three says the default, and all mark what leaves less free than was asked for."""
    code, out, _ = simulate(*SMALL, "--gpus", 8, "--memory-margin", 0.999, "--json")
    memory = json.loads(out)["memory"]
    assert (code, memory["margin"], memory["is_tight"]) == (0, 0.999, True)
    sweep = ("sweep", *SMALL, "--axis", "gpus=8", "--out", tmp_path, "--plot", "none", "--json")
    for margin in (0.999, 0.0):
        _, out, _ = simulate(*sweep, "--memory-margin", margin)
        assert json.loads(out)["rows"][0]["is_tight"] is (margin == 0.999)
    _, out, _ = simulate(*SMALL, "--topology", "bigred200,dgx-h100", "--gpus", 8, "--memory-margin", 0.999, "--json")
    assert [row["is_tight"] for row in json.loads(out)["rows"]] == [True, True]
    _, out, _ = simulate(*SMALL, "--gpus", 8, "--memory-margin", "10%", "--json")
    assert json.loads(out)["memory"]["margin"] == 0.1
    code, _, err = simulate(*SMALL, "--memory-margin", 1.5)
    assert (code, "--memory-margin 1.5" in err) == (3, True)
    assert f"{MEMORY_MARGIN}." in MEMORY_MARGIN_HELP


def test_ways_out_of_memory_cost_what_their_gpu_hours_do_at_the_given_price(simulate):
    """Cost is hours times price; bigred200's A100-40G has no list price, so that without one there is no such column."""
    large = ("--topology", "bigred200", "--model", "gpt-350m", "--gpus", 16, "--micro-batch", 32)
    priced = ("--tokens", "1B", "--gpu-hour-price", "1.50 USD")
    code, out, _ = simulate(*large, *priced, "--json")
    rows = [row for row in json.loads(out)["ways_out"] if row["gpu_hours_per_billion_tokens"]]
    assert code == 4 and rows
    for row in rows:
        assert row["cost_per_billion_tokens"] == pytest.approx(1.5 * row["gpu_hours_per_billion_tokens"])
        assert row["currency"] == "USD"
    _, said, _ = simulate(*large, *priced)
    assert "cost of them" in said
    _, said, _ = simulate(*large)
    assert "Ways out of memory" in said and "cost of them" not in said


def test_a_plan_that_searches_leave_out_is_answered_with_the_reason(simulate):
    """NVIDIA/Megatron-LM has no ZeRO-2: DeepSpeed brings it."""
    small = (*SMALL, "--gpus", 8, "--sharding", "zero2")
    code, _, err = simulate(*small, "--framework", "megatron")
    assert (code, err) == (0, "note: a search leaves this plan out: megatron does not run zero2\n")
    code, _, err = simulate(*small, "--framework", "deepspeed")
    assert (code, err) == (0, "")


def test_explain_offers_the_schedules_that_the_framework_has(simulate, tmp_path):
    """DeepSpeed's pipeline engine is 1F1B (``runtime/pipe/schedule.py``, ``TrainSchedule``); GPipe is studied below it all the same."""
    staged = (*SMALL, "--gpus", 8, "--pp", 4, "--micro-batch", 1, "--framework", "deepspeed", "--json")
    code, out, err = simulate(*staged, "--explain")
    assert (code, err) == (0, "")
    found = json.loads(out)["explanation"]
    refused = {one["change"]: one["reason"] for one in found["impossible"]}
    assert refused["--schedule dualpipe-v"] == "deepspeed has no schedule dualpipe-v: it has 1f1b"
    assert not [one for one in found["changes"] if "--schedule" in one["change"] or "--virtual-pp" in one["change"]]
    reason = "deepspeed has no schedule gpipe: it has 1f1b"
    code, out, err = simulate(*staged, "--schedule", "gpipe")
    assert (code, err) == (0, f"note: a search leaves this plan out: {reason}\n")
    code, out, _ = simulate("sweep", *staged, "--axis", "schedule=1f1b,gpipe", "--jobs", 1, "--out", tmp_path)
    assert [row["remark"] for row in json.loads(out)["rows"]] == ["", reason]


def test_a_search_keeps_to_the_schedule_that_is_asked_for(simulate):
    shape = ("--axis", "pp=4", "--axis", "tp=2", "--axis", "micro_batch=1", "--axis", "recompute=none", "--jobs", 1)
    asked = ("search", *SMALL, "--gpus", 8, "--global-batch", 16, "--framework", "deepspeed", *shape, "--json")
    for given, schedules, noted in (
        ((), {("1f1b", 1)}, ""),
        (("--schedule", "gpipe"), {("gpipe", 1)}, "schedule gpipe: it has 1f1b"),
        (("--axis", "virtual_pp=3"), {("1f1b", 3)}, "schedule 1f1b-interleaved: it has 1f1b"),
    ):
        code, out, err = simulate(*asked, *given)
        plans = [row["plan"] for row in json.loads(out)["plans"]]
        assert code == 0 and {(plan["schedule"], plan["virtual_pp"]) for plan in plans} == schedules
        assert ("note: the search keeps to what is asked for: deepspeed has no schedule" in err) == bool(noted)
        assert noted in err


def signalled(word, inside, *words, at_exit="None"):
    """Run a command that gets a signal in the middle of its work, and return its status and what it says on standard error."""
    code = (
        "import atexit, os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from {inside.rpartition('.')[0]} import {inside.rpartition('.')[2]} as place\n"
        f"atexit.register(lambda: {at_exit})\n"
        f"place.{word[0]} = lambda *_, **__: os.kill(os.getpid(), signal.{word[1]})\n"
        f"sys.argv = ['simulate', *{words!r}]\n"
        "from simulator.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


ONE_GPU = ("--topology", "bigred200", "--model", "gpt2", "--gpus", "1")


def test_a_terminated_command_ends_regularly(tmp_path):
    """What is to be done at exit is done: joblib's workers and their files go then, and 143 is 128 and the number of SIGTERM."""
    gone = tmp_path / "gone"
    told = signalled(
        ("simulate_counts", "SIGTERM"), "simulator.cli.run", *ONE_GPU, at_exit=f"pathlib.Path({str(gone)!r}).touch()"
    )
    assert told == (143, "") and gone.exists()


@pytest.mark.parametrize(("name", "status", "word"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_sweep_that_is_ended_says_what_it_keeps(tmp_path, name, status, word):
    words = ("sweep", *ONE_GPU, "--axis", "micro_batch=1,2", "--out", str(tmp_path))
    code, said = signalled(("run_sweep", name), "simulator.explore.sweeps", *words)
    assert (code, said) == (status, f"{word}: 0 answers are kept in {tmp_path}; the same command resumes from there\n")


def test_an_interrupted_command_says_so_in_one_line():
    """130 is 128 and the number of SIGINT."""
    assert signalled(("simulate_counts", "SIGINT"), "simulator.cli.run", *ONE_GPU) == (130, "interrupted\n")


def test_an_interrupted_sweep_or_search_says_how_to_resume(tmp_path):
    out, axis = str(tmp_path / "kept"), ("--axis", "micro_batch=1,2")
    sweep = signalled(("run_sweep", "SIGINT"), "simulator.explore.sweeps", "sweep", *ONE_GPU, *axis, "--out", out)
    assert sweep == (130, f"interrupted: 0 answers are kept in {out}; the same command resumes from there\n")
    search = signalled(("search_counts", "SIGINT"), "simulator.explore.search.objectives", "search", *ONE_GPU)
    assert search == (130, "interrupted: nothing is kept; with --out FOLDER it would be\n")


@pytest.mark.parametrize("name", POLICIES)
def test_the_help_says_what_every_checkpoint_policy_is(name):
    (flag,) = (section["checkpoint_policy"] for section in FLAGS.values() if "checkpoint_policy" in section)
    assert f"{name} (" in flag.says


def test_paths_with_brackets_are_printed_as_they_are(simulate, tmp_path):
    folder = tmp_path / "[v2][/bold]"
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 1000, "n_positions": 128}'
    )
    code, out, err = simulate("--topology", "dgx-a100-80g", "--model", config, "--gpus", 1, "--micro-batch", 1)
    assert code == 0, err
    assert str(config) in out.replace("\n", "")


def test_a_preset_says_what_its_run_took_and_how_far_the_answer_is_from_it(simulate):
    name = "llama3-8b-mi300x-8-8-fp8-current"
    measured = read_preset(name).measured
    code, out, err = simulate("--preset", name, "--json")
    (note,) = [line for line in err.splitlines() if " took " in line]
    error = json.loads(out)["iteration_time_s"] / measured.iteration_time_s - 1
    assert code == 0 and measured.source in note
    assert note.endswith(f"the answer is {abs(error):.1%} {'slower' if error > 0 else 'faster'}")
    for change in (("--micro-batch", 2, "--global-batch", 16), ("--slow-rank", "0=1.5"), ("--gpus", "4,8")):
        (note,) = [line for line in simulate("--preset", name, *change, "--json")[2].splitlines() if " took " in line]
        assert measured.source in note and "the answer is" not in note
