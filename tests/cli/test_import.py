"""``simulate import`` and other tools' files as inputs of the main command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator.interop import open_topology
from simulator.interop.trainers.plan_files import load_plan
from simulator.plan import ParallelPlan

SCRIPT = """\
NNODES=2
torchrun --nproc_per_node 4 --nnodes $NNODES pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 \\
  --seq-length 128 --max-position-embeddings 128 --tensor-model-parallel-size 2 --micro-batch-size 2 \\
  --global-batch-size 16 --bf16 --lr 1e-4 --frobnicate 3
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_com": True},
}  # fmt: skip
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 1000,
    "colour": 1,
}
LOG = """\
#  Rank  0 Group  0 Pid  100 on  n0 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid  101 on  n0 device  1 [0x0f] NVIDIA A100-SXM4-40GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    13.10    0.08    0.08      0    12.90    0.08    0.08      0
        2048           512     float     sum      -1    13.20    0.16    0.16      0    13.00    0.16    0.16      0
"""
XML = """\
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16" colour="red">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:01:00.0" count="4" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:03:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0" gdr="1"/></nic></pci>
  </cpu>
</system>
"""
CONF = "SwitchName=leaf0 Nodes=gpu[1-2]\nSwitchName=leaf1 Nodes=gpu[3-4]\nSwitchName=spine Switches=leaf[0-1]\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {
        "run.sh": SCRIPT, "ds.json": json.dumps(DEEPSPEED), "config.json": json.dumps(CONFIG), "log.txt": LOG,
        "topo.xml": XML, "topology.conf": CONF, "cut.json": json.dumps(CONFIG)[:30], "notes.txt": "nothing to see\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_script_becomes_a_plan_file(simulate, files):
    code, out, _ = simulate("import", "run.sh", "--out", "plan.yaml")
    assert code == 0
    assert "frobnicate" in out and "irrelevant   lr" in out
    settings = load_plan("plan.yaml")
    assert ParallelPlan(**settings).tp == 2 and settings["gpus"] == 8
    code, out, _ = simulate("import", "run.sh", "--json")
    document = json.loads(out)
    assert document["plan"] == settings
    assert document["model"]["hidden"] == 256 and document["unknown"] == ["frobnicate"]


def test_a_picture_of_a_machine_becomes_a_cluster_file(simulate, files):
    code, out, _ = simulate("import", "topo.xml", "--nodes", 2, "--out", "cluster.yaml", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["kind"] == "nccl-topo" and document["unknown"] == ["pci.colour"]
    assert open_topology("cluster.yaml").n_gpus == 2 * 2


def test_slurm_needs_a_node_and_says_what_it_takes_for_its_links(simulate, files):
    assert "--node-of" in simulate("import", "topology.conf")[2]
    code, out, _ = simulate("import", "topology.conf", "--node-of", "dgx-a100-80g", "--json")
    links = next(one for one in json.loads(out)["unknown"] if "changes the answer" in one)
    assert code == 0 and "--links leaf-spine=" in links
    code, _, err = simulate("import", "topology.conf", "--node-of", "dgx-a100-80g", "--links", "leaf-pod=200 Gb/s x 4")
    assert code == 3 and "leaf-pod" in err and "leaf-spine, spine-core" in err
    code, _, _ = simulate(
        "import", "topology.conf", "--node-of", "dgx-a100-80g", "--links", "leaf-spine=200 Gb/s x 4", "--out", "c.yaml"
    )
    assert code == 0 and open_topology("c.yaml").n_nodes == 4


def test_a_log_becomes_rows(simulate, files):
    assert "--collective" in simulate("import", "log.txt")[2]
    arguments = ("import", "log.txt", "--collective", "all_reduce", "-t", "polaris", "--out", "rows.csv")
    code, out, _ = simulate(*arguments)
    assert code == 0 and "collective=all_reduce" in out
    header, first, *_ = (files / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert header.split(",")[:6] == ["row_id", "source", "topology", "transport", "algorithm", "collective"]
    assert ",polaris,,,all_reduce,2,1,2,1024,0,13.1," in first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which file?"),
        (["absent.json"], "cannot be read"),
        (["."], "folder without"),
        (["notes.txt"], "--as"),
        (["cut.json"], "cut.json:1:"),
        (["run.sh", "--as", "megatrom"], "Did you mean 'megatron'?"),
        (["run.sh", "--device", "a100-sxm4-80g"], "does not take --device"),
        (["config.json", "--out", "plan.yaml"], "nothing to write"),
        (["run.sh", "--out", "nowhere/plan.yaml"], "cannot be written"),
    ],
)
def test_mistakes_are_explained(simulate, files, arguments, message):
    (files / "config.json").rename(files / "model.json")
    code, _, err = simulate("import", *[{"config.json": "model.json"}.get(a, a) for a in arguments])
    assert code == 3
    assert message in err and "Traceback" not in err


