"""GPT-2 in plain PyTorch, of any size, in a form that every strategy can take apart.

One block after another in a ``Sequential``: DDP wraps it whole, FSDP2 shards its parts, DTensor splits its
projections, a pipeline cuts it anywhere.

References
----------
Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSize:
    """Sizes of a GPT-2."""

    name: str  #: For people.
    #: Blocks, width, attention heads, rows of the token table.
    layers: int
    hidden: int
    heads: int
    vocab: int = 50257
    seq_len: int = 1024  #: Tokens per sequence, also the rows of the position table.

    @property
    def n_parameters(self) -> int:
        """Parameters; the head shares the token table.

        Examples
        --------
        >>> GptSize(name="gpt2", layers=12, hidden=768, heads=12).n_parameters
        124439808
        """
        h = self.hidden
        return self.vocab * h + self.seq_len * h + self.layers * (12 * h * h + 13 * h) + 2 * h


#: name -> size; the tiny ones are for CPUs and tests
SIZES: dict[str, GptSize] = {
    size.name: size
    for size in (
        GptSize(name="gpt2-micro", layers=2, hidden=64, heads=4, vocab=512, seq_len=64),
        GptSize(name="gpt2-tiny", layers=4, hidden=256, heads=4, vocab=2048, seq_len=128),
        GptSize(name="gpt2", layers=12, hidden=768, heads=12),
        GptSize(name="gpt2-medium", layers=24, hidden=1024, heads=16),
        GptSize(name="gpt2-large", layers=36, hidden=1280, heads=20),
        GptSize(name="gpt2-xl", layers=48, hidden=1600, heads=25),
    )
}


class Embedding(nn.Module):
    """Token and position tables: ``[batch, seq]`` to ``[batch, seq, hidden]``."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocab, size.hidden)
        self.position = nn.Embedding(size.seq_len, size.hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up tokens and add positions."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        result: torch.Tensor = self.token(tokens) + self.position(places)
        return result


class Block(nn.Module):
    """One transformer block: ``[batch, seq, hidden]`` to the same.

    Query, key and value have projections of their own, so that tensor parallelism can split them by heads.
    """

    def __init__(self, hidden: int, heads: int, n_shards: int = 1) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        width, inner = hidden // n_shards, 4 * hidden // n_shards
        self.norm1 = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, width)
        self.key = nn.Linear(hidden, width)
        self.value = nn.Linear(hidden, width)
        self.out = nn.Linear(width, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        return x.view(batch, seq, width // self.head_dim, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform every token."""
        normed = self.norm1(x)
        query, key, value = (self._heads(part(normed)) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return result


class Head(nn.Module):
    """Final norm and output projection: ``[batch, seq, hidden]`` to ``[batch, seq, vocab]``."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.hidden)
        self.project = nn.Linear(size.hidden, size.vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        result: torch.Tensor = self.project(self.norm(x))
        return result


def build_gpt(size: GptSize, *, tied: bool = True, n_shards: int = 1) -> nn.Sequential:
    """Return the whole model: embedding, blocks, head.

    With ``tied`` the head shares the token table; pipelines and fully sharded models keep them apart. ``n_shards``
    counts the ranks over which the projections of the blocks are split: 1 is the whole model, more one rank's part of
    it.
    """
    embedding, head = Embedding(size), Head(size)
    if tied:
        head.project.weight = embedding.token.weight
    return nn.Sequential(embedding, *(Block(size.hidden, size.heads, n_shards) for _ in range(size.layers)), head)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of ``[batch, seq, vocab]`` against ``[batch, seq]``."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
