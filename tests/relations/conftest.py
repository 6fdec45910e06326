"""The modules of the relations find one another, as they do under ``python -m tests.relations``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
