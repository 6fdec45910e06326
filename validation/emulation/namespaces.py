"""Network namespaces without names: they live as long as a process holds them, so nothing can be left behind.

A namespace is held by a file descriptor of the process that made it and by the processes inside. When the
last of them ends, by whatever signal, the kernel removes it with its devices; not even SIGKILL leaves one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simulator.errors import SimulatorError

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29
#: name under which the kernel lists our rank processes (15 characters at most)
PROCESS_NAME = "validation-rank"
_libc = ctypes.CDLL(None, use_errno=True)


class UnavailableError(SimulatorError):
    """A cluster cannot be emulated on this machine, or by this user; the message says why."""


class EmulationError(SimulatorError):
    """The emulated cluster or a rank on it failed; whatever was created has been removed."""

    exit_code = 1


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*(ctypes.c_long(a) for a in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter(descriptor: int) -> None:
    """Move the calling thread into a namespace; do it before any other thread exists."""
    _call("setns", descriptor, _CLONE_NEWNET)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def name_process() -> None:
    """Set the name under which the kernel lists this process."""
    _libc.prctl(_PR_SET_NAME, PROCESS_NAME.encode(), 0, 0, 0)


def let_timers_be_punctual() -> None:
    """Let timers of this thread fire no more than a nanosecond after they are due."""
    _call("prctl", _PR_SET_TIMERSLACK, 1)


def new_namespace() -> int:
    """Make a network namespace and return a file descriptor that holds it."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _call("unshare", _CLONE_NEWNET)
            os.write(ready[1], b"+")
            os.close(done[1])
            os.read(done[0], 1)
            code = 0
        finally:
            os._exit(code)
    os.close(ready[1])
    os.close(done[0])
    try:
        if os.read(ready[0], 1) != b"+":
            raise UnavailableError(
                "this process may not create network namespaces",
                hint="run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN",
            )
        return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready[0])
        os.close(done[1])
        os.waitpid(pid, 0)


@contextmanager
def namespaces(n_namespaces: int) -> Iterator[list[int]]:
    """Hold so many namespaces while the body runs; yields their file descriptors."""
    descriptors: list[int] = []
    try:
        for _ in range(n_namespaces):
            descriptors.append(new_namespace())
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def run_inside(descriptor: int, command: Sequence[str], text: str = "") -> str:
    """Run a command inside a namespace, with ``text`` on its standard input; return what it prints.

    An :class:`EmulationError` has the words of a command that fails.
    """
    pid = os.getpid()

    def prepare() -> None:
        die_with_parent(pid)
        enter(descriptor)

    done = subprocess.run(
        list(command), input=text, capture_output=True, text=True, preexec_fn=prepare, check=False, timeout=60
    )
    if done.returncode:
        lines = done.stderr.strip() or done.stdout.strip()
        raise EmulationError(f"'{' '.join(command)}' failed with status {done.returncode}: {lines}")
    return done.stdout


def call_inside(descriptor: int, action: Callable[[], None]) -> None:
    """Call a function in a process of its own inside a namespace.

    An :class:`UnavailableError` says that the system refuses what it does.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter(descriptor)
            action()
        except OSError as error:
            os.write(writer, str(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        refusal = answer.read().decode()
    os.waitpid(pid, 0)
    if refusal:
        raise UnavailableError(f"the system refuses to set up a namespace: {refusal}")


def write_sysctls(values: dict[str, str]) -> None:
    """Set kernel parameters of the present namespace; those that this kernel does not have are passed over."""
    for name, value in values.items():
        path = Path("/proc/sys", *name.split("."))
        if path.exists():
            path.write_text(value, encoding="ascii")


def why_unavailable() -> str:
    """Reason why clusters cannot be emulated here; empty if they can."""
    if not os.path.exists("/proc/self/ns/net"):
        return "this kernel has no network namespaces (Linux only)"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    try:
        with namespaces(1) as (descriptor,):
            run_inside(
                descriptor,
                ["ip", "-batch", "-"],
                "link add veth0 type veth peer name veth1\nlink add br0 type bridge\n",
            )
            run_inside(descriptor, ["tc", "-batch", "-"], "qdisc add dev veth0 root handle 1: htb default 1\n")
    except UnavailableError as error:
        return f"{error.message}: {error.hint}"
    except (EmulationError, OSError) as error:
        return f"veth, bridge or the htb shaper does not work in a namespace: {error}"
    return ""
