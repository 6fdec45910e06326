"""Replays traces in the engine: as measured, and what if."""

from __future__ import annotations

from simulator.replay.run import Replay, ReplayCosts, replay

__all__ = ["Replay", "ReplayCosts", "replay"]
