"""An emulated cluster: network namespaces as hosts, shaped veth links between them, real jobs on top."""

from __future__ import annotations

from validation.emulation.job import JOBS, Job, job_of_row
from validation.emulation.measure import COLUMNS, Limits, measure
from validation.emulation.namespaces import EmulationError, UnavailableError, why_unavailable
from validation.emulation.network import emulated_network
from validation.emulation.shape import ClusterShape

__all__ = [
    "COLUMNS",
    "JOBS",
    "ClusterShape",
    "EmulationError",
    "Job",
    "Limits",
    "UnavailableError",
    "emulated_network",
    "job_of_row",
    "measure",
    "why_unavailable",
]
