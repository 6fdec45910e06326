"""Mixture-of-experts MLP: router, permutation, grouped products, weighted return.

References
----------
Lepikhin et al., GShard, arXiv:2006.16668; Gale et al., MegaBlocks, arXiv:2211.15841 (grouped products
without padding).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import CommunicationPoint, GemmShape, PointwiseShape, Split
from simulator.models.liveness import Tensor
from simulator.models.ops import kernel, map_kernel
from simulator.models.styles.base import GRADIENT, INPUT, NEITHER, Operands, Style
from simulator.plan.precision import Quantisation


def moe(style: Style, x: Tensor) -> Tensor:
    """Append the routed experts of one block to ``x[tokens, hidden]``; a rank's tokens spread evenly over its experts."""
    spec = style.spec
    n_tokens = x.n_elements // spec.hidden
    n_routed = n_tokens * spec.top_k
    n_sent = round(n_routed * style.setting.expert_load)
    with style.captured("moe_router"):
        gates = _gates(style, x)
    if spec.expert_latent:
        low = style.linear(x, spec.expert_latent, spec.hidden, name="latent_down")
        done = _region(style, _routed(style, _region(style, low, "f"), gates, n_sent), "g")
        return style.linear(done, spec.hidden, spec.expert_latent, name="latent_up")
    return _region(style, _routed(style, _region(style, x, "f"), gates, n_sent), "g")


def _region(style: Style, x: Tensor, operator: Literal["f", "g"]) -> Tensor:
    """Enter or leave the experts where all tensor-parallel ranks have the same tokens and a part of each expert.

    Each then has a part of the output's sum. That the sum is taken over tokens, behind their return, and not over their routed
    copies, is an assumption (frameworks differ).
    """
    setting = style.setting
    if setting.expert_tp == 1 or setting.gathers_expert_tokens:
        return x
    n_bytes = setting.tokens * style.spec.expert_input * DTYPE_BYTES[x.dtype]
    point = CommunicationPoint(operator=operator, n_bytes=n_bytes)
    back = replace(point, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[point], backward=[back], view=x, gradient="alias")


def _routed(style: Style, x: Tensor, gates: Tensor, n_sent: int) -> Tensor:
    """Append permutation, exchange, expert products and the weighted return of ``[tokens, expert_input]``."""
    spec, tape = style.spec, style.tape
    width = spec.expert_input
    sent = Tensor(n_sent * width, style.dtype, x.storage)
    with style.captured("moe_preprocess"):
        gates = _counted(style, _counts(style, gates))
    visits = _visits(style, x)
    routed = tape.record(
        [x],
        sent.n_elements,
        style.dtype,
        forward=[map_kernel("permute", [sent], [sent], extra_bytes=visits)],
        backward=[map_kernel("permute", [sent], [x], extra_bytes=visits, in_pass="backward")],
    )
    arrived = _sorted(style, _across_expert(style, _exchange(style, routed, "dispatch"), "expert_f"))
    done = _sorted(style, _expert_products(style, arrived))
    done = _exchange(style, _across_expert(style, done, "expert_g"), "combine")
    return tape.record(
        [done, gates],
        x.n_elements,
        style.dtype,
        forward=[map_kernel("unpermute", [done, gates], [x], extra_bytes=visits)],
        backward=[
            map_kernel("unpermute", [x, gates], [done], extra_bytes=visits, in_pass="backward"),
            *(
                []
                if style.weighs_inside_experts
                else [map_kernel("sum", [x, done], [gates], row=width, in_pass="backward")]
            ),
        ],
        saves=[gates] if style.weighs_inside_experts else [done, gates],
    )


def _sorted(style: Style, x: Tensor) -> Tensor:
    """Append the copy from the order of senders to that of the experts of this rank, or back, where an all-to-all needs it."""
    setting = style.setting
    if not setting.sorts_arrivals or style.spec.n_experts == setting.ep:
        return x
    move = map_kernel("permute", [x], [x])
    return style.tape.record(
        [x], x.n_elements, x.dtype, forward=[move], backward=[replace(move, kernel_pass="backward")]
    )


#: what visiting an expert that a token does not go to costs a kernel, in copies of the token: 8 of 256 experts took ten times as long
_VISIT = (10 - 1) * 8 / (256 - 8)