def plan_of(out):
    return json.loads(out)["provenance"]["scenario"]["plan"]


def test_a_script_fills_plan_and_model_and_flags_win(simulate, files):
    code, out, err = simulate("-t", "polaris", "--megatron", "run.sh", "--json")
    assert code == 0
    assert "warning: run.sh: unknown, left out: frobnicate" in err
    assert (plan_of(out)["gpus"], plan_of(out)["tp"], plan_of(out)["dp"]) == (8, 2, 4)
    code, out, _ = simulate("-t", "polaris", "--megatron", "run.sh", "--tp", 1, "--gpus", 4, "--json")
    assert (plan_of(out)["gpus"], plan_of(out)["tp"], plan_of(out)["global_batch"]) == (4, 1, 16)


def test_embedding_and_loss_of_a_script_follow_the_stages_of_the_command_line(simulate, files):
    """Megatron-Core, ``get_num_layers_to_build``: 14 layers and two more are 8 a stage of two, 4 of four; 16 and two do not divide."""
    counted = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --pipeline-model-parallel-size 2"
    launch = (files / "run.sh").read_text(encoding="utf-8").replace("--hidden-size", f"{counted} --hidden-size")
    for layers, stages in ((14, [3, 4, 4, 3]), (16, None)):
        text = re.sub(r"--num-layers \d+", f"--num-layers {layers}", launch)
        (files / "counted.sh").write_text(text, encoding="utf-8")
        code, out, _ = simulate("-t", "polaris", "--megatron", "counted.sh", "--tp", 1, "--pp", 4, "--json")
        if stages:
            assert code == 0 and json.loads(out)["stages"] == [[one] for one in stages]
        else:
            assert code == 4 and "16 layers and 2 more" in json.loads(out)["error"]["message"]


def test_deepspeed_gives_the_batch_from_the_ranks(simulate, files):
    code, out, err = simulate(
        "-t", "polaris", "--model", "config.json", "--deepspeed", "ds.json", "--gpus", 4, "--json"
    )
    assert code == 0
    assert plan_of(out)["global_batch"] == 2 * 4 * 4 and plan_of(out)["sharding"] == "zero2"
    assert "overlap_com (did you mean 'overlap_comm'?)" in err and "colour" in err
    code, out, _ = simulate("-t", "polaris", "--megatron", "run.sh", "--deepspeed", "ds.json", "--json")
    plan = plan_of(out)
    assert (plan["framework"], plan["tp"], plan["global_batch"]) == ("megatron-deepspeed", 2, 2 * 4 * 4)
    code, out, _ = simulate("-t", "polaris", "--model", "config.json", "--plan", "ds.json", "--gpus", "1,2", "--json")
    assert [r["provenance"]["scenario"]["plan"]["global_batch"] for r in json.loads(out)["scaling"]] == [8, 16]


