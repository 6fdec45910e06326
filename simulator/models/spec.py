"""What a transformer is: sizes, architectural choices, and the exact parameter count of both."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from simulator.errors import ConfigError
from simulator.models.layer import Parameter
from simulator.models.parameters import model_parameters

Positions = Literal["learned", "rotary", "alibi", "relative", "none"]
Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["gelu", "gelu_new", "silu", "relu", "relu2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One transformer language model, before any decision about how to run it.

    Fields that are zero take the usual value: ``kv_heads`` = ``heads``, ``head_dim`` = ``hidden / heads``,
    ``ffn_hidden`` = ``4 * hidden``, ``expert_hidden`` = ``ffn_hidden``.

    Parameters
    ----------
    name : str
        Catalogue name, for people and for provenance.
    architecture : str
        Family that decides the block's structure: ``gpt``, ``bert``, ``t5``, ``llama`` or ``mpt``;
        ``mixtral``, ``qwen`` and their like are ``llama`` with experts, biases or query/key norms.
    layers : int
        Transformer blocks; of the decoder where there is an encoder.
    encoder_layers : int
        Blocks of the encoder; 0 for decoder-only and encoder-only models.
    hidden, heads, kv_heads, head_dim, ffn_hidden : int
        Widths. ``ffn_hidden`` is that of a dense block.
    gated_mlp : bool
        Three matrices (gate, up, down) instead of two.
    vocab, max_positions : int
        Rows of the token and of the learned position table (the trained length where positions are not
        learned).
    norm_bias, attention_bias, attention_output_bias, mlp_bias, qk_norm : bool
        Which tensors exist beside the matrices.
    tied : bool
        Whether the output projection is the embedding's tensor.
    parallel_block : bool
        Attention and MLP read the same input (GPT-J, NeoX) instead of following one another.
    n_experts, top_k, expert_hidden, shared_expert_hidden, dense_layers : int
        Experts of a mixture-of-experts block, how many each token takes, their width, the width of what all
        tokens take beside them, and how many leading blocks are dense.
    dense_blocks : tuple of int
        Positions of further blocks without experts.
    q_lora_rank, kv_lora_rank, qk_rope_head_dim, v_head_dim : int
        Multi-head latent attention (DeepSeek); ``head_dim`` is then the part of a query head without
        rotation.
    dropout : float
        Probability in training; 0 means that the dropout kernels do not exist.
    type_vocab : int
        Rows of BERT's segment table.
    pooler : bool
        BERT's pooler, which the published counts include.
    sliding_window : int
        Keys that a query sees at most; 0 for all.
    full_attention_blocks : tuple of int
        Positions of the blocks that see all nevertheless.
    relative_buckets : int
        T5's relative position buckets (times heads, once per stack).
    embedding_norm : bool
        A norm right after the embedding (BERT, BLOOM).
    """

    name: str
    architecture: Literal["gpt", "bert", "t5", "llama", "mpt"]
    layers: int
    hidden: int
    heads: int
    vocab: int
    max_positions: int
    encoder_layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn_hidden: int = 0
    gated_mlp: bool = False
    activation: Activation = "gelu"
    positions: Positions = "learned"
    norm: Norm = "layer_norm"
    norm_bias: bool = True
    final_norm: bool = True
    attention_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    tied: bool = True
    parallel_block: bool = False
    causal: bool = True
    dropout: float = 0.0
    n_experts: int = 0
    top_k: int = 0
    expert_hidden: int = 0
    shared_expert_hidden: int = 0
    dense_layers: int = 0
    dense_blocks: tuple[int, ...] = ()
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    type_vocab: int = 0
    pooler: bool = False
    relative_buckets: int = 0
    embedding_norm: bool = False
    sliding_window: int = 0
    full_attention_blocks: tuple[int, ...] = ()

    def has_experts(self, block: int) -> bool:
        """Whether the block at a position has experts instead of a dense MLP."""
        return self.n_experts > 0 and block >= self.dense_layers and block not in self.dense_blocks

    def fuses_attention(self, kernels: str) -> bool:
        """Whether a style's code has fused attention for this model.

        References
        ----------
        huggingface/transformers, ``modeling_t5.py``: T5 adds its position bias to the scores, in eager attention only.
        """
        return self.positions != "relative" or kernels not in ("hf-eager", "torch-modules", "eager-fused-norm")

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "vocab", "max_positions"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model '{self.name}': {key}={getattr(self, key)} is not a positive number")
        if not self.head_dim and self.hidden % self.heads:
            raise ConfigError(
                f"model '{self.name}': hidden={self.hidden} is not a multiple of heads={self.heads}",
                hint="set head_dim where heads x head_dim differs from hidden",
            )
        defaults = {
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads,
            "ffn_hidden": 4 * self.hidden,
        }
        for key, value in defaults.items():
            if not getattr(self, key):
                object.__setattr__(self, key, value)
        if self.n_experts and not self.expert_hidden:
            object.__setattr__(self, "expert_hidden", self.ffn_hidden)
        if self.kv_lora_rank and not self.v_head_dim:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        if self.heads % self.kv_heads:
            raise ConfigError(f"model '{self.name}': kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.n_experts and not 0 < self.top_k <= self.n_experts:
            raise ConfigError(
                f"model '{self.name}': top_k={self.top_k} is not between 1 and n_experts={self.n_experts}"
            )

    @property
    def attention_width(self) -> int:
        """Columns of the query projection: heads times head_dim, which need not be ``hidden``."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (or value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def is_latent_attention(self) -> bool:
        """Whether keys and values come from a low-rank latent (DeepSeek)."""
        return self.kv_lora_rank > 0

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every tensor of the whole, unpartitioned model, tied tensors once."""
        return model_parameters(self)

    @property
    def n_parameters(self) -> int:
        """Exact number of parameters of the whole model as its publishers count them, tied tensors once."""
        return sum(p.n_elements for p in self.parameters)

    @property
    def n_active_parameters(self) -> int:
        """Parameters that one token meets: all of a dense model, ``top_k`` experts of another."""
        if not self.n_experts:
            return self.n_parameters
        experts = sum(p.n_elements for p in self.parameters if p.is_expert)
        return self.n_parameters - experts + experts * self.top_k // self.n_experts

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
