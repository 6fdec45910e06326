"""Defaults of whole runs, with their sources."""

from __future__ import annotations

from functools import lru_cache

from simulator.config import load_spec, resolve_name
from simulator.topology.operation_spec import OperationDefaults


@lru_cache(maxsize=1)
def operation_defaults() -> OperationDefaults:
    """Return ``topologies/operation/defaults.yaml``."""
    return load_spec(resolve_name("defaults", "operation"), OperationDefaults)
