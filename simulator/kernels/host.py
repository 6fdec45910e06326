"""The host: how long a framework takes to issue one operation."""

from __future__ import annotations

import math

from simulator.topology.device import Device
from simulator.topology.processors import socket_memory_bytes_per_s

#: (mode, phase) -> key in the ``host:`` section and the seconds per operation where a file states none
_DEFAULTS = {
    ("eager", "forward"): ("dispatch_forward_s", 9.0e-6),
    ("eager", "backward"): ("dispatch_backward_s", 6.0e-6),
    ("eager", "optimizer"): ("dispatch_optimizer_s", 5.0e-6),
    ("compiled", "forward"): ("dispatch_compiled_s", 4.0e-6),
    ("compiled", "backward"): ("dispatch_compiled_s", 4.0e-6),
    ("compiled", "optimizer"): ("dispatch_optimizer_s", 5.0e-6),
    ("graphs", "forward"): ("graph_node_s", 0.8e-6),
    ("graphs", "backward"): ("graph_node_s", 0.8e-6),
    ("graphs", "optimizer"): ("graph_node_s", 0.8e-6),
}

#: share of the PCIe link that pinned copies reach where a device file states no measured rate (launch_costs: 26.8 of 31.5 GB/s)
PCIE_EFFICIENCY = 0.85
#: host time to launch one copy and to see its end
COPY_LATENCY_S = 1.0e-5
#: host time to see that the device is done, where a device file states none
SYNCHRONIZE_S = 6.0e-6
#: bytes per parameter that a CPU's Adam reads: gradient, master weight and both moments; and writes: those but for the gradient, and
#: the 16-bit weight
CPU_ADAM_READ_BYTES = 16
CPU_ADAM_WRITTEN_BYTES = 14
CPU_ADAM_BYTES = CPU_ADAM_READ_BYTES + CPU_ADAM_WRITTEN_BYTES
#: bytes per second that one socket steps with: 0.24 s per 1e9 parameters on the two Xeon 8168 of a DGX-2 (Ren et al., ZeRO-Offload,
#: arXiv:2101.06840, table 4). Nothing was measured to be faster, whatever its memory: Xeons of 2023 beside H200 and B200 step
#: alike (stas00/ml-engineering, ``insights/when-to-upgrade-gpus``: runs of August 2026 within 2 %)
CPU_ADAM_BYTES_PER_S = CPU_ADAM_BYTES * 1e9 / 0.24 / 2
#: and what share that is of the rate of its memory, 6 channels of DDR4-2666: 0.49, which slower memory is taken to give, too
CPU_ADAM_SHARE = CPU_ADAM_BYTES_PER_S / socket_memory_bytes_per_s("Xeon Platinum 8168", 3)


def cpu_adam_bytes_per_s(n_sockets: int = 2, memory_bytes_per_s: float = math.inf) -> float:
    """Return the rate at which sockets step states, given the raw rate of the memory of each.

    Examples
    --------
    >>> round(cpu_adam_bytes_per_s(2, 307.2e9) / 1e9), round(cpu_adam_bytes_per_s(2, 76.8e9) / 1e9)
    (125, 75)
    """
    return n_sockets * min(CPU_ADAM_BYTES_PER_S, CPU_ADAM_SHARE * memory_bytes_per_s)


def copy_bytes_per_s(device: Device, *, to_host: bool) -> float:
    """Bytes per second of a copy between a device and the pinned memory of its host."""
    key = "d2h_bytes_per_s" if to_host else "h2d_bytes_per_s"
    return float(device.host.get(key, PCIE_EFFICIENCY * device.pcie_bandwidth_bytes_per_s))


def cpu_adam_s(device: Device, n_elements: int, n_ranks: int, bytes_per_s: float | None = None) -> float:
    """Seconds of an optimizer step on the host's processors.

    Parameters
    ----------
    device : Device
        Its ``host`` section may state ``cpu_adam_bytes_per_s``, of all processors of a host together.
    n_elements : int
        Parameters of one rank.
    n_ranks : int
        Ranks of the host, which step theirs at the same time.
    bytes_per_s : float, optional
        Rate of the host's sockets, which they share; by default that of a DGX-2.

    References
    ----------
    Ren et al., ZeRO-Offload, arXiv:2101.06840, table 4.
    """
    rate = float(device.host.get("cpu_adam_bytes_per_s", bytes_per_s or cpu_adam_bytes_per_s()))
    return n_elements * n_ranks * CPU_ADAM_BYTES / rate


#: key in the ``host:`` section and seconds where a file states none: a call of a module written in Python, without and with
#: quantisation of its operands, and one expert's share of a grouped product or of its quantisation. Quantised ones and experts from
#: rows with split=fit of mixtures of experts without graphs on DGX H100 and B200 (Megatron Bridge 26.02 to 26.06: the means of MB-0035,
#: 0136, 0184 and 0236, of MB-0054, 0017 and 0118, and of MB-0068 and 0177; eager runs are otherwise bound by their devices); without
#: quantisation 0.74 of it: CPU time of forward and backward of Linear and LayerNormLinear on GB200 is 311 and 398 us in BF16, 441 and
#: 519 in MXFP8 (NVIDIA/TransformerEngine, pull request 3523 of September 2026, before it)
MODULE_S = {False: ("dispatch_module_s", 1.4e-4), True: ("dispatch_quantised_module_s", 1.9e-4)}
PIECE_S = ("dispatch_expert_s", 4.2e-5)
#: share by which both cost more in Transformer Engine before 2.11 (NVIDIA/TransformerEngine, pull requests 2377, 2400 and 2439
#: of November 2025 to January 2026 reduced them): rows with split=fit of container 25.11 (TE 2.9) on B200 and GB200, MB-0084,
#: 0086, 0092 and 0211
EARLY_MODULES = 1.17


def issue_s(
    device: Device,
    mode: str,
    phase: str,
    *,
    n_pieces: int = 1,
    is_call: bool = False,
    is_quantised: bool = False,
    is_early: bool = False,
) -> float:
    """Seconds of host time per operation.

    Parameters
    ----------
    mode : str
        ``eager``, ``compiled`` or ``graphs``.
    phase : str
        ``forward``, ``recompute``, ``backward`` or ``optimizer``.
    n_pieces : int
        Kernels that are launched one by one.
    is_early : bool
        Whether modules are those before Transformer Engine 2.11.
    """
    known = "forward" if phase in ("recompute", "data") else phase
    is_module = is_call and mode == "eager"
    key, default = MODULE_S[is_quantised] if is_module else _DEFAULTS[mode, known]
    age = EARLY_MODULES if is_early else 1.0
    base_s = float(device.host.get(key, default)) * (age if is_module else 1.0)
    if n_pieces == 1 or mode == "graphs":
        return base_s * n_pieces
    return base_s + n_pieces * age * float(device.host.get(*PIECE_S))
