"""Toys are driven through the command line."""

import json

import pytest

from tests.cli.conftest import simulate

__all__ = ["answer_of", "simulate"]


@pytest.fixture
def answer_of(simulate):
    """Run one command line with ``--json`` and return its document."""

    def run(*arguments):
        code, out, err = simulate(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run
