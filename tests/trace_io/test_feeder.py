"""What ASTRA-sim does with a Chakra trace, as an oracle that shares nothing with the writer.

The rules are those of ``feeder_v3`` (astra-sim/chakra at f37c2bb) and of ``Workload.cc`` (astra-sim at 518bd51); traces
written here were also walked by that feeder itself, compiled.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path

import pytest

from simulator.trace_io import read
from simulator.trace_io.formats import write

OWN = Path(__file__).resolve().parents[2] / "traces"
METADATA, COMP, SEND, RECV, COLL = 1, 4, 5, 6, 7
#: field of AttributeProto -> decoder of the value of that arm
ARMS = {
    3: lambda raw: struct.unpack("<d", raw)[0], 7: int, 9: int, 13: int, 27: bool, 29: bytes.decode,
    10: lambda raw: "int64_list", 30: lambda raw: "string_list",
}  # fmt: skip
#: attributes that the feeder reads -> arms that convert to what it asks for
INTEGERS = (7, 9, 13)
WANTED = {"is_cpu_op": (27,), "comm_type": INTEGERS, "comm_size": INTEGERS, "comm_src": INTEGERS,
          "comm_dst": INTEGERS, "comm_tag": INTEGERS, "tensor_size": INTEGERS, "pg_name": (29,)}  # fmt: skip


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            value, at = data[at : at + 8], at + 8
        yield tag >> 3, value


def numbers(value):
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def load(path):
    """Nodes as (id, type, data_deps, ctrl_deps, duration, input, attributes); the first message is the metadata."""
    data, at, parts = path.read_bytes(), 0, []
    while at < len(data):
        size, at = varint(data, at)
        parts.append(data[at : at + size])
        at += size
    assert dict(fields(parts[0]))[1], "the global metadata come first and name a version"
    for part in parts[1:]:
        node = {1: 0, 3: 0, 4: [], 5: [], 7: 0, "input": "", "attr": {}}
        for number, value in fields(part):
            if number in (4, 5):
                node[number] += numbers(value)
            elif number == 8:
                node["input"] = dict(fields(value)).get(1, b"").decode()
            elif number == 10:
                attribute = dict(fields(value))
                name = attribute.pop(1).decode()
                ((arm, raw),) = attribute.items()
                assert arm in WANTED.get(name, ARMS), f"{name} in arm {arm}"
                node["attr"][name] = ARMS[arm](raw)
            else:
                node[number] = value
        yield node


def walk(path, rank):
    """Issue every node in an order that its dependencies allow; return the collectives and messages."""
    nodes = {}
    for node in load(path):
        assert node[1] not in nodes, "ids are unique"
        nodes[node[1]] = node
    waiting = {i: {*n[4], *n[5]} for i, n in nodes.items()}
    assert all(dep in nodes for deps in waiting.values() for dep in deps), "dependencies are in the file"
    ready = sorted(i for i, deps in waiting.items() if not deps)
    children = {}
    for i, deps in waiting.items():
        for dep in deps:
            children.setdefault(dep, []).append(i)
    groups, collectives, messages, done = set(), [], Counter(), 0
    while ready:
        i = ready.pop(0)
        issue(nodes[i], rank, groups, collectives, messages)
        done += 1
        for child in children.get(i, ()):
            waiting[child].discard(i)
            if not waiting[child]:
                ready.append(child)
    assert done == len(nodes), "the graph has no cycle"
    return collectives, messages


def issue(node, rank, groups, collectives, messages):
    attributes, kind = node["attr"], node[3]
    if kind == METADATA:
        listed = json.loads(node["input"][2:-2] or "[]")
        groups.update(int(entry["pg_name"]) for entry in listed)
        assert all(isinstance(r, int) for entry in listed for r in entry["ranks"])
    elif kind == COLL:
        assert not attributes["is_cpu_op"]
        name = attributes.get("pg_name", "")
        assert name in ("", "0") or int(name) in groups, f"group {name} is not listed"
        assert 0 <= attributes["comm_type"] <= 9
        collectives.append((name, attributes["comm_type"], attributes["comm_size"]))
    elif kind in (SEND, RECV):
        pair = (attributes["comm_src"], attributes["comm_dst"])
        assert pair[kind - SEND] == rank
        messages[(*pair, attributes["comm_tag"], attributes["comm_size"])] += 1 if kind == SEND else -1
    else:
        assert kind == COMP, "anything else is remote memory or unknown"


def check(trace, tmp_path):
    write(trace, tmp_path / "run.et")
    paths = sorted(tmp_path.glob("run.*.et"), key=lambda p: int(re.findall(r"\d+", p.name)[-1]))
    assert len(paths) == len(trace.ranks)
    balance, n_collectives = Counter(), 0
    for path, rank in zip(paths, trace.ranks, strict=True):
        collectives, messages = walk(path, rank.rank)
        balance.update(messages)
        n_collectives += len(collectives)
    return balance, n_collectives


@pytest.mark.parametrize(("name", "n_collectives"), [("ddp-2", 16), ("fsdp2-2", 32), ("pp-4", 0)])
def test_recorded_traces_are_accepted(name, n_collectives, tmp_path):
    balance, found = check(read(OWN / name), tmp_path)
    assert found == n_collectives
    assert not any(balance.values()), "every message that is sent is received under the same tag"


@pytest.mark.parametrize(
    "name", ["megatron-tp2/tp2/result", "torchrec/trace/sst_long_a2a_optimizer_4", "hta", "nsys-ai", "straggler"]
)
def test_published_traces_are_accepted(shared_traces, name, tmp_path):
    trace = read(shared_traces / name)
    balance, found = check(trace, tmp_path)
    assert found == sum(call.collective not in ("send", "recv") for rank in trace.ranks for call in rank.calls)
    assert not any(balance.values())
