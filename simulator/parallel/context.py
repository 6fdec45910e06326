"""Context parallelism: how keys and values reach the queries, and what attention becomes by it.

A layer marks the exchange and runs the attention of a rank's queries over the whole sequence; this module turns both into

- ``all_gather``: keys and values are gathered before attention, again in backward, and their gradients scattered behind it
  (Llama 3);
- ``p2p``: attention in as many steps as ranks, each with one rank's keys and values, while the next ones travel around the
  ring (ring attention);
- ``a2a``: heads are exchanged for tokens before attention and back behind it (Ulysses).

With a causal mask, ranks that hold consecutive tokens have unequal work; the last one sets the pace. ``cp_load_balance`` gives
every rank a chunk of the beginning and one of the end instead.

References
----------
Liu et al., ring attention, arXiv:2310.01889; Brandon et al., striped attention, arXiv:2311.09431; Jacobs et al., DeepSpeed
Ulysses, arXiv:2309.14509; Llama 3, arXiv:2407.21783, section 3.3.2; NVIDIA/TransformerEngine, ``context_parallel.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.dtypes import DTYPE_BYTES
from simulator.errors import InfeasiblePlanError
from simulator.models.layer import AttentionShape, CommunicationPoint, KernelShape, LayerItem, PointwiseShape
from simulator.plan import ParallelPlan
from simulator.program.op import Routed


class LayerCollective(NamedTuple):
    """One collective of a layer."""

    collective: str
    axis: str
    n_bytes: int  #: As nccl-tests counts it.
    name: str = "context"
    overlaps: int = 0  #: Kernels behind it that may run beside it.
    is_bulk: bool = False  #: Whether no product waits for it piece by piece, or brings it so.
    waits: bool = False  #: Whether the host waits for what stands before it.
    routed: Routed | None = None  #: Tokens that a dispatcher's own kernels carry.


Item = LayerItem | LayerCollective


def exchange_context(items: Sequence[LayerItem], plan: ParallelPlan) -> list[Item]:
    """Replace the marked exchanges of keys and values, and the attention between them, by what a plan does."""
    marks = [i for i, item in enumerate(items) if isinstance(item, CommunicationPoint) and item.operator == "context"]
    if plan.cp == 1 or not marks:
        return [item for i, item in enumerate(items) if i not in marks]
    expand = {"all_gather": _all_gather, "p2p": _ring, "a2a": _all_to_all}[plan.context_exchange]
    result: list[Item] = []
    start = 0
    for mark in marks:
        point = items[mark]
        assert isinstance(point, CommunicationPoint)
        is_forward = point.kernel_pass == "forward"
        core = _core(items, mark, is_forward=is_forward)
        kernels = [items[i] for i in core]
        first, last = (mark, core[-1] if core else mark) if is_forward else (core[0] if core else mark, mark)
        result += items[start:first]
        result += expand([k for k in kernels if not isinstance(k, CommunicationPoint)], point.n_bytes, plan, is_forward)
        start = last + 1
    return result + list(items[start:])


def _core(items: Sequence[LayerItem], mark: int, *, is_forward: bool) -> list[int]:
    """Positions of the attention kernels that belong to an exchange: up to the fused one, or none of eager attention."""
    order = range(mark + 1, len(items)) if is_forward else range(mark - 1, -1, -1)
    for index in order:
        item = items[index]
        if isinstance(item, CommunicationPoint):
            break
        if isinstance(item, AttentionShape):
            return list(range(mark + 1, index + 1)) if is_forward else list(range(index, mark))
    return []


def _paced(shape: AttentionShape, plan: ParallelPlan) -> AttentionShape:
    """Return the attention of the rank with most work: its queries against the keys that they see at the mean."""
    if not shape.causal:
        return shape
    n_seen = max(1, round(_seen_pairs(shape, plan) / shape.seq_q))
    return replace(shape, causal=False, seq_k=n_seen, window=0, counted=shape.counted_keys)


def _seen_pairs(shape: AttentionShape, plan: ParallelPlan) -> float:
    """Return the pairs of a query of a rank and a key that it computes: of the last rank unless the load is balanced."""
    whole = _under_mask(shape.seq_k, shape.reach)
    if plan.cp_load_balance:
        return whole * shape.seq_q / shape.seq_k
    return whole - _under_mask(shape.seq_k - shape.seq_q, shape.reach)


def _under_mask(n_tokens: int, window: int) -> float:
    """Return the pairs under a causal mask, within a window where there is one.

    Examples
    --------
    >>> _under_mask(8, 0), _under_mask(8, 4)
    (32.0, 24.0)
    """
    return n_tokens**2 / 2.0 - (max(0, n_tokens - window) ** 2 / 2.0 if window else 0.0)


def _all_gather(kernels: Sequence[KernelShape], n_bytes: int, plan: ParallelPlan, is_forward: bool) -> Iterator[Item]:
    yield LayerCollective("all_gather", "cp", n_bytes)
    for kernel in kernels:
        yield _paced(kernel, plan) if isinstance(kernel, AttentionShape) else kernel
    if not is_forward:
        yield LayerCollective("reduce_scatter", "cp", n_bytes)


def _ring(kernels: Sequence[KernelShape], n_bytes: int, plan: ParallelPlan, is_forward: bool) -> Iterator[Item]:
    """Attend to one rank's keys and values per step, while those of the next step, and gradients behind, travel."""
    for kernel in kernels:
        if isinstance(kernel, AttentionShape):
            yield from (_ring_forward if is_forward else _ring_backward)(_Ring(kernel, n_bytes // plan.cp, plan))
        else:
            yield kernel


@dataclass(frozen=True, slots=True)
class _Ring:
    """One rank's part of ring attention: what it computes and lays out in a step.

    With a balanced load a rank needs, of an earlier rank's keys and values, one half for all of its queries; for those of a later
    rank one half of its queries. Either half is copied, and results are as large as what they came from: a step stands for the mean
    of both.
    """

    shape: AttentionShape
    chunk_bytes: int  #: Keys and values of a rank.
    plan: ParallelPlan

    @property
    def query_bytes(self) -> int:
        """Of a rank's queries, as of its output and the gradients of both."""
        shape = self.shape
        width = max(DTYPE_BYTES[shape.dtype], DTYPE_BYTES["bf16"])
        return shape.batch * shape.heads * shape.seq_q * shape.head_dim * width

    def parts(self) -> list[tuple[int, AttentionShape]]:
        """Return the steps in which anything is seen, by number, with their attention."""
        found = ((step, _ring_step(self.shape, self.plan, step)) for step in range(self.plan.cp))
        return [(step, replace(part, counted=0 if step else self.shape.counted_keys)) for step, part in found if part]

    def halves(self, step: int) -> bool:
        """Whether a step works on one half of its keys and values, or of its queries."""
        return step > 0 and self.shape.causal and self.plan.cp_load_balance

    def laid_out(self, step: int, n_query_like: int) -> list[Item]:
        """Return the copy of the half that a step takes, of the keys and values or of so many tensors like the queries."""
        n_bytes = (self.chunk_bytes / 2 + n_query_like * self.query_bytes / 2) / 2
        return [self.kernel("copy", n_bytes, n_bytes)] if self.halves(step) else []

    def kernel(self, name: str, read_bytes: float, written_bytes: float, step: int = 0) -> PointwiseShape:
        """Return a kernel over 16-bit tensors; behind a step that works on halves, over three quarters of them in the mean."""
        share = 0.75 if self.halves(step) else 1.0
        return PointwiseShape(
            name=name, n_elements=round(share * written_bytes) // DTYPE_BYTES["bf16"], read_bytes=share * read_bytes,
            written_bytes=share * written_bytes, kernel_pass="backward" if self.shape.kernel_pass == "backward" else "forward",
            is_captured=self.shape.is_captured,
        )  # fmt: skip

    def sent(self, n_chunks: int, beside: Sequence[Item]) -> Iterator[Item]:
        """Send keys and values, or their gradients, beside kernels."""
        if n_chunks:
            yield LayerCollective("send_recv", "cp", n_chunks * self.chunk_bytes, overlaps=len(beside))
        yield from beside


def _ring_forward(ring: _Ring) -> Iterator[Item]:
    """Attend step by step, then merge the outputs, weighted by their log-sum-exp.

    References
    ----------
    NVIDIA/TransformerEngine, ``context_parallel.py``, ``AttnFuncWithCPAndKVP2P.forward``: keys and values are put together for their
    way, halves made contiguous; ``flash_attn_fwd_out_correction_init`` reads one output and writes it, each
    ``flash_attn_fwd_out_correction`` (on the second half only for keys and values of later ranks) reads another one and adds it.
    """
    n_bytes, last = ring.query_bytes, ring.plan.cp - 1
    parts = ring.parts()
    yield ring.kernel("cat", ring.chunk_bytes, ring.chunk_bytes)
    for step, part in parts:
        yield from ring.sent(int(step < last), [*ring.laid_out(step, 1), part])
    for step, _ in parts:
        yield ring.kernel("add", 2 * n_bytes, n_bytes, step) if step else ring.kernel("mul", n_bytes, n_bytes)


def _ring_backward(ring: _Ring) -> Iterator[Item]:
    """Go round from the keys and values that came last to the rank's own, whose gradients come home while those are attended to.

    Transformer Engine's ring does, so that they make one way less than in others, where all of them are on their way until the end.

    References
    ----------
    NVIDIA/TransformerEngine, ``AttnFuncWithCPAndKVP2P.backward``: queries, output and its gradient, or keys and values, are halved;
    gradients of the queries are added up, those of keys and values put together and added to what arrives. PyTorch,
    ``torch/distributed/tensor/experimental``, ``_templated_ring_attention_backward``, exchanges once more behind the last step.
    """
    n_bytes, last = ring.query_bytes, ring.plan.cp - 1
    yield ring.kernel("copy", ring.chunk_bytes, ring.chunk_bytes)
    for i, (step, part) in enumerate(reversed(ring.parts())):
        total = ring.kernel("add", 2 * n_bytes, n_bytes, step) if i else ring.kernel("copy", n_bytes, n_bytes, step)
        joined = ring.kernel("cat", ring.chunk_bytes, ring.chunk_bytes, step)
        yield from ring.sent(int(i < last) + int(i > 0), [*ring.laid_out(step, 3), part, total, joined])
        yield ring.kernel("add" if i else "copy", (2 if i else 1) * ring.chunk_bytes, ring.chunk_bytes, step)
    if not ring.plan.framework_spec.calls_modules:
        yield LayerCollective("send_recv", "cp", ring.chunk_bytes)


def _ring_step(shape: AttentionShape, plan: ParallelPlan, step: int) -> AttentionShape | None:
    """Return one step: its own tokens under the mask, then other chunks, of which a balanced rank needs half; None if none is seen.

    Under a window the chunks just before a rank's own are all that is seen; keys that an index chooses, which may lie anywhere, are
    taken for as near.
    """
    chunk, is_split = (
        shape.seq_q,
        plan.cp_load_balance,
    )  # a balanced rank has a chunk of the beginning and one of the end
    if not shape.causal or (step == 0 and not shape.reach):
        return replace(shape, seq_k=chunk, window=0)
    most = chunk**2 / (2.0 if is_split else 1.0)
    if not shape.reach:
        return replace(shape, seq_k=max(1, round(most / chunk)), causal=False, window=0)
    own = 2 * _under_mask(chunk // 2, shape.reach) if is_split else _under_mask(chunk, shape.reach)
    others = max(0.0, _seen_pairs(shape, plan) - own)
    own += max(0.0, others - most * (plan.cp - 1))
    n_seen = own if step == 0 else min(most, others - most * (step - 1))
    return replace(shape, seq_k=max(1, round(n_seen / chunk)), causal=False, window=0) if n_seen > 0 else None


def _all_to_all(kernels: Sequence[KernelShape], n_bytes: int, plan: ParallelPlan, is_forward: bool) -> Iterator[Item]:
    """Exchange heads for tokens: queries, keys and values before attention and its output behind it, or their gradients.

    Attention in eight bits exchanges eight, cast before (NVIDIA/TransformerEngine, ``context_parallel.py``, ``AttnFuncWithCPAndQKVOA2A``).
    """
    shape = next((kernel for kernel in kernels if isinstance(kernel, AttentionShape)), None)
    if shape is None:  # refused with eager attention
        return
    if shape.heads % plan.cp or shape.kv_heads % plan.cp:
        raise InfeasiblePlanError(
            f"cp_comm_type=a2a: cp={plan.cp} does not divide the {shape.heads} heads "
            f"and {shape.kv_heads} key-value heads of a rank",
            hint="a smaller cp or tp, or --set cp_comm_type=p2p",
        )
    width = DTYPE_BYTES[shape.dtype]
    output_bytes = shape.batch * shape.heads * shape.seq_q * shape.head_dim * width
    key_bytes = n_bytes // plan.cp * width // max(width, DTYPE_BYTES["bf16"])  # marked before they are cast
    inputs = _exchanged(output_bytes + key_bytes, 3, shape, by_head=is_forward)
    output = _exchanged(output_bytes, 1, shape, by_head=not is_forward)
    yield from (kernel for kernel in kernels if not isinstance(kernel, AttentionShape))
    yield from inputs if is_forward else output
    for kernel in kernels:
        if isinstance(kernel, AttentionShape):
            yield replace(
                kernel, heads=kernel.heads // plan.cp, kv_heads=kernel.kv_heads // plan.cp, seq_q=kernel.seq_q * plan.cp
            )
    yield from output if is_forward else inputs


def _exchanged(n_bytes: int, n_tensors: int, shape: AttentionShape, *, by_head: bool) -> Iterator[Item]:
    """Exchange so many tensors, taken for equal, each of which is copied on both sides.

    Where tokens are given for heads (``by_head``), parts of the heads are laid out rank by rank before, and the parts of the
    sequence that come put in order behind; where heads are given back, the other way round.

    References
    ----------
    NVIDIA/TransformerEngine, ``context_parallel.py``, ``flash_attn_a2a_communicate``: ``movedim(-3, 0).contiguous()`` and a fused
    ``index_select``; DeepSpeed, ``deepspeed/sequence/layer.py``, ``single_all_to_all``, whose copies are two of the former kind.
    """
    part_bytes = n_bytes // n_tensors
    copy = PointwiseShape(
        name="copy", n_elements=part_bytes // DTYPE_BYTES[shape.dtype], read_bytes=float(part_bytes), written_bytes=float(part_bytes),
        dtype=shape.dtype, kernel_pass="backward" if shape.kernel_pass == "backward" else "forward", is_captured=shape.is_captured,
    )  # fmt: skip
    select = replace(copy, name="index_select")
    yield from [copy if by_head else select] * n_tensors
    yield LayerCollective("all_to_all", "cp", n_bytes)
    yield from [select if by_head else copy] * n_tensors
