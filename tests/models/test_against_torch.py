"""The kernel lists and saved bytes of hf-eager against the same mathematics run by PyTorch."""

from __future__ import annotations

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec, rename
from simulator.models.layer import CommunicationPoint, GemmShape

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, functional = torch.nn, torch.nn.functional

BATCH, LENGTH, HIDDEN, HEADS, FFN, VOCAB, LAYERS = 2, 32, 64, 4, 96, 97, 2


class Conv1D(nn.Module):
    """GPT-2's linear layer: weight stored as [in, out]."""

    def __init__(self, columns, rows):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, rows)), nn.Parameter(torch.zeros(rows))

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


def split_heads(x, heads):
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


class Gpt2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.output = Conv1D(HIDDEN, 3 * HIDDEN), Conv1D(HIDDEN, HIDDEN)
        self.up, self.down = Conv1D(HIDDEN, FFN), Conv1D(FFN, HIDDEN)

    def attention(self, x):
        q, k, v = (split_heads(t, HEADS) for t in self.qkv(x).split(HIDDEN, dim=2))
        scores = torch.matmul(q, k.transpose(-1, -2)) * (HIDDEN // HEADS) ** -0.5
        mask = torch.triu(torch.full((LENGTH, LENGTH), -1e9, dtype=x.dtype, device=x.device), 1)
        weights = functional.softmax(scores + mask, dim=-1)
        return self.output(torch.matmul(weights, v).transpose(1, 2).reshape(x.shape))

    def mlp(self, x):
        u = self.up(x)
        inner = 0.7978845608 * (u + 0.044715 * torch.pow(u, 3.0))
        return self.down(0.5 * u * (1.0 + torch.tanh(inner)))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Gpt2(nn.Module):
    def __init__(self, layers=LAYERS):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.ModuleList(Gpt2Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions(torch.arange(LENGTH, device=ids.device)[None])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = RmsNorm(), RmsNorm()
        kv = HIDDEN // 2
        self.q, self.k, self.v = (nn.Linear(HIDDEN, n, bias=False) for n in (HIDDEN, kv, kv))
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def attention(self, x, cos, sin):
        def rotate(t):
            first, second = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-second, first), dim=-1) * sin

        q, k, v = split_heads(self.q(x), HEADS), split_heads(self.k(x), 2), split_heads(self.v(x), 2)
        k, v = (torch.repeat_interleave(t, 2, dim=1) for t in (rotate(k), v))
        scores = torch.matmul(rotate(q), k.transpose(-1, -2)) * (HIDDEN // HEADS) ** -0.5
        mask = torch.triu(torch.full((LENGTH, LENGTH), -1e9, dtype=x.dtype, device=x.device), 1)
        weights = functional.softmax(scores + mask, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.output(torch.matmul(weights, v).transpose(1, 2).reshape(x.shape))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers=LAYERS):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(layers))
        self.norm, self.head = RmsNorm(), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        cos = torch.ones(1, 1, LENGTH, HIDDEN // HEADS, dtype=x.dtype, device=x.device)
        for block in self.blocks:
            x = block(x, cos, cos.clone())
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


SIZES = {
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": HEADS,
    "head_dim": 16,
    "ffn_hidden": FFN,
    "vocab": VOCAB,
}
SPECS = {
    "gpt2": rename(find_spec("gpt2"), "gpt2", kv_heads=4, max_positions=LENGTH, dropout=0.0, **SIZES),
    "llama": rename(find_spec("llama3-8b"), "llama", kv_heads=2, **SIZES),
}
MODULES = {"gpt2": Gpt2, "llama": Llama}


def built(name, precision="bf16"):
    return build_model(
        SPECS[name],
        micro_batch=BATCH,
        sequence_length=LENGTH,
        precision=precision,
        kernels="hf-eager",
        attention="eager",
    )


def arguments(device="cpu"):
    return [torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device) for _ in range(2)]


@pytest.mark.parametrize("name", MODULES)
def test_parameters(name):
    assert sum(p.numel() for p in MODULES[name]().parameters()) == SPECS[name].n_parameters


@pytest.mark.parametrize("name", MODULES)
def test_flops_on_the_meta_device(name):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module = MODULES[name]()
    with FlopCounterMode(display=False) as forward:
        loss = module(*arguments("meta"))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model = built(name)
    assert sum(layer.n_forward_flops for layer in model.layers) == forward.get_total_flops()
    launched = [k for layer in model.layers for k in layer.backward if isinstance(k, GemmShape)]
    assert sum(k.n_flops for k in launched) == backward.get_total_flops()
    assert model.model_flops_per_sequence * BATCH == forward.get_total_flops() + backward.get_total_flops()


def saved_by_autograd(module):
    """Bytes that autograd holds after forward, parameters excluded, shared storages once."""
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(*arguments())
    assert loss.requires_grad
    return sum(n_bytes for n_bytes, _ in held.values())


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_saved_bytes(name, precision, dtype):
    measured = saved_by_autograd(MODULES[name]().to(dtype))
    predicted = sum(layer.saved_bytes for layer in built(name, precision).layers)
    assert predicted == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("name", MODULES)
def test_saved_bytes_of_one_layer(name):
    """A second layer costs what the difference of one and two layers says: no edge effects."""
    totals = [saved_by_autograd(MODULES[name](layers).to(torch.bfloat16)) for layers in (1, 2)]
    assert built(name).layers[1].saved_bytes == pytest.approx(totals[1] - totals[0], rel=0.01)


@pytest.mark.parametrize("name", MODULES)
def test_operators_are_those_that_autograd_launches(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    module = MODULES[name]().to(torch.bfloat16)
    with Count() as forward:
        loss = module(*arguments())
    with Count() as backward:
        loss.backward()
    model = built(name)
    for names, items in (
        (forward.names, [k for layer in model.layers for k in layer.forward]),
        (backward.names, [k for layer in model.layers for k in layer.backward]),
    ):
        ours = [k.name for k in items if not isinstance(k, CommunicationPoint)]
        products = sum(n in ("mm", "addmm", "bmm") for n in names)
        assert sum(isinstance(k, GemmShape) for k in items) == products
        for op, kernel in (("tanh", "tanh"), ("native_layer_norm", "layer_norm"), ("_softmax", "softmax")):
            theirs = sum(n.removesuffix("_backward") == op for n in names)
            theirs += sum(n == "_softmax_backward_data" for n in names) if op == "_softmax" else 0
            assert ours.count(kernel) == theirs
