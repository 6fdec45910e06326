"""``simulate collective``: the table that nccl-tests would print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import CLUSTER_HELP, PLAIN_JSON, TRANSPORT_HELP, Number, Text, Texts, option, report_option
from simulator.cli.shared import print_json, say_written
from simulator.units import count_of

if TYPE_CHECKING:
    from simulator.collectives.benchmark import BenchmarkRow
    from simulator.topology import Topology

_COLLECTIVES = (
    "all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter or send_recv; p2p_copy for copies "
    "to a peer and the host, as nvbandwidth has them."
)
_COPIES = "p2p_copy"
#: settings of a scenario that this command has flags for
_OWN_FLAGS = {
    "topology": "--topology", "gpus": "--gpus", "transport": "--transport", "network": "--network", "algorithm": "--nccl-algo",
    "protocol": "--nccl-proto",
}  # fmt: skip


def collective(
    name: Annotated[str, typer.Argument(metavar="COLLECTIVE", help=_COLLECTIVES, show_default=False)],
    topology: Annotated[str, option(CLUSTER_HELP, "--topology", "-t")],
    gpus: Annotated[Number, option("Use the first N GPUs; all by default.")] = None,
    gpus_per_node: Annotated[Number, option("Use N GPUs of each node.")] = None,
    smallest: Annotated[str, typer.Option("--min", help="Smallest size.")] = "1KiB",
    largest: Annotated[str, typer.Option("--max", help="Largest size.")] = "1GiB",
    factor: Annotated[int, typer.Option(help="Ratio of each size to the one before.")] = 2,
    dtype: Annotated[str, typer.Option(help="Type of the elements, as nccl-tests calls it.")] = "float",
    transport: Annotated[Text, option(TRANSPORT_HELP)] = None,
    nccl_algo: Annotated[Text, option("Force the algorithm.")] = None,
    nccl_proto: Annotated[Text, option("Force the protocol: ll, ll128, simple.")] = None,
    set_: Annotated[Texts, option("Change a value of the cluster file: key=value; repeatable.", "--set")] = None,
    nccl: Annotated[Text, option("NCCL version; that of the cluster file by default.")] = None,
    gpus_per_process: Annotated[int, typer.Option(help="GPUs that one process drives (-g of nccl-tests).")] = 1,
    network: Annotated[str, typer.Option(help="flow, alpha-beta, chunk (every message), or all to compare.")] = "flow",
    plot: Annotated[Text, report_option("Draw bus bandwidth by size: .html, .png or .svg.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Predict a collective by size, alone on its links, in the columns of nccl-tests."""
    from simulator.analysis.idle_inputs import idle_overrides
    from simulator.cli.shared import write_warnings
    from simulator.collectives import collective_named
    from simulator.collectives.benchmark import benchmark_table, size_range
    from simulator.interop import open_topology
    from simulator.network import NETWORKS

    name = _COPIES if name.replace("-", "_") == _COPIES else collective_named(name)
    sizes = size_range(_size("--min", smallest), _size("--max", largest), factor)
    overrides = _overrides(set_) if set_ else {}
    machine = _changed(open_topology(topology, gpus, gpus_per_node=gpus_per_node, overrides=overrides), overrides)
    write_warnings(one.sentence for one in idle_overrides(overrides, machine))
    if name == _COPIES:
        named = {"--transport": transport, "--nccl-algo": nccl_algo, "--nccl-proto": nccl_proto, "--nccl": nccl}
        write_warnings(f"{flag} has no effect on copies" for flag, value in named.items() if value)
        _copies(machine, sizes, plot, as_json=json_output)
        return
    given = {"transport": transport or "", "nccl_algo": nccl_algo or "", "nccl_proto": nccl_proto or ""}
    predict = partial(
        benchmark_table, name, machine, sizes, dtype=dtype, transport=transport, algorithm=nccl_algo,
        protocol=nccl_proto, gpus_per_process=gpus_per_process, nccl=nccl,
    )  # fmt: skip
    by_network = {kind: predict(network=kind) for kind in (NETWORKS if network == "all" else (network,))}
    _warn(name, machine, given)
    used = (transport or machine.default_transport) if machine.n_nodes > 1 else ""
    if network == "all":
        _compare(name, machine, by_network, used, plot, as_json=json_output)
        return
    rows = by_network[network]
    _show(name, machine, rows, used, as_json=json_output)
    _draw(plot, name, machine, {f"{machine.n_gpus} GPUs": rows})


