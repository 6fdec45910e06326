"""Small files that are broken in the worst ways that are known, and all that reads files of users."""

from __future__ import annotations

import copy
import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from simulator.calibration.tables import read_rows
from simulator.config import parse_yaml
from simulator.errors import ConfigError
from simulator.interop import FORMATS, import_any, import_topology, load_model
from simulator.interop.trainers.plan_files import plan_settings
from simulator.plan import ParallelPlan
from simulator.topology import load_topology
from simulator.topology.device_file import load_device
from simulator.trace_io import read as read_trace
from tests.fuzz.fuzz_seeds import OPTIONS, seeds

_DEEP = 50_000
_LONG = "9" * 400
_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
_MERGES = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n  k{i}: 1\n" for i in range(1, 12)
)
_ENTITIES = (
    "<!DOCTYPE x ["
    + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))
    + "]><system><x>&e9;</x></system>"
)
_DOUBLING = "X=aaaaaaaaaa\n" + 'X="$X$X"\n' * 40


def _packed(write: Callable[[Any], None], opened: Callable[[io.BytesIO], Any]) -> bytes:
    buffer = io.BytesIO()
    with opened(buffer) as archive:
        write(archive)
    return buffer.getvalue()


def _tar(archive: tarfile.TarFile) -> None:
    zeros = tarfile.TarInfo("0.json")
    zeros.size = 64 << 20
    archive.addfile(zeros, io.BytesIO(bytes(zeros.size)))


def _gguf(*values: bytes, n_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, n_keys) + b"".join(values)


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


#: what is wrong -> the bytes; none says what it is
INPUTS: dict[str, bytes] = {
    "empty": b"",
    "a blank": b" \n",
    "a NUL": b"\x00",
    "Latin-1": "# größe\nname: größe\n".encode("latin-1"),
    "UTF-16": '{"hidden_size": 64}'.encode("utf-16"),
    "no text": bytes(range(256)) * 20,
    "brackets": b"[" * _DEEP,
    "closed brackets": b"[" * _DEEP + b"]" * _DEEP,
    "braces": b'{"a":' * _DEEP,
    "parentheses": b"x = " + b"(" * _DEEP,
    "brackets of TOML": b"a = " + b"[" * 20_000,
    "dotted key": b"a" + b".a" * 20_000 + b" = 1\n",
    "dashes": b"- " * _DEEP,
    "indented": b"".join(b" " * i + b"a:\n" for i in range(2_000)),
    "elements": b"<system>" * 20_000,
    "entities": _ENTITIES.encode(),
    "aliases": _ALIASES.encode(),
    "merged aliases": _MERGES.encode(),
    "an alias of itself": b"a: &a [*a]\n",
    "doubling": ("#!/bin/bash\n" + _DOUBLING + "pretrain_gpt.py --num-layers $X\n").encode(),
    "substitutions": b"#!/bin/bash\npretrain_gpt.py --num-layers " + b"$(echo " * 2_000 + b")" * 2_000,
    "braces of a shell": b"pretrain_gpt.py --num-layers {1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}\n",
    "an endless loop": b"#!/bin/bash\nwhile true; do X=$X; done\nfor ((;;)); do :; done\npretrain_gpt.py\n",
    "a power": b"#!/bin/bash\npretrain_gpt.py --num-layers $((9**9**9**9)) --hidden-size $((1 << 99999999))\n",
    "a function of itself": b"f() { f; f; }\nf\npretrain_gpt.py\n",
    "many hosts": b"SwitchName=s0 Nodes=n[1-99999999]\nSwitchName=s1 Switches=s[0-99999999]\n",
    "digits": f'{{"hidden_size": {_LONG}, "n_layer": -{_LONG}.5e{_LONG}}}'.encode(),
    "digits of YAML": f"a: {_LONG}\nb: 0x{'f' * 400}\nc: {_LONG}.0\n".encode(),
    "digits of TOML": f"a = {_LONG}\n".encode(),
    "no numbers": b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999}',
    "no numbers of YAML": b"a: .nan\nb: .inf\nc: 1e999\n",
    "no numbers of TOML": b"a = nan\nb = inf\n",
    "a gzip bomb": gzip.compress(bytes(64 << 20)),
    "a tar bomb": _packed(_tar, partial(tarfile.open, None, "w:gz")),
    "a zip bomb": _packed(
        lambda archive: archive.writestr("x.json", bytes(64 << 20)),
        lambda buffer: zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED),
    ),
    "a cut gzip": gzip.compress(b'{"traceEvents": [' * 1000)[:40],
    "a cut Parquet": b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1",
    "safetensors of 2^60 bytes": struct.pack("<Q", 2**60) + b"{}",
    "nested safetensors": struct.pack("<Q", _DEEP) + b'{"a":' + b"[" * (_DEEP - 5),
    "huge tensors": struct.pack("<Q", 60) + b'{"a": {"dtype": "F32", "shape": [1e400]}}'.ljust(60),
    "GGUF of 2^60 keys": _gguf(n_keys=2**60),
    "GGUF with a string of 2^60 bytes": _gguf(_key(b"general.name", 8, struct.pack("<Q", 2**60)), n_keys=1),
    "GGUF with arrays in arrays": _gguf(_key(b"a", 9, struct.pack("<IQ", 9, 1) * 5_000), n_keys=1),
    "GGUF with an array of 2^60": _gguf(_key(b"a", 9, struct.pack("<IQ", 0, 2**60)), n_keys=1),
}


def _imported(kind: str, path: Path) -> None:
    options = OPTIONS.get(kind, {})
    if options:
        import_topology(path, kind, **options)
    else:
        import_any(path, kind)


#: who reads -> how; NVML asks this machine, and no file
READERS: dict[str, Callable[[Path], object]] = {
    **{kind: partial(_imported, kind) for kind in FORMATS if kind != "nvml"},
    "any import": import_any,
    "model": lambda path: load_model(str(path)),
    "plan file": lambda path: ParallelPlan(**plan_settings({"plan": str(path)}, 8)),
    "cluster file": lambda path: load_topology(path, 16),
    "device file": load_device,
    "table": lambda path: read_rows(path, ("time_us",), ()),
    "trace": lambda path: read_trace([path]),
}

#: what stands where something else is meant
_WRONG: tuple[Any, ...] = (None, "x", -1, 10**9, 10**400, [[{}]], {"a": {"b": []}})


def with_wrong_values(text: str) -> Iterator[str]:
    """Yield a mapping in JSON or YAML with one value at a time replaced, each by something else in turn; nothing for other texts."""
    try:
        data, _ = parse_yaml(text, "seed", later_wins=True)
    except ConfigError:
        return
    places: list[tuple[Any, ...]] = []

    def walk(node: Any, path: tuple[Any, ...]) -> None:
        places.append(path)
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            walk(node[key], (*path, key))

    walk(data, ())
    for number, path in enumerate(places if isinstance(data, dict) else ()):
        whole = [copy.deepcopy(data)]
        node = whole
        for key in (0, *path)[:-1]:
            node = node[key]
        node[(0, *path)[-1]] = _WRONG[number % len(_WRONG)]
        yield json.dumps(whole[0])


def structured_seeds() -> list[tuple[str, str]]:
    """Return who reads a file and its text, where the text is a mapping in JSON or YAML."""
    return [(kind, text) for kind, ending, text in seeds() if kind in READERS and ending in (".json", ".yaml")]
