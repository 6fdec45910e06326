"""Fixtures and settings that all tests share."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Measurements and traces beside the checkout; tests that need them are skipped without."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"no measurements and traces at {path}")
    return path
