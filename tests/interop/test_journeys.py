"""Whole ways of users: the files of another tool, as they are, to an answer. Sizes are worked out from the files by hand."""

import json

import pytest
from test_fabric_tools import DISCOVERED, SHOWTOPO, trays
from test_trainers_yaml import FOUNDRY, NANOTRON, OLMO, TORCHTUNE
from test_weights import TOTAL, gguf

from simulator.cli.main import main

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
GPUS_PER_NODE=8
case $1 in 1B) LAYERS=16; HIDDEN=2048 ;; esac
ARGS=(--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048
  "--micro-batch-size 2" --global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --vocab-size 50257 --use-distributed-optimizer)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES pretrain_gpt.py ${ARGS[@]} --sequence-parallel
"""
LLAMA = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
         "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048}  # fmt: skip
ZERO2 = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
         "zero_optimization": {"stage": 2, "overlap_comm": True}}  # fmt: skip
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
"""
RECIPE = """trainer:
  devices: 8
  num_nodes: 1
  precision: bf16
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 4
  encoder_seq_length: 2048
  num_layers: 16
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 16
"""
ACCELERATE = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
ASTRA = "topology: [ Switch, Switch ]\nnpus_count: [ 8, 2 ]\nbandwidth: [ 300.0, 25.0 ]\nlatency: [ 700.0, 2000.0 ]\n"
RCCL = """<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">{gpus}
<pci busid="0000:90:00.0" class="0x020700" link_speed="32 GT/s" link_width="16"><nic><net name="m" dev="0" speed="400000"/></nic></pci>
</cpu></system>"""
TREE = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=core Switches=leaf[1-2]\n"


def rccl():
    bus = [f"0000:{n}1:00.0" for n in range(1, 5)]
    gpus = "".join(
        f'<pci busid="{own}" class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32 GT/s" link_width="16">'
        f'<gpu dev="{n}" sm="304" gcn="gfx942" rank="{n}" gdr="1">'
        + "".join(f'<xgmi target="{peer}" count="1" tclass="0x120000"/>' for peer in bus if peer != own)
        + "</gpu></pci>"
        for n, own in enumerate(bus)
    )
    return RCCL.format(gpus=gpus)


LORA = """base_model: meta-llama/Llama-2-7b-hf
adapter: lora
lora_r: 16
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
gradient_checkpointing: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""
HYBRID = """#!/bin/bash
torchrun --nproc_per_node 4 --nnodes 2 pretrain_mamba.py --hybrid-layer-pattern M-M*-ME --hidden-size 1024 --num-attention-heads 8 \\
  --group-query-attention --num-query-groups 2 --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --seq-length 2048 \\
  --normalization RMSNorm --disable-bias-linear --squared-relu --position-embedding-type none --vocab-size 32000 --bf16 \\
  --micro-batch-size 1 --global-batch-size 16 --use-distributed-optimizer --untie-embeddings-and-output-weights
