"""Headers of weights: safetensors, one file or a sharded index, checked against the configuration beside; GGUF, a model by itself.

References
----------
huggingface/safetensors, ``README.md`` (eight bytes of length, then JSON); ggml-org/ggml, ``docs/gguf.md`` (keys, types, tensors).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any, BinaryIO

from simulator.config import open_file, parse_json, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, FormatPart, Imported
from simulator.interop.key_table import json_keys
from simulator.interop.models.hf_config import import_hf_config, read_hf_config
from simulator.interop.typed_values import Reader

_MOST_HEADER, _MOST_ITEMS, _MOST_DIMS = 100_000_000, 5_000_000, 8
#: share by which the parameters of weights and of a model may differ and be the same
_SAME = 1e-3
#: ``general.architecture`` -> ``model_type`` of Hugging Face
_ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma": "gemma", "gemma2": "gemma2",
    "phi3": "phi3", "starcoder2": "starcoder2", "granite": "granite", "olmo2": "olmo2",
}  # fmt: skip
#: key behind the architecture -> keys of Hugging Face
_KEYS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "context_length": "max_position_embeddings", "expert_used_count": "num_experts_per_tok",
    "attention.sliding_window": "sliding_window", "expert_feed_forward_length": "moe_intermediate_size",
}  # fmt: skip
#: type of a GGUF value -> how it is unpacked; 8 is a string, 9 an array
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def binary_kind(path: str | Path) -> str:
    """Return the format of a file of weights by its first bytes; empty for any other, and for what is no file."""
    path = Path(path)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(9)
    if head[:4] == b"GGUF":
        return "gguf"
    is_header = len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= _MOST_HEADER
    return "safetensors" if is_header else ""


# ---- safetensors -------------------------------------------------------------------------------------------------


def import_safetensors(path: str | Path) -> Imported:
    """Read the configuration beside weights (one file, a shard, or the index of the shards), and check that it describes them."""
    path = Path(path)
    shards = [path]
    if path.suffix == ".json":
        shards = sorted(
            {path.parent / Path(str(one)).name for one in _json(path, read_text(path), "weight_map").values()}
        )
    here = [one for one in shards if isfile(one)]  # False, where Path raises, for names that no file can have
    missing = [one.name for one in shards if one not in here]
    counts: Counter[str] = Counter()
    for shard in here:
        counts.update(_header(shard))
    total, dtypes = sum(counts.values()), ", ".join(name for name, _ in counts.most_common())
    config = path.parent / "config.json"
    if not config.is_file():
        what = f"{total:,} parameters of {dtypes or 'unknown types'}, and no heads or activations: a header has only shapes"
        raise ConfigError(f"{path}: {what}", hint="put the config.json of the model beside it")
    imported = import_hf_config(config)
    spec = imported.spec
    assert spec is not None
    told = f"{total:,} of {dtypes}; config.json describes {spec.n_parameters:,}"
    is_part = bool(missing) or (path.suffix != ".json" and "-of-" in path.name)
    is_packed = any(name[0] in "IU" for name in counts)
    report = imported.report
    if is_part:
        report = replace(
            report, assumed=(*report.assumed, f"parameters={spec.n_parameters:,} (not all shards are here)")
        )
    elif is_packed:
        report = replace(
            report, assumed=(*report.assumed, f"parameters={spec.n_parameters:,} (weights are packed: {told})")
        )
    elif abs(total / spec.n_parameters - 1.0) > _SAME:
        report = replace(report, unknown=(*report.unknown, f"weights: not understood, changes the answer ({told})"))
    else:
        report = replace(report, used=(*report.used, f"parameters: {told}"))
    return replace(imported, kind="safetensors", file=str(path), report=report)


def _json(path: Path, text: str, key: str = "") -> dict[str, Any]:
    try:
        data = parse_json(text)
        found = data[key] if key else data
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a header of safetensors" + (f": no mapping {key!r}" if key else ""))
    return found


def _header(path: Path) -> Counter[str]:
    """Return the parameters of one file by their type."""
    with open_file(path) as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(min(size, _MOST_HEADER))
    if len(text) != size:
        raise ConfigError(f"{path}: the header has {len(text)} of {size} bytes: is the file whole?")
    counts: Counter[str] = Counter()
    for name, tensor in _json(path, text.decode("utf-8", "replace")).items():
        if name == "__metadata__":
            continue
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape):
            raise ConfigError(f"{path}: {name[:80]}: has no shape")
        counts[str(tensor.get("dtype", "?"))] += math.prod(shape)
    return counts


# ---- GGUF --------------------------------------------------------------------------------------------------------


class _Bytes:
    """Takes values out of a header, within bounds."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path

    def take(self, size: int) -> bytes:
        """Return so many bytes."""
        data = self.file.read(size) if 0 <= size <= _MOST_HEADER else b""
        if len(data) != size:
            raise ConfigError(f"{self.path}: the header of GGUF ends too early: is the file whole?")
        return data

    def number(self, code: str) -> Any:
        """Return one number."""
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        """Return a string."""
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return a value; of an array its length, or its first numbers."""
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.number("<I"), self.number("<Q")
            if n > _MOST_ITEMS or depth > _MOST_DIMS:
                raise ConfigError(f"{self.path}: an array of {n} values, {depth} arrays deep, is beyond any header")
            return [self.value(inner, depth + 1) for _ in range(n)]
        if kind not in _SCALARS:
            raise ConfigError(f"{self.path}: a value of type {kind}: GGUF has 0 to 12")
        return self.number(_SCALARS[kind])


def import_gguf(path: str | Path) -> Imported:
    """Read the model of a GGUF file from its keys; of its header alone the tensors are counted to check them."""
    path = Path(path)
    with open_file(path) as file:
        keys, tensors = _gguf(_Bytes(file, path))
    name = str(keys.get("general.architecture", ""))
    if name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(
            f"{path}: general.architecture: {name!r:.40} is not known",
            hint=f"known: {known}; or give its config.json",
        )
    own = {key.removeprefix(f"{name}."): value for key, value in keys.items() if key.startswith(f"{name}.")}
    vocabulary = own.get("vocab_size") or len(keys.get("tokenizer.ggml.tokens", ()))
    config: dict[str, Any] = {theirs: own[key] for key, theirs in _KEYS.items() if key in own}
    for key, value in config.items():  # one number for each layer, where they are alike
        if isinstance(value, list) and value and len(set(value)) == 1:
            config[key] = value[0]
    config |= {
        "model_type": _ARCHITECTURES[name],
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    n_experts = own.get("expert_count", 0)
    if n_experts:
        config |= (
            {"num_experts": n_experts} if name != "llama" else {"model_type": "mixtral", "num_local_experts": n_experts}
        )
    reader = Reader(config, str(path))
    imported = read_hf_config(reader, name=str(keys.get("general.name") or path.stem).lower())
    assert imported.spec is not None
    total, count = sum(tensors.values()), imported.spec.n_parameters
    if abs(total / count - 1.0) > _SAME:
        reader.account.miss("tensors", f"{total:,} parameters in the tensors, {count:,} in the keys")
    reader.account.assume("weights are trained in 16 bits, whatever types the tensors have")
    used = (f"general.architecture={name}", *(f"{name}.{key}" for key in _KEYS if key in own))
    report = reader.account.report()
    return replace(imported, kind="gguf", file=str(path), report=replace(report, used=used))


def _gguf(data: _Bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the keys of a header, and the elements of every tensor."""
    data.take(4)
    version = data.number("<I")
    if version not in (2, 3):
        raise ConfigError(f"{data.path}: version {version} of GGUF; supported: 2 and 3")
    n_tensors, n_keys = data.number("<Q"), data.number("<Q")
    if max(n_tensors, n_keys) > _MOST_ITEMS:
        raise ConfigError(f"{data.path}: {n_tensors} tensors and {n_keys} keys are beyond any header")
    keys = {data.text(): data.value(data.number("<I")) for _ in range(n_keys)}
    return keys, dict(_tensors(data, n_tensors))


