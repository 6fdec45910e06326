"""Fitted kernel constants into a device file, comments and all other sections as they are."""

from __future__ import annotations

from pathlib import Path

from simulator.calibration.kernels import KernelFit


def write_kernels(path: str | Path, fit: KernelFit, *, source: str, basis: str = "measured") -> None:
    """Write a fit into a device file, in place; comments and all other sections stay as they are.

    Parameters
    ----------
    path : str or Path
        The device file.
    fit : KernelFit
    source : str
        Where the rows come from.
    basis : str
        ``kernel_basis`` of the device from now on.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096  # a wrapped key would not be read back
    data = yaml.load(Path(path).read_text(encoding="utf-8"))
    kernels = data.setdefault("kernels", {})
    for family, section in fit.sections.items():
        errors = {
            name: f"n={r.n} median {r.median:.1%} p90 {r.p90:.1%} bias {r.bias:+.1%}"
            for name, r in {**fit.held_out}.items()
            if name.split(" / ")[0] == family
        }
        sure = {
            name.removeprefix(f"{family}."): f"{error:.1%}" if error < float("inf") else "not determined"
            for name, error in fit.uncertainty.items()
            if name.startswith(f"{family}.")
        }
        kernels[family] = {**section, "source": source, "fit": {"held_out": errors, "one_standard_deviation": sure}}
    data["kernel_basis"] = basis
    data["kernel_error"] = round(max(fit.relative_error, 0.03), 3)
    with Path(path).open("w", encoding="utf-8") as file:
        yaml.dump(data, file)
