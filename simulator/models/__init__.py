"""Models as inert descriptions: architectures, their layers and the kernels that each implementation launches."""

from __future__ import annotations
