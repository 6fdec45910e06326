"""Megatron-LM with its fused kernels, and the fully fused implementations that followed it.

References
----------
Shoeybi et al., arXiv:1909.08053; Narayanan et al., arXiv:2104.04473, section 4.2 (fused kernels);
Korthikanti et al., arXiv:2205.05198, section 4 (what is saved: 34 s b h + 5 a s^2 b bytes per layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import AttentionShape, CommunicationPoint, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import (
    bias_gradient,
    cast,
    copy,
    dropout,
    flash_attention,
    fused_norm,
    kernel,
    map_kernel,
    mul,
    pointwise,
    squared_relu,
)
from simulator.models.styles.base import Style
from simulator.plan.precision import SCALED_BYTES


class Megatron(Style):
    """Fused norms, bias-gelu, bias-dropout-add and masked softmax; vocabulary-parallel loss in pieces."""

    #: flash attention wants ``[batch, seq]`` order, Megatron-LM's tensors are ``[seq, batch]``
    transposes_for_flash = True
    late_up_bias = True
    fuses_rotations = True

    def adds_bias_late(self) -> bool:
        """Row-parallel biases are added in the bias-dropout-add kernel."""
        return True

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append one fused norm kernel."""
        return fused_norm(self.tape, self.spec.norm, x, width or self.spec.hidden, self.dtype)

    def activation(self, x: Tensor, *, bias: bool) -> Tensor:
        """Append bias and activation (and the product of a gated MLP) as one kernel."""
        spec = self.spec
        if spec.gated_mlp and not bias and self.setting.has_unfused_swiglu:
            gate, up = self.split_pair(x)
            return mul(self.tape, pointwise(self.tape, spec.activation, [gate], saves=[gate]), up)
        if spec.activation == "relu2" and self.setting.has_unfused_relu2 and not spec.gated_mlp:
            return squared_relu(self.tape, x)
        n_elements = x.n_elements // 2 if spec.gated_mlp else x.n_elements
        name = self.activation_kernel
        y = Tensor(n_elements, x.dtype, x.storage)
        backward: list[LayerItem] = [map_kernel(name, [y, x], [x], in_pass="backward")]
        if narrow := self.fused_cast_bytes:
            forward = kernel(name, n_elements, x.n_bytes, narrow * n_elements, x.dtype)
            backward = [
                kernel(name, x.n_elements, y.n_bytes + x.n_bytes, narrow * x.n_elements, x.dtype, in_pass="backward")
            ]
            return self.tape.record(
                [x], n_elements, x.dtype, forward=[forward], backward=backward, **self.saved_activation(x)
            )
        if bias:
            n_tokens = self.setting.tokens
            backward.append(bias_gradient(n_tokens, x.n_elements // n_tokens, x.dtype))
            name = f"bias_{name}"
        held = self.saved_activation(x)
        return pointwise(self.tape, name, [x], n_elements=n_elements, backward=backward, **held)

    def rotary(self, x: Tensor) -> Tensor:
        """Append the rotation as one kernel each way; one by one in early releases, or where sine and cosine have a factor.

        Rotations that are not fused take packed documents one after the other, whose lengths the host reads, until all of them are
        rotated by a table that is gathered for their tokens.

        References
        ----------
        NVIDIA/Megatron-LM, ``core/models/common/embeddings/rope_utils.py``: Transformer Engine's kernel knows no factor
        (``mscale``), so that ``apply_rotary_pos_emb`` falls back to ``_apply_rotary_pos_emb_bshd``; of packed documents
        ``_apply_rotary_pos_emb_thd``.
        """
        setting = self.setting
        if not self.spec.scales_rotation and not setting.has_unfused_rope:
            return pointwise(self.tape, "rotary", [x])
        is_by_document = setting.n_documents > 1 and setting.rotates_by_document
        n_parts = setting.n_documents * setting.micro_batch if is_by_document else 1
        forward, back = self._turned(x, n_parts)
        if is_by_document:
            joined = map_kernel("cat", [x], [x])
            forward = [CommunicationPoint(operator="lengths", n_bytes=0), *forward * n_parts, joined]
            back = [joined, *back * n_parts]
        elif setting.n_documents > 1:
            forward = [*self._positions(), *forward]
        backward = [replace(each, kernel_pass="backward") for each in back]
        return self.tape.record([x], x.n_elements, x.dtype, forward=forward, backward=backward)

    def _turned(self, x: Tensor, n_parts: int) -> tuple[list[LayerItem], list[LayerItem]]:
        """Return the operations that rotate one of so many equal parts, forward and backward."""
        n_table = self.setting.sequence * self.head_dim // (self.setting.n_documents if n_parts > 1 else 1)
        part = Tensor(x.n_elements // n_parts, x.dtype, x.storage)
        half = Tensor(part.n_elements // 2, x.dtype, x.storage)
        table = [kernel(name, n_table, 4 * n_table, 4 * n_table, "fp32") for name in ("cos", "mul", "sin", "mul")]
        table += [kernel("cast", n_table, 4 * n_table, 2 * n_table, "fp32")] * 2
        turned = map_kernel("mul", [part], [part], access="strided")  # the table is the same for all heads of a token
        negated = map_kernel("neg", [half], [half], access="strided")
        joined, summed = map_kernel("cat", [part], [part]), map_kernel("add", [part, part], [part])
        zeros = map_kernel("fill", [], [part], access="vector")  # gradient of what is not rotated, which is empty
        back: list[LayerItem] = [turned, turned, negated, joined, summed, zeros, summed]
        return [*table, turned, negated, joined, turned, summed, joined], back

    def _positions(self) -> list[LayerItem]:
        """Return the operations that find the place of every token in its document, and gather the table of angles for them.

        Twelve on integers of all tokens (a range, a search among the beginnings, bounds, three gathers, a difference), five on
        the few lengths, and the gather.
        """
        n = self.setting.tokens
        of_tokens = kernel("add", n, 8 * n, 8 * n, "fp32")
        of_lengths = kernel("add", self.setting.n_documents, 8, 8, "fp32")
        n_table = n * self.head_dim
        return [*[of_lengths] * 5, *[of_tokens] * 12, kernel("gather", n_table, 4 * n_table, 4 * n_table, "fp32")]

    def eager_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append scaled product, fused softmax, dropout and product; selective recompute drops these."""
        with self.recomputed("core_attn"):
            scores = self.scores(q, k, shape)
            weights = pointwise(self.tape, "softmax", [scores], saves_output=True, row=shape.seq_k)
            weights = dropout(self.tape, weights, self.spec.dropout)
            return self.weighted_values(weights, v, shape)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append the fused kernel between the transpositions it needs."""
        q, k, v = (cast(self.tape, t, self.dtype) for t in (q, k, v))
        if not self.transposes_for_flash:
            return flash_attention(self.tape, q, k, v, shape, self.setting.tokens)
        q, k, v = (copy(self.tape, t) for t in (q, k, v))
        return copy(self.tape, flash_attention(self.tape, q, k, v, shape, self.setting.tokens))

    def residual(self, x: Tensor, branch: Tensor, *, bias: bool) -> Tensor:
        """Append bias, dropout and addition as one kernel; the stream's gradient passes through."""
        tape, probability = self.tape, self.spec.dropout
        n = branch.n_elements
        mask = n if probability else 0
        width = DTYPE_BYTES[x.dtype]
        name = "bias_dropout_add" if probability else "add"
        fused = kernel(name, n, 2 * n * width, n * width + mask, x.dtype)
        backward: list[LayerItem] = []
        if probability:
            backward.append(kernel("dropout", n, n * width + mask, n * width, x.dtype, in_pass="backward"))
        if bias:
            backward.append(bias_gradient(n // self.spec.hidden, self.spec.hidden, x.dtype))
        branch = tape.record(
            [branch],
            n,
            x.dtype,
            forward=[fused],
            backward=backward,
            saved_bytes=mask,
            gradient="new" if probability else "alias",
        )
        return tape.record([x, branch], n, x.dtype, view=branch, gradient="alias")

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append the vocabulary-parallel cross-entropy: fp32 copy, maximum, exponentials, all in place.

        References
        ----------
        Megatron-LM, ``megatron/core/tensor_parallel/cross_entropy.py``.
        """
        fp32 = cast(self.tape, logits, "fp32")
        n = fp32.n_elements
        per_token = 4 * n_tokens
        reduce = CommunicationPoint(operator="vocabulary", n_bytes=per_token)
        points: list[LayerItem] = [reduce] if self.setting.tp > 1 else []
        forward: list[LayerItem] = [
            kernel("max", n_tokens, fp32.n_bytes, per_token, "fp32", row=vocab),
            *points,
            map_kernel("sub", [fp32], [fp32]),
            kernel("gather", n_tokens, 2 * per_token, per_token, "fp32"),
            *points,
            map_kernel("exp", [fp32], [fp32]),
            kernel("sum", n_tokens, fp32.n_bytes, per_token, "fp32", row=vocab),
            *points,
            map_kernel("div", [fp32], [fp32]),
            kernel("mean", 1, per_token, 4, "fp32", row=n_tokens),
        ]
        backward: list[LayerItem] = [
            kernel("index_put", n_tokens, 2 * per_token, per_token, "fp32", in_pass="backward"),
            map_kernel("mul", [fp32], [fp32], in_pass="backward"),
        ]
        # the exponentials overwrite the fp32 logits, and the gradient overwrites the saved exponentials
        softmax = self.tape.record(
            [fp32],
            n,
            "fp32",
            forward=forward,
            backward=backward,
            view=fp32,
            saves_output=True,
            gradient="alias",
        )
        return self.tape.record([softmax], 1, "fp32")


class Fused(Megatron):
    """Transformer Engine and hand-written kernels: biases in the epilogue, no transpositions, fused loss."""

    transposes_for_flash = False
    late_up_bias = False
    accumulates_in_product = True
    keeps_quantised_weights = True
    weighs_inside_experts = True
    spreads_experts = True  # Transformer Engine, ``nvte_multi_tensor_gemm``: cuBLAS on four streams
    recomputes_flash = True

    @property
    def cast_layouts(self) -> int:
        """Layouts that a cast writes: one where the device multiplies any, and one scale serves both.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/csrc/quantizer.cpp``: ``columnwise_usage && !nvte_is_non_tn_fp8_gemm_supported()``.
        """
        narrowing = self.setting.recipe.quantisation
        is_one = self.setting.any_layout and narrowing is not None and narrowing.is_by_tensor
        return 1 if is_one else super().cast_layouts

    def norm_before(self, x: Tensor, name: str, *, width: int = 0) -> Tensor:
        """Append the norm of a module, which writes eight bits where their scale is known before, or finds it otherwise.

        Adapters take its result in 16 bits, and fused operations are modules of their own.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/module/layernorm_linear.py`` (``with_quantized_norm``) and, for scales of the tensor at hand,
        ``pytorch/csrc/extensions/normalization.cpp`` (``create_hp_tensor_with_amax``, pull request 2013).
        """
        setting, narrowing = self.setting, self.setting.recipe.quantisation
        is_apart = (
            self._narrowed_by_producer(name)
            or self.recomputes("layernorm")
            or self.is_unquantised(name)
            or self.is_adapted(name)
        )
        if narrowing is None or not (narrowing.is_by_tensor and setting.merges_norms) or is_apart:
            return self.norm(x, width=width)
        is_known = narrowing.reads == 1
        written = narrowing.element_bytes if is_known else 0.0
        y = fused_norm(self.tape, self.spec.norm, x, width or self.spec.hidden, self.dtype, element_bytes=written)
        y.is_prepared = is_known or setting.norms_find_scales
        return y

    def split_heads(self, merged: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        """Append the split of the merged projection; where several heads share keys and values its parts are laid out anew.

        A fused kernel rotates the merged projection as it is (``fused_single_qkv_rope``). That the code with fused operations, MLPerf's
        from round 5.1 on, has it is an assumption, after the recipes of a later round (Megatron Bridge, ``perf_recipes/gpt_oss``).

        References
        ----------
        NVIDIA/Megatron-LM, ``core/transformer/attention.py``, ``get_query_key_value_tensors``: the queries of a group stand before its
        key and value, so that ``reshape`` to heads copies them; NVIDIA Transformer Engine, ``get_qkv_layout``: of three tensors each
        has to be contiguous. Norm and rotation write keys anew.
        """
        q, k, *v = super().split_heads(merged, widths)
        if self.heads == self.kv_heads or self.setting.fuses_operations:
            return q, k, *v
        return copy(self.tape, q, copies_back=False), k, *(copy(self.tape, one, copies_back=False) for one in v)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append the fused kernel; selective recompute launches it a second time."""
        with self.recomputed("core_attn"):
            if "attention" in self.setting.narrow_modules:
                return self.narrow_attention(q, k, v, shape)
            return flash_attention(self.tape, q, k, v, shape, self.setting.tokens)

    def narrow_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append attention whose products, forward and backward, are in eight bits; queries, keys and values are saved so.

        References
        ----------
        NVIDIA Transformer Engine, ``pytorch/attention/dot_product_attention``: ``fp8_dpa`` quantises query, key and value before
        the kernel and the output's gradient before its backward; with MXFP8 in blocks along rows and along columns, with all other
        recipes with one scale for the tensor.
        """
        is_blocked = self.setting.recipe.products == "mxfp8"
        narrow = replace(shape, dtype="mxfp8" if is_blocked else "fp8")
        cast, written = ("quantize_mxfp8", 2 * SCALED_BYTES["mxfp8"]) if is_blocked else ("quantize", 1.0)
        n_inputs = q.n_elements + k.n_elements + v.n_elements
        n_rows = self.setting.tokens * shape.heads
        n_out = n_rows * (2 * shape.head_dim - q.n_elements // n_rows)
        return self.tape.record(
            [q, k, v],
            n_out,
            q.dtype,
            forward=[kernel(cast, n_inputs, 2 * n_inputs, round(written * n_inputs), "fp8"), narrow],
            backward=[
                kernel(cast, n_out, 2 * n_out, round(written * n_out), "fp8", in_pass="backward"),
                replace(narrow, kernel_pass="backward"),
            ],
            saves_output=True,
            saved_bytes=4 * n_rows + n_inputs,
            kept=True,
        )

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append one kernel that reads the logits and overwrites them with their gradient, or compiled ones in fp32."""
        return (compiled_loss if self.setting.loss_fp32 else fused_loss)(self, logits, n_tokens, vocab)


def fused_loss(style: Style, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
    """Append a cross-entropy that keeps 16-bit logits only: one pass forward, one backward."""
    point = CommunicationPoint(operator="vocabulary", n_bytes=4 * n_tokens)
    points: list[LayerItem] = [point] if style.setting.tp > 1 and style.setting.splits_vocabulary else []
    forward = kernel("cross_entropy", logits.n_elements, logits.n_bytes, 4 * n_tokens, logits.dtype, row=vocab)
    back = map_kernel("cross_entropy", [logits], [logits], row=vocab, in_pass="backward")
    return style.tape.record(
        [logits],
        1,
        "fp32",
        forward=[*points, forward, *points],
        backward=[back],
        saves=[logits],
    )


def compiled_loss(style: Style, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
    """Append the vocabulary-parallel cross-entropy, compiled: the maximum as fp32 is written, exponentials with their sum, the quotient.

    The exponentials overwrite the fp32 logits, and the gradient overwrites them, as it is narrowed.

    References
    ----------
    NVIDIA/Megatron-LM, ``megatron/core/fusions/fused_cross_entropy.py``: four functions under ``jit_fuser``, which is ``torch.compile``.
    """
    n, per_token = logits.n_elements, 4 * n_tokens
    reduce = CommunicationPoint(operator="vocabulary", n_bytes=per_token)
    points: list[LayerItem] = [reduce] if style.setting.tp > 1 else []
    wide = kernel("cast", n, logits.n_bytes, 4 * n + per_token, "fp32", row=vocab)
    back = kernel("mul", n, 4 * n, 4 * n + logits.n_bytes, "fp32", in_pass="backward")
    fp32 = style.tape.record([logits], n, "fp32", forward=[wide], backward=[back])
    forward = [*points, map_kernel("exp", [fp32], [fp32], row=vocab), *points, map_kernel("div", [fp32], [fp32])]
    softmax = style.tape.record([fp32], n, "fp32", forward=forward, view=fp32, saves_output=True, gradient="alias")
    return style.tape.record([softmax], 1, "fp32")
