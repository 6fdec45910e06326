"""Memory: bytes of one rank by category, the peak, and whether it fits."""

from __future__ import annotations

from simulator.memory.estimate import CATEGORIES, MemoryReport, check_host_memory, estimate

__all__ = ["CATEGORIES", "MemoryReport", "check_host_memory", "estimate"]