def test_pictures_of_machines_are_topologies(simulate, files):
    code, out, err = simulate("-t", "topo.xml", "--model", "config.json", "--micro-batch", 1, "--json")
    assert code == 0 and json.loads(out)["iteration_time_s"] > 0
    assert "topo.xml: unknown, left out: pci.colour" in err
    slow = simulate("-t", "topo.xml", "--set", "node.nvlink.bandwidth_per_link=1 GB/s", "--model", "config.json",
                    "--micro-batch", 1, "--json")[1]  # fmt: skip
    assert json.loads(slow)["iteration_time_s"] > json.loads(out)["iteration_time_s"]


def test_inputs_without_effect_are_named(simulate, files):
    code, out, err = simulate(
        "-t", "polaris", "--model", "config.json", "--gpus", 4, "--micro-batch", 1, "--sequence-parallel",
        "--schedule", "gpipe", "--transport", "tcp", "--json",
    )  # fmt: skip
    assert code == 0 and json.loads(out)
    for words in (
        "--sequence-parallel has no effect: tp=1",
        "--schedule gpipe has no effect: pp=1",
        "--transport tcp has no",
    ):
        assert words in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "cut.json"], "cut.json:1:"),
        (["--model", "absent.json"], "no file 'absent.json'"),
        (["--model", "ds.json"], "describes no model"),
        (["--model", "hf:nobody/nothing"], "hf:nobody/nothing"),
        (["--model", "gpt2", "--plan", "config.json"], "give it as --model config.json"),
        (["--model", "gpt2", "--deepspeed", "absent.json"], "cannot be read"),
        (["--model", "gpt2", "--deepspeed", "."], "cannot be read"),
        (["--megatron", "notes.txt"], "no command has --num-layers and --hidden-size"),
        (["--model", "gpt2", "--batch", "4x4"], "--module"),
    ],
)
def test_mistakes_in_the_main_command_are_explained(simulate, files, arguments, message):
    code, _, err = simulate("-t", "polaris", "--gpus", "4", *arguments)
    assert code == 3
    assert message in err and "Traceback" not in err


def test_what_was_written_is_what_is_used(simulate, files):
    """The number of nodes and the plan are in the written file, not in the one that was read."""
    code, out, _ = simulate("import", "run.sh", "--out", "plan.yaml")
    assert code == 0 and out.splitlines()[-1].split("as")[-1].split() == ["--plan", "plan.yaml", "--model", "run.sh"]
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 2\n'
    (files / "titan.toml").write_text(text, encoding="utf-8")
    code, out, _ = simulate("import", "titan.toml")
    assert code == 0 and "--plan titan.toml --model titan.toml" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", 0), "--gpus 0: from 1 to 10,000,000"),
        (("--gpus", 99_999_999_999), "--gpus 99999999999: from 1 to 10,000,000"),
        (("--transport", "tcp"), "is no log: --transport says where one was measured"),
        (("--topology", "polaris"), "is no log: --topology says where one was measured"),
        (("--out", "plan.csv"), "is not written as .csv"),
    ],
)
def test_what_an_import_of_a_plan_has_no_use_for_is_refused(simulate, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}')
    code, _, err = simulate("import", "ds.json", *words)
    assert code == 3 and message in err and not Path("plan.csv").exists()


def test_a_file_that_lacks_something_names_the_command_that_adds_it(simulate, tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(
        "====== ROCm System Management Interface ======\n====== Link Type between two GPUs ======\n"
        "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n====== End of ROCm SMI Log ======\n"
    )
    code, _, err = simulate("--topology", path, "--model", "gpt2", "--micro-batch", 1)
    assert code == 3
    assert f"simulate import {path} --out cluster.yaml, with --device mi300x" in err.replace("\n", "")
    cluster = tmp_path / "cluster.yaml"
    code, out, _ = simulate("import", path, "--device", "mi300x")
    assert code == 0 and "--out cluster.yaml, then --topology cluster.yaml" in " ".join(out.split())
    assert simulate("import", path, "--device", "mi300x", "--out", cluster)[0] == 0
    assert simulate("--topology", cluster, "--model", "gpt2", "--micro-batch", 1)[0] == 0
