"""Readers of other tools' files: model configurations, plans, topologies and measurement tables."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import ConfigError
from simulator.interop.hf_config import import_hf_config
from simulator.interop.hub import PREFIX, import_hub_model
from simulator.interop.record import Imported
from simulator.interop.settings import import_settings, recognise_settings
from simulator.models.catalog import CATALOG, find_spec
from simulator.models.spec import ModelSpec


def load_model(name_or_path: str) -> ModelSpec:
    """Return the model that a catalogue name or a file means.

    Parameters
    ----------
    name_or_path : str
        A path to a Hugging Face ``config.json`` or the folder that holds one, or to another tool's file that
        describes a model (a Megatron-LM script, a torchtitan file); ``hf:NAME`` for a configuration in the cache
        of transformers; otherwise a catalogue name.

    Raises
    ------
    ConfigError
        If neither exists, or the file cannot be understood.
    """
    imported = import_model(name_or_path)
    if imported is None:
        return find_spec(name_or_path)
    assert imported.spec is not None
    return imported.spec


def import_model(name_or_path: str) -> Imported | None:
    """Return a model that is not of the catalogue, with the account of its file; None for a catalogue name.

    Raises
    ------
    ConfigError
        If the file does not exist, or cannot be understood, or describes no model.
    """
    if name_or_path.startswith(PREFIX):
        return import_hub_model(name_or_path.removeprefix(PREFIX))
    path = Path(name_or_path).expanduser()
    if name_or_path in CATALOG and not path.suffix:
        return None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{name_or_path} is a folder without a config.json", hint="name the file itself")
        return import_hf_config(path)
    if not path.is_file():
        if path.suffix in (".json", ".sh", ".toml", ".yaml", ".yml"):
            hint = "give the path of a Hugging Face config.json, or a name"
            raise ConfigError(f"no file '{name_or_path}'", hint=hint)
        return None
    kinds = recognise_settings(path)
    if path.suffix == ".json" and not kinds:
        return import_hf_config(path)
    imported = import_settings(path)
    if imported.spec is None:
        what = f"{name_or_path} ({imported.kind}) describes no model"
        raise ConfigError(what, hint=f"give it as --plan {name_or_path}, and --model beside it")
    return imported


__all__ = ["import_hf_config", "import_model", "load_model"]
