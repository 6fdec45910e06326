"""Programs: what every rank issues, on which stream, after what; the one thing the engine runs."""

from __future__ import annotations
