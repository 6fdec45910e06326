"""What commands share: the options that describe a scenario, and progress on the terminal."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.explore.evaluation import Store

from simulator.errors import ConfigError
from simulator.plan import SETTINGS

#: parameters of the main command that describe a scenario
_SCENARIO = (
    "topology", "model", "gpus", "plan", "deepspeed", "megatron", "network", "transport", "nccl_algo", "nccl_proto", "seed",
    "set_", *(key for key in SETTINGS if key != "gpus"),
)  # fmt: skip


def with_scenario(command: Callable[..., None], main_command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the main command's options that describe a scenario, as its ``**scenario``.

    Parameters
    ----------
    command : callable
        With a parameter ``**scenario``; an option of its own replaces the main command's.
    main_command : callable
        Where the options are declared.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
    theirs = inspect.signature(main_command, eval_str=True).parameters
    names = {parameter.name for parameter in own}
    given = [theirs[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in _SCENARIO if name not in names]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def wrapped(**options: Any) -> None:
        command(**options)

    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    wrapped.__signature__ = inspect.Signature([*given, *parameters])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*given, *parameters)}
    return wrapped


def scenario_settings(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Turn parsed options into settings, and into axes where ``--gpus`` is a list.

    Returns
    -------
    base : dict
        Values by the names of :mod:`simulator.explore.named_settings`.
    axes : dict
        Tuples of values.
    """
    from simulator.cli.inputs import write_notes
    from simulator.cli.run import collect_settings
    from simulator.explore.named_settings import parse_axis
    from simulator.interop.plan_files import PLAN_FILES

    write_notes(options, set())
    files = {name: options[name] for name in PLAN_FILES if options.get(name)}
    settings, overrides = collect_settings({"set_": None, **options, **dict.fromkeys(PLAN_FILES)})
    base: dict[str, Any] = {**files, **settings, **dict(overrides)}
    for name, key in (("topology", "topology"), ("model", "model"), ("network", "network"), ("transport", "transport"),
                      ("nccl_algo", "algorithm"), ("nccl_proto", "protocol"), ("seed", "seed")):  # fmt: skip
        if options.get(name) and (name, options[name]) != ("network", "flow"):  # flow is the default anyway
            base[key] = options[name]
    axes: dict[str, tuple[Any, ...]] = {}
    if options.get("gpus"):
        _, counts = parse_axis(f"gpus={options['gpus']}")
        if min(counts) < 1:
            raise ConfigError(f"--gpus {options['gpus']}: at least one GPU")
        if len(counts) > 1:
            axes["gpus"] = counts
        else:
            base["gpus"] = counts[0]
    return base, axes


@contextmanager
def keeping(store: Store | None, folder: str | None) -> Iterator[None]:
    """Say, where the work inside is interrupted, what is kept of it."""
    try:
        yield
    except KeyboardInterrupt:
        kept = (
            f"{len(store)} answers are kept in {folder}; the same command goes on from there"
            if store is not None
            else ""
        )
        print(f"\n{kept or 'nothing is kept; with --out FOLDER it would be'}", file=sys.stderr)
        raise


def say_who_works(scheduler: str) -> None:
    """Say on standard error that jobs are submitted, since they may wait in Slurm's queue for long.

    Raises
    ------
    ConfigError
        If nothing can be the scheduler that is named.
    """
    from simulator.explore.evaluation import check_scheduler

    check_scheduler(scheduler)
    if scheduler and "://" not in scheduler:
        print(f"submitting the jobs of {scheduler}; squeue shows them, Ctrl-C cancels them", file=sys.stderr)


class Progress:
    """One line on standard error with counts, rate and the time that is left.

    Parameters
    ----------
    what : str
        What is counted.
    is_quiet : bool
        Say nothing.
    """

    def __init__(self, what: str, *, is_quiet: bool = False) -> None:
        self.what = what
        self.is_quiet = is_quiet
        self._started_s = self._said_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, *, n_done: int, n_failed: int, n_stored: int, n_total: int) -> None:
        """Say how far it is: at most ten times a second on a terminal, every ten seconds in a log."""
        now_s = time.monotonic()
        is_last = n_done + n_stored == n_total
        if self.is_quiet or (now_s - self._said_s < (0.1 if self._is_terminal else 10.0) and not is_last):
            return
        self._said_s = now_s
        parts = [f"{n_done + n_stored}/{n_total} {self.what}"]
        if n_stored:
            parts.append(f"{n_stored} from the store")
        if n_failed:
            parts.append(f"{n_failed} failed")
        if n_done and not is_last:
            left_s = (now_s - self._started_s) / n_done * (n_total - n_done - n_stored)
            parts.append(f"about {clock(left_s)} left")
        line = ", ".join(parts)
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1 if self._is_terminal else 0
        text = f"\r{line:<{width}.{width}}" if width > 0 else line
        print(text, end="" if width > 0 and not is_last else "\n", file=sys.stderr, flush=True)


class SearchProgress:
    """One line on standard error with counts and the best time so far."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, *, n_simulated: int, n_left: int, best_s: float) -> None:
        """Say how far the search is."""
        from simulator.units import format_time

        elapsed = clock(time.monotonic() - self._started_s)
        line = f"{n_simulated} plans simulated in {elapsed}, best {format_time(best_s)}, {n_left} not ruled out yet"
        print(f"\r{line:<79}" if self._is_terminal else line, end="" if self._is_terminal and n_left else "\n",
              file=sys.stderr, flush=True)  # fmt: skip


def clock(seconds: float) -> str:
    """Return a duration as ``h:mm:ss`` or ``m:ss``.

    Examples
    --------
    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
