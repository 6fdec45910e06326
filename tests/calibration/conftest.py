"""Fits are also driven through the command line."""

from tests.cli.conftest import simulate

__all__ = ["simulate"]
