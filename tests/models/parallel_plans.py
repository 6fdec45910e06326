"""Small modules with plans of torch's tensor-parallel styles, and a process that runs them over gloo and notes every collective.

Run as ``python -m tests.models.parallel_plans RANK RANKS PORT``, it prints the collectives of each module of :data:`CASES` as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HIDDEN, WORDS, HEAD, IDS = 64, 96, 128, 8, (2, 32)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, HEAD).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def torchtitans(*, is_local=False):
    """The plan that torchtitan's ``parallelize_llama`` makes with sequence parallelism, without its parallel loss."""
    gathers = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),), "use_local_output": is_local}
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for layer in ("layers.0", "layers.1"):
        for part, norm, columns, row in (
            ("attention", "attention_norm", "wq wk wv", "wo"),
            ("feed_forward", "ffn_norm", "w1 w3", "w2"),
        ):
            plan[f"{layer}.{norm}"] = SequenceParallel()
            plan[f"{layer}.{part}"] = PrepareModuleInput(**gathers)
            plan |= {f"{layer}.{part}.{one}": ColwiseParallel() for one in columns.split()}
            plan[f"{layer}.{part}.{row}"] = RowwiseParallel(output_layouts=Shard(1))
    return plan


class Mlp(nn.Module):
    """Two products between others that are whole on every rank, so that each input has a gradient."""

    def __init__(self):
        super().__init__()
        self.table, self.first = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.last(self.inner(self.first(self.table(tokens))))


_WHOLE = {"input_layouts": (Replicate(),), "desired_input_layouts": (Shard(1),), "use_local_output": True}
_PAIR = {"inner.0": ColwiseParallel(), "inner.2": RowwiseParallel()}
#: name -> module, its plan; plans are as ``parallelize_module`` takes them
CASES = {
    "torchtitan": (Llama, torchtitans()),
    "torchtitan, local inputs": (Llama, torchtitans(is_local=True)),
    "a pair": (Mlp, _PAIR),
    "whole input of rows": (Mlp, {"inner.2": RowwiseParallel(input_layouts=Replicate())}),
    "columns gathered": (Mlp, {"inner.0": ColwiseParallel(output_layouts=Replicate())}),
    "columns of a table": (Mlp, {"table": ColwiseParallel(output_layouts=Replicate())}),
    "columns by tokens": (Mlp, {"inner.0": ColwiseParallel(output_layouts=Shard(1)), "inner": PrepareModuleOutput(
        output_layouts=Shard(1), desired_output_layouts=Replicate())}),
    "tokens inside": (Mlp, {"inner": PrepareModuleInputOutput(
        **{"use_local_input" if key == "use_local_output" else key: value for key, value in _WHOLE.items()},
        output_layouts=Shard(1), desired_output_layouts=Replicate())}),
    "from tokens to width": (Mlp, {
        "inner": PrepareModuleInput(**_WHOLE),
        "inner.1": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(2),), use_local_output=True),
        "inner.2": PrepareModuleInput(input_layouts=(Shard(2),), desired_input_layouts=(Replicate(),), use_local_output=True),
    }),
}  # fmt: skip


class Collectives(TorchDispatchMode):
    """Notes kind and bytes of each functional collective: the whole of what is gathered, scattered or reduced."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind is DTensor for kind in types):
            return NotImplemented
        name = str(func).split(".")[1]
        kinds = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
                 "all_reduce": "all_reduce", "all_to_all_single": "all_to_all"}  # fmt: skip
        if "c10d_functional" in str(func) and name in kinds:
            n_bytes = args[0].numel() * args[0].element_size()
            times = torch.distributed.get_world_size() if name.startswith("all_gather") else 1
            self.found.append((kinds[name], n_bytes * times))
        return func(*args, **(kwargs or {}))


def main(rank: str, n_ranks: str, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE=n_ranks)
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (int(n_ranks),))
    answer = {}
    for name, (make, plan) in CASES.items():
        torch.manual_seed(0)
        module = parallelize_module(make(), mesh, plan)
        with Collectives() as forward:
            output = module(torch.zeros(IDS, dtype=torch.long))
        with Collectives() as backward:
            output.float().mean().backward()
        answer[name] = [forward.found, backward.found]
    if rank == "0":
        sys.stdout.write(json.dumps(answer))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
