"""Traces in and out: profiler formats to and from Program and Timeline, one format in one file."""

from __future__ import annotations

from simulator.trace_io.formats import FORMATS, detect, read

__all__ = ["FORMATS", "detect", "read"]
