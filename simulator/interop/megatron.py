"""Megatron-LM launch scripts and flags: the model and the plan that they describe.

References
----------
NVIDIA/Megatron-LM, ``megatron/training/arguments.py``, ``megatron/core/model_parallel_config.py`` and
``transformer_config.py`` (names and defaults).
"""

from __future__ import annotations

import ast
import operator
import re
from pathlib import Path
from typing import Any

from simulator.config import load_yaml, read_text
from simulator.interop.megatron_flags import IRRELEVANT, SWITCHES
from simulator.interop.record import Imported, Reader
from simulator.interop.shell import script_words
from simulator.models.catalog import BERT_STYLE, LLAMA_STYLE, MEGATRON_STYLE, T5_STYLE
from simulator.models.spec import Activation, ModelSpec, Positions

_PRECISIONS = ("bf16", "fp16")
_CONTEXT = ("p2p", "all_gather", "a2a")
_FSDP = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}


def import_megatron(path: str | Path) -> Imported:
    """Read a launch script, a file of flags, or the YAML that ``--yaml-cfg`` takes.

    Parameters
    ----------
    path : str or Path
        The file. It is read, never run; a command substitution is an error only in a value that matters.

    Raises
    ------
    ConfigError
        If sizes are missing or a value cannot be understood.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        data, locator = load_yaml(path)
        reader = Reader(data, str(path))
        reader = Reader(_hyphened(reader.data), str(path), locator=locator)
        return _imported(reader, "gpt")
    return parse_megatron(read_text(path), str(path))


def parse_megatron(text: str, file: str = "command line") -> Imported:
    """Read flags from text; see :func:`import_megatron`."""
    tokens = [word for word, _ in script_words(text, file)]
    entry = next((w for w in tokens if re.search(r"pretrain_\w+\.py", w)), "pretrain_gpt.py")
    family = next((f for f in ("bert", "t5") if f in entry.rsplit("/", 1)[-1]), "gpt")
    return _imported(Reader(_flags(tokens), file), family)


def _hyphened(data: dict[str, Any]) -> dict[str, Any]:
    """Flatten the sections of a YAML file and write its keys as flags."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _hyphened(value)
        else:
            flat[str(key).replace("_", "-")] = value
    return flat


def _flags(tokens: list[str]) -> dict[str, Any]:
    """Return flag -> value; a flag followed by another one is a switch."""
    flags: dict[str, Any] = {}
    for index, word in enumerate(tokens):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        following = tokens[index + 1] if index + 1 < len(tokens) else "--"
        if equals:
            flags[name] = value
        elif name in SWITCHES or following.startswith("--") or following in ("&&", "|", "2>&1", ";", "&"):
            flags[name] = True
        else:
            flags[name] = _arithmetic(following)
    return flags


