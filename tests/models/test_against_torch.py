"""The kernel lists and saved bytes of hf-eager against the same mathematics run by PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.kernels import RooflineKernels
from simulator.models.build import build_model
from simulator.models.catalog import rename
from simulator.models.layer import CommunicationPoint, GemmShape
from simulator.models.setting import RankSetting
from simulator.models.torch_module import record_module
from simulator.topology.device_file import load_device

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.models.reference_modules import FAMILIES, Megatron, Size, arguments, module_of, spec_of, with_layers  # noqa: E402

SMALL = Size()
#: large enough that kernels and not launches take the time
LARGE = Size(batch=4, length=1024, hidden=2048, heads=16, ffn=8192, vocab=32000, layers=2, experts=8)


#: families whose framework fuses loss or experts, which plain modules do not
FUSED = ("mpt", "mixtral")


def built(name, size=SMALL, precision="bf16", recompute="none", attention="eager"):
    return build_model(
        spec_of(name, size),
        RankSetting(
            micro_batch=size.batch,
            sequence_length=size.length,
            precision=precision,
            kernels="hf-eager",
            attention=attention,
            recompute=recompute,
        ),
    )


def items(model, phase):
    found = (item for layer in model.layers for item in getattr(layer, phase))
    return [item for item in found if not isinstance(item, CommunicationPoint)]


def head_parameters(name, size):
    """Of BERT's masked-word head, which the published counts leave out: a transformation, its norm, a bias."""
    return size.hidden**2 + 3 * size.hidden + size.vocab if name == "bert" else 0


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters(name):
    counted = spec_of(name, SMALL).n_parameters + head_parameters(name, SMALL)
    assert sum(p.numel() for p in module_of(name, SMALL).parameters()) == counted


@pytest.mark.parametrize("name", FAMILIES)
def test_flops_on_the_meta_device(name):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module = module_of(name, SMALL)
    with FlopCounterMode(display=False) as forward:
        loss = module(*arguments(SMALL, "meta"))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model = built(name)
    assert sum(layer.n_forward_flops for layer in model.layers) == forward.get_total_flops()
    assert sum(k.n_flops for k in items(model, "backward")) == backward.get_total_flops()
    total = forward.get_total_flops() + backward.get_total_flops()
    assert model.model_flops_per_sequence * SMALL.batch == total


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        (name, attention)
        for name in FAMILIES
        for attention in ("eager", "flash")
        if name not in FUSED and (name, attention) != ("t5", "flash")  # its bias keeps it from the fused kernel
    ],
)
def test_a_recorded_module_is_the_built_in_family(name, attention):
    size = replace(LARGE, fused=attention == "flash")
    with torch.device("meta"):
        module = module_of(name, size)
    recorded = record_module(module, *arguments(size, "meta"), dtype="bf16", attention=attention)
    family = built(name, size, attention=attention)
    device, kernels = load_device("a100-sxm4-80g"), RooflineKernels()
    seconds = {}
    for model in (recorded, family):
        seconds[id(model)] = sum(
            kernels.duration_s(k, device) for phase in ("forward", "backward") for k in items(model, phase)
        )
    for phase in ("forward", "backward"):
        flops = [sum(k.n_flops for k in items(model, phase)) for model in (recorded, family)]
        assert flops[0] == flops[1]
    assert seconds[id(recorded)] == pytest.approx(seconds[id(family)], rel=0.03)
    assert recorded.model_flops_per_sequence == family.model_flops_per_sequence
    assert recorded.n_parameters == family.n_parameters + head_parameters(name, size)


def saved_by_autograd(module, size):
    """Bytes that autograd holds after forward, parameters excluded, shared storages once."""
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(*arguments(size))
    assert loss.requires_grad
    return sum(n_bytes for n_bytes, _ in held.values())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_saved_bytes(name, precision, dtype):
    measured = saved_by_autograd(module_of(name, SMALL).to(dtype), SMALL)
    predicted = sum(layer.saved_bytes for layer in built(name, precision=precision).layers)
    assert predicted == pytest.approx(measured, rel=0.01)


def checkpointed(module):
    """Run every block under ``torch.utils.checkpoint``."""
    from torch.utils.checkpoint import checkpoint

    for block in module.blocks:
        forward = block.forward
        block.forward = lambda *args, f=forward: checkpoint(f, *args, use_reentrant=False)
    return module


@pytest.mark.parametrize("name", ["gpt2", "mpt", "llama", "bert"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_saved_bytes_of_one_layer(name, recompute):
    """A second layer costs what the difference of one and two layers says: no edge effects."""
    totals = []
    for layers in (1, 2):
        size = with_layers(SMALL, layers)
        module = module_of(name, size).to(torch.bfloat16)
        totals.append(saved_by_autograd(checkpointed(module) if recompute == "full" else module, size))
    predicted = built(name, recompute=recompute).layers[1].saved_bytes
    assert predicted == pytest.approx(totals[1] - totals[0], rel=0.01)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_saved_bytes_of_megatrons_layer(recompute):
    """``selective`` runs the core attention again, ``full`` the block."""
    from torch.utils.checkpoint import checkpoint

    totals = []
    for layers in (1, 2):
        size = with_layers(SMALL, layers)
        module = Megatron(size).to(torch.bfloat16)
        for block in module.blocks:
            core = block.core_attention
            if recompute == "selective":
                block.core_attention = lambda *args, f=core: checkpoint(f, *args, use_reentrant=False)
        totals.append(saved_by_autograd(checkpointed(module) if recompute == "full" else module, size))
    spec = rename(spec_of("gpt2", SMALL), "megatron", activation="gelu")
    model = build_model(
        spec,
        RankSetting(
            micro_batch=SMALL.batch,
            sequence_length=SMALL.length,
            kernels="megatron",
            attention="eager",
            recompute=recompute,
        ),
    )
    assert model.layers[1].saved_bytes == pytest.approx(totals[1] - totals[0], rel=0.01)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_operators_are_those_that_autograd_launches(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    module = module_of(name, SMALL).to(torch.bfloat16)
    with Count() as forward:
        loss = module(*arguments(SMALL))
    with Count() as backward:
        loss.backward()
    model = built(name)
    for names, kernels in ((forward.names, items(model, "forward")), (backward.names, items(model, "backward"))):
        ours = [k.name for k in kernels]
        products = sum(n in ("mm", "addmm", "bmm") for n in names)
        assert sum(isinstance(k, GemmShape) for k in kernels) == products
        for op, kernel in (("tanh", "tanh"), ("native_layer_norm", "layer_norm"), ("_softmax", "softmax")):
            theirs = sum(n.removesuffix("_backward") == op for n in names)
            theirs += sum(n == "_softmax_backward_data" for n in names) if op == "_softmax" else 0
            assert ours.count(kernel) == theirs
