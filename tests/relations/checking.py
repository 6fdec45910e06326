"""One scenario against the table: every relation that needs no simulation, and a few of the others."""

from __future__ import annotations

import traceback

from draws import Case
from relation_table import RELATIONS, Relation

#: relations with further simulations that one scenario is checked against
N_DRAWN = 3


def check(case: Case, *, only: str = "", whole: bool = False, n_drawn: int = N_DRAWN) -> list[str]:
    """Return what a case violates, a line each: the relation's name first.

    Parameters
    ----------
    case : Case
    only : str
        Relations whose name holds this text.
    whole : bool
        All relations instead of a few.
    n_drawn : int
        How many of those that simulate again.
    """
    costly = [one for one in RELATIONS if not one.is_cheap and only in one.name]
    drawn = costly if whole or only else case.draw.sample(costly, n_drawn)
    some = [*(one for one in RELATIONS if one.is_cheap and only in one.name), *drawn]
    return [f"{one.name}: {line}" for one in some for line in _violations(one, case)]


def _violations(relation: Relation, case: Case) -> list[str]:
    try:
        return relation.violations(case)
    except Exception:  # a traceback is a violation, too
        return [f"traceback: {traceback.format_exc().strip().splitlines()[-1]}"]
