"""From the flags of a whole run to what is asked about it; the main command loads this only where one is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simulator.cli.main_flags import RUN_OPTIONS
from simulator.cli.shared import write_warnings
from simulator.errors import ConfigError
from simulator.explore.run.checkpoint_policy import check_policy
from simulator.explore.run.energy import parse_price
from simulator.explore.run.restarts import parse_restart
from simulator.explore.run.run_request import (
    Mtbf,
    RunRequest,
    parse_domain,
    parse_interval,
    parse_mtbf,
    parse_time,
    run_length,
)

_LENGTH = ("tokens", "epochs", "dataset_tokens", "iterations")
#: flags about a whole run that say nothing unless its length is given
_OPERATION = tuple(name for name in RUN_OPTIONS if name not in _LENGTH)
#: those of them that say something without it, where rows of a table have what a billion tokens cost
_OF_A_TOKEN = ("gpu_hour_price", "pue", "kg_co2_per_kwh")
#: those that only played runs ask for, and those that only failures do
_PLAYED = ("elastic", "spare_nodes", "repair_time")
_OF_FAILURES = ("histories", "restart_time", "failure_domain")


def run_request(options: Mapping[str, Any], said: set[str], *, of_rows: bool = False) -> RunRequest:
    """Return what the flags ask about a whole run, whose length may be left out.

    ``said`` are warnings that were printed; rows of a table have a price without the length of a run.
    """
    length = run_length(*(options[name] for name in _LENGTH))
    pue, carbon = options["pue"], options["kg_co2_per_kwh"]
    if pue is not None and not 1 <= pue <= 10:
        raise ConfigError(f"--pue {pue:g}: the building's energy over its computers', at least 1", hint="--pue 1.2")
    if carbon is not None and not 0 <= carbon <= 5:
        raise ConfigError(f"--kg-co2-per-kwh {carbon:g}: kilograms, from 0 to 5", hint="--kg-co2-per-kwh 0.38")
    texts = {name: options[name] for name in _OPERATION if options.get(name) is not None and options[name] is not False}
    price = parse_price(texts["gpu_hour_price"]) if "gpu_hour_price" in texts else None
    mtbf = parse_mtbf(texts["mtbf"]) if "mtbf" in texts else None
    interval_s, interval_iterations = None, None
    if "checkpoint_interval" in texts:
        interval_s, interval_iterations = parse_interval(texts["checkpoint_interval"])
    write_s, repair_s = (
        parse_time(texts[name], f"--{name.replace('_', '-')}") if name in texts else None
        for name in ("checkpoint_time", "repair_time")
    )
    restart = parse_restart(texts["restart_time"], parse_time) if "restart_time" in texts else None
    for name, least in (("histories", 1), ("spare_nodes", 0)):
        if name in texts and texts[name] < least:
            raise ConfigError(f"--{name.replace('_', '-')} {texts[name]}: at least {least}")
    for reason, names in _idle(options, texts, mtbf, has_length=length is not None, of_rows=of_rows).items():
        write_warnings((f"--{name.replace('_', '-')} has no effect {reason}" for name in names), said=said)
    tokens, iterations = length or (0.0, 0)
    repair: dict[str, Any] = {} if repair_s is None else {"repair_s": repair_s}
    n_domain, share = parse_domain(texts["failure_domain"]) if "failure_domain" in texts else (1, 0.0)
    return RunRequest(
        tokens=tokens, iterations=iterations, price=price, mtbf=mtbf, interval_s=interval_s,
        interval_iterations=interval_iterations, write_s=write_s, restart=restart, pue=pue, kg_co2_per_kwh=carbon,
        n_histories=texts.get("histories", 0), n_spares=texts.get("spare_nodes"), seed=options["seed"],
        policy=check_policy(texts.get("checkpoint_policy", "sync")), domain_nodes=n_domain, domain_share=share,
        is_elastic=bool(options.get("elastic")), **repair,
    )  # fmt: skip


def _idle(
    options: Mapping[str, Any], texts: Mapping[str, Any], mtbf: Mtbf | None, *, has_length: bool, of_rows: bool
) -> dict[str, list[str]]:
    """Return which flags of a run have no effect, by the reason."""
    if not has_length:
        idle = [name for name in texts if not (of_rows and name in _OF_A_TOKEN)]
        return {"without --tokens, --epochs or --iterations": idle}
    never = mtbf is not None and math.isinf(mtbf.seconds) and not options.get("flapping")
    is_played = "histories" in texts
    return {
        "without --histories": [name for name in _PLAYED if name in texts and not is_played],
        "where nothing fails (--mtbf none)": [
            name for name in (*_OF_FAILURES, *(_PLAYED if is_played else ())) if name in texts and never
        ],
    }
