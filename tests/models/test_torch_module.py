from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.models.aten import Call, TensorSize, kernels_of
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape
from simulator.models.recording import Recorder
from simulator.models.torch_module import record_module

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, functional = torch.nn, torch.nn.functional


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        parts = self.qkv(self.norm_1(x)).split(hidden, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + functional.dropout(self.output(y.reshape(x.shape)), 0.1)
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Net(nn.Module):
    def __init__(self, vocab=1000, hidden=64, heads=4, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), labels.flatten())


class Split(Net):
    """The same with free numbers of heads, as modules are written for ``parallelize_module``, and a plan of names."""

    tp_plan: ClassVar = {
        "blocks.*.qkv": "colwise", "blocks.*.output": "rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise",
        "embedding": "embedding_rowwise", "head": "colwise_gather_output", "norm": "replicated_with_grad_allreduce",
    }  # fmt: skip

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.forward = partial(self.run, block)

    @staticmethod
    def run(block, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, -1, 16).transpose(1, 2) for t in block.qkv(block.norm_1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + block.output(y.reshape(batch, length, -1))
        return x + block.down(functional.gelu(block.up(block.norm_2(x))))


IDS = torch.zeros(2, 32, dtype=torch.long)


@pytest.fixture(scope="module")
def model():
    return record_module(Net(), IDS, IDS, dtype="bf16")


def points(layer):
    return [
        [(i.operator, i.n_bytes) for i in items if isinstance(i, CommunicationPoint)]
        for items in (layer.forward, layer.backward)
    ]


@pytest.mark.parametrize("tp", [2, 4])
def test_a_plan_of_names_splits_a_module(tp):
    """``ColwiseParallel`` reduces the gradient of its input, ``RowwiseParallel`` its output; every split matrix is a share on each rank,
    the rest is whole (pytorch, ``torch/distributed/tensor/parallel/style.py``)."""
    whole, part = (record_module(Split(), IDS, IDS, dtype="bf16", tp=degree) for degree in (1, tp))
    n_bytes, block = 2 * 2 * 32 * 64, (4 + 8) * 64**2
    assert [points(layer) for layer in part.layers[1:4]] == [[[("g", n_bytes)] * 2, [("f", n_bytes)] * 2]] * 3
    assert points(part.layers[0])[0] == [("embedding", n_bytes)]
    summed = [("f", 2 * 64)] * 2  # of the last norm, whose gradients transformers sums parameter by parameter
    assert points(part.layers[4]) == [[("logits", 2 * 2 * 32 * 1000)], [("f", n_bytes), *summed]]
    wide = 3 * 64 + 4 * 64  # biases of the products that open a region
    assert whole.layers[1].n_parameters - part.layers[1].n_parameters == (block + wide) * (tp - 1) // tp
    assert whole.layers[0].n_parameters == tp * part.layers[0].n_parameters == 64_000  # the table, tied to the head
    assert [layer.n_forward_flops for layer in part.layers[1:]] == [
        layer.n_forward_flops / tp for layer in whole.layers[1:]
    ]
    assert not any(points(layer) != [[], []] for layer in whole.layers)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"blocks.*.qkv": "packed_rows"}, "tp_plan: blocks...qkv: 'packed_rows' is not supported"),
        ({"blocks.*.qkv": object()}, "tp_plan: blocks...qkv: object is not supported"),
        ({"blocks.*.norm_1": "colwise"}, "blocks.0.norm_1 is a LayerNorm"),
        ({"layers.*.qkv": "colwise"}, "no submodule is named layers"),
        ({"embedding": "rowwise"}, "tp=3 does not divide embedding.weight"),
        (["qkv"], "tp_plan is a list"),
    ],
)
def test_plans_that_cannot_be_followed(plan, text):
    module = Split()
    module.tp_plan = plan
    with pytest.raises(SimulatorError, match=text):
        record_module(module, IDS, IDS, tp=3)


def test_styles_of_torch_are_known_by_their_class():
    module, style = Split(), type("RowwiseParallel", (), {})
    module.tp_plan = {"embedding": style()}
    assert points(record_module(module, IDS, IDS, dtype="bf16", tp=2).layers[0])[0] == [("embedding", 2 * 2 * 32 * 64)]


