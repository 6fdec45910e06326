"""``simulate replay``: traces in, what-if answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cli.completion import devices, models, schedules, topologies
from simulator.cli.options import JSON_HELP, Flag, Number, Ranks, Switch, Text, Texts, with_flags
from simulator.cli.shared import after_the_answer, print_json, say_written
from simulator.cli.trace import Paths, reading
from simulator.units import count_of

if TYPE_CHECKING:
    from simulator.replay.changes_of_plan import PlanChange
    from simulator.replay.stage_replay import StageMessages
    from simulator.replay.what_if import WhatIf
    from simulator.trace_io.trace_record import Trace


_FLAGS: dict[str | None, dict[str, Flag]] = {
    None: {
        "topology": Flag(Text, "Run the communication on this cluster.", "--topology", "-t", words=topologies),
        "measured_on": Flag(Text, "Cluster of the trace: scales measured transfers.", words=topologies),
        "gpu": Flag(Text, "Run the kernels on this device.", words=devices),
        "measured_gpu": Flag(Text, "Device of the trace; found by its name if possible.", words=devices),
        "bandwidth": Flag(Text, "Factor on the bandwidth of every link, or of some kinds of a cluster's: nic=2,nvlink=1.5."),
        "latency": Flag(Text, "Added to every transfer, like 5us."),
        "kernels": Flag(float, "Factor on the duration of every kernel.", default=1.0),
        "host": Flag(float, "Factor on all host time.", default=1.0),
        "remove_straggler": Flag(Ranks, "Make this rank as fast as the median of the others; repeatable."),
        "add_straggler": Flag(Texts, "RANK:FACTOR or RANK:DELAY like 3:1.2 or 3:10ms; repeatable."),
        "cuda_graphs": Flag(bool, "Launch kernels between two waits of the host as one CUDA graph.", "--cuda-graphs"),
        "overlap": Flag(Switch, "Gradient reductions beside compute, or nothing."),
        "bucket_bytes": Flag(Text, "Merge gradient all-reduces up to this size, like 100MB."),
        "dp": Flag(Number, "Data-parallel ranks; with nothing else of the plan, ranks of the largest group."),
        "ideal": Flag(bool, "No stragglers and no host time: every operation takes the mean of its type.", "--ideal"),
        "ideal_peers": Flag(bool, "The same with the host's time evened out over ranks and steps, not removed.", "--ideal-peers"),
        "missing_ranks": Flag(bool, "Recorded ranks stand for the others.", "--missing-ranks"),
        "schedule": Flag(Text, "Pipeline schedule for stage times, 1f1b by default.", words=schedules),
        "message": Flag(Text, "Stage times: time of a message, or its size with --topology."),
        "as_format": Flag(Text, "Read the files as this format.", "--as"),
        "trace": Flag(Text, "Write simulated beside measured (.pftrace, .json, .tar) or alone (.et, folder)."),
        "report": Flag(Text, "Write a page with pictures (.html), or the pictures alone (.svg, .png).", "--report", "--plot"),
        "json_output": Flag(bool, JSON_HELP, "--json"),
    },
    "Another plan or model": {
        "tp": Flag(Number, "Tensor-parallel degree."),
        "pp": Flag(Number, "Pipeline stages."),
        "layers": Flag(Number, "Blocks of the model."),
        "hidden_size": Flag(Number, "Width of the model."),
        "sequence_length": Flag(Number, "Tokens per sequence."),
        "micro_batches": Flag(Number, "Micro-batches per replica and step."),
        "set_": Flag(Texts, "Any other setting of the plan, KEY=VALUE; repeatable.", "--set"),
        "model": Flag(Text, "The model that was recorded, if shapes do not show it.", words=models),
        "recorded": Flag(Texts, "A setting of the plan that was recorded, KEY=VALUE; repeatable."),
    },
}  # fmt: skip


@with_flags(_FLAGS)
def replay(traces: Paths, **options: Any) -> None:
    """Replay a trace as measured, then with changes."""
    from simulator.config import keep_inputs
    from simulator.errors import ConfigError
    from simulator.replay.replay_answer import answer_of
    from simulator.replay.what_if import what_if
    from simulator.replay.written import check_target, write_outcome
    from simulator.report.page import check_page
    from simulator.trace_io import read

    trace, report = options["trace"], options["report"]
    if trace:
        check_target(trace, traces)
    if report:
        check_page(report)
        keep_inputs(report, traces, "--report")
    if options["ideal"] and options["ideal_peers"]:
        raise ConfigError(
            "--ideal and --ideal-peers are both given", hint="the one takes no host time, the other evens it out"
        )
    with reading() as progress:
        run = read(traces, as_format=options["as_format"], progress=progress)
        what = _what_if(run, options)
        found = what_if(run, what, schedule=options["schedule"], messages=_messages(options["message"]))
    document = answer_of(found)
    if options["json_output"]:
        print_json(document)
    else:
        _print(document)
    with after_the_answer(is_json=options["json_output"]):
        if trace:
            write_outcome(found, trace)
            say_written(trace)
        if report:
            from simulator.report.replay_page import replay_page

            names = ", ".join(Path(path).name for path in traces)
            say_written(*replay_page(document, found.timeline, names).save(report))


def _messages(text: str | None) -> StageMessages | None:
    """A time like 2ms, or a size like 10MB."""
    from simulator.replay.stage_replay import StageMessages

    if text is None:
        return None
    if text.rstrip().endswith(("B", "b")):
        return StageMessages(n_bytes=round(_parsed(f"--message {text}", text, "bytes")))
    return StageMessages(time_s=_parsed(f"--message {text}", text, "time"))


def _quantity(options: Mapping[str, Any], name: str, dimension: str) -> float | None:
    """Return a time or a size of the command line."""
    text = options[name]
    return None if text is None else _parsed(f"--{name.replace('_', '-')} {text}", text, dimension)


def _parsed(words: str, text: str, dimension: str) -> float:
    """Read a time or a size; an error begins with the words of the command line."""
    from simulator.errors import ConfigError
    from simulator.units import parse_quantity

    try:
        return parse_quantity(text, dimension)
    except ConfigError as error:
        raise ConfigError(f"{words}: {error.message}", hint=error.hint) from None


#: options that mean the same to a what-if
_SAME = ("cuda_graphs", "overlap", "ideal", "ideal_peers", "missing_ranks", "model")


def _what_if(run: Trace, options: Mapping[str, Any]) -> WhatIf:
    from simulator.changes import MachineChange
    from simulator.faults import Faults
    from simulator.interop import open_topology
    from simulator.replay.what_if import WhatIf
    from simulator.topology.device_file import load_device

    gpu, topology, measured_on = (options[name] for name in ("gpu", "topology", "measured_on"))
    late = _stragglers(options)
    bucket_bytes = _quantity(options, "bucket_bytes", "bytes")
    plan, dp = _plan_change(options)
    return WhatIf(
        machine=MachineChange(
            bandwidth=_bandwidths(options["bandwidth"]),
            device=None if gpu is None else load_device(gpu),
            kernel_speed=_speed(options["kernels"], "--kernels"),
            host_speed=_speed(options["host"], "--host"),
            faults=Faults(slow_ranks=tuple((rank, factor) for rank, factor, delay in late if not delay)),
        ),
        topology=None if topology is None else open_topology(topology, None),
        measured_on=None if measured_on is None else open_topology(measured_on, None),
        measured_device=_recorded_device(run, options["measured_gpu"], wanted=gpu is not None),
        remove_straggler=tuple(options["remove_straggler"] or ()),
        delays=tuple((rank, delay) for rank, _, delay in late if delay),
        latency_s=_quantity(options, "latency", "time") or 0.0,
        bucket_bytes=None if bucket_bytes is None else round(bucket_bytes),
        plan=plan,
        dp=dp,
        recorded=_settings(options["recorded"], sizes=True),
        **{name: options[name] for name in _SAME},
    )


def _plan_change(options: Mapping[str, Any]) -> tuple[PlanChange, int | None]:
    """Return the other plan, and the data-parallel ranks where nothing else of the plan changes."""
    from simulator.replay.changes_of_plan import PlanChange

    degrees = {key: options[key] for key in ("tp", "pp", "sequence_length") if options[key] is not None}
    settings, dp = {**_settings(options["set_"]), **degrees}, options["dp"]
    sizes = {"layers": options["layers"], "hidden": options["hidden_size"], "micro_batches": options["micro_batches"]}
    plan = PlanChange(settings=settings, **sizes)
    return (PlanChange(settings={**settings, "dp": dp}, **sizes), None) if dp is not None and plan else (plan, dp)


def _settings(texts: Sequence[str] | None, *, sizes: bool = False) -> dict[str, Any]:
    """Settings of a plan as KEY=VALUE; with ``sizes`` also numbers of layers and micro-batches."""
    from simulator.errors import ConfigError
    from simulator.plan.names import is_switch, parse_settings

    found: dict[str, Any] = {}
    for text in sorted(texts or (), key=lambda one: is_switch(one.partition("=")[0])):
        name, equals, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if sizes and key in ("layers", "micro_batches") and value.isdecimal():
            found[key] = int(value)
            continue
        made = parse_settings(name, value, found) if equals else None
        if made is None:
            raise ConfigError(f"'{text}' is not a setting of a plan", hint="KEY=VALUE, like tp=2 or overlap=false")
        found |= made
    return found


def _speed(times_as_long: float, flag: str) -> float:
    """The speed for a factor on the duration; a factor of 0 takes no time."""
    from simulator.errors import ConfigError
    from simulator.replay.what_if import MOST_FACTOR

    if not 0 <= times_as_long <= MOST_FACTOR:
        text = f"{flag} {times_as_long:g}: not a factor on a time, from 0 to {MOST_FACTOR:g}"
        raise ConfigError(text, hint="2 takes twice as long")
    return 1 / times_as_long if times_as_long else float("inf")


def _bandwidths(text: str | None) -> dict[str, float]:
    """A factor for all kinds of links, or KIND=FACTOR separated by commas."""
    from simulator.errors import ConfigError
    from simulator.replay.what_if import MOST_FACTOR
    from simulator.topology import LINK_KINDS

    if text is None:
        return {}
    try:
        if "=" not in text:
            found = {} if float(text) == 1.0 else dict.fromkeys(LINK_KINDS, float(text))
        else:
            found = {kind.strip(): float(factor) for kind, factor in (part.split("=", 1) for part in text.split(","))}
    except ValueError:
        found = {"": 0.0}
    if not set(found) <= set(LINK_KINDS):
        kinds = ", ".join(LINK_KINDS)
        raise ConfigError(f"--bandwidth {text}: not a factor or KIND=FACTOR", hint=f"like 2 or nic=2; kinds: {kinds}")
    if not all(1 / MOST_FACTOR <= factor <= MOST_FACTOR for factor in found.values()):
        raise ConfigError(
            f"--bandwidth {text}: not a factor from {1 / MOST_FACTOR:g} to {MOST_FACTOR:g}", hint="2 doubles it"
        )
    return found


def _recorded_device(recorded: Trace, name: str | None, *, wanted: bool) -> Any:
    """The device that the user names, or the shipped one that the trace's device name tells."""
    from simulator.interop.machines.hardware import device_of_driver
    from simulator.topology.device_file import load_device

    if name is None and wanted:
        name = device_of_driver(next((rank.device for rank in recorded.ranks if rank.device), ""))
    return load_device(name) if name else None


