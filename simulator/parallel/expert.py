"""Expert parallelism: how tokens reach their experts and return, and what runs beside it.

A layer marks dispatch and combine with the bytes of all routed copies of its tokens; this module turns them into what the plan's
dispatcher carries (:mod:`simulator.plan.dispatchers`).
How many tokens a rank computes, and sends at most, is :func:`expert_load`: capacity and skew.

References
----------
Lepikhin et al., GShard, arXiv:2006.16668 (capacity); Rajbhandari et al., DeepSpeed-MoE, arXiv:2201.05596; DeepSeek-AI,
DeepSeek-V3 Technical Report, arXiv:2412.19437, sections 3.2.2 (cross-node all-to-all) and 3.3.1 (fp8 dispatch);
deepseek-ai/DeepEP; NVIDIA/Megatron-LM, ``core/transformer/moe/token_dispatcher.py`` (shared expert overlap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import comb

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import CommunicationPoint
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.context import Item, LayerCollective
from simulator.parallel.mesh import Communicators
from simulator.plan import ParallelPlan
from simulator.plan.precision import SCALED_BYTES
from simulator.program.op import Routed

#: bytes of an element in eight bits with a scale of fp32 per 128, over those in sixteen (DeepSeek-V3, section 3.3.2)
FP8_SHARE = SCALED_BYTES["fp8_block"] / DTYPE_BYTES["bf16"]


def expected_places(n_places: int, top_k: int, n_experts: int, n_groups: int = 0, groups_per_token: int = 0) -> float:
    """Return to how many of the ``n_places`` that hold equal shares of the experts a token goes, at the mean.

    Its ``top_k`` experts are distinct, and any as likely as others. Where experts are in ``n_groups`` equal groups, a token's are
    in ``groups_per_token`` of these.

    Examples
    --------
    >>> expected_places(8, 1, 256), expected_places(2, 2, 2), expected_places(4, 3, 4)
    (1.0, 2.0, 3.0)
    >>> round(expected_places(8, 8, 256), 3), round(expected_places(8, 8, 256, 8, 4), 3)
    (5.295, 3.629)

    References
    ----------
    The hypergeometric distribution; DeepSeek-AI, "DeepSeek-V3", arXiv:2412.19437, section 2.1.2 (node-limited routing).
    """
    groups, n_open = (n_groups, groups_per_token) if n_groups else (1, 1)
    open_experts = n_open * n_experts // groups

    def reached(n_held: int) -> float:
        """Probability that one of ``n_held`` of the open experts is a token's."""
        return 1.0 - comb(open_experts - n_held, top_k) / comb(open_experts, top_k)

    if n_places >= groups:
        return n_places * n_open / groups * reached(n_experts // n_places)
    n_held, ways = groups // n_places, comb(groups, n_open)
    shares = (comb(n_held, k) * comb(groups - n_held, n_open - k) / ways for k in range(min(n_held, n_open) + 1))
    return n_places * sum(share * reached(k * n_experts // groups) for k, share in enumerate(shares))


def exchange_experts(items: Sequence[Item], plan: ParallelPlan, communicators: Communicators) -> list[Item]:
    """Replace the marked token exchanges by what a plan does; without expert parallelism by nothing."""
    points = [item for item in items if _is_point(item, "dispatch", "combine")]
    if not points:
        return [item for item in items if not _is_point(item, "shared")]
    result: list[Item] = []
    for item in _moved_shared_expert(items, plan):
        if isinstance(item, CommunicationPoint) and item.operator in ("dispatch", "combine"):
            found = list(_exchanges(item, plan, communicators)) if plan.ep > 1 else []
            result += [e._replace(waits=not i and _waits(item, plan)) for i, e in enumerate(found)]
        else:
            result.append(item)
    return result


def _waits(point: CommunicationPoint, plan: ParallelPlan) -> bool:
    """Whether the host must know how many tokens come before it goes on; backward sends them back as they came."""
    return plan.waits_for_counts and (point.operator, point.kernel_pass) == ("dispatch", "forward")


def _is_point(item: Item, *operators: str) -> bool:
    return isinstance(item, CommunicationPoint) and item.operator in operators


def _moved_shared_expert(items: Sequence[Item], plan: ParallelPlan) -> list[Item]:
    """Move the shared expert behind the first exchange of the pass, which it then runs beside."""
    marks = [i for i, item in enumerate(items) if _is_point(item, "shared")]
    plain = [item for item in items if not _is_point(item, "shared")]
    if len(marks) != 2 or plan.ep == 1 or not plan.moe_shared_expert_overlap:
        return plain
    shared = [*items[marks[0] + 1 : marks[1]]]
    rest = [*items[: marks[0]], *items[marks[1] + 1 :]]
    first = next(i for i, item in enumerate(rest) if _is_point(item, "dispatch", "combine"))
    n_kernels = sum(not isinstance(item, CommunicationPoint | LayerCollective) for item in shared)
    point = rest[first]
    assert isinstance(point, CommunicationPoint)
    return [*rest[:first], replace(point, overlaps=n_kernels), *shared, *rest[first + 1 :]]


def _exchanges(
    point: CommunicationPoint, plan: ParallelPlan, communicators: Communicators
) -> Iterator[LayerCollective]:
    goes_out = (point.operator == "dispatch") == (point.kernel_pass == "forward")
    n_bytes = point.n_bytes * (FP8_SHARE if plan.moe_fp8_dispatch and goes_out else 1.0)
    token_bytes = n_bytes / point.n_copies
    if plan.dispatcher.carries == "copies":
        yield LayerCollective("all_to_all", "ep", round(n_bytes), point.operator, point.overlaps)
    elif plan.dispatcher.carries == "all":
        name = "all_gather" if goes_out else "reduce_scatter"
        yield LayerCollective(name, "ep", round(token_bytes * plan.ep), point.operator, point.overlaps)
    else:
        n_local, n_nodes = communicators.size("ep:local"), communicators.size("ep:rail")
        if n_nodes > 1:
            across = round(token_bytes * _copies(point, n_nodes))
            routed = _routed(point, token_bytes, n_nodes)
            yield LayerCollective("all_to_all", "ep:rail", across, point.operator, point.overlaps, routed=routed)
        if n_local > 1:
            inside = round(token_bytes * _copies(point, plan.ep))
            routed = _routed(point, token_bytes, plan.ep)
            yield LayerCollective("all_to_all", "ep:local", inside, point.operator, point.overlaps, routed=routed)


def _copies(point: CommunicationPoint, n_places: int) -> float:
    """Return to how many of the ranks or nodes of a group a token goes at the mean."""
    return expected_places(n_places, point.n_copies, point.n_experts, point.n_groups, point.groups_per_token)


def _routed(point: CommunicationPoint, bytes_of_all: float, n_places: int) -> Routed | None:
    """Return the tokens that a dispatcher's kernels carry to ``n_places`` ranks or nodes."""
    if not point.n_tokens:
        return None
    return Routed(point.n_tokens, bytes_of_all / point.n_tokens, _copies(point, n_places), n_places)


def expert_refusal(plan: ParallelPlan, spec: ModelSpec | RecordedModule) -> str:
    """Return why a framework does not run a mixture of experts with a plan's tensor parallelism, or nothing.

    The plans of a recorded module say themselves which ranks bring tokens to its experts.
    """
    if isinstance(spec, RecordedModule) or not spec.has_experts:
        return ""
    if plan.framework_spec.experts_need_split_tokens and not plan.splits_tokens:
        return f"{plan.framework} runs experts under tensor parallelism with sequence parallelism only: tp={plan.tp}"
    return ""


def expert_load(plan: ParallelPlan) -> float:
    """Return the tokens of the busiest rank's experts, relative to an even share of all routed ones.

    Skewed routing gives the busiest of several ranks ``moe_imbalance`` times the mean; a capacity drops what exceeds it, and
    padding fills every expert up to it.

    Examples
    --------
    >>> expert_load(ParallelPlan(ep=8, moe_imbalance=1.5))
    1.5
    >>> expert_load(ParallelPlan(ep=8, moe_imbalance=1.5, moe_capacity_factor=1.25))
    1.25
    """
    load = plan.moe_imbalance if plan.ep > 1 else 1.0
    if not plan.moe_capacity_factor:
        return load
    return plan.moe_capacity_factor if plan.moe_pad_to_capacity else min(load, plan.moe_capacity_factor)


def sorts_arrivals(plan: ParallelPlan) -> bool:
    """Tell whether what an all-to-all delivered by sender is sorted by expert, which dispatchers' own kernels do as they copy.

    References
    ----------
    NVIDIA/Megatron-LM, ``docs/discussions/deepseek-v3-gb200-optimization``, section 2.1.1: one global and one local permutation before
    and after the exchange; ``core/transformer/moe/token_dispatcher.py`` (``sort_chunks_by_idxs``).
    """
    return plan.ep > 1 and plan.dispatcher.sorts_arrivals
