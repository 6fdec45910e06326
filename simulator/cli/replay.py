"""``simulate replay``: traces in, what-if answers out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from simulator.cli.options import PLAIN_JSON, Number, Ranks, Switch, Text, Texts, option
from simulator.cli.trace import Paths, show_progress

PLAN = "Another plan or model"

if TYPE_CHECKING:
    from simulator.replay.changes_of_plan import PlanChange
    from simulator.replay.stage_replay import StageMessages
    from simulator.replay.what_if import WhatIf
    from simulator.trace_io.trace_record import Trace


def replay(
    traces: Paths,
    topology: Annotated[Text, option("Run the communication on this cluster.", "--topology", "-t")] = None,
    measured_on: Annotated[Text, option("Cluster of the trace: scales measured transfers.")] = None,
    gpu: Annotated[Text, option("Run the kernels on this device.")] = None,
    measured_gpu: Annotated[Text, option("Device of the trace; found by its name if possible.")] = None,
    bandwidth: Annotated[
        Text, option("Factor on the bandwidth of every link, or of some kinds of a cluster's: nic=2,nvlink=1.5.")
    ] = None,
    latency: Annotated[Text, option("Added to every transfer, like 5us.")] = None,
    kernels: Annotated[float, option("Factor on the duration of every kernel.")] = 1.0,
    host: Annotated[float, option("Factor on all host time.")] = 1.0,
    remove_straggler: Annotated[Ranks, option("Make this rank as fast as the median; repeatable.")] = None,
    add_straggler: Annotated[Texts, option("RANK:FACTOR or RANK:DELAY like 3:1.2 or 3:10ms; repeatable.")] = None,
    cuda_graphs: Annotated[
        bool, option("Launch kernels between two waits of the host as one CUDA graph.", "--cuda-graphs")
    ] = False,
    overlap: Annotated[Switch, option("Gradient reductions beside compute, or nothing.")] = None,
    bucket_bytes: Annotated[Text, option("Merge gradient all-reduces up to this size, like 100MB.")] = None,
    dp: Annotated[
        Number, option("Data-parallel ranks; with nothing else of the plan, ranks of the largest group.")
    ] = None,
    tp: Annotated[Number, option("Tensor-parallel degree.", panel=PLAN)] = None,
    pp: Annotated[Number, option("Pipeline stages.", panel=PLAN)] = None,
    layers: Annotated[Number, option("Blocks of the model.", panel=PLAN)] = None,
    hidden_size: Annotated[Number, option("Width of the model.", panel=PLAN)] = None,
    sequence_length: Annotated[Number, option("Tokens per sequence.", panel=PLAN)] = None,
    micro_batches: Annotated[Number, option("Micro-batches per replica and step.", panel=PLAN)] = None,
    set_: Annotated[Texts, option("Any other setting of the plan, KEY=VALUE; repeatable.", "--set", panel=PLAN)] = None,
    model: Annotated[Text, option("The model that was recorded, where shapes do not tell it.", panel=PLAN)] = None,
    recorded: Annotated[
        Texts, option("A setting of the plan that was recorded, KEY=VALUE; repeatable.", panel=PLAN)
    ] = None,
    ideal: Annotated[
        bool, option("No stragglers and no host time: every operation takes the mean of its type.", "--ideal")
    ] = False,
    ideal_peers: Annotated[
        bool, option("The same with the host's time evened out over ranks and steps, not removed.", "--ideal-peers")
    ] = False,
    missing_ranks: Annotated[bool, option("Recorded ranks stand for the others.", "--missing-ranks")] = False,
    schedule: Annotated[str, option("Pipeline schedule for stage times.")] = "1f1b",
    message: Annotated[Text, option("Stage times: time of a message, or its size with --topology.")] = None,
    as_format: Annotated[Text, option("Read the files as this format.", "--as")] = None,
    trace: Annotated[
        Text, option("Write simulated beside measured (.pftrace, .json, .tar) or alone (.et, folder).")
    ] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Replay a trace as measured, then with changes."""
    from dataclasses import replace as replaced

    from simulator.replay.replay_answer import answer_of
    from simulator.replay.what_if import what_if
    from simulator.replay.written import check_target, write_outcome
    from simulator.trace_io import read

    if trace:
        check_target(trace, traces)
    run = read(traces, as_format=as_format, progress=show_progress())
    plan = _plan_change(set_, tp=tp, pp=pp, sequence_length=sequence_length)
    plan = replaced(plan, layers=layers, hidden=hidden_size, micro_batches=micro_batches)
    if dp is not None and plan:
        plan, dp = replaced(plan, settings={**plan.settings, "dp": dp}), None
    what = _what_if(
        run, topology=topology, measured_on=measured_on, gpu=gpu, measured_gpu=measured_gpu, bandwidth=bandwidth,
        latency_s=_seconds(latency), kernels=kernels, host=host, remove=remove_straggler, add=add_straggler,
        cuda_graphs=cuda_graphs, overlap=overlap, bucket_bytes=_bytes(bucket_bytes), dp=dp, ideal=ideal, ideal_peers=ideal_peers,
        missing_ranks=missing_ranks, plan=plan, recorded=_settings(recorded, sizes=True), model=model,
    )  # fmt: skip
    found = what_if(run, what, schedule=schedule, messages=_messages(message))
    document = answer_of(found)
    if json_output:
        print(json.dumps(document, allow_nan=False))
    else:
        _print(document)
    if trace:
        write_outcome(found, trace)
        print(f"wrote {trace}", file=sys.stderr)


