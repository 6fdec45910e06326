"""What commands share: the flags that describe a scenario, and how an answer ends."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from simulator.explore.work.evaluation import Store

from simulator.cli.options import own_parameters, with_signature
from simulator.errors import SimulatorError
from simulator.plan import SETTINGS

Written = TypeVar("Written")

#: parameters of the main command that describe a scenario
_SCENARIO = (
    "topology", "model", "gpus", "preset", "plan", "deepspeed", "megatron", "args", "define", "network", "transport",
    "nccl_algo", "nccl_proto", "seed", "set_", "power_cap", *(key for key in SETTINGS if key != "gpus"),
)  # fmt: skip


def with_scenario(
    command: Callable[..., None], main_command: Callable[..., None], also: tuple[str, ...] = ()
) -> Callable[..., None]:
    """Give a command the main command's options that describe a scenario, and ``also`` some others, as its ``**scenario``.

    An option of its own replaces the main command's.
    """
    own = own_parameters(command)
    theirs, names = inspect.signature(main_command, eval_str=True).parameters, {one.name for one in own}
    return with_signature(command, [*(theirs[name] for name in (*_SCENARIO, *also) if name not in names), *own])


@contextmanager
def after_the_answer(*, is_json: bool) -> Iterator[None]:
    """End with the status of a complaint that follows a printed answer: JSON on standard output stays one document."""
    try:
        yield
    except SimulatorError as error:
        if not is_json:
            raise
        complain(f"error: {error}")
        sys.exit(error.exit_code)


def as_far_as_written(write: Callable[[], Sequence[Written]]) -> tuple[Sequence[Written], SimulatorError | None]:
    """Write files whose names an answer has: an answer is printed without them, too, and the error raised behind it."""
    try:
        return write(), None
    except SimulatorError as error:
        return (), error


def raise_any(*errors: SimulatorError | None) -> None:
    """Raise the first error, if there is one."""
    for error in errors:
        if error is not None:
            raise error


def complain(text: str) -> None:
    """Print lines on standard error, as :func:`say` does."""
    say(text, stream=sys.stderr)


def write_warnings(messages: Iterable[str], *, said: set[str] | None = None, kind: str = "warning") -> None:
    """Print warnings on standard error, each once: ``said`` is what was printed before, and grows."""
    seen = said if said is not None else set()
    for message in messages:
        if message not in seen:
            seen.add(message)
            complain(f"{kind}: {message}")


def say(text: str, *, hang: str = "", stream: TextIO | None = None) -> None:
    """Print lines, on standard output unless told; a terminal breaks them between words, a log keeps them whole.

    Parameters
    ----------
    text : str
        The rest of a line that begins with blanks is indented twice as far.
    hang : str
        The rest of a line is indented to what follows this mark, where it has it.
    stream : file, optional
        Where to.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(_filled(line, width, hang) for line in text.splitlines())
    print(text, file=stream)


def print_json(document: object) -> None:
    """Print one JSON document and nothing else on standard output."""
    print(json.dumps(document, allow_nan=False))


def say_written(*files: object) -> None:
    """Say on standard error which files were written; None is one that was not asked for."""
    if written := [str(file) for file in files if file]:
        print(f"wrote {', '.join(written)}", file=sys.stderr)


def _filled(line: str, width: int, hang: str) -> str:
    has_mark = bool(hang) and hang in line
    start = line.index(hang) + len(hang) if has_mark else 2 * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=" " * start, break_long_words=False, break_on_hyphens=False)


@contextmanager
def keeping(store: Store | None, folder: str | None) -> Iterator[None]:
    """Let an interrupt of the work inside say what is kept of it, and a signal to end, too."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        kept = "nothing is kept; with --out FOLDER it would be"
        if store is not None:
            kept = f"{len(store)} answers are kept in {folder}; the same command resumes from there"
        if isinstance(end, SystemExit):
            complain(f"terminated: {kept}")
            raise
        raise KeyboardInterrupt(kept) from None


def say_who_works(scheduler: str, jobs: int) -> None:
    """Say on standard error that jobs are submitted, since they may wait in Slurm's queue for long, and where to watch them."""
    from simulator.explore.work.workers import check_scheduler

    check_scheduler(scheduler)
    if scheduler and jobs:
        write_warnings([f"--jobs {jobs} has no effect: the workers of --scheduler do the work"])
    if scheduler:
        log = logging.getLogger("simulator")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())  # on standard error
    if scheduler and "://" not in scheduler:
        print(f"submitting the jobs of {scheduler}; squeue shows them, Ctrl-C cancels them", file=sys.stderr)
