"""Tensors without data, and how many of their bytes are alive while a layer runs forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import LayerItem


@dataclass(slots=True, eq=False)
class Storage:
    """A block of device memory; views share one."""

    #: Its size.
    n_bytes: int
    #: ``layer`` counts as an activation of the layer; a ``parameter`` and what the ``model`` shares between layers are
    #: counted elsewhere.
    owner: Literal["layer", "parameter", "model"] = "layer"
    #: Whether it is dropped after forward although others need it, and made again before backward.
    is_rebuilt: bool = False


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor without data."""

    n_elements: int  #: Number of elements.
    dtype: str  #: One of :data:`simulator.models.layer.DTYPE_BYTES`.
    storage: Storage  #: What it lives in, possibly larger.
    needs_gradient: bool = True  #: Whether backward reaches it.
    #: Whether the kernel that makes it narrows it for a product, or finds the scale to.
    is_prepared: bool = False
    #: Pieces in which it is made, used and dropped, so that only one of them is there at a time.
    n_pieces: int = 1

    @property
    def n_bytes(self) -> int:
        """Bytes of its elements."""
        return self.n_elements * DTYPE_BYTES[self.dtype]

    @property
    def held_bytes(self) -> int:
        """Bytes that are there at once."""
        return -(-self.n_bytes // self.n_pieces)

    def in_pieces(self, n_pieces: int) -> Tensor:
        """Make it, which is all of its storage, piece by piece."""
        self.n_pieces = n_pieces
        self.storage.n_bytes = self.held_bytes
        return self


@dataclass(slots=True, eq=False)
class Node:
    """One recorded operation."""

    #: What it reads and returns.
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    #: What it launches.
    forward: tuple[LayerItem, ...] = ()
    backward: tuple[LayerItem, ...] = ()
    saved: tuple[Storage, ...] = ()  #: What it holds for backward.
    is_alias: bool = False  #: The gradients of the inputs share the storage of the output's gradient.
    region: str = ""  #: The recompute region it belongs to.
    is_kept: bool = False  #: Whether selective checkpointing by operator keeps its output.
    is_captured: bool = False  #: Whether a CUDA graph launches it.
    is_offloading: bool = False  #: Whether what it holds waits in host memory.


def forward_extra_bytes(
    nodes: Sequence[Node], inputs: Sequence[Tensor], saved: Mapping[Storage, bool], output: Tensor | None
) -> int:
    """Return the most bytes alive at once in forward, less those that stay saved.

    A tensor lives from the operation that makes it to its last consumer, or on if it is saved or the output.
    """
    last = {t.storage: index for index, node in enumerate(nodes) for t in (*node.outputs, *node.inputs)}
    forever = set(saved) | ({output.storage} if output is not None else set())
    alive = {t.storage for t in inputs}
    live = peak = sum(s.n_bytes for s in alive)
    held = 0
    for index, node in enumerate(nodes):
        for tensor in node.outputs:
            if tensor.storage.owner == "layer" and tensor.storage not in alive:
                alive.add(tensor.storage)
                live += tensor.storage.n_bytes
        for storage in node.saved:
            if storage in saved and storage not in alive:  # masks and statistics
                alive.add(storage)
                held += storage.n_bytes
        peak = max(peak, live + held)
        for tensor in (*node.inputs, *node.outputs):
            storage = tensor.storage
            if storage in alive and last[storage] == index and storage not in forever:
                alive.discard(storage)
                live -= storage.n_bytes
    return max(0, peak - sum(s.n_bytes for s in saved))


def backward_extra_bytes(nodes: Sequence[Node], output: Tensor | None) -> int:
    """Return the most bytes alive at once in backward, less those that were saved when it began.

    Gradients live from their making to their use; what an operation saved is freed when its backward has run.
    """
    holds = Counter(storage for node in nodes for storage in node.saved)
    gradients: dict[Tensor, Storage] = {}
    uses: Counter[Storage] = Counter()
    live = 0
    if output is not None:
        gradients[output] = Storage(output.held_bytes)
        uses[gradients[output]] += 1
        live = output.held_bytes
    peak = live
    for node in reversed(nodes):
        if not any(t.needs_gradient for t in node.outputs):
            continue
        arriving = [gradients.pop(t) for t in node.outputs if t in gradients]
        made = 0
        for tensor in node.inputs:
            if not tensor.needs_gradient or tensor.storage.owner == "parameter":
                continue
            is_alias = node.is_alias and bool(arriving) and arriving[0].n_bytes == tensor.held_bytes
            if not is_alias:
                made += tensor.held_bytes
            if tensor not in gradients:
                gradients[tensor] = arriving[0] if is_alias else Storage(tensor.held_bytes)
                uses[gradients[tensor]] += 1
                live += 0 if is_alias else tensor.held_bytes
                made -= 0 if is_alias else tensor.held_bytes
        peak = max(peak, live + made)
        for storage in arriving:
            uses[storage] -= 1
            live -= storage.n_bytes if not uses[storage] else 0
        for storage in node.saved:
            holds[storage] -= 1
            live -= storage.n_bytes if not holds[storage] else 0
    return max(0, peak)
