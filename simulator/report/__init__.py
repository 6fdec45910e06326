"""Reports: everything that people look at, computed from a Timeline and plain numbers."""

from __future__ import annotations