def _overrides(items: Sequence[str]) -> dict[str, str]:
    """Return what is changed of the cluster's file; what knows the names of all settings is loaded only where something is."""
    from simulator.cli.inputs import changes_of_cluster

    return changes_of_cluster(items, "a collective has no plan", _OWN_FLAGS)


def _changed(machine: Topology, overrides: Mapping[str, str]) -> Topology:
    """Return a machine whose name says what was changed of its file, as tables of measurements write it."""
    name = " ".join([machine.name, *(f"{key}={value}" for key, value in overrides.items())])
    return replace(machine, spec=machine.spec.model_copy(update={"name": name})) if overrides else machine


def _show(name: str, machine: Topology, rows: Sequence[BenchmarkRow], used: str, *, as_json: bool) -> None:
    """Print the rows with the interval of their times."""
    from simulator.analysis.confidence import collective_interval

    intervals = [collective_interval(row.n_bytes, machine.n_nodes) for row in rows]
    if as_json:
        document = _document(name, machine, rows, used)
        for plain, interval in zip(document["rows"], intervals, strict=True):
            plain |= {"low_s": plain["time_s"] * interval.low, "high_s": plain["time_s"] * interval.high}
        print_json({**document, "interval_basis": intervals[-1].basis})
    else:
        print(_table(name, machine, rows, used))
        for interval in dict.fromkeys(intervals):
            print(
                f"# 80 % interval {interval.sizes}: {interval.low:.2f} to {interval.high:.2f} of the time ({interval.basis})"
            )


def _copies(machine: Topology, sizes: Sequence[int], plot: str | None, *, as_json: bool) -> None:
    """Show copies of the first GPU: no collective, so nothing is chosen and no transport is used."""
    from simulator.collectives.copies import copy_table

    rows = copy_table(machine, sizes)
    if as_json:
        print_json(_document(_COPIES, machine, rows, ""))
    else:
        print(_table(_COPIES, machine, rows, ""))
    _draw(
        plot, _COPIES, machine, {label: [r for r in rows if r.label == label] for label in {r.label: 0 for r in rows}}
    )


def _draw(plot: str | None, name: str, machine: Topology, series: Mapping[str, Sequence[BenchmarkRow]]) -> None:
    if plot:
        from simulator.report.network_charts import bandwidth_page

        say_written(*bandwidth_page(name, machine.name, series).save(plot))


def _warn(name: str, machine: Topology, given: Mapping[str, str]) -> None:
    """Name choices that change nothing."""
    from simulator.analysis.idle_inputs import idle_choices
    from simulator.cli.shared import write_warnings
    from simulator.collectives.tuner import is_tunable

    found = [one.sentence for one in idle_choices(machine.n_nodes, machine.n_gpus, **given)]
    if not is_tunable(name):
        forced = {"--nccl-algo": given["nccl_algo"], "--nccl-proto": given["nccl_proto"]}
        found += [f"{flag} {value} has no effect: {name} is messages" for flag, value in forced.items() if value]
    write_warnings(found)


