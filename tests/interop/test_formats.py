from __future__ import annotations

import json

import pytest
from test_weights import CONFIG, SHAPES, gguf, safetensors

from simulator.errors import ConfigError
from simulator.interop import FORMATS, import_settings

FILES = {
    "safetensors": safetensors(SHAPES),
    "gguf": gguf(),
    "hf-config": '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}',
    "megatron": "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --bf16",
    "nemo": "trainer:\n  devices: 8\nmodel:\n  tensor_model_parallel_size: 2\n  micro_batch_size: 1\n",
    "trainer": "base_model: x/y\nmicro_batch_size: 1\nsequence_len: 512\n",
    "deepspeed": '{"train_batch_size": 8}',
    "torchtitan": "[training]\nseq_len = 2048\n[parallelism]\n",
    "accelerate": "distributed_type: FSDP\n",
    "torchtune": "model:\n  _component_: torchtune.models.llama2.llama2_7b\nbatch_size: 1\n",
    "llm-foundry": "model:\n  name: hf_causal_lm\ndevice_train_microbatch_size: 1\nglobal_train_batch_size: 8\n",
    "nanotron": "model:\n  model_config: {}\nparallelism:\n  tp: 2\ntokens:\n  micro_batch_size: 1\n",
    "automodel": "step_scheduler:\n  local_batch_size: 1\nmodel: {}\ndistributed:\n  tp_size: 2\n",
    "olmo-core": "model: {}\ntrain_module:\n  max_sequence_length: 2048\ndata_loader: {}\n",
}


@pytest.mark.parametrize(
    "kind", [name for name, one in FORMATS.items() if one.gives not in ("cluster", "measurements")]
)
def test_every_format_is_seen_from_its_content(tmp_path, kind):
    path = tmp_path / "file"
    content = FILES[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))  # beside the weights
    assert import_settings(path).kind == kind
    assert import_settings(path, kind).kind == kind


def test_what_is_not_recognised(tmp_path):
    path = tmp_path / "file"
    path.write_text("hello: world\n")
    with pytest.raises(ConfigError, match="has no known format"):
        import_settings(path)
    with pytest.raises(ConfigError, match="'deepspeed'"):
        import_settings(path, "deepspead")


@pytest.mark.parametrize("kind", [name for name in FORMATS if name != "nvml"])
def test_every_format_says_what_it_reads_and_what_it_ignores(kind):
    one = FORMATS[kind]
    if one.table is not None:
        assert one.table.keys and (one.table.irrelevant or one.table.missed)
    else:
        assert {part.is_read for part in one.parts} == {True, False}
        assert all(part.names and part.why for part in one.parts)
