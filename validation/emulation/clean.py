"""Finds and ends what an emulation could have left behind: rank processes without a parent.

Namespaces need no cleaning: they have no names and go with the last process that holds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from validation.emulation.namespaces import PROCESS_NAME


def orphans() -> list[int]:
    """Process numbers of ranks whose parent is gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (entry / "stat").read_text(encoding="utf-8")
            name = text[text.index("(") + 1 : text.rindex(")")]
            parent = int(text[text.rindex(")") + 2 :].split()[1])
            if name == PROCESS_NAME and parent == 1:
                found.append(int(entry.name))
    return found


def clean() -> list[int]:
    """End orphaned ranks; return their process numbers."""
    pids = orphans()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids
