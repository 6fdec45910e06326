"""Interleaved 1F1B: several chunks per stage, micro-batches in groups of one per stage."""

from __future__ import annotations

from simulator.errors import InfeasiblePlanError
from simulator.schedules.action import Action, Row, Table


def interleaved(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Run 1F1B over virtual stages in the order of Megatron-LM.

    Micro-batches go in groups of ``n_stages``; a group passes through all chunks before the next one starts.
    Stage ``s`` runs ``2 (n_stages - s - 1) + (n_chunks - 1) n_stages`` forwards ahead.

    References
    ----------
    Narayanan et al., SC 2021, arXiv:2104.04473, section 2.2. Bubble over work is ``(p - 1) / (v m)``.
    """
    return _table(n_stages, n_micro_batches, n_chunks, is_paired=False)


def combined(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Run interleaved 1F1B with one more forward ahead, so that a forward and a backward in turn can run as a pair.

    The exchange of experts' tokens of one then hides behind the products of the other. Every stage holds one chunk more.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/pipeline_parallel/combined_1f1b.py`` (``--overlap-moe-expert-parallel-comm``, which needs virtual
    stages where there are several, and none without a pipeline). Bubble over work is ``(p - 1) / (v m)``, of pairs that are
    shorter than their parts.
    """
    if n_stages > 1 and n_chunks < 2:
        raise InfeasiblePlanError(
            "schedule 1f1b-combined needs virtual_pp of at least 2 beside a pipeline",
            hint="use --virtual-pp 2, or --schedule 1f1b",
        )
    return _table(n_stages, n_micro_batches, n_chunks, is_paired=True)


def _table(n_stages: int, n_micro_batches: int, n_chunks: int, *, is_paired: bool) -> Table:
    if n_micro_batches % n_stages:
        low = n_micro_batches // n_stages * n_stages
        batches = f"{low} or {low + n_stages}" if low else f"{n_stages}"
        otherwise = "--schedule 1f1b --virtual-pp 1" if is_paired else "--virtual-pp 1"
        raise InfeasiblePlanError(
            f"interleaved 1F1B needs a multiple of pp = {n_stages} micro-batches, not {n_micro_batches}",
            hint=f"choose a batch of {batches} micro-batches, or {otherwise}",
        )
    order = [
        (first + i, chunk)
        for first in range(0, n_micro_batches, n_stages)
        for chunk in range(n_chunks)
        for i in range(n_stages)
    ]
    forwards = [Action("F", micro_batch, chunk) for micro_batch, chunk in order]
    backwards = [Action("B", micro_batch, n_chunks - 1 - chunk) for micro_batch, chunk in order]
    warm_up = [2 * (n_stages - stage - 1) + (n_chunks - 1) * n_stages + is_paired for stage in range(n_stages)]
    return tuple(_row(forwards, backwards, min(n, len(order)), is_paired=is_paired) for n in warm_up)


def _row(forwards: list[Action], backwards: list[Action], n_warm_up: int, *, is_paired: bool) -> Row:
    rest = forwards[n_warm_up:]
    if is_paired:
        rest = [action._replace(is_paired=True) for action in rest]
    in_turn = (action for both in zip(rest, backwards, strict=False) for action in both)
    return (*forwards[:n_warm_up], *in_turn, *backwards[len(rest) :])
