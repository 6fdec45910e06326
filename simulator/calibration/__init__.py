"""Fits constants to measurements and writes them into device files, with their source and error."""

from __future__ import annotations