def test_a_length_that_the_ranks_do_not_divide_is_refused():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, RowwiseParallel

    module = Split()
    layouts = {"input_layouts": (Replicate(),), "desired_input_layouts": (Shard(1),)}
    for plan in ({"blocks.0": PrepareModuleInput(**layouts)}, {"embedding": RowwiseParallel(output_layouts=Shard(1))}):
        module.tp_plan = plan
        with pytest.raises(
            InfeasiblePlanError, match=r"tp=4 does not divide dimension 1 of \(2, 30, 64\) in submodule"
        ):
            record_module(module, IDS[:, :30], IDS[:, :30], tp=4)


def test_layouts_that_no_style_takes_are_refused():
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, PrepareModuleOutput

    module, wrong = Split(), PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    wrong.desired_input_layouts = (Replicate(), Replicate())
    partial_wanted = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Partial())
    for style, text in ((wrong, "1 layouts, and 2 desired ones"), (partial_wanted, r"Partial\(\) is not supported")):
        module.tp_plan = {"blocks.0": style}
        with pytest.raises(ConfigError, match=text):
            record_module(module, IDS, IDS, tp=2)


def test_a_loss_of_split_logits_is_refused_by_name():
    """With whole tensors ``loss_parallel`` changes nothing, and leaves torch as it was."""
    from torch.distributed.tensor.parallel import loss, loss_parallel

    class Parallel(Split):
        def forward(self, ids, labels):
            with loss_parallel():
                return super().forward(ids, labels)

    before = loss._enable_custom_loss_ops
    assert record_module(Parallel(), IDS, IDS, dtype="bf16").layers
    with pytest.raises(InfeasiblePlanError, match="tp=2: loss_parallel is not modelled") as found:
        record_module(Parallel(), IDS, IDS, dtype="bf16", tp=2)
    assert "output_layouts=Replicate()" in found.value.hint
    assert loss._enable_custom_loss_ops is before


def test_layouts_of_torchs_styles_count():
    """torch 2.13, ``tensor/parallel/style.py``: a table's rows take whole indices, a column-parallel head may give whole outputs."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    module = Split()

    def of(plan):
        module.tp_plan = plan
        return [points(layer) for layer in record_module(module, IDS, IDS, dtype="bf16", tp=2).layers]

    rows = RowwiseParallel(input_layouts=Replicate())
    assert of({"embedding": rows}) == of({"embedding": "embedding_rowwise"})
    (head,) = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)][-1:]
    assert of({head: ColwiseParallel()}) == of({head: "colwise"})
    assert of({head: ColwiseParallel(output_layouts=Replicate())}) == of({head: "colwise_rep"}) != of({head: "colwise"})


def test_the_tree_gives_the_layers(model):
    assert len(model.layers) == 5
    assert len({id(layer) for layer in model.layers[1:4]}) == 1
    assert model.n_parameters == sum(p.numel() for p in Net().parameters())
    assert sum(layer.n_parameters for layer in model.layers) == model.n_parameters
    assert model.tied_embedding


def test_operators_of_a_block(model):
    names = [k.name for k in model.layers[1].forward]
    assert names == [
        "layer_norm", "addmm", "flash_attention", "addmm", "dropout", "add",
        "layer_norm", "addmm", "gelu", "addmm", "add",
    ]  # fmt: skip
    passes = [k.kernel_pass for k in model.layers[1].backward if isinstance(k, GemmShape)]
    assert sorted(passes) == ["dgrad"] * 4 + ["wgrad"] * 4


def test_flops_and_saved_bytes(model):
    tokens, hidden, length, vocab = 64, 64, 32, 1000
    block = model.layers[1]
    products = sum(k.n_flops for k in block.forward if isinstance(k, GemmShape))
    assert products == 24 * tokens * hidden**2
    (flash,) = [k for k in block.forward if isinstance(k, AttentionShape)]
    assert flash.n_flops == 2 * tokens * length * hidden  # causal: half
    head = [k for k in model.layers[-1].forward if isinstance(k, GemmShape)]
    assert sum(k.n_flops for k in head) == 2 * tokens * hidden * vocab
    # inputs of norms, products, gelu; q, k, v and output; two statistics per norm; mask; log-sum-exp
    saved = tokens * hidden * (2 * 2 + 2 * 2 + 8 + 8 + 6 + 2 + 1) + tokens * 2 * 4 * 2
    assert block.saved_bytes == pytest.approx(saved + 4 * tokens * 4, rel=0.01)
    assert model.layers[-1].saved_bytes > 4 * tokens * vocab


def test_eager_attention_is_taken_apart():
    model = record_module(Net(), IDS, IDS, attention="eager")
    assert any(k.name == "bmm" for k in model.layers[1].forward)
    assert not any(isinstance(k, AttentionShape) for k in model.layers[1].forward)


def test_the_module_is_left_as_it_was():
    net = Net()
    record_module(net, IDS, IDS)
    parameter = next(net.parameters())
    assert parameter.device.type == "cpu" and parameter.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert net(IDS, IDS).isfinite()


def test_convolutions():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2))
    model = record_module(net, torch.zeros(2, 3, 16, 16))
    shapes = [k for layer in model.layers for k in layer.forward if isinstance(k, GemmShape)]
    assert [(k.m, k.n, k.k) for k in shapes] == [(512, 8, 27), (98, 4, 72)]
    back = [k.kernel_pass for layer in model.layers for k in layer.backward if isinstance(k, GemmShape)]
    assert sorted(back) == ["dgrad", "wgrad", "wgrad"]  # the image needs no gradient


@pytest.mark.parametrize("arguments", [(8, 4, 4, 2, 1), (8, 8, 3, 1, 1), (8, 8, 2, 2, 0)])
def test_transposed_convolutions_count_what_torch_counts(arguments):
    """Forward and both gradients, against PyTorch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(*arguments))
    image = torch.zeros(2, 3, 9, 9)
    with FlopCounterMode(display=False) as counter:
        net(image).sum().backward()
    model = record_module(net, image)
    items = [k for layer in model.layers for k in (*layer.forward, *layer.backward) if isinstance(k, GemmShape)]
    assert sum(k.n_flops for k in items) == counter.get_total_flops()


