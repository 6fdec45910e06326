"""``simulate import``: other tools' files in this project's words, with an account of every key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.options import PLAIN_JSON, Number, Text, Texts, option
from simulator.cli.shared import print_json, say_written
from simulator.plan.parallel_plan import SETTINGS

_SHOWN = 72
#: no job or cluster is larger
_MOST = 10_000_000


def import_(
    path: Annotated[str, typer.Argument(help="The file, or a folder with a config.json.", show_default=False)] = "",
    kind: Annotated[Text, option("Format, if the content does not show it; nvml reads this machine.", "--as")] = None,
    out: Annotated[Text, option("Write plan.yaml, cluster.yaml or measurements.csv.", "--out", "-o", "--csv")] = None,
    device: Annotated[Text, option("Clusters: the GPU, where the file does not name it.")] = None,
    nodes: Annotated[Number, option("Clusters: number of nodes; scripts and logs: nodes of the job.")] = None,
    nic_bandwidth: Annotated[Text, option("Clusters: rate of a NIC, e.g. '200 Gb/s'.")] = None,
    node_of: Annotated[Text, option("Slurm: cluster whose nodes these are.")] = None,
    links: Annotated[Texts, option("Slurm: uplinks of a switch, e.g. leaf-spine='400 Gb/s x 8'; repeatable.")] = None,
    args: Annotated[
        Texts, option("Scripts: positional arguments, '8B 4 ...' or 4=VALUE; repeatable.", "--args", "--argument")
    ] = None,
    define: Annotated[Texts, option("Scripts: variables, NAME=VALUE; repeatable.", "--define", "-D")] = None,
    gpus_per_node: Annotated[Number, option("Scripts: GPUs that are launched on a node.")] = None,
    gpus: Annotated[Number, option("Logs: GPUs that ran; DeepSpeed: data-parallel ranks.")] = None,
    collective: Annotated[Text, option("Logs: the collective, if the log does not name it.")] = None,
    topology: Annotated[Text, option("Logs: cluster that was measured.", "--topology", "-t")] = None,
    transport: Annotated[Text, option("Logs: transport that was measured.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Read a file of another tool; print what was used, what is irrelevant, what is unknown and what was assumed."""
    from simulator.config import keep_inputs
    from simulator.errors import ConfigError
    from simulator.interop import FORMATS, import_any
    from simulator.interop.account import account_of
    from simulator.interop.measurements.nccl_tests import CollectiveTable
    from simulator.interop.measurements.training_log import TrainingLog

    if not path and kind != "nvml":
        raise ConfigError("which file?", hint=f"simulate import FILE; formats: {', '.join(FORMATS)}")
    keep_inputs(out, [path] if path else [])
    for flag, count in (("--nodes", nodes), ("--gpus-per-node", gpus_per_node), ("--gpus", gpus)):
        if count is not None and not 1 <= count <= _MOST:
            raise ConfigError(f"{flag} {count}: from 1 to {_MOST:,}")
    options = {
        "device": device, "nodes": nodes, "nic_bandwidth": nic_bandwidth, "node_of": node_of,
        "links": _pairs(links) if links else None, "gpus": gpus, "collective": collective,
        "args": args, "define": define, "gpus_per_node": gpus_per_node,
    }  # fmt: skip
    found = import_any(path, kind, options)
    if (topology or transport) and not isinstance(found, CollectiveTable | TrainingLog):
        given = "--topology" if topology else "--transport"
        raise ConfigError(f"{path} is no log: {given} says where one was measured", hint=f"leave {given} out")
    document, text = account_of(found, topology=topology or "", transport=transport or "", written=bool(out))
    if out:
        write_text(out, text, document)
        document["use"] = _use_of(document, out)
    elif "cluster" in document and any(value is not None for value in (device, nodes, nic_bandwidth, node_of, links)):
        document["use"] = f"--out cluster.yaml, then --topology cluster.yaml: {path} does not say what these flags do"
    if json_output:
        print_json({**document, "out": out})
        return
    print(_table(document))
    say_written(out)


def _use_of(document: dict[str, Any], out: str) -> str:
    """Return how the file that was written is used: it has what options said, too."""
    if "cluster" in document:
        return f"--topology {out}"
    if "plan" not in document:
        return str(document["use"])
    return f"--plan {out}" + (f" --model {document['file']}" if "model" in document else "")


def _pairs(texts: list[str]) -> dict[str, str]:
    from simulator.errors import ConfigError

    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--links {text}: not understood", hint="write leaf-spine='400 Gb/s x 8'")
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts}


def write_text(out: str, text: str, document: dict[str, Any]) -> None:
    """Write what was made of the file: rows of measurements as CSV, all else as YAML."""
    from simulator.config import write_file
    from simulator.errors import ConfigError

    endings = (".csv",) if "measurements" in document else (".yaml", ".yml")
    ending = Path(out).suffix.lower()
    if ending in (".csv", ".yaml", ".yml", ".json", ".toml", ".html") and ending not in endings:
        raise ConfigError(
            f"--out {out}: what {document['file']} gives is not written as {ending}", hint=f"end it in {endings[0]}"
        )

    if not text:
        raise ConfigError(f"--out {out}: {document['file']} has nothing to write", hint=document["use"])
    write_file(out, text)


#: switches that mean something else off than left to the framework
_TOLD_OFF = frozenset(name for name, one in SETTINGS.items() if one.kind is bool and one.default is None)


def _table(document: dict[str, Any]) -> str:
    """Return the account as text, one kind of key per paragraph."""
    from simulator.config import leaves

    lines = [f"{document['file']}: {document['kind']}"]
    for part in ("plan", "model", "measurements"):
        if part in document:
            shown = {
                key: value
                for key, value in document[part].items()
                if value not in (None, "", 0, False) or key in _TOLD_OFF
            }
            lines += _paragraph(part, [f"{key}={value}" for key, value in shown.items()], ", ")
    if "cluster" in document:
        lines += _paragraph(
            "cluster", [f"{name}: {_short(value)}" for name, value in leaves(document["cluster"])], "\n"
        )
    for part in ("used", "irrelevant", "unknown"):
        lines += _paragraph(part, _shortened(document[part]), ", ")
    lines += _paragraph("assumed", document["assumed"], "\n")
    return "\n".join([*lines, f"{'use it as':<13}{document['use']}"])


def _shortened(items: list[str]) -> list[str]:
    return items if len(items) <= _SHOWN else [*items[: _SHOWN // 2], f"and {len(items) - _SHOWN // 2} more"]


def _short(value: object) -> object:
    return f"{len(value)} entries" if isinstance(value, list | tuple) and len(str(value)) > _SHOWN else value


def _paragraph(title: str, items: list[str], separator: str) -> list[str]:
    """Return items beside their title, wrapped."""
    import textwrap

    if not items:
        return []
    if separator == "\n":
        wrapped = [line for item in items for line in textwrap.wrap(item, 100, subsequent_indent="  ")]
    else:
        wrapped = textwrap.wrap(separator.join(items), 100, break_on_hyphens=False, break_long_words=False)
    return [f"{title if index == 0 else '':<13}{line}" for index, line in enumerate(wrapped)]
