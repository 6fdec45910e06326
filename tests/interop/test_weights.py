"""Headers of weights written here byte by byte; parameters counted by hand."""

import json
import struct

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_any, load_model, recognise

HIDDEN, LAYERS, FFN, VOCAB, HEADS, GROUPS = 64, 2, 160, 256, 4, 2
WIDTH = HIDDEN // HEADS * GROUPS
CONFIG = {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "num_key_value_heads": GROUPS, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 128}  # fmt: skip
SHAPES = {
    "model.embed_tokens.weight": [VOCAB, HIDDEN],
    "lm_head.weight": [VOCAB, HIDDEN],
    "model.norm.weight": [HIDDEN],
}
for layer in range(LAYERS):
    SHAPES |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
        "self_attn.q_proj": [HIDDEN, HIDDEN], "self_attn.k_proj": [WIDTH, HIDDEN], "self_attn.v_proj": [WIDTH, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN], "mlp.gate_proj": [FFN, HIDDEN], "mlp.up_proj": [FFN, HIDDEN],
        "mlp.down_proj": [HIDDEN, FFN], "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN],
    }.items()}  # fmt: skip
TOTAL = 2 * VOCAB * HIDDEN + HIDDEN + LAYERS * (2 * HIDDEN**2 + 2 * WIDTH * HIDDEN + 3 * FFN * HIDDEN + 2 * HIDDEN)


def safetensors(shapes, dtype="BF16"):
    header = json.dumps(
        {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    ).encode()
    return len(header).to_bytes(8, "little") + header


def gguf(architecture="llama", keys=(), shapes=SHAPES):
    def text(word):
        return struct.pack("<Q", len(word)) + word.encode()

    sizes = {"block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": HEADS,
             "attention.head_count_kv": GROUPS, "context_length": 128}  # fmt: skip
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    pairs += [
        text(f"{architecture}.{name}") + struct.pack("<II", 4, value) for name, value in (sizes | dict(keys)).items()
    ]
    tokens = b"".join(text(f"t{n}") for n in range(VOCAB))
    pairs.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, VOCAB) + tokens)
    named = {name.replace("lm_head", "output"): shape for name, shape in shapes.items()}
    tensors = [
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 1, 0) for name, shape in named.items()
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs + tensors)


def test_a_header_is_checked_against_the_configuration(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors(SHAPES))
    with pytest.raises(ConfigError, match=f"{TOTAL:,} parameters of BF16") as caught:
        import_any(tmp_path / "model.safetensors")
    assert "config.json" in caught.value.hint
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = import_any(tmp_path / "model.safetensors")
    assert (found.kind, found.spec.n_parameters) == ("safetensors", TOTAL)
    assert not found.report.unknown and any(f"{TOTAL:,} of BF16" in text for text in found.report.used)
    (tmp_path / "model.safetensors").write_bytes(safetensors(SHAPES | {"extra.weight": [HIDDEN, HIDDEN]}))
    assert "changes the answer" in import_any(tmp_path / "model.safetensors").report.unknown[0]
    assert load_model(str(tmp_path / "model.safetensors")).layers == LAYERS


def test_shards_are_counted_together(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    names = list(SHAPES)
    shards = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, own in shards.items():
        (tmp_path / file).write_bytes(safetensors({name: SHAPES[name] for name in own}))
    index = {
        "metadata": {"total_size": 2 * TOTAL},
        "weight_map": {name: file for file, own in shards.items() for name in own},
    }
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    assert recognise(path) == ["safetensors"]
    assert any(f"{TOTAL:,}" in text for text in import_any(path).report.used)
    (tmp_path / next(iter(shards))).unlink()
    assert any("not all shards" in text for text in import_any(path).report.assumed)
    index["weight_map"]["lm_head.weight"] = 300 * "[" + ".safetensors"  # more letters than a file's name may have
    path.write_text(json.dumps(index))
    assert any("not all shards" in text for text in import_any(path).report.assumed)


def test_gguf(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf())
    found = import_any(path)
    assert (found.kind, found.spec.n_parameters, found.spec.kv_heads, found.spec.vocab) == (
        "gguf",
        TOTAL,
        GROUPS,
        VOCAB,
    )
    assert not found.spec.tied and not found.report.unknown
    tied = {name: shape for name, shape in SHAPES.items() if name != "lm_head.weight"}
    path.write_bytes(gguf(shapes=tied))
    assert import_any(path).spec.n_parameters == TOTAL - VOCAB * HIDDEN
    path.write_bytes(gguf("mystery"))
    with pytest.raises(ConfigError, match="'mystery' is not known"):
        import_any(path)


@pytest.mark.parametrize("cut", [5, 30, 200, 2000])
def test_a_header_that_ends_early_says_so(tmp_path, cut):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf()[:cut])
    with pytest.raises(ConfigError, match="ends too early"):
        import_any(path)
    (tmp_path / "a.safetensors").write_bytes(safetensors(SHAPES)[: max(cut, 9)])
    with pytest.raises(ConfigError, match="bytes: is the file whole"):
        import_any(tmp_path / "a.safetensors")


def test_a_revision_of_the_hubs_cache(tmp_path):
    for revision in ("abc", "def"):
        folder = tmp_path / "models--x--y" / "snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(
            json.dumps(CONFIG | {"num_hidden_layers": len(revision) + (revision == "def")})
        )
    (tmp_path / "models--x--y" / "refs").mkdir()
    (tmp_path / "models--x--y" / "refs" / "main").write_text("abc")
    assert load_model(str(tmp_path / "models--x--y")).layers == 3
    assert load_model(str(tmp_path / "models--x--y" / "snapshots" / "def")).layers == 4


def test_infinity_as_python_writes_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"time_step_limit": [0.0, float("inf")]}))
    assert load_model(str(path)).layers == LAYERS
    path.write_text(json.dumps(CONFIG | {"hidden_size": float("inf")}))
    with pytest.raises(ConfigError, match="hidden_size: 'Infinity' is not a whole number"):
        load_model(str(path))