def test_groups_of_a_transposed_convolution():
    """Each of 162 pixels of 8 channels goes to 2 channels at 9 taps; forward and both gradients are alike."""
    model = record_module(nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, 2), torch.zeros(2, 8, 9, 9, requires_grad=True))
    items = [k for layer in model.layers for k in (*layer.forward, *layer.backward) if isinstance(k, GemmShape)]
    assert {k.n_flops for k in items} == {2.0 * 162 * 8 * 2 * 9}


def test_control_flow_on_data_is_explained():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x)
            return y if y.sum().item() > 0 else -y

    with pytest.raises(ConfigError, match="control flow depends on data in submodule 'inner'"):
        record_module(Branch(), torch.zeros(2, 4))


def test_a_module_without_gradient():
    with pytest.raises(ConfigError, match="nothing that depends on its parameters"):
        record_module(nn.Identity(), torch.zeros(2, 4))


def test_unknown_dtype():
    with pytest.raises(ConfigError, match="dtype='int3' is unknown"):
        record_module(nn.Linear(2, 2), torch.zeros(2, 2), dtype="int3")


def test_torch_is_not_imported_with_the_package():
    code = "import sys, simulator.models.torch_module; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_torch_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="PyTorch is not installed"):
        record_module(object())


def test_gathers_read_what_they_return():
    table = TensorSize(shape=(1000, 64), dtype="bf16", n_bytes=128_000, is_parameter=True)
    rows = TensorSize(shape=(2, 8, 64), dtype="bf16", n_bytes=2048)
    ids = TensorSize(shape=(2, 8), dtype="int64", n_bytes=128)
    call = Call(name="embedding", inputs=(table, ids), outputs=(rows,))
    (kernel,) = kernels_of(call, is_backward=False, weight_shapes=frozenset())
    assert kernel.read_bytes == kernel.written_bytes == 2048


class Layouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 32)

    def forward(self, x):
        y = self.linear(x)  # [2, 16, 32]
        heads = y.view(2, 16, 4, 8).transpose(1, 2)
        table = torch.ones(16, 8, dtype=y.dtype, device=y.device)
        y = (heads * table).transpose(1, 2) * y.view(2, 16, 4, 8)  # four dimensions, then two
        return (y.float() + y).sum()


