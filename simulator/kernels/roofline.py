"""The default kernel model: a roofline per kernel family, quantised by tiles and waves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.errors import ConfigError
from simulator.identity import ByIdentity
from simulator.kernels.attention import AttentionConstants, AttentionFamily, attention_times_s
from simulator.kernels.conditions import CONDITIONS, Conditions
from simulator.kernels.constants import build_constants, parts_of, read_constants, section_of
from simulator.kernels.gemm import GemmColumns, GemmConstants, gemm_times_s, under_release
from simulator.kernels.pointwise import PointwiseConstants, pointwise_time_s
from simulator.kernels.scan import ScanConstants, scan_time_s
from simulator.models.layer import AttentionShape, GemmShape, KernelShape, ScanShape
from simulator.topology.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConstants:
    """Whole expert blocks of serving stacks, by type of their operands and library; entries count together.

    Every GPU of a group sees all of its tokens: it scores, quantises and sums them whichever experts it has. Only their products, and
    what lies between those, are of the rows that are routed to it.
    """

    #: On the time of the products: how well small ones of many experts share a launch.
    factor: Mapping[str, float] = field(default_factory=dict)
    #: On the time that bytes moved take at the datasheet's bandwidth: of rows that are routed here (permutation, activation, weighted
    #: sum), and of the hidden states of all tokens of the group, read and written once.
    routed: Mapping[str, float] = field(default_factory=dict)
    group: Mapping[str, float] = field(default_factory=dict)
    #: Launches.
    fixed_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """The constants of all families on one device."""

    gemm: GemmConstants
    attention: AttentionFamily
    pointwise: PointwiseConstants
    experts: ExpertConstants = field(default_factory=ExpertConstants)
    scan: ScanConstants

    @classmethod
    def of(cls, device: Device, cuda: str = "") -> KernelConstants:
        """Read them from the device file, for the libraries of a CUDA release (empty: current)."""
        return cls(
            gemm=under_release(read_constants(device, "gemm", GemmConstants), cuda),
            attention=_attention(device, cuda),
            pointwise=read_constants(device, "pointwise", PointwiseConstants),
            experts=read_constants(device, "experts", ExpertConstants),
            scan=read_constants(device, "scan", ScanConstants),
        )


def _attention(device: Device, cuda: str) -> AttentionFamily:
    section: Mapping[str, Any] = section_of(device, "attention")
    implementations = {
        name: {
            direction: build_constants(
                device, f"attention.{name}.{direction}", values, AttentionConstants
            ).under_release(cuda)
            for direction, values in parts_of(device, f"attention.{name}", directions)
        }
        for name, directions in parts_of(device, "attention", section)
    }
    fallback = {
        "forward": AttentionConstants(),
        "backward": AttentionConstants(efficiency=0.5, score_s=50e-12, block_s=5e-6, accumulator_bytes=16.0),
    }
    default = implementations.get("default", {})
    implementations["default"] = {**fallback, **default}
    return AttentionFamily(
        implementations={name: {**implementations["default"], **found} for name, found in implementations.items()}
    )


class RooflineKernels:
    """Kernel times from shapes, datasheet numbers and the fitted constants of the device file.

    Durations are memoised per device and shape.

    Parameters
    ----------
    conditions : str or Conditions
        What surrounds the kernels; the default is a training job.
    cuda : str
        CUDA release of the matrix libraries; empty for a current one.
    is_alone : bool
        Whether a training job is one GPU's, and the others of its node rest.
    """

    def __init__(self, conditions: str | Conditions = "training", *, cuda: str = "", is_alone: bool = False) -> None:
        if conditions == "training" and is_alone:
            conditions = "training_alone"
        if isinstance(conditions, str):
            if conditions not in CONDITIONS:
                raise ConfigError(f"conditions '{conditions}' are unknown", hint=f"one of {', '.join(CONDITIONS)}")
            conditions = CONDITIONS[conditions]
        self.conditions = conditions
        self.cuda = cuda
        self._known: ByIdentity[Device, tuple[KernelConstants, dict[KernelShape, float]]] = ByIdentity()

    def duration_s(self, shape: KernelShape, device: Device) -> float:
        """Seconds that the kernel occupies its stream."""
        constants, times = self._known.of(device, lambda one: (KernelConstants.of(one, self.cuda), {}))
        found = times.get(shape)
        if found is None:
            found = times[shape] = self._predict(shape, device, constants)
        return found

    def _predict(self, shape: KernelShape, device: Device, constants: KernelConstants) -> float:
        if isinstance(shape, GemmShape):
            n_turns = shape.batch if shape.in_turn else 1
            columns = GemmColumns.of([replace(shape, batch=shape.batch // n_turns)], device, constants.gemm)
            time_s = float(gemm_times_s(columns, device, constants.gemm, self.conditions)[0])
            return n_turns * (1.0 + shape.summing) * time_s
        if isinstance(shape, AttentionShape):
            is_backward = shape.kernel_pass != "forward"
            way = "backward" if is_backward else "forward"
            of_direction = constants.attention.of(shape.name, way, shape.head_dim, shape.dtype)
            times = attention_times_s([shape], device, of_direction, self.conditions, is_backward=is_backward)
            return float(times[0])
        if isinstance(shape, ScanShape):
            return scan_time_s(shape, device, constants.scan)
        return shape.n_pieces * pointwise_time_s(shape.piece, device, constants.pointwise, self.conditions)
