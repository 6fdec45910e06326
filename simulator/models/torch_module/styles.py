"""What words and torch's objects say of a submodule under tensor parallelism: which part of its parameters a rank has, and layouts.

References
----------
pytorch/pytorch, ``torch/distributed/tensor/parallel/style.py`` (2.13); huggingface/transformers,
``distributed/tensor_parallel.py`` (5.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.errors import ConfigError

#: How the ranks hold a tensor: its dimension of which each has a part, or one of these two.
Placement = int | Literal["replicated", "partial"]
REPLICATED: Placement = "replicated"
PARTIAL: Placement = "partial"
#: from the placement that a tensor comes in to the one that it leaves in
Move = tuple[Placement, Placement]
_LAST: Placement = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStyle:
    """What tensor parallelism does to a submodule, or to a parameter that is named itself.

    Attributes
    ----------
    splits : str
        Which dimension of the weights is divided: ``column`` the outputs, ``row`` the inputs (of a table the entries), or none.
    arguments, keywords, outputs : sequences and mapping of Move
        Of each tensor that goes in and out; None for those that stay as they are.
    sums_gradient : bool
        Whether each rank has a term of the gradient of what comes in whole.
    hands_on : bool
        Whether what it moved stays a distributed tensor: products that take it leave the sum of their gradients to this move.
    own : str
        What no layout says: ``weights`` sums the gradients of parameters, ``rotary`` that of the rotary part of an output, ``share``
        divides what comes in by the ranks.
    """

    splits: Literal["", "column", "row"] = ""
    arguments: tuple[Move | None, ...] = ()
    keywords: Mapping[str, Move | None] = field(default_factory=dict)
    outputs: tuple[Move | None, ...] = ()
    sums_gradient: bool = False
    hands_on: bool = False
    own: Literal["", "weights", "rotary", "share"] = ""

    @property
    def is_idle(self) -> bool:
        """Whether it leaves a submodule as it is."""
        return self == ParallelStyle()


def _column(source: Placement = REPLICATED, target: Placement = _LAST) -> ParallelStyle:
    return ParallelStyle(
        splits="column", arguments=((source, REPLICATED),), outputs=((_LAST, target),), sums_gradient=True
    )


def _row(source: Placement = _LAST, target: Placement = REPLICATED) -> ParallelStyle:
    return ParallelStyle(splits="row", arguments=((source, _LAST),), outputs=((PARTIAL, target),))


_SUMMED: tuple[Move] = ((PARTIAL, REPLICATED),)

#: words of tensor-parallel plans, most of them those of transformers
WORDS: dict[str, ParallelStyle] = {
    **dict.fromkeys(("colwise", "colwiseparallel", "packed_colwise"), _column()),
    **dict.fromkeys(("colwise_rep", "colwise_gather_output", "embedding_colwise"), _column(target=REPLICATED)),
    **dict.fromkeys(("rowwise", "rowwiseparallel", "embedding_rowwise"), _row()),
    **dict.fromkeys(("rowwise_rep", "rowwise_split_input"), _row(REPLICATED)),
    "packed_rowwise": ParallelStyle(splits="row"),
    **dict.fromkeys(("replicate", "replicated", "sequence_parallel", "local_params"), ParallelStyle()),
    "replicated_with_grad_allreduce": ParallelStyle(own="weights"),
    "mla_kv_a_proj": ParallelStyle(own="rotary"),
    "all_reduce": ParallelStyle(outputs=_SUMMED),
    "moe_tp_experts": ParallelStyle(arguments=((REPLICATED, REPLICATED),), outputs=_SUMMED, sums_gradient=True),
    "moe_identity_expert": ParallelStyle(own="share"),
}
#: words of expert-parallel plans, and names of torchtitan's classes -> whether they mark what holds experts
EXPERT_WORDS = {"expert_parallel": True, "expertparallel": True, "ep_dispatch_experts": True, "grouped_gemm": False}


def style_of(style: Any, place: str) -> ParallelStyle:
    """Return what a word, or an object of torch or transformers, says; ``place`` begins the message where it is not known."""
    if isinstance(style, str):
        found = WORDS.get(style.lower())
        if found is None:
            raise ConfigError(f"{place}: {style!r} is not supported", hint=f"one of {', '.join(WORDS)}")
        return found
    read = _CLASSES.get(type(style).__name__)
    if read is None:
        name = type(style).__name__
        raise ConfigError(f"{place}: {name} is not supported", hint=f"one of {', '.join(_CLASSES)}, or a word")
    return read(style, place)


def _of_column(style: Any, place: str) -> ParallelStyle:
    return _column(_one(style, "input_layouts", place, REPLICATED), _one(style, "output_layouts", place, _LAST))


def _of_row(style: Any, place: str) -> ParallelStyle:
    return _row(_one(style, "input_layouts", place, _LAST), _one(style, "output_layouts", place, REPLICATED))


def _of_input(style: Any, place: str) -> ParallelStyle:
    given, wanted = (
        getattr(style, part, None) or {} for part in ("input_kwarg_layouts", "desired_input_kwarg_layouts")
    )
    keywords = {
        key: _move(_placement(value, place), _placement(wanted.get(key), place), place) for key, value in given.items()
    }
    is_local = getattr(style, "use_local_output", False)
    arguments = _moves(style, "input_layouts", "desired_input_layouts", place)
    return ParallelStyle(arguments=arguments, keywords=keywords, hands_on=not is_local)


def _of_output(style: Any, place: str) -> ParallelStyle:
    return ParallelStyle(outputs=_moves(style, "output_layouts", "desired_output_layouts", place))


def _of_both(style: Any, place: str) -> ParallelStyle:
    before, behind = _of_input(style.prepare_module_input, place), _of_output(style.prepare_module_output, place)
    return ParallelStyle(
        arguments=before.arguments, keywords=before.keywords, hands_on=before.hands_on, outputs=behind.outputs
    )


_CLASSES: dict[str, Callable[[Any, str], ParallelStyle]] = {
    "ColwiseParallel": _of_column,
    "RowwiseParallel": _of_row,
    "SequenceParallel": lambda style, place: (
        ParallelStyle()
    ),  # takes what is divided along the sequence, and keeps it so
    "PrepareModuleInput": _of_input,
    "PrepareModuleOutput": _of_output,
    "PrepareModuleInputOutput": _of_both,
}


def _several(style: Any, part: str, place: str) -> tuple[Placement | None, ...]:
    layouts = getattr(style, part, None)
    each = layouts if isinstance(layouts, tuple) else () if layouts is None else (layouts,)
    return tuple(_placement(one, place) for one in each)


def _one(style: Any, part: str, place: str, usual: Placement) -> Placement:
    found = _several(style, part, place) or (usual,)
    if len(found) > 1 or found[0] is None:
        raise ConfigError(f"{place}: {part} of {len(found)} placements", hint="one, for the tensor-parallel ranks")
    return found[0]


def _placement(given: Any, place: str) -> Placement | None:
    name = type(given).__name__
    if given is None or name == "NoneType":
        return None
    if name == "Replicate":
        return REPLICATED
    if name == "Partial":
        return PARTIAL
    if name == "Shard":
        return int(given.dim)
    raise ConfigError(f"{place}: layout {given!r} is not supported", hint="Replicate(), Shard(dim), or Partial()")


def _moves(style: Any, before: str, behind: str, place: str) -> tuple[Move | None, ...]:
    given, wanted = _several(style, before, place), _several(style, behind, place)
    if len(given) != len(wanted):
        raise ConfigError(f"{place}: {len(given)} layouts, and {len(wanted)} desired ones", hint="one for each tensor")
    return tuple(_move(source, target, place) for source, target in zip(given, wanted, strict=True))


def _move(source: Placement | None, target: Placement | None, place: str) -> Move | None:
    if source is None or target is None:
        return None
    if target == PARTIAL:
        raise ConfigError(f"{place}: Partial() is not supported as a desired layout", hint="Replicate() or Shard(dim)")
    return source, target
