"""Facts of the open mixtures of experts and hybrids of 2024 to 2026, as their ``config.json`` on Hugging Face has them.

Beside :data:`simulator.models.catalog.LLAMA_STYLE`; entries that build on another one name only what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Facts = dict[str, Any]


def _facts(base: Facts | None = None, /, **own: Any) -> Facts:
    return {**(base or {}), **own}


_DEEPSEEK_V3 = _facts(
    layers=61, hidden=7168, heads=128, vocab=129280, max_positions=4096, head_dim=128, ffn_hidden=18432, n_experts=256, top_k=8,
    expert_hidden=2048, shared_expert_hidden=2048, dense_layers=3, q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64,
    v_head_dim=128,
)  # fmt: skip

_INDEX = _facts(index_heads=64, index_head_dim=128, index_top_k=2048)

_GLM_5 = _facts(
    _facts(_DEEPSEEK_V3, **_INDEX), layers=78, hidden=6144, heads=64, vocab=154880, max_positions=202752, head_dim=192,
    ffn_hidden=12288, q_lora_rank=2048, v_head_dim=256, index_heads=32,
)  # fmt: skip

_GPT_OSS = _facts(
    hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn_hidden=2880, vocab=201088, max_positions=131072, top_k=4,
    attention_bias=True, attention_output_bias=True, attention_sinks=True, router_bias=True, expert_bias=True, sliding_window=128,
    scales_rotation=True,
)  # fmt: skip

_LLAMA4 = _facts(
    layers=48, hidden=5120, heads=40, kv_heads=8, ffn_hidden=16384, vocab=202048, top_k=1, expert_hidden=8192,
    shared_expert_hidden=8192, qk_norm=True, qk_norm_scale=False, attention_chunk=8192,
)  # fmt: skip

_GLM_4_5 = _facts(
    layers=92, hidden=5120, heads=96, kv_heads=8, head_dim=128, ffn_hidden=12288, vocab=151552, max_positions=131072,
    attention_bias=True, qk_norm=True, n_experts=160, top_k=8, expert_hidden=1536, shared_expert_hidden=1536, dense_layers=3,
)  # fmt: skip

#: Mamba-2 of 8 groups and heads of 64, no positions, squared ReLU without gates
_HYBRID = _facts(
    positions="none", gated_mlp=False, activation="relu2", vocab=131072, head_dim=128, ssm_head_dim=64, ssm_groups=8,
    max_positions=262144,
)  # fmt: skip

_NANO = _facts(
    _HYBRID, hidden=2688, heads=32, kv_heads=2, ffn_hidden=1856, ssm_heads=64, ssm_state=128, n_experts=128, top_k=6,
    expert_hidden=1856, shared_expert_hidden=3712, pattern=tuple(5 * "MEMEM*E" + "MEMEMEM*E" + "MEMEMEME"),
)  # fmt: skip

_SUPER = _facts(
    _NANO, hidden=4096, ffn_hidden=2688, ssm_heads=128, n_experts=512, top_k=22, expert_hidden=2688, shared_expert_hidden=5376,
    expert_latent=1024, pattern=tuple(3 * "MEMEMEM*E" + 4 * "MEMEMEMEM*E" + "MEMEMEM*E" + "MEMEMEME"),
)  # fmt: skip


def _interleaved(n_experts: int, every: int, max_positions: int) -> Facts:
    """Llama 4: chunked attention but for every fourth block, experts in every ``every``-th."""
    pattern = tuple(("*" if i % 4 == 3 else "c") + ("E" if i % every == every - 1 else "-") for i in range(48))
    return _facts(_LLAMA4, n_experts=n_experts, max_positions=max_positions, pattern=pattern)


#: blocks of MiMo-V2-Flash that see all
_MIMO = (0, 5, 11, 17, 23, 29, 35, 41, 47)


def by_window(is_whole: Sequence[bool], **own: tuple[int, int]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return ``of_blocks`` of fields that have one value in layers that see a window, and another in those that see all.

    Examples
    --------
    >>> by_window([False, True], kv_heads=(8, 4))
    (('kv_heads', (8, 4)),)
    """
    return tuple((name, tuple(pair[one] for one in is_whole)) for name, pair in own.items())


def _gemma4(layers: int, second: str, **own: Any) -> Facts:
    """Gemma 4: five of six blocks see a window; the sixth has wider heads, whose keys are values, too."""
    whole = tuple(i % 6 == 5 for i in range(layers))
    few = {16: 4, 8: 2}[own["kv_heads"]]
    return _facts(
        layers=layers, vocab=262144, max_positions=262144, head_dim=256, activation="gelu", tied=True, norm_position="around",
        qk_norm=True, sliding_window=1024, pattern=tuple(("*" if one else "w") + second for one in whole),
        of_blocks=by_window(whole, head_dim=(256, 512), kv_heads=(own["kv_heads"], few), value_is_key=(0, 1)), **own,
    )  # fmt: skip


