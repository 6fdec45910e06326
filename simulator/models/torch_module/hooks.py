"""The module tree as layers: hooks that open a segment around every block, and the state without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulator.models.recording import Recorder
from simulator.models.torch_module.load import load_torch
from simulator.models.torch_module.modes import recording_modes


@contextmanager
def recording(
    torch: Any, module: Any, state: dict[str, Any], recorder: Recorder, attention: str, cp: int
) -> Iterator[tuple[Any, Any]]:
    """Set the hooks of modules and parameters, and take them away again."""
    dispatch, functions = recording_modes(torch, recorder, attention, cp)
    handles = _hooks(torch, module, recorder)
    for tensor in state.values():
        if tensor.requires_grad:
            handles.append(tensor.register_post_accumulate_grad_hook(lambda p: _release(recorder, p)))
    try:
        yield dispatch, functions
    finally:
        for handle in handles:
            handle.remove()


def _release(recorder: Recorder, parameter: Any) -> None:
    """Leave a parameter's gradient to whoever counts gradients."""
    if parameter.grad is not None:
        recorder.ignore(parameter.grad)


def _hooks(torch: Any, module: Any, recorder: Recorder) -> list[Any]:
    """Open a segment around every block and keep which submodule runs."""
    handles: list[Any] = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(lambda m, a, p=path: recorder.enter(p, m)))
    for child, name in _blocks(torch, module).items():

        def enter(m: Any, args: Any, kwargs: Any, name: str = name) -> None:
            if not recorder.is_backward:
                _mark(torch, recorder, (args, kwargs))
                recorder.open(name, "block")

        def leave(m: Any, args: Any, output: Any, name: str = name) -> None:
            if not recorder.is_backward:
                recorder.current.output_bytes = _n_bytes(torch, output)
                _mark(torch, recorder, output)
                recorder.open(f"after {name}", "between")

        handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(child.register_forward_hook(leave))
    for _, child in module.named_modules():
        handles.append(child.register_forward_hook(lambda m, a, y: recorder.leave(), always_call=True))
    return handles


def _mark(torch: Any, recorder: Recorder, tree: Any) -> None:
    """Return to the segment that runs now when backward reaches these tensors, unless an earlier one made them."""
    for leaf in load_torch("utils._pytree").tree_leaves(tree):
        is_active = isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.is_leaf
        if is_active and getattr(leaf, "_marked_version", None) != leaf._version:
            leaf._marked_version = leaf._version
            leaf.register_hook(lambda gradient, segment=recorder.current: recorder.resume(segment))


@contextmanager
def replaced(module: Any, state: dict[str, Any]) -> Iterator[None]:
    """Put the tensors of a state, by name, in the place of a module's parameters and buffers."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    for path, child in module.named_modules(remove_duplicate=False):
        for own in (child._parameters, child._buffers):
            for name, tensor in own.items():
                key = f"{path}.{name}" if path else name
                if tensor is not None and key in state:
                    before.append((own, name, tensor))
                    own[name] = state[key]
        if hasattr(child, "_flat_weights_names"):  # recurrent modules keep a list of their own
            child._flat_weights = [getattr(child, name, None) for name in child._flat_weights_names]
    try:
        yield
    finally:
        for own, name, tensor in reversed(before):
            own[name] = tensor
        for child in module.modules():
            if hasattr(child, "_flat_weights_names"):
                child._flat_weights = [getattr(child, name, None) for name in child._flat_weights_names]


def _n_bytes(torch: Any, output: Any) -> int:
    tree_leaves = load_torch("utils._pytree").tree_leaves

    first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)), None)
    return 0 if first is None else int(first.numel() * first.element_size())


def _blocks(torch: Any, module: Any) -> dict[Any, str]:
    """Return the modules that become layers of their own: the items of the largest list in the tree."""
    kinds = (torch.nn.ModuleList, torch.nn.Sequential)
    lists = [(name, m) for name, m in module.named_modules() if isinstance(m, kinds) and len(m) > 1]
    if not lists:
        return {}

    def weight(entry: tuple[str, Any]) -> tuple[int, int]:
        return sum(p.numel() for p in entry[1].parameters()), -entry[0].count(".")

    name, chosen = max(lists, key=weight)
    prefix = f"{name}." if name else ""
    return {child: f"{prefix}{index}" for index, child in enumerate(chosen)}


def empty_state(
    module: Any, empty: Callable[[Any], Any], *, split: Mapping[str, Iterable[tuple[int, int]]]
) -> tuple[dict[str, Any], dict[int, str]]:
    """Return empty twins of all parameters and buffers by name, tied ones shared, and parameter names.

    Of parameters that ``split`` gives dimensions and numbers of parts for they are one rank's.
    """
    state: dict[str, Any] = {}
    twins: dict[int, Any] = {}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for key, tensor in named:
        if id(tensor) not in twins:
            local = tensor.detach()
            for dim, degree in split.get(key, ()):
                local = local.chunk(degree, dim)[0]
            twins[id(tensor)] = empty(local).requires_grad_(tensor.requires_grad)
        state[key] = twins[id(tensor)]
    return state, {id(state[key]): key for key, _ in module.named_parameters()}
