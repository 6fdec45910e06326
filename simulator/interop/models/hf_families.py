"""What a row of the table of Hugging Face's families cannot say: layers of several kinds, and keys that decide together.

A rule belongs to a row of :mod:`simulator.interop.models.hf_table`, and to all rows that are like it: from what the row has read it makes
further fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.interop.models.hf_table import ACTIVATIONS, RECORD, ROWS, Fields, ignore, read_row
from simulator.interop.typed_values import Reader
from simulator.models.spec import ModelSpec

#: ``model_type`` of every family, and of those that are known and not modelled, with the reason
REFUSED = {name: row.refused["*"] for name, row in ROWS.items() if "*" in row.refused}
FAMILIES = tuple(
    name for name in ROWS if not name.startswith("_") and not name.endswith("-style") and name not in REFUSED
)

#: kinds of layers that most files know -> sublayer
_WHOLE_OR_WINDOW = {"full_attention": "*", "sliding_attention": "w"}


def read_family(r: Reader, name: str) -> Fields:
    """Return the fields of a model of a family, by its row and the rules of all that it is like."""
    found = read_row(r, name)
    for part in ROWS[name].parts:
        if part in _RULES:
            found |= _RULES[part](r, found)
    ignore(r, name)
    return {field: value for field, value in found.items() if not field.startswith("_")}


def layer_list(r: Reader, *keys: str, letters: Mapping[str, str]) -> tuple[str, ...]:
    """Return a pattern from a list of layer kinds in the file's words, empty where there is none."""
    kinds = r.raw(*keys)
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in letters for kind in kinds):
        r.fault(keys[0], f"{kinds!r:.80} is not a list of {', '.join(letters)}", hint=RECORD)
    return tuple(letters[kind] for kind in kinds)


def _indices(r: Reader, key: str, usual: Sequence[int] = ()) -> Sequence[int]:
    """Return a list of layers by their numbers, the usual ones where there is none."""
    found = r.raw(key)
    if found is None:
        return usual
    if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
        r.fault(key, f"{found!r:.60} is not a list of layers by their numbers")
    return found


def _marks(r: Reader, key: str, kinds: Any, layers: int) -> list[int]:
    """Return 0 or 1 for every layer."""
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (0, 1) for kind in kinds):
        r.fault(key, f"{kinds!r:.60} is not a list of 0 and 1 for {layers} layers")
    return kinds


def _same(r: Reader, key: str, whole: str) -> None:
    """End the import where a key says otherwise than another one."""
    if r.data.get(key) not in (None, r.data.get(whole)):
        r.fault(key, f"{r.data[key]} beside {whole}={r.data.get(whole)} is not modelled", hint=RECORD)


def _with_mlp(kinds: Sequence[str], mixed: Callable[[int], bool] = lambda _: False) -> tuple[str, ...]:
    """Return blocks of a mixer each and an MLP, or experts where a layer has some."""
    return tuple(kind + ("E" if mixed(i) else "-") for i, kind in enumerate(kinds))