def _seconds(text: str | None) -> float:
    from simulator.units import parse_quantity

    return 0.0 if text is None else parse_quantity(text, "time")


def _messages(text: str | None) -> StageMessages | None:
    """A time like 2ms, or a size like 10MB."""
    from simulator.replay.stage_replay import StageMessages

    if text is None:
        return None
    if text.rstrip().endswith(("B", "b")):
        return StageMessages(n_bytes=_bytes(text) or 0)
    return StageMessages(time_s=_seconds(text))


def _bytes(text: str | None) -> int | None:
    from simulator.units import parse_quantity

    return None if text is None else round(parse_quantity(text, "bytes"))


def _what_if(
    run: Trace, *, topology: str | None, measured_on: str | None, gpu: str | None, measured_gpu: str | None,
    bandwidth: str | None, kernels: float, host: float, remove: Sequence[int] | None, add: Sequence[str] | None,
    **others: Any,
) -> WhatIf:  # fmt: skip
    from simulator.changes import MachineChange
    from simulator.faults import Faults
    from simulator.interop import open_topology
    from simulator.replay.what_if import WhatIf
    from simulator.topology.device import load_device

    late = [_straggler(text) for text in add or ()]
    return WhatIf(
        machine=MachineChange(
            bandwidth=_bandwidths(bandwidth),
            device=None if gpu is None else load_device(gpu),
            kernel_speed=_speed(kernels, "--kernels"),
            host_speed=_speed(host, "--host"),
            faults=Faults(slow_ranks=tuple((rank, factor) for rank, factor, delay in late if not delay)),
        ),
        topology=None if topology is None else open_topology(topology, None),
        measured_on=None if measured_on is None else open_topology(measured_on, None),
        measured_device=_recorded_device(run, measured_gpu, wanted=gpu is not None),
        remove_straggler=tuple(remove or ()),
        delays=tuple((rank, delay) for rank, _, delay in late if delay),
        **others,
    )


def _plan_change(texts: Sequence[str] | None, **degrees: int | None) -> PlanChange:
    from simulator.replay.changes_of_plan import PlanChange

    return PlanChange(
        settings={**_settings(texts), **{key: value for key, value in degrees.items() if value is not None}}
    )


def _settings(texts: Sequence[str] | None, *, sizes: bool = False) -> dict[str, Any]:
    """Settings of a plan as KEY=VALUE; with ``sizes`` also numbers of layers and micro-batches."""
    from simulator.errors import ConfigError
    from simulator.plan.parallel_plan import parse_setting

    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        key = name.strip().replace("-", "_")
        if sizes and key in ("layers", "micro_batches") and value.isdecimal():
            found[key] = int(value)
            continue
        setting = parse_setting(name, value) if equals else None
        if setting is None:
            raise ConfigError(f"'{text}' is no setting of a plan", hint="KEY=VALUE, like tp=2 or overlap=false")
        found[setting[0]] = setting[1]
    return found


def _speed(times_as_long: float, flag: str) -> float:
    """The speed of what takes so many times as long; 0 takes no time."""
    from simulator.errors import ConfigError

    if not times_as_long >= 0:
        raise ConfigError(f"{flag} {times_as_long:g}: is no factor on a time", hint="2 takes twice as long")
    return 1 / times_as_long if times_as_long else float("inf")


