"""The host: how long a framework takes to issue one operation."""

from __future__ import annotations

from simulator.topology.device import Device

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


def issue_s(device: Device, mode: str, phase: str) -> float:
    """Seconds of host time per operation.

    Parameters
    ----------
    device : Device
        Its ``host`` section holds measured values.
    mode : str
        ``eager``, ``compiled`` or ``graphs``.
    phase : str
        ``forward``, ``recompute``, ``backward`` or ``optimizer``.
    """
    known = "forward" if phase in ("recompute", "data") else phase
    key, default = _DEFAULTS[mode, known]
    return float(device.host.get(key, default))
