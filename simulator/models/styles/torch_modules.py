"""A laboratory's own PyTorch modules under Megatron-style parallelism, with and without a fused norm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from simulator.models.layer import AttentionShape, CommunicationPoint
from simulator.models.liveness import Tensor
from simulator.models.ops import add, fused_norm, map_kernel
from simulator.models.styles.hf_eager import HfEager


class TorchModules(HfEager):
    """Unfused operators as the Python code names them; logits are gathered, the loss is PyTorch's own.

    Llama has products of its own for queries, keys and values, gate and up. Each copies its input to the tensor-parallel region by
    itself, so that backward reduces behind each of them, beside nothing; under sequence parallelism one gather serves all of
    them. Full recomputation checkpoints every module, the head among them.

    References
    ----------
    Aleph-Alpha/scaling, ``core/nn/linear/column_parallel_linear.py``, ``core/nn/mlp.py``,
    ``core/nn/parallel_module/parallel_module.py``; facebookresearch/fairscale, ``nn/model_parallel/layers.py``. That the runs of
    Hagemann et al. kept q, k and v apart (``attention_qkv_in_one`` may be either) is read from their times with and without
    sequence parallelism (split=fit).
    Hagemann et al., arXiv:2311.05610: which of 461 runs (split=fit) ran out of memory. Those whose loss is the
    largest part need its fp32 logits beside the log-softmax and both gradients.
    """

    recomputes_operators = False
    merges_columns = False

    def columns(
        self,
        x: Tensor,
        rows: Sequence[int],
        *,
        bias: bool = False,
        name: str = "gemm",
        columns: int = 0,
        is_narrow: bool = True,
    ) -> list[Tensor]:
        """Append the products one by one, each in a region of its own."""
        rows = [sum(rows)] if name == "qkv" and self.spec.family.merges_qkv else list(rows)
        regions = [rows] if self.setting.is_sequence_parallel else [[n] for n in rows]
        found: list[Tensor] = []
        with self._checkpointed() if name == "logits" else nullcontext():
            for part in regions:
                found += super().columns(x, part, bias=bias, name=name, columns=columns, is_narrow=is_narrow)
        return found

    def _checkpointed(self) -> AbstractContextManager[None]:
        return self.tape.recomputed("head") if self.setting.recompute == "full" else nullcontext()

    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append the gathering of the logits ``[tokens, vocab / tp]`` and the loss over the whole vocabulary.

        The fp32 logits are still referenced while backward runs.
        """
        tp = self.setting.tp
        whole = self._gathered(logits, n_tokens * vocab * tp) if tp > 1 else logits
        fp32 = Tensor(whole.n_elements, "fp32", whole.storage)
        fp32 = self.tape.record(
            [whole],
            whole.n_elements,
            "fp32",
            forward=[map_kernel("cast", [whole], [fp32])],
            backward=[map_kernel("cast", [fp32], [whole], in_pass="backward")],
            saves_output=True,
        )
        return super().loss(fp32, n_tokens, vocab * tp)

    def _gathered(self, logits: Tensor, n_elements: int) -> Tensor:
        whole = Tensor(n_elements, logits.dtype, logits.storage)
        with self._checkpointed():
            return self.tape.record(
                [logits],
                n_elements,
                logits.dtype,
                forward=[
                    CommunicationPoint(operator="logits", n_bytes=whole.n_bytes),
                    map_kernel("cat", [whole], [whole]),
                ],
                backward=[map_kernel("copy", [logits], [logits], in_pass="backward")],
            )


class EagerFusedNorm(TorchModules):
    """The same, with norms from a fused kernel.

    BERT's padding is a mask of its own, and the bias before its activation a sum of its own.

    References
    ----------
    Hagemann et al., "Efficient Parallelization Layouts for Large-Scale Distributed Model Training",
    arXiv:2311.05610, section 4.1: the fused RMSNorm kernel beside otherwise plain modules.
    NVIDIA/DeepLearningExamples@482fe9ac8a, ``PyTorch/LanguageModeling/BERT/modeling.py``, ``BertSelfAttention`` and
    ``bias_gelu_training``.
    """

    def biased(self, scores: Tensor, shape: AttentionShape) -> Tensor:
        """Append the addition of the position bias and of the causal mask, or of that of the padding."""
        scores = super().biased(scores, shape)
        if not self.spec.family.adds_bias_and_mask:
            return scores
        return add(self.tape, scores, self.tape.shared(shape.batch * shape.seq_k, scores.dtype), access="strided")

    def activation(self, x: Tensor, *, bias: bool) -> Tensor:
        """Append the activation, and before BERT's the sum with the bias."""
        if self.spec.family.adds_bias_and_mask:
            x = add(self.tape, x, self.tape.shared(self.spec.ffn_hidden, x.dtype))
        return super().activation(x, bias=bias)

    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append one fused norm kernel."""
        return fused_norm(self.tape, self.spec.norm, x, width or self.spec.hidden, self.dtype)
