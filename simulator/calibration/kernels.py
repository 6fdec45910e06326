"""Fits the kernel constants of one device to a table of timed kernels, and writes them into its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.analysis.side_by_side import excess
from simulator.arrays import FloatArray
from simulator.calibration.doubtful_rows import contradictions, far_off, hopeless, possible, shortened
from simulator.calibration.kernel_rows import ALL_TOKENS, EXPERTS, TimedKernel, quantise_name, read_kernel_rows
from simulator.calibration.robust import Fitted, Free, Residuals, fit_constants
from simulator.calibration.tables import plain_yaml, rounded
from simulator.dtypes import SCALED_ELEMENTS
from simulator.errors import CalibrationError
from simulator.kernels.attention import AttentionConstants, attention_times_s, constants_names
from simulator.kernels.gemm import GemmColumns, GemmConstants, gemm_times_s
from simulator.kernels.pointwise import ALIASES, PointwiseConstants, pointwise_time_s
from simulator.kernels.roofline import ExpertConstants, KernelConstants
from simulator.kernels.scan import ScanConstants, scan_time_s
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape, ScanShape
from simulator.topology.device import NOTES, Device
from simulator.topology.device_file import load_device

_GEMM_FREE = (
    Free(name="launch_s", low=0.3e-6, high=8e-6, prior=0.5),
    Free(name="tile_s", low=1e-8, high=5e-6, prior=0.5),
    Free(name="tile_s_per_element", low=1e-12, high=4e-10, prior=0.5),
    Free(name="exposed_tiles", low=0.01, high=1.0, prior=0.5),
    Free(name="solo_penalty", low=1e-3, high=2.0, prior=0.5),
    Free(name="split_s", low=0.3e-6, high=9e-6, prior=0.5),
    Free(name="split_bandwidth", low=0.3, high=5.0, prior=0.5),
    Free(name="warm_bandwidth", low=0.2, high=3.0, prior=0.5),
    Free(name="dram_bandwidth", low=0.4, high=1.0, prior=0.5),
    Free(name="overlap_norm", low=1.5, high=10.0, prior=0.5),
    Free(name="joules_per_flop", low=0.3e-12, high=4e-12, prior=0.3),
    Free(name="joules_per_byte", low=5e-12, high=200e-12, prior=0.5),
)
#: what attention frees; of few rows the first ones only, one for two rows
_ATTENTION_FREE = (
    Free(name="efficiency", low=0.3, high=1.2, prior=0.5),
    Free(name="score_s", low=1e-13, high=100e-12, prior=0.5),
    Free(name="block_s", low=1e-8, high=20e-6, prior=0.5),
    Free(name="joules_per_flop", low=0.3e-12, high=4e-12, prior=0.3),
    Free(name="longest", low=0.2, high=2.0, prior=0.5),
    Free(name="tail", low=1e-3, high=1.0, prior=0.5),
    Free(name="dram_bandwidth", low=0.5, high=1.0, prior=0.5),
)
_ATTENTION_LAST = {
    "forward": Free(name="launch_s", low=0.5e-6, high=40e-6, prior=0.5),
    "backward": Free(name="accumulator_bytes", low=1.0, high=60.0, prior=0.5),
}
FEWEST_ATTENTION = 8

#: fewest rows that a scaled type is fitted to: four constants
FEWEST_NARROW = 8
#: rows this much longer than what the host takes to issue them are bound by the device
HOST_MARGIN = 1.1

#: library kernel in the table -> implementation in device files, by architecture; others keep their names
IMPLEMENTATIONS = {
    "ampere": {"flash_attention": "default"},
    "blackwell": {"cudnn": "default"},
    "hopper": {"cudnn": "default"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """What a fit found for one device."""

    device: str
    #: Plain constants by family, as in the ``kernels`` section of a device file.
    sections: Mapping[str, Any]
    #: ``"<family>"`` or ``"<family> / <source>"`` -> errors on the rows that were fitted.
    residuals: Mapping[str, Residuals]
    #: The same on rows with ``split=test``.
    held_out: Mapping[str, Residuals]
    #: ``"<family>.<constant>"`` -> one standard deviation of the constant as a share of it; infinite where rows do not
    #: say.
    uncertainty: Mapping[str, float]
    #: One standard deviation of the logarithm of predicted over measured, all single kernels, tails clipped.
    relative_error: float
    #: Rows that the device cannot have run, which were left out, and doubts about others and about the fit; a sentence each.
    left_out: Sequence[str] = ()
    doubts: Sequence[str] = ()


def predict_rows_s(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> FloatArray:
    """Predict the seconds of timed kernels under the conditions of their timing, of shape ``[rows]``."""
    found = _sums_s(rows, device, constants)
    for index, row in enumerate(rows):
        if row.less is not None:
            less = replace(row, shape=row.less, beside=(), less=None)
            found[index] -= _sums_s([less], device, constants)[0]
    blocks = [index for index, row in enumerate(rows) if row.shape.name == EXPERTS]
    if blocks:
        members = [rows[index] for index in blocks]
        found[blocks] = _block_times_s(members, _block_parts_s(members, device, constants), constants.experts)
    return np.maximum(found, [row.issue_s for row in rows])


def _sums_s(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> FloatArray:
    """Sum up each row's kernels, priced one by one."""
    found = np.zeros(len(rows))
    groups: dict[tuple[object, ...], list[tuple[int, TimedKernel]]] = {}
    for index, row in enumerate(rows):
        for shape in (row.shape, *row.beside):
            one = row if shape is row.shape else replace(row, shape=shape, beside=(), less=None)
            groups.setdefault(_group_of(one), []).append((index, one))
    for members in groups.values():
        times = _predict_group([row for _, row in members], device, constants)
        np.add.at(found, [index for index, _ in members], times)
    return found


