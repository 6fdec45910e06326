"""Readers of other tools' files: model configurations, plans, topologies and measurement tables."""

from __future__ import annotations