"""


@pytest.fixture
def simulate(monkeypatch, capsys, tmp_path):
    def run(*words, **files):
        paths = {name: tmp_path / name.replace("__", ".") for name in files}
        for name, text in files.items():
            paths[name].write_text(text if isinstance(text, str) else json.dumps(text))
        given = [str(paths.get(word, word)) for word in words]
        monkeypatch.setattr("sys.argv", ["simulate", *given, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None), capsys.readouterr()
        answer = json.loads(capsys.readouterr().out)
        assert answer["iteration_time_s"] > 0
        return answer, answer["provenance"]["scenario"]["plan"]

    return run


def test_a_script_with_its_arguments_on_a_slurm_cluster(simulate, tmp_path, monkeypatch, capsys):
    (tmp_path / "topology.conf").write_text(TREE)
    cluster = tmp_path / "cluster.yaml"
    words = [
        "import",
        tmp_path / "topology.conf",
        "--node-of",
        "dgx-a100-80g",
        "--links",
        "leaf-spine=200 Gb/s x 16",
        "--out",
        cluster,
    ]
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words)])
    with pytest.raises(SystemExit):
        main()
    capsys.readouterr()
    answer, plan = simulate("--topology", str(cluster), "--megatron", "run__sh", "--args", "1B", run__sh=SCRIPT)
    # the vocabulary in multiples of 128 x 2; 16 blocks of 12 h^2 + 13 h; positions; the last norm
    h = 2048
    assert answer["provenance"]["model_parameters"] == 50432 * h + 2048 * h + 16 * (12 * h * h + 13 * h) + 2 * h
    assert (plan["gpus"], plan["tp"], plan["dp"], plan["micro_batch"], plan["sharding"]) == (16, 2, 8, 2, "zero1")


def test_deepspeed_and_a_config_on_a_shipped_cluster(simulate):
    job = ("--topology", "polaris", "--model", "config__json", "--deepspeed", "ds__json", "--gpus", 8)
    _, plan = simulate(*job, config__json=LLAMA, ds__json=ZERO2)
    assert (plan["sharding"], plan["micro_batch"], plan["global_batch"]) == ("zero2", 2, 2 * 4 * 8)


def test_accelerate_on_an_astra_network(simulate, tmp_path, monkeypatch, capsys):
    (tmp_path / "net.yml").write_text(ASTRA)
    cluster = tmp_path / "cluster.yaml"
    words = ["import", tmp_path / "net.yml", "--device", "a100-sxm4-80g", "--out", cluster]
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words)])
    with pytest.raises(SystemExit):
        main()
    capsys.readouterr()
    job = ("--topology", str(cluster), "--model", "config__json", "--plan", "accelerate__yaml", "--gpus", 16)
    _, plan = simulate(*job, config__json=LLAMA, accelerate__yaml=ACCELERATE)
    assert (plan["sharding"], plan["gpus"]) == ("zero3", 16)


def test_torchtitan_on_a_node_that_rccl_saw(simulate):
    answer, plan = simulate("--topology", "topo__xml", "--model", "train__toml", "--plan", "train__toml", "--gpus", 4, topo__xml=rccl(),
                            train__toml=TITAN)  # fmt: skip
    assert answer["provenance"]["device"] == "mi300x" and answer["provenance"]["model_parameters"] == 8_030_261_248
    assert (plan["tp"], plan["sequence_length"]) == (2, 4096)


def test_nemo_on_a_shipped_cluster(simulate):
    _, plan = simulate("--topology", "selene", "--model", "r__yaml", "--plan", "r__yaml", r__yaml=RECIPE)
    assert (plan["tp"], plan["gpus"], plan["global_batch"]) == (4, 8, 32)


@pytest.mark.parametrize(
    ("text", "cluster", "gpus", "parameters", "expected"),
    [
        (
            TORCHTUNE,
            "dgx-h100",
            8,
            8_030_261_248,
            {"sharding": "zero3", "global_batch": 2 * 4 * 8, "recompute": "full"},
        ),
        (NANOTRON, "dgx-h100", 32, 8_030_261_248, {"tp": 4, "pp": 2, "dp": 4, "global_batch": 64}),
        (OLMO, "dgx-h100", 16, 7_298_617_344, {"sharding": "hsdp", "global_batch": 1024, "micro_batch": 2}),
        (FOUNDRY, "dgx-a100-80g", 8, 1_315_407_872, {"sharding": "zero3", "global_batch": 512, "micro_batch": 16}),
    ],
    ids=["torchtune", "nanotron", "olmo-core", "llm-foundry"],
)
def test_a_training_file_on_a_shipped_cluster(simulate, text, cluster, gpus, parameters, expected):
    answer, plan = simulate(
        "--topology", cluster, "--model", "t__yaml", "--plan", "t__yaml", "--gpus", gpus, t__yaml=text
    )
    assert answer["provenance"]["model_parameters"] == parameters
    assert {name: plan[name] for name in expected} == expected


def test_a_script_is_searched_around(simulate, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    words = ["sweep", "--topology", "selene", "--megatron", path, "--args", "1B", "--axis", "micro_batch=1,2", "--json",
             "--out", tmp_path / "sweep"]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    rows = found["rows"] if "rows" in found else found["results"]
    assert [row["micro_batch"] for row in rows] == [1, 2]


def imported_cluster(monkeypatch, capsys, tmp_path, name, text, *options):
    (tmp_path / name).write_text(text)
    cluster = tmp_path / "cluster.yaml"
    monkeypatch.setattr("sys.argv", ["simulate", "import", str(tmp_path / name), *options, "--out", str(cluster)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None), capsys.readouterr()
    capsys.readouterr()
    return str(cluster)


def test_adapters_of_axolotl_on_a_fabric_that_was_discovered(simulate, tmp_path, monkeypatch, capsys):
    cluster = imported_cluster(monkeypatch, capsys, tmp_path, "ib.txt", DISCOVERED, "--node-of", "dgx-a100-80g")
    job = ("--topology", cluster, "--model", "lora__yaml", "--plan", "lora__yaml", "--gpus", 16)
    answer, plan = simulate(*job, lora__yaml=LORA)
    assert (plan["sharding"], plan["lora_rank"], plan["lora_targets"], plan["global_batch"]) == (
        "zero3",
        16,
        "qkv+proj",
        32,
    )
    assert answer["provenance"]["model_parameters"] == 6_738_415_616  # meta-llama/Llama-2-7b-hf


def test_a_hybrid_script_on_nvlink_domains_of_kubernetes(simulate, tmp_path, monkeypatch, capsys):
    cluster = imported_cluster(monkeypatch, capsys, tmp_path, "nodes.json", trays(4, 2), "--nic-bandwidth", "400 Gb/s")
    answer, plan = simulate("--topology", cluster, "--megatron", "run__sh", run__sh=HYBRID)
    assert (plan["gpus"], plan["ep"], plan["sharding"]) == (8, 8, "zero1")
    h, rows, mixed = 1024, 32000, 2048 + 2 * 8 * 128  # channels of Mamba: two hidden sizes, and groups of states
    mamba = (2048 + mixed + 32) * h + 2048 * h + mixed * 5 + 3 * 32 + 2048
    attention, mlp = 2 * h * h + 2 * 256 * h, 2 * h * 4096
    layers = 3 * mamba + attention + 2 * mlp + 8 * mlp + 8 * h + 7 * h
    assert answer["provenance"]["model_parameters"] == layers + 2 * rows * h + h


def test_weights_on_a_node_of_amd(simulate, tmp_path, monkeypatch, capsys):
    cluster = imported_cluster(monkeypatch, capsys, tmp_path, "topo.txt", SHOWTOPO, "--device", "mi300x")
    (tmp_path / "m.gguf").write_bytes(gguf())
    answer, _ = simulate("--topology", cluster, "--model", str(tmp_path / "m.gguf"), "--gpus", 2, "--micro-batch", 1)
    assert answer["provenance"]["model_parameters"] == TOTAL and answer["provenance"]["device"] == "mi300x"