def _compare(
    name: str,
    machine: Topology,
    by_network: Mapping[str, Sequence[BenchmarkRow]],
    transport: str,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the time of every network model by size, and how far it is from that of all messages."""
    exact = by_network["chunk"]
    if as_json:
        networks = {kind: _document(name, machine, rows, transport) for kind, rows in by_network.items()}
        differs = {
            kind: [row.time_s / one.time_s - 1.0 for row, one in zip(rows, exact, strict=True)]
            for kind, rows in by_network.items()
        }
        print_json({"networks": networks, "relative_to_chunk": differs})
    else:
        from simulator.report.grid import Grid
        from simulator.report.terminal import print_grid

        others = [kind for kind in by_network if kind != "chunk"]
        cells = []
        for i, one in enumerate(exact):
            times_s = [by_network[kind][i].time_s for kind in others]
            beside = (cell for s in times_s for cell in (_digits(s * 1e6), f"{s / one.time_s - 1.0:+.1%}"))
            cells.append((one.n_bytes, *beside, _digits(one.time_s * 1e6), one.label))
        heads = ("size (B)", *(head for kind in others for head in (kind, "differs")), "chunk", "choice")
        title = f"# {_where(name, machine, transport)}: time (us) by network model, and against every message (chunk)"
        print_grid(Grid(title, heads, cells, words=(len(heads) - 1,)))
    _draw(plot, name, machine, by_network)


def _size(option: str, text: str) -> int:
    """Return bytes; a bare number counts bytes, as nccl-tests has it."""
    from simulator.errors import ConfigError
    from simulator.units import parse_quantity

    no_size = ConfigError(
        f"{option} {text} is not a size", hint="write bytes, or a size like 1KiB, 64MB, 1GiB; b is a bit"
    )
    if text.endswith("b"):
        raise no_size
    try:
        return int(text) if text.isdecimal() else round(parse_quantity(text, "bytes"))
    except ConfigError:
        raise no_size from None


def _document(name: str, machine: Topology, rows: Sequence[BenchmarkRow], transport: str) -> dict[str, Any]:
    return {
        "collective": name,
        "topology": machine.name,
        "gpus": machine.n_gpus,
        "nodes": machine.n_nodes,
        "transport": transport,
        "rows": [_plain(row) for row in rows],
        "average_busbw_bytes_per_s": sum(row.busbw_bytes_per_s for row in rows) / len(rows),
    }


def _plain(row: BenchmarkRow) -> dict[str, Any]:
    algorithm, _, protocol = row.label.partition("/")
    return {
        "size_bytes": row.n_bytes,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": row.root,
        "time_s": row.time_s,
        "algbw_bytes_per_s": row.algbw_bytes_per_s,
        "busbw_bytes_per_s": row.busbw_bytes_per_s,
        "algorithm": algorithm,
        "protocol": protocol,
    }


def _table(name: str, machine: Topology, rows: Sequence[BenchmarkRow], transport: str) -> str:
    """Return lines that readers of nccl-tests logs understand, ours among them."""
    average = sum(row.busbw_bytes_per_s for row in rows) / len(rows)
    return "\n".join(
        [
            f"# {_where(name, machine, transport)}",
            "#",
            _line("#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "choice"),
            _line("#", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""),
            *(_line(" ", *_cells(row)) for row in rows),
            f"# Avg bus bandwidth    : {average / 1e9:.4g} ",
        ]
    )


def _where(name: str, machine: Topology, transport: str) -> str:
    from simulator.analysis.link_use import domain_word

    program = name.replace("all_to_all", "alltoall").replace("send_recv", "sendrecv")
    where = f"{count_of(machine.n_gpus, 'GPU')} on {count_of(machine.n_nodes, domain_word(machine))}"
    return f"{program}_perf as predicted for {machine.name}: {where}{f' over {transport}' if transport else ''}"


def _cells(row: BenchmarkRow) -> tuple[str, ...]:
    figures = (row.time_s * 1e6, row.algbw_bytes_per_s / 1e9, row.busbw_bytes_per_s / 1e9)
    counts = (str(row.n_bytes), str(row.count), row.dtype, row.redop, str(row.root))
    return (*counts, *map(_digits, figures), row.label)


def _line(first: str, *cells: str) -> str:
    widths = (11, 13, 9, 6, 6, 10, 8, 8)
    right = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
    return f"{first}{right}  {cells[-1]}".rstrip()


def _digits(value: float) -> str:
    """Write a number as nccl-tests does, with four digits at least."""
    return f"{value:.{2 if value >= 10 else 3 if value >= 1 else 4}f}"