def _visits(style: Style, x: Tensor) -> float:
    """Return the bytes that visits of experts stand for, of which a kernel makes all for every token.

    References
    ----------
    NVIDIA/TransformerEngine, pull request 1927 (July 2025), which visits the chosen ones only; NVIDIA/Megatron-LM,
    ``docs/discussions/deepseek-v3-gb200-optimization``, section 2.1.1: up to ten times faster for DeepSeek-V3.
    """
    if not style.setting.permutes_by_scan:
        return 0.0
    return _VISIT * 2 * (style.spec.n_experts - style.spec.top_k) * x.n_bytes


def _gates(style: Style, x: Tensor) -> Tensor:
    """Append the router, and the choice and sorting of each token's experts."""
    spec, tape = style.spec, style.tape
    n_tokens = x.n_elements // spec.hidden
    n_routed = n_tokens * spec.top_k
    if style.setting.router_fp32:
        logits = _fp32_logits(style, x)
    else:
        logits = style.linear(x, spec.n_experts, spec.hidden, bias=spec.router_bias, name="router", is_narrow=False)
    n_logits = n_tokens * spec.n_experts
    return tape.record(
        [logits],
        n_routed,
        "fp32",
        forward=[
            kernel("softmax", n_logits, logits.n_bytes, 4 * n_logits, "fp32", row=spec.n_experts),
            kernel("topk", n_routed, 4 * n_logits, 12 * n_routed, "fp32", row=spec.n_experts),
            kernel("sort", n_routed, 8 * n_routed, 8 * n_routed, "int64"),
        ],
        backward=[
            kernel("scatter", n_logits, 4 * n_routed, 4 * n_logits, "fp32", in_pass="backward"),
            kernel(
                "softmax",
                n_logits,
                8 * n_logits,
                logits.n_bytes,
                "fp32",
                row=spec.n_experts,
                in_pass="backward",
            ),
        ],
        saved_bytes=4 * n_logits + 12 * n_routed,
    )


def _fp32_logits(style: Style, x: Tensor) -> Tensor:
    """Append the router's product with a result in fp32, whose gradients are products of fp32 copies.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/moe/moe_utils.py``, ``RouterGatingLinearFunction`` (``--moe-router-dtype fp32``): forward
    reads 16 bits; backward widens input and weight, and narrows both gradients. NVIDIA Transformer Engine,
    ``common/gemm/cublaslt_gemm.cu``: products of fp32 run as TF32.
    """
    spec, dtype = style.spec, style.setting.gemm_dtype
    n_tokens = x.n_elements // spec.hidden
    weight = style.tape.weight(spec.n_experts * spec.hidden, style.weight_dtype)
    forward = GemmShape(m=n_tokens, n=spec.n_experts, k=spec.hidden, dtype=dtype, name="router", output_bytes=4)
    back = GemmShape(m=n_tokens, n=spec.hidden, k=spec.n_experts, dtype="tf32", kernel_pass="dgrad", name="router")
    fp32 = Tensor(x.n_elements, "fp32", x.storage)
    to_16_bits = map_kernel("cast", [fp32], [x], in_pass="backward")
    to_fp32 = map_kernel("cast", [x], [fp32], in_pass="backward")
    weight_gradient = replace(back, m=spec.n_experts, n=spec.hidden, k=n_tokens, kernel_pass="wgrad")
    return style.tape.record(
        [x, weight],
        n_tokens * spec.n_experts,
        "fp32",
        forward=[forward],
        backward=[back, to_fp32, weight_gradient, to_16_bits],
        saves=[x],
    )


#: kernels from the router's logits to the exchange, forward, one layer of DeepSeek-V3 (NVIDIA/Megatron-LM,
#: ``docs/discussions/deepseek-v3-gb200-optimization``, sections 2.1.4 and 2.2.1): before Transformer Engine's fused router, with it,
#: and where the dispatcher's own kernel prepares the exchange. Four of them stand by themselves.
_ROUTER_KERNELS = {"unfused": 72, "fused": 31, "prepared": 17}


def _counts(style: Style, gates: Tensor) -> Tensor:
    """Append the small kernels that count the tokens of every expert and turn the choice into indices.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/moe/token_dispatcher.py``: sums, gathers, indices and copies to the host of
    ``preprocess`` and ``dispatch_preprocess``; router bookkeeping of ``moe_utils.py``. The number of those backward is an estimate.
    """
    if style.groups_experts:
        return gates
    n_experts = style.spec.n_experts
    small = kernel("gather", n_experts, 8 * n_experts, 8 * n_experts, "int64")
    back = replace(small, kernel_pass="backward")
    setting = style.setting
    kind = "unfused" if setting.permutes_by_scan else "fused" if setting.sorts_arrivals else "prepared"
    forward = [small] * (_ROUTER_KERNELS[kind] - 4)
    return style.tape.record(
        [gates], gates.n_elements, gates.dtype, forward=forward, backward=[back] * 4, view=gates, gradient="alias"
    )


def _counted(style: Style, gates: Tensor) -> Tensor:
    """Mark where the host reads how many tokens each expert gets, unless an exchange does or one kernel serves all experts.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/moe/token_dispatcher.py``: counts on the host for ``moe_grouped_gemm`` without expert
    parallelism, too; huggingface/transformers, ``MixtralExperts.forward``: ``nonzero`` of the experts that have tokens.
    """
    if style.setting.ep > 1 or style.groups_experts or style.setting.fuses_experts:
        return gates
    mark = CommunicationPoint(operator="counted", n_bytes=0)
    return style.tape.record([gates], gates.n_elements, gates.dtype, forward=[mark], view=gates, gradient="alias")


def _exchange(style: Style, x: Tensor, operator: str) -> Tensor:
    if style.setting.ep == 1:
        return x
    assert operator in ("dispatch", "combine")
    point = CommunicationPoint(
        operator="dispatch" if operator == "dispatch" else "combine", n_bytes=x.n_bytes, n_copies=style.spec.top_k,
        n_tokens=x.n_elements // (style.spec.expert_input * style.spec.top_k),
        n_experts=style.spec.n_experts, n_groups=style.spec.expert_groups, groups_per_token=style.spec.groups_per_token,
    )  # fmt: skip
    back = replace(point, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[point], backward=[back])


def _across_expert(style: Style, x: Tensor, operator: Literal["expert_f", "expert_g"]) -> Tensor:
    """Gather the tokens of all ranks that share an expert, or sum and scatter what its parts made of them.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/moe/token_dispatcher.py``: the all-to-all dispatcher gathers over the expert
    tensor-parallel group behind its all-to-all, and reduce-scatters before the one back.
    """
    setting = style.setting
    if not setting.gathers_expert_tokens:
        return x
    is_gather = operator == "expert_f"
    n_elements = x.n_elements * setting.expert_tp if is_gather else x.n_elements // setting.expert_tp
    point = CommunicationPoint(operator=operator, n_bytes=max(x.n_elements, n_elements) * DTYPE_BYTES[x.dtype])
    back = replace(point, kernel_pass="backward")
    return style.tape.record([x], n_elements, x.dtype, forward=[point], backward=[back])


def _narrowing(style: Style) -> Quantisation | None:
    """Return how operands of the experts' products become narrow, if they do."""
    return None if "experts" in style.setting.unquantised_modules else style.setting.recipe.quantisation


