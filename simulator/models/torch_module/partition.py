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
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.layer import CommunicationPoint
from simulator.models.recording import Recorder
from simulator.models.torch_module.layouts import hooks_of, identity
from simulator.models.torch_module.styles import EXPERT_WORDS, ParallelStyle, style_of

Found = TypeVar("Found")


def _matching(module: Any, kind: str, read: Callable[[Any, str], Found]) -> Iterator[tuple[str, Found, Any]]:
    """Yield the name of each submodule or parameter that a plan names, what it says, and itself."""
    named = getattr(module, kind, None) or {}
    if not isinstance(named, Mapping):
        raise ConfigError(f"{kind} is a {type(named).__name__}", hint="names of submodules and their styles, as a dict")
    children = dict(module.named_modules()) | dict(module.named_parameters(remove_duplicate=False))
    for pattern, style in named.items():
        found = read(style, f"{kind}: {pattern}")
        names = [name for name in children if re.fullmatch(re.escape(str(pattern)).replace(r"\*", r"[^.]+"), name)]
        if not names:
            raise ConfigError(f"{kind}: no submodule is named {pattern}")
        yield from ((name, found, children[name]) for name in names)


def _styled(module: Any) -> Iterator[tuple[str, ParallelStyle, Any]]:
    """Yield what a module's ``tp_plan`` changes."""
    return (one for one in _matching(module, "tp_plan", style_of) if not one[1].is_idle)


def _holds_experts(style: Any, place: str) -> bool:
    word = style.lower() if isinstance(style, str) else type(style).__name__.lower()
    if word not in EXPERT_WORDS:
        raise ConfigError(f"{place}: {word!r} is not supported", hint=f"one of {', '.join(EXPERT_WORDS)}")
    return EXPERT_WORDS[word]


def expert_modules(module: Any) -> dict[str, tuple[Any, int]]:
    """Return the submodules that a module's ``ep_plan`` marks, by name, each with its number of experts."""
    found: dict[str, tuple[Any, int]] = {}
    for name, holds, child in _matching(module, "ep_plan", _holds_experts):
        if not holds:
            continue
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

    for name, style, child in _styled(module) if tp > 1 else ():
        if not style.splits:
            continue
        if name in tensors:  # of every expert, laid out as a Linear's weight is
            split(name, -1 if style.splits == "row" else -2, "tp", tp)
            continue
        if not isinstance(child, torch.nn.Linear | torch.nn.Embedding):
            what = type(child).__name__
            raise ConfigError(f"tp_plan: {name} is a {what}", hint="only Linear and Embedding are split")
        is_table = isinstance(child, torch.nn.Embedding)  # [entries, width], and its entries are what goes in
        dim = 0 if (style.splits == "row") == is_table else 1
        for part, _ in child.named_parameters():
            if part != "bias" or dim == 0:
                split(f"{name}.{part}", dim, "tp", tp)
    for name, (child, _) in experts.items() if ep > 1 else ():
        for part, _ in child.named_parameters():
            split(f"{name}.{part}", 0, "ep", ep)
    return parts


@contextmanager
def partitioned(
    torch: Any,
    module: Any,
    recorder: Recorder,
    experts: Mapping[str, tuple[Any, int]],
    *,
    tp: int,
    ep: int,
    expert_load: float,
) -> Iterator[None]:
    """Note where the split submodules communicate while the module runs."""
    handles: list[Any] = []
    for child, n_experts in experts.values() if ep > 1 else ():
        handles += _exchanged(torch, recorder, child, n_experts, ep, expert_load)
    counted = [(child, n) for child, n in experts.values() if vars(child).get("num_experts") == n]
    for child, n in counted:
        child.num_experts = n // ep
    for _, style, child in _styled(module) if tp > 1 else ():
        if isinstance(child, torch.nn.Module):
            handles += hooks_of(torch, recorder, style, child, tp, getattr(module, "config", None))
    try:
        with _whole_losses(recorder, tp):
            yield
    finally:
        for handle in handles:
            handle.remove()
        for child, n in counted:
            child.num_experts = n


