import json

import numpy as np
import pytest

from simulator.analysis.usage import clip, union
from simulator.trace_io import read
from simulator.trace_io.join import join

ARRAY = np.array


def save(folder, rank, world, kernels):
    """Write a trace of bare communication kernels: (start, duration, metadata)."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": rank, "tid": 7, "ts": start, "dur": length,
         "args": {"stream": 7, "device": rank, **args}}
        for start, length, args in kernels
    ]  # fmt: skip
    document = {"distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": events}
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


def group(sequence=None, size=2, name="1"):
    more = {} if sequence is None else {"Seq": sequence}
    return {"Collective name": "allreduce", "Group size": size, "Process Group Name": name, "dtype": "Float",
            "In msg nelems": 16, **more}  # fmt: skip


def members(joins):
    return sorted(sorted(index for index, _ in joined.members) for joined in joins.joined)


def test_sequence_numbers_join_whatever_the_order_of_ends(tmp_path):
    save(tmp_path, 0, 2, [(0.0, 50.0, group(5)), (100.0, 20.0, group(6))])
    save(tmp_path, 1, 2, [(40.0, 10.0, group(5)), (110.0, 10.0, group(6))])
    joins = join(read(tmp_path))
    assert joins.basis == "sequence"
    assert [(joined.last, joined.transfer_ns) for joined in joins.joined] == [(1, 10_000), (1, 10_000)]


def test_groups_of_one_name_without_ranks_are_told_apart_by_their_ends(tmp_path):
    for rank, end in enumerate((100.0, 100.0, 300.0, 300.0)):
        save(tmp_path, rank, 4, [(end - 20.0 - rank, 20.0 + rank, group(0))])
    assert members(join(read(tmp_path))) == [[0, 1], [2, 3]]


def test_kernels_that_lead_on_one_rank_stay_alone(tmp_path):
    save(tmp_path, 0, 2, [(0.0, 10.0, {}), (1000.0, 50.0, {}), (2500.0, 50.0, {}), (4500.0, 80.0, {})])
    save(tmp_path, 1, 2, [(1010.0, 40.0, {}), (2510.0, 40.0, {}), (4510.0, 70.0, {})])
    joins = join(read(tmp_path))
    assert len(joins.joined) == 3
    assert joins.basis == "order and end time"


@pytest.mark.parametrize("shift", [0.0, 1500.0, -7e6])
def test_clock_offsets_are_found_and_taken_out(tmp_path, shift):
    times = [(1000.0, 50.0), (2500.0, 90.0), (4500.0, 60.0)]
    save(tmp_path, 0, 2, [(s, d, group(i)) for i, (s, d) in enumerate(times)])
    save(tmp_path, 1, 2, [(s + 10 + shift, d - 10, group(i)) for i, (s, d) in enumerate(times)])
    joins = join(read(tmp_path))
    assert joins.offset_ns == (0, round(shift * 1000))
    assert [joined.last for joined in joins.joined] == [1, 1, 1]


@pytest.mark.parametrize(("late", "offset"), [((40.0, -40.0, 60.0, -60.0), 0), ((440.0, 360.0, 460.0, 340.0), 400_000)])
def test_an_offset_within_the_spread_of_what_tells_it_is_none(tmp_path, late, offset):
    times = [1000.0, 2500.0, 4500.0, 7000.0]
    save(tmp_path, 0, 2, [(s, 50.0, group(i)) for i, s in enumerate(times)])
    save(tmp_path, 1, 2, [(s + d, 50.0, group(i)) for i, (s, d) in enumerate(zip(times, late, strict=True))])
    assert join(read(tmp_path)).offset_ns == (0, offset)


def test_messages_tell_an_offset_by_both_directions_only(tmp_path):
    """Rank 1's clock is 5 ms ahead, and a message ends 100 us later where it is received."""

    def both(sends):
        place = {}
        rows = {0: [], 1: []}
        for number, sender in enumerate(sends):
            for rank in (0, 1):
                side = ("send", "Dst Rank") if rank == sender else ("recv", "Src Rank")
                place[sender] = number
                args = {"Collective name": side[0], side[1]: 1 - rank, "Process Group Name": "0", "Group size": 2,
                        "Seq": number}  # fmt: skip
                late = (5000.0 if rank else 0.0) + (0.0 if rank == sender else 100.0)
                rows[rank].append((1000.0 * (number + 1) + late, 50.0, args))
        for rank, kernels in rows.items():
            save(tmp_path, rank, 2, kernels)
        return join(read(tmp_path)).offset_ns

    assert both([0, 1, 0, 1]) == (0, 5_000_000)
    assert both([0, 0, 0, 0]) == (0, 0)


def test_sends_meet_their_receives_in_order(tmp_path):
    def message(name, peer, place):
        side = "Dst Rank" if name == "send" else "Src Rank"
        return {"Collective name": name, side: peer, "Process Group Name": "0", "Group size": 2, "Seq": place}

    save(tmp_path, 0, 2, [(0.0, 30.0, message("send", 1, 1)), (50.0, 30.0, message("recv", 1, 2))])
    save(tmp_path, 1, 2, [(10.0, 20.0, message("recv", 0, 1)), (60.0, 20.0, message("send", 0, 2))])
    joins = join(read(tmp_path))
    assert members(joins) == [[0, 1], [0, 1]]
    assert [joined.transfer_ns for joined in joins.joined] == [20_000, 20_000]


def test_interval_sets():
    whole = union(ARRAY([5, 0, 1, 9]), ARRAY([7, 2, 4, 9]))
    assert (whole.start.tolist(), whole.end.tolist(), whole.length) == ([0, 5], [4, 7], 6)
    assert clip(whole, 3, 6).length == 2
    assert clip(whole, 7, 9).length == 0
