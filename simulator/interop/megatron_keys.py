"""Megatron-LM's flags, said once.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/arguments.py``, ``megatron/core/model_parallel_config.py`` and
``transformer_config.py``; deepspeedai/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed,
``megatron/arguments.py`` (names and defaults).
"""

from __future__ import annotations

from simulator.interop.key_table import Table, key
from simulator.models.spec import MOST_LAYERS
from simulator.plan.framework import MEGATRON_FSDP

#: names of a hybrid's pattern of layers
PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")
_POSITIONS = {
    "learned_absolute": "learned", "rope": "rotary", "none": "none", "relative": "relative", "alibi": "alibi",
    "absolute": "learned", "rotary": "rotary", "yarn": "rotary", "mrope": "rotary",
}  # fmt: skip
_NORMS = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm", "layernorm": "layer_norm", "rmsnorm": "rms_norm"}
#: vocabulary of tokenizers, by a pattern of their type or path
VOCABULARIES = {
    r"Llama-?3|LLama3": 128256, r"Llama-?2": 32000, r"GPT2BPE": 50257, r"BertWordPieceLowerCase": 30522,
    r"BertWordPieceCase": 28996, r"Mi[sx]tral": 32000, r"DeepSeek-?V3": 129280,
    r"DeepSeek-?V2(?!Tokenizer)": 102400, r"Qwen1\.5|Qwen2\.?5?|Qwen3": 151936,
    r"BloomTokenizerFromHF": 250880, r"ChatGLMTokenizerFromHF": 130528, r"IcetkGLM130B": 150528,
}  # fmt: skip
#: how tokens travel to experts, in Megatron's words -> ours
DISPATCHERS = {"alltoall": "alltoall", "allgather": "allgather", "flex": "deepep", "alltoall_seq": "alltoall"}

