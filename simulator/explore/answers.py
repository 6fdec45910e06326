"""Answers to scenarios: taken from the store where it has them, simulated and stored where it has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from simulator.answer import to_json
from simulator.errors import SimulatorError
from simulator.explore.runner import Pool
from simulator.explore.store import Record, Store, store_key
from simulator.scenario import Scenario
from simulator.simulation import simulate

Work = Callable[[Scenario], Record]


def failure(error: Exception) -> Record:
    """Return an error as a record."""
    if isinstance(error, SimulatorError):
        status = "infeasible" if error.exit_code == 4 else "invalid"
        return {"status": status, "reason": error.message, "hint": error.hint}
    return {"status": "error", "reason": f"{type(error).__name__}: {error}", "hint": ""}


def evaluate(scenario: Scenario) -> Record:
    """Simulate one scenario and return what is stored: its status, a reason and the documented answer.

    Nothing that goes wrong inside one scenario ends a sweep or a search: it becomes the reason of its row.
    """
    try:
        result = simulate(scenario)
        answer = to_json(result)
    except Exception as error:
        return failure(error)
    if result.memory.fits:
        return {"status": "ok", "reason": "", "answer": answer}
    return {"status": "does not fit", "reason": result.memory.explain(), "answer": answer}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A scenario that nobody has answered yet.

    Parameters
    ----------
    scenario : Scenario
    key : str or None
        Of the store.
    positions : list of int
        Where it stands among the scenarios that were asked for: equal ones are simulated once.
    """

    scenario: Scenario
    key: str | None
    positions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What a store knows about some scenarios.

    Parameters
    ----------
    known : list of tuple of (list of int, dict)
        Positions and record of each distinct scenario that it has.
    pending : list of Pending
        The others.
    """

    known: list[tuple[list[int], Record]]
    pending: list[Pending]


def look_up(scenarios: Sequence[Scenario], store: Store | None) -> LookUp:
    """Divide scenarios into those whose answers are stored and those that must be simulated."""
    known: dict[str, tuple[list[int], Record]] = {}
    pending: dict[str, Pending] = {}
    for position, scenario in enumerate(scenarios):
        key = store_key(scenario)
        name = key or f"unnamed {position}"
        if name in known:
            known[name][0].append(position)
            continue
        if name in pending:
            pending[name].positions.append(position)
            continue
        record = store.get(key) if store is not None and key is not None else None
        if record is None:
            pending[name] = Pending(scenario=scenario, key=key, positions=[position])
        else:
            known[name] = ([position], record)
    return LookUp(known=list(known.values()), pending=list(pending.values()))


def compute(
    pending: Sequence[Pending],
    store: Store | None,
    pool: Pool,
    *,
    work: Work = evaluate,
    batch_size: int | str = "auto",
) -> Iterator[tuple[list[int], Record]]:
    """Simulate scenarios; every answer is stored when it arrives, so that whatever ends the work early loses nothing.

    Yields
    ------
    tuple of (list of int, dict)
        Positions and record of a scenario, in the order of completion.
    """
    for index, record in pool.run(work, [one.scenario for one in pending], batch_size=batch_size):
        one = pending[index]
        # a fault of ours is not the scenario's answer: try again next time
        if store is not None and one.key is not None and record["status"] != "error":
            store.put(one.key, record)
        yield one.positions, record
