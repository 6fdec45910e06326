"""The families' mathematics written in plain PyTorch, as transformers writes it, small or large."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from simulator.models.catalog import find_spec, rename

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, functional = torch.nn, torch.nn.functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a model and of its batch; the same fields mean the same in every family."""

    batch: int = 2
    length: int = 32
    hidden: int = 64
    heads: int = 4
    ffn: int = 96
    vocab: int = 97
    layers: int = 2
    experts: int = 4
    top_k: int = 2
    fused: bool = False

    @property
    def kv_heads(self):
        return self.heads // 2

    @property
    def head_dim(self):
        return self.hidden // self.heads


def attend(size, q, k, v, bias=None, *, causal=True, wide=False):
    """Scaled dot products of ``[batch, heads, length, head_dim]``, as one kernel or each by itself."""
    if size.fused and bias is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=k.shape[1] != q.shape[1])
    if k.shape[1] != q.shape[1]:
        k, v = (torch.repeat_interleave(t, q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    scores = torch.matmul(q, k.transpose(-1, -2)) * size.head_dim**-0.5
    scores = scores if bias is None else scores + bias
    if causal:
        scores = scores + torch.triu(torch.full((size.length,) * 2, -1e9, dtype=q.dtype, device=q.device), 1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32 if wide else None).to(q.dtype)
    return torch.matmul(weights, v)


def split_heads(x, heads):
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(2)


def loss_of(logits, labels, *, wide=True):
    logits = logits.float() if wide else logits
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Conv1D(nn.Module):
    """GPT-2's linear layer: weight stored as [in, out]."""

    def __init__(self, columns, rows):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, rows)), nn.Parameter(torch.zeros(rows))

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Gpt2Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, h = size, size.hidden
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.output = Conv1D(h, 3 * h), Conv1D(h, h)
        self.up, self.down = Conv1D(h, size.ffn), Conv1D(size.ffn, h)

    def attention(self, x):
        q, k, v = (split_heads(t, self.size.heads) for t in self.qkv(x).split(self.size.hidden, dim=2))
        return self.output(join_heads(attend(self.size, q, k, v)))

    def mlp(self, x):
        u = self.up(x)
        inner = 0.7978845608 * (u + 0.044715 * torch.pow(u, 3.0))
        return self.down(0.5 * u * (1.0 + torch.tanh(inner)))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Gpt2(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, h = size, size.hidden
        self.tokens, self.positions = nn.Embedding(size.vocab, h), nn.Embedding(size.length, h)
        self.blocks = nn.ModuleList(Gpt2Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(h), nn.Linear(h, size.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions(torch.arange(self.size.length, device=ids.device)[None])
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(self.norm(x)), labels)


class MptBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, h = size, size.hidden
        self.norm_1, self.norm_2 = nn.LayerNorm(h, bias=False), nn.LayerNorm(h, bias=False)
        self.qkv, self.output = nn.Linear(h, 3 * h, bias=False), nn.Linear(h, h, bias=False)
        self.up, self.down = nn.Linear(h, size.ffn, bias=False), nn.Linear(size.ffn, h, bias=False)

    def forward(self, x):
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        q, k, v = (split_heads(t, self.size.heads) for t in parts)
        x = x + self.output(join_heads(attend(self.size, q, k, v, wide=True)))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Mpt(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.blocks = nn.ModuleList(MptBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden, bias=False)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return loss_of(functional.linear(self.norm(x), self.tokens.weight), labels, wide=False)


class MegatronBlock(nn.Module):
    """GPT's block with its core attention in a function of its own, which may be checkpointed."""

    def __init__(self, size):
        super().__init__()
        self.size, h = size, size.hidden
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.output = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, size.ffn), nn.Linear(size.ffn, h)

    def core_attention(self, q, k, v):
        scores = torch.bmm(q, k.transpose(1, 2)) * self.size.head_dim**-0.5
        return torch.bmm(functional.softmax(scores, dim=-1), v)

    def forward(self, x):
        size = self.size
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        q, k, v = (split_heads(t, size.heads).reshape(-1, size.length, size.head_dim) for t in parts)
        context = self.core_attention(q, k, v).view(size.batch, size.heads, size.length, -1)
        x = x + self.output(join_heads(context))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Megatron(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.blocks = nn.ModuleList(MegatronBlock(size) for _ in range(size.layers))

    def forward(self, ids, labels):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return x.float().sum()


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class GatedMlp(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gate, self.up = (nn.Linear(size.hidden, size.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Experts that get equally many tokens, whatever the router says: shapes without data."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.up = nn.Parameter(torch.randn(size.experts, size.hidden, 2 * size.ffn))
        self.down = nn.Parameter(torch.randn(size.experts, size.ffn, size.hidden))

    def forward(self, x):
        size, flat = self.size, x.view(-1, x.shape[-1])
        gates = functional.softmax(self.router(flat), dim=-1, dtype=torch.float32)[:, : size.top_k].to(x.dtype)
        routed = flat.repeat(size.top_k, 1).view(size.experts, -1, size.hidden)
        gate, up = torch.bmm(routed, self.up).chunk(2, dim=-1)
        done = torch.bmm(functional.silu(gate) * up, self.down).view(-1, size.top_k, size.hidden)
        return (done * gates[..., None]).sum(1).view(x.shape)


class LlamaBlock(nn.Module):
    def __init__(self, size, mlp=GatedMlp):
        super().__init__()
        self.size, h = size, size.hidden
        self.norm_1, self.norm_2 = RmsNorm(h), RmsNorm(h)
        kv = size.kv_heads * size.head_dim
        self.q, self.k, self.v = (nn.Linear(h, n, bias=False) for n in (h, kv, kv))
        self.output = nn.Linear(h, h, bias=False)
        self.mlp = mlp(size)

    def attention(self, x, cos, sin):
        def rotate(t):
            first, second = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-second, first), dim=-1) * sin

        size = self.size
        q, k, v = split_heads(self.q(x), size.heads), *(split_heads(f(x), size.kv_heads) for f in (self.k, self.v))
        return self.output(join_heads(attend(size, rotate(q), rotate(k), v, wide=True)))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    mlp = GatedMlp

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(size, self.mlp) for _ in range(size.layers))
        self.norm, self.head = RmsNorm(size.hidden), nn.Linear(size.hidden, size.vocab, bias=False)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        cos = torch.ones(1, 1, self.size.length, self.size.head_dim, dtype=x.dtype, device=x.device)
        sin = cos.clone()
        for block in self.blocks:
            x = block(x, cos, sin)
        return loss_of(self.head(self.norm(x)), labels)


class Mixtral(Llama):
    mlp = Experts


class BertBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, h = size, size.hidden
        self.q, self.k, self.v, self.output = (nn.Linear(h, h) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.up, self.down = nn.Linear(h, size.ffn), nn.Linear(size.ffn, h)

    def forward(self, x):
        q, k, v = (split_heads(f(x), self.size.heads) for f in (self.q, self.k, self.v))
        x = self.norm_1(self.output(join_heads(attend(self.size, q, k, v, causal=False))) + x)
        return self.norm_2(self.down(functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    def __init__(self, size):
        super().__init__()
        h = size.hidden
        self.tokens, self.positions, self.types = (nn.Embedding(n, h) for n in (size.vocab, size.length, 2))
        self.norm, self.pooler = nn.LayerNorm(h), nn.Linear(h, h)
        self.blocks = nn.ModuleList(BertBlock(size) for _ in range(size.layers))
        self.transform, self.transform_norm = nn.Linear(h, h), nn.LayerNorm(h)
        self.bias = nn.Parameter(torch.zeros(size.vocab))

    def forward(self, ids, labels):
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.norm(self.tokens(ids) + self.types(torch.zeros_like(ids)) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        return loss_of(functional.linear(x, self.tokens.weight, self.bias), labels, wide=False)


class T5Attention(nn.Module):
    def __init__(self, size, *, causal):
        super().__init__()
        self.size, self.causal, h = size, causal, size.hidden
        self.q, self.k, self.v, self.output = (nn.Linear(h, h, bias=False) for _ in range(4))

    def forward(self, x, encoded, bias):
        q, k, v = (split_heads(f(t), self.size.heads) for f, t in ((self.q, x), (self.k, encoded), (self.v, encoded)))
        return self.output(join_heads(attend(self.size, q, k, v, bias, causal=self.causal)))


class T5Block(nn.Module):
    def __init__(self, size, *, decoder):
        super().__init__()
        h = size.hidden
        self.own, self.norm_1 = T5Attention(size, causal=decoder), RmsNorm(h)
        self.cross, self.norm_2 = (T5Attention(size, causal=False), RmsNorm(h)) if decoder else (None, None)
        self.up, self.down, self.norm_3 = (
            nn.Linear(h, size.ffn, bias=False),
            nn.Linear(size.ffn, h, bias=False),
            RmsNorm(h),
        )

    def forward(self, x, encoded, bias):
        normed = self.norm_1(x)
        x = x + self.own(normed, normed, bias)
        x = x if self.cross is None else x + self.cross(self.norm_2(x), encoded, None)
        return x + self.down(functional.relu(self.up(self.norm_3(x))))


class T5(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.encoder, self.decoder = (
            nn.ModuleList(T5Block(size, decoder=decoder) for _ in range(size.layers)) for decoder in (False, True)
        )
        self.biases = nn.ModuleList(nn.Embedding(32, size.heads) for _ in range(2))
        self.norm_1, self.norm_2 = RmsNorm(size.hidden), RmsNorm(size.hidden)

    def stack(self, blocks, table, ids, encoded):
        places = torch.zeros(ids.shape[1], ids.shape[1], dtype=torch.long, device=ids.device)
        bias = table(places).permute(2, 0, 1)[None]
        x = self.tokens(ids)
        for block in blocks:
            x = block(x, encoded, bias)
        return x

    def forward(self, ids, labels):
        encoded = self.norm_1(self.stack(self.encoder, self.biases[0], ids, None))
        x = self.norm_2(self.stack(self.decoder, self.biases[1], labels, encoded)) * 0.5
        return loss_of(functional.linear(x, self.tokens.weight), labels, wide=False)


#: family -> module, catalogue model whose choices it makes
FAMILIES = {
    "gpt2": (Gpt2, "gpt2"),
    "mpt": (Mpt, "mpt-125m"),
    "llama": (Llama, "llama3-8b"),
    "mixtral": (Mixtral, "mixtral-8x7b"),
    "bert": (Bert, "bert-base"),
    "t5": (T5, "t5-small"),
}


def spec_of(name, size):
    """Return the built-in family's model of this size."""
    spec = find_spec(FAMILIES[name][1])
    kv_heads = size.kv_heads if name in ("llama", "mixtral") else size.heads
    experts = {"n_experts": size.experts, "top_k": size.top_k, "expert_hidden": size.ffn} if spec.n_experts else {}
    return rename(
        spec, name, layers=size.layers, hidden=size.hidden, heads=size.heads, kv_heads=kv_heads, head_dim=size.head_dim,
        ffn_hidden=size.ffn, vocab=size.vocab, dropout=0.0, max_positions=size.length,
        encoder_layers=size.layers if spec.encoder_layers else 0, **experts,
    )  # fmt: skip


def module_of(name, size):
    """Return the module of a family."""
    return FAMILIES[name][0](size)


def arguments(size, device="cpu"):
    """Token ids and labels, ``[batch, length]``."""
    return [torch.zeros(size.batch, size.length, dtype=torch.long, device=device) for _ in range(2)]


def with_layers(size, layers):
    """The same with other layers."""
    return replace(size, layers=layers)
