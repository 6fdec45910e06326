"""Any ``torch.nn.Module`` as layers: its operators recorded on tensors without data.

Forward and backward run once on fake tensors, which have shapes and no memory, under a dispatch mode that
notes every operator. Torch is imported when a module is recorded and not before.
"""

from __future__ import annotations

from simulator.models.torch_module.load import load_torch
from simulator.models.torch_module.partition import expert_modules
from simulator.models.torch_module.record import record_module

__all__ = ["expert_modules", "load_torch", "record_module"]