def _qwen3_5(layers: int, second: str, **own: Any) -> Facts:
    """Qwen3.5 and 3.6: three gated delta nets to one gated attention."""
    mixed = _facts(n_experts=256, top_k=8, shared_expert_gate=True) if second == "E" else {}
    return _facts(
        mixed, layers=layers, head_dim=256, vocab=248320, max_positions=262144, qk_norm=True, attention_gate=True,
        pattern=layers // 4 * tuple(mixer + second for mixer in "GGG*"), delta_key_heads=16, delta_key_dim=128, delta_value_dim=128,
        **own,
    )  # fmt: skip


#: name -> fields of the model, beside those of LLAMA_STYLE
MIXTURES: dict[str, Facts] = {
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-v3.2": _facts(_DEEPSEEK_V3, **_INDEX),
    "deepseek-v4-flash": _facts(
        layers=43, hidden=4096, heads=64, kv_heads=1, head_dim=512, ffn_hidden=2048, vocab=129280, max_positions=1_048_576,
        n_experts=256, top_k=6, expert_hidden=2048, shared_expert_hidden=2048, q_lora_rank=1024, qk_rope_head_dim=64,
        output_groups=8, output_lora_rank=1024, sliding_window=128, compression=4, heavy_compression=128, index_heads=64,
        index_head_dim=128, index_top_k=512, residual_streams=4, pattern=("wE", "wE", *(20 * ("kE", "hE")), "kE"),
    ),
    "deepseek-v2": _facts(
        _DEEPSEEK_V3, layers=60, hidden=5120, vocab=102400, max_positions=163840, ffn_hidden=12288, n_experts=160, top_k=6,
        expert_hidden=1536, shared_expert_hidden=3072, dense_layers=1,
    ),
    "deepseek-v2-lite": _facts(
        _DEEPSEEK_V3, layers=27, hidden=2048, heads=16, vocab=102400, max_positions=163840, ffn_hidden=10944, n_experts=64,
        top_k=6, expert_hidden=1408, shared_expert_hidden=2816, dense_layers=1, q_lora_rank=0,
    ),
    "kimi-k2": _facts(_DEEPSEEK_V3, heads=64, vocab=163840, n_experts=384, dense_layers=1, max_positions=131072),
    "glm-4.5": _GLM_4_5,
    "glm-4.5-air": _facts(
        _GLM_4_5, layers=46, hidden=4096, ffn_hidden=10944, n_experts=128, expert_hidden=1408, shared_expert_hidden=1408,
        qk_norm=False, dense_layers=1,
    ),
    "glm-5": _GLM_5,
    "glm-5.2": _facts(
        _GLM_5, max_positions=1_048_576, of_blocks=(("index_heads", tuple(0 if max(i - 2, 0) % 4 else 32 for i in range(78))),),
    ),
    "gpt-oss-20b": _facts(_GPT_OSS, layers=24, n_experts=32, full_attention_blocks=tuple(range(1, 24, 2))),
    "gpt-oss-120b": _facts(_GPT_OSS, layers=36, n_experts=128, full_attention_blocks=tuple(range(1, 36, 2))),
    "llama4-scout": _interleaved(16, 1, 10_485_760),
    "llama4-maverick-400b": _interleaved(128, 2, 1_048_576),
    "grok1-314b": _facts(
        layers=64, hidden=6144, heads=48, kv_heads=8, ffn_hidden=32768, vocab=131072, max_positions=8192, n_experts=8, top_k=2,
        activation="gelu", tied=True,
    ),
    "minimax-m2": _facts(
        layers=62, hidden=3072, heads=48, kv_heads=8, head_dim=128, ffn_hidden=1536, vocab=200064, max_positions=196608,
        n_experts=256, top_k=8, qk_norm=True, qk_norm_width=True,
    ),
    "nemotron-h-56b": _facts(
        _HYBRID, hidden=8192, heads=64, kv_heads=8, ffn_hidden=32768, ssm_heads=256, ssm_state=256, max_positions=8192,
        pattern=tuple("M-M-M-M*-" + 9 * "M-M-M-M-M*-" + "M-M-M-M-M-"),
    ),
    "nemotron-3-nano": _NANO,
    "nemotron-3-super": _SUPER,
    "nemotron-3-ultra": _facts(
        _SUPER, hidden=8192, heads=64, ffn_hidden=5120, ssm_heads=256, expert_hidden=5120, shared_expert_hidden=10240,
        expert_latent=2048, pattern=tuple(4 * "MEMEMEM*EMEMEM*EMEMEMEM*E" + "MEMEMEME"),
    ),
    "gemma-4-31b": _gemma4(60, "-", hidden=5376, heads=32, kv_heads=16, ffn_hidden=21504),
    "gemma-4-26b-a4b": _gemma4(
        30, "E", hidden=2816, heads=16, kv_heads=8, ffn_hidden=2112, n_experts=128, top_k=8, expert_hidden=704,
        shared_expert_hidden=2112, expert_norms=True,
    ),
    "glm-4.7-flash": _facts(
        _DEEPSEEK_V3, layers=47, hidden=2048, heads=20, vocab=154880, max_positions=202752, head_dim=192, ffn_hidden=10240,
        n_experts=64, top_k=4, expert_hidden=1536, shared_expert_hidden=1536, dense_layers=1, q_lora_rank=768, v_head_dim=256,
    ),
    "mimo-v2-flash": _facts(
        layers=48, hidden=4096, heads=64, kv_heads=4, head_dim=192, v_head_dim=128, ffn_hidden=16384, vocab=152576,
        max_positions=262144, n_experts=256, top_k=8, expert_hidden=2048, dense_layers=1, sliding_window=128,
        full_attention_blocks=_MIMO, of_blocks=by_window(
            tuple(i in _MIMO for i in range(48)), kv_heads=(8, 4), attention_sinks=(1, 0),
        ),
    ),
    "kimi-linear-48b-a3b": _facts(
        _DEEPSEEK_V3, layers=27, hidden=2304, heads=32, vocab=163840, max_positions=1_048_576, ffn_hidden=9216, q_lora_rank=0,
        expert_hidden=1024, shared_expert_hidden=1024, dense_layers=1, delta_key_heads=32, delta_value_heads=32, delta_key_dim=128,
        delta_value_dim=128, delta_gate_rank=128, pattern=("d-", "dE", "dE", "*E", *(5 * ("dE", "dE", "dE", "*E")), "dE", "dE", "*E"),
    ),
    "falcon-h1-7b": _facts(
        layers=44, hidden=3072, heads=12, kv_heads=2, head_dim=128, ffn_hidden=12288, vocab=130048, max_positions=262144,
        ssm_heads=24, ssm_head_dim=128, ssm_state=256, ssm_norm=False, pattern=44 * ("p-",),
    ),
    "lfm2-1.2b": _facts(
        layers=16, hidden=2048, heads=32, kv_heads=8, ffn_hidden=8192, vocab=65536, max_positions=128000, tied=True, qk_norm=True,
        conv_kernel=3, pattern=tuple(("*" if i in (2, 5, 8, 10, 12, 14) else "s") + "-" for i in range(16)),
    ),
    "granite-4.0-h-small": _facts(
        layers=40, hidden=4096, heads=32, kv_heads=8, ffn_hidden=768, vocab=100352, max_positions=131072, tied=True,
        positions="none", n_experts=72, top_k=10, expert_hidden=768, shared_expert_hidden=1536, ssm_heads=128, ssm_head_dim=64,
        ssm_state=128, pattern=tuple(("*" if i % 10 == 5 else "M") + "E" for i in range(40)),
    ),
    "qwen3.5-27b": _qwen3_5(64, "-", hidden=5120, heads=24, kv_heads=4, ffn_hidden=17408, delta_value_heads=48),
    "qwen3.5-35b-a3b": _qwen3_5(
        40, "E", hidden=2048, heads=16, kv_heads=2, expert_hidden=512, shared_expert_hidden=512, delta_value_heads=32,
    ),
    "qwen3.5-122b-a10b": _qwen3_5(
        48, "E", hidden=3072, heads=32, kv_heads=2, expert_hidden=1024, shared_expert_hidden=1024, delta_value_heads=64,
    ),
    "qwen3.5-397b-a17b": _facts(_qwen3_5(
        60, "E", hidden=4096, heads=32, kv_heads=2, expert_hidden=1024, shared_expert_hidden=1024, delta_value_heads=64,
    ), n_experts=512, top_k=10),
    "qwen3-next-80b-a3b": _facts(
        layers=48, hidden=2048, heads=16, kv_heads=2, head_dim=256, ffn_hidden=5120, vocab=151936, max_positions=262144,
        qk_norm=True, attention_gate=True, n_experts=512, top_k=10, expert_hidden=512, shared_expert_hidden=512,
        shared_expert_gate=True, pattern=12 * ("GE", "GE", "GE", "*E"), delta_key_heads=16, delta_value_heads=32,
        delta_key_dim=128, delta_value_dim=128,
    ),
}  # fmt: skip
