"""What a model is made of: kernel shapes, parameters and saved activations, gathered into layers.

A layer lists the very kernels that one implementation launches on one rank, in launch order. It knows
shapes, FLOPs and bytes, and neither durations (``simulator.kernels``) nor collectives
(``simulator.parallel``): where a tensor-, context- or expert-parallel implementation must communicate, the
layer only marks a :class:`CommunicationPoint`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from simulator.dtypes import DTYPE_BYTES

Pass = Literal["forward", "dgrad", "wgrad", "backward"]
#: how an elementwise kernel reaches its operands: whole vectors of one layout and type, element by element where
#: strides differ, with a conversion to a wider type (``widen``), or with several types at once (``mixed``)
Access = Literal["vector", "strided", "widen", "mixed"]
#: how tensor-parallel ranks share a weight ``[out, in]``: its rows (column-parallel), its columns (row-parallel), or not at all
Split = Literal["none", "column", "row"]

#: what a layer is to its model: a repeated block, the embedding before all of them, the head with the loss behind them, the prediction of
#: a further token, or what lies between two stacks of blocks; of a recorded module all that is in no block
Role = Literal["embedding", "block", "prediction", "between", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a kernel is launched, whatever it computes."""

    #: Whether a CUDA graph launches it and not the host.
    is_captured: bool = False
    #: Kernels of the same kind that it stands for, which the host launches one by one: those of single experts.
    n_pieces: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape(Launch):
    """A (batched) matrix product ``y[m, n] = x[m, k] w[k, n]``, computed in ``dtype``.

    The three numbers are those of the product that runs: the weight gradient of ``y[t, o] = x[t, i] w[i,
    o]`` is ``m=o, n=i, k=t`` with ``kernel_pass="wgrad"``, its input gradient ``m=t, n=i, k=o`` with
    ``"dgrad"``. ``output_bytes`` is the traffic per element of the result: 8 where a gradient is added to an fp32 sum in the
    epilogue; 0 for the width of ``dtype``, but at least 16 bits.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    kernel_pass: Pass = "forward"
    name: str = "gemm"
    output_bytes: float = 0.0
    #: By what share of its time sums in its epilogue, such as those of a bias' gradient, lengthen it.
    summing: float = 0.0
    left_sms: int = 0  #: SMs that its blocks, which stay until all is done, leave to kernels beside it.
    library: str = ""  #: Whose kernel it is where not the vendor's library: ``torch``'s grouped one, ``flashinfer``.
    in_turn: bool = False  #: Whether the products of a batch are kernels of their own, one after the other.
    split: Split = "none"  #: Of a weight gradient: which part of a matrix that tensor-parallel ranks share it is.

    @property
    def n_flops(self) -> float:
        """Multiply-adds counted as two."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def result_bytes(self) -> float:
        """Bytes written (and read, where it is added to a sum) per element of the result."""
        return self.output_bytes or max(2, DTYPE_BYTES[self.dtype])

    @property
    def n_bytes(self) -> float:
        """Bytes of both inputs and the output, each touched once."""
        operands = (self.m * self.k + self.k * self.n) * DTYPE_BYTES[self.dtype]
        return float(self.batch * (operands + self.m * self.n * self.result_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(Launch):
    """A fused (flash) attention kernel: ``q[batch, seq_q, heads, head_dim]`` against ``seq_k`` keys.

    Eager attention is not this shape: it is two batched :class:`GemmShape` and :class:`PointwiseShape`
    traffic. With ``window``, a query of a causal mask sees that many keys at most; 0 is no limit. ``gathered`` of them, at the mean,
    are chosen for each query by an index.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool = True
    dtype: str = "bf16"
    kernel_pass: Pass = "forward"
    name: str = "flash_attention"
    has_dropout: bool = False
    window: int = 0
    gathered: int = 0
    #: Keys that each query counts for in MFU where that is not as many as any has: of a part of a sequence that ranks share.
    counted: int | None = None

    @property
    def reach(self) -> int:
        """Keys before a query from which on a kernel skips blocks; 0 where there is no window.

        Kernels of eight bits skip none in backward but those above the diagonal, and those of other documents (``counted``).

        References
        ----------
        NVIDIA/cudnn-frontend@3929da2, ``benchmark/sdpa_benchmark_training/results/gpt_oss`` (cuDNN 9.22): with a window of 128 backward
        in bf16 grows with the number of tokens, in fp8 and mxfp8 with its square.
        """
        is_narrow = DTYPE_BYTES[self.dtype] < DTYPE_BYTES["bf16"]
        return 0 if is_narrow and self.kernel_pass == "backward" and self.counted is None else self.window

    @property
    def n_flops(self) -> float:
        """Two products forward, five backward; a causal mask halves them, a window leaves out what is older."""
        scores = float(self.seq_q * self.seq_k)
        scores = scores / 2.0 if self.causal else scores
        if 0 < self.window < self.seq_k:
            scores -= (self.seq_k - self.window) ** 2 / 2.0
        return self._flops_of(scores)

    @property
    def whole_flops(self) -> float:
        """The same with every query against as many keys as any has, whatever the mask hides: as MFU counts attention."""
        return self._flops_of(float(self.seq_q * self.counted_keys))

    @property
    def counted_keys(self) -> int:
        """Keys that each query counts for in MFU."""
        return min(self.window or self.seq_k, self.seq_k) if self.counted is None else self.counted

    def limited(self, n_keys: int) -> AttentionShape:
        """Return it with so many keys for a query at most, of which the end of its document may hide some."""
        window = min(n_keys, self.window or self.seq_k)
        counted = None if self.counted is None else min(self.counted, n_keys)
        return replace(self, window=window if window < self.seq_k else 0, counted=counted)

    def _flops_of(self, scores: float) -> float:
        products = 2.0 if self.kernel_pass == "forward" else 5.0
        return products * 2.0 * self.batch * self.heads * scores * self.head_dim

    @property
    def n_bytes(self) -> float:
        """Bytes of q, k, v and the output, each touched once (twice as many tensors in backward)."""
        rows = self.heads * self.seq_q * 2 + self.kv_heads * self.seq_k * 2
        touched = 1 if self.kernel_pass == "forward" else 2
        return float(touched * self.batch * rows * self.head_dim * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseShape(Launch):
    """A kernel bound by memory traffic: norms, activations, dropout, casts, embedding, loss, optimizer."""

    #: The operation, as in the measured tables: ``layer_norm``, ``rms_norm``, ``gelu``, ``silu``, ``add``, ``mul``,
    #: ``dropout``, ``softmax``, ``cast``, ``embedding``, ``cross_entropy``, ``adamw_fused``, ``copy`` ...
    name: str
    n_elements: int  #: Elements of the output.
    #: Traffic to and from device memory.
    read_bytes: float
    written_bytes: float
    row_length: int = 0  #: Length of the reduced dimension for norms, softmax and loss; 0 where there is none.
    dtype: str = "bf16"
    kernel_pass: Pass = "forward"
    access: Access = "vector"  #: How an elementwise kernel of eager PyTorch reaches its operands; see :data:`Access`.

    @property
    def piece(self) -> PointwiseShape:
        """One of the kernels that it stands for, which run one after the other on one stream."""
        n = self.n_pieces
        if n == 1:
            return self
        n_elements = max(1, round(self.n_elements / n))
        return replace(
            self,
            n_elements=n_elements,
            read_bytes=self.read_bytes / n,
            written_bytes=self.written_bytes / n,
            n_pieces=1,
        )

    @property
    def n_flops(self) -> float:
        """Counted as zero, as the field's FLOP formulas do: these kernels are bound by bytes."""
        return 0.0

    @property
    def n_bytes(self) -> float:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape(Launch):
    """A recurrence along the sequence, computed in chunks: Mamba-2's SSD, Mamba-1's scan, the gated delta rule.

    Every head carries a state ``[head_dim, state]``; ``groups`` heads share their B and C (their keys and queries). With
    chunks of one token nothing is a matrix product.
    """

    name: str
    batch: int
    seq: int
    heads: int
    groups: int
    head_dim: int
    state: int
    chunk: int
    dtype: str = "bf16"
    kernel_pass: Pass = "forward"

    @property
    def n_flops(self) -> float:
        """FLOPs of the chunked algorithm; backward recomputes the states and has twice the products.

        References
        ----------
        Dao and Gu, arXiv:2405.21060, section 6 (SSD: scores within chunks, states, and outputs from both); Yang et al.,
        arXiv:2406.06484, section 3.2 (delta rule: the WY form adds three products of keys and one of values).
        """
        state = self.head_dim * self.state
        if self.chunk == 1:
            per_token = 9.0 * self.heads * state  # exponential, two products and sums, and the output: elementwise
        else:
            per_token = 4.0 * self.heads * state + 2.0 * self.heads * self.head_dim * self.chunk
            per_token += 2.0 * self.groups * self.state * self.chunk
        if self.name == "gated_delta_rule":
            per_token += 2.0 * self.heads * (state + self.chunk * (3 * self.state + self.head_dim))
        return per_token * self.batch * self.seq * (1.0 if self.kernel_pass == "forward" else 3.0)

    @property
    def n_bytes(self) -> float:
        """Bytes of inputs and output, and of the fp32 states of chunks, written, passed on and read."""
        element = DTYPE_BYTES[self.dtype]
        per_token = element * (3 * self.heads * self.head_dim + 2 * self.groups * self.state)
        if self.chunk > 1:
            per_token += 16 * self.heads * self.head_dim * self.state // self.chunk
        return float(per_token * self.batch * self.seq) * (1.0 if self.kernel_pass == "forward" else 2.5)


KernelShape = GemmShape | AttentionShape | ScanShape | PointwiseShape


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationPoint:
    """A place in a kernel list where a parallel implementation communicates; inert on one GPU.

    References
    ----------
    Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section
    4.2.2.
    """

    #: ``"f"`` and ``"g"`` are Megatron's conjugate operators around a tensor-parallel region (``f`` enters it: identity
    #: forward, reduction backward; ``g`` leaves it: reduction forward, identity backward; with sequence parallelism
    #: ``f`` gathers and ``g`` reduce-scatters). ``"amax"`` is the largest element of a tensor that ranks narrow share by share by one
    #: scale, ``"vocabulary"`` is the vocabulary-parallel loss, ``"embedding"`` the
    #: vocabulary-parallel embedding, ``"context"`` the exchange of keys and values of context parallelism,
    #: ``"dispatch"`` and ``"combine"`` the token exchange of experts, ``"expert_f"`` and ``"expert_g"`` where tokens of
    #: the ranks that share an expert are gathered and its output scattered again, ``"shared"`` begin and end of a
    #: shared expert, ``"counted"`` where the host reads how many tokens each expert gets, ``"lengths"`` where it reads
    #: those of packed documents, ``"logits"`` the gathering of vocabulary-parallel logits for a loss that wants them
    #: whole. ``"gather"``, ``"scatter"`` and ``"exchange"`` are an
    #: all-gather, a reduce-scatter and an all-to-all whatever the plan says, where a recorded module's own plan asks for them.
    operator: Literal[
        "f",
        "g",
        "amax",
        "vocabulary",
        "embedding",
        "context",
        "dispatch",
        "combine",
        "expert_f",
        "expert_g",
        "shared",
        "counted",
        "lengths",
        "logits",
        "gather",
        "scatter",
        "exchange",
    ]
    #: Bytes of the full (not sequence-sharded) tensor of this rank's tensor-parallel group; of an ``"exchange"`` those that a rank sends.
    n_bytes: int
    kernel_pass: Literal["forward", "backward"] = "forward"
    #: Number of following kernels of the list that an implementation may run beside the communication.
    overlaps: int = 0
    #: Whether it has nothing to do with the product next to it, which is not cut into the pieces that it brings or takes.
    is_bulk: bool = False
    #: Copies of one token in the tensor: the experts that it is routed to.
    n_copies: int = 1
    n_experts: int = 1
    #: Groups of experts of which a token's are in ``groups_per_token`` at most; 0 for no limit.
    n_groups: int = 0
    groups_per_token: int = 0
    #: Tokens that are routed.
    n_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter tensor as one rank holds it after tensor- and expert-parallel partitioning.

    What is not trained has neither gradient nor optimizer state.
    """

    name: str
    n_elements: int
    is_expert: bool = False
    is_tensor_parallel: bool = False
    is_trained: bool = True
    is_matrix: bool = False  #: A matrix of a block, which Muon orthogonalises: no table, no head, no vector.


LayerItem = KernelShape | CommunicationPoint


class Elements(NamedTuple):
    """Elements of some tensors, and of those among them that are experts'."""

    n: int
    n_expert: int

    @classmethod
    def of(cls, tensors: Sequence[Parameter]) -> Elements:
        """Add them up."""
        return cls(sum(p.n_elements for p in tensors), sum(p.n_elements for p in tensors if p.is_expert))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer on one rank: what forward, backward and recomputation launch, and what is kept.

    It has no slots, for sums over its parameters are kept in it: thousands of plans ask for them.
    """

    name: str  #: For people. Identical layers are one shared object.
    role: Role = "block"  #: What it is to the model.
    #: Kernels and communication points in launch order.
    forward: tuple[LayerItem, ...]
    backward: tuple[LayerItem, ...]
    #: What backward launches first to rebuild activations dropped under the chosen recompute mode.
    recompute: tuple[LayerItem, ...] = ()
    #: Tensors of this rank, in registration order.
    parameters: tuple[Parameter, ...] = ()
    #: Activations held from forward to backward, per micro-batch, under the chosen recompute mode.
    saved_bytes: int = 0
    #: Largest additional bytes alive while forward or backward of this layer runs (recomputed activations, gradients of
    #: activations, workspaces).
    transient_bytes: int = 0
    #: Bytes of the tensor handed to the next layer.
    output_bytes: int = 0
    #: Activations that wait in host memory from forward to backward, beside ``saved_bytes``.
    offloaded_bytes: int = 0
    #: The same without recomputation, for plans that recompute some layers only.
    plain: Layer | None = None

    @property
    def is_block(self) -> bool:
        """Whether it is one of the model's repeated blocks."""
        return self.role == "block"

    @cached_property
    def elements(self) -> Elements:
        """Elements of all parameters of this rank."""
        return Elements.of(self.parameters)

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """Tensors that get gradients."""
        return tuple(p for p in self.parameters if p.is_trained)

    @cached_property
    def trained_elements(self) -> Elements:
        """Elements of the tensors that get gradients."""
        return Elements.of(self.trained)

    @cached_property
    def matrix_elements(self) -> Elements:
        """Elements of the matrices among them."""
        return Elements.of([p for p in self.trained if p.is_matrix])

    @property
    def n_parameters(self) -> int:
        """Elements of all parameters of this rank."""
        return self.elements.n

    @property
    def n_expert_parameters(self) -> int:
        """Elements of the experts that this rank holds."""
        return self.elements.n_expert

    @property
    def n_trained_parameters(self) -> int:
        """Elements of the tensors that get gradients."""
        return self.trained_elements.n

    @cached_property
    def multiplied_elements(self) -> Mapping[str, int]:
        """Elements of the weights of forward products, by the type that they are multiplied in."""
        found: dict[str, int] = {}
        for item in self.forward:
            if isinstance(item, GemmShape):
                found[item.dtype] = found.get(item.dtype, 0) + item.batch * item.n * item.k
        return found

    @cached_property
    def weight_gradients(self) -> tuple[GemmShape, ...]:
        """Products of backward that make the gradients of weights."""
        products = (item for item in self.backward if isinstance(item, GemmShape))
        return tuple(item for item in products if item.kernel_pass == "wgrad")

    @cached_property
    def heaviest(self) -> str:
        """The operator that reads and writes most; empty where there is none."""
        kernels = [item for item in (*self.forward, *self.backward) if not isinstance(item, CommunicationPoint)]
        return max(kernels, key=lambda kernel: kernel.n_bytes).name if kernels else ""

    @property
    def n_forward_flops(self) -> float:
        """FLOPs of the forward kernels."""
        return sum(k.n_flops for k in self.forward if not isinstance(k, CommunicationPoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The layers of one model as one tensor-parallel rank runs them for one micro-batch."""

    #: The architecture's name, e.g. ``gpt2-large``.
    name: str
    #: In forward order: the embedding first, the head with the loss last. Equal layers are the same object.
    layers: tuple[Layer, ...]
    #: Exact parameters of the whole model (all ranks), tied tensors counted once.
    n_parameters: int
    #: Forward and backward FLOPs of the mathematical model for one sequence, without recomputation (for MFU).
    model_flops_per_sequence: float
    #: Whether the head shares the embedding's tensor.
    tied_embedding: bool = True
    notes: tuple[str, ...] = field(default=())
