"""Clusters as graphs: devices, links, routes, fabrics, and the files that describe them."""

from __future__ import annotations
