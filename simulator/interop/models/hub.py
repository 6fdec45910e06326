"""Hugging Face models by name: their configuration as it lies on this machine, never from the network."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from simulator.config import near_misses
from simulator.errors import ConfigError
from simulator.interop.format import HUB, Imported
from simulator.interop.models.hf_config import parse_hf_config
from simulator.models.catalog import CATALOG
from simulator.models.recorded import InputTensor, RecordedModule
from simulator.models.torch_module import load_torch


def import_hub_model(name: str) -> Imported:
    """Read the configuration of a model of the hub (``openai-community/gpt2-large``) from the cache of transformers.

    The weights are not read, and what is not in the cache is not downloaded: a ConfigError says so.
    """
    config = _config(name).to_dict()
    return parse_hf_config(json.dumps(config, default=str), f"{HUB}{name}", name=name.rsplit("/", maxsplit=1)[-1])


def open_hub_module(name: str, *, sequence_length: int = 0) -> RecordedModule:
    """Build a model of the hub, or of a folder's ``config.json``, without weights, to be recorded.

    Tokens per sequence are the model's longest unless given. Code that lies beside a configuration is not run.
    """
    torch, transformers, config = load_torch(), _transformers(name), _config(name)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    named = [getattr(transformers, text, None) for text in getattr(config, "architectures", None) or ()]
    build = next((made for made in named if made is not None), None) or transformers.AutoModelForCausalLM.from_config
    try:
        with torch.device("meta"):
            module = build(config)
    except Exception as error:  # whatever the library raises for a configuration that it cannot build
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{HUB}{name}: transformers cannot build it: {text}") from None
    module.train()
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    longest = next((value for key in names if isinstance(value := getattr(config, key, None), int)), 0)
    tokens = [InputTensor(name=key, shape=("B", "S"), dtype="int64") for key in ("input_ids", "labels")]
    length = sequence_length or longest
    return RecordedModule(name=f"{HUB}{name}", module=module, inputs=tuple(tokens), default_length=length)


def _transformers(name: str) -> Any:
    try:
        return import_module("transformers")
    except ImportError:
        raise ConfigError(
            f"{HUB}{name}: transformers is not installed", hint=f"pip install transformers, or {_instead(name)}"
        ) from None


def _config(name: str) -> Any:
    """Return the configuration as it lies in the cache of transformers, or in a folder."""
    try:
        return _transformers(name).AutoConfig.from_pretrained(name, local_files_only=True)
    except ConfigError:
        raise
    except Exception as error:  # whatever the library raises for a missing or an odd configuration
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{HUB}{name}: no configuration on this machine: {text}",
            hint=f"nothing is downloaded; 'hf download {name} config.json' first, or {_instead(name)}",
        ) from None


def _instead(name: str) -> str:
    short = name.rsplit("/", maxsplit=1)[-1].lower()
    near = [short] if short in CATALOG else near_misses(short, CATALOG)
    return f"--model {near[0]} of the catalogue" if near else "give --model the path of its config.json"
