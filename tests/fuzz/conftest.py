"""The harness is a package of the checkout, as it is under ``python -m tests.fuzz``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
