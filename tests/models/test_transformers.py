"""The modules of transformers, recorded, against the built-in families; skipped where it is not installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.kernels import RooflineKernels
from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import CommunicationPoint
from simulator.models.setting import RankSetting
from simulator.models.torch_module import record_module
from simulator.topology.device_file import load_device

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LAYERS = 2
#: catalogue model -> configuration, its own settings, module, sequences, tokens
CASES = {
    "gpt2-xl": ("GPT2Config", {"n_embd": 1600, "n_layer": LAYERS, "n_head": 25}, "GPT2LMHeadModel", 4, 1024),
    "llama2-7b": ("LlamaConfig", {"num_hidden_layers": LAYERS}, "LlamaForCausalLM", 2, 1536),
    "bert-large": (
        "BertConfig",
        {"hidden_size": 1024, "num_hidden_layers": LAYERS, "num_attention_heads": 16, "intermediate_size": 4096},
        "BertForMaskedLM", 16, 512,
    ),
    "t5-base": (
        "T5Config",
        {"d_model": 768, "d_ff": 3072, "num_layers": LAYERS, "num_heads": 12, "decoder_start_token_id": 0, "pad_token_id": 0},
        "T5ForConditionalGeneration", 16, 512,
    ),
}  # fmt: skip


def items(model, phase):
    return [k for layer in model.layers for k in getattr(layer, phase) if not isinstance(k, CommunicationPoint)]


@pytest.mark.parametrize("precision", ["bf16", "amp_bf16"])
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_a_module_of_transformers_is_the_built_in_family(name, attention, precision):
    if (name, attention) == ("t5-base", "flash"):
        pytest.skip("T5 has no fused attention in transformers")
    kind, settings, module, rows, length = CASES[name]
    config = getattr(transformers, kind)(**settings, use_cache=False)
    spec = find_spec(name)
    spec = replace(spec, name="cut", layers=LAYERS, encoder_layers=LAYERS if spec.encoder_layers else 0)
    with torch.device("meta"):
        made = (
            getattr(transformers, module)
            ._from_config(config, attn_implementation="sdpa" if attention == "flash" else "eager")
            .train()
        )
    ids = torch.empty(rows, length, dtype=torch.long, device="meta")
    is_autocast = precision.startswith("amp_")
    recorded = record_module(
        made, input_ids=ids, labels=ids, attention=attention, dtype="fp32" if is_autocast else "bf16",
        autocast="bf16" if is_autocast else "",
    )  # fmt: skip
    family = build_model(
        spec,
        RankSetting(
            micro_batch=rows, sequence_length=length, precision=precision, kernels="hf-eager", attention=attention
        ),
    )
    device, kernels = load_device("h200-sxm"), RooflineKernels()
    seconds = [
        sum(kernels.duration_s(k, device) for phase in ("forward", "backward") for k in items(model, phase))
        for model in (recorded, family)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.03)
    assert recorded.model_flops_per_sequence == family.model_flops_per_sequence
    saved = [sum(layer.saved_bytes for layer in model.layers) for model in (recorded, family)]
    assert saved[0] == pytest.approx(saved[1], rel=0.01)


@pytest.mark.parametrize(("window", "n_heads"), [(None, 2), (4096, 2), (128, 8)])
def test_key_value_heads_are_repeated_only_under_a_window(window, n_heads):
    """On a GPU transformers repeats them for masks alone (``use_gqa_in_sdpa``), and masks 256 tokens only where a window is shorter
    (``_ignore_causal_mask_sdpa``): what the attention is given is what two ranks that share 512 tokens exchange, in 16 bits."""
    config = transformers.MistralConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=1000, sliding_window=window, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        made = transformers.MistralForCausalLM._from_config(config, attn_implementation="sdpa").train()
    ids = torch.empty(2, 256, dtype=torch.long, device="meta")
    layer = record_module(made, input_ids=ids, labels=ids, dtype="bf16", cp=2).layers[1]
    exchanged = [i.n_bytes for i in layer.forward if isinstance(i, CommunicationPoint)]
    assert exchanged == [2 * 2 * n_heads * 512 * 32 * 2]
