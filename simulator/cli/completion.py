"""What the shell completes: names of clusters, models, schedules and networks, and files by their endings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def schedules(incomplete: str) -> list[str]:
    """Complete pipeline schedules."""
    from simulator.schedules import SCHEDULES

    return _starting(SCHEDULES, incomplete)


def networks(incomplete: str) -> list[str]:
    """Complete network models."""
    from simulator.network import NETWORKS

    return _starting(NETWORKS, incomplete)


def presets(incomplete: str) -> list[str]:
    """Complete published runs."""
    from simulator.config import shipped_names

    return _starting(shipped_names("presets"), incomplete)
