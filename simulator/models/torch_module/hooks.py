"""The module tree as layers: hooks that open a segment around every block, and the state without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simulator.models.recording import Recorder, Segment
from simulator.models.torch_module.load import load_torch
from simulator.models.torch_module.modes import recording_modes


@contextmanager
def recording(
    torch: Any, module: Any, state: dict[str, Any], recorder: Recorder, attention: str, cast_to: Any
) -> Iterator[tuple[Any, Any]]:
    """Set the hooks of modules and parameters, and take them away again."""
    dispatch, functions, mark = recording_modes(torch, recorder, attention, cast_to)
    handles = _hooks(torch, module, recorder, mark)
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


def _hooks(torch: Any, module: Any, recorder: Recorder, mark: Any) -> list[Any]:
    """Open a segment around every block and keep the path of the running submodule for messages."""
    tree_map = load_torch("utils._pytree").tree_map

    def marked(tree: Any, segment: Segment) -> Any:
        def one(leaf: Any) -> Any:
            is_active = isinstance(leaf, torch.Tensor) and leaf.requires_grad
            return mark.apply(leaf, segment) if is_active else leaf

        return tree_map(one, tree)

    blocks = _blocks(torch, module)
    handles: list[Any] = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(lambda m, a, p=path: recorder.enter(p, m)))
        handles.append(child.register_forward_hook(lambda m, a, y: recorder.leave()))
    for child, name in blocks.items():

        def enter(m: Any, args: Any, kwargs: Any, name: str = name) -> Any:
            before = recorder.current
            entered = marked((args, kwargs), before)
            recorder.open(name)
            return entered

        def leave(m: Any, args: Any, output: Any, name: str = name) -> Any:
            segment = recorder.current
            segment.output_bytes = _n_bytes(torch, output)
            output = marked(output, segment)
            recorder.open(f"after {name}")
            return output

        handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(child.register_forward_hook(leave))
    return handles


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


def empty_state(module: Any, empty: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """Return empty twins of all parameters and buffers by name, tied ones shared, and parameter names."""
    state: dict[str, Any] = {}
    twins: dict[int, Any] = {}
    for key, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
        if id(tensor) not in twins:
            twins[id(tensor)] = empty(tensor).requires_grad_(tensor.requires_grad)
        state[key] = twins[id(tensor)]
    return state, {id(state[key]): key for key, _ in module.named_parameters()}
