"""Hugging Face models by name: their configuration as it lies on this machine, never from the network."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from simulator.config import near_misses, parse_yaml
from simulator.errors import ConfigError
from simulator.importers.hf_config import read_hf_config
from simulator.importers.record import Imported, Reader
from simulator.models.catalog import CATALOG

#: how a model of the hub is written where a model is named
PREFIX = "hf:"


def import_hub_model(name: str) -> Imported:
    """Read the configuration of a model of the hub.

    Parameters
    ----------
    name : str
        As on the hub, e.g. ``openai-community/gpt2-large``, without the prefix ``hf:``.

    Raises
    ------
    ConfigError
        If transformers is not installed, or the configuration is not in its cache, or cannot be understood.

    Notes
    -----
    The weights are not read. What is not in the cache is not downloaded.
    """
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise ConfigError(
            f"{PREFIX}{name}: transformers is not installed", hint=f"pip install transformers, or {_instead(name)}"
        ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True).to_dict()
    except Exception as error:  # whatever the library raises for a missing or an odd configuration
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{PREFIX}{name}: no configuration on this machine: {text}",
            hint=f"nothing is downloaded; 'hf download {name} config.json' first, or {_instead(name)}",
        ) from None
    text = json.dumps(config, default=str)
    data, locator = parse_yaml(text, f"{PREFIX}{name}", as_json=True)
    return read_hf_config(Reader(data, f"{PREFIX}{name}", locator=locator), name=name.rsplit("/", maxsplit=1)[-1])


def _instead(name: str) -> str:
    short = name.rsplit("/", maxsplit=1)[-1].lower()
    near = [short] if short in CATALOG else near_misses(short, CATALOG)
    return f"--model {near[0]} of the catalogue" if near else "give --model the path of its config.json"
