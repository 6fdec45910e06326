"""PyTorch, imported when it is needed and not before."""

from __future__ import annotations

import importlib
from typing import Any

from simulator.errors import ConfigError


def load_torch(submodule: str = "") -> Any:
    """Import torch, or one of its modules, when it is needed and not before."""
    try:
        return importlib.import_module(f"torch.{submodule}" if submodule else "torch")
    except ImportError as error:
        raise ConfigError(
            "PyTorch is not installed, so a module cannot be recorded",
            hint="install the extra 'torch', or name a catalogue model",
        ) from error
