"""A symbolic autograd tape: operations on sizes, from which kernel lists and memory follow.

A family writes its forward pass once, as operations on :class:`Tensor` (a size and a dtype, no data). The
tape keeps what each operation launches forward and backward and which tensors it holds for backward, and
derives what autograd derives: the backward list in reverse order, the additions where a tensor has several
consumers, the storages alive between forward and backward (shared ones once), and the peak while either
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import GemmShape, Launch, Layer, LayerItem, Parameter, PointwiseShape, Role
from simulator.models.liveness import Node, Storage, Tensor, backward_extra_bytes, forward_extra_bytes

#: bytes from which on a tensor is worth a copy to the host: 2**20 elements of 16 bits (Megatron-Core's ``min_offloaded_tensor_size``)
LEAST_OFFLOADED_BYTES = 2 * 2**20

#: what a layer keeps: everything autograd saves, its inputs only, or inputs and the outputs of costly
#: operators
Checkpoint = Literal["none", "full", "operators"]


@dataclass(slots=True)
class Tape:
    """Records the forward pass of one layer."""

    nodes: list[Node] = field(default_factory=list)  #: In forward order.
    inputs: list[Tensor] = field(default_factory=list)  #: What comes from the previous layer.
    region: str = ""  #: Name of the open recompute region; empty outside.
    is_discarding: bool = False  #: Whether the open region does not even keep what it returns.
    is_captured: bool = False  #: Whether what is launched now is part of a CUDA graph.
    is_offloading: bool = False  #: Whether what is saved now waits in host memory.

    def input(self, n_elements: int, dtype: str) -> Tensor:
        """Return the tensor that comes from the previous layer."""
        tensor = Tensor(n_elements, dtype, Storage(n_elements * DTYPE_BYTES[dtype]))
        self.inputs.append(tensor)
        return tensor

    def weight(self, n_elements: int, dtype: str) -> Tensor:
        """Return a parameter: held by the model, and so is its gradient."""
        return Tensor(n_elements, dtype, Storage(n_elements * DTYPE_BYTES[dtype], owner="parameter"))

    def shared(self, n_elements: int, dtype: str, *, needs_gradient: bool = False) -> Tensor:
        """Return a tensor that several layers use and others count: masks, tables, T5's encoding."""
        storage = Storage(n_elements * DTYPE_BYTES[dtype], owner="model")
        return Tensor(n_elements, dtype, storage, needs_gradient)

    @contextmanager
    def recomputed(self, region: str, *, is_discarding: bool = False) -> Iterator[None]:
        """Drop what the operations inside save, and launch them again.

        Before the layer's backward; or, in the region ``inline``, where backward first needs their result. A region inside
        another one is part of it.

        Parameters
        ----------
        is_discarding : bool
            Whether what the region returns is dropped, too (Megatron-Core's ``CheckpointWithoutOutput``).
        """
        outer = self.region, self.is_discarding
        if not self.region:
            self.region, self.is_discarding = region, is_discarding
        try:
            yield
        finally:
            self.region, self.is_discarding = outer

    @contextmanager
    def captured(self, *, is_captured: bool = True) -> Iterator[None]:
        """Launch what the operations inside launch, in both passes, from a CUDA graph."""
        outer, self.is_captured = self.is_captured, self.is_captured or is_captured
        try:
            yield
        finally:
            self.is_captured = outer

    @contextmanager
    def offloading(self) -> Iterator[None]:
        """Let what the operations inside hold, and no other does, wait in host memory from forward to backward."""
        outer, self.is_offloading = self.is_offloading, True
        try:
            yield
        finally:
            self.is_offloading = outer

    def record(
        self,
        inputs: Sequence[Tensor],
        n_elements: int,
        dtype: str,
        *,
        forward: Sequence[LayerItem] = (),
        backward: Sequence[LayerItem] = (),
        saves: Sequence[Tensor] = (),
        saves_output: bool = False,
        saved_bytes: int = 0,
        view: Tensor | None = None,
        gradient: Literal["new", "alias", "none"] = "new",
        kept: bool = False,
    ) -> Tensor:
        """Append one operation and return its output.

        Parameters
        ----------
        inputs : sequence of Tensor
            All that it reads; the gradient flows to those that need one.
        n_elements, dtype : int, str
            Of the output.
        forward, backward : sequence of LayerItem
            What it launches; backward in launch order.
        saves : sequence of Tensor
            Inputs held for backward.
        saves_output : bool
            Whether the output is held for backward.
        saved_bytes : int
            What else is held: masks, statistics.
        view : Tensor, optional
            The tensor whose storage the output shares.
        gradient : str
            ``alias`` if the inputs' gradients share the storage of the output's, ``none`` if there are none.
        kept : bool
            Whether selective checkpointing by operator keeps the output.
        """
        storage = view.storage if view else Storage(n_elements * DTYPE_BYTES[dtype], is_rebuilt=self.is_discarding)
        needs_gradient = gradient != "none" and any(t.needs_gradient for t in inputs)
        output = Tensor(n_elements, dtype, storage, needs_gradient)
        held: list[Storage] = []
        if needs_gradient:
            held = [t.storage for t in saves] + ([storage] if saves_output else [])
            held += [Storage(saved_bytes)] if saved_bytes else []
        self.nodes.append(
            Node(
                inputs=tuple(inputs),
                outputs=(output,),
                forward=self._launched(forward),
                backward=self._launched(backward) if needs_gradient else (),
                saved=tuple(s for s in dict.fromkeys(held) if s.owner == "layer"),
                is_alias=gradient == "alias",
                region=self.region,
                is_kept=kept,
                is_captured=self.is_captured,
                is_offloading=self.is_offloading,
            )
        )
        return output

    def _launched(self, items: Sequence[LayerItem]) -> tuple[LayerItem, ...]:
        if not self.is_captured:
            return tuple(items)
        return tuple(replace(item, is_captured=True) if isinstance(item, Launch) else item for item in items)

    def split(self, source: Tensor, sizes: Sequence[int], backward: Sequence[LayerItem]) -> tuple[Tensor, ...]:
        """Append views of the parts of a tensor, whose gradients ``backward`` gathers into one buffer."""
        outputs = tuple(Tensor(n, source.dtype, source.storage, source.needs_gradient) for n in sizes)
        launched = self._launched(backward)
        self.nodes.append(
            Node(inputs=(source,), outputs=outputs, backward=launched, region=self.region, is_captured=self.is_captured)
        )
        return outputs

    def finish(
        self,
        name: str,
        output: Tensor | None,
        *,
        role: Role = "block",
        parameters: Sequence[Parameter] = (),
        checkpoint: Checkpoint = "none",
        stops_early: bool = False,
        workspace_bytes: int = 0,
    ) -> Layer:
        """Turn what was recorded into a :class:`Layer`.

        Parameters
        ----------
        output : Tensor or None
            What the next layer gets; None for the head, whose backward starts at its loss.
        checkpoint : str
            What is kept; regions opened with :meth:`recomputed` are recomputed in any case.
        stops_early : bool
            Whether recomputation ends as soon as all that was saved is there again (``early_stop`` of PyTorch's
            non-reentrant checkpoint): the layer's last product, its reduction and residual are not launched again.
        workspace_bytes : int
            Memory that the operations cannot tell, alive at the peak of backward.
        """
        if checkpoint == "operators":
            self._drop_every_second_product()
        saved = self._saved(checkpoint)
        n_saved = sum(s.n_bytes for s in saved)
        everything = {s: False for node in self.nodes for s in node.saved} | saved
        dropped = sum(s.n_bytes for s in everything) - n_saved
        extra = max(
            forward_extra_bytes(self.nodes, self.inputs, saved, output),
            dropped + backward_extra_bytes(self.nodes, output) + workspace_bytes,
        )
        nodes = _until_all_is_saved(self.nodes) if stops_early and checkpoint != "none" else self.nodes
        moved = sum(s.n_bytes for s, is_away in saved.items() if is_away and s.n_bytes >= LEAST_OFFLOADED_BYTES)
        again = [n for n in nodes if _is_recomputed(n, checkpoint) and not _is_inline(n, checkpoint)]
        return Layer(
            name=name,
            role=role,
            forward=tuple(item for node in self.nodes for item in node.forward),
            backward=self._backward(checkpoint),
            recompute=tuple(item for node in again for item in node.forward),
            parameters=tuple(parameters),
            saved_bytes=n_saved - moved,
            offloaded_bytes=moved,
            transient_bytes=extra + 2 * moved,
            output_bytes=output.n_bytes if output is not None else 0,
        )

    def _drop_every_second_product(self) -> None:
        """Recompute the second, fourth ... matrix product, as torchtitan's selective policy does."""
        products = [n for n in self.nodes if n.is_kept and any(isinstance(i, GemmShape) for i in n.forward)]
        for node in products[1::2]:
            node.is_kept = False

    def _saved(self, checkpoint: Checkpoint) -> dict[Storage, bool]:
        """Return the storages held between forward and backward, in order, and whether they wait in host memory."""
        if checkpoint == "full":
            return {t.storage: False for t in self.inputs}
        produced: dict[Storage, Node] = {}
        for node in self.nodes:
            for output in node.outputs:
                produced.setdefault(output.storage, node)
        saved: dict[Storage, bool] = {}
        for node in self.nodes:
            held: Sequence[Storage] = node.saved
            is_away = node.is_offloading and not _is_recomputed(node, checkpoint)
            if _is_recomputed(node, checkpoint):
                held = [t.storage for t in node.inputs if t.needs_gradient and t.storage.owner == "layer"]
            for storage in held:
                maker = produced.get(storage)
                if maker is None or not _is_dropped(maker, node, checkpoint):
                    saved[storage] = is_away and saved.get(storage, True)
        return saved

    def _backward(self, checkpoint: Checkpoint) -> tuple[LayerItem, ...]:
        """Return the backward list, with an addition wherever the gradients of several consumers meet."""
        items: list[LayerItem] = []
        reached: set[Tensor] = set()
        inline = {node.outputs[0].storage: node for node in self.nodes if _is_inline(node, checkpoint)}
        for node in reversed(self.nodes):
            if not any(output.needs_gradient for output in node.outputs):
                continue
            for storage in node.saved:
                maker = inline.pop(storage, None)
                items += _in_backward(maker.forward) if maker is not None else ()
            items += node.backward
            for tensor in node.inputs:
                if not tensor.needs_gradient or tensor.storage.owner == "parameter":
                    continue
                if tensor in reached or tensor.storage.owner == "model":
                    items.append(replace(gradient_addition(tensor), is_captured=node.is_captured))
                reached.add(tensor)
        return tuple(items)


