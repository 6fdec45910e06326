"""The flags about a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.cli.warnings import write_warnings
from simulator.errors import ConfigError
from simulator.explore.energy import parse_price
from simulator.explore.training_run import RunRequest, parse_interval, parse_mtbf, parse_time, run_length

#: flags that say nothing unless the length of the run is given
_OPERATION = ("gpu_hour_price", "mtbf", "checkpoint_interval", "checkpoint_time", "restart_time", "pue")


def run_request(options: Mapping[str, Any], said: set[str]) -> RunRequest | None:
    """Return what the flags ask about a whole run; None where they do not give its length.

    Parameters
    ----------
    options : mapping
        Parsed options.
    said : set of str
        Warnings that were printed before; it grows.

    Raises
    ------
    ConfigError
        If a flag cannot be understood, or two contradict each other.
    """
    length = run_length(options["tokens"], options["epochs"], options["dataset_tokens"], options["iterations"])
    pue = options["pue"]
    if pue is not None and not 1 <= pue <= 10:
        raise ConfigError(f"--pue {pue:g}: the building's energy over its computers', at least 1", hint="--pue 1.2")
    texts = {name: options[name] for name in _OPERATION if options[name] is not None}
    price = parse_price(texts["gpu_hour_price"]) if "gpu_hour_price" in texts else None
    mtbf = parse_mtbf(texts["mtbf"]) if "mtbf" in texts else None
    interval_s, interval_iterations = None, None
    if "checkpoint_interval" in texts:
        interval_s, interval_iterations = parse_interval(texts["checkpoint_interval"])
    write_s, restart_s = (
        parse_time(texts[name], f"--{name.replace('_', '-')}") if name in texts else None
        for name in ("checkpoint_time", "restart_time")
    )
    if length is None:
        flags = (f"--{name.replace('_', '-')}" for name in texts)
        write_warnings(
            [f"{flag} has no effect without --tokens, --epochs or --iterations" for flag in flags], said=said
        )
        return None
    tokens, iterations = length
    return RunRequest(
        tokens=tokens, iterations=iterations, price=price, mtbf=mtbf, interval_s=interval_s,
        interval_iterations=interval_iterations, write_s=write_s, restart_s=restart_s, pue=pue,
    )  # fmt: skip
