import json
from functools import lru_cache
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
REASON = "the shared traces are not beside this checkout"


@lru_cache(maxsize=1)
def expected():
    path = SHARED / "expected.json"
    return json.loads(path.read_text()) if path.exists() else {}


def published(*keys):
    """Traces for which all keys were measured; where the traces are absent, one parameter that skips and says why."""
    names = [name for name, entry in expected().items() if all(key in entry for key in keys)]
    return names or [pytest.param("", marks=pytest.mark.skip(reason=REASON))]


@pytest.fixture(scope="session")
def shared_traces():
    if not SHARED.exists():
        pytest.skip(REASON)
    return SHARED