def test_layouts_and_types_of_elementwise_operands():
    model = record_module(Layouts(), torch.zeros(2, 16, 8), dtype="bf16")
    found = [(k.name, k.access) for layer in model.layers for k in layer.forward if k.name in ("mul", "cast", "add")]
    assert found == [("mul", "strided"), ("mul", "vector"), ("cast", "widen"), ("add", "mixed")]


class Powers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return functional.softmax(torch.tanh(y) ** 3, -1)


def test_autocast_widens_what_the_gpu_widens():
    model = record_module(Powers(), torch.zeros(4, 8), dtype="fp32", autocast="bf16", loss=lambda y: y.sum())
    kernels = [k for layer in model.layers for k in layer.forward]
    dtypes = {k.name: k.dtype for k in kernels if k.name in ("addmm", "tanh", "pow", "softmax")}
    assert dtypes == {"addmm": "bf16", "tanh": "bf16", "pow": "fp32", "softmax": "fp32"}


class Checkpointed(nn.Module):
    def __init__(self, reuses):
        super().__init__()
        self.reuses = reuses
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3))

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.reuses else block(x))
        return x


def test_checkpoints_of_the_module_run_again_in_backward():
    with torch.device("meta"):
        modules = Checkpointed(reuses=True), Checkpointed(reuses=False)
    again, whole = (record_module(m, torch.zeros(8, 128, 64), dtype="bf16") for m in modules)
    blocks, kept = ([layer for layer in model.layers if layer.n_parameters] for model in (again, whole))
    for block, plain in zip(blocks, kept, strict=True):
        assert [k.name for k in block.recompute] == ["addmm", "gelu"]  # and stops: the last product saves its input
        assert block.forward == plain.forward and not plain.recompute
        assert sorted(k.name for k in block.backward) == sorted(k.name for k in plain.backward)
        assert block.saved_bytes == 0 < plain.saved_bytes
    assert again.model_flops_per_sequence == whole.model_flops_per_sequence


def test_operators_in_place():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True))
    model = record_module(module, torch.zeros(4, 8))
    assert sum(isinstance(k, GemmShape) for layer in model.layers for k in layer.backward) == 3


def test_recurrent_layers_are_counted_step_by_step():
    module = nn.LSTM(32, 64, batch_first=True)
    model = record_module(module, torch.zeros(4, 16, 32))
    flops = sum(k.n_flops for layer in model.layers for k in layer.forward)
    assert flops == 2 * 4 * 16 * 4 * 64 * (32 + 64)
    assert all(p.device.type == "cpu" for p in module._flat_weights)


def test_a_shape_that_depends_on_data_is_explained():
    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)[x[:, 0] > 0]

    with pytest.raises(ConfigError, match="a shape depends on data in submodule 'inner'") as error:
        record_module(Picks(), torch.zeros(2, 4))
    assert "equal share" in error.value.hint


