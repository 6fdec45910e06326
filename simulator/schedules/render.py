"""A schedule drawn in characters: one line per stage, one cell per unit of time."""

from __future__ import annotations

from string import ascii_lowercase

from simulator.schedules.action import Action, Placement, Table
from simulator.schedules.check import infer_placement, peak_in_flight, unit_time_execution

_UNITS = {"F": 1, "B": 2, "I": 1, "W": 1, "V": 1}


def render(table: Table, placement: Placement | None = None) -> str:
    """Draw a table in which all passes take one unit, whole backwards two.

    Returns
    -------
    str
        A line per stage, the legend, and makespan, bubble and activations in flight. ``F3b`` is the forward
        of micro-batch 3 through chunk ``b``; the letter is left out where there is one chunk.

    Examples
    --------
    >>> from simulator.schedules import build_table
    >>> print(render(build_table("1f1b", 2, 2)).splitlines()[0])
    stage 0 | F0 F1 .. .. B0 == .. B1 ==
    """
    placement = placement or infer_placement(table)
    execution = unit_time_execution(table, placement, vocabulary=1.0)
    width = max((len(_label(a, placement)) for row in table for a in row), default=2)
    n_units = int(execution.makespan)
    lines = []
    for stage, (row, starts) in enumerate(zip(table, execution.starts, strict=True)):
        cells = ["." * min(width, 2)] * n_units
        for action, start in zip(row, starts, strict=True):
            unit = int(start)
            cells[unit : unit + _UNITS[action.kind]] = [_label(action, placement), "=" * width][: _UNITS[action.kind]]
        lines.append(
            f"stage {stage:<{len(str(len(table) - 1))}} | " + " ".join(f"{cell:<{width}}" for cell in cells).rstrip()
        )
    return "\n".join((*lines, "", _legend(table, placement), _summary(table, placement)))


def _label(action: Action, placement: Placement) -> str:
    if action.kind == "V":
        return f"V{action.micro_batch}"
    letter = ascii_lowercase[action.chunk % 26] if placement.n_chunks > 1 else ""
    return f"{action.kind}{action.micro_batch}{letter}"


def _legend(table: Table, placement: Placement) -> str:
    kinds = {action.kind for row in table for action in row}
    names = {
        "F": "F forward",
        "B": "B backward (2 units)",
        "I": "I input gradient",
        "W": "W weight gradient",
        "V": "V vocabulary, all stages together",
    }
    letters = f"; a-{ascii_lowercase[placement.n_chunks - 1]} chunks" if placement.n_chunks > 1 else ""
    return ", ".join(name for kind, name in names.items() if kind in kinds) + letters


def _summary(table: Table, placement: Placement) -> str:
    execution = unit_time_execution(table, placement, vocabulary=1.0)
    work = max(sum(_UNITS[action.kind] for action in row) for row in table)
    peaks = ", ".join(str(sum(peak)) for peak in peak_in_flight(table, placement.n_chunks))
    held = "micro-batches" if placement.n_chunks == 1 else "chunks of micro-batches"
    return (
        f"{execution.makespan:g} units, {work} of work on the busiest stage; "
        f"a stage idles at most {max(execution.bubbles):g} between its first and last action\n"
        f"{held} in flight per stage: {peaks}"
    )
