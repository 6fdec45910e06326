import json
from functools import lru_cache
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


@lru_cache(maxsize=1)
def expected():
    path = SHARED / "expected.json"
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture(scope="session")
def shared_traces():
    if not SHARED.exists():
        pytest.skip("the shared traces are not beside this checkout")
    return SHARED