def _bandwidths(text: str | None) -> dict[str, float]:
    """A factor for all kinds of links, or KIND=FACTOR separated by commas."""
    from simulator.errors import ConfigError
    from simulator.topology import LINK_KINDS

    if text is None:
        return {}
    try:
        if "=" not in text:
            return {} if float(text) == 1.0 else dict.fromkeys(LINK_KINDS, float(text))
        found = {kind.strip(): float(factor) for kind, factor in (part.split("=", 1) for part in text.split(","))}
    except ValueError:
        found = {"": 0.0}
    if not set(found) <= set(LINK_KINDS):
        kinds = ", ".join(LINK_KINDS)
        raise ConfigError(f"--bandwidth {text}: not a factor or KIND=FACTOR", hint=f"like 2 or nic=2; kinds: {kinds}")
    return found


def _recorded_device(recorded: Trace, name: str | None, *, wanted: bool) -> Any:
    """The device that the user names, or the shipped one that the trace's device name tells."""
    from simulator.replay.changes_of_kernels import shipped_device
    from simulator.topology.device import load_device

    if name is not None:
        return load_device(name)
    names = [rank.device for rank in recorded.ranks if rank.device and wanted]
    return shipped_device(names[0]) if names else None


def _straggler(text: str) -> tuple[int, float, float]:
    from simulator.errors import ConfigError

    rank, _, amount = text.partition(":")
    if not rank.isdecimal() or not amount:
        raise ConfigError(f"--add-straggler {text}: not RANK:FACTOR or RANK:DELAY", hint="like 3:1.2 or 3:10ms")
    try:
        return int(rank), float(amount), 0.0
    except ValueError:
        return int(rank), 1.0, _seconds(amount)


def _print(document: Mapping[str, Any]) -> None:
    from simulator.units import format_time

    ranks = document.get("recorded_ranks")
    recorded = "" if ranks is None else f", {len(ranks)} recorded"
    print(f"{document['format']} trace of {document['world_size']} ranks{recorded}")
    measured, simulated = document["measured_iteration_time_s"], document["iteration_time_s"]
    known = "" if measured is None else f"measured {format_time(measured)}   "
    print(f"iteration   {known}replayed {format_time(simulated)}")
    if "message_s" in document:
        compute, message = format_time(document["compute_only_s"]), format_time(document["message_s"])
        error = document["relative_error"]
        known = "error       " + (f"{error:+.2%}   " if error is not None else "not known, that did not run   ")
        print(f"{known}a message takes {message}; without any {compute}")
    if "explained" in document:
        _print_plan(document)
    if "identity_error" in document:
        print(f"identity    largest error of a step {document['identity_error']:.2%}")
        print(f"speedup     {document['speedup']:.4g}")
        sure = document["confidence"]
        if sure is not None:
            print(f"between     {format_time(sure['low_s'])} and {format_time(sure['high_s'])}: {sure['basis']}")
        for name, seconds in document["breakdown"].items():
            before = document["measured_breakdown"][name]
            words = name.removesuffix("_s").replace("_", " ")
            print(f"{words:<25} measured {format_time(before):>9}   replayed {format_time(seconds):>9}")
        kinds = ", ".join(f"{row['kind']} {format_time(row['seconds'])}" for row in document["critical_path"]["kinds"])
        print(f"critical path: {kinds}")
    for note in document["notes"]:
        print(f"note: {note}")


def _print_plan(document: Mapping[str, Any]) -> None:
    from simulator.units import format_time

    before, after = document["recorded_plan"], document["plan"]
    for key in {**before, **after}:
        old, new = before.get(key, "default"), after.get(key, "default")
        print(f"{key:<18} {old}" + (f" -> {new}" if new != old else ""))
    print(f"speedup     {document['speedup']:.4g}")
    sure = document["confidence"]
    print(f"between     {format_time(sure['low_s'])} and {format_time(sure['high_s'])}: {sure['basis']}")
    for row in document["parts"]:
        times = [format_time(row[f"{name}_s"]) for name in ("recorded", "modelled", "new")]
        print(f"{row['part']:<28} recorded {times[0]:>9}   by the models {times[1]:>9}   new {times[2]:>9}")
