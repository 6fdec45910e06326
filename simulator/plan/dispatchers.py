"""Dispatchers of a mixture of experts: how tokens reach the ranks of their experts and return, each declared once.

References
----------
Lepikhin et al., GShard, arXiv:2006.16668 (all-to-all); deepseek-ai/DeepEP; NVIDIA/Megatron-LM, ``core/transformer/moe``
(``token_dispatcher.py``, ``moe_deepep_num_sms``, ``moe_hybridep_num_sms``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Facts of one dispatcher."""

    name: str
    #: What travels: ``copies``, one of a token for each of its experts, in one all-to-all; ``all`` tokens to all ranks, and a
    #: reduce-scatter of the results; ``distinct``, one copy of a token per node over the network and one per rank inside it, at once.
    carries: Literal["copies", "all", "distinct"]
    #: SMs that kernels of its own take unless a plan says otherwise; 0 where NCCL carries the tokens.
    n_sms: int = 0
    #: Whether these kernels copy with their SMs, which then bound the rate, rather than at the rate of the links.
    copies_with_sms: bool = False
    #: Whether what comes in the order of its senders is sorted by expert in a kernel of its own.
    sorts_arrivals: bool = False
    #: Whether its kernels take the tokens of each expert from the device, so that the host need not know how many they are.
    counts_on_device: bool = False
    vendor: str = ""  #: Whose GPUs alone its kernels are for; anybody's where it is empty.


DISPATCHERS: dict[str, Dispatcher] = {
    one.name: one
    for one in (
        Dispatcher(name="alltoall", carries="copies", sorts_arrivals=True),
        Dispatcher(name="allgather", carries="all"),
        Dispatcher(name="deepep", carries="distinct", n_sms=20, copies_with_sms=True),
        Dispatcher(name="hybridep", carries="distinct", n_sms=16, counts_on_device=True, vendor="NVIDIA"),
    )
}


def usual_sms(recipes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Say how many SMs each dispatcher takes, and under which frameworks others, whose recipes by dispatcher are given.

    Examples
    --------
    >>> usual_sms({"f": {"hybridep": {"moe_dispatcher_sms": 32}}, "g": {}})
    '20 with deepep, 16 with hybridep (32 under f)'
    """
    found = []
    for name, one in DISPATCHERS.items():
        others = {framework: known.get(name, {}).get("moe_dispatcher_sms") for framework, known in recipes.items()}
        under = ", ".join(f"{n} under {framework}" for framework, n in others.items() if n)
        found += [f"{one.n_sms} with {name}" + (f" ({under})" if under else "")] * (one.n_sms > 0)
    return ", ".join(found)
