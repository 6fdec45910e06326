"""Network models: how long transfers take that share the links of a topology."""

from __future__ import annotations
