"""The table of relations on over a hundred random scenarios; at length: ``python -m tests.relations --minutes 30``."""

import pytest
from checking import check
from draws import draw_case

SEED, N_SCENARIOS, N_PARTS = 20, 120, 10


@pytest.mark.parametrize("part", range(N_PARTS))
def test_relations_hold_on_random_scenarios(part):
    found = []
    for number in range(part, N_SCENARIOS, N_PARTS):
        case = draw_case(SEED, number)
        if case is not None:
            found += [f"{number}: {line}\n    {case.command()}" for line in check(case, n_drawn=1)]
    assert not found, "\n" + "\n".join(found)
