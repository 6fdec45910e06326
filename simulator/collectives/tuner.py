"""Which algorithm and protocol run, as NCCL chooses: the enabled pair with the least estimate; and what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simulator import collectives
from simulator.collectives import efa, rccl
from simulator.collectives.algorithm import Algorithm, Case, Terms
from simulator.collectives.constants import Between, Inside, constants_for, shipped
from simulator.collectives.nccl import PROTOCOLS, NcclQuestion, find_channels, has_protocol, is_offered
from simulator.collectives.shape import GroupShape
from simulator.config import check_word
from simulator.errors import ConfigError
from simulator.units import count_of

Pair = tuple[Algorithm, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmChoice:
    """An algorithm and a protocol; ``n_channels`` counts the rings or trees over which the bytes are split."""

    algorithm: Algorithm
    protocol: str
    n_channels: int

    @property
    def label(self) -> str:
        """How reports name it: ``ring/simple``."""
        return self.algorithm.label(self.protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What was decided about a collective: its communicator, the choice and the price."""

    shape: GroupShape
    choice: AlgorithmChoice
    terms: Terms


def candidates(collective: str, shape: GroupShape) -> tuple[Pair, ...]:
    """All pairs of algorithm and protocol that could run a collective of this communicator, asked for or not."""
    return tuple(
        (algorithm, protocol)
        for algorithm in collectives.ALGORITHMS.values()
        if algorithm.library == shape.library and collective in algorithm.tables
        if algorithm.is_enabled(collective, shape)
        for protocol in algorithm.protocols
        if has_protocol(protocol, shape)
    )


def is_tunable(collective: str) -> bool:
    """Whether ``NCCL_ALGO`` and ``NCCL_PROTO`` have a say in a collective."""
    return any(collective in a.tables for a in collectives.ALGORITHMS.values() if a.is_tunable)


def check_choice(algorithm: str | None, protocol: str | None) -> None:
    """Raise an error for a forced algorithm or protocol that there is not, wherever it would run.

    Examples
    --------
    >>> check_choice("NVLSTree", "simple"), check_choice(None, None)
    (None, None)
    >>> check_choice("rign", None)
    Traceback (most recent call last):
    simulator.errors.ConfigError: algorithm 'rign' is unknown. Did you mean 'ring'?
    hint: one of ring, tree, nvls, nvls_tree, collnet_direct, collnet_chain, pat, binomial, p2p, gloo
    """
    for what, word, known in (("algorithm", algorithm, collectives.ALGORITHMS), ("protocol", protocol, PROTOCOLS)):
        if word and _plain_name(word) not in map(_plain_name, known):
            check_word(what, word, tuple(known))


def choose(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    algorithm: str | None = None,
    protocol: str | None = None,
    *,
    eight_bit_float: bool = False,
) -> AlgorithmChoice:
    """Choose as NCCL does: the allowed pair with the least estimate, unless a plug-in's table names one.

    Parameters
    ----------
    algorithm, protocol : str, optional
        Restrict the choice, as ``NCCL_ALGO`` and ``NCCL_PROTO`` do; sends and receives do not heed them.
    """
    every = candidates(collective, shape)
    wanted = (_plain_name(algorithm), _plain_name(protocol))
    pairs = tuple((a, p) for a, p in every if wanted[0] in ("", _plain_name(a.name)) and wanted[1] in ("", p))
    if not wanted[1]:
        pairs = tuple(pair for pair in pairs if is_offered(pair[1], shape))
    if not wanted[0]:
        pairs = tuple(pair for pair in pairs if pair[0].is_automatic)
    pairs = pairs or tuple(pair for pair in every if not pair[0].is_tunable)
    tuned = efa.tuned(collective, n_bytes, shape)
    pairs = tuple((a, p) for a, p in pairs if (a.name, p) == tuned) or pairs
    if not pairs:
        raise _refusal(collective, shape, every, {"algorithm": algorithm, "protocol": protocol})
    return _best(pairs, collective, n_bytes, shape, eight_bit_float)


