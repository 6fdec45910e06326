"""What the shell completes: names of clusters, devices, models and of whatever else has names, and files by their endings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path


def files(*suffixes: str) -> Callable[[str], list[str]]:
    """Return what completes paths of files with these endings, and of folders."""

    def complete(incomplete: str) -> list[str]:
        folder = Path(incomplete if incomplete.endswith("/") else incomplete.rpartition("/")[0] or ".")
        if not folder.is_dir():
            return []
        start = incomplete.rpartition("/")[0] + "/" * ("/" in incomplete)
        found = sorted(one for one in folder.iterdir() if one.is_dir() or one.suffix in suffixes)
        paths = (f"{start}{one.name}{'/' * one.is_dir()}" for one in found if not one.name.startswith("."))
        return [path for path in paths if path.startswith(incomplete)]

    return complete


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def topologies(incomplete: str) -> list[str]:
    """Complete shipped clusters, and cluster files."""
    from simulator.topology import list_topologies

    return [*_starting(list_topologies(), incomplete), *files(".yaml", ".yml", ".json", ".xml", ".conf")(incomplete)]


def models(incomplete: str) -> list[str]:
    """Complete the catalogue, and ``config.json`` files."""
    from simulator.models.catalog import CATALOG

    return [*_starting(CATALOG, incomplete), *files(".json")(incomplete)]


def _names_in(module: str, table: str) -> Callable[[str], list[str]]:
    """Return what completes the names of a table, which is imported only then."""

    def complete(incomplete: str) -> list[str]:
        return _starting(map(str, getattr(import_module(module), table)), incomplete)

    return complete


schedules = _names_in("simulator.schedules", "SCHEDULES")
networks = _names_in("simulator.network", "NETWORKS")
algorithms = _names_in("simulator.collectives", "ALGORITHMS")
protocols = _names_in("simulator.collectives.nccl", "PROTOCOLS")
policies = _names_in("simulator.explore.run.checkpoint_policy", "POLICIES")
placements = _names_in("simulator.explore.run.placement", "WAYS")
objectives = _names_in("simulator.explore.search.objectives", "OBJECTIVES")


def _shipped(kind: str) -> Callable[[str], list[str]]:
    """Return what completes the names of shipped files of a kind."""

    def complete(incomplete: str) -> list[str]:
        from simulator.config import shipped_names

        return _starting(shipped_names(kind), incomplete)

    return complete


presets = _shipped("presets")
devices = _shipped("devices")


def failure_rates(incomplete: str) -> list[str]:
    """Complete published rates of failures."""
    from simulator.explore.run.energy import failure_rates as published

    return _starting([*published(), "none"], incomplete)