def _block_parts_s(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> FloatArray:
    """Return what expert blocks take by part, ``[3, rows]``: products, bytes of the rows routed here, and of all tokens."""
    products = [
        replace(row, beside=tuple(shape for shape in row.beside if isinstance(shape, GemmShape))) for row in rows
    ]
    n_bytes = np.zeros((2, len(rows)))
    for index, row in enumerate(rows):
        for shape in row.beside:
            if isinstance(shape, PointwiseShape):
                n_bytes[int(shape.name == ALL_TOKENS), index] += shape.n_bytes
    return np.vstack([_sums_s(products, device, constants), n_bytes / device.memory_bandwidth_bytes_per_s])


def _block_times_s(rows: Sequence[TimedKernel], parts_s: FloatArray, experts: ExpertConstants) -> FloatArray:
    """Return the times of expert blocks from their parts; a library without constants of its own has its type's."""
    found = np.empty(len(rows))
    for index, row in enumerate(rows):
        keys = (_block_key(row), row.shape.dtype)
        key = next((key for key in keys if key in experts.factor), row.shape.dtype)
        shares = [table.get(key, 1.0) for table in (experts.factor, experts.routed, experts.group)]
        found[index] = np.dot(shares, parts_s[:, index]) + experts.fixed_s.get(key, 0.0)
    return found


def _group_of(row: TimedKernel) -> tuple[object, ...]:
    shape = row.shape
    if isinstance(shape, AttentionShape):
        return (row.conditions.name, "attention", shape.kernel_pass, row.implementation, shape.dtype, shape.head_dim)
    family = {GemmShape: "gemm", ScanShape: "scan"}.get(type(shape), "pointwise")
    return (row.conditions.name, EXPERTS if shape.name == EXPERTS else family)


def _predict_group(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> FloatArray:
    conditions = rows[0].conditions
    first = rows[0].shape
    if isinstance(first, GemmShape):
        shapes = [r.shape for r in rows if isinstance(r.shape, GemmShape)]
        columns = GemmColumns.of(shapes, device, constants.gemm)
        return gemm_times_s(columns, device, constants.gemm, conditions)
    if isinstance(first, AttentionShape):
        calls = [r.shape for r in rows if isinstance(r.shape, AttentionShape)]
        is_backward = first.kernel_pass != "forward"
        name = _attention_name(rows[0], device)
        of_direction = constants.attention.of(
            name, "backward" if is_backward else "forward", first.head_dim, first.dtype
        )
        return attention_times_s(calls, device, of_direction, conditions, is_backward=is_backward)
    return np.array([_one_s(row, device, constants) for row in rows])


def _one_s(row: TimedKernel, device: Device, constants: KernelConstants) -> float:
    if isinstance(row.shape, ScanShape):
        return scan_time_s(row.shape, device, constants.scan)
    assert isinstance(row.shape, PointwiseShape)
    return pointwise_time_s(row.shape, device, constants.pointwise, row.conditions)


def implementation_name(library_kernel: str, device: Device) -> str:
    """Return the implementation under which a library kernel's constants are kept in a device file."""
    return IMPLEMENTATIONS.get(device.architecture, {}).get(library_kernel, library_kernel or "default")


def _attention_name(row: TimedKernel, device: Device) -> str:
    """Return the implementation of an attention kernel; cuDNN's for large heads and for eight bits are kept apart."""
    name, shape = implementation_name(row.implementation, device), row.shape
    if row.implementation != "cudnn" or not isinstance(shape, AttentionShape):
        return name
    return constants_names(name, shape.head_dim, shape.dtype)[0]


def fit_kernels(csv: str | Path, device: str | Path, *, start_from: str | Path = "") -> KernelFit:
    """Fit the kernel constants of a device to the rows of a table with ``split=fit``.

    Families without rows are left out of the result and so keep what the device file says. Rows that the device cannot have run are
    left out, and named.

    Parameters
    ----------
    csv : str or Path
        A table in the columns of ``kernels.csv``.
    device : str or Path
        A device's name or file; its name selects the rows.
    start_from : str or Path
        The device whose constants are the start values, near to which constants stay that the rows do not
        determine; the device itself unless given.
    """
    known = load_device(device)
    both, left_out = possible(read_kernel_rows(csv, known.name, splits=("fit", "test")), known)
    if not both:
        raise CalibrationError(
            f"{left_out[0]}; and so are all other rows of {known.name}",
            hint="time_us is in microseconds; the peaks are those of the device file",
        )
    rows, test = ([row for row in both if row.split == split] for split in ("fit", "test"))
    if not rows:
        raise CalibrationError(f"{csv}: no rows of {known.name} with split fit")
    start = load_device(start_from) if start_from else known
    try:
        fit = fit_kernel_rows(rows, test, known, start_from=start)
    except CalibrationError as error:
        raise CalibrationError(f"{csv}: {known.name}: {error.message}", hint=error.hint or "time more shapes") from None
    return replace(fit, left_out=left_out, doubts=[*shortened(contradictions(both)), *fit.doubts])


def fit_kernel_rows(
    rows: Sequence[TimedKernel], test: Sequence[TimedKernel], known: Device, *, start_from: Device
) -> KernelFit:
    """Fit the kernel constants of a device to timed kernels; see :func:`fit_kernels`."""
    constants = KernelConstants.of(start_from)
    sections: dict[str, Any] = {}
    unsure: dict[str, float] = {}
    gemms = [r for r in rows if isinstance(r.shape, GemmShape) and r.shape.name != EXPERTS]
    plain = [r for r in gemms if r.shape.dtype not in SCALED_ELEMENTS]
    if plain:
        gemm = _fit_gemm(plain, known, constants.gemm)
        unsure |= {f"gemm.{name}": error for name, error in gemm.relative_errors.items()}
        constants = replace(constants, gemm=gemm.constants)
    libraries: dict[tuple[str, str], list[TimedKernel]] = {}
    for row in gemms:
        if isinstance(row.shape, GemmShape):
            libraries.setdefault((row.shape.dtype, row.shape.library), []).append(row)
    for (dtype, library), narrow in sorted(libraries.items()):  # the vendor's first
        if dtype in SCALED_ELEMENTS and len(narrow) >= FEWEST_NARROW:
            constants = _fit_scaled(narrow, dtype, library, known, constants, unsure)
    if gemms:
        sections["gemm"] = _plain(constants.gemm, GemmConstants())
    attention = _fit_attention(rows, known, constants, unsure)
    if attention:
        sections["attention"] = {
            name: {way: _plain(found, None) for way, found in ways.items()} for name, ways in attention.items()
        }
        merged = {**constants.attention.implementations}
        for name, ways in attention.items():
            merged[name] = {**merged.get(name, merged["default"]), **ways}
        constants = replace(constants, attention=replace(constants.attention, implementations=merged))
    pointwise = [r for r in rows if isinstance(r.shape, PointwiseShape)]
    if pointwise:
        constants = replace(constants, pointwise=_fit_pointwise(pointwise, known, constants, unsure))
    if pointwise or any(row.beside for row in rows):
        sections["pointwise"] = _plain(constants.pointwise, None)
    scans = [r for r in rows if isinstance(r.shape, ScanShape)]
    if scans:
        constants = replace(constants, scan=_fit_scan(scans, known, constants, unsure))
        sections["scan"] = _plain(constants.scan, ScanConstants())
    blocks = [r for r in rows if r.shape.name == EXPERTS]
    if blocks:
        constants = replace(constants, experts=_fit_experts(blocks, known, constants, unsure))
        sections["experts"] = _plain(constants.experts, None)
    both, residuals = [*rows, *test], residuals_of(rows, known, constants)
    return KernelFit(
        device=known.name,
        sections=sections,
        residuals=residuals,
        held_out=residuals_of(test, known, constants),
        uncertainty=unsure,
        relative_error=_relative_error([row for row in rows if row.shape.name != EXPERTS], known, constants),
        doubts=[*shortened(far_off(both, predict_rows_s(both, known, constants))), *hopeless(residuals)],
    )


def residuals_of(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> dict[str, Residuals]:
    """Sum up errors per family, and per family and source where a family has several."""
    groups: dict[str, list[TimedKernel]] = {}
    for row in rows:
        family = str(_group_of(row)[1])
        groups.setdefault(family, []).append(row)
        groups.setdefault(f"{family} / {row.source} {row.implementation}".rstrip(), []).append(row)
    return {
        name: Residuals.of(excess(predict_rows_s(members, device, constants), _measured(members)))
        for name, members in sorted(groups.items())
    }


def _measured(rows: Sequence[TimedKernel]) -> FloatArray:
    return np.array([r.time_s for r in rows])


def _relative_error(rows: Sequence[TimedKernel], device: Device, constants: KernelConstants) -> float:
    errors = np.log(predict_rows_s(rows, device, constants) / _measured(rows))
    return float(np.clip(errors, -0.3, 0.3).std())


def known_energy(device: Device) -> tuple[float, float]:
    """Guess joules per FLOP and per byte: 78 % of the peak within the power limit, and what HBM takes."""
    return device.power_limit_w / (0.78 * device.peak("fp16")), 50e-12


def _fit_gemm(rows: Sequence[TimedKernel], device: Device, start: GemmConstants) -> Fitted[GemmConstants]:
    free = [
        *_GEMM_FREE,
        *(Free(name=f"tile_efficiency.{t}", low=0.1, high=1.0, prior=0.3) for t in start.tile_efficiency),
    ]
    by_conditions: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        by_conditions.setdefault(row.conditions.name, []).append(index)
    passes = {r.shape.kernel_pass for r in rows} - {"forward"}
    free += [Free(name=f"pass_efficiency.{p}", low=0.7, high=1.2, prior=0.1) for p in sorted(passes)]
    if not start.joules_per_flop:
        energy = known_energy(device)
        start = replace(start, joules_per_flop=energy[0], joules_per_byte=energy[1])
    start = replace(start, pass_efficiency={p: start.pass_efficiency.get(p, 1.0) for p in sorted(passes)})
    shapes = [r.shape for r in rows if isinstance(r.shape, GemmShape)]
    columns = {
        name: GemmColumns.of([shapes[i] for i in indices], device, replace(start, pass_efficiency={}))
        for name, indices in by_conditions.items()
    }
    kinds = {name: [shapes[i].kernel_pass for i in indices] for name, indices in by_conditions.items()}
    weights = np.empty(len(rows))
    for indices in by_conditions.values():
        weights[indices] = np.sqrt(len(rows) / len(by_conditions) / len(indices))

    def predict(constants: GemmConstants) -> FloatArray:
        times = np.empty(len(rows))
        for name, indices in by_conditions.items():
            factor = np.array([constants.pass_efficiency.get(kind, 1.0) for kind in kinds[name]])
            scaled = replace(columns[name], peak_flops_per_s=columns[name].peak_flops_per_s * factor)
            times[indices] = gemm_times_s(scaled, device, constants, rows[indices[0]].conditions)
        return times

    return fit_constants(start, free, predict, _measured(rows), weights=weights, n_starts=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Narrow:
    """What is fitted for products of one scaled type: rate and energy, and the quantisation that was timed with them."""

    efficiency: float = 0.9
    energy: float = 0.9
    quantize: float = 0.5
    quantize_s: float = 5e-6
    quantize_row_s: float = 1e-10

    def within(self, constants: KernelConstants, dtype: str, library: str = "") -> KernelConstants:
        """Return constants with these in their places; what another library than the vendor's has is relative to the vendor's."""
        gemm, pointwise, key = constants.gemm, constants.pointwise, f"{quantise_name(library)}.{dtype}"
        if library:
            name = f"{library}/{dtype}"
            efficiency = self.efficiency / gemm.dtype_efficiency.get(dtype, 1.0)
            energy = self.energy / gemm.dtype_energy.get(dtype, 1.0)
            gemm = replace(
                gemm,
                library_efficiency={**gemm.library_efficiency, name: efficiency},
                library_energy={**gemm.library_energy, name: energy},
            )
        else:
            gemm = replace(
                gemm,
                dtype_efficiency={**gemm.dtype_efficiency, dtype: self.efficiency},
                dtype_energy={**gemm.dtype_energy, dtype: self.energy},
            )
        return replace(
            constants,
            gemm=gemm,
            pointwise=replace(
                pointwise,
                efficiency={**pointwise.efficiency, key: self.quantize},
                fixed_s={**pointwise.fixed_s, key: self.quantize_s},
                row_s={**pointwise.row_s, key: self.quantize_row_s},
            ),
        )


def _fit_scaled(
    rows: Sequence[TimedKernel],
    dtype: str,
    library: str,
    device: Device,
    constants: KernelConstants,
    unsure: dict[str, float],
) -> KernelConstants:
    """Fit what 8 and 4 bits change: tiles, launches and memory stay those of 16 bits."""
    shown = [row for row in rows if row.time_s > HOST_MARGIN * row.issue_s]
    if len(shown) < FEWEST_NARROW:
        return constants
    free = [Free(name="efficiency", low=0.15, high=1.3, prior=0.5), Free(name="energy", low=0.1, high=4.0, prior=0.3)]
    if any(row.beside for row in shown):
        free.append(Free(name="quantize", low=0.02, high=1.0, prior=1.0))
        free.append(Free(name="quantize_s", low=1e-8, high=40e-6, prior=1.0))
        free.append(Free(name="quantize_row_s", low=1e-12, high=20e-9, prior=3.0))

    def predict(narrow: _Narrow) -> FloatArray:
        return predict_rows_s(shown, device, narrow.within(constants, dtype, library))

    fitted = fit_constants(_Narrow(), free, predict, _measured(shown), n_starts=2)
    place = f"library_{{}}.{library}/{dtype}" if library else f"dtype_{{}}.{dtype}"
    quantise = f"{quantise_name(library)}.{dtype}"
    places = {
        "efficiency": f"gemm.{place.format('efficiency')}", "energy": f"gemm.{place.format('energy')}",
        "quantize": f"pointwise.efficiency.{quantise}", "quantize_s": f"pointwise.fixed_s.{quantise}",
        "quantize_row_s": f"pointwise.row_s.{quantise}",
    }  # fmt: skip
    unsure |= {places[name]: error for name, error in fitted.relative_errors.items()}
    kept = replace(fitted.constants, **({} if len(free) > 2 else {"quantize": 0.6, "quantize_s": 1e-9}))
    return kept.within(constants, dtype, library)


def _fit_scan(
    rows: Sequence[TimedKernel], device: Device, constants: KernelConstants, unsure: dict[str, float]
) -> ScanConstants:
    """Fit the rate of each recurrence, and the fixed part of all."""
    names = sorted({row.shape.name for row in rows if isinstance(row.shape, ScanShape)})
    free = [Free(name="launch_s", low=1e-6, high=200e-6, prior=1.0)]
    free += [Free(name=f"efficiency.{name}", low=1e-3, high=1.0, prior=1.0) for name in names]

    def predict(scan: ScanConstants) -> FloatArray:
        return predict_rows_s(rows, device, replace(constants, scan=scan))

    fitted = fit_constants(constants.scan, free, predict, _measured(rows))
    unsure |= {f"scan.{name}": error for name, error in fitted.relative_errors.items()}
    return fitted.constants


def _block_key(row: TimedKernel) -> str:
    """Key of the constants of an expert block: its type, and the library that ran it."""
    dtype, library = row.shape.dtype, row.implementation.replace("_nongated", "_cutlass")  # the same kernels
    return f"{dtype} {library}" if library else dtype


def _fit_experts(
    rows: Sequence[TimedKernel], device: Device, constants: KernelConstants, unsure: dict[str, float]
) -> ExpertConstants:
    """Fit the parts of whole expert blocks for each type, and each library and type, with rows enough."""
    found = ExpertConstants()
    for dtype in sorted({key for row in rows for key in (row.shape.dtype, _block_key(row))}):
        members = [row for row in rows if dtype in (row.shape.dtype, _block_key(row))]
        if len(members) < FEWEST_NARROW:
            continue
        parts_s = _block_parts_s(members, device, constants)
        first = {"factor": 1.0, "routed": 2.0, "group": 2.0, "fixed_s": 20e-6}
        bounds = {"factor": (0.05, 10.0), "routed": (0.05, 100.0), "group": (0.05, 100.0), "fixed_s": (1e-7, 500e-6)}
        free = [Free(name=f"{name}.{dtype}", low=low, high=high, prior=2.0) for name, (low, high) in bounds.items()]
        start = replace(found, **{name: {**getattr(found, name), dtype: value} for name, value in first.items()})

        def predict(
            c: ExpertConstants, members: list[TimedKernel] = members, parts_s: FloatArray = parts_s
        ) -> FloatArray:
            return _block_times_s(members, parts_s, c)

        fitted = fit_constants(start, free, predict, _measured(members))
        found = fitted.constants
        unsure |= {f"experts.{name}": error for name, error in fitted.relative_errors.items()}
    return found


def _fit_attention(
    rows: Sequence[TimedKernel], device: Device, constants: KernelConstants, unsure: dict[str, float]
) -> dict[str, dict[str, AttentionConstants]]:
    groups: dict[tuple[str, str], list[TimedKernel]] = {}
    for row in rows:
        if isinstance(row.shape, AttentionShape):
            way = "forward" if row.shape.kernel_pass == "forward" else "backward"
            groups.setdefault((_attention_name(row, device), way), []).append(row)
    found: dict[str, dict[str, AttentionConstants]] = {}
    for (name, way), members in sorted(groups.items()):
        is_backward = way == "backward"
        if len(members) < FEWEST_ATTENTION:
            continue
        free = (*_ATTENTION_FREE, _ATTENTION_LAST[way])[: len(members) // 2]
        shapes = [r.shape for r in members if isinstance(r.shape, AttentionShape)]
        conditions = members[0].conditions
        start = replace(
            constants.attention.of(name, way),
            joules_per_flop=constants.gemm.joules_per_flop,
            joules_per_byte=constants.gemm.joules_per_byte,
        )
        if is_backward:  # three kernels; what the rows add to that is the host
            start = replace(start, launch_s=3.0 * constants.gemm.launch_s)

        def predict(
            c: AttentionConstants,
            shapes: list[AttentionShape] = shapes,
            conditions: Any = conditions,
            is_backward: bool = is_backward,
        ) -> FloatArray:
            return attention_times_s(shapes, device, c, conditions, is_backward=is_backward)

        fitted = fit_constants(start, free, predict, _measured(members), max_evaluations=80)
        found.setdefault(name, {})[way] = fitted.constants
        unsure |= {f"attention.{name}.{way}.{one}": error for one, error in fitted.relative_errors.items()}
    return found


def _fit_pointwise(
    rows: Sequence[TimedKernel], device: Device, constants: KernelConstants, unsure: dict[str, float]
) -> PointwiseConstants:
    """Fit operation by operation: bandwidth share, seconds per row, additional fixed time."""
    found = replace(constants.pointwise, launch_s=constants.gemm.launch_s)
    groups: dict[str, list[TimedKernel]] = {}
    for row in rows:
        assert isinstance(row.shape, PointwiseShape)
        name = ALIASES.get(row.shape.name, row.shape.name)
        key = name if row.shape.kernel_pass == "forward" else f"{name}.backward"
        groups.setdefault(key, []).append(row)
    for key, members in sorted(groups.items()):
        shapes = [r.shape for r in members if isinstance(r.shape, PointwiseShape)]
        conditions = [r.conditions for r in members]
        start = replace(
            found,
            efficiency={**found.efficiency, key: 0.8},
            row_s={**found.row_s, key: 0.5e-9},
            fixed_s={**found.fixed_s, key: 1e-6},
        )
        free = [Free(name=f"efficiency.{key}", low=0.05, high=1.0)]
        launches_several = bool(shapes[0].row_length) and len(members) >= 8
        if launches_several:
            free.append(Free(name=f"fixed_s.{key}", low=1e-9, high=300e-6))
            free.append(Free(name=f"row_s.{key}", low=1e-12, high=20e-9))
        elif key == "embedding.backward":  # sorts the tokens, then adds row by row
            free = [Free(name=f"{f}.{key}", low=1e-12, high=300e-6) for f in ("fixed_s", "row_s")]
        else:
            start = replace(start, row_s=found.row_s, fixed_s=found.fixed_s)

        def predict(
            c: PointwiseConstants,
            shapes: list[PointwiseShape] = shapes,
            conditions: list[Any] = conditions,
        ) -> FloatArray:
            pairs = zip(shapes, conditions, strict=True)
            return np.array([pointwise_time_s(s, device, c, condition) for s, condition in pairs])

        fitted = fit_constants(start, free, predict, _measured(members), n_starts=1, max_evaluations=100)
        found = fitted.constants
        unsure |= {f"pointwise.{name}": error for name, error in fitted.relative_errors.items()}
    return found


def _plain(constants: Any, defaults: Any) -> dict[str, Any]:
    """Return constants as plain rounded numbers, without those that are equal to the defaults."""
    skip = asdict(defaults) if defaults is not None else {}
    return {k: rounded(v) for k, v in asdict(constants).items() if v != skip.get(k) and v not in ({}, None)}


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
            name = _attention_name(row, device)
            way = "forward" if row.shape.kernel_pass == "forward" else "backward"
            if way not in fit.sections.get("attention", {}).get(name, {}):
                found[f"attention, {name} {way}"] = f"too few rows; {kept}"
                found.pop("attention", None)
    measured = set(fit.sections.get("pointwise", {}).get("efficiency", {}))
    rest = sorted(set(device.kernels.get("pointwise", {}).get("efficiency", {})) - measured)
    if measured and rest:
        found["pointwise, " + ", ".join(rest)] = f"no rows; {kept}"
    return found


def write_kernels(path: str | Path, fit: KernelFit, *, source: str) -> None:
    """Write a fit into a device file, in place; comments, other sections and unmeasured kinds of attention stay as they are.

    Parameters
    ----------
    path : str or Path
        The device file.
    source : str
        Where the rows come from.
    """
    yaml = plain_yaml()
    data = yaml.load(Path(path).read_text(encoding="utf-8"))
    kernels = data.setdefault("kernels", {})
    for family, section in fit.sections.items():
        errors = {
            name: f"n={r.n} median {r.median:.1%} p90 {r.p90:.1%} bias {r.bias:+.1%}"
            for name, r in fit.held_out.items()
            if name.split(" / ")[0] == family
        }
        sure = {
            name.removeprefix(f"{family}."): f"{error:.1%}" if error < float("inf") else "not determined"
            for name, error in fit.uncertainty.items()
            if name.startswith(f"{family}.")
        }
        before = kernels.get(family, {})
        kept = (
            {name: before[name] for name in before if name not in (*NOTES, *section)} if family == "attention" else {}
        )
        said = f"{', '.join(kept)}: {before.get('source', 'not stated')}; others: {source}" if kept else source
        notes = {"source": said, "fit": {"held_out": errors, "one_standard_deviation": sure}}
        kernels[family] = {**kept, **section, **notes}
    data["kernel_basis"] = "measured"
    data["kernel_error"] = round(max(fit.relative_error, 0.03), 3)
    with Path(path).open("w", encoding="utf-8") as file:
        yaml.dump(data, file)