def _stragglers(options: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """Return ranks with their factors and delays, one of each for a rank."""
    from simulator.errors import ConfigError

    late = [_straggler(text) for text in options["add_straggler"] or ()]
    said = [(rank, bool(delay)) for rank, _, delay in late]
    for rank, delays in said:
        if said.count((rank, delays)) > 1:
            raise ConfigError(
                f"--add-straggler gives rank {rank} {'a delay' if delays else 'a factor'} twice", hint="give one"
            )
        if rank in (options["remove_straggler"] or ()):
            raise ConfigError(
                f"rank {rank} is a straggler to add and to remove", hint="--add-straggler or --remove-straggler"
            )
    return late


def _straggler(text: str) -> tuple[int, float, float]:
    from simulator.errors import ConfigError

    rank, _, amount = text.partition(":")
    if not rank.isdecimal() or not amount:
        raise ConfigError(f"--add-straggler {text}: not RANK:FACTOR or RANK:DELAY", hint="like 3:1.2 or 3:10ms")
    try:
        factor = float(amount)
    except ValueError:
        return int(rank), 1.0, _parsed(f"--add-straggler {text}", amount, "time")
    if not 0 < factor < float("inf"):
        raise ConfigError(
            f"--add-straggler {text}: kernels cannot take {amount} times as long", hint="3:1.2, or 3:10ms"
        )
    return int(rank), factor, 0.0


def _print(document: Mapping[str, Any]) -> None:
    from simulator.cli.shared import say
    from simulator.report.replay_page import headline, replay_tables
    from simulator.report.terminal import print_grid

    ranks = document.get("recorded_ranks")
    recorded = "" if ranks is None else f", {len(ranks)} recorded"
    print(f"{document['format']} trace of {count_of(document['world_size'], 'rank')}{recorded}")
    for label, text in headline(document):
        say(f"{label} {text}")
    for grid in replay_tables(document):
        print()
        print_grid(grid)
    print()
    for note in document["notes"]:
        say(f"note: {note}")
