"""Tensor parallelism of a recorded module, by a plan of names as ``parallelize_module`` of torch and transformers take one.

References
----------
pytorch/pytorch, ``torch/distributed/tensor/parallel/style.py``: a column-parallel product reduces the gradient of its input, a
row-parallel one its output, and activations between them stay local; huggingface/transformers, ``tp_plan`` of its models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.layer import CommunicationPoint
from simulator.models.recording import Recorder

#: words of plans, and names of torch's classes -> what is split; empty where nothing is
_STYLES = {
    "colwise": "column", "colwiseparallel": "column", "colwise_rep": "gathered", "colwise_gather_output": "gathered",
    "rowwise": "row", "rowwiseparallel": "row", "embedding_rowwise": "row", "replicate": "", "replicated": "",
    "replicated_with_grad_allreduce": "",
}  # fmt: skip


def plan_of(module: Any) -> dict[str, str]:
    """Return what a module's ``tp_plan`` splits: pattern of a submodule's name -> ``column``, ``row`` or ``gathered``."""
    named = getattr(module, "tp_plan", None) or {}
    if not isinstance(named, Mapping):
        raise ConfigError(
            f"tp_plan is a {type(named).__name__}", hint="names of submodules and their styles, as a dict"
        )
    found = {}
    for pattern, style in named.items():
        word = (style if isinstance(style, str) else type(style).__name__).lower()
        if word not in _STYLES:
            raise ConfigError(f"tp_plan: {pattern}: {word!r} is not known here", hint=f"one of {', '.join(_STYLES)}")
        found[str(pattern)] = _STYLES[word]
    return found


def split_modules(torch: Any, module: Any) -> dict[str, tuple[Any, str]]:
    """Return the submodules that a plan splits by name, with how; all are products or tables."""
    found: dict[str, tuple[Any, str]] = {}
    children = dict(module.named_modules())
    for pattern, how in plan_of(module).items():
        names = [name for name in children if re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), name)]
        if not names:
            raise ConfigError(f"tp_plan: no submodule is called {pattern}")
        for name in names:
            if how and not isinstance(children[name], torch.nn.Linear | torch.nn.Embedding):
                what = type(children[name]).__name__
                raise ConfigError(f"tp_plan: {name} is a {what}", hint="only Linear and Embedding are split")
            if how:
                found[name] = children[name], how
    return found


def local_parameters(torch: Any, module: Any, tp: int) -> dict[str, int]:
    """Return the dimension of every split parameter, by its name; each has to divide."""
    dims: dict[str, int] = {}
    for name, (child, how) in split_modules(torch, module).items() if tp > 1 else ():
        is_rows = how != "row" or isinstance(child, torch.nn.Embedding)
        for part, tensor in child.named_parameters():
            if part == "bias" and not is_rows:
                continue
            dims[f"{name}.{part}"] = 0 if is_rows else 1
            if tensor.shape[dims[f"{name}.{part}"]] % tp:
                raise InfeasiblePlanError(f"tp={tp} does not divide {name}.{part} of {tuple(tensor.shape)}")
    return dims


@contextmanager
def partitioned(torch: Any, module: Any, recorder: Recorder, tp: int) -> Iterator[None]:
    """Note where the split submodules communicate while the module runs."""
    handles: list[Any] = []
    for child, how in split_modules(torch, module).values() if tp > 1 else ():
        is_table = isinstance(child, torch.nn.Embedding)
        if how != "row":
            enter = _point(torch, recorder, "f", "backward")
            handles.append(child.register_forward_pre_hook(lambda m, args, e=enter: (e(args[0]), *args[1:])))
        if how == "row":
            leave = _point(torch, recorder, "embedding" if is_table else "g", "forward")
            handles.append(child.register_forward_hook(lambda m, args, y, one=leave: one(y)))
        if how == "gathered":
            gather = _gather(torch, recorder, tp)
            handles.append(child.register_forward_hook(lambda m, args, y, one=gather: one(y)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _point(torch: Any, recorder: Recorder, operator: Any, kernel_pass: Any) -> Callable[[Any], Any]:
    """Return an identity that communicates in one of the passes."""

    def note(tensor: Any, in_pass: str) -> Any:
        if in_pass == kernel_pass:
            size = recorder.size(tensor).n_bytes
            recorder.add([CommunicationPoint(operator=operator, n_bytes=size, kernel_pass=kernel_pass)])
        return tensor.view_as(tensor)

    return _identity(torch, lambda x: note(x, "forward"), lambda gradient: note(gradient, "backward"))


def _gather(torch: Any, recorder: Recorder, tp: int) -> Callable[[Any], Any]:
    """Return the gathering of the last dimension of what the ranks made, and the share of its gradient."""

    def forward(x: Any) -> Any:
        whole = x.new_empty((*x.shape[:-1], x.shape[-1] * tp))
        recorder.follow([whole])
        recorder.add([CommunicationPoint(operator="logits", n_bytes=recorder.size(whole).n_bytes)])
        return whole

    return _identity(torch, forward, lambda gradient: gradient.chunk(tp, -1)[0].contiguous())


def _identity(torch: Any, forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    methods = {
        "forward": staticmethod(lambda ctx, x: forward(x)), "backward": staticmethod(lambda ctx, gradient: backward(gradient)),
    }  # fmt: skip
    made: Callable[[Any], Any] = type("Partitioned", (torch.autograd.Function,), methods).apply  # type: ignore[attr-defined]
    return made
