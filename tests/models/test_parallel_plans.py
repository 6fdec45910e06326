"""Collectives of recorded modules under torch's parallel styles, held against torch itself: real processes over gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from simulator.models.layer import CommunicationPoint  # noqa: E402
from simulator.models.torch_module import record_module  # noqa: E402
from tests.models.parallel_plans import CASES, IDS  # noqa: E402

KINDS = {"f": "all_reduce", "g": "all_reduce", "embedding": "all_reduce", "gather": "all_gather",
         "logits": "all_gather", "scatter": "reduce_scatter"}  # fmt: skip


def _on_processors(point, n_ranks):
    """Kind and bytes of a collective as processors run it: gloo's all-to-all is an all-gather (torch, ``shard_dim_alltoall``)."""
    if point.operator == "exchange":
        return "all_gather", point.n_bytes * n_ranks
    return KINDS[point.operator], point.n_bytes


def _run(n_ranks):
    """What rank 0 of real processes sends: by case, kind and bytes of each collective, of forward and of backward."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.models.parallel_plans", str(rank), str(n_ranks), port],
            cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(n_ranks)
    ]  # fmt: skip
    answers = [process.communicate(timeout=120) for process in processes]
    assert not any(process.returncode for process in processes), answers[0][1][-2000:]
    return {name: [[tuple(one) for one in part] for part in parts] for name, parts in json.loads(answers[0][0]).items()}


def test_collectives_are_those_of_torch(n_ranks=4):
    """Kind and bytes of every collective, forward in its order, for torchtitan's plan of Llama and for each style and layout alone."""
    real = _run(n_ranks)
    tokens = torch.zeros(IDS, dtype=torch.long)
    for name, (make, plan) in CASES.items():
        module = make()
        module.tp_plan = plan
        layers = record_module(module, tokens, tp=n_ranks).layers
        sent = {
            "forward": [item for layer in layers for item in layer.forward],
            "backward": [item for layer in layers for item in layer.backward],
        }
        forward, backward = (
            [_on_processors(item, n_ranks) for item in items if isinstance(item, CommunicationPoint)]
            for items in sent.values()
        )
        assert forward == real[name][0], name
        assert Counter(backward) == Counter(real[name][1]), name