def gradient_addition(tensor: Tensor) -> PointwiseShape:
    """Return the addition of a second gradient of a tensor to its first."""
    n_bytes = float(tensor.n_bytes)
    return PointwiseShape(
        name="add",
        n_elements=tensor.n_elements,
        read_bytes=2 * n_bytes,
        written_bytes=n_bytes,
        dtype=tensor.dtype,
        kernel_pass="backward",
    )


def _is_recomputed(node: Node, checkpoint: Checkpoint) -> bool:
    return bool(node.region) or checkpoint == "full" or (checkpoint == "operators" and not node.is_kept)


def _is_dropped(maker: Node, user: Node, checkpoint: Checkpoint) -> bool:
    """Tell whether what one node made is not kept for another: checkpointed regions keep what they return."""
    if not _is_recomputed(maker, checkpoint):
        return False
    is_returned = maker.region not in ("", "inline", user.region) and checkpoint == "none"
    return not is_returned or any(output.storage.is_rebuilt for output in maker.outputs)


def _until_all_is_saved(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the operations up to the one that saves last, without it where it saves its inputs only."""
    for index in range(len(nodes) - 1, -1, -1):
        if nodes[index].saved:
            taken = {tensor.storage for tensor in nodes[index].inputs}
            return nodes[: index if taken.issuperset(nodes[index].saved) else index + 1]
    return ()


def _is_inline(node: Node, checkpoint: Checkpoint) -> bool:
    return node.region == "inline" and checkpoint == "none"


def _in_backward(items: Sequence[LayerItem]) -> list[LayerItem]:
    return [replace(i, kernel_pass="backward") if isinstance(i, PointwiseShape) else i for i in items]