class Cast(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device, self.layer = device, nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return self.layer(x)


def test_autocast_of_the_module_is_the_gpus():
    x = torch.zeros(4, 8)
    on_gpu, on_cpu = (record_module(Cast(device), x) for device in ("cuda", "cpu"))
    assert [layer.forward for layer in on_gpu.layers] == [layer.forward for layer in on_cpu.layers]
    products = [item for item in on_gpu.layers[0].forward if isinstance(item, GemmShape)]
    assert products and all(item.dtype == "bf16" for item in products)


class Unfused(Block):
    def forward(self, x):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return super().forward(x)


@pytest.mark.parametrize(("kind", "n_kernels"), [(Block, 1), (Unfused, 0)])
def test_the_backend_of_attention_is_the_modules_choice(kind, n_kernels):
    model = record_module(kind(64, 4), torch.zeros(2, 16, 64))
    kernels = [item for layer in model.layers for item in layer.forward]
    assert sum(isinstance(item, AttentionShape) for item in kernels) == n_kernels


class Experts(nn.Module):
    """Weights ``[experts, ...]`` for tokens sorted by expert, of which ``counts`` says how many each has."""

    def __init__(self, hidden=64, width=128, n_experts=8):
        super().__init__()
        self.up = nn.Parameter(torch.empty(n_experts, hidden, width))
        self.down = nn.Parameter(torch.empty(n_experts, width, hidden))

    def forward(self, x, counts):
        ends = counts.cumsum(0).to(torch.int32)
        return functional.grouped_mm(
            functional.gelu(functional.grouped_mm(x, self.up, offs=ends)), self.down, offs=ends
        )


class Shares(Experts):
    """The same for an equal share of tokens each, ``[experts, rows, hidden]``."""

    def forward(self, x, gates):
        return torch.bmm(functional.gelu(torch.bmm(x, self.up)), self.down) * gates[..., None]


class Chosen(Experts):
    """The same for tokens and their experts ``[rows, top_k]``, as the modules of transformers take them."""

    num_experts = 0

    def __init__(self):
        super().__init__()
        self.num_experts = len(self.up)

    def forward(self, x, chosen):
        counts = torch.zeros(self.num_experts, dtype=torch.long)
        copies = super().forward(x.repeat_interleave(chosen.shape[1], 0), counts)
        return copies.unflatten(0, chosen.shape).sum(1)


class Mixture(nn.Module):
    ep_plan: ClassVar = {"blocks.*.experts": "expert_parallel"}

    def __init__(self, kind, layers=2, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(nn.ModuleDict({"experts": kind(), "mix": nn.Linear(64, 64)}) for _ in range(layers))
        for block in self.blocks:
            block.forward = partial(self.run, block)

    def run(self, block, x):
        rows, experts = x.flatten(0, 1), block["experts"]
        copies = rows.repeat(self.top_k, 1)
        if type(experts) is Shares:
            y = experts(copies.view(8, -1, 64), copies.new_zeros(8, len(copies) // 8))
            y = torch.cat([y[index] for index in range(8)])
        elif type(experts) is Chosen:
            return x + experts(block["mix"](rows), torch.zeros(len(rows), self.top_k, dtype=torch.long)).view_as(x)
        else:
            y = experts(copies, torch.zeros(8, dtype=torch.long))
        return x + block["mix"](y.view(self.top_k, *x.shape).sum(0))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("ep", [2, 4])
@pytest.mark.parametrize("kind", [Experts, Shares, Chosen])
def test_marked_experts_are_shared_out(kind, ep):
    """torchtitan's ``ExpertParallel``: each rank has its share of the experts, and all its tokens' copies travel there and back, in both
    passes; with tokens spread evenly a rank computes as much as without."""
    whole, part = (record_module(Mixture(kind), IDS, dtype="bf16", ep=degree) for degree in (1, ep))
    n_bytes = 2 * 2 * 32 * 2 * 64  # two copies of 2 x 32 tokens of 64 elements in 16 bits
    found = [
        [i for i in way if isinstance(i, CommunicationPoint)]
        for way in (part.layers[1].forward, part.layers[1].backward)
    ]
    assert [[(i.operator, i.n_bytes, i.n_copies, i.n_tokens) for i in way] for way in found] == [
        [("dispatch", n_bytes, 2, 64), ("combine", n_bytes, 2, 64)],
        [("combine", n_bytes, 2, 64), ("dispatch", n_bytes, 2, 64)],
    ]
    assert not any(points(layer) != [[], []] for layer in whole.layers)
    experts = 2 * 8 * 64 * 128
    assert [model.layers[1].n_expert_parameters for model in (whole, part)] == [experts, experts // ep]
    assert part.layers[1].n_parameters - part.layers[1].n_expert_parameters == 64 * 64 + 64
    assert part.layers[1].n_forward_flops == whole.layers[1].n_forward_flops == 2 * 64 * (2 * 2 * 64 * 128 + 64 * 64)
    assert part.layers[1].saved_bytes == pytest.approx(whole.layers[1].saved_bytes, abs=8 * 4)  # ends of fewer experts
    products = [i for i in part.layers[1].forward if isinstance(i, GemmShape) and i.n == 128]
    assert [(i.batch, i.m) for i in products] == [(8 // ep, 16 * ep)]


@pytest.mark.parametrize("kind", [Experts, Shares, Chosen])
def test_a_busy_rank_computes_and_receives_more(kind):
    """With 1.5 times an even share the experts' FLOPs and what is dispatched and combined are 1.5 times as much, in both passes."""
    even, busy = (
        record_module(Mixture(kind), IDS, dtype="bf16", ep=2, expert_load=load).layers[1] for load in (1.0, 1.5)
    )
    mix = 2 * 64 * 64 * 64  # the layer behind the experts, for 64 tokens
    assert busy.n_forward_flops - mix == 1.5 * (even.n_forward_flops - mix)
    back = [sum(i.n_flops for i in layer.backward if isinstance(i, GemmShape)) - 2 * mix for layer in (even, busy)]
    assert back[1] == 1.5 * back[0] > 0
    for found, expected in zip(points(busy), points(even), strict=True):
        assert found == [(operator, 1.5 * n_bytes) for operator, n_bytes in expected] != []


def test_experts_split_over_tensor_parallel_ranks():
    """transformers' ``moe_tp_experts``: each rank has a part of every expert, and reduces the output, and backward the input's gradient."""
    module = Mixture(Experts)
    module.tp_plan = {
        "blocks.*.experts.up": "rowwise", "blocks.*.experts.down": "packed_colwise", "blocks.*.experts": "moe_tp_experts",
    }  # fmt: skip
    whole, part = (record_module(module, IDS, dtype="bf16", tp=degree) for degree in (1, 4))
    n_bytes = 2 * 2 * 2 * 32 * 64  # all copies of all tokens
    assert points(part.layers[1]) == [[("g", n_bytes)], [("f", n_bytes)]]
    assert part.layers[1].n_expert_parameters * 4 == whole.layers[1].n_expert_parameters
    products = [[i for i in m.layers[1].forward if getattr(i, "name", "") == "grouped_gemm"] for m in (whole, part)]
    assert [sum(i.n_flops for i in some) for some in products] == [2 * 128 * 2 * 64 * 128, 2 * 128 * 2 * 64 * 128 / 4]
    module.tp_plan = {"blocks.*.experts.up": "rowwise"}
    with pytest.raises(SimulatorError, match=r"tp=3 does not divide blocks\.0\.experts\.up"):
        record_module(module, IDS, dtype="bf16", tp=3)


def test_as_many_tokens_as_experts_are_no_shares():
    part = record_module(Mixture(Experts), IDS[:1, :4], dtype="bf16", ep=2)
    assert points(part.layers[1])[0] == [("dispatch", 2 * 8 * 64), ("combine", 2 * 8 * 64)]


def test_parameters_of_several_numbers_of_experts():
    module = Mixture(Experts)
    module.blocks[1]["experts"].down = nn.Parameter(torch.empty(4, 128, 64))
    with pytest.raises(SimulatorError, match=r"blocks\.1\.experts does not hold its experts"):
        record_module(module, IDS, dtype="bf16", ep=2)


def test_modules_of_experts_are_left_as_they_were():
    module = Mixture(Chosen)
    record_module(module, IDS, dtype="bf16", ep=4)
    assert [block["experts"].num_experts for block in module.blocks] == [8, 8]
    assert not module.blocks[0]["experts"]._forward_hooks and not module.blocks[0]["experts"]._forward_pre_hooks


def test_products_of_groups_are_products():
    """Every group has an equal share of the rows; both gradients of a product have as many FLOPs as it (torch's ``grouped_mm``)."""
    layers = record_module(Mixture(Experts, layers=1), IDS, dtype="bf16").layers
    items = [item for layer in layers for item in (*layer.forward, *layer.backward)]
    found = [i for i in items if isinstance(i, GemmShape) and i.name == "grouped_gemm"]
    up, down = {"m": 16, "n": 128, "k": 64}, {"m": 16, "n": 64, "k": 128}
    to_up, to_down = {"m": 64, "n": 128, "k": 16}, {"m": 128, "n": 64, "k": 16}
    expected = [
        ("forward", up),
        ("forward", down),
        ("dgrad", up),
        ("dgrad", down),
        ("wgrad", to_up),
        ("wgrad", to_down),
    ]
    assert {(i.kernel_pass, i.batch, i.m, i.n, i.k) for i in found} == {(word, 8, *s.values()) for word, s in expected}
    assert len(found) == 6


@pytest.mark.parametrize(
    ("plan", "ep", "text"),
    [
        ({"blocks.*.experts": "expert_parallel"}, 3, "ep=3 does not divide blocks.0.experts.up"),
        ({"blocks.*": "expert_parallel"}, 2, "blocks.0 does not hold its experts"),
        ({"blocks.*.mix": "expert_parallel"}, 3, "ep=3 does not divide blocks.0.mix.weight"),
        ({"blocks.*.experts": "ep_router"}, 2, "'ep_router' is not supported"),
        ({"mlp.experts": "ExpertParallel"}, 2, "ep_plan: no submodule is named mlp.experts"),
    ],
)
def test_experts_that_cannot_be_shared_out(plan, ep, text):
    module = Mixture(Experts)
    module.ep_plan = plan
    with pytest.raises(SimulatorError, match=text):
        record_module(module, IDS, dtype="bf16", ep=ep)


def test_a_sequence_is_split_inside_attention():
    """Ring attention (arXiv:2310.01889): a rank's queries meet all keys, whose keys and values of the whole sequence pass by."""
    whole, part = (
        record_module(Net(), IDS, IDS, dtype="bf16"),
        record_module(Net(), IDS[:, :8], IDS[:, :8], dtype="bf16", cp=4),
    )
    n_bytes = 2 * 2 * 2 * 32 * 64  # keys and values of 2 x 32 tokens of 64 elements in 16 bits
    assert points(part.layers[1]) == [[("context", n_bytes)]] * 2
    kernels = [[i for i in m.layers[1].forward if isinstance(i, AttentionShape)] for m in (whole, part)]
    assert [(i.seq_q, i.seq_k, i.causal) for way in kernels for i in way] == [(32, 32, True), (8, 32, True)]
    assert part.layers[1].n_forward_flops * 4 == whole.layers[1].n_forward_flops
    order = [
        [type(i) for i in way if isinstance(i, AttentionShape | CommunicationPoint)]
        for way in (part.layers[1].forward, part.layers[1].backward)
    ]
    assert order == [[CommunicationPoint, AttentionShape], [AttentionShape, CommunicationPoint]]


@pytest.mark.parametrize(("repeats", "n_heads"), [(False, 2), (True, 4)])
def test_shared_heads_are_exchanged_as_attention_is_given_them(repeats, n_heads):
    """Torch's ``context_parallel`` shards what attention gets: two heads with ``enable_gqa``, four where the module has repeated them."""

    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(64, 64), nn.Linear(64, 32)

        def forward(self, x):
            q, k = (f(x).unflatten(-1, (-1, 16)).transpose(1, 2) for f in (self.q, self.kv))
            k = k.repeat_interleave(2, dim=1) if repeats else k
            return functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=not repeats)

    (layer,) = record_module(Grouped(), torch.zeros(2, 8, 64), dtype="bf16", cp=4).layers
    assert points(layer) == [[("context", 2 * 2 * n_heads * 32 * 16 * 2)]] * 2


def test_masks_are_not_split_with_a_sequence():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(64, 64)

        def forward(self, x):
            q = self.mix(x).unsqueeze(1)
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=x.new_zeros(x.shape[1], x.shape[1]))

    x = torch.zeros(2, 16, 64)
    assert record_module(Masked(), x).layers
    with pytest.raises(SimulatorError, match="cp=2: attention in submodule 'mix' has a mask"):
        record_module(Masked(), x, cp=2)


def test_more_ranks_than_heads_say_so():
    module = Split()  # four heads of 16
    with pytest.raises(ConfigError, match="is invalid for input of size") as found:
        record_module(module, IDS, IDS, dtype="bf16", tp=8)
    assert "every rank needs one" in str(found.value)


def test_the_peak_is_of_what_is_alive_at_once():
    """Bytes alive after each step, by hand: 4, 4 + 6, 6 + 3 (4 has died), 6 + 3 + 2, and after a parameter's gradient is left out 6 + 3."""
    dead: set[int] = set()

    def storage(key, n_bytes):
        held = SimpleNamespace(_cdata=key, nbytes=lambda: n_bytes)
        return SimpleNamespace(untyped_storage=lambda: held)

    recorder = Recorder(lambda one: SimpleNamespace(expired=lambda: one._cdata in dead), {}, frozenset())
    peaks = []
    for key, n_bytes, dies in ((1, 4, None), (2, 6, 1), (3, 3, None), (4, 2, None)):
        made = storage(key, n_bytes)
        recorder.follow([made])
        peaks.append(recorder.current.forward_peak_bytes)
        dead |= {dies}
    assert peaks == [4, 10, 10, 11]
    recorder.ignore(made)
    recorder.is_backward = True
    recorder.follow([])
    assert recorder.current.backward_peak_bytes == 9
