"""``--max-memory``: a run that needs more ends with a message, not with the kernel's killer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from simulator.errors import ConfigError, SimulatorError
from simulator.units import format_bytes, parse_quantity

#: share of the machine's memory that a run may take unless it is told otherwise
DEFAULT_SHARE = 0.9
#: what the interpreter and the libraries take before anything is simulated
LEAST_BYTES = 128 << 20


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container that this process runs in."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not a Unix
        return 0
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such group, or "max"
        return whole


def limit_memory(text: str | None = None) -> None:
    """Bound the memory of this process and of its workers: bytes with their unit, or a share of the machine (``50%``)."""
    whole = machine_bytes()
    if text is None:
        n_bytes = int(DEFAULT_SHARE * whole)
    else:
        n_bytes = _bytes_of(text, whole)
        if text.strip().endswith("%") and n_bytes > whole:
            raise ConfigError(f"--max-memory {text}: more than the machine has", hint="write 4GiB or 50%")
        if n_bytes < LEAST_BYTES:
            raise ConfigError(f"--max-memory {text}: the program itself takes {format_bytes(LEAST_BYTES)}")
    if sys.platform == "linux" and n_bytes > 0:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _bytes_of(text: str, whole: int) -> int:
    try:
        if text.strip().endswith("%"):
            return int(float(text.strip()[:-1]) / 100 * whole)
        return int(parse_quantity(text, "bytes"))
    except (ValueError, OverflowError, SimulatorError):
        raise ConfigError(f"--max-memory {text}: is neither bytes nor a share", hint="write 4GiB or 50%") from None
