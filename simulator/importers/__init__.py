"""Readers of other tools' files: model configurations, plans, topologies and measurement tables."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import ConfigError
from simulator.importers.hf_config import import_hf_config
from simulator.models.catalog import CATALOG, find_spec
from simulator.models.spec import ModelSpec


def load_model(name_or_path: str) -> ModelSpec:
    """Return the model that a catalogue name or a file means.

    Parameters
    ----------
    name_or_path : str
        A path to a Hugging Face ``config.json`` or the folder that holds one; otherwise a catalogue name.

    Raises
    ------
    ConfigError
        If neither exists, or the file cannot be understood.
    """
    path = Path(name_or_path).expanduser()
    is_file = path.is_file() or (path.is_dir() and (path / "config.json").is_file())
    if is_file and (name_or_path not in CATALOG or path.suffix):
        spec = import_hf_config(path).spec
        assert spec is not None
        return spec
    if path.suffix == ".json":
        raise ConfigError(f"no file '{name_or_path}'", hint="give the path of a Hugging Face config.json, or a name")
    return find_spec(name_or_path)


__all__ = ["import_hf_config", "load_model"]
