"""Calls of a trace as operations of a program."""

import pytest

from simulator.program.op import Collective, Transfer
from simulator.trace_io.compile import communication
from simulator.trace_io.trace_record import CollectiveCall


def operation(rank=0, **cells):
    call = CollectiveCall(**{"collective": "all_reduce", "n_bytes": 64, **cells})
    return communication(call, rank, everybody=(0, 1, 2, 3), name="nccl", duration_s=2e-6, phase="backward")


@pytest.mark.parametrize(
    ("recorded", "simulated"), [("send_recv", "all_to_all"), ("all_reduce", "all_reduce"), ("all_gather", "all_gather")]
)
def test_grouped_sends_and_receives_are_an_all_to_all(recorded, simulated):
    found = operation(collective=recorded, ranks=(1, 3), group="tp")
    assert isinstance(found, Collective)
    assert (found.collective, found.axis, found.n_bytes, found.groups) == (simulated, "tp", 64, ((1, 3),))
    assert (found.duration_s, found.issue_s, found.phase) == (2e-6, 0.0, "backward")


def test_what_a_trace_does_not_say_is_everybody_and_no_bytes():
    found = operation(n_bytes=-1)
    assert (found.axis, found.n_bytes, found.groups) == ("world", 0, ((0, 1, 2, 3),))


@pytest.mark.parametrize(("rank", "collective", "peer"), [(1, "send", 2), (2, "recv", 1)])
def test_both_ends_of_a_message_are_one_transfer(rank, collective, peer):
    found = operation(rank, collective=collective, peer=peer)
    assert isinstance(found, Transfer)
    assert (found.pairs, found.n_bytes, found.duration_s) == (((1, 2),), 64, 2e-6)
    assert isinstance(operation(rank, collective=collective), Collective), "without a peer there are no two ends"
