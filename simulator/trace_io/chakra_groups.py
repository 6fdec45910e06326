"""Process groups in Chakra traces: the metadata node that lists them, and the numbers that consumers want for names.

PyTorch writes its groups as the input of a ``## process_group:init ##`` node; ASTRA-sim reads them there, takes names
for integers, and the name 0, or none, for all ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.trace_io.record import MAX_RANKS, Trace

#: name of the node that holds the groups
GROUPS_NODE = "## process_group:init ##"
_NUMBER = re.compile(r"[1-9]\d{0,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNumbers:
    """Integer names of a run's process groups, the same in the file of every rank.

    Parameters
    ----------
    everybody : tuple of int
        All ranks: the group that needs no name.
    by_ranks : mapping
        Ranks of every smaller group -> its number.
    """

    everybody: tuple[int, ...]
    by_ranks: Mapping[tuple[int, ...], int]

    def name(self, ranks: tuple[int, ...]) -> str:
        """Return the name of a group, ``0`` for all ranks and for those that nobody recorded."""
        return str(self.by_ranks.get(ranks, 0))

    def as_input(self, own: Mapping[str, tuple[int, ...]]) -> str:
        r"""Return all groups as PyTorch writes the metadata node's input: one text in a list.

        Parameters
        ----------
        own : mapping
            The names of one rank's groups -> ranks; they stand beside the numbers.

        Examples
        --------
        >>> GroupNumbers(everybody=(0, 1, 2, 3), by_ranks={(0, 2): 7}).as_input({"dp": (0, 2)})
        '[\'[{"pg_name": "7", "ranks": [0, 2], "names": ["dp"]}]\']'
        """
        listed = dict(self.by_ranks)
        if self.everybody in own.values():
            listed = {self.everybody: 0, **listed}
        groups = [
            {"pg_name": str(number), "ranks": list(ranks), "names": [n for n, r in own.items() if r == ranks]}
            for ranks, number in listed.items()
        ]
        return f"['{json.dumps(groups)}']"


def number_groups(trace: Trace) -> GroupNumbers:
    """Number every process group in a trace; a name that is a number already, and stands for one group, is kept."""
    names: dict[str, set[tuple[int, ...]]] = {}
    for rank in trace.ranks:
        for name, ranks in (*rank.groups.items(), *((call.group, call.ranks) for call in rank.calls)):
            if ranks:
                names.setdefault(name, set()).add(ranks)
    everybody = tuple(range(trace.world_size))
    numbers: dict[tuple[int, ...], int] = {}
    for name, members in names.items():
        (ranks, *others) = members
        if not others and _NUMBER.fullmatch(name) and ranks != everybody and ranks not in numbers:
            numbers[ranks] = int(name)
    taken = set(numbers.values())
    free = (number for number in range(1, len(names) + sum(map(len, names.values())) + 1) if number not in taken)
    for ranks in sorted({ranks for members in names.values() for ranks in members}):
        if ranks != everybody and ranks not in numbers:
            numbers[ranks] = next(free)
    return GroupNumbers(everybody=everybody, by_ranks=dict(sorted(numbers.items(), key=lambda item: item[1])))


def groups_of_input(text: object) -> dict[str, tuple[int, ...]]:
    r"""Read the groups from a metadata node's input; those whose ranks are left out or malformed are not there.

    Examples
    --------
    >>> groups_of_input('[\'[{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "0", "ranks": []}]\']')
    {'7': (0, 2)}
    """
    if not isinstance(text, str) or "[{" not in text:
        return {}
    try:
        entries = json.loads(text[text.index("[{") : text.rindex("}]") + 2])
    except (ValueError, RecursionError):
        return {}
    groups = {}
    for entry in entries if isinstance(entries, list) else ():
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and ranks and all(type(r) is int and 0 <= r < MAX_RANKS for r in ranks):
            names = entry.get("names")
            for name in names if isinstance(names, list) else (entry.get("pg_name", ""),):
                groups[str(name)] = tuple(ranks)
    return groups
