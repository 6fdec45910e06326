"""Hugging Face transformers in eager PyTorch: one kernel for every operator that the Python code names.

References
----------
The operator lists are those that a dispatch mode records of transformers 5 (GPT-2, Llama, BERT, T5, Mixtral).
"""

from __future__ import annotations

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import AttentionShape, CommunicationPoint, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import (
    add,
    cast,
    copy,
    dropout,
    fused_norm,
    kernel,
    map_kernel,
    mul,
    pointwise,
    scale,
    shift,
    squared_relu,
    wider,
)
from simulator.models.spec import ModelSpec
from simulator.models.styles.base import Style
from simulator.models.styles.megatron import fused_loss
from simulator.models.tape import Tape


def eager_loss(style: Style, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
    """Append log-softmax and negative log-likelihood of the logits as they are, ``vocab`` for every token."""
    tape = style.tape
    row = n_tokens * DTYPE_BYTES[logits.dtype]
    logp = pointwise(tape, "cross_entropy", [logits], saves_output=True, row=vocab)
    fill = kernel("fill", n_tokens * vocab, row, logp.n_bytes, logp.dtype, in_pass="backward")
    point = CommunicationPoint(operator="vocabulary", n_bytes=4 * n_tokens)
    points: list[LayerItem] = [point] * 3 if style.setting.tp > 1 and style.setting.splits_vocabulary else []
    return tape.record(
        [logp],
        1,
        logp.dtype,
        forward=[*points, kernel("nll_loss", n_tokens, row, row, logp.dtype)],
        backward=[fill],
        saves=[logp],
    )


def _power(tape: Tape, x: Tensor) -> Tensor:
    """Append ``x^n``, whose gradient takes three kernels."""
    back = [
        map_kernel(name, taken, [x], in_pass="backward")
        for name, taken in (("pow", [x]), ("mul", [x]), ("mul", [x, x]))
    ]
    return pointwise(tape, "pow", [x], saves=[x], backward=back)


class HfEager(Style):
    """Unfused operators; autocast runs norms, powers, softmax and loss in fp32 and casts weights at use."""

    recomputes_operators = True

    @classmethod
    def fuses_attention(cls, spec: ModelSpec) -> bool:
        """Whether there is fused attention for a model: not where a bias of the position is added to the scores.

        References
        ----------
        huggingface/transformers, ``modeling_t5.py``: T5 adds it in eager attention only.
        """
        return spec.positions != "relative"

    @property
    def merges_columns(self) -> bool:  # type: ignore[override]
        """Whether query, key and value are one product."""
        return self.spec.family.merges_qkv

    @property
    def is_autocast(self) -> bool:
        """MPT's framework casts the gathered shards instead: its kernels see 16 bits."""
        return self.setting.is_autocast and not self.spec.family.casts_shards

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append ``nn.LayerNorm`` (one kernel) or the pieces of the Python RMSNorm."""
        width = width or self.spec.hidden
        if self.spec.norm == "layer_norm":
            dtype = self.weight_dtype
            return fused_norm(self.tape, "layer_norm", cast(self.tape, x, dtype), width, dtype)
        return self._rms_norm(x, width)

    def _rms_norm(self, x: Tensor, width: int) -> Tensor:
        tape = self.tape
        n_rows = x.n_elements // width
        fp32 = cast(tape, x, "fp32")
        n_bytes = fp32.n_bytes
        squares = _power(tape, fp32)
        spread = kernel("div", x.n_elements, 4 * n_rows, n_bytes, "fp32", in_pass="backward")
        mean = tape.record(
            [squares],
            n_rows,
            "fp32",
            forward=[kernel("mean", n_rows, n_bytes, 4 * n_rows, "fp32", row=width)],
            backward=[spread],
        )
        small = kernel("rsqrt", n_rows, 4 * n_rows, 4 * n_rows, "fp32")
        back = kernel("rsqrt", n_rows, 8 * n_rows, 4 * n_rows, "fp32", in_pass="backward")
        inverse = tape.record([mean], n_rows, "fp32", forward=[small, small], backward=[back] * 3, saves_output=True)
        source = x if self.spec.family.norms_input else fp32
        normal = self._times_rows(source, inverse, n_rows, width)
        return self._times_weight(cast(tape, normal, self._norm_dtype(x)), width)

    def _norm_dtype(self, x: Tensor) -> str:
        return "fp32" if self.weight_dtype == "fp32" and x.dtype == "fp32" else self.dtype

    def _times_rows(self, x: Tensor, rows: Tensor, n_rows: int, width: int) -> Tensor:
        """Append ``x[row, i] * rows[row]`` in fp32."""
        fp32 = Tensor(x.n_elements, "fp32", x.storage)
        backward: list[LayerItem] = [
            map_kernel("mul", [fp32, x], [fp32], in_pass="backward"),
            map_kernel("mul", [fp32, rows], [fp32], in_pass="backward"),
            kernel("sum", n_rows, fp32.n_bytes, 4 * n_rows, "fp32", row=width, in_pass="backward"),
        ]
        if x.dtype != "fp32":
            backward.append(map_kernel("cast", [fp32], [x], in_pass="backward"))
        return self.tape.record(
            [x, rows],
            x.n_elements,
            "fp32",
            forward=[map_kernel("mul", [x, rows], [fp32])],
            backward=backward,
            saves=[x, rows],
        )

    def _times_weight(self, x: Tensor, width: int) -> Tensor:
        """Append ``x[row, i] * weight[i]``."""
        weight = self.tape.weight(width, self.weight_dtype)
        dtype = wider(x.dtype, weight.dtype)
        output = Tensor(x.n_elements, dtype, x.storage)
        n_rows = x.n_elements // width
        return self.tape.record(
            [x, weight],
            x.n_elements,
            dtype,
            forward=[map_kernel("mul", [x], [output])],
            backward=[
                map_kernel("mul", [output], [output], in_pass="backward"),
                map_kernel("mul", [output, x], [output], in_pass="backward"),
                kernel("sum", width, output.n_bytes, 4 * width, dtype, row=n_rows, in_pass="wgrad"),
            ],
            saves=[x],
        )

    # ---- MLP --------------------

    def activation(self, x: Tensor, *, bias: bool) -> Tensor:
        """Append the activation as the modelling file writes it."""
        if self.spec.activation == "gelu_new":
            return self._gelu_new(x)
        if self.spec.activation == "relu2":
            return squared_relu(self.tape, x)
        y = pointwise(
            self.tape,
            self.spec.activation,
            [x],
            saves=[] if self.spec.activation == "relu" else [x],
            saves_output=self.spec.activation == "relu",
        )
        if not self.spec.family.drops_activations:
            return y
        y = dropout(self.tape, y, self.spec.dropout)
        return cast(self.tape, y, "fp32") if self.is_autocast else y

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Append ``activation(gate) * up``."""
        return mul(self.tape, self.activation(gate, bias=False), up)

    def _gelu_new(self, x: Tensor) -> Tensor:
        """Append ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, eight kernels."""
        tape = self.tape
        half = scale(tape, x)
        base = cast(tape, x, "fp32") if self.is_autocast else x
        cube = _power(tape, base)
        inner = scale(tape, add(tape, x, scale(tape, cube)))
        return mul(tape, half, shift(tape, pointwise(tape, "tanh", [inner], saves_output=True)))

    # ---- attention --------------------

    def rotary(self, x: Tensor) -> Tensor:
        """Append ``x cos + rotate_half(x) sin``: two products, a negation, a concatenation and a sum.

        The heads are a transposed view, so strides differ and elements are loaded one by one.
        """
        dtype = wider(x.dtype, self.residual_dtype)
        y = Tensor(x.n_elements, dtype, x.storage)
        half = Tensor(x.n_elements // 2, x.dtype, x.storage)
        promoted_half = Tensor(x.n_elements // 2, dtype, x.storage)
        backward: list[LayerItem] = [
            map_kernel("mul", [y], [y], in_pass="backward", access="strided"),
            map_kernel("neg", [promoted_half], [promoted_half], in_pass="backward", access="strided"),
            map_kernel("copy", [promoted_half], [y], in_pass="backward"),
            map_kernel("copy", [promoted_half], [y], in_pass="backward"),
            map_kernel("add", [y, y], [y], in_pass="backward"),
            map_kernel("mul", [y], [y], in_pass="backward", access="strided"),
            map_kernel("add", [y, y], [y], in_pass="backward", access="strided"),
        ]
        if dtype != x.dtype:
            backward.append(map_kernel("cast", [y], [x], in_pass="backward"))
        return self.tape.record(
            [x],
            x.n_elements,
            dtype,
            forward=[
                map_kernel("mul", [x], [y], access="strided"),
                map_kernel("neg", [half], [half], access="strided"),
                map_kernel("cat", [x], [x]),
                map_kernel("mul", [x], [y], access="strided"),
                map_kernel("add", [y, y], [y], access="strided"),
            ],
            backward=backward,
        )

    def eager_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append matmul, scale, bias and mask, softmax, dropout, matmul, each by itself."""
        tape = self.tape
        q, k, v = (cast(tape, t, self.dtype) for t in (q, k, v))
        repeats = self.kv_heads != self.heads
        k, v = (self._repeat(t) if repeats else copy(tape, t) for t in (k, v))
        scores = scale(tape, self.scores(copy(tape, q), k, shape))
        if self.setting.attention == "fused_softmax":
            weights = pointwise(tape, "softmax", [scores], saves_output=True, row=shape.seq_k)
            return self.weighted_values(dropout(tape, weights, self.spec.dropout), v, shape)
        scores = self.biased(scores, shape)
        is_fp32 = self.is_autocast or self.spec.family.softmax_in_fp32
        scores = cast(tape, scores, "fp32") if is_fp32 else scores
        weights = pointwise(tape, "softmax", [scores], saves_output=True, row=shape.seq_k)
        if self.spec.family.is_decoder_like:
            weights = cast(tape, weights, self.dtype)
        weights = dropout(tape, weights, self.spec.dropout)
        return self.weighted_values(cast(tape, weights, self.dtype), v, shape)

    def biased(self, scores: Tensor, shape: AttentionShape) -> Tensor:
        """Append the addition of the position bias and of the causal mask."""
        tape = self.tape
        if self.spec.positions == "relative":
            bias = tape.shared(shape.heads * shape.seq_q * shape.seq_k, self.weight_dtype)
            dtype = wider(scores.dtype, bias.dtype)
            biased = Tensor(scores.n_elements, dtype, scores.storage)
            reduce = kernel("sum", bias.n_elements, biased.n_bytes, bias.n_bytes, dtype, in_pass="backward")
            casts = [map_kernel("cast", [biased], [scores], in_pass="backward")] if dtype != scores.dtype else []
            scores = tape.record(
                [scores, bias],
                scores.n_elements,
                dtype,
                forward=[map_kernel("add", [scores, bias], [biased], access="strided")],  # a permuted table
                backward=[reduce, *casts],
                gradient="alias",
            )
        if shape.causal or self.spec.positions == "alibi":
            mask = tape.shared(shape.batch * shape.seq_q * shape.seq_k, scores.dtype)
            scores = add(tape, scores, mask, access="strided")  # one mask for all heads
        return scores

    def _repeat(self, x: Tensor) -> Tensor:
        n = self.heads // self.kv_heads
        y = Tensor(x.n_elements * n, x.dtype, x.storage)
        back = map_kernel("sum", [y], [x], in_pass="backward")
        return self.tape.record([x], y.n_elements, x.dtype, forward=[map_kernel("copy", [x], [y])], backward=[back])

    def residual(self, x: Tensor, branch: Tensor, *, bias: bool) -> Tensor:
        """Append dropout and addition, a kernel each."""
        return add(self.tape, x, dropout(self.tape, branch, self.spec.dropout))

    # ---- loss --------------------

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append log-softmax and negative log-likelihood; decoders upcast the logits to fp32 first.

        MPT's training code has flash-attention's fused cross-entropy (llm-foundry, ``loss_fn: fused_crossentropy``).
        """
        tape = self.tape
        if self.spec.family.fuses_loss:
            self._training_metrics(logits, vocab)
            return fused_loss(self, logits, n_tokens, vocab)
        if self.spec.family.is_decoder_like or self.is_autocast:
            logits = cast(tape, logits, "fp32")
        return eager_loss(self, logits, n_tokens, vocab)

    def _training_metrics(self, logits: Tensor, vocab: int) -> None:
        """Append cross-entropy and perplexity of the batch, each an fp32 log-softmax outside autograd.

        References
        ----------
        Composer's ``train_metrics``, which llm-foundry logs at every step (mosaicml/llm-foundry, issue 444).
        """
        for _ in ("LanguageCrossEntropy", "LanguagePerplexity"):
            fp32 = Tensor(logits.n_elements, "fp32", logits.storage)
            softmax = map_kernel("cross_entropy", [fp32], [fp32], row=vocab)
            self.tape.record(
                [logits], 1, "fp32", forward=[map_kernel("cast", [logits], [fp32]), softmax], gradient="none"
            )