def _arithmetic(text: str) -> str:
    """Evaluate ``$((2*4))`` of plain numbers; anything else stays as it is."""
    match = re.fullmatch(r"\$\(\(([\d\s*+/()-]+)\)\)", text)
    if match is None:
        return text
    ways = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.Div: operator.floordiv}

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in ways:
            return int(ways[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError(text)

    try:
        return str(value(ast.parse(match.group(1).strip().replace("//", "/"), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return text


def _imported(reader: Reader, family: str) -> Imported:
    settings = _settings(reader)
    spec = _spec(reader, family, settings["tp"])
    layers = spec.layers
    virtual = reader.integer("num-layers-per-virtual-pipeline-stage", default=0)
    if virtual:
        if layers % (settings["pp"] * virtual):
            reader.fault(
                "num-layers-per-virtual-pipeline-stage",
                f"{layers} layers do not divide into {settings['pp']} stages of chunks of {virtual}",
            )
        settings["virtual_pp"] = layers // settings["pp"] // virtual
    if settings["virtual_pp"] > 1:
        settings["schedule"] = "1f1b-interleaved"
    if reader.boolean("overlap-moe-expert-parallel-comm") and settings["pp"] > 1:
        if settings["virtual_pp"] == 1:
            reader.fault("overlap-moe-expert-parallel-comm", "needs virtual stages beside pipeline parallelism, as in Megatron-Core",
                         hint="--num-layers-per-virtual-pipeline-stage")  # fmt: skip
        settings["schedule"] = "1f1b-combined"
    reader.irrelevant([key for key in reader.data if IRRELEVANT.match(key)])
    reader.finish()
    return Imported(kind="megatron", file=reader.file, spec=spec, settings=settings, report=reader.log.report())


def _activation(r: Reader) -> Activation:
    if r.boolean("squared-relu"):
        return "relu2"
    return "gelu"


def _spec(r: Reader, family: str, tp: int) -> ModelSpec:
    hidden, heads = r.positive("hidden-size"), r.positive("num-attention-heads")
    gated = r.boolean("swiglu")
    bias = not r.boolean("disable-bias-linear")
    ffn = r.integer("ffn-hidden-size", default=0)
    if not ffn:
        ffn = int(8 * hidden / 3 / 64) * 64 if gated else 4 * hidden
        r.assume("ffn-hidden-size", ffn, "Megatron's default")
    length = r.positive("seq-length", "encoder-seq-length", default=2048)
    fields: dict[str, Any] = {"gpt": MEGATRON_STYLE, "bert": BERT_STYLE, "t5": T5_STYLE}[family].copy()
    if family == "gpt":
        fields |= _gpt_choices(r, gated=gated, bias=bias)
    layers = r.positive("num-layers", "encoder-num-layers")
    fields |= {
        "layers": r.positive("decoder-num-layers", default=layers) if family == "t5" else layers,
        "encoder_layers": layers if family == "t5" else 0,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": r.integer("num-query-groups", default=heads) if r.boolean("group-query-attention") else 0,
        "head_dim": r.integer("kv-channels", default=0),
        "ffn_hidden": ffn,
        "gated_mlp": gated,
        "max_positions": r.positive("max-position-embeddings", default=length),
        "vocab": _vocab(r, tp),
        "tied": not r.boolean("untie-embeddings-and-output-weights"),
        "dropout": _dropout(r),
    }
    return ModelSpec(name=f"megatron-{Path(r.file).stem}", **(fields | _expert_fields(r)))


def _dropout(r: Reader) -> float:
    value = r.raw("hidden-dropout")
    try:
        return 0.1 if value is None else float(value)
    except (TypeError, ValueError):
        r.fault("hidden-dropout", f"{value!r} is not a number")


def _gpt_choices(r: Reader, *, gated: bool, bias: bool) -> dict[str, Any]:
    kinds: dict[str, Positions] = {
        "learned_absolute": "learned",
        "rope": "rotary",
        "none": "none",
        "relative": "relative",
    }
    position = kinds[r.text("position-embedding-type", default="learned_absolute", one_of=kinds)]
    if r.boolean("use-rotary-position-embeddings"):
        position = "rotary"
    norm = r.text("normalization", default="LayerNorm", one_of=("LayerNorm", "RMSNorm"))
    return {
        "architecture": "llama" if gated and norm == "RMSNorm" else "gpt",
        "activation": LLAMA_STYLE["activation"] if gated else _activation(r),
        "positions": position,
        "norm": "rms_norm" if norm == "RMSNorm" else "layer_norm",
        "attention_bias": bias or r.boolean("add-qkv-bias"),
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "qk_norm": r.boolean("qk-layernorm"),
    }


def _vocab(r: Reader, tp: int) -> int:
    size = r.integer("vocab-size", "padded-vocab-size", default=0)
    if not size:
        size = 50257
        r.assume("vocab-size", size, "GPT-2's tokenizer; the real one is read from the tokenizer at run time")
    multiple = r.positive("make-vocab-size-divisible-by", default=128) * tp
    return -(-size // multiple) * multiple


def _expert_fields(r: Reader) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if r.integer("num-experts", default=0):
        fields = {
            "n_experts": r.positive("num-experts"),
            "top_k": r.positive("moe-router-topk", default=2),
            "expert_hidden": r.integer("moe-ffn-hidden-size", default=0),
            "shared_expert_hidden": r.integer("moe-shared-expert-intermediate-size", default=0),
        }
        fields["dense_blocks"] = _dense_blocks(r)
    if r.boolean("multi-latent-attention"):
        fields |= {
            "q_lora_rank": r.integer("q-lora-rank", default=0),
            "kv_lora_rank": r.positive("kv-lora-rank", default=32),
            "head_dim": r.positive("qk-head-dim", default=128),
            "qk_rope_head_dim": r.positive("qk-pos-emb-head-dim", default=64),
            "v_head_dim": r.positive("v-head-dim", default=128),
        }
    return fields


def _dense_blocks(r: Reader) -> tuple[int, ...]:
    """Return which blocks have no experts: a frequency, or a pattern such as ``([0]*3+[1]*58)``, 1 for experts."""
    layers, text = r.positive("num-layers", "encoder-num-layers"), str(r.raw("moe-layer-freq") or "1")
    if text.isdigit() and int(text) > 0:
        return tuple(i for i in range(layers) if i % int(text))
    try:
        pattern = _pattern(ast.parse(text.strip("'\" "), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        pattern = None
    if pattern is None or len(pattern) != layers or not set(pattern) <= {0, 1}:
        r.fault("moe-layer-freq", f"{text!r} is no pattern for {layers} layers", hint="4, or ([0]*3+[1]*29)")
    return tuple(i for i, moe in enumerate(pattern) if not moe)


def _pattern(node: ast.expr) -> list[int]:
    """Evaluate sums and multiples of lists of whole numbers."""
    if isinstance(node, ast.List):
        found = [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, int)]
        if len(found) == len(node.elts):
            return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        pair = (node.left, node.right) if isinstance(node.right, ast.Constant) else (node.right, node.left)
        times = pair[1].value if isinstance(pair[1], ast.Constant) else None
        if isinstance(times, int) and 0 <= times <= 10_000:
            return _pattern(pair[0]) * times
    raise ValueError("not a pattern")


#: counts that are unset unless a flag gives them
_COUNTS = {
    "global_batch": "global-batch-size",
    "first_stage_layers": "decoder-first-pipeline-num-layers",
    "last_stage_layers": "decoder-last-pipeline-num-layers",
}


def _settings(r: Reader) -> dict[str, Any]:
    is_deepspeed = bool({"deepspeed", "deepspeed-config", "zero-stage"} & set(r.data))
    is_local = r.text("transformer-impl", default="transformer_engine") == "local"
    framework = "megatron" if is_local or "use-flash-attn" in r.data else "megatron-core"
    settings: dict[str, Any] = {
        "framework": "megatron-deepspeed" if is_deepspeed else framework,
        "tp": r.positive("tensor-model-parallel-size", default=1),
        "pp": r.positive("pipeline-model-parallel-size", default=1),
        "cp": r.positive("context-parallel-size", default=1),
        "ep": r.positive("expert-model-parallel-size", default=1),
        "virtual_pp": r.positive("num-virtual-stages-per-pipeline-rank", default=1),
        "sequence_parallel": r.boolean("sequence-parallel"),
        "asynchronous_tp": r.boolean("tp-comm-overlap"),
        "micro_batch": r.positive("micro-batch-size", "batch-size", default=1),
        "sequence_length": r.positive("seq-length", "encoder-seq-length", default=2048),
        "recompute": _recompute(r),
        "attention": _attention(r, is_local=is_local),
    }
    for name, flag in _COUNTS.items():
        count = r.integer(flag, default=0)
        if count:
            settings[name] = count
    graphs = r.text("cuda-graph-impl", default="none", one_of=("none", "local", "transformer_engine", "full_iteration"))
    if r.boolean("enable-cuda-graph") or r.boolean("external-cuda-graph") or graphs != "none":
        settings["host"] = "graphs"
    r.irrelevant(["cuda-graph-scope", "cuda-graph-warmup-steps"])
    settings |= _recompute_layers(r, settings["recompute"]) | _precision(r) | _data_parallel(r) | _exchanges(r)
    world = _world(r)
    if world:
        settings["gpus"] = world
    instances = r.positive("num-distributed-optimizer-instances", default=1)
    if instances > 1:
        replicas = world // (settings["tp"] * settings["pp"])
        if not world or replicas % instances:
            r.fault("num-distributed-optimizer-instances", f"{instances} instances of {replicas or 'an unknown number of'} ranks",
                    hint="a divisor of the data- and context-parallel ranks that --nnodes and --nproc-per-node leave")  # fmt: skip
        settings["sharding_group"] = replicas // instances
    bucket = r.integer("ddp-bucket-size", default=0)
    if bucket:
        settings["bucket_bytes"] = bucket * settings["gradient_bytes"]
    return settings


def _exchanges(r: Reader) -> dict[str, Any]:
    """Read how keys and values, and tokens of experts, travel; and in which order ranks are numbered."""
    found: dict[str, Any] = {}
    chosen = r.text("cp-comm-type", default="p2p", one_of=(*_CONTEXT, "a2a+p2p"))
    if chosen == "a2a+p2p":
        r.fault(
            "cp-comm-type", "a2a+p2p (hierarchical context parallelism) is not modelled", hint="p2p, all_gather or a2a"
        )
    if r.data.get("context-parallel-size") not in (None, "1", 1):
        found["cp_comm_type"] = chosen
    if r.boolean("no-overlap-p2p-communication"):
        found["overlap_p2p"] = False
    if r.boolean("use-tp-pp-dp-mapping"):
        found["rank_order"] = "tp-cp-ep-pp-dp"
    words_of = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather", "flex": "deepep"}
    if r.integer("num-experts", default=0):
        found["moe_dispatcher"] = words_of[r.text("moe-token-dispatcher-type", default="allgather", one_of=words_of)]
        r.irrelevant(["moe-enable-deepep", "moe-flex-dispatcher-backend"])
        capacity = r.number("moe-expert-capacity-factor", default=0.0)
        if capacity:
            found["moe_capacity_factor"] = capacity
        found["moe_pad_to_capacity"] = r.boolean("moe-pad-expert-input-to-capacity")
        found["moe_shared_expert_overlap"] = r.boolean("moe-shared-expert-overlap")
    return found


def _recompute(r: Reader) -> str:
    granularity = r.text("recompute-granularity", default="none", one_of=("none", "full", "selective"))
    if r.boolean("recompute-activations"):
        return "selective"
    if r.boolean("checkpoint-activations"):
        return "full"
    r.irrelevant(["recompute-modules"])
    return granularity


def _recompute_layers(r: Reader, recompute: str) -> dict[str, Any]:
    """Which blocks full recomputation takes; Megatron's own default is one block a checkpoint."""
    if recompute != "full":
        r.irrelevant(["recompute-method", "recompute-num-layers", "checkpoint-num-layers"])
        return {}
    method = r.text("recompute-method", default="uniform", one_of=("uniform", "block"))
    count = r.integer("recompute-num-layers", "checkpoint-num-layers", default=0)
    return {
        "recompute_method": method,
        "recompute_layers": None if method == "uniform" and count == 1 else count or None,
    }


def _attention(r: Reader, *, is_local: bool) -> str:
    backend = r.text("attention-backend", default="auto", one_of=("auto", "flash", "fused", "unfused", "local"))
    if r.boolean("use-flash-attn"):
        return "flash"
    return "eager" if backend in ("unfused", "local") or (is_local and backend == "auto") else "flash"


def _precision(r: Reader) -> dict[str, Any]:
    precision = next((name for name in _PRECISIONS if r.boolean(name)), "fp32")
    if precision == "fp32":
        r.assume("precision", "fp32", "neither --bf16 nor --fp16 is given")
    wide = precision == "fp32" or r.boolean("accumulate-allreduce-grads-in-fp32", default=precision == "bf16")
    if r.boolean("grad-reduce-in-bf16"):
        wide = False
    fp8 = r.raw("fp8-format", "fp8-hybrid", "fp8-e4m3") is not None
    return {"precision": "fp8" if fp8 else precision, "gradient_bytes": 4 if wide else 2}


def _data_parallel(r: Reader) -> dict[str, Any]:
    sharding = "zero1" if r.boolean("use-distributed-optimizer") else "none"
    if r.boolean("use-torch-fsdp2"):
        sharding = "zero3"
    if r.boolean("use-megatron-fsdp", "use-custom-fsdp"):
        strategy = r.text("data-parallel-sharding-strategy", default="no_shard", one_of=_FSDP)
        sharding = _FSDP[strategy]
    stage = r.integer("zero-stage", default=0)
    if stage:
        sharding = f"zero{stage}"
    offload = {"offload_optimizer": "cpu"} if r.boolean("optimizer-cpu-offload") else {}
    if r.number("optimizer-offload-fraction", default=1.0) not in (1.0, 0.0) and offload:
        r.fault("optimizer-offload-fraction", "a partial offload is not modelled", hint="1.0")
    return {
        **offload,
        "sharding": sharding,
        "overlap": r.boolean("overlap-grad-reduce"),
        "overlap_parameter_gather": r.boolean("overlap-param-gather"),
    }


def _world(r: Reader) -> int:
    nodes, per_node = r.raw("nnodes"), r.raw("nproc-per-node")
    if not r.data.get("world-size") and (nodes is None and per_node is None):
        return 0
    world = r.integer("world-size", default=0)
    if world:
        return world
    try:
        return int(str(nodes or 1)) * int(str(per_node or 1))
    except ValueError:
        r.assume("gpus", "that of the topology", f"--nnodes {nodes} --nproc-per-node {per_node} is set at run time")
        return 0
