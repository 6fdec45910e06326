"""Replays traces in the engine: as measured, and what if. What a trace does not hold, or does not allow, is a ``TraceError``."""

from __future__ import annotations

from simulator.replay.replay_answer import answer_of
from simulator.replay.replayed import Replay, ReplayCosts, replay
from simulator.replay.what_if import Outcome, WhatIf, what_if

__all__ = ["Outcome", "Replay", "ReplayCosts", "WhatIf", "answer_of", "replay", "what_if"]
