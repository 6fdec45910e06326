"""Tensor and expert parallelism of a recorded module, by plans of names as ``parallelize_module`` of torch and transformers take them.

References
----------
pytorch/pytorch, ``torch/distributed/tensor/parallel/style.py``: a column-parallel product reduces the gradient of its input, a
row-parallel one its output, and activations between them stay local. pytorch/torchtitan, ``ExpertParallel``: a rank has its share of
a module's experts, the tokens that it brings are dispatched in front of the module and its output combined behind it.
huggingface/transformers, ``tp_plan`` and ``ep_plan`` of its models, whose experts are parameters ``[experts, ...]`` of one module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.layer import CommunicationPoint
from simulator.models.recording import Recorder

#: plan -> its words, and names of torch's classes -> what is split; empty where nothing is, or another line says it
_STYLES = {
    "tp_plan": {
        "colwise": "column", "colwiseparallel": "column", "colwise_rep": "gathered", "colwise_gather_output": "gathered",
        "rowwise": "row", "rowwiseparallel": "row", "embedding_rowwise": "row", "replicate": "", "replicated": "",
        "replicated_with_grad_allreduce": "", "packed_colwise": "column", "moe_tp_experts": "region",
        "colwiseparallel from Replicate() to Replicate()": "gathered",
        "rowwiseparallel from Replicate() to Replicate()": "table",
    },
    "ep_plan": {"expert_parallel": "experts", "expertparallel": "experts", "ep_dispatch_experts": "experts", "grouped_gemm": ""},
}  # fmt: skip
#: what torch's own styles take and give unless they say otherwise
_LAYOUTS = {
    "colwiseparallel": " from Replicate() to Shard(dim=-1)",
    "rowwiseparallel": " from Shard(dim=-1) to Replicate()",
}


def _word_of(style: Any) -> str:
    """Return the word of a style, or the name of its class with the layouts that it asks for, where they are not the usual ones."""
    if isinstance(style, str):
        return style.lower()
    name = type(style).__name__.lower()
    ends = [", ".join(map(repr, getattr(style, part, ()))) for part in ("input_layouts", "output_layouts")]
    layouts = f" from {ends[0]} to {ends[1]}"
    return name if not any(ends) or layouts == _LAYOUTS.get(name) else name + layouts


def _plan_of(module: Any, kind: str) -> dict[str, str]:
    """Return what a plan of a module splits: pattern of a name -> one of the values of :data:`_STYLES`."""
    named = getattr(module, kind, None) or {}
    if not isinstance(named, Mapping):
        raise ConfigError(f"{kind} is a {type(named).__name__}", hint="names of submodules and their styles, as a dict")
    found, known = {}, _STYLES[kind]
    for pattern, style in named.items():
        word = _word_of(style)
        if word not in known:
            raise ConfigError(f"{kind}: {pattern}: {word!r} is not supported", hint=f"one of {', '.join(known)}")
        found[str(pattern)] = known[word]
    return found


def _matching(module: Any, kind: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of each submodule or parameter that a plan splits, how, and itself."""
    children = dict(module.named_modules()) | dict(module.named_parameters(remove_duplicate=False))
    for pattern, how in _plan_of(module, kind).items():
        names = [name for name in children if re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+"), name)]
        if not names:
            raise ConfigError(f"{kind}: no submodule is named {pattern}")
        if how == "table" and any(not hasattr(children[name], "num_embeddings") for name in names):
            raise ConfigError(
                f"{kind}: {pattern}: rowwiseparallel from Replicate() is not supported", hint="of an Embedding it is"
            )
        yield from ((name, "row" if how == "table" else how, children[name]) for name in names if how)


def expert_modules(module: Any) -> dict[str, tuple[Any, int]]:
    """Return the submodules that a module's ``ep_plan`` marks, by name, each with its number of experts."""
    found: dict[str, tuple[Any, int]] = {}
    for name, _, child in _matching(module, "ep_plan"):
        sizes = {int(p.shape[0]) for p in child.parameters(recurse=False) if p.dim() > 1}
        if len(sizes) != 1 or len(list(child.parameters())) > len(list(child.parameters(recurse=False))):
            raise ConfigError(
                f"ep_plan: {name} does not hold its experts as parameters of [experts, ...]",
                hint="stack their weights, as torch.nn.functional.grouped_mm takes them",
            )
        found[name] = child, sizes.pop()
    return found


def local_parameters(
    torch: Any, module: Any, experts: Mapping[str, tuple[Any, int]], *, tp: int, ep: int
) -> dict[str, list[tuple[int, int]]]:
    """Return dimension and number of parts of every split parameter, by its name; each has to divide."""
    parts: dict[str, list[tuple[int, int]]] = {}
    tensors = dict(module.named_parameters(remove_duplicate=False))

    def split(name: str, dim: int, axis: str, degree: int) -> None:
        if tensors[name].shape[dim] % degree:
            raise InfeasiblePlanError(f"{axis}={degree} does not divide {name} of {tuple(tensors[name].shape)}")
        parts.setdefault(name, []).append((dim, degree))

    for name, how, child in _matching(module, "tp_plan") if tp > 1 else ():
        if name in tensors:  # of every expert, laid out as a Linear's weight is
            split(name, -1 if how == "row" else -2, "tp", tp)
            continue
        if how == "region":
            continue
        if not isinstance(child, torch.nn.Linear | torch.nn.Embedding):
            what = type(child).__name__
            raise ConfigError(f"tp_plan: {name} is a {what}", hint="only Linear and Embedding are split")
        is_rows = how != "row" or isinstance(child, torch.nn.Embedding)
        for part, _ in child.named_parameters():
            if part != "bias" or is_rows:
                split(f"{name}.{part}", 0 if is_rows else 1, "tp", tp)
    for name, (child, _) in experts.items() if ep > 1 else ():
        for part, _ in child.named_parameters():
            split(f"{name}.{part}", 0, "ep", ep)
    return parts


@contextmanager
def partitioned(
    torch: Any, module: Any, recorder: Recorder, experts: Mapping[str, tuple[Any, int]], *, tp: int, ep: int
) -> Iterator[None]:
    """Note where the split submodules communicate while the module runs."""
    handles: list[Any] = []
    for child, n_experts in experts.values() if ep > 1 else ():
        handles += _exchanged(torch, recorder, child, n_experts, ep)
    counted = [(child, n) for child, n in experts.values() if vars(child).get("num_experts") == n]
    for child, n in counted:
        child.num_experts = n // ep
    for _, how, child in _matching(module, "tp_plan") if tp > 1 else ():
        if not isinstance(child, torch.nn.Module):
            continue
        is_table = isinstance(child, torch.nn.Embedding)
        if how != "row":
            enter = _point(torch, recorder, "f", "backward")
            handles.append(child.register_forward_pre_hook(lambda m, args, e=enter: (e(args[0]), *args[1:])))
        if how in ("row", "region"):
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
        for child, n in counted:
            child.num_experts = n


def _exchanged(torch: Any, recorder: Recorder, experts: Any, n_experts: int, ep: int) -> list[Any]:
    """Set hooks that dispatch the tokens in front of a module of experts and combine them behind it, spread evenly.

    Its first argument is ``[rows, hidden]`` or, with equal shares, ``[experts, rows, hidden]``. Rows are copies that the module's
    caller made of its tokens, unless its second says of which experts ``[rows, top_k]`` the module itself makes copies.
    """
    running: list[tuple[tuple[int, ...], Callable[..., CommunicationPoint]]] = []

    def enter(m: Any, args: Any, kwargs: Any) -> Any:
        if not args or not isinstance(args[0], torch.Tensor):
            raise ConfigError(f"ep_plan: the first argument{recorder.place} is not a tensor of tokens")
        x, *others = args
        shares = x.dim() == 3 and x.shape[0] == n_experts
        rows = x.shape[:-1].numel()
        chosen = [t for t in others if isinstance(t, torch.Tensor) and t.dim() == 2 and not t.is_floating_point()]
        n_inside = int(chosen[0].shape[1]) if chosen and chosen[0].shape[0] == rows else 1
        n_copies = n_inside if n_inside > 1 else max(1, round(rows / recorder.n_tokens))
        n_tokens = max(1, rows * n_inside // n_copies)
        point = partial(
            CommunicationPoint, n_bytes=recorder.size(x).n_bytes * n_inside, n_copies=n_copies, n_tokens=n_tokens
        )
        running.append((tuple(x.shape[:-1]), point))

        def local(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or not t.dim() or t.shape[0] != n_experts:
                return t
            if shares and t.dim() > 1:  # a share of the experts, with the tokens of all ranks
                return t.reshape(n_experts // ep, t.shape[1] * ep, *t.shape[2:])
            return t[: n_experts // ep] if t.dim() == 1 else t

        x = local(_both(torch, recorder, point(operator="dispatch"))(x))
        return (x, *map(local, others)), {key: local(value) for key, value in kwargs.items()}

    def leave(m: Any, args: Any, y: Any) -> Any:
        shape, point = running.pop()
        y = y.reshape(*shape, y.shape[-1]) if isinstance(y, torch.Tensor) else y
        return _both(torch, recorder, point(operator="combine"))(y)

    return [experts.register_forward_pre_hook(enter, with_kwargs=True), experts.register_forward_hook(leave)]


def _both(torch: Any, recorder: Recorder, point: CommunicationPoint) -> Callable[[Any], Any]:
    """Return an identity that communicates in both passes."""

    def note(tensor: Any, kernel_pass: Any) -> Any:
        recorder.add([replace(point, kernel_pass=kernel_pass)])
        return tensor.view_as(tensor)

    return _identity(torch, lambda x: note(x, "forward"), lambda gradient: note(gradient, "backward"))


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
