"""Command lines whose every value is well-formed and some are extreme: what is answered must be numbers that hold together."""

from __future__ import annotations

import json
import math
import random
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

from simulator.explore.named_settings import SCENARIO_SETTINGS
from simulator.plan import SETTINGS
from simulator.topology.cluster_spec import ClusterSpec

#: with one cluster of each fabric, a device without NVLink, one of AMD's, and one NVLink domain of many nodes
_CLUSTERS = (
    "bigred200", "dgx-h100", "dgx-a100-80g", "selene", "polaris", "frontier", "gb200-nvl72", "thetagpu-tg40", "mi300x-8", "dgx1-v100-16g",
    "emulated-1g-2racks-1g", "jupiter", "a100-pcie-8x80g", "juwels-booster", "aws-p5",
)  # fmt: skip
_MODELS = ("gpt2", "llama2-7b", "mixtral-8x7b", "bert-large", "t5-large", "gpt-1.3b", "qwen3-30b-a3b")
_NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "7",
    "0.5",
    "1e-300",
    "1e-12",
    "1e-3",
    "0.999",
    "1.001",
    "1e6",
    "1e12",
    "1e15",
    "1e24",
    "1e300",
    "-1",
    "65537",
)
_PLAIN = ("1", "2", "4", "8", "16", "100", "0.5", "0.9", "1.5")
_UNITS = {
    "time": ("s", "ms", "ns", "d"), "bytes": ("B", "GiB", "EB"), "bandwidth": ("b/s", "Gb/s", "PB/s"), "compute": ("FLOP/s", "TFLOP/s"),
    "frequency": ("Hz", "GHz"), "power": ("W", "kW"),
}  # fmt: skip
#: settings of a scenario that have no file, and words that some of them take; no text says there which there are
_OF_SCENARIOS = [one for key, one in SCENARIO_SETTINGS.items() if key not in ("topology", "model")]
_WORDS_OF_SCENARIOS = {
    "network": ("flow", "alpha-beta"), "kernels": ("roofline",), "transport": ("rdma", "tcp"), "algorithm": ("ring", "tree"),
    "protocol": ("ll", "simple"),
}  # fmt: skip
#: key -> words that it may have, or the dimension of a quantity, or "" of a number
Keys = dict[str, tuple[str, ...] | str]


def _variants(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is typing.Annotated:
        yield from _variants(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, type(int | str)):
        for one in typing.get_args(annotation):
            yield from _variants(one)
    else:
        yield annotation


def _keys(spec: type[BaseModel], before: str = "") -> Iterator[tuple[str, tuple[str, ...] | str]]:
    schema = spec.model_json_schema()["properties"]
    for name, field in spec.model_fields.items():
        key = field.alias or name
        said = schema[key]
        about = next((str(one["description"]) for one in (said, *said.get("anyOf", ())) if "description" in one), "")
        for one in _variants(field.annotation):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from _keys(one, f"{before}{key}.")
            elif typing.get_origin(one) is Literal:
                yield f"{before}{key}", tuple(map(str, typing.get_args(one)))
            elif one in (int, float):
                yield f"{before}{key}", about.partition(",")[0]
            elif one is bool:
                yield f"{before}{key}", ("true", "false")


@cache
def keys_of_clusters() -> Keys:
    """Return every key of a cluster file that has a number, a quantity or one of some words."""
    found: Keys = {}
    for key, kind in _keys(ClusterSpec):  # variants have words and numbers of their own
        before = found.get(key, ())
        found[key] = tuple(sorted({*before, *kind})) if isinstance(kind, tuple) and isinstance(before, tuple) else kind
    return found


def value_of(kind: tuple[str, ...] | str, rng: random.Random) -> str:
    """Draw a value, often at the edge of what there is."""
    if isinstance(kind, tuple):
        return rng.choice(kind)
    number = rng.choice(_NUMBERS if rng.random() < 0.4 else _PLAIN)
    return f"{number} {rng.choice(_UNITS[kind])}" if kind in _UNITS else number


def command(rng: random.Random) -> str:
    """Return the words of a command line."""
    keys = keys_of_clusters()
    words = [
        *("--topology", rng.choice(_CLUSTERS), "--model", rng.choice(_MODELS), "--gpus", rng.choice(("1", "2", "8", "16", "32"))),
        *("--micro-batch", rng.choice(("1", "2")), "--sequence-length", rng.choice(("128", "512")), "--json"),
    ]  # fmt: skip
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.6:
            key = rng.choice(list(keys))
            words += ["--set", f"{key}={value_of(keys[key], rng)}"]
            continue
        one = rng.choice([*SETTINGS.values(), *_OF_SCENARIOS])
        many = ("0", "1", "2", "4", "8", "3", "1000000", "1000000000000000", "0.5", "1e-9")
        known = _WORDS_OF_SCENARIOS.get(one.key, ()) or tuple(one.words)
        choices = (*known, "foo") if one.kind is str else ("true", "false") if one.kind is bool else many
        words += ["--set", f"{one.key}={rng.choice(choices)}"]
    if rng.random() < 0.2:
        words += [rng.choice(("--iterations", "--tokens")), rng.choice(("1", "1000", "1000000"))]
        words += rng.choice(
            (
                [],
                ["--mtbf", "1 h/gpu"],
                ["--mtbf", "1 s/job"],
                ["--checkpoint-interval", "1 steps"],
                ["--histories", "3"],
            )
        )
    if rng.random() < 0.2:
        words += rng.choice((["--slow-rank", "0=1e6"], ["--slow-link", "node0.nic=1e9"], ["--network", "alpha-beta"]))
    return json.dumps(words)


def check(answer: dict[str, Any]) -> None:
    """Hold an answer to what any answer is: finite numbers, none below zero, parts that add up, an interval around the time."""

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for key, inner in node.items():
                walk(inner, f"{path}.{key}")
        elif isinstance(node, list):
            for inner in node:
                walk(inner, path)
        elif isinstance(node, int | float) and (node < 0 or not math.isfinite(node)):
            raise AssertionError(f"{path} is {node}")

    walk({key: value for key, value in answer.items() if key not in ("provenance", "network_trouble")}, "")
    time_s, parts = answer["iteration_time_s"], answer["breakdown"]
    if not time_s > 0:
        raise AssertionError(f"an iteration takes {time_s} s")
    summed = sum(value for key, value in parts.items() if key != "overlapped_communication_s")
    if abs(summed - time_s) > 1e-6 * time_s:
        raise AssertionError(f"parts add up to {summed}, not {time_s}")
    if not answer["confidence"]["low_s"] <= time_s <= answer["confidence"]["high_s"]:
        raise AssertionError(f"{time_s} is not within its interval {answer['confidence']}")
    if answer["mfu"] > 1.5 or answer["hfu"] > 1.5:
        raise AssertionError(f"mfu {answer['mfu']}, hfu {answer['hfu']}")
