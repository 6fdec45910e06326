"""Tensors that go from one layout over the tensor-parallel ranks to another, around the submodules of a plan.

One rank's part is recorded: what a style of torch makes of distributed tensors is a change of shape and a collective here, which autograd
turns round in backward.

References
----------
pytorch/pytorch, ``torch/distributed/tensor/_redistribute.py`` and ``_collective_utils.py`` (2.13): what is gathered or scattered along
another dimension than the first is copied besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.layer import CommunicationPoint
from simulator.models.recording import Recorder
from simulator.models.torch_module.styles import PARTIAL, REPLICATED, Move, ParallelStyle, Placement

#: on tensors that a move has handed on as distributed ones
_MARK = "_is_distributed"


def identity(torch: Any, forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that does one thing in forward and another in backward."""
    methods = {
        "forward": staticmethod(lambda ctx, x: forward(x)), "backward": staticmethod(lambda ctx, gradient: backward(gradient)),
    }  # fmt: skip
    made: Callable[[Any], Any] = type("Partitioned", (torch.autograd.Function,), methods).apply  # type: ignore[attr-defined]
    return made


def hooks_of(torch: Any, recorder: Recorder, style: ParallelStyle, child: Any, tp: int, config: Any) -> list[Any]:
    """Set hooks that bring what goes into a submodule and what comes out of it into the layouts of a style."""
    is_table = isinstance(child, torch.nn.Embedding)
    ranks = _Ranks(torch, recorder, tp, "embedding" if is_table else "g")

    def entering(value: Any, move: Move | None) -> Any:
        if move is None or not isinstance(value, torch.Tensor) or is_table:
            return value
        if style.sums_gradient and getattr(value, _MARK, False):
            return value
        moved = ranks.moved(value, move, is_summed=style.sums_gradient or style.hands_on)
        if style.hands_on:
            setattr(moved, _MARK, True)
        return moved

    def enter(m: Any, args: Any, kwargs: Any) -> Any:
        moves = (*style.arguments, *[None] * (len(args) - len(style.arguments)))
        return (
            tuple(entering(value, move) for value, move in zip(args, moves, strict=False)),
            {key: entering(value, style.keywords.get(key)) for key, value in kwargs.items()},
        )

    def leave(m: Any, args: Any, y: Any) -> Any:
        several = y if isinstance(y, tuple) else (y,)
        moves = (*style.outputs, *[None] * (len(several) - len(style.outputs)))
        moved = tuple(
            value if move is None or not isinstance(value, torch.Tensor) else ranks.moved(value, move)
            for value, move in zip(several, moves, strict=False)
        )
        return moved if isinstance(y, tuple) else moved[0]

    handles = [child.register_forward_pre_hook(enter, with_kwargs=True)] if style.arguments or style.keywords else []
    if style.outputs:
        handles.append(child.register_forward_hook(leave))
    return handles + _own_hooks(ranks, style, child, config)


def _own_hooks(ranks: _Ranks, style: ParallelStyle, child: Any, config: Any) -> list[Any]:
    """Set the hooks of styles of transformers that no layout describes."""
    if style.own == "weights":
        return [p.register_post_accumulate_grad_hook(ranks.sum_gradient) for p in child.parameters() if p.requires_grad]
    if style.own == "share":
        return [child.register_forward_pre_hook(lambda m, args: (args[0] / ranks.tp, *args[1:]))]
    if style.own != "rotary":
        return []
    width = getattr(config, "qk_rope_head_dim", None)
    if width is None:
        raise ConfigError(
            "tp_plan: mla_kv_a_proj needs the module's config.qk_rope_head_dim", hint="or name it replicated"
        )

    def leave(m: Any, args: Any, y: Any) -> Any:
        rotary = ranks.moved(y[..., -width:], (REPLICATED, REPLICATED), is_summed=True)
        return ranks.torch.cat([y[..., :-width], rotary], dim=-1)

    return [child.register_forward_hook(leave)]


class _Ranks:
    """The tensor-parallel ranks of one submodule, of which one is recorded; ``sums`` names the reduction of what comes out of it."""

    def __init__(self, torch: Any, recorder: Recorder, tp: int, sums: Any) -> None:
        self.torch = torch
        self.recorder = recorder
        self.tp = tp
        self.sums = sums

    def moved(self, tensor: Any, move: Move, *, is_summed: bool = False) -> Any:
        """Return a tensor in another layout; ``is_summed`` says that each rank has a term of the gradient of a whole one."""
        source, target = (self._from_the_front(placement, tensor) for placement in move)
        came_in = REPLICATED if source == PARTIAL else source
        comes_back = PARTIAL if is_summed and target == REPLICATED else target
        if source == target and comes_back == came_in:
            return tensor
        return identity(
            self.torch, lambda x: self._redistribute(x, source, target, is_backward=False),
            lambda gradient: self._redistribute(gradient, comes_back, came_in, is_backward=True),
        )(tensor)  # fmt: skip

    def sum_gradient(self, parameter: Any) -> None:
        """Note that the gradient of a parameter is summed over the ranks."""
        self._note("f", parameter, is_backward=True)

    @staticmethod
    def _from_the_front(placement: Placement, tensor: Any) -> Placement:
        return placement % tensor.dim() if isinstance(placement, int) else placement

    def _redistribute(self, x: Any, source: Placement, target: Placement, *, is_backward: bool) -> Any:
        if source == target:
            return x.view_as(x)
        if source == PARTIAL and target == REPLICATED:
            self._note("f" if is_backward else self.sums, x, is_backward=is_backward)
            return x.view_as(x)
        if isinstance(source, int) and target == REPLICATED:
            return self._gathered(x, source, is_backward=is_backward)
        assert isinstance(target, int)
        if x.shape[target] % self.tp:
            raise InfeasiblePlanError(
                f"tp={self.tp} does not divide dimension {target} of {tuple(x.shape)}{self.recorder.place}"
            )
        part = x.chunk(self.tp, target)[0]
        if source == REPLICATED:
            return part.contiguous()
        is_scattered = source == PARTIAL
        if is_scattered and target:
            x = self.torch.cat(x.chunk(self.tp, target), dim=0)
        self._note("scatter" if is_scattered else "exchange", x, is_backward=is_backward)
        shape = list(part.shape)
        if isinstance(source, int):
            shape[source] *= self.tp
        return self._received(x, shape)

    def _gathered(self, x: Any, dim: int, *, is_backward: bool) -> Any:
        whole = self._received(x, (x.shape[0] * self.tp, *x.shape[1:]))
        is_logits = dim == x.dim() - 1 and not is_backward
        self._note("logits" if is_logits else "gather", whole, is_backward=is_backward)
        return self.torch.cat(whole.chunk(self.tp), dim=dim) if dim else whole

    def _received(self, like: Any, shape: Any) -> Any:
        buffer = like.new_empty(shape)
        self.recorder.follow([buffer])
        return buffer

    def _note(self, operator: Any, tensor: Any, *, is_backward: bool) -> None:
        n_bytes = tensor.numel() * tensor.element_size()
        point = CommunicationPoint(
            operator=operator, n_bytes=n_bytes, kernel_pass="backward" if is_backward else "forward"
        )
        self.recorder.add([point])
