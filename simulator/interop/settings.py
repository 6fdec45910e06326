"""Which importer reads which training configuration, and one call that reads any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean, load_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.accelerate import import_accelerate
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.hf_config import import_hf_config
from simulator.interop.megatron import import_megatron
from simulator.interop.record import Imported
from simulator.interop.torchtitan import import_torchtitan


def _keys(text: str) -> set[str]:
    """Return the keys of a JSON object, none where the text is not one."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    return set(data) if isinstance(data, dict) else set()


def _is_hf_config(text: str) -> bool:
    return "model_type" in _keys(text)


def _is_deepspeed(text: str) -> bool:
    return bool(_keys(text) & {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"})


def _is_torchtitan(text: str) -> bool:
    if {"training", "parallelism"} <= _keys(text):
        return True
    return all(re.search(rf"(?m)^\[{section}\]", text) for section in ("training", "parallelism"))


def _is_accelerate(text: str) -> bool:
    return bool(re.search(r"(?m)^(distributed_type|fsdp_config)\s*:", text))


def _is_megatron(text: str) -> bool:
    flags = bool(re.search(r"--num[-_]layers\b", text) and re.search(r"--hidden[-_]size\b", text))
    keys = re.search(r"(?m)^\s*num_layers\s*:", text) and re.search(r"(?m)^\s*hidden_size\s*:", text)
    return flags or bool(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsImporter:
    """How a format is recognised and read."""

    sniff: Callable[[str], bool]
    read: Callable[[str | Path], Imported]


#: format -> importer
SETTINGS_IMPORTERS = {
    "hf-config": SettingsImporter(sniff=_is_hf_config, read=import_hf_config),
    "megatron": SettingsImporter(sniff=_is_megatron, read=import_megatron),
    "deepspeed": SettingsImporter(sniff=_is_deepspeed, read=import_deepspeed),
    "torchtitan": SettingsImporter(sniff=_is_torchtitan, read=import_torchtitan),
    "accelerate": SettingsImporter(sniff=_is_accelerate, read=import_accelerate),
}


def recognise_settings(path: str | Path) -> list[str]:
    """Names of the formats that a file's content speaks for."""
    text = read_text(path)
    return [kind for kind, importer in SETTINGS_IMPORTERS.items() if importer.sniff(text)]


def import_settings(path: str | Path, kind: str | None = None) -> Imported:
    """Read another tool's model or plan.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str, optional
        One of :data:`SETTINGS_IMPORTERS`; seen from the content otherwise.

    Raises
    ------
    ConfigError
        If the format is unknown or cannot be told, or the file has faults.
    """
    known = ", ".join(SETTINGS_IMPORTERS)
    if kind is not None and kind not in SETTINGS_IMPORTERS:
        raise ConfigError(f"no importer {kind!r}.{did_you_mean(kind, SETTINGS_IMPORTERS)}", hint=f"one of {known}")
    found = recognise_settings(path) if kind is None else [kind]
    if not found and Path(path).suffix == ".json":
        load_yaml(path)  # a fault of the syntax says more than what follows
    if len(found) != 1:
        what = f"could be {' or '.join(found)}" if found else "is no training configuration that is known here"
        raise ConfigError(f"{path}: {what}", hint=f"say which it is: {known}")
    return SETTINGS_IMPORTERS[found[0]].read(path)
