"""Kernel models: how long one kernel takes on one device."""

from __future__ import annotations