def _tensors(data: _Bytes, n_tensors: int) -> Iterable[tuple[str, int]]:
    for _ in range(n_tensors):
        name, n_dims = data.text(), data.number("<I")
        if n_dims > _MOST_DIMS:
            raise ConfigError(f"{data.path}: tensor {name[:80]} has {n_dims} dimensions")
        yield name, math.prod(data.number("<Q") for _ in range(n_dims))
        data.take(12)  # its type and offset


SAFETENSORS = Format(
    gives="model",
    what="the header of safetensors, or `model.safetensors.index.json`, beside the model's `config.json`",
    sniff=lambda text: "weight_map" in json_keys(text),
    read=import_safetensors,
    parts=(
        FormatPart(("shape", "dtype"), "parameters and their types, against those of `config.json`"),
        FormatPart(("weight_map",), "the shards; those that are here are counted"),
        FormatPart(
            ("data_offsets", "__metadata__", "total_size"), "where the weights lie; they are not read", is_read=False
        ),
    ),
)
GGUF = Format(
    gives="model",
    what="the header of a GGUF file",
    sniff=lambda _: False,
    read=import_gguf,
    parts=(
        FormatPart(
            ("general.architecture", *_KEYS, "expert_count", "vocab_size", "tokenizer.ggml.tokens"), "the model"
        ),
        FormatPart(("tensors",), "parameters, against those of the keys; whether the output is the embedding's tensor"),
        FormatPart(
            ("general.*", "tokenizer.*", "rope.*", "quantize.*"),
            "names, tokens, and how weights are stored",
            is_read=False,
        ),
    ),
)
