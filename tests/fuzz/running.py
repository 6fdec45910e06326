"""One broken input at a time, in this process: nothing but errors of ours may come of it, within its time and memory."""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.cli.main import main as command_line
from simulator.errors import SimulatorError
from simulator.interop import FORMATS, import_any, import_topology, recognise
from simulator.interop.machines.cluster import ImportedCluster
from tests.fuzz.extremes import check, command
from tests.fuzz.fuzz_seeds import OPTIONS, ROOT, TEXTS, seeds
from tests.fuzz.mutating import NASTY, mutated

#: of one input, on the processor
SECONDS = 10
BYTES = 3 << 30
#: of a command: done, usage, invalid, infeasible, threshold
_STATUS = (0, 2, 3, 4, 5)


class TooSlowError(BaseException):
    """An input that takes longer than :data:`SECONDS`."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """What went wrong, each place once."""

    n_inputs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def note(self, kind: str, text: str, error: BaseException) -> None:
        """Count an error at the innermost place of ours."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/simulator/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
        name = f"{type(error).__name__} at {place}"
        self.places[name] += 1
        self.examples.setdefault(name, (kind, text, "".join(traceback.format_exception(error)[-6:])))


@contextlib.contextmanager
def limits(n_bytes: int = BYTES) -> Iterator[None]:
    """Bound what this process takes beyond what it has, and have SIGPROF end an input that takes too long."""

    def stop(_signal: int, _frame: Any) -> None:
        raise TooSlowError

    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, stop)
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(
    n_inputs: int, seed: int, say: Callable[[Findings], None] | None = None, *, share_of_commands: float = 0.05
) -> Findings:
    """Read so many broken inputs, the same for the same seed.

    Parameters
    ----------
    n_inputs, seed : int
        How many, and of which sequence.
    say : callable, optional
        Told every 500 inputs how far it is.
    share_of_commands : float
        How often a file goes through the whole command line instead of its reader alone; 0 for no commands at all.
    """
    rng, found = random.Random(seed), Findings()
    known = [one for one in seeds() if share_of_commands or one[0] not in ("command", "settings")]
    others = [text for _, _, text in known if text]
    with tempfile.TemporaryDirectory() as folder, limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(n_inputs):
            kind, ending, text = rng.choice(known)
            drawn = {"command": _command, "settings": command}.get(kind)
            broken = drawn(rng) if drawn else mutated(text, rng, others)
            found.n_inputs, found.kinds[kind] = number + 1, found.kinds[kind] + 1
            try:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                path = Path(folder) / f"input{rng.choice((ending, ending, ending, '.yaml', '.json'))}"
                _read(kind, path, broken, rng, share_of_commands)
                signal.setitimer(signal.ITIMER_PROF, 0)
            except SimulatorError:
                signal.setitimer(signal.ITIMER_PROF, 0)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever comes is what is looked for
                signal.setitimer(signal.ITIMER_PROF, 0)
                found.note(kind, broken, error)
            if say is not None and (number + 1) % 500 == 0:
                say(found)
    return found


def _read(kind: str, path: Path, text: str, rng: random.Random, share_of_commands: float) -> None:
    """Read an input as what it was."""
    if kind == "command":
        _run(json.loads(text))
        return
    if kind == "settings":
        run_settings(text)
        return
    path.write_text(text, encoding="utf-8", errors="surrogatepass" if "\udc80" in text else "replace")
    if kind in FORMATS:
        if rng.random() < share_of_commands:
            _run(["import", str(path), "--as", kind, *rng.choice(([], ["--json"]))])
        else:
            recognise(path)
            options = OPTIONS.get(kind, {})
            given = import_topology(path, kind, **options) if options else import_any(path, kind)
            if isinstance(given, ImportedCluster):
                given.topology()
    else:
        _ours(kind, path, rng, share_of_commands)


def _ours(kind: str, path: Path, rng: random.Random, share_of_commands: float) -> None:
    """Read a file of this project."""
    from simulator.interop.trainers.plan_files import plan_settings
    from simulator.plan import ParallelPlan
    from simulator.topology import load_topology
    from simulator.topology.device_file import load_device

    job = ["--model", "gpt2", "--gpus", "8"]
    if rng.random() < share_of_commands:
        _run({
            "plan file": ["--topology", "bigred200", "--plan", str(path), *job],
            "cluster file": ["--topology", str(path), *job],
            "measurements": ["validate", str(path)],
            "device file": ["import", "--as", "nccl-topo", str(path), "--device", str(path)],
        }[kind])  # fmt: skip
    elif kind == "plan file":
        ParallelPlan(**plan_settings({"plan": str(path)}, 8))
    elif kind == "cluster file":
        load_topology(path, 16)
    elif kind == "device file":
        load_device(path)


_FLAGS = (
    "--gpus", "--tp", "--pp", "--dp", "--cp", "--ep", "--micro-batch", "--global-batch", "--sharding", "--schedule", "--precision",
    "--recompute", "--set", "--slow-rank", "--slow-link", "--network", "--tokens", "--mtbf", "--checkpoint-interval", "--framework",
    "--nccl-algo", "--transport", "--sequence-length", "--seed",
)  # fmt: skip
_WORDS = (
    *NASTY, "8", "2", "4,8", "zero3", "hsdp", "1f1b", "tp=2", "fabric.oversubscription=nan", "node.nics.bandwidth=1e-300 Gb/s",
    "node0.nic=2", "0=1.5", "300B", "50000 h/gpu", "bf16", "1f1b-interleaved", "node.gpus=0", "nodes=-1", "full",
)  # fmt: skip


def _command(rng: random.Random) -> str:
    """Return the words of a command line, some of them wrong."""
    words = [
        "--topology",
        rng.choice(("bigred200", "dgx-h100", "x")),
        "--model",
        rng.choice(("gpt2", "llama2-7b", "x")),
    ]
    for _ in range(rng.randrange(1, 4)):
        words += [rng.choice(_FLAGS), rng.choice(_WORDS)]
    if "--gpus" not in words:
        words += ["--gpus", "8"]
    return json.dumps([word.replace("\x00", "?") for word in words])


def run_settings(text: str) -> bool:
    """Run a command line of :mod:`tests.fuzz.extremes` and hold its answer to what all are; say whether there was one."""
    answer = json.loads(_run(json.loads(text)) or '{"error": ""}')
    if "error" not in answer:
        check(answer)
    return "error" not in answer


def _run(words: list[str]) -> str:
    """Run the command line and return what it prints; a status that it does not promise is an error."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["simulate", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command_line()
    except SystemExit as ended:
        if (ended.code or 0) not in _STATUS:
            raise AssertionError(f"status {ended.code}: {err.getvalue()[-300:]}") from ended
    finally:
        sys.argv = before
    return out.getvalue()


__all__ = ["ROOT", "TEXTS", "Findings", "fuzz"]