@lru_cache(
    maxsize=65_536
)  # fits of constants ask for the same rows again and again, and the choice does not depend on them
def _best(
    pairs: tuple[Pair, ...], collective: str, n_bytes: int, shape: GroupShape, eight_bit_float: bool
) -> AlgorithmChoice:
    channels = find_channels(shape)
    question = NcclQuestion(
        collective=collective, n_bytes=n_bytes, shape=shape, channels=channels, eight_bit_float=eight_bit_float
    )
    estimates_s = [_estimate_s(algorithm, protocol, question) for algorithm, protocol in pairs]
    best = estimates_s.index(min(estimates_s))
    algorithm, protocol = pairs[best]
    if rccl.knows(shape) and algorithm.is_automatic and algorithm.is_tunable:
        by_size = rccl.protocol_of(collective, n_bytes, shape)
        protocol = by_size if by_size and (algorithm, by_size) in pairs else protocol
    return AlgorithmChoice(algorithm=algorithm, protocol=protocol, n_channels=channels.n_channels)


def _estimate_s(algorithm: Algorithm, protocol: str, question: NcclQuestion) -> float:
    """The library's estimate; of an algorithm that it does not know, our price, which tells the protocols apart."""
    if algorithm.is_automatic:
        by_rccl = algorithm.is_tunable and rccl.knows(question.shape)
        of_library = rccl.estimate_us(algorithm.name, protocol, question) if by_rccl else None
        return 1e-6 * (algorithm.estimate_us(question, protocol) if of_library is None else of_library)
    case = _case(question.collective, int(question.n_bytes), question.shape, protocol, question.channels.n_channels)
    return algorithm.terms(case).lone_time_s(question.n_bytes, question.shape)


def _case(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    protocol: str,
    n_channels: int,
    *,
    pipelined: bool = False,
    constants: tuple[Inside, Between] | None = None,
) -> Case:
    inside, between = constants or constants_of(shape)
    return Case(
        collective=collective, n_bytes=n_bytes, shape=shape, protocol=protocol, n_channels=n_channels, inside=inside,
        between=between, pipelined=pipelined,
    )  # fmt: skip


def _refusal(
    collective: str, shape: GroupShape, every: tuple[Pair, ...], asked: Mapping[str, str | None]
) -> ConfigError:
    if not every:
        known = [a for a in collectives.ALGORITHMS.values() if a.library == shape.library]
        names = dict.fromkeys(name for algorithm in known for name in algorithm.tables)
        return ConfigError(
            f"collective '{collective}' is unknown: {shape.library} has no {collective}",
            hint=f"one of {', '.join(names)}",
        )
    return ConfigError(
        f"{collective} over {count_of(shape.n_ranks, 'rank')} on {count_of(shape.n_nodes, 'node')} "
        f"cannot use {' with '.join(f'{what} {name}' for what, name in asked.items() if name)}",
        hint=f"one of {', '.join(f'{a.name}/{p}' for a, p in every)}",
    )


def _plain_name(name: str | None) -> str:
    """Return a name without NCCL's capitals, ours without its joints: ``NVLSTree`` is ``nvls_tree``."""
    return (name or "").lower().replace("_", "").replace("-", "")


def describe_collective(
    collective: str,
    n_bytes: int,
    shape: GroupShape,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    pipelined: bool = False,
    eight_bit_float: bool = False,
    constants: tuple[Inside, Between] | None = None,
) -> Described:
    """Choose and price a collective of a communicator of several ranks, without looking at links.

    Parameters
    ----------
    n_bytes : int
        Size as nccl-tests counts it.
    pipelined : bool
        Whether the operation is one of many back to back, as in nccl-tests.
    """
    choice = choose(collective, n_bytes, shape, algorithm, protocol, eight_bit_float=eight_bit_float)
    case = _case(
        collective, n_bytes, shape, choice.protocol, choice.n_channels, pipelined=pipelined, constants=constants
    )
    return Described(shape=shape, choice=choice, terms=choice.algorithm.terms(case))


@lru_cache(maxsize=1024)  # laying classes, versions and clusters over each other takes longer than a price
def constants_of(shape: GroupShape) -> tuple[Inside, Between]:
    """Shipped constants for a communicator."""
    return table_constants(shape, shipped())


def table_constants(shape: GroupShape, table: Mapping[str, Any]) -> tuple[Inside, Between]:
    """Constants for a communicator from a given table: those of its classes, and the latency of its routes."""
    overrides = json.loads(shape.overrides) if shape.overrides else None
    classes = (shape.generation, shape.wiring, shape.transport_class)
    inside, between = constants_for(table, classes, shape.nccl, overrides)
    return inside.over(shape.inside_latency_s), between.over(shape.between_latency_s, shape.nic_bytes_per_s)