@contextmanager
def _whole_losses(recorder: Recorder, tp: int) -> Iterator[None]:
    """Refuse ``loss_parallel``, whose cross-entropy of split logits exchanges maxima and sums inside an operator of distributed tensors."""
    library = sys.modules.get("torch.distributed.tensor.parallel.loss")
    before = getattr(library, "_enable_custom_loss_ops", None)
    if library is None or before is None or tp == 1:
        yield
        return

    def refuse() -> None:
        raise InfeasiblePlanError(
            f"tp={tp}: loss_parallel{recorder.place} is not modelled",
            hint="gather the logits: ColwiseParallel(output_layouts=Replicate()) for the head, and the loss outside loss_parallel()",
        )

    library._enable_custom_loss_ops = refuse  # type: ignore[attr-defined]
    try:
        yield
    finally:
        library._enable_custom_loss_ops = before  # type: ignore[attr-defined]


def _exchanged(torch: Any, recorder: Recorder, experts: Any, n_experts: int, ep: int, load: float) -> list[Any]:
    """Set hooks that dispatch the tokens in front of a module of experts and combine them behind it.

    The rank gets ``load`` times an even share.

    Its first argument is ``[rows, hidden]`` or, with equal shares, ``[experts, rows, hidden]``. Rows are copies that the module's
    caller made of its tokens, unless its second says of which experts ``[rows, top_k]`` the module itself makes copies.
    """
    running: list[tuple[tuple[int, ...], int, Callable[..., CommunicationPoint]]] = []  # with the rows of an even share

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
            CommunicationPoint, n_bytes=round(recorder.size(x).n_bytes * n_inside * load), n_copies=n_copies, n_tokens=n_tokens,
            n_experts=n_experts,
        )  # fmt: skip
        running.append((tuple(x.shape[:-1]), x.shape[1] * ep if shares else rows, point))

        def local(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or not t.dim():
                return t
            if (
                shares and t.dim() > 1 and t.shape[0] == n_experts
            ):  # a share of the experts, with the tokens of all ranks
                t = t.reshape(n_experts // ep, t.shape[1] * ep, *t.shape[2:])
                return _resized(torch, recorder, t, 1, round(t.shape[1] * load))
            if t.dim() > 1 and t.shape[0] == rows:
                return _resized(torch, recorder, t, 0, round(rows * load))
            return t[: n_experts // ep] if t.dim() == 1 and t.shape[0] == n_experts else t

        x = local(_both(torch, recorder, point(operator="dispatch"))(x))
        return (x, *map(local, others)), {key: local(value) for key, value in kwargs.items()}

    def leave(m: Any, args: Any, y: Any) -> Any:
        shape, even, point = running.pop()
        if isinstance(y, torch.Tensor):
            is_busy = y.shape[-2] == round(even * load)
            y = (_resized(torch, recorder, y, y.dim() - 2, even) if is_busy else y).reshape(*shape, y.shape[-1])
        return _both(torch, recorder, point(operator="combine"))(y)

    return [experts.register_forward_pre_hook(enter, with_kwargs=True), experts.register_forward_hook(leave)]


def _both(torch: Any, recorder: Recorder, point: CommunicationPoint) -> Callable[[Any], Any]:
    """Return an identity that communicates in both passes."""

    def note(tensor: Any, kernel_pass: Any) -> Any:
        recorder.add([replace(point, kernel_pass=kernel_pass)])
        return tensor.view_as(tensor)

    return identity(torch, lambda x: note(x, "forward"), lambda gradient: note(gradient, "backward"))


def _resized(torch: Any, recorder: Recorder, tensor: Any, dim: int, size: int) -> Any:
    """Return a tensor with another number of rows, which belong to other tokens."""
    before = tensor.shape[dim]
    if size == before:
        return tensor

    def with_rows(t: Any, n: int) -> Any:
        made = t.new_empty((*t.shape[:dim], n, *t.shape[dim + 1 :]))
        recorder.follow([made])
        return made

    if not tensor.is_floating_point():
        return with_rows(tensor, size)
    return identity(torch, lambda x: with_rows(x, size), lambda gradient: with_rows(gradient, before))(tensor)
