"""The command line: every command is one call of the Python API and holds no logic of its own."""

from __future__ import annotations
