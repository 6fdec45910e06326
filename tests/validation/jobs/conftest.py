"""Jobs started as a user starts them: a process of their own, one thread each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def validation():
    """Run ``python -m validation`` and return the finished process."""

    def run(*arguments, timeout=90, **environment):
        return subprocess.run(
            [sys.executable, "-m", "validation", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            cwd=ROOT,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def run_job(validation):
    """Run ``python -m validation run`` and return the finished process."""
    return lambda *arguments, **settings: validation("run", *arguments, **settings)
