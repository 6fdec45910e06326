"""What kind of flag a flag of Megatron-LM is: a table, since most flags are generated and lists of them go stale."""

from __future__ import annotations

import re

from simulator.interop.record import words

#: flags that change neither time nor memory of an iteration, by their first words
IRRELEVANT = re.compile(
    r"^(adam|rampup|attention-dropout|hidden-dropout|clip|data|eval|exit|init|log|lr|loss|master|merge|min-lr|mmap|no-load|"
    r"no-save|node|num-workers|override|rdzv|reset|rotary|save|load|seed|split|start|tensorboard|timing|tokenizer|"
    r"train|use-checkpoint|use-legacy|use-mcore|use-rotary|vocab-file|wandb|weight|warmup|ckpt|dist|distributed-b|"
    r"end-weight|legacy|norm-epsilon|layernorm-epsilon|apply|mock|bert|mask|short|nproc|nnodes|manual-gc|"
    r"no-gradient|no-masked|no-bias|no-rope|async|auto|dataloader|optimizer$|eod|override|moe-aux|moe-z|moe-router-"
    r"(load|dtype|score|pre|num|group|bias|enable|force)|moe-pad|moe-permute|empty-unused|check-for|timers|"
    r"use-pytorch|cross-entropy|fp8-(amax|margin|interval|recipe)|rank|local|hf|max-steps|rope|initial|decoder-seq|"
    r"deepspeed|zero|cpu-optimizer|activation|profile|use-cpu|tee|redirects|role|rerun|te-rng|variable|encoder-seq)"
)

#: flags without a value
SWITCHES = words(
    "swiglu sequence-parallel bf16 fp16 use-distributed-optimizer overlap-grad-reduce "
    "overlap-param-gather untie-embeddings-and-output-weights disable-bias-linear add-qkv-bias "
    "group-query-attention squared-relu recompute-activations checkpoint-activations use-flash-attn "
    "qk-layernorm multi-latent-attention use-torch-fsdp2 use-megatron-fsdp use-custom-fsdp "
    "grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 tp-comm-overlap "
    "overlap-moe-expert-parallel-comm moe-grouped-gemm moe-shared-expert-overlap "
    "distribute-saved-activations overlap-p2p-communication-warmup-flush no-overlap-p2p-communication "
    "use-tp-pp-dp-mapping moe-pad-expert-input-to-capacity moe-enable-deepep optimizer-cpu-offload "
    "fp8-param-gather delay-wgrad-compute apply-layernorm-1p no-position-embedding openai-gelu "
    "onnx-safe enable-cuda-graph external-cuda-graph"
)