def by_window(is_whole: Sequence[bool], **own: tuple[int, int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return ``of_blocks`` of fields that have one value in layers that see a window, and another in those that see all.

    Examples
    --------
    >>> by_window([False, True], kv_heads=(8, 4))
    (('kv_heads', (8, 4)),)
    """
    return tuple((name, tuple(pair[one] for one in is_whole)) for name, pair in own.items())


# ---- dense families ----------------------------------------------------------------------------------------------


def _window(r: Reader, found: Fields) -> Fields:
    """Read which layers see a sliding window only: Qwen's after the first ones, and only where asked to."""
    layers, every, none = found["layers"], found.get("_every"), {"sliding_window": 0}
    kinds = layer_list(r, "layer_types", letters=_WHOLE_OR_WINDOW)
    if kinds and len(kinds) != layers:
        r.fault("layer_types", f"{len(kinds)} kinds for {layers} layers")
    if not found["sliding_window"] or not found["_used"] or (kinds and "w" not in kinds):
        return none
    if not kinds and every:
        kinds = tuple("*" if index % every == found.get("_whole", every - 1) else "w" for index in range(layers))
        kinds = ("*",) * min(found["_first"], layers) + kinds[found["_first"] :]
        kinds = (*kinds[:-1], "*") if found.get("_last_whole") else kinds
    kinds = kinds or ("*",) * min(found["_first"], layers) + ("w",) * (layers - found["_first"])
    whole = tuple(i for i, kind in enumerate(kinds) if kind == "*")
    return {"full_attention_blocks": whole} if len(whole) < layers else none


def _dbrx(r: Reader, found: Fields) -> Fields:
    """DBRX, which keeps the sizes of attention and experts in parts of their own."""
    attention, experts = r.section("attn_config"), r.section("ffn_config")
    fields = {
        "kv_heads": attention.positive("kv_n_heads", default=1),
        "n_experts": experts.positive("moe_num_experts", default=4),
        "top_k": experts.positive("moe_top_k", default=1),
        "expert_hidden": experts.positive("ffn_hidden_size", default=3584),
    }
    attention.irrelevant(list(attention.data))
    experts.irrelevant(list(experts.data))
    return fields


def _gpt_bigcode(r: Reader, found: Fields) -> Fields:
    return {"kv_heads": int(r.boolean("multi_query", default=True))}


def _gpt_neo(r: Reader, found: Fields) -> Fields:
    """GPT-Neo: every second layer sees a window."""
    layers, kinds = found["layers"], r.raw("attention_layers")
    runs = r.raw("attention_types") or [[["global", "local"], layers // 2]]
    try:
        kinds = kinds or [kind for cycle, times in runs for kind in list(cycle) * min(int(times), layers)]
        whole = tuple(index for index, kind in enumerate(kinds) if {"global": True, "local": False}[kind])
    except (TypeError, ValueError, KeyError, OverflowError):
        r.fault("attention_types", f"{runs!r:.60} is not a list of cycles of global and local", hint=RECORD)
    return {"full_attention_blocks": whole}


def _opt(r: Reader, found: Fields) -> Fields:
    norm_first, no_final = r.boolean("do_layer_norm_before", default=True), r.boolean("_remove_final_layer_norm")
    width = found["embedding_width"]
    return {
        "embedding_width": 0 if width == found["hidden"] else width,
        "final_norm": norm_first and not no_final,
    }


def _mpt(r: Reader, found: Fields) -> Fields:
    attention, bias = r.section("attn_config"), not r.boolean("no_bias", default=True)
    alibi = attention.boolean("alibi", default=True)
    attention.irrelevant(list(attention.data))
    return dict.fromkeys(("norm_bias", "attention_bias", "attention_output_bias", "mlp_bias"), bias) | {
        "ffn_hidden": found["hidden"] * r.positive("expansion_ratio", default=4),
        "positions": "alibi" if alibi else "learned",
    }


def _falcon(r: Reader, found: Fields) -> Fields:
    new, heads = r.boolean("new_decoder_architecture"), found["heads"]
    parallel, many = r.boolean("parallel_attn", default=True) or new, r.boolean("multi_query", default=True)
    kv_heads = r.integer("num_kv_heads", "n_head_kv", default=heads)
    n_norms = r.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    return {
        "kv_heads": kv_heads if new else 1 if many else heads,
        "positions": "alibi" if r.boolean("alibi") else "rotary",
        "parallel_block": parallel,
        "shared_norm": parallel and n_norms == 1,
    }


def _qwen(r: Reader, found: Fields) -> Fields:
    """Qwen of the first generation, whose ``intermediate_size`` counts both halves of the gated MLP."""
    return {"attention_output_bias": not r.boolean("no_bias", default=True), "ffn_hidden": found["ffn_hidden"] // 2}


def _nemotron_nas(r: Reader, found: Fields) -> Fields:
    """Llama of which a search left out attention, and cut MLPs, block by block (arXiv:2411.19146)."""
    blocks, pattern, kv_heads, widths = r.raw("block_configs"), [], [], []
    try:
        for block in blocks:
            parts = [("*", block["attention"]), ("-", block["ffn"])]
            if any(part.get("replace_with_linear") for _, part in parts):
                r.fault("block_configs", "a linear layer in place of attention or MLP is not modelled", hint=RECORD)
            pattern.append("".join(letter for letter, part in parts if not part["no_op"]))
            kv_heads.append(found["heads"] // int(block["attention"].get("n_heads_in_group") or found["heads"]))
            width = int(2 * float(block["ffn"].get("ffn_mult") or 1.0) * found["hidden"] / 3)
            widths.append(-(-width // 256) * 256)
    except (AttributeError, KeyError, TypeError, ValueError):
        r.fault("block_configs", f"{blocks!r:.60} does not say attention and ffn of every block", hint=RECORD)
    return {
        "ffn_hidden": found["ffn_hidden"] if r.has("intermediate_size") else max(widths, default=1),
        "pattern": tuple(pattern),
        "of_blocks": (("kv_heads", tuple(kv_heads)), ("ffn_hidden", tuple(widths))),
    }


def _modernbert(r: Reader, found: Fields) -> Fields:
    """ModernBERT, whose first norm is that of the embedding."""
    every = r.positive("global_attn_every_n_layers", default=3)
    kinds = layer_list(r, "layer_types", letters=_WHOLE_OR_WINDOW)
    kinds = kinds or tuple("w" if i % every else "*" for i in range(found["layers"]))
    return {"full_attention_blocks": tuple(i for i, kind in enumerate(kinds) if kind == "*")}


def _baichuan(r: Reader, found: Fields) -> Fields:
    if not found["max_positions"]:
        hint = "set max_position_embeddings where it is; the 13B has none, and ALiBi"
        r.fault("max_position_embeddings", "is missing: only the 7B, with rotary positions, is known here", hint=hint)
    return {}


def _yuan(r: Reader, found: Fields) -> Fields:
    r.account.miss("model_type", "Yuan 2 filters the input of attention by convolutions, which are left out")
    return {}


def _chatglm(r: Reader, found: Fields) -> Fields:
    """ChatGLM2 to GLM-4 with code of their own."""
    groups = r.positive("multi_query_group_num", default=found["heads"])
    return {
        "attention_bias": r.boolean("add_qkv_bias") or found["mlp_bias"],
        "kv_heads": groups if r.boolean("multi_query_attention") else found["heads"],
        "norm": "rms_norm" if r.boolean("rmsnorm", default=True) else "layer_norm",
    }


# ---- encoders, images and sound ----------------------------------------------------------------------------------


def _bert(r: Reader, found: Fields) -> Fields:
    kind = r.text("position_embedding_type", default="absolute")
    if kind in ("relative_key", "relative_key_query"):
        why = f"{kind}: scores of relative positions are left out, and positions are added as in BERT"
        r.miss("position_embedding_type", why)
    elif kind != "absolute":
        r.fault("position_embedding_type", f"{kind!r} is not modelled for this family", hint=RECORD)
    return {}


def _t5(r: Reader, found: Fields) -> Fields:
    projection = r.text("feed_forward_proj", default=found.get("_mlp", "relu"))
    gated, kind = projection.startswith("gated-"), projection.removeprefix("gated-")
    if kind not in ACTIVATIONS:
        r.fault("feed_forward_proj", f"{projection!r} is not supported", hint="relu or gated-gelu")
    return {
        "layers": r.integer("num_decoder_layers", default=found["layers"]),
        "encoder_layers": found["layers"],
        "gated_mlp": gated,
        "activation": "gelu_new" if gated and kind == "gelu" else ACTIVATIONS[kind],
    }


def _patches(r: Reader, found: Fields) -> Fields:
    """Return what an image becomes: square patches that fill it, and the token of the class."""
    side, patch = r.positive("image_size", default=found["_image"]), r.positive("patch_size", default=found["_patch"])
    if side < patch:
        r.fault("patch_size", f"{patch} is more than image_size={side}")
    n_values = r.positive("num_channels", default=3) * patch**2
    return {"max_positions": (side // patch) ** 2 + 1, "patch_values": n_values}


def _vit(r: Reader, found: Fields) -> Fields:
    labels = r.raw("id2label")
    return {"vocab": r.positive("num_labels", default=len(labels) if isinstance(labels, dict) and labels else 2)}


def _clip(r: Reader, found: Fields) -> Fields:
    """CLIP: a text model whose micro-batch has an image for every text."""
    inner, outer = r.section("vision_config"), r.section("text_config")
    image, text = read_family(inner, "_clip_image"), read_family(outer, "_clip_text")
    inner.finish()
    outer.finish()
    return text | {"image": ModelSpec(name="image", **(image | found))}


def _stacks(r: Reader, found: Fields) -> Fields:
    """Check that encoder and decoder are equally wide."""
    for key, field in (("encoder_attention_heads", "heads"), ("encoder_ffn_dim", "ffn_hidden")):
        if r.positive(key, default=found[field]) != found[field]:
            r.fault(key, f"{r.data[key]} beside {found[field]} of the decoder is not modelled", hint=RECORD)
    return {}


# ---- experts and latent attention --------------------------------------------------------------------------------


def _sparse_blocks(r: Reader, found: Fields) -> Fields:
    """Return the blocks without experts of Qwen: those that are named, and all but every n-th."""
    every = r.positive("decoder_sparse_step", default=1)
    dense = _indices(r, "mlp_only_layers", range(found.get("_dense", 0)))
    return {"dense_blocks": tuple(i for i in range(found["layers"]) if i in dense or (i + 1) % every)}


def _shared_and_dense(r: Reader, found: Fields) -> Fields:
    """Return what DeepSeek's relatives say of shared experts of the same width, and of layers without any."""
    if r.has("mlp_layer_types"):
        r.irrelevant(("first_k_dense_replace", "num_dense_layers"))
    layers, freq = range(found["layers"]), r.raw("moe_layer_freq")
    every = 1 if isinstance(freq, list) else r.positive("moe_layer_freq", default=1)
    named = layer_list(r, "mlp_layer_types", letters={"dense": "-", "sparse": "E"})
    marks = [kind == "E" for kind in named] or (freq if isinstance(freq, list) else [not i % every for i in layers])
    usual = found.get("_dense", 0)
    first = r.integer("first_k_dense_replace", "num_dense_layers", default=usual) if not named else 0
    keys = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return {
        "shared_expert_hidden": found["expert_hidden"] * r.integer(*keys, default=found.get("_shared", 0)),
        "dense_layers": first,
        "dense_blocks": tuple(i for i, is_mixed in zip(layers, marks, strict=False) if i >= first and not is_mixed),
    }


def _deepseek_v2(r: Reader, found: Fields) -> Fields:
    if r.data.get("q_lora_rank", 0) is None:
        r.assume("q_lora_rank", 0, "null: queries are projected directly")
    return {}


def _shared_index(r: Reader, found: Fields) -> Fields:
    """Read which layers have an index of their own, and which take that of a layer before (GLM-5.2)."""
    every, first = r.positive("index_topk_freq", default=1), r.integer("index_skip_topk_offset", default=2)
    spread = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(found["layers"])]
    kinds = r.raw("indexer_types", "index_topk_pattern") or spread
    if not isinstance(kinds, list | str) or len(kinds) != len(spread):
        r.fault("indexer_types", f"{kinds!r:.60} is not full or shared for each of {len(spread)} layers")
    own = tuple(found["index_heads"] if str(kind)[:1] in "fF" else 0 for kind in kinds)
    return {"of_blocks": (("index_heads", own),) if 0 in own else ()}


def _deepseek_v4(r: Reader, found: Fields) -> Fields:
    """DeepSeek-V4: compressed attention by layer, experts in every layer, and hyper-connections."""
    layers, rates, ratios = found["layers"], r.section("compress_rates"), r.raw("compress_ratios")
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    light, heavy = rates.positive(csa, default=4), rates.positive(hca, default=128)
    kinds = layer_list(r, "layer_types", letters={"sliding_attention": "w", csa: "k", hca: "h"})
    if not kinds and isinstance(ratios, list):
        by_rate = {0: "w", light: "k", heavy: "h"}
        if len(ratios) < layers or any(rate not in by_rate for rate in ratios):
            why = f"{ratios!r:.60} is not one of 0, {light} and {heavy} for each of {layers} layers"
            r.fault("compress_ratios", why)
        kinds = tuple(by_rate[rate] for rate in ratios[:layers])
    kinds = kinds or tuple("k" if i > 1 and i % 2 else "h" for i in range(layers))
    rotated = round(found["head_dim"] * r.number("partial_rotary_factor", default=64 / 512))
    return {
        "shared_expert_hidden": found["expert_hidden"] * r.integer("n_shared_experts", default=1),
        "pattern": _with_mlp(kinds, lambda _: True),
        "qk_rope_head_dim": r.positive("qk_rope_head_dim", default=rotated),
        "compression": light,
        "heavy_compression": heavy,
    }


def _gpt_oss(r: Reader, found: Fields) -> Fields:
    """Tell whether positions are stretched by YaRN, which multiplies sine and cosine by 0.1 ln(factor) + 1."""
    rotation = r.raw("rope_scaling", "rope_parameters") or {"rope_type": "yarn"}
    return {"scales_rotation": isinstance(rotation, dict) and rotation.get("rope_type") == "yarn"}


def _hunyuan_moe(r: Reader, found: Fields) -> Fields:
    """Hunyuan-Large and A13B, which give counts and widths once for every layer."""
    for key in ("num_shared_expert", "moe_topk", "moe_intermediate_size", "num_experts"):
        value = r.data.get(key)
        if isinstance(value, list):
            if len(set(map(str, value))) != 1:
                why = "layers that differ are not modelled" if value else "has no value for any layer"
                r.fault(key, f"{value!r:.60}: {why}", hint=RECORD)
            r.data[key] = value[0]
    shared = r.integer("num_shared_expert", default=1) * r.boolean("use_mixed_mlp_moe", default=True)
    return {
        "n_experts": r.positive("num_experts"),
        "top_k": r.positive("moe_topk", default=1),
        "expert_hidden": r.positive("moe_intermediate_size", "intermediate_size"),
        "shared_expert_hidden": found["ffn_hidden"] * shared,
    }


def _bailing(r: Reader, found: Fields) -> Fields:
    """Ling and Ring 1 and 2: Llama with norms of query and key, sigmoid routing, shared experts."""
    shared = r.positive("moe_shared_expert_intermediate_size", default=found["expert_hidden"])
    return {
        "attention_bias": r.boolean("use_qkv_bias") or found["mlp_bias"],
        "shared_expert_hidden": shared * r.integer("num_shared_experts", default=1),
    }


def _mimo_v2(r: Reader, found: Fields) -> Fields:
    """MiMo-V2-Flash: five of six layers see a window, have more heads of keys and a sink; values are narrower than keys."""
    names, layers = {"full_attention": 0, "sliding_attention": 1}, found["layers"]
    usual = [int(i > 0 and (i + 1) % 6 > 0) for i in range(layers)]
    kinds = r.raw("hybrid_layer_pattern") or [names.get(kind, -1) for kind in r.raw("layer_types") or ()] or usual
    kinds = _marks(r, "hybrid_layer_pattern", kinds, layers)
    window = r.positive("sliding_window_size", default=found["sliding_window"] - 1) + 1
    for key in ("num_attention_heads", "head_dim", "v_head_dim"):
        _same(r, f"swa_{key}", key)
    sinks = (r.boolean("add_swa_attention_sink_bias", default=True), r.boolean("add_full_attention_sink_bias"))
    few = found["kv_heads"]
    shares = (r.positive("swa_num_key_value_heads", default=2 * few), few)
    return {
        "shared_expert_hidden": 0,
        "sliding_window": window,
        "full_attention_blocks": tuple(i for i, kind in enumerate(kinds) if not kind),
        "of_blocks": by_window([not kind for kind in kinds], kv_heads=shares, attention_sinks=sinks),
    }


def _ernie_moe(r: Reader, found: Fields) -> Fields:
    """ERNIE 4.5 with experts in a range of its layers, and a bias that balances them."""
    first, every = r.integer("moe_layer_start_index", default=1), r.positive("moe_layer_interval", default=1)
    last, layers = r.integer("moe_layer_end_index", default=-1), range(found["layers"])
    return {"dense_blocks": tuple(i for i in layers if i < first or (0 <= last < i) or (i + 1) % every)}


def _minimax(r: Reader, found: Fields) -> Fields:
    """MiniMax-Text-01 and M1: lightning attention, and softmax where the file says."""
    marks = r.raw("attn_type_list")
    letters = {"linear_attention": "l", "full_attention": "*"}
    kinds: Sequence[str] = layer_list(r, "layer_types", letters=letters)
    if marks is not None:
        kinds = ["*" if one else "l" for one in _marks(r, "attn_type_list", marks, found["layers"])]
    kinds = kinds or ["*" if (i + 1) % 2 else "l" for i in range(found["layers"])]
    return {"pattern": _with_mlp(kinds, lambda _: True)}


def _minimax_m2(r: Reader, found: Fields) -> Fields:
    kinds = r.raw("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != 1 for kind in kinds)):
        r.fault("attn_type_list", "other attention than full is not supported")
    kind = r.text("qk_norm_type", default="per_layer", one_of=("per_layer", "per_head"))
    return {"qk_norm_width": kind == "per_layer"}


def _minimax_m3(r: Reader, found: Fields) -> Fields:
    layers = found["layers"]
    marked = _marks(r, "moe_layer_freq", r.raw("moe_layer_freq") or [1] * layers, layers)
    if r.data.get("sparse_attention_config"):
        r.miss("sparse_attention_config", "blocks of keys chosen by an index: attention is taken over all of them")
    return {
        "shared_expert_hidden": found["expert_hidden"] * r.integer("n_shared_experts", default=0),
        "dense_blocks": tuple(index for index, one in enumerate(marked) if not one),
    }


def _llama4(r: Reader, found: Fields) -> Fields:
    layers, every = found["layers"], r.positive("interleave_moe_layer_step", default=1)
    whole = r.positive("no_rope_layer_interval", default=4)
    mixed = set(_indices(r, "moe_layers", range(every - 1, layers, every)))
    kinds = layer_list(r, "layer_types", letters={"chunked_attention": "c", "full_attention": "*"})
    chunk = found["attention_chunk"]
    kinds = kinds or tuple("*" if (i + 1) % whole == 0 or not chunk else "c" for i in range(layers))
    return {"pattern": _with_mlp(kinds, mixed.__contains__)}


def _gemma2(r: Reader, found: Fields) -> Fields:
    """Gemma 2 and 3: all but every n-th block see a window, of Gemma 4 never the last."""
    kinds = list(layer_list(r, "layer_types", letters=_WHOLE_OR_WINDOW))
    every = found["_every"]
    if every < 1:
        r.fault("sliding_window_pattern", f"{every} is not above zero")
    kinds = kinds or ["w" if (i + 1) % every else "*" for i in range(found["layers"])]
    return {"pattern": _with_mlp([*kinds[:-1], "*"] if found.get("_last_whole") else kinds)}


def _gemma4(r: Reader, found: Fields) -> Fields:
    """Gemma 4: layers that see all have wider heads, fewer of keys, which are values, too; experts stand beside the MLP."""
    for key, usual, what in (
        ("hidden_size_per_layer_input", 256, "an embedding of every layer's own"),
        ("num_kv_shared_layers", 0, "keys of another layer"),
    ):
        if value := r.integer(key, default=usual):
            r.fault(
                key,
                f"{what} is not modelled, here of {value}{'' if key in r.data else ' as it is left out'}",
                hint=RECORD,
            )
    is_whole = [kind[0] == "*" for kind in found["pattern"]]
    same, shares = bool(r.boolean("attention_k_eq_v")), found["kv_heads"]
    widths = (found["head_dim"], r.positive("global_head_dim", default=512))
    few = r.positive("num_global_key_value_heads", default=shares) if same else shares
    own = by_window(is_whole, head_dim=widths, kv_heads=(shares, few), value_is_key=(False, same))
    if not r.boolean("enable_moe_block"):
        r.irrelevant(("num_experts", "top_k_experts", "moe_intermediate_size"))
        return {"of_blocks": own}
    return read_row(r, "_experts") | {
        "of_blocks": own,
        "pattern": _with_mlp([kind[0] for kind in found["pattern"]], lambda _: True),
        "expert_hidden": r.positive("moe_intermediate_size"),
        "shared_expert_hidden": found["ffn_hidden"],
        "expert_norms": True,
    }


# ---- blocks with a state or a short memory instead of keys and values -------------------------------------------


def _pure(r: Reader, found: Fields) -> Fields:
    """A model whose blocks are all one mixer."""
    return {"pattern": (found["_letter"],) * found["layers"]}


def _step_rank(r: Reader, key: str, hidden: int) -> int:
    """Return the rank of Mamba-1's step projection, a sixteenth of the width where the file says ``auto``."""
    rank = r.raw(key)
    return rank if isinstance(rank, int) else -(-hidden // 16)


def _mamba1(r: Reader, found: Fields) -> Fields:
    """Mamba of the first generation; Falcon's norms of step, B and C have no weights."""
    hidden = found["hidden"]
    width = r.positive("intermediate_size", default=hidden * r.positive("expand", default=2))
    return {"ssm_heads": width, "ssm_dt_rank": _step_rank(r, "time_step_rank", hidden)}


def _nemotron_h(r: Reader, found: Fields) -> Fields:
    """Nemotron-H and Nemotron 3: one sublayer a block, by letters or by a list."""
    letters = r.text("hybrid_override_pattern", default="")
    named = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = layer_list(r, "layers_block_type", "layer_types", letters=named) or tuple(letters)
    if not pattern or set(pattern) - set(named.values()):
        why = f"{letters!r} is not made of M, *, - and E"
        r.fault("hybrid_override_pattern", why, hint="or give layers_block_type, a list")
    if found["layers"] not in (0, len(pattern)):
        r.fault("num_hidden_layers", f"{found['layers']} beside a pattern of {len(pattern)} layers")
    fields = {"layers": len(pattern), "pattern": pattern}
    if "E" not in pattern:
        return fields
    latent, n_shared = r.data.get("moe_latent_size"), r.integer("n_shared_experts", default=1)
    return fields | read_row(r, "_experts") | {
        "expert_hidden": r.positive("moe_intermediate_size"),
        "shared_expert_hidden": r.positive("moe_shared_expert_intermediate_size") * n_shared,
        "expert_latent": latent if isinstance(latent, int) else 0,
    }  # fmt: skip


def _mamba2(r: Reader, found: Fields) -> Fields:
    """Mamba-2, whose heads share the mixer's width where their own is ``auto``."""
    width = found["hidden"] * r.positive("mamba_expand", "expand", default=2)
    return {"ssm_head_dim": found["ssm_head_dim"] or width // found["ssm_heads"]}


def _bamba(r: Reader, found: Fields) -> Fields:
    """Bamba: Mamba-2 with attention in some blocks, an MLP in all."""
    whole = _indices(r, "attn_layer_indices")
    return {"pattern": _with_mlp(["*" if i in whole else "M" for i in range(found["layers"])])}


def _granite_hybrid(r: Reader, found: Fields) -> Fields:
    """Granite 4: Mamba-2 or attention, then experts beside a shared MLP, or that MLP alone."""
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
    shared = r.positive("shared_intermediate_size", default=1024)
    mixers = layer_list(r, "layer_types", "layers_block_type", letters=letters) or ("M",) * found["layers"]
    is_rotary = r.text("position_embedding_type", default="nope") == "rope"
    n_experts = r.integer("num_local_experts", default=8)
    fields = {"positions": "rotary" if is_rotary else "none", "pattern": _with_mlp(mixers, lambda _: n_experts > 0)}
    if not n_experts:
        r.irrelevant(["num_experts_per_tok"])
        return fields | {"ffn_hidden": shared}
    return fields | {
        "n_experts": r.positive("num_local_experts", default=8),
        "top_k": r.positive("num_experts_per_tok", default=2),
        "expert_hidden": found["ffn_hidden"],
        "shared_expert_hidden": shared,
    }


def _falcon_h1(r: Reader, found: Fields) -> Fields:
    """Falcon-H1: attention and Mamba-2 read the same norm in every block."""
    width = r.positive("mamba_d_ssm", default=1024)
    if "mamba_d_ssm" in r.data and not r.has("mamba_d_ssm"):
        width = found["hidden"] * r.positive("mamba_expand", default=2)
    return {"ssm_head_dim": width // found["ssm_heads"], "pattern": ("p-",) * found["layers"]}


def _lfm2(r: Reader, found: Fields) -> Fields:
    """LFM2: gated short convolutions, attention in some blocks; the width of the MLP follows from another one."""
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        _same(r, key, "hidden_size")
    whole, has_experts = _indices(r, "full_attn_idxs", range(found["layers"])), "n_experts" in found
    letters = {"conv": "s", "short_conv": "s", "full_attention": "*"}
    kinds = layer_list(r, "layer_types", letters=letters)
    kinds = kinds or tuple("*" if i in whole else "s" for i in range(found["layers"]))
    width, step = found["ffn_hidden"], r.positive("block_multiple_of", default=256)
    if r.boolean("block_auto_adjust_ff_dim", default=not has_experts):
        width = int(r.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
        width = -(-width // step) * step
    if not has_experts:
        return {"ffn_hidden": width, "pattern": _with_mlp(kinds)}
    dense = r.integer("num_dense_layers", default=2)
    r.irrelevant(["use_expert_bias"])
    return {
        "ffn_hidden": width,
        "pattern": _with_mlp(kinds, lambda i: i >= dense),
    }


def _kimi_linear(r: Reader, found: Fields) -> Fields:
    """Kimi Linear: three Kimi delta attentions to one latent attention, experts in all but the first layers."""
    for key in ("routed_expert_hidden_size", "attn_res_block_size", "mla_use_output_gate", "latent_moe_use_norm"):
        if r.data.get(key):
            r.fault(key, "is not modelled for this family", hint=RECORD)
    linear = r.section("linear_attn_config")
    kda = _indices(linear, "kda_layers")
    kinds = layer_list(r, "layer_types", letters={"linear_attention": "d", "full_attention": "*"})
    usual = kda or [i + 1 for i in range(found["layers"]) if not i or i % 4]
    kinds = kinds or tuple("d" if i + 1 in usual else "*" for i in range(found["layers"]))
    width = linear.positive("head_dim", default=r.positive("linear_head_dim", default=128))
    heads = linear.positive("num_heads", default=r.positive("linear_num_heads", default=32))
    taps = linear.positive("short_conv_kernel_size", default=r.positive("linear_conv_kernel_dim", default=4))
    linear.irrelevant(["full_attn_layers"])
    linear.finish()
    dense = {*range(found["dense_layers"]), *found["dense_blocks"]}
    return {
        "pattern": _with_mlp(kinds, lambda i: i not in dense),
        **dict.fromkeys(("delta_key_heads", "delta_value_heads"), heads),
        **dict.fromkeys(("delta_key_dim", "delta_value_dim", "delta_gate_rank"), width),
        "conv_kernel": taps,
    }


def _jamba(r: Reader, found: Fields) -> Fields:
    hidden, layers = found["hidden"], range(found["layers"])
    attention = (r.positive("attn_layer_period", default=8), r.integer("attn_layer_offset", default=4))
    expert = (r.positive("expert_layer_period", default=2), r.integer("expert_layer_offset", default=1))
    mixers = ["*" if i % attention[0] == attention[1] else "m" for i in layers]
    return {
        "pattern": _with_mlp(mixers, lambda i: i % expert[0] == expert[1]),
        "ssm_heads": hidden * r.positive("mamba_expand", default=2),
        "ssm_dt_rank": _step_rank(r, "mamba_dt_rank", hidden),
    }


def _delta(r: Reader, found: Fields) -> Fields:
    """Gated delta nets, every fourth layer attention."""
    every = r.positive("full_attention_interval", default=4)
    kinds = layer_list(r, "layer_types", letters={"linear_attention": "G", "full_attention": "*"})
    return {"pattern": _with_mlp(kinds or ["G" if (i + 1) % every else "*" for i in range(found["layers"])])}


def _olmo_hybrid(r: Reader, found: Fields) -> Fields:
    """OLMo Hybrid, whose delta nets have keys three quarters as wide as a head, values twice that, and one attention at least."""
    kinds, width = found["pattern"], int(0.75 * found["hidden"] / found["delta_key_heads"])
    key = found["delta_key_dim"] or width
    return {
        "pattern": kinds if "*-" in kinds else (*kinds[:-1], "*-"),
        "delta_key_dim": key,
        "delta_value_dim": found["delta_value_dim"] or 2 * key,
    }


def _qwen3_next(r: Reader, found: Fields) -> Fields:
    """Qwen3-Next and Qwen3.5 with experts: the same, most layers with experts."""
    dense = _sparse_blocks(r, found)["dense_blocks"]
    return {"pattern": _with_mlp([block[0] for block in found["pattern"]], lambda i: i not in dense)}


#: row of the table -> what its keys decide together
_RULES: dict[str, Callable[[Reader, Fields], Fields]] = {
    "_window": _window, "gpt_bigcode": _gpt_bigcode, "gpt_neo": _gpt_neo, "opt": _opt, "mpt": _mpt, "falcon": _falcon, "qwen": _qwen,
    "nemotron-nas": _nemotron_nas, "modernbert": _modernbert, "baichuan": _baichuan, "yuan": _yuan,
    "chatglm": _chatglm, "bert": _bert, "t5": _t5, "_patches": _patches, "vit": _vit, "clip": _clip, "_stacks": _stacks,
    "_sparse_blocks": _sparse_blocks, "_shared_and_dense": _shared_and_dense, "deepseek_v2": _deepseek_v2,
    "_shared_index": _shared_index, "deepseek_v4": _deepseek_v4, "gpt_oss": _gpt_oss, "hunyuan_v1_moe": _hunyuan_moe,
    "bailing_moe": _bailing, "mimo_v2_flash": _mimo_v2, "ernie4_5_moe": _ernie_moe, "minimax_m2": _minimax_m2,
    "minimax": _minimax, "minimax_m3": _minimax_m3, "llama4": _llama4, "gemma2": _gemma2, "gemma4": _gemma4, "_pure": _pure,
    "mamba": _mamba1,
    "_mamba": _mamba2, "nemotron_h": _nemotron_h, "bamba": _bamba, "granitemoehybrid": _granite_hybrid, "falcon_h1": _falcon_h1,
    "lfm2": _lfm2, "kimi_linear": _kimi_linear, "dbrx": _dbrx, "jamba": _jamba, "_delta": _delta, "olmo_hybrid": _olmo_hybrid,
    "qwen3_next": _qwen3_next,
}  # fmt: skip