#: ``--exp-avg-dtype`` -> bytes
STATE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
KEYS = Table(
    keys=(
        # the model
        key("num-layers encoder-num-layers", "count", model="layers", most=MOST_LAYERS),
        key("decoder-num-layers", "count", most=MOST_LAYERS, note="of T5; `num-layers` unless given"),
        key("hidden-size", "count", model="hidden"),
        key("num-attention-heads", "count", model="heads"),
        key("group-query-attention", "switch", note="with `num-query-groups`"),
        key("num-query-groups num-key-value-heads", note="`kv_heads` of the model"),
        key("kv-channels", model="head_dim"),
        key("ffn-hidden-size", model="ffn_hidden", note="4 hidden sizes, or 8/3 in multiples of 64 with `swiglu`"),
        key("swiglu", "switch", model="gated_mlp"),
        key("squared-relu", "switch", note="activation"),
        key("max-position-embeddings", "count", model="max_positions", note="`seq-length` unless given"),
        key("position-embedding-type", model="positions", words=_POSITIONS, default="learned_absolute"),
        key("use-rotary-position-embeddings", "switch", note="rotary positions"),
        key("embed-layernorm", "switch", model="embedding_norm"),
        key("quick-geglu", "switch", note="a gated MLP with gelu"),
        key("glu-activation", "text", note="a gated MLP: swiglu, geglu ..."),
        key("mlp-type", "text", default="standard", note="residual: `residual_experts` of the model (PR-MoE)"),
        key("mtp-num-layers", model="mtp_layers"),
        key(" ".join(PATTERNS), "text", note="`pattern` of the model; `|` cuts it into stages (`pipeline_layout`)"),
        key("hybrid-attention-ratio", "number", note="`pattern` of the model, of old scripts"),
        key("hybrid-mlp-ratio", "number", note="the same"),
        key("is-hybrid-model", "switch", note="Mamba layers but for these ratios"),
        key("mamba-num-heads", note="`ssm_heads` of the model: 2 hidden sizes over `mamba-head-dim`"),
        key("mamba-head-dim", "count", default=64, note="`ssm_head_dim` of the model"),
        key("mamba-state-dim", "count", default=128, note="`ssm_state` of the model"),
        key("mamba-num-groups", "count", default=8, note="`ssm_groups` of the model"),
        key(
            "experimental-attention-variant linear-attention-type",
            words={"gated_delta_net": "G", "dsa": "*"},
            note="gated delta nets instead of attention, or sparse attention with an index",
        ),
        key("dsa-indexer-n-heads", "count", default=64, note="`index_heads` of the model"),
        key("dsa-indexer-head-dim", "count", default=128, note="`index_head_dim` of the model"),
        key("dsa-indexer-topk", "count", default=2048, note="`index_top_k` of the model"),
        key("linear-attention-freq", "any", default="4", note="every so manieth layer is attention; or a list, 1 for delta nets"),
        key("linear-num-key-heads", "count", default=16, note="`delta_key_heads` of the model"),
        key("linear-num-value-heads", "count", default=32, note="`delta_value_heads` of the model"),
        key("linear-key-head-dim", "count", default=128, note="`delta_key_dim` of the model"),
        key("linear-value-head-dim", "count", default=128, note="`delta_value_dim` of the model"),
        key("attention-output-gate", "switch", note="`attention_gate` of the model"),
        key("moe-latent-size", note="`expert_latent` of the model"),
        key("no-position-embedding", "switch", note="positions: none, unless others are named"),
        key("normalization", model="norm", words=_NORMS, default="LayerNorm"),
        key("disable-bias-linear", "switch"),
        key("add-qkv-bias", "switch"),
        key("qk-layernorm", "switch", model="qk_norm"),
        key("window-size", "any", note="`sliding_window` of the model: the keys before a query, and its own"),
        key("window-attn-skip-freq", "any", note="`full_attention_blocks` of the model: every so manieth, or a list with 0 for these"),
        key("vocab-size", note="padded to a multiple of `make-vocab-size-divisible-by` x tp"),
        key("padded-vocab-size", note="as it is"),
        key("pad-vocab-size-to", note="as it is"),
        key("make-vocab-size-divisible-by", "count", default=128),
        key("tokenizer-type", "any", note="tells the vocabulary where it is of a known tokenizer"),
        key("tokenizer-model tokenizer-name-or-path", "any", note="the same"),
        key("patch-tokenizer-type", "any", note="the same, of Pai-Megatron, which pads nothing and may ask the files of `load`"),
        key("extra-vocab-size", note="rows beside those of Qwen's tokenizer, of Pai-Megatron"),
        key("untie-embeddings-and-output-weights", "switch"),
        key("hidden-dropout", "number", model="dropout", default=0.1),
        key("num-experts", "any", note="`n_experts` of the model; 1 is a dense model; several: `experts_of_blocks` (PR-MoE)"),
        key("moe-router-topk topk", note="`top_k` of the model: 2, with DeepSpeed's experts 1"),
        key("moe-ffn-hidden-size", note="`expert_hidden` of the model"),
        key("moe-shared-expert-intermediate-size", note="`shared_expert_hidden` of the model"),
        key("expert-interval", note="of Megatron-DeepSpeed: every second layer unless given"),
        key("moe-layer-freq", "any", default="1", note="4, or ([0]*3+[1]*29)"),
        key("multi-latent-attention", "switch"),
        key("q-lora-rank", note="of latent attention"),
        key("kv-lora-rank", "count", default=32, note="of latent attention"),
        key("qk-head-dim", "count", default=128, note="of latent attention"),
        key("qk-pos-emb-head-dim", "count", default=64, note="of latent attention"),
        key("v-head-dim", "count", default=128, note="of latent attention"),
        # the plan
        key("tensor-model-parallel-size model-parallel-size", "count", plan="tp", default=1),
        key("pipeline-model-parallel-size", "count", plan="pp", default=1),
        key("context-parallel-size ds-sequence-parallel-size", "count", plan="cp", default=1),
        key("expert-model-parallel-size moe-expert-parallel-size", "count", plan="ep", default=1),
        key("expert-tensor-parallel-size", plan="etp"),
        key("num-virtual-stages-per-pipeline-rank", "count", plan="virtual_pp", default=1),
        key("num-layers-per-virtual-pipeline-stage", note="`virtual_pp` = layers / pp / this"),
        key("decoder-first-pipeline-num-layers", plan="first_stage_layers"),
        key("account-for-embedding-in-pipeline-split", "switch", note="`first_stage_layers`: one less"),
        key("account-for-loss-in-pipeline-split", "switch", note="`last_stage_layers`: one less"),
        key("decoder-last-pipeline-num-layers", plan="last_stage_layers"),
        key("pipeline-model-parallel-layout", "text", plan="pipeline_layout"),
        key("sequence-parallel", "switch", plan="sequence_parallel"),
        key("tp-comm-overlap", "switch", plan="asynchronous_tp"),
        key("micro-batch-size batch-size", "count", plan="micro_batch", default=1),
        key("global-batch-size", plan="global_batch"),
        key("seq-length encoder-seq-length", "count", plan="sequence_length", default=2048),
        key(
            "cp-comm-type",
            plan="cp_comm_type",
            words={"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a", "a2a+p2p": "p2p", "allgather": "all_gather"},
            default="p2p",
            needs="cp",
        ),
        key(
            "use-tp-pp-dp-mapping",
            "switch",
            plan="rank_order",
            words={True: "tp-cp-ep-pp-dp", False: "tp-cp-ep-dp-pp"},
            default=False,
        ),
        key("no-overlap-p2p-communication", "switch", note="`overlap_p2p`: false"),
        key("overlap-moe-expert-parallel-comm", "switch", note="`schedule`: 1f1b-combined"),
        key("moe-token-dispatcher-type", words=DISPATCHERS, default="allgather", note="`moe_dispatcher`"),
        key("moe-flex-dispatcher-backend", words=dict.fromkeys(("deepep", "hybridep")), note="`moe_dispatcher`"),
        key("moe-expert-capacity-factor", "number", note="`moe_capacity_factor`"),
        key("moe-train-capacity-factor", "number", default=1.0, note="`moe_capacity_factor`, of Megatron-DeepSpeed"),
        key("disable-moe-token-dropping", "switch", note="the same: no limit"),
        key("moe-pad-expert-input-to-capacity", "switch", note="`moe_pad_to_capacity`"),
        key("moe-shared-expert-overlap", "switch", note="`moe_shared_expert_overlap`"),
        key("bf16", "switch", note="precision"),
        key("fp16", "switch", note="precision"),
        key("fp8-format fp8-hybrid fp8-e4m3", "any", note="precision fp8"),
        key("fp8-recipe", "text", default="delayed", note="any but the delayed one is named: `--precision` says it"),
        key("accumulate-allreduce-grads-in-fp32", "switch", note="`gradient_bytes`: 4, which bf16 has anyway"),
        key("grad-reduce-in-bf16", "switch", note="`gradient_bytes`: 2"),
        key("use-distributed-optimizer", "switch", note="sharding zero1"),
        key("use-torch-fsdp2", "switch", note="sharding zero3"),
        key("use-megatron-fsdp use-custom-fsdp", "switch", note="with `data-parallel-sharding-strategy`"),
        key("data-parallel-sharding-strategy", words=MEGATRON_FSDP, default="no_shard"),
        key("enable-zbh1-pipeline", "switch", note="`schedule` zb-1p"),
        key("zero-stage", note="sharding, of Megatron-DeepSpeed"),
        key("num-distributed-optimizer-instances", "count", default=1, note="`sharding_group` = ranks / this"),
        key(
            "optimizer-cpu-offload cpu-optimizer",
            "switch",
            plan="offload_optimizer",
            words={True: "cpu", False: "none"},
            default=False,
        ),
        key("optimizer-offload-fraction", "number", default=1.0, note="all or nothing"),
        key(
            "optimizer",
            plan="optimizer",
            words={"adam": "adam", "muon": "muon", "dist_muon": "muon"},
            default="adam",
            unmodelled="sgd lion soap adaptive_muon",
        ),
        key("use-bnb-optimizer", "switch", note="`moment_bytes`: 1"),
        key("use-precision-aware-optimizer", "switch", note="`moment_bytes` and `master_bytes`"),
        key("exp-avg-dtype", words=dict.fromkeys(STATE_BYTES), default="fp32", note="`moment_bytes`"),
        key("exp-avg-sq-dtype", words=dict.fromkeys(STATE_BYTES), default="fp32", note="the same"),
        key("cpu-offloading-num-layers", plan="offload_layers"),
        key("overlap-grad-reduce", "switch", plan="overlap"),
        key("overlap-param-gather", "switch", plan="overlap_parameter_gather"),
        key("ddp-bucket-size", note="`bucket_bytes` in elements"),
        key("recompute-granularity", words={"none": "none", "full": "full", "selective": "selective"}),
        key("recompute-activations", "switch", note="selective recomputation"),
        key("checkpoint-activations", "switch", note="full recomputation"),
        key("activations-checkpoint-method", words={"uniform": "uniform", "block": "block"}, note="full, of old scripts"),
        key("recompute-modules", "any", note="`recompute_modules`"),
        key("moe-layer-recompute", "switch", note="the same: moe"),
        key("recompute-method", words={"uniform": "uniform", "block": "block"}),
        key("recompute-num-layers checkpoint-num-layers", note="of full recomputation"),
        key("transformer-impl", words={"local": "local", "transformer_engine": "transformer_engine"}),
        key("attention-backend", words=dict.fromkeys(("auto", "flash", "fused", "unfused", "local"))),
        key("use-flash-attn use-flash-attn-v1 use-flash-attn-v2 use-flash-attn-triton", "switch"),
        key("cuda-graph-impl", words=dict.fromkeys(("none", "local", "transformer_engine", "full_iteration"))),
        key("cuda-graph-scope cuda-graph-modules", "any", note="`cuda_graphs`"),
        key("enable-cuda-graph external-cuda-graph", "switch", note="`host`: graphs"),
        key("nnodes num-nodes", "any", note="of the launcher: GPUs"),
        key("nproc-per-node num-gpus", "any", note="of the launcher: GPUs"),
        key("world-size", "any", note="GPUs"),
        key("deepspeed", "any", note="framework megatron-deepspeed"),
        key("deepspeed-config", "any"),
    ),
    irrelevant={
        "files and data": "mamba-inference* linear-conv* dsa-indexer-loss* "
        "*data* *path* save* load* *dir *-file no-load* no-save* split mmap* ckpt* dist-ckpt* legacy* "
        "num-workers seed reset-* eod-* mock-* *dataset* *checkpoint-* finetune create-attention-mask* merge* "
        "vocab-extra* no-create-attention* tokenizer-* *tokenizer override-* exit-* master* node-rank rdzv* rank "
        "short-seq-prob mask-prob bert-no-binary-head valid* tee redirects role max-restarts "
        "moe-eval-cap* moe-min-cap* kd-* DDP-impl pretrained-ckp* pretrained-checkpoint universal-ckp* universal-checkpoint "
        "deterministic-mode "
        "init-model-with-meta* hostfile include force-multi packing-* special-tokens force-system-message allow-missing-* "
        "use-persistent-ckpt* auto-detect-ckpt* no-mmap-bin* tiktoken* abort-on-unmet* sync-tp-dup* no-query-key-layer* "
        "calculate-per-token* spec trust-remote* export-* standalone extra",
        "learning": "lr* min-lr *adam-* weight-decay* end-weight-decay clip-grad init-method* *loss-scale* hysteresis "
        "train-* eval* rampup* *warmup* start-weight* decoupled-* apply-query* attention-softmax* "
        "moe-aux* moe-z* moe-router-* moe-loss* moe-*bias* norm-epsilon layernorm-epsilon apply-layernorm-1p rotary-* "
        "use-rope-scaling rope-* attention-dropout no-masked* qk-clip* mtp-loss* te-rng* use-cpu-init* no-rope-freq "
        "mscale* mrope-section moe-token-drop-policy "
        "no-weight-decay* min-loss* log-likelihood* perform-init* use-checkpoint-*",
        "logging and checks": "log* tensorboard* wandb* timing* timers* profile* check-for* rerun* exit* use-pytorch-prof* "
        "moe-per-layer-logging no-check-for-nan* "
        "inprocess* distributed-timeout* *-memory-history* one-logger* no-one-logger",
        "kernels that every answer takes as fused": "*-fusion *fusion-impl no-masked-softmax-fusion moe-permute-fusion "
        "moe-grouped-gemm cross-entropy-* gradient-accumulation-fusion* bias-* empty-unused* manual-gc* no-bias* "
        "no-gradient* openai-gelu onnx-safe overlap-p2p-communication* defer-embedding* use-mcore* use-legacy* "
        "use-dist* async-* distributed-backend use-fused* no-async* distributed-b* variable-seq-lengths "
        "ddp-average-in-collective ddp-pad* ddp-num-buckets cuda-graph-warmup* "
        "cuda-graph-num* cuda-graph-use* cuda-graph-share* fp8-amax* fp8-margin fp8-interval "
        "disable-gloo* use-te enable-experimental enable-gpt-oss glu-linear-offset activation-func-clamp* softmax-type "
        "moe-enable-deepep delay-wgrad-compute fp8-param-gather deepspeed-* "
        "create-moe-param-group no-pipeline-parallel scattered-embeddings partition-activations distribute-saved-*",
    },
    missed={
        "a teacher that runs beside": "mos kd",
        "stages that are cut otherwise": "pp-partition-method",
        "frozen weights": "bitfit freeze-*",
        "attention in chunks of a sequence": "ds-sequence-parallel-fpdt*",
        "ranks of the parts of a model": "llm-tp llm-cp llm-pp llm-dp llm-ep llm-expt-tp encoder-tp encoder-dp",
        "activations on the host": "cpu-offloading-act* cpu-offloading-w* cpu-offloading-d*",
        "layers of another kind": "hybrid-* *ssm* linear-attention*",
        "a window of attention": "window-attn*",
        "layers of another precision": "first-last-layers-bf16",
        "images or sound: its language model alone is described": "img-* patch-dim patch-size num-frames vision-* *-vision-* "
        "language-model-type pixel-shuffle use-tiling max-num-tiles use-thumbnail use-tile-tags image-tag-type recompute-vision "
        "audio-* model-provider",
        "the decoder has a length of its own: seq-length is taken, else give --sequence-length": "decoder-seq-length",
        "generation beside training": "rl-* grpo-* langrl-*",
        "no training, or one of another kind": "task epochs prompt-type retriever-* genfile out-seq-length num-samples "
        "inference-dynamic-batching num-tokens-to-generate",
        "FP4": "fp4-*",
        "an optimizer with states in fewer bits": "main-grads-dtype main-params-dtype",
    },
)  # fmt: skip
