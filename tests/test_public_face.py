"""``from simulator import ...`` offers what the documentation names, without loading it beforehand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import simulator

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", sorted(simulator._PLACES))
def test_every_public_name_can_be_imported(name):
    assert name in simulator.__all__
    assert name in dir(simulator)
    assert getattr(simulator, name).__doc__
    assert callable(getattr(simulator, name))


def test_every_public_name_has_a_place():
    assert set(simulator.__all__) == {*simulator._PLACES, "__version__"}


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = simulator.nonsense


def test_importing_the_package_loads_nothing_of_it():
    done = run("-c", "import simulator, sys; print([name for name in sys.modules if name.startswith('simulator.')])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_package_runs_as_a_module():
    done = run("-m", "simulator", "--version")
    assert (done.returncode, done.stdout) == (0, f"simulate {simulator.__version__}\n"), done.stderr
