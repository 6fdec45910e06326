"""Finds and ends what an emulation could have left behind: rank processes without a parent, folders of dead ones.

Namespaces need no cleaning: they have no names and go with the last process that holds them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

from validation.emulation.namespaces import PROCESS_NAME

#: of the folder in which the ranks of one measurement meet; the number of the process that made it follows
FOLDER_PREFIX = "emulated-"


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


def stale_folders() -> list[Path]:
    """Folders of measurements whose process is gone."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        maker = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if maker.isdigit() and not Path("/proc", maker).exists():
            found.append(folder)
    return found


def clean() -> list[int]:
    """End orphaned ranks and remove what they met in; return their process numbers."""
    for folder in stale_folders():
        shutil.rmtree(folder, ignore_errors=True)
    pids = orphans()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids
