"""What every implementation style shares: sizes on this rank, tensor-parallel regions, and the interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape, LayerItem, Parameter, Pass, Split
from simulator.models.liveness import Tensor
from simulator.models.ops import add, batched_product, cast, copy, flash_attention, kernel, map_kernel, product, scale
from simulator.models.setting import RankSetting, check_blocks
from simulator.models.spec import ModelSpec
from simulator.models.tape import Tape
from simulator.plan.precision import Quantisation

#: name of a product -> what plans call it where it has an adapter
_PROJECTIONS = {
    "qkv": "qkv", "query": "qkv", "kv": "qkv", "attention_output": "proj", "mlp_up": "fc1", "mlp_down": "fc2"
}  # fmt: skip

#: name of a product -> what plans call the module that it belongs to, which may keep 16 bits
_MODULES = dict.fromkeys(("qkv", "query", "kv", "attention_gate", "attention_output", "down", "q_up", "kv_up"), "attention") | {
    "latent_down": "latent", "latent_up": "latent", "mlp_up": "mlp", "mlp_down": "mlp"
}  # fmt: skip

#: operands of a product that are narrowed as they come: its input, and the gradient of what it makes
Operands = frozenset[Literal["input", "gradient"]]
NEITHER: Operands = frozenset()
INPUT: Operands = frozenset(("input",))
GRADIENT: Operands = frozenset(("gradient",))
#: name of a product of a dense MLP -> operands that the operations around it make, which a fuser lets them make narrow
_MADE_BY_NEIGHBOURS = {"mlp_up": INPUT | GRADIENT, "mlp_down": INPUT}


class Style(ABC):
    """Appends the operations of one implementation of a model to a tape.

    Subclasses decide what is fused and what is saved; the order of a block is the family's.
    """

    #: whether query, key and value (and gate and up) are one matrix product
    merges_columns = True
    #: whether the bias of the MLP's first product is added by the activation's kernel
    late_up_bias = False
    #: whether weight gradients are added to those of earlier micro-batches by the product that makes them
    accumulates_in_product = False
    #: whether quantised weights are kept over the micro-batches of a step, as Transformer Engine does
    keeps_quantised_weights = False
    #: whether the quantised operand is saved for backward, not the 16-bit one (torchao)
    saves_quantised = True
    #: whether the activation of an expert multiplies by the gate, so that what experts return need not be held for its gradient
    #: (Megatron-Core from 0.12 on)
    weighs_inside_experts = False
    #: whether one kernel serves all experts of a rank whatever the plan says, as torch's ``grouped_mm`` does
    groups_experts = False
    #: whether products of experts run beside each other, on streams of their own
    spreads_experts = False
    #: whether selective recomputation is torch's, every second matrix product, instead of Megatron's core attention
    recomputes_operators = False
    #: whether Megatron's runs a fused attention kernel a second time
    recomputes_flash = False
    #: whether there is a fused kernel of rotations that a plan may turn off (Megatron's ``apply_rope_fusion``)
    fuses_rotations = False
    #: whether attention writes the gradients of queries, keys and values into that of their merged projection
    merges_gradients = False

    @classmethod
    def fuses_attention(cls, spec: ModelSpec) -> bool:
        """Whether there is fused attention for a model."""
        return True

    @property
    def wgrad_bytes(self) -> float:
        """Traffic per element of a weight gradient: read and written where it is added to a sum, else its own width (0)."""
        return 2.0 * self.setting.gradient_bytes if self.accumulates_in_product else 0.0

    def __init__(self, spec: ModelSpec, setting: RankSetting, tape: Tape) -> None:
        self.spec = spec
        self.setting = setting
        self.tape = tape
        self.heads = spec.heads // setting.tp
        self.kv_heads = max(1, spec.kv_heads // setting.tp)
        self.head_dim = spec.head_dim
        self.query_dim = spec.head_dim + spec.qk_rope_head_dim
        self.value_dim = spec.v_head_dim or spec.head_dim
        self.dtype = setting.dtype
        self.adapters: list[Parameter] = []

    @property
    def activation_kernel(self) -> str:
        """Name of the fused kernel of the MLP's activation."""
        if self.spec.gated_mlp and self.spec.activation == "silu":
            return "swiglu"
        return {"gelu_new": "gelu"}.get(self.spec.activation, self.spec.activation)

    # ---- modules that a plan names --------------------

    def recomputes(self, module: str) -> bool:
        """Whether the plan names a module that selective recomputation computes again."""
        return self.setting.recompute == "selective" and module in (self.setting.recompute_modules or ("core_attn",))

    def recomputed(self, module: str, *, is_discarding: bool = False) -> AbstractContextManager[None]:
        """Recompute what is appended inside, if the plan names the module; see :meth:`Tape.recomputed`."""
        return self.tape.recomputed(module, is_discarding=is_discarding) if self.recomputes(module) else nullcontext()

    def offloaded(self, module: str) -> AbstractContextManager[None]:
        """Let what is saved inside wait in host memory, if the plan names the module."""
        return self.tape.offloading() if module in self.setting.offload_modules else nullcontext()

    def captured(self, module: str) -> AbstractContextManager[None]:
        """Capture what is appended inside in a CUDA graph, if the plan names the module."""
        return self.tape.captured(is_captured=module in self.setting.captured_modules)

    # ---- what implementations differ in --------------------

    @property
    def is_autocast(self) -> bool:
        """Whether weights are kept in fp32 and cast where they are used."""
        return False

    @property
    def weight_dtype(self) -> str:
        """Dtype of the weights that kernels read, before any cast."""
        return self.setting.weight_dtype if self.is_autocast else self.dtype

    @property
    def residual_dtype(self) -> str:
        """Dtype of the tensor that blocks hand on: autocast leaves it as the embedding made it."""
        return self.weight_dtype

    @abstractmethod
    def norm(self, x: Tensor, *, width: int = 0) -> Tensor:
        """Append a norm of the architecture's kind over the last ``width`` (default hidden) elements."""

    def norm_before(self, x: Tensor, name: str, *, width: int = 0) -> Tensor:
        """Append the norm of a module that begins with the product ``name``, which may prepare what it makes for it."""
        return self.norm(x, width=width)

    @abstractmethod
    def activation(self, x: Tensor, *, bias: bool) -> Tensor:
        """Append the MLP's activation; ``bias`` where the bias of the product before it is still to be added.

        A gated one reads gate and up from one tensor.
        """

    @abstractmethod
    def rotary(self, x: Tensor) -> Tensor:
        """Append rotary position embedding."""

    @abstractmethod
    def eager_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append attention as separate products, mask, softmax and dropout."""

    @abstractmethod
    def residual(self, x: Tensor, branch: Tensor, *, bias: bool) -> Tensor:
        """Append dropout of a branch and its addition to the stream; ``bias`` as for :meth:`activation`."""

    @abstractmethod
    def loss(self, logits: Tensor, n_tokens: int, vocab: int) -> Tensor:
        """Append the cross-entropy over this rank's part ``vocab`` of the vocabulary."""

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Append ``activation(gate) * up`` of two separate tensors."""
        raise NotImplementedError(f"{type(self).__name__} reads gate and up from one tensor")

    def saved_activation(self, x: Tensor) -> dict[str, Any]:
        """Return what an activation holds of its input for backward: the tensor, or a copy of it in eight bits."""
        return {"saved_bytes": x.n_elements} if "activation" in self.setting.narrow_modules else {"saves": [x]}

    def adds_bias_late(self) -> bool:
        """Whether biases of row-parallel products are added by the fused kernel of the residual."""
        return False

    # ---- matrix products and tensor-parallel regions --------------------

    def linear(
        self,
        x: Tensor,
        rows: int,
        columns: int,
        *,
        bias: bool = False,
        name: str = "gemm",
        before: Sequence[LayerItem] = (),
        between: Sequence[LayerItem] = (),
        saved_input: Tensor | None = None,
        is_narrow: bool = True,
        narrowed_before_gather: Operands = NEITHER,
        split: Split = "none",
    ) -> Tensor:
        """Append one matrix product with the weight stored, and the operands narrowed, as the precision says.

        Routers and output projections are never narrow (Megatron-Core and torchtitan leave them in 16 bits).
        ``narrowed_before_gather`` is as for :meth:`quantised_product`, ``split`` how tensor-parallel ranks share the weight.
        """
        setting = self.setting
        split = split if setting.tp > 1 else "none"
        weight = self.tape.weight(rows * columns, self.weight_dtype)
        vector = self.tape.weight(rows, self.weight_dtype) if bias else None
        taken = cast(self.tape, x, self.dtype)
        if self.is_autocast:
            vector = cast(self.tape, vector, self.dtype) if vector is not None else None
            weight = cast(self.tape, weight, self.dtype)
        if is_narrow and not self.is_unquantised(name) and setting.recipe.quantisation is not None:
            shape = GemmShape(m=x.n_elements // columns, n=rows, k=columns, name=name)
            y = self.quantised_product(
                taken, weight, shape, before=before, between=between, saved_input=saved_input,
                narrowed_by_producer=self._narrowed_by_producer(name), narrowed_before_gather=narrowed_before_gather,
                split=split,
            )  # fmt: skip
        else:
            y = product(
                self.tape, taken, weight, rows=rows, columns=columns, dtype=setting.gemm_dtype, name=name, before=before,
                between=between, saves=None if saved_input is None else [saved_input, weight], bias=vector,
                wgrad_bytes=self.wgrad_bytes, is_frozen=setting.lora_rank > 0, split=split,
            )  # fmt: skip
        return self._with_adapter(y, x, rows, columns, name) if self.is_adapted(name) else y

    def is_unquantised(self, name: str) -> bool:
        """Whether a plan leaves a product in 16 bits that the precision would narrow."""
        return _MODULES.get(name, "") in self.setting.unquantised_modules

    def is_adapted(self, name: str) -> bool:
        """Whether a product has a low-rank adapter beside it."""
        return _PROJECTIONS.get(name, "") in self.setting.lora_targets

    def _with_adapter(self, frozen: Tensor, x: Tensor, rows: int, columns: int, name: str) -> Tensor:
        """Append the adapter of a frozen product: down to the rank, up again, scaled, and added.

        Both factors are whole on every tensor-parallel rank, up to the share of rows or columns that the product has.

        References
        ----------
        Hu et al., LoRA, arXiv:2106.09685, section 4.1.
        """
        rank, tape, dtype = self.setting.lora_rank, self.tape, self.setting.gemm_dtype
        held = self.dtype
        if self.setting.adapters_fp32:
            held = dtype = "fp32"
        self.adapters += [
            Parameter(name=f"{name}.lora_a", n_elements=rank * columns, is_matrix=True),
            Parameter(name=f"{name}.lora_b", n_elements=rows * rank, is_matrix=True),
        ]  # fmt: skip
        x = cast(tape, x, held)
        width = self.wgrad_bytes
        low = product(tape, x, tape.weight(rank * columns, held), rows=rank, columns=columns, dtype=dtype,
                      name="lora_a", wgrad_bytes=width)  # fmt: skip
        high = product(tape, low, tape.weight(rows * rank, held), rows=rows, columns=rank, dtype=dtype,
                       name="lora_b", wgrad_bytes=width)  # fmt: skip
        return cast(tape, add(tape, frozen, scale(tape, high)), frozen.dtype)

    def quantised_product(
        self,
        x: Tensor,
        weight: Tensor,
        shape: GemmShape,
        *,
        before: Sequence[LayerItem] = (),
        between: Sequence[LayerItem] = (),
        saved_input: Tensor | None = None,
        narrowed_by_producer: Operands = NEITHER,
        narrowed_before_gather: Operands = NEITHER,
        result_bytes: tuple[float, float] = (0.0, 0.0),
        summing: float = 0.0,
        split: Split = "none",
    ) -> Tensor:
        """Append ``shape``, forward and backward, on operands that the precision's recipe narrows.

        What is ``narrowed_by_producer`` arrives narrow from the kernel that makes it, or with its scale where one serves all of it; what is
        ``narrowed_before_gather`` every rank narrowed its own share of. ``result_bytes`` is the traffic of an element of the result and of
        the input's gradient, 0 for that of its type; ``summing`` is what sums in the epilogue of the latter's product add. What is saved
        of the input is narrow, unless it is rebuilt before backward (Megatron-Core's ``save_original_input``); under sequence parallelism
        it is this rank's share ``saved_input``.
        """
        recipe, narrowing = self.setting.recipe, self._narrowing_of(shape)
        n_out = x.n_elements // shape.k * shape.n
        is_trained, gradient = self.setting.lora_rank == 0, Tensor(n_out, self.dtype, x.storage)
        quantise = partial(
            self._quantise, layouts=self.cast_layouts, n_pieces=shape.n_pieces, by_producer=narrowed_by_producer,
            before_gather=narrowed_before_gather,
        )  # fmt: skip
        casts, back = quantise(x), quantise(gradient, in_pass="backward")
        operands = {"input": x, "gradient": gradient}
        turned = [self._transposed(one) for name, one in operands.items() if name in narrowed_before_gather]
        if not self.keeps_quantised_weights and "input" not in narrowed_before_gather:
            casts += self._quantise(weight, 2)
        held = x if saved_input is None else saved_input
        is_narrow = self.saves_quantised and not held.storage.is_rebuilt
        narrow = replace(shape, dtype=recipe.products, output_bytes=result_bytes[0])
        gradient_in = replace(narrow, n=shape.k, k=shape.n, kernel_pass="dgrad", output_bytes=result_bytes[1], summing=summing)  # fmt: skip
        wgrad = recipe.unquantised_products if narrowing.unquantised_wgrad else recipe.products
        weight_gradient = replace(
            shape, m=shape.n, n=shape.k, k=shape.m, kernel_pass="wgrad", dtype=wgrad, output_bytes=self.wgrad_bytes, split=split,
        )  # fmt: skip
        return self.tape.record(
            [x, weight],
            n_out,
            self.dtype,
            forward=[*casts, narrow],
            backward=[
                *back,
                *(before if is_trained else ()),
                gradient_in,
                *between,
                *(turned if is_trained and self.turns_gathered else ()),
                *([weight_gradient] if is_trained else ()),
            ],
            saves=[held] if is_trained and not is_narrow else [],
            saved_bytes=round(held.n_elements * narrowing.element_bytes) if is_trained and is_narrow else 0,
            kept=True,
        )

    def _narrowing_of(self, shape: GemmShape) -> Quantisation:
        """Return how a product's operands are narrowed, which are made of whole blocks."""
        narrowing = self.setting.recipe.quantisation
        assert narrowing is not None
        check_blocks(shape, self.setting.precision, narrowing.block)
        return narrowing

    @property
    def cast_layouts(self) -> int:
        """Layouts that a cast writes: rows, and columns where they are for a weight's gradient."""
        return 1 if self.setting.lora_rank else 2

    @property
    def fused_cast_bytes(self) -> float:
        """Bytes per element that the operations of a dense MLP write narrow for the product behind them, 0 where they do not."""
        narrowing = self.setting.recipe.quantisation
        if narrowing is None or narrowing.reads > 1 or not self.setting.fuses_operations:
            return 0.0
        return self.cast_layouts * narrowing.element_bytes

    def _quantise(
        self,
        x: Tensor,
        layouts: int,
        *,
        in_pass: Pass = "forward",
        n_pieces: int = 1,
        by_producer: Operands = NEITHER,
        before_gather: Operands = NEITHER,
    ) -> list[LayerItem]:
        """Return the kernels that narrow a tensor, or its pieces one by one, along rows and, with 2 ``layouts``, columns, as one.

        There is none where it is an operand that was narrowed ``before_gather``, or that what makes it narrows (``by_producer``), as it can
        unless one scale serves all; then it finds that one. What a norm makes narrow has its rows only.
        """
        narrowing = self.setting.recipe.quantisation
        assert narrowing is not None
        operand: Literal["input", "gradient"] = "gradient" if in_pass == "backward" else "input"
        reads = narrowing.reads - (operand in by_producer or x.is_prepared)
        if operand in before_gather or not reads:
            is_turned = x.is_prepared and layouts > 1 and operand not in before_gather
            return [self._transposed(x, in_pass)] if is_turned else []
        reads += layouts > 1 and narrowing.transforms_columns and self.setting.casts_columns_apart
        read, written = reads * x.n_bytes, layouts * x.n_elements * narrowing.element_bytes
        n_pieces *= narrowing.launches if n_pieces > 1 else 1
        cast = kernel(narrowing.kernel, x.n_elements, read, written, "fp8", in_pass=in_pass)
        return [replace(cast, n_pieces=n_pieces)]

    def _narrowed_by_producer(self, name: str) -> Operands:
        """Return which operands of a product the operations around it make narrow, or with their scale."""
        return _MADE_BY_NEIGHBOURS.get(name, NEITHER) if self.setting.fuses_operations else NEITHER

    def _quantise_share(
        self, x: Tensor, name: str, *, in_pass: Literal["forward", "backward"] = "forward"
    ) -> list[LayerItem]:
        """Return what narrows this rank's share ``x`` of a tensor that is gathered for a product.

        Where its scale must be known before, the ranks agree on it. With one scale for the tensor only rows are gathered, and
        transposed behind (:attr:`turns_gathered`); with one for each block columns are narrowed here as well, and gathered in backward.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/module``, ``_customize_quantizers_float8_current_scaling`` (``amax_reduction_group``);
        pytorch/ao, ``float8/float8_utils.py``, ``tensor_to_amax``.
        """
        narrowing = self.setting.recipe.quantisation
        assert narrowing is not None
        layouts = 1 if narrowing.is_by_tensor else self.cast_layouts
        casts = self._quantise(x, layouts, in_pass=in_pass, by_producer=self._narrowed_by_producer(name))
        amax = CommunicationPoint(operator="amax", n_bytes=4, kernel_pass=in_pass)
        return [amax, *casts] if narrowing.reads > 1 else casts

    @property
    def turns_gathered(self) -> bool:
        """Whether what was gathered narrow along rows is transposed for the gradient of a weight, whose operands are columns.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/distributed.py``, ``_all_gather_fp8``.
        """
        narrowing = self.setting.recipe.quantisation
        return narrowing is not None and narrowing.is_by_tensor and self.cast_layouts > 1

    @property
    def _waits_for_gathers(self) -> bool:
        narrowing = self.setting.recipe.quantisation
        return self.setting.waits_for_gathers and narrowing is not None and narrowing.is_by_tensor

    def _transposed(self, x: Tensor, in_pass: Pass = "wgrad") -> LayerItem:
        """Return the kernel that transposes a narrow tensor."""
        return kernel("transpose", x.n_elements, x.n_elements, x.n_elements, "fp8", in_pass=in_pass)

    def point_bytes(self, width: int) -> int:
        """Bytes of a whole ``[tokens, width]`` tensor that the tensor-parallel group exchanges."""
        return self.setting.tokens * width * DTYPE_BYTES[self.dtype]

    def gathers_narrow(self, name: str, *, is_narrow: bool = True) -> bool:
        """Whether ranks quantise their shares of what they gather for a product.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/distributed.py``, ``gather_along_first_dim`` and ``pytorch/module/base.py``,
        ``grad_output_preprocess``; pytorch/ao, ``float8/float8_tensor_parallel.py``, which casts for scales per tensor only.
        """
        narrowing = self.setting.recipe.quantisation
        is_cast = is_narrow and not self.is_unquantised(name) and narrowing is not None and narrowing.is_gathered
        return is_cast and self.setting.is_sequence_parallel

    def narrow_bytes(self, width: int, *, is_gradient: bool = False) -> int:
        """Bytes of a whole ``[tokens, width]`` tensor that is gathered narrow.

        A gradient is quantised along rows for one product of backward and along columns for the other. Where one scale serves all
        of it the columns are the rows transposed; with a scale for each block both are gathered.
        """
        narrowing = self.setting.recipe.quantisation
        assert narrowing is not None
        copies = 2 if is_gradient and not narrowing.is_by_tensor else 1
        return round(copies * self.setting.tokens * width * narrowing.element_bytes)

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
        """Append the column-parallel products that open a tensor-parallel region: one output, or one per entry of ``rows``."""
        columns = columns or self.spec.hidden
        widths = [sum(rows)] if self.merges_columns else list(rows)
        if self.setting.tp == 1:
            return [self.linear(x, n, columns, bias=bias, name=name, is_narrow=is_narrow) for n in widths]
        # an adapter takes the same input in 16 bits (Transformer Engine's ``return_layernorm_output_gathered``)
        is_cast = self.gathers_narrow(name, is_narrow=is_narrow) and not self.is_adapted(name)
        n_bytes = self.point_bytes(columns)
        gathered_bytes = self.narrow_bytes(columns) if is_cast else n_bytes
        casts = self._quantise_share(x, name) if is_cast else []
        if is_cast and not self.keeps_quantised_weights:  # weights, too, before what products wait for
            casts += [item for n in widths for item in self._quantise(Tensor(n * columns, self.dtype, x.storage), 2)]
        narrowed = INPUT if is_cast else NEITHER
        enter = CommunicationPoint(operator="f", n_bytes=gathered_bytes)
        if not self.merges_columns:
            leave = CommunicationPoint(operator="f", n_bytes=n_bytes, kernel_pass="backward")
            entered = (
                self._enter_each(x, [*casts, enter], leave, len(widths))
                if self.setting.reduces_by_product
                else [self._enter(x, [*casts, enter], [leave])] * len(widths)
            )
            linear = partial(
                self.linear, bias=bias, name=name, is_narrow=is_narrow, narrowed_before_gather=narrowed, split="column"
            )
            return [linear(one, n, columns) for one, n in zip(entered, widths, strict=True)]
        n_beside = int(self.setting.reduces_beside and not self.setting.lora_rank)
        n_beside_again = 0 if is_cast and self._waits_for_gathers else n_beside
        again = CommunicationPoint(operator="f", n_bytes=gathered_bytes, overlaps=n_beside_again, is_bulk=True)
        n_beside *= 1 + (is_cast and self.turns_gathered)
        is_bulk = self.setting.lora_rank == 0  # beside the gradient of the weight, where there is one
        reduce = replace(again, n_bytes=n_bytes, kernel_pass="backward", overlaps=n_beside, is_bulk=is_bulk)
        return [
            self.linear(
                self._enter(x, [*casts, enter], []),
                widths[0],
                columns,
                bias=bias,
                name=name,
                before=[again] if self.setting.is_sequence_parallel else [],
                between=[reduce],
                saved_input=x,
                is_narrow=is_narrow,
                narrowed_before_gather=narrowed,
                split="column",
            )
        ]

    def _enter(self, x: Tensor, forward: Sequence[LayerItem], backward: Sequence[LayerItem]) -> Tensor:
        is_split = self.setting.is_sequence_parallel
        n_elements = x.n_elements * (self.setting.tp if is_split else 1)
        apart = self._laid_out(n_elements, x.dtype, "backward") if backward else []
        entered = self.tape.record(
            [x],
            n_elements,
            x.dtype,
            forward=[*forward, *self._laid_out(n_elements, x.dtype)],
            backward=[*apart, *backward],
            view=None if is_split else x,
            gradient="new" if is_split else "alias",
        )
        entered.is_prepared = x.is_prepared and not is_split
        return entered

    def _enter_each(
        self, x: Tensor, enter: Sequence[LayerItem], leave: CommunicationPoint, number: int
    ) -> list[Tensor]:
        """Enter a tensor-parallel region once for each of several products that read ``x``.

        A compiler finds that they gather the same and does it once (common subexpressions of a graph whose collectives are functions,
        pytorch/pytorch, ``torch/_functorch/compile_utils.py``, ``fx_graph_cse``); gradients differ and are reduced one by one.
        """
        if self.setting.gathers_by_product or not self.setting.is_sequence_parallel:
            return [self._enter(x, enter, [leave]) for _ in range(number)]
        inside = self._enter(x, enter, [])
        apart = [*self._laid_out(inside.n_elements, x.dtype, "backward"), leave]
        return [
            self.tape.record([inside], inside.n_elements, x.dtype, forward=[], backward=apart, view=inside)
            for _ in range(number)
        ]

    def gathered_logits(self, logits: Tensor) -> Tensor:
        """Append the gathering of vocabulary-parallel logits for a loss over the whole vocabulary, where ranks have parts."""
        if self.setting.tp == 1 or self.setting.splits_vocabulary:
            return logits
        whole = Tensor(logits.n_elements * self.setting.tp, logits.dtype, logits.storage)
        gathered = self.tape.record(
            [logits],
            whole.n_elements,
            logits.dtype,
            forward=[CommunicationPoint(operator="logits", n_bytes=whole.n_bytes), map_kernel("cat", [whole], [whole])],
            backward=[map_kernel("copy", [logits], [logits], in_pass="backward")],
        )
        return gathered.in_pieces(logits.n_pieces)

    def _laid_out(self, n_elements: int, dtype: str, in_pass: Pass = "forward") -> list[LayerItem]:
        """Return the kernel that lays out all ranks' tokens along the sequence, or rank by rank, where there is one."""
        if not self.setting.is_sequence_parallel or not self.setting.copies_sequence:
            return []
        n_bytes = n_elements * DTYPE_BYTES[dtype]
        return [kernel("cat", n_elements, n_bytes, n_bytes, dtype, in_pass=in_pass)]

    def row(self, x: Tensor, columns: int, *, bias: bool = False, name: str = "gemm") -> Tensor:
        """Append the row-parallel product that closes a tensor-parallel region."""
        rows = self.spec.hidden
        is_cast = self.gathers_narrow(name)
        y = self.linear(
            x, rows, columns, bias=bias and not self.adds_bias_late(), name=name,
            narrowed_before_gather=GRADIENT if is_cast else NEITHER, split="row",
        )  # fmt: skip
        if self.setting.tp == 1:
            return y
        is_split = self.setting.is_sequence_parallel
        n_bytes = self.point_bytes(rows)
        gathered_bytes = self.narrow_bytes(rows, is_gradient=True) if is_cast else n_bytes
        share = Tensor(self.setting.tokens_outside * rows, y.dtype, y.storage)
        return self.tape.record(
            [y],
            self.setting.tokens_outside * rows,
            y.dtype,
            forward=[*self._laid_out(y.n_elements, y.dtype), CommunicationPoint(operator="g", n_bytes=n_bytes)],
            backward=[
                *(self._quantise_share(share, name, in_pass="backward") if is_cast else []),
                CommunicationPoint(operator="g", n_bytes=gathered_bytes, kernel_pass="backward"),
                *self._laid_out(y.n_elements, y.dtype, "backward"),
            ],
            view=None if is_split else y,
            gradient="new" if is_split else "alias",
            kept=is_split,  # torchtitan's list of kept operators (_op_sac_save_list) has reduce-scatter, not all-reduce
        )

    # ---- attention --------------------

    def attention_shape(self, *, causal: bool, head_dim: int = 0, kind: str = "*") -> AttentionShape:
        """Return the shape of this rank's core attention, whose keys are those that its kind lets a token see.

        Documents packed into a sequence are sequences to fused attention, which is told where each of them begins; ranks that share a
        sequence have a part of each (NVIDIA/TransformerEngine, ``context_parallel.py``, ``thd_get_partitioned_indices``). Its chunks are
        no sequences of their own there: a token sees half a chunk before it at the mean. Unequal documents that do not divide the
        sequence are as many equal parts of it, each of which hides what a document of their length would not see.
        """
        setting = self.setting
        window = self.spec.sliding_window if kind == "w" and causal else 0
        if kind == "c" and causal and setting.cp > 1:
            window = self.spec.attention_chunk // 2
        chunk = self.spec.attention_chunk if kind == "c" and setting.cp == 1 else 0
        n_chunks = min(setting.sequence, setting.sequence_length // min(filter(None, (setting.attended_length, chunk))))
        whole = AttentionShape(
            window=window if window < setting.sequence_length else 0,
            batch=setting.micro_batch * n_chunks,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=setting.sequence // n_chunks,
            seq_k=setting.sequence_length // n_chunks,
            head_dim=head_dim or self.head_dim,
            causal=causal,
            dtype=self.dtype,
            has_dropout=self.spec.dropout > 0,
        )
        return _within(whole, setting.attended_length) if setting.unequal_length else whole

    def split_heads(self, merged: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        """Append the views of query, key and value in their merged projection."""
        sizes = [self.setting.tokens * width for width in widths]
        gather = map_kernel("cat", [merged], [merged], in_pass="backward")
        is_merged = self.merges_gradients or self.setting.fuses_operations
        return self.tape.split(merged, sizes, [] if is_merged else [gather])

    def split_pair(self, merged: Tensor) -> tuple[Tensor, ...]:
        """Append the views of the two halves of a merged projection."""
        gather = map_kernel("cat", [merged], [merged], in_pass="backward")
        return self.tape.split(merged, [merged.n_elements // 2] * 2, [gather])

    def core_attention(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append attention proper, with the exchange of keys and values under context parallelism."""
        k, v = self.exchange_context(k, v)
        if self.setting.attention != "flash":
            return self.eager_attention(q, k, v, shape)
        return self.flash(q, k, v, shape)

    def exchange_context(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mark where keys and values are exchanged, which the attention kernel may run beside."""
        if self.setting.cp == 1:
            return k, v
        n_bytes = (k.n_bytes + v.n_bytes) * self.setting.cp
        point = CommunicationPoint(operator="context", n_bytes=n_bytes, overlaps=1)
        back = CommunicationPoint(operator="context", n_bytes=n_bytes, kernel_pass="backward", overlaps=1)
        k = self.tape.record([k], k.n_elements, k.dtype, forward=[point], backward=[back], view=k, gradient="alias")
        return k, v

    def flash(self, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append the fused attention kernel."""
        q, k, v = (cast(self.tape, t, self.dtype) for t in (q, k, v))
        return flash_attention(self.tape, q, k, v, shape, self.setting.tokens)

    def scores(self, q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
        """Append ``q k^T`` over all heads."""
        batch = shape.batch * shape.heads
        return batched_product(
            self.tape,
            q,
            k,
            batch=batch,
            m=shape.seq_q,
            n=shape.seq_k,
            k=self.query_dim,
            dtype=self.setting.gemm_dtype,
            name="bmm_qk",
        )

    def weighted_values(self, weights: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
        """Append the product of weights and values, and its copy back to ``[tokens, heads, head_dim]``."""
        context = batched_product(
            self.tape,
            weights,
            v,
            batch=shape.batch * shape.heads,
            m=shape.seq_q,
            n=self.value_dim,
            k=shape.seq_k,
            dtype=self.setting.gemm_dtype,
            name="bmm_pv",
        )
        return copy(self.tape, context)


def _within(shape: AttentionShape, length: int) -> AttentionShape:
    """Return attention of which each query counts ``length`` keys at most, and half of them are before it at the mean.

    Under a causal mask ``k`` keys and a window ``w`` leave ``k^2 / 2 - (k - w)^2 / 2`` pairs, which are ``k x length / 2``.
    """
    keys = shape.seq_k
    if length >= keys:
        return shape
    if not shape.causal:
        return replace(shape, seq_k=length)
    window = max(1, round(keys - math.sqrt(keys * (keys - length))))
    counted = min(shape.counted_keys, length)
    return replace(shape, window=min(window, shape.window or window), counted=counted)
