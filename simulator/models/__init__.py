"""Models as inert descriptions: architectures, layers, and the kernels that implementations launch."""

from __future__ import annotations
