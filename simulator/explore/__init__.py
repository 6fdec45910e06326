"""Many scenarios at once: sweeps over axes, the search for the best plan, and what a cluster must have."""

from __future__ import annotations
