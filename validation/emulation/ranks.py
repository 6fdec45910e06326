"""Ranks as forked processes: each enters its host, runs, answers once, and never outlives its parent.

:func:`clean` ends what a killed parent left nevertheless. Namespaces have no names and go with their last process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from simulator.errors import SimulatorError
from validation.emulation.namespaces import (
    PROCESS_NAME,
    EmulationError,
    die_with_parent,
    let_timers_be_punctual,
    name_process,
)

_REAL_TIME_PRIORITY = 1
#: of the folder in which the ranks of one measurement meet; the number of the process that made it follows
FOLDER_PREFIX = "emulated-"
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal asked this process to end; context managers still run."""


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception while the body runs, so that everything is cleaned up."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(128 + number)

    before = {number: signal.signal(number, stop) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class _Child:
    rank: int
    pid: int
    reader: int
    received: bytearray = field(default_factory=bytearray)


def run_ranks(
    n_ranks: int,
    body: Callable[[int], Any],
    *,
    enter_host: Callable[[int], None] = lambda rank: None,
    timeout_s: float = 120.0,
    real_time: bool = False,
) -> list[Any]:
    """Run ``body(rank)`` in so many processes and return their answers in rank order.

    Every process is moved to its host by ``enter_host`` before it runs ``body``, whose value is pickled back; with
    ``real_time`` it runs at the lowest real-time priority where that is allowed. If a rank raises, dies or does not
    answer within ``timeout_s``, all are killed, and an :class:`EmulationError` says so.
    """
    children: list[_Child] = []
    try:
        for rank in range(n_ranks):
            children.append(_fork(rank, body, enter_host, real_time))
        return _collect(children, time.monotonic() + timeout_s, timeout_s)
    finally:
        for child in children:
            os.close(child.reader)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def _fork(rank: int, body: Callable[[int], Any], enter_host: Callable[[int], None], real_time: bool) -> _Child:
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(rank, pid, reader)
    status = 1
    try:
        os.close(reader)
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent(parent)
        name_process()
        enter_host(rank)
        let_timers_be_punctual()
        if real_time:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_REAL_TIME_PRIORITY))
        answer: tuple[bool, Any]
        try:
            answer = (True, body(rank))
        except SimulatorError as error:
            answer = (False, error)
        except BaseException as error:
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        _write_all(writer, pickle.dumps(answer))
        status = 0
    finally:
        os._exit(status)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _collect(children: Sequence[_Child], deadline_s: float, timeout_s: float) -> list[Any]:
    answers: dict[int, Any] = {}
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.reader, selectors.EVENT_READ, child)
        while len(answers) < len(children):
            events = selector.select(max(0.0, deadline_s - time.monotonic()))
            if not events and time.monotonic() >= deadline_s:
                silent = sorted({child.rank for child in children} - set(answers))
                raise EmulationError(
                    f"rank {', '.join(map(str, silent))} gave no answer within {timeout_s:g} s",
                    hint="raise --timeout, or run less",
                )
            for key, _ in events:
                child = key.data
                chunk = os.read(child.reader, 1 << 16)
                if chunk:
                    child.received += chunk
                    continue
                selector.unregister(child.reader)
                answers[child.rank] = _answer(child)
    return [answers[child.rank] for child in children]


def _answer(child: _Child) -> Any:
    if not child.received:
        _, status = os.waitpid(child.pid, 0)
        how = (
            f"was killed by signal {os.WTERMSIG(status)}"
            if os.WIFSIGNALED(status)
            else f"ended with status {os.WEXITSTATUS(status)}"
        )
        raise EmulationError(f"rank {child.rank} {how} before it answered")
    fine, value = pickle.loads(bytes(child.received))
    if isinstance(value, SimulatorError) and not fine:
        raise value
    if not fine:
        first, _, rest = str(value).partition("\n")
        raise EmulationError(f"rank {child.rank} failed: {first}\n{rest.rstrip()}")
    return value


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
