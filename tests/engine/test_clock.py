"""Calls are made in order of time and then of asking, those at one time by one event of the environment."""

from __future__ import annotations

import simpy

from simulator.engine.clock import Clock


def test_calls_are_made_in_order_of_time_and_then_of_asking(monkeypatch):
    made, timeouts = [], []
    new = simpy.Timeout
    monkeypatch.setattr(simpy, "Timeout", lambda *args: timeouts.append(args[1]) or new(*args))
    clock = Clock()

    def note(name, *more):
        made.append((clock.now_ps, name))
        for time_ps, later in more:
            clock.call_at(time_ps, note, later)

    asked = [clock.call_at(5, note, "second"), clock.call_at(3, note, "first", (3, "at once"), (5, "last"), (9, "end"))]
    asked += [clock.call_at(5, note, "third"), clock.call_at(3, note, "beside")]
    clock.run()
    assert asked == [1, 2, 3, 4]
    assert made == [(3, "first"), (3, "beside"), (3, "at once"), (5, "second"), (5, "third"), (5, "last"), (9, "end")]
    assert clock.n_events == 7
    assert timeouts == [5, 3, 6]  # three times, the last asked for at 3


def test_a_time_that_has_passed_comes_again_where_it_is_asked_for_again():
    made = []
    clock = Clock()
    clock.call_at(2, made.append, "one")
    clock.run()
    clock.call_at(clock.now_ps, made.append, "two")
    clock.run()
    assert made == ["one", "two"]
