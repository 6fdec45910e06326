"""What a table of timed kernels leaves open."""

from __future__ import annotations

from pathlib import Path

from simulator.calibration.kernel_rows import read_kernel_rows
from simulator.calibration.kernels import KernelFit, implementation_name
from simulator.models.layer import AttentionShape
from simulator.topology.device import Device


def undetermined_kernels(csv: str | Path, device: Device, fit: KernelFit) -> dict[str, str]:
    """Name what the rows with ``split=fit`` do not determine, and why.

    Returns
    -------
    dict
        ``"gemm"``, ``"attention, flash_attention_3 backward"``, ``"pointwise, gelu"`` -> reason.
    """
    rows = read_kernel_rows(csv, device.name, splits=("fit",))
    kept = f"keeps what the device file says ({device.kernel_basis})"
    found = {family: f"no rows; {kept}" for family in ("gemm", "attention", "pointwise") if family not in fit.sections}
    for row in rows:
        if isinstance(row.shape, AttentionShape):
            name = implementation_name(row.implementation, device)
            way = "forward" if row.shape.kernel_pass == "forward" else "backward"
            if way not in fit.sections.get("attention", {}).get(name, {}):
                found[f"attention, {name} {way}"] = f"too few rows; {kept}"
                found.pop("attention", None)
    measured = set(fit.sections.get("pointwise", {}).get("efficiency", {}))
    rest = sorted(set(device.kernels.get("pointwise", {}).get("efficiency", {})) - measured)
    if measured and rest:
        found["pointwise, " + ", ".join(rest)] = f"no rows; {kept}"
    return found
