"""The journeys take the files that the tests of their readers hold."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
