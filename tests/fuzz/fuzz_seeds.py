"""Files that mutation starts from: one or more of every format that is read, small, in the shape of real ones."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from simulator.interop import FORMATS

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
TP=${1:-4}
PP=2
declare -A SIZES=([small]=1024 [big]=4096)
GPUS=$((8 * SLURM_NNODES))
case $2 in
  7B) HIDDEN=${SIZES[big]} ;;
  *) HIDDEN=1024 ;;
esac
if [[ $TP -gt 1 && "$PP" != "1" ]]; then EXTRA="--sequence-parallel --fp8-format hybrid"; else EXTRA=""; fi
for i in 1 2 3; do N="$N$i"; done
cat <<EOF > ds_config.json
{"train_batch_size": $((GPUS / TP)), "zero_optimization": {"stage": 1}}
EOF
MODEL_ARGS=(
  --num-layers 24 --hidden-size ${HIDDEN} --num-attention-heads 16 --seq-length 2048
  --max-position-embeddings 2048 --num-experts 8 --moe-layer-freq '([0]*3+[1]*21)' --bf16
)
run() { torchrun --nproc-per-node 8 --nnodes ${NNODES:-4} pretrain_gpt.py "$@"; }
run ${MODEL_ARGS[@]} $EXTRA --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \\
    --micro-batch-size 1 --global-batch-size 128 --num-layers-per-virtual-pipeline-stage 3 2>&1 | tee log.txt
"""
_RECIPE = """trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
model:
  micro_batch_size: 4
  global_batch_size: ${multiply:${trainer.devices}, 16}
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  num_layers: 24
  hidden_size: 1024
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 16
  activation: fast-swiglu
  optim:
    name: distributed_fused_adam
"""
_DEEPSPEED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto", "bf16": {"enabled": True},
    "fp16": {"enabled": False, "loss_scale": 0}, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8,
                          "zero_hpz_partition_size": 8, "stage3_prefetch_bucket_size": "auto"},
    "activation_checkpointing": {"partition_activations": True}, "communication_data_type": "fp32",
}  # fmt: skip
_CONFIGS = (
    {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 128, "vocab_size": 100, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16},
    {"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
     "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "vocab_size": 100,
     "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]]},
    {"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 4, "hybrid_override_pattern": "M-*E", "vocab_size": 100,
     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "n_routed_experts": 4, "num_experts_per_tok": 2,
     "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "mamba_num_heads": 4, "mamba_head_dim": 16},
    {"model_type": "minimax_m3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
     "moe_layer_freq": [0, 1], "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 100},
    {"model_type": "llava", "text_config": {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
     "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "sliding_window_pattern": 2}},
    {"model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128, "feed_forward_proj": "gated-gelu"},
)  # fmt: skip
_TITAN = """[job]
description = "x"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
"""
_ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
  fsdp_offload_params: false
"""
_TRAINER = """base_model: meta-llama/Llama-2-7b-hf
micro_batch_size: 2
gradient_accumulation_steps: 4
sequence_len: 4096
bf16: auto
flash_attention: true
gradient_checkpointing: true
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_offload_params: false
"""
_LOG = """# nccl-tests version 2.17.1 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   2000 on    node-a device  0 [0000:17:00] NVIDIA H100
#  Rank  1 Group  0 Pid   2001 on    node-b device  0 [0000:17:00] NVIDIA H100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    55.11   19.03   19.03       0    54.20   19.35   19.35       0
     2097152        524288     float     sum      -1    80.00   26.21   26.21       0    79.10   26.51   26.51       0
# Avg bus bandwidth    : 22.7
"""
_JSON_LOG = {
    "nccl_version": 22800, "args": ["./build/all_reduce_perf", "-b", "8"],
    "config": {"devices": [{"rank": 0, "hostname": "a", "pid": 1}, {"rank": 1, "hostname": "b", "pid": 2}]},
    "results": [{"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "-1",
                 "out_of_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0}, "in_place": {"time": "nan"}}],
}  # fmt: skip

#: format -> texts; a format without any here fails the test of the harness
TEXTS: dict[str, tuple[str, ...]] = {
    "hf-config": tuple(json.dumps(one) for one in _CONFIGS),
    "megatron": (_SCRIPT, "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --bf16"),
    "nemo": (_RECIPE,),
    "trainer": (_TRAINER,),
    "deepspeed": (json.dumps(_DEEPSPEED),),
    "torchtitan": (_TITAN,),
    "accelerate": (_ACCELERATE,),
    "nccl-tests": (_LOG, json.dumps(_JSON_LOG)),
}

#: format -> options without which it reads nothing
OPTIONS = {
    "slurm": {"node_of": "dgx-a100-80g", "links": {"leaf-spine": "200 Gb/s x 16"}},
    "lstopo": {"nic_bandwidth": "100 Gb/s"},
    "nvidia-smi": {"nic_bandwidth": "100 Gb/s"},
}

_PLAN = (
    "dp: 2\ntp: 4\nsharding: zero1\nprecision: bf16\nmicro_batch: 1\nglobal_batch: 16\nrecompute: full\noverlap: true\n"
)
_ROWS = """row_id,source,topology,transport,algorithm,collective,gpus,nodes,gpus_per_node,size_bytes,in_place,time_us,split
a-1,user,bigred200,rdma,,all_reduce,8,2,4,1048576,0,55.1,user
a-2,user,bigred200,rdma,,all_gather,8,2,4,2097152,1,80.0,user
"""


def _module_of_tests(name: str) -> ModuleType:
    """Return a module of the tests of interop, which is no package."""
    spec = importlib.util.spec_from_file_location(f"seeds_of_{name}", ROOT / "tests" / "interop" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    if str(ROOT / "tests" / "interop") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests" / "interop"))  # they import one another
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machines() -> dict[str, str]:
    """Return the pictures of machines that the tests of their readers draw."""
    fixtures = _module_of_tests("test_topology_importers").FIXTURES
    return {kind: text for kind, (text, _, _) in fixtures.items()}


def seeds() -> list[tuple[str, str, str]]:
    """Return what mutation starts from: how it is read (a format, or a kind of file of ours), its ending, its text."""
    found = [(kind, _ending(text), text) for kind, texts in TEXTS.items() for text in texts]
    found += [(kind, _ending(text), text) for kind, text in machines().items()]
    trainers = _module_of_tests("test_trainers_yaml")
    found += [(kind, ".yaml", text) for kind, text in {**trainers.TEXTS, "automodel": trainers.AUTOMODEL}.items()]
    found += [("training-log", ".log", text) for text, *_ in _module_of_tests("test_training_log").LOGS.values()]
    logs = _module_of_tests("test_bandwidth_log")
    found += [("bandwidth-log", ".txt", text) for text in (logs.OSU, logs.OSU_RATE, logs.NVBANDWIDTH)]
    found.append(
        (
            "safetensors",
            ".json",
            '{"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}',
        )
    )
    shipped = ROOT / "topologies"
    found += [
        ("plan file", ".yaml", _PLAN),
        ("measurements", ".csv", _ROWS),
        ("cluster file", ".yaml", (shipped / "clusters" / "mi300x-8.yaml").read_text()),
        ("cluster file", ".yaml", (shipped / "clusters" / "gb200-nvl72.yaml").read_text()),
        ("device file", ".yaml", (shipped / "devices" / "mi50.yaml").read_text()),
        ("command", "", ""),
        ("settings", "", ""),
    ]
    return found


def _ending(text: str) -> str:
    head = text.lstrip()[:1]
    if text.startswith("#!"):
        return ".sh"
    return {"{": ".json", "<": ".xml", "[": ".toml"}.get(head, ".txt" if "\t" in text or "# size" in text else ".yaml")


def missing() -> set[str]:
    """Return the formats that nothing here is a file of; NVML has none, and GGUF is no text (tests cut its bytes short)."""
    return set(FORMATS) - {kind for kind, _, _ in seeds()} - {"nvml", "gguf"}
