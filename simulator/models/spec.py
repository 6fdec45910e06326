"""What a transformer is: sizes, architectural choices, and the exact parameter count of both."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from simulator.errors import ConfigError
from simulator.models.architectures import ARCHITECTURES, Architecture, ArchitectureName
from simulator.models.layer import Parameter
from simulator.models.parameters import model_parameters

Positions = Literal["learned", "rotary", "alibi", "relative", "none"]
Norm = Literal["layer_norm", "rms_norm"]
NormPosition = Literal["before", "after_residual", "after", "around"]
Activation = Literal["gelu", "gelu_new", "silu", "relu", "relu2", "xielu"]

#: letter -> sublayer, as hybrid models write their patterns (Nemotron-H, Megatron-Core), and those of our own in lower case
SUBLAYERS = {
    "*": "attention over all earlier tokens",
    "w": "attention within the sliding window",
    "c": "attention within chunks of the sequence",
    "k": "attention within the window and over compressed keys that an index chooses",
    "h": "attention within the window and over all heavily compressed keys",
    "M": "Mamba-2",
    "m": "Mamba-1",
    "G": "gated delta net",
    "d": "Kimi delta attention",
    "p": "attention beside Mamba-2",
    "s": "short convolution",
    "l": "lightning attention",
    "-": "dense MLP",
    "E": "mixture of experts",
}
#: blocks of the deepest model, and the largest of its other sizes: far above anything that was trained
MOST_LAYERS, MOST_SIZE = 10_000, 10**9
#: letters of the sublayers that are attention, and of those that carry a state instead
ATTENTION, RECURRENT = "*wckh", "MmGdsl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One transformer language model, before any decision about how to run it.

    Fields that are zero take the usual value: ``kv_heads`` = ``heads``, ``head_dim`` = ``hidden / heads``,
    ``ffn_hidden`` = ``4 * hidden``, ``expert_hidden`` = ``ffn_hidden``.
    """

    name: str  #: Catalogue name, for people and for provenance.
    #: Family that decides the block's structure; ``mixtral``, ``qwen`` and their like are ``llama`` with experts, biases or
    #: query/key norms.
    architecture: ArchitectureName
    layers: int  #: Transformer blocks; of the decoder where there is an encoder.
    #: ``hidden``, ``heads``, ``kv_heads``, ``head_dim``, ``ffn_hidden``: widths. ``ffn_hidden`` is that of a dense
    #: block.
    hidden: int
    heads: int
    #: Rows of the token and of the learned position table (the trained length where positions are not learned).
    vocab: int
    max_positions: int
    encoder_layers: int = 0  #: Blocks of the encoder; 0 for decoder-only and encoder-only models.
    kv_heads: int = 0
    head_dim: int = 0
    ffn_hidden: int = 0
    gated_mlp: bool = False  #: Three matrices (gate, up, down) instead of two.
    activation: Activation = "gelu"
    positions: Positions = "learned"
    norm: Norm = "layer_norm"
    #: ``norm_bias``, ``attention_bias``, ``attention_output_bias``, ``mlp_bias``, ``qk_norm``: which tensors exist
    #: beside the matrices.
    norm_bias: bool = True
    norm_scale: bool = True  #: Whether norms have weights at all (OLMo's have none).
    final_norm: bool = True
    attention_bias: bool = True
    attention_output_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    tied: bool = True  #: Whether the output projection is the embedding's tensor.
    #: Attention and MLP read the same input (GPT-J, NeoX) instead of following one another.
    parallel_block: bool = False
    causal: bool = True
    dropout: float = 0.0  #: Probability in training; 0 means that the dropout kernels do not exist.
    #: Experts of a mixture-of-experts block, how many each token takes, their width, the width of what all tokens take
    #: beside them, and how many leading blocks are dense.
    n_experts: int = 0
    top_k: int = 0
    expert_hidden: int = 0
    shared_expert_hidden: int = 0
    dense_layers: int = 0
    #: Groups of experts, and of how many of them a token's experts are: DeepSeek's node-limited routing; 0 where all are open to it.
    expert_groups: int = 0
    groups_per_token: int = 0
    dense_blocks: tuple[int, ...] = ()  #: Positions of further blocks without experts.
    #: Fields that differ from block to block, each with its value in every block (Gemma 4, Nemotron-NAS, PR-MoE's pyramid).
    of_blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    #: Whether a dense MLP works beside the experts, mixed with them by two learned coefficients (PR-MoE, arXiv:2201.05596).
    residual_experts: bool = False
    #: Multi-head latent attention (DeepSeek); ``head_dim`` is then the part of a query head without rotation.
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0  #: Also of ordinary attention whose values are not as wide as its keys.
    value_is_key: bool = False  #: Whether the projection of keys is that of values, too (Gemma 4).
    type_vocab: int = 0  #: Rows of BERT's segment table.
    pooler: bool = False  #: BERT's pooler, which the published counts include.
    relative_buckets: int = 0  #: T5's relative position buckets (times heads, once per stack).
    embedding_norm: bool = False  #: A norm right after the embedding (BERT, BLOOM).
    sliding_window: int = 0  #: Keys that a query sees at most; 0 for all.
    full_attention_blocks: tuple[int, ...] = ()  #: Positions of the blocks that see all nevertheless.
    attention_chunk: int = 0  #: Length of the chunks of blocks marked ``c`` (Llama 4).
    #: Sublayers of every block, by the letters of :data:`SUBLAYERS`, where they are not attention followed by an MLP or
    #: experts: ``("M", "E", "*")`` are three blocks of one sublayer each.
    pattern: tuple[str, ...] = ()
    #: ``before`` every sublayer; ``after_residual`` (BERT); ``after`` the sublayer but before the residual (OLMo 2);
    #: ``around``: before and after it (Gemma 2).
    norm_position: NormPosition = "before"
    shared_norm: bool = False  #: Whether both branches of a parallel block read one norm.
    qk_norm_width: bool = False  #: Whether query and key norms run over all heads at once instead of one by one.
    qk_norm_scale: bool = True  #: Whether they have weights.
    #: A learned logit per head (gpt-oss); a gate on the output, from the query projection (Qwen3-Next).
    attention_sinks: bool = False
    attention_gate: bool = False
    #: Whether sines and cosines are multiplied by a factor (YaRN's, of positions stretched; gpt-oss).
    scales_rotation: bool = False
    #: Sparse attention: a small index attention chooses so many keys for each query (DeepSeek-V3.2); a block whose index has no
    #: heads takes the choice of the block before (GLM-5.2).
    index_heads: int = 0
    index_head_dim: int = 0
    index_top_k: int = 0
    #: Attention of one key that is its own value and whose output is projected through a low rank group by group, and how many
    #: tokens a compressed key of blocks ``k`` and ``h`` stands for (DeepSeek-V4).
    output_groups: int = 0
    output_lora_rank: int = 0
    compression: int = 0
    heavy_compression: int = 0
    residual_streams: int = 0  #: Copies of the residual stream that hyper-connections mix (DeepSeek-V4).
    #: Tensors of the experts beside the matrices.
    router_bias: bool = False
    expert_bias: bool = False
    shared_expert_gate: bool = False
    #: Whether routed and shared experts have norms of their own, and the router scales (Gemma 4).
    expert_norms: bool = False
    #: Width in which routed experts work, between a projection down and one up (latent experts); 0 for ``hidden``.
    expert_latent: int = 0
    #: Mamba: heads and their width, state per channel, groups that share B and C, rank of Mamba-1's step projection,
    #: taps of the causal convolution.
    ssm_heads: int = 0
    ssm_head_dim: int = 0
    ssm_state: int = 0
    ssm_groups: int = 1
    ssm_dt_rank: int = 0
    ssm_norm: bool = True  #: Whether a mixer norms inside: Mamba-2 what it gates, Mamba-1 step, B and C (Jamba).
    conv_kernel: int = 4
    #: Gated delta net and Kimi delta attention: heads and widths, and of the latter the rank of its gates (0: full).
    delta_key_heads: int = 0
    delta_value_heads: int = 0
    delta_key_dim: int = 0
    delta_value_dim: int = 0
    delta_gate_rank: int = 0
    #: Modules that predict further tokens in training, each a block with projection and norms of its own; the published
    #: number of parameters leaves them out.
    mtp_layers: int = 0
    position_offset: int = 0  #: Rows of a learned position table that no token uses (OPT: 2).
    #: Width of the token table where it is projected to ``hidden`` (OPT-350m); 0 for ``hidden``.
    embedding_width: int = 0
    head_bias: bool = False  #: Whether the output projection has a bias.
    key_bias: bool = True  #: Whether keys have a bias where queries and values have one (Whisper's have none).
    #: Values of one patch of an image where patches are the tokens, behind one that stands for the class; ``vocab`` is then the
    #: number of classes (ViT), and whether their projection has a bias.
    patch_values: int = 0
    patch_bias: bool = True
    #: Width in which what an ``image`` gives is compared with what the text gives (CLIP).
    projection: int = 0
    image: ModelSpec | None = None
    #: Length of the encoder's own sequence, two spectral frames of so many values to a token (Whisper); 0: the decoder's.
    encoder_positions: int = 0
    mel_bins: int = 0

    @property
    def family(self) -> Architecture:
        """What the usual implementation of its architecture does."""
        return ARCHITECTURES[self.architecture]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The sublayers of every block of the decoder, by the letters of :data:`SUBLAYERS`."""
        if self.pattern:
            return self.pattern
        return tuple(self._attention_kind(i) + self._mlp_kind(i) for i in range(self.layers))

    def _attention_kind(self, block: int) -> str:
        return "w" if self.sliding_window and block not in self.full_attention_blocks else "*"

    def _mlp_kind(self, block: int) -> str:
        dense = not self.n_experts or block < self.dense_layers or block in self.dense_blocks
        return "-" if dense else "E"

    @property
    def specs_of_blocks(self) -> tuple[ModelSpec, ...]:
        """The model as every block of the decoder sees it: with its own sizes and number of experts."""
        if not self.of_blocks:
            return (self,) * self.layers
        names = [name for name, _ in self.of_blocks]
        rows = list(zip(*(values for _, values in self.of_blocks), strict=True))
        whole = replace(self, of_blocks=())
        alike = {row: replace(whole, **dict(zip(names, row, strict=True))) for row in dict.fromkeys(rows)}
        return tuple(alike[row] for row in rows)

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.n_experts > 0

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "vocab", "max_positions"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model '{self.name}': {key}={getattr(self, key)} is not a positive number")
        for one in fields(self):
            value, most = getattr(self, one.name), MOST_LAYERS if one.name.endswith("layers") else MOST_SIZE
            if isinstance(value, int) and not 0 <= value <= most:
                raise ConfigError(f"model '{self.name}': {one.name}={value} is not between 0 and {most}")
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
        unknown = {letter for block in self.pattern for letter in block} - set(SUBLAYERS)
        if unknown or (self.pattern and len(self.pattern) != self.layers):
            raise ConfigError(
                f"model '{self.name}': pattern of {len(self.pattern)} blocks for layers={self.layers}, unknown: {sorted(unknown)}",
                hint=f"one entry per block, of the letters {' '.join(SUBLAYERS)}",
            )
        if self.n_experts and not 0 < self.top_k <= self.n_experts:
            raise ConfigError(
                f"model '{self.name}': top_k={self.top_k} is not between 1 and n_experts={self.n_experts}"
            )
        if self.groups_per_token >= self.expert_groups or self.expert_groups < 2:  # one group, or all: no limit
            object.__setattr__(self, "expert_groups", 0)
            object.__setattr__(self, "groups_per_token", 0)
        if self.expert_groups and (self.n_experts % self.expert_groups or not self.groups_per_token):
            raise ConfigError(
                f"model '{self.name}': {self.groups_per_token} of expert_groups={self.expert_groups} groups of n_experts={self.n_experts}"
            )
        if self.expert_groups and self.top_k * self.expert_groups > self.groups_per_token * self.n_experts:
            raise ConfigError(
                f"model '{self.name}': top_k={self.top_k} is more than the experts in {self.groups_per_token} of"
                f" expert_groups={self.expert_groups} groups of n_experts={self.n_experts}"
            )
        if self.output_groups and (self.kv_heads != 1 or self.heads % self.output_groups):
            raise ConfigError(
                f"model '{self.name}': output_groups={self.output_groups} needs kv_heads=1 and to divide heads={self.heads}"
            )
        known = {one.name for one in fields(self)}
        for name, values in self.of_blocks:
            if name not in known or len(values) != self.layers:
                raise ConfigError(f"model '{self.name}': of_blocks has not one {name} for each of {self.layers} layers")
        _ = self.specs_of_blocks  # building what each block sees checks its own values, too

    @property
    def attention_width(self) -> int:
        """Columns of the query projection: heads times head_dim, which need not be ``hidden``."""
        return self.heads * self.head_dim

    @property
    def stream_width(self) -> int:
        """Width of what blocks hand on: all copies of the residual stream."""
        return self.hidden * (self.residual_streams or 1)

    @property
    def has_encoder(self) -> bool:
        """Whether another stack comes first, over a sequence of its own or the same one."""
        return self.encoder_layers > 0 or self.image is not None

    @property
    def kv_width(self) -> int:
        """Columns of the key (or value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def ssm_width(self) -> int:
        """Channels of a Mamba block."""
        return self.ssm_heads * self.ssm_head_dim

    @property
    def expert_input(self) -> int:
        """Width of the tokens that reach routed experts."""
        return self.expert_latent or self.hidden

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
    def n_matrix_parameters(self) -> int:
        """Those of them that are in matrices of blocks."""
        return sum(p.n_elements for p in self.parameters if p.is_matrix)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        image = {"image": self.image.to_dict() if self.image else None}
        return {f.name: getattr(self, f.name) for f in fields(self)} | image
