"""Collectives: which algorithm runs, what it costs, and which links it loads."""

from __future__ import annotations

from simulator.collectives.plan import COLLECTIVES, describe_collective, plan_collective, plan_transfer

__all__ = ["COLLECTIVES", "describe_collective", "plan_collective", "plan_transfer"]
