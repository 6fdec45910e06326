"""Fixtures and settings that all tests share."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def chromium() -> str:
    """A browser, which pages are looked at with and pictures are made with; tests that need it are skipped without."""
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine")
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """Measurements and traces beside the checkout; tests that need them are skipped without."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"no measurements and traces at {path}")
    return path


def result(topology, model, **plan):
    """Simulate with every kernel in the timeline."""
    return simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**plan)), detail=True)


@pytest.fixture(scope="session")
def simulated():
    """The function that makes results."""
    return result


@pytest.fixture(scope="session")
def small():
    """Data parallelism on two nodes."""
    return result("bigred200", "gpt2", gpus=8, micro_batch=2)


@pytest.fixture(scope="session")
def piped():
    """Tensor, pipeline and data parallelism with interleaving."""
    return result("dgx-a100-40g", "gpt-1.3b", gpus=32, tp=2, pp=4, virtual_pp=2, micro_batch=1, global_batch=32)


@pytest.fixture(scope="session")
def large():
    """GPT-3 175B on 1,024 GPUs."""
    degrees = {"gpus": 1024, "tp": 8, "pp": 8, "virtual_pp": 6}
    return result("selene", "gpt3-175b", **degrees, micro_batch=1, global_batch=1536, recompute="full")
