"""What is counted in a table of which only the steady state is written."""

from collections import Counter
from functools import partial

import pytest

from simulator.parallel.repetition import count_in_rows
from simulator.schedules import SCHEDULES, build_table

N_STAGES, N_MICRO_BATCHES = 4, 96


def passes(row):
    return Counter((action.kind, action.chunk) for action in row)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_long_table_is_counted_as_if_it_were_written(name):
    """Every chunk runs every micro-batch forward, and backward either whole or in two parts."""
    schedule, sizes = SCHEDULES[name], []
    n_chunks = schedule.n_chunks or 2

    def build(n_micro_batches):
        sizes.append(n_micro_batches)
        return build_table(name, N_STAGES, n_micro_batches, n_chunks=n_chunks)

    found = count_in_rows(build, N_STAGES, N_MICRO_BATCHES, passes)
    n_passes = N_MICRO_BATCHES // (2 if schedule.layout == "bidirectional" else 1)
    for counts in found:
        for chunk in range(n_chunks):
            forward, whole, first, second = (counts[kind, chunk] for kind in "FBIW")
            assert forward == whole + first == n_passes and first == second
    assert name == "gpipe" or max(sizes) < N_MICRO_BATCHES


@pytest.mark.parametrize("name", ["v-half", "v-min", "zb-1p", "zb-2p", "dualpipe", "dualpipe-v"])
def test_the_length_of_a_step_costs_nothing(name):
    build = partial(build_table, name, N_STAGES, n_chunks=SCHEDULES[name].n_chunks)
    found = count_in_rows(build, N_STAGES, 10**9, passes)
    n_passes = 10**9 // (2 if name == "dualpipe" else 1)
    assert all(counts["F", 0] == counts["B", 0] + counts["W", 0] == n_passes for counts in found)
