"""What a recorded module did, segment by segment: operators, saved tensors, parameters, peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulator.dtypes import our_name
from simulator.models.aten import Call, TensorSize, kernels_of
from simulator.models.layer import Layer, LayerItem, Parameter, Role


@dataclass(slots=True)
class Segment:
    """What one part of the module launched and held."""

    name: str
    role: Role = "between"
    forward: list[LayerItem] = field(default_factory=list)
    backward: list[LayerItem] = field(default_factory=list)
    recompute: list[LayerItem] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    saved_bytes: int = 0
    forward_peak_bytes: int = 0
    backward_peak_bytes: int = 0
    output_bytes: int = 0


class Recorder:
    """Collects operators per segment, and follows which storages are alive.

    Parameters
    ----------
    weak_reference : callable
        Makes a weak reference of a storage, with a method ``expired``.
    experts : tuple of str
        With what the names of experts' parameters begin.
    n_tokens : int
        Tokens of the recorded micro-batch.
    """

    def __init__(
        self,
        weak_reference: Callable[[Any], Any],
        parameters: dict[int, str],
        shapes: frozenset[tuple[int, ...]],
        experts: tuple[str, ...] = (),
        n_tokens: int = 1,
    ) -> None:
        self.weak_reference = weak_reference
        self.names = parameters
        self.shapes = shapes
        self.experts = experts
        self.n_tokens = n_tokens
        self.segments: list[Segment] = [Segment("input")]
        self.current = self.segments[0]
        self.is_backward = False
        self.seen: set[str] = set()
        self.path = ""
        self._running: list[Any] = [None]
        self._is_paused = False
        self._alive: dict[int, tuple[Any, int]] = {}
        self._most_bytes = 0  # of these, of which some may be dead
        self._saved: dict[int, Any] = {}
        self._outside: set[int] = set()

    # ---- segments --------------------

    def open(self, name: str, role: Role) -> Segment:
        """Begin a new segment."""
        self.current = Segment(name, role)
        self.segments.append(self.current)
        return self.current

    # ---- module tree --------------------

    def enter(self, path: str, module: Any) -> None:
        """Note that a submodule begins; ``path``, its place in the tree, is kept for messages."""
        self.path = path or self.path
        self._running.append(module)

    def leave(self) -> None:
        """Note that the innermost submodule has ended."""
        self._running.pop()

    @property
    def place(self) -> str:
        """Where a message says that something happened."""
        return f" in submodule '{self.path}'" if self.path else ""

    @property
    def is_recomputing(self) -> bool:
        """Whether a submodule runs again in backward, as under ``torch.utils.checkpoint``."""
        return self.is_backward and len(self._running) > 1

    @property
    def module(self) -> Any:
        """The innermost running submodule."""
        return self._running[-1]

    def resume(self, segment: Segment) -> None:
        """Go on with a segment, in backward."""
        self.current = segment

    # ---- operators --------------------

    def size(self, tensor: Any) -> TensorSize:
        """Describe a tensor."""
        dtype = our_name(str(tensor.dtype)) or "fp32"
        n_bytes = tensor.numel() * tensor.element_size()
        covered = min(n_bytes, tensor.untyped_storage().nbytes())
        return TensorSize(
            shape=tuple(tensor.shape),
            dtype=dtype,
            n_bytes=covered,
            is_parameter=tensor.untyped_storage()._cdata in self._outside,
            strides=tuple(tensor.stride()),
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing while buffers are made by hand."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def call(self, name: str, inputs: list[Any], outputs: list[Any], *, is_view: bool) -> None:
        """Note one operator."""
        if self._is_paused:
            return
        self.claim(inputs)
        self.follow(outputs)
        if is_view:
            return
        record = Call(name=name, inputs=tuple(map(self.size, inputs)), outputs=tuple(map(self.size, outputs)))
        is_backward = self.is_backward and not self.is_recomputing
        self.add(kernels_of(record, is_backward=is_backward, weight_shapes=self.shapes))

    def add(self, kernels: Sequence[LayerItem]) -> None:
        """Append kernels to the pass that runs."""
        if self.is_recomputing:
            self.current.recompute.extend(kernels)
        else:
            (self.current.backward if self.is_backward else self.current.forward).extend(kernels)

    def claim(self, inputs: list[Any]) -> None:
        """Give a parameter to the first segment that uses it."""
        for tensor in inputs:
            name = self.names.get(id(tensor), "")
            if name and name not in self.seen:
                self.seen.add(name)
                is_expert = name.startswith(self.experts)
                self.current.parameters.append(Parameter(name=name, n_elements=tensor.numel(), is_expert=is_expert))

    # ---- memory --------------------

    def ignore(self, tensor: Any) -> None:
        """Leave a storage out of the count: parameters, buffers, their gradients."""
        key = tensor.untyped_storage()._cdata
        self._outside.add(key)
        self._most_bytes -= self._alive.pop(key, (None, 0))[1]

    def follow(self, tensors: list[Any]) -> None:
        """Count new storages, drop the dead ones and note the peak."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._outside and storage._cdata not in self._alive:
                self._alive[storage._cdata] = (self.weak_reference(storage), storage.nbytes())
                self._most_bytes += storage.nbytes()
        peak = self.current.backward_peak_bytes if self.is_backward else self.current.forward_peak_bytes
        if self._most_bytes <= peak:  # whatever has died since the last look
            return
        for key in [key for key, (reference, _) in self._alive.items() if reference.expired()]:
            self._most_bytes -= self._alive.pop(key)[1]
        if self.is_backward:
            self.current.backward_peak_bytes = max(peak, self._most_bytes)
        else:
            self.current.forward_peak_bytes = max(peak, self._most_bytes)

    def save(self, tensor: Any) -> Any:
        """Count what autograd holds, every storage once."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._outside and storage._cdata not in self._saved:
            self._saved[storage._cdata] = storage.nbytes()
            self.current.saved_bytes += storage.nbytes()
        return tensor

    def layers(self) -> tuple[Layer, ...]:
        """Return the segments as layers, equal ones shared."""
        known: dict[tuple[Any, ...], Layer] = {}
        layers: list[Layer] = []
        before = 0
        for segment in self.segments:
            before += segment.saved_bytes
            if not segment.forward and not segment.backward and not segment.saved_bytes:
                continue
            peak = max(segment.forward_peak_bytes, segment.backward_peak_bytes)
            layer = Layer(
                name=segment.name,
                role=segment.role,
                forward=tuple(segment.forward),
                backward=tuple(segment.backward),
                recompute=tuple(segment.recompute),
                parameters=tuple(segment.parameters),
                saved_bytes=segment.saved_bytes,
                transient_bytes=max(0, peak - before),
                output_bytes=segment.output_bytes,
            )
            key = (layer.forward, layer.backward, layer.recompute, layer.saved_bytes, layer.n_parameters)
            layers.append(known.setdefault(key, layer))
        return tuple(layers)