def _expert_products(style: Style, x: Tensor) -> Tensor:
    """Append both grouped products and the activation over the experts of this rank.

    Where one kernel serves all experts and operands are narrow, the activation, forward and backward, and the quantisation of its
    result are part of the products before it; to recompute it there (``activation_recompute_in_mlp``) costs no more.

    References
    ----------
    NVIDIA Transformer Engine, ``pytorch/ops/fused/grouped_mlp.py`` (kernels of cuDNN's frontend in CuTe: grouped GEMM, GLU and
    quantisation forward, grouped GEMM, GLU's gradient and quantisation backward).
    """
    spec, setting = style.spec, style.setting
    is_fused = setting.fuses_experts and _narrowing(style) is not None
    is_biased = spec.expert_bias and style.weighs_inside_experts and not is_fused
    n_local = max(1, spec.n_experts // setting.ep)
    n_rows = x.n_elements // spec.expert_input
    width = spec.expert_hidden // setting.expert_tp
    x = _repacked(style, _stashed(style, x, is_narrow=True))
    with style.offloaded("expert_fc1"):
        up = _grouped(
            style,
            x,
            n_local=n_local,
            n_rows=n_rows,
            rows=width * (2 if spec.gated_mlp else 1),
            columns=spec.expert_input,
            narrowed_by_producer=GRADIENT if is_fused else NEITHER,
            split="column",
        )
    up = _stashed(style, up, is_narrow=False)
    with style.recomputed("moe_act", is_discarding=True), style.offloaded("moe_act"):
        up = _clamped(style, up) if is_biased else up
        if spec.gated_mlp or is_fused:
            forward = kernel("swiglu", n_rows * width, up.n_bytes, n_rows * width * DTYPE_BYTES[up.dtype], up.dtype)
            back = kernel("swiglu", up.n_elements, 1.5 * up.n_bytes, up.n_bytes, up.dtype, in_pass="backward")
            gated = style.tape.record(
                [up],
                n_rows * width,
                up.dtype,
                forward=[] if is_fused else [forward],
                backward=[] if is_fused else [back],
                **style.saved_activation(up),
            )
        else:
            gated = style.activation(up, bias=False)
    gated = gated if style.recomputes("moe_act") else _stashed(style, gated, is_narrow=True)
    done = _grouped(
        style,
        gated,
        n_local=n_local,
        n_rows=n_rows,
        rows=spec.expert_input,
        columns=width,
        narrowed_by_producer=INPUT if is_fused else NEITHER,
        split="row",
    )
    done = _repacked(style, done)
    if is_fused and spec.expert_bias and not setting.lora_rank:
        done = _summed(style, done, n_local)
    return _biased(style, done) if is_biased else done


def _repacked(style: Style, x: Tensor) -> Tensor:
    """Append the copy that pads the rows of each expert for narrow products, or that takes the padding away, and the one back.

    References
    ----------
    NVIDIA/TransformerEngine, ``pytorch/module/fp8_padding.py`` and ``fp8_unpadding.py``: until pull request 1525 of April 2025 it
    copied rows that needed no padding, too.
    """
    if not style.setting.repacks_experts or _narrowing(style) is None:
        return x
    move = map_kernel("cat", [x], [x])
    back = replace(move, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[move], backward=[back])


def _summed(style: Style, x: Tensor, n_local: int) -> Tensor:
    """Append the sums that the gradients of the second bias and of its weights by the router are; products add the bias itself.

    References
    ----------
    NVIDIA Transformer Engine, ``common/triton/grouped_dbias_dscales.py``: one kernel reads the gradient once, and writes a row for
    each expert and a number for each routed token.
    """
    width = style.spec.expert_input
    written = 2 * n_local * width + 4 * x.n_elements // width
    sums = kernel("sum", n_local * width, x.n_bytes, written, x.dtype, in_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, backward=[sums], view=x, gradient="alias")


def _clamped(style: Style, x: Tensor) -> Tensor:
    """Append the clamps of gate and up, which become one tensor again, outside the fused activation.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/fusions/fused_bias_geglu.py``: ``weighted_bias_quick_geglu_impl`` with ``clamp_value`` (gpt-oss).
    """
    half = x.n_bytes / 2
    clamp = kernel("clamp", x.n_elements // 2, half, half, x.dtype)
    back = kernel("clamp", x.n_elements // 2, 2 * half, half, x.dtype, in_pass="backward")
    join = map_kernel("cat", [x], [x])
    return style.tape.record(
        [x],
        x.n_elements,
        x.dtype,
        forward=[clamp, clamp, join],
        backward=[back, back, replace(join, kernel_pass="backward")],
        saves=[x],
    )


def _biased(style: Style, x: Tensor) -> Tensor:
    """Append the bias of the experts' second product, weighed by the router in fp32, expert by expert.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/moe/experts.py``: ``TEGroupedMLP._apply_bias``, which widens to fp32 what it adds to,
    concatenates the experts and narrows the sum; its gradient goes to the product, to the bias and to the router.
    """
    n = x.n_elements
    bf16, fp32 = 2 * n, 4 * n

    def step(name: str, read: int, written: int, *, is_backward: bool = False) -> PointwiseShape:
        return kernel(name, n, read, written, "fp32", in_pass="backward" if is_backward else "forward")

    forward = [
        step("mul", 0, fp32), step("add", bf16 + fp32, fp32), step("cat", fp32, fp32), step("cast", fp32, bf16)
    ]  # fmt: skip
    backward = [
        step("cast", bf16, fp32, is_backward=True),
        step("cast", fp32, bf16, is_backward=True),
        step("cat", bf16, bf16, is_backward=True),
        *[step(name, fp32, fp32 if name == "mul" else 0, is_backward=True) for name in ("mul", "sum", "mul", "sum")],
    ]
    return style.tape.record([x], n, x.dtype, forward=forward, backward=backward)


def _stashed(style: Style, x: Tensor, *, is_narrow: bool) -> Tensor:
    """Append the copy of what backward needs out of a buffer as large as the worst case, and the copy back.

    What weight gradients need is kept as it was quantised along columns (``is_narrow``), what the activation's gradient needs in 16
    bits.

    References
    ----------
    NVIDIA/Megatron-LM, paged stashing (``moe_paged_stash``): graphs of whole iterations need buffers of static size, which only
    the current layer can afford. NVIDIA Transformer Engine 2.16, ``pytorch/ops/fused/forward_grouped_mlp.py``: it marks for that both
    products' quantised inputs and the activation's input. The copies are kernels of up to 2,048 blocks on a stream beside, which take
    the SMs and the memory from what they run beside.
    """
    if not style.setting.stashes_experts:
        return x
    narrowing = _narrowing(style)
    n_bytes = x.n_elements * narrowing.element_bytes if is_narrow and narrowing is not None else x.n_bytes
    move = kernel("copy", x.n_elements, n_bytes, n_bytes, x.dtype)
    back = replace(move, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[move], backward=[back], view=x, gradient="alias")


def _epilogue_bytes(style: Style, narrowed_by_producer: Operands) -> tuple[float, float]:
    """Bytes that a fused product moves per element of its result, forward, and of its input's gradient.

    The first product writes what backward needs in 16 bits, and the activation narrow along rows and columns. The gradient of
    the second one's input stays in the kernel, which reads what was kept and writes its gradient narrow in both directions.
    """
    narrowing = _narrowing(style)
    if not narrowed_by_producer or narrowing is None:
        return 0.0, 0.0
    both, n_halves, unquantised = (
        2 * narrowing.element_bytes,
        2 if style.spec.gated_mlp else 1,
        DTYPE_BYTES[style.dtype],
    )
    return (
        (unquantised + both / n_halves, 0.0)
        if "gradient" in narrowed_by_producer
        else (0.0, n_halves * (unquantised + both))
    )


def _grouped(
    style: Style,
    x: Tensor,
    *,
    n_local: int,
    n_rows: int,
    rows: int,
    columns: int,
    narrowed_by_producer: Operands,
    split: Split,
) -> Tensor:
    """Append one product per local expert, batched; rows are spread evenly, over fewer experts where they do not suffice.

    ``narrowed_by_producer`` is as for :meth:`Style.quantised_product`. Narrow kernels need rows in whole blocks: each expert's are padded.
    ``split`` is how ranks share an expert, where they do.
    """
    setting, recipe = style.setting, _narrowing(style)
    split = split if setting.expert_tp > 1 else "none"
    each = max(1, -(-n_rows // n_local))
    block = 1 if recipe is None else recipe.padded_rows
    n_pieces = 1 if setting.fuses_experts or style.groups_experts else n_local
    shape = GemmShape(
        batch=max(1, round(n_rows / each)),
        m=-(-each // block) * block,
        n=rows,
        k=columns,
        dtype=setting.gemm_dtype,
        name="grouped_gemm",
        n_pieces=n_pieces,
        left_sms=setting.left_sms,
        library="torch" if style.groups_experts else "",
        in_turn=n_pieces > 1 and not style.spreads_experts,
    )
    weight = style.tape.weight(n_local * rows * columns, style.weight_dtype)
    if recipe is not None:
        sums_bias = "input" in narrowed_by_producer and style.spec.expert_bias and not setting.lora_rank
        return style.quantised_product(
            x, weight, shape, narrowed_by_producer=narrowed_by_producer, result_bytes=_epilogue_bytes(style, narrowed_by_producer),
            summing=setting.bias_summing if sums_bias else 0.0, split=split,
        )  # fmt: skip
    weight_gradient = replace(
        shape, m=rows, n=columns, k=each, kernel_pass="wgrad", output_bytes=style.wgrad_bytes, split=split
    )
    return style.tape.record(
        [x, weight],
        n_rows * rows,
        x.dtype,
        forward=[shape],
        backward=[
            replace(shape, m=each, n=columns, k=rows, kernel_pass="dgrad"),
            *([] if setting.lora_rank else [weight_gradient]),
        ],
        saves=[] if setting.lora_rank else [x],
        kept=True,
    )
