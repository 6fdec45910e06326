"""What a container's release changes in the kernels and exchanges of a layer."""

from collections import Counter
from dataclasses import replace

import pytest

from simulator.costs import ModelCosts
from simulator.models.catalog import find_spec
from simulator.models.layer import CommunicationPoint, GemmShape, PointwiseShape
from simulator.parallel.rank_model import model_for
from simulator.plan import FRAMEWORKS, ParallelPlan
from simulator.program.op import Kernel
from simulator.scenario import Scenario
from simulator.topology import load_topology


def block(model, *, release, topology="dgx-h100", n_blocks=2, **settings):
    """Return the last block of a short model as NVIDIA's recipes of a release run it."""
    plan = ParallelPlan(
        **{"sequence_length": 1024, "sequence_parallel": settings.get("tp", 1) > 1} | settings, framework="megatron-bridge",
        micro_batch=1, release=release,
    )  # fmt: skip
    spec = find_spec(model)
    spec = spec if spec.pattern else replace(spec, layers=n_blocks)
    return model_for(spec, plan, load_topology(topology, 8).device(0)).layers[n_blocks]


def beside(layer):
    """How many kernels each gather of backward runs beside."""
    points = [item for item in layer.backward if isinstance(item, CommunicationPoint)]
    return [point.overlaps for point in points if (point.operator, point.kernel_pass) == ("f", "forward")]


@pytest.mark.parametrize("precision, asynchronous_tp, waits", [
    ("fp8", False, True), ("fp8_current", False, True), ("fp8", True, False), ("fp8_block", False, False), ("bf16", False, False),
])  # fmt: skip
def test_inputs_with_one_scale_were_waited_for_in_early_releases_of_transformer_engine_2(
    precision, asynchronous_tp, waits
):
    """Transformer Engine, pull request 1620: what NCCL had gathered was transposed at once; with user buffers it was not."""
    settings = {"tp": 4, "precision": precision, "asynchronous_tp": asynchronous_tp}
    for release in ("24.07", "25.02", "25.07", None):
        assert beside(block("llama3-8b", release=release, **settings)) == [1, 1]
    assert beside(block("llama3-8b", release="25.04.01", **settings)) == ([0, 0] if waits else [1, 1])


def test_squared_relus_of_nemo_2_run_as_pytorch_does():
    """The operations that PyTorch dispatches for ``pow(relu(x), 2)``, and its gradient; one kernel each way before and after."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorded(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.run = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            n_tensors = 1 + sum(isinstance(given, torch.Tensor) for given in args)
            self.run.append((func.overloadpacket.__name__, n_tensors))
            return func(*args, **(kwargs or {}))

    with Recorded() as recorded:
        x = torch.ones(4, requires_grad=True)
        torch.pow(torch.nn.functional.relu(x), 2).backward(x.detach())
    run = [(name, n_tensors) for name, n_tensors in recorded.run if name not in ("detach", "ones")]
    assert [name for name, _ in run] == ["relu", "pow", "pow", "mul", "mul", "threshold_backward"]
    assert torch.equal(torch.pow(x.detach(), 1), x.detach()), "the first power copies"

    width = find_spec("nemotron4-15b").ffn_hidden
    unfused = block("nemotron4-15b", release="25.04", precision="fp8")
    n_inside = 1024 * width
    kernels = [i for i in (*unfused.forward, *unfused.backward) if isinstance(i, PointwiseShape)]
    inside = [i for i in kernels if i.n_elements == n_inside and i.dtype == "bf16"]
    assert [i.name for i in inside] == ["relu", "pow", "copy", "mul", "mul", "relu"]
    assert [i.n_bytes for i in inside] == [2 * n_inside * n_tensors for _, n_tensors in run]
    for release in ("24.07", "25.11", None):
        fused = block("nemotron4-15b", release=release, precision="fp8")
        names = Counter(item.name for item in (*fused.forward, *fused.backward) if isinstance(item, PointwiseShape))
        assert names["relu2"] == 2 and not names["pow"]


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_rows_of_narrow_experts_were_copied_to_be_padded(precision):
    """Two copies of all routed tokens each way, of which each reads and writes 16 bits an element."""
    spec = find_spec("mixtral-8x7b")
    n_routed = 1024 * spec.top_k * spec.hidden

    def copied_bytes(release):
        layer = block("mixtral-8x7b", release=release, precision=precision, dp=8, ep=8)
        kernels = [item for item in (*layer.forward, *layer.backward) if isinstance(item, PointwiseShape)]
        return sum(kernel.n_bytes for kernel in kernels if kernel.name == "cat")

    more = copied_bytes("25.04") - copied_bytes("25.07")
    assert more == (4 * 2 * 2 * n_routed if precision == "fp8" else 0)
    assert copied_bytes("24.07") == copied_bytes("25.07") == copied_bytes(None)
    assert copied_bytes("24.12") == copied_bytes("25.02") == copied_bytes("25.04")


def before_first_product(layer, name):
    """Return what runs on a block's input before its first product, as the name and bytes of each kernel."""
    found = []
    for item in layer.forward:
        if isinstance(item, GemmShape):
            assert item.name == name
            return found
        if isinstance(item, PointwiseShape):
            found.append((item.name, item.n_bytes))
    raise AssertionError("no product")


N = 1024 * 4096
ROWS = 4 * 1024  # a statistic of each token


@pytest.mark.parametrize("settings, kernels", [
    # 16 bits in, eight out; on Hopper the other layout for the gradient of the weight
    ({"precision": "fp8"}, [("rms_norm", 3 * N + ROWS), ("transpose", 2 * N)]),
    ({"precision": "fp8", "topology": "dgx-b200"}, [("rms_norm", 3 * N + ROWS)]),
    ({"precision": "fp8", "tp": 2, "sequence_parallel": False}, [("rms_norm", 3 * N + ROWS), ("transpose", 2 * N)]),
    # the scale is found by a read of its own, or by the norm
    ({"precision": "fp8_current", "release": "25.04"}, [("rms_norm", 4 * N + ROWS), ("quantize", 6 * N)]),
    ({"precision": "fp8_current", "release": "25.11"}, [("rms_norm", 4 * N + ROWS), ("quantize", 4 * N)]),
    # adapters read 16 bits, frozen weights have no gradient; norms that run again stand by themselves
    ({"precision": "fp8", "lora_rank": 8, "lora_targets": "qkv"}, [("rms_norm", 4 * N + ROWS), ("quantize", 3 * N)]),
    ({"precision": "fp8", "lora_rank": 8, "lora_targets": "fc1"}, [("rms_norm", 3 * N + ROWS)]),
    ({"precision": "fp8", "recompute": "selective", "recompute_modules": "layernorm"},
     [("rms_norm", 4 * N + ROWS), ("quantize", 4 * N)]),
    ({"precision": "bf16"}, [("rms_norm", 4 * N + ROWS)]),
])  # fmt: skip
def test_norms_of_modules_narrow_what_they_make(settings, kernels):
    """Transformer Engine, ``layernorm_linear.py``: the norm writes eight bits where the scale is known before."""
    assert before_first_product(block("llama3-8b", **({"release": None} | settings)), "qkv") == kernels


def norm_bytes(layer):
    """Return the bytes per element of a layer's norms forward, rounded, in order."""
    norms = [item for item in layer.forward if isinstance(item, PointwiseShape) and item.name == "rms_norm"]
    return [round(norm.n_bytes / norm.n_elements) for norm in norms]


@pytest.mark.parametrize("model, expected", [
    ("deepseek-v2-lite", [4, 3, 4]),  # before two products of latent attention; of the latent; before the router
    ("deepseek-v3", [4, 3, 3, 3]),  # both latents, and a dense MLP
    ("deepseek-v4-flash", [4]),  # compressed attention takes its input in 16 bits, too
    ("qwen3-next-80b-a3b", [3]),  # a gated delta net begins with one product
])  # fmt: skip
def test_norms_before_one_product_alone_narrow_what_they_make(model, expected):
    layer = block(model, release=None, precision="fp8", dp=8, ep=8)
    assert norm_bytes(layer)[: len(expected)] == expected


def test_rows_longer_than_a_block_are_read_twice_in_16_bits():
    """Of 8,192 elements norms read each twice: 2 + 2 bytes, and write 2 or 1."""
    cluster = load_topology("dgx-h100", 8)
    costs = ModelCosts(cluster, Scenario(topology="dgx-h100", model="llama3-70b", plan=ParallelPlan(gpus=1)))
    seconds = {}
    for precision in ("fp8", "bf16"):
        layer = block("llama3-70b", release=None, precision=precision, sequence_length=65536)
        norm = next(item for item in layer.forward if isinstance(item, PointwiseShape) and item.name == "rms_norm")
        seconds[precision] = costs.kernel_ps(Kernel(name="norm", phase="forward", shape=norm), 0)
    assert seconds["fp8"] / seconds["bf16"] == pytest.approx(5 / 6, rel=0.02)


def test_fused_operations_of_an_mlp_leave_the_norm_of_attention_alone():
    for fused in (False, True):
        layer = block("llama3-8b", release=None, precision="fp8", fused_operations=fused)
        assert before_first_product(layer, "qkv") == [("rms_norm", 3 * N + ROWS), ("transpose", 2 * N)]


def test_a_gate_takes_half_of_what_the_first_product_makes_whatever_the_release():
    spec = replace(find_spec("llama3-8b"), layers=2, activation="relu2")
    device = load_topology("dgx-h100", 8).device(0)
    rows = set()
    for release in ("25.04", "25.11"):
        plan = ParallelPlan(framework="megatron-bridge", micro_batch=1, sequence_length=1024, release=release)
        layer = model_for(spec, plan, device).layers[1]
        rows |= {item.m for item in layer.forward if isinstance(item, GemmShape) and item.name == "mlp_down"}
    assert rows == {1024}


def test_frameworks_without_transformer_engine_know_no_release_of_it():
    for name in ("torch-fsdp2", "deepspeed", "hf-eager"):
        old = FRAMEWORKS[name].at("25.04")
        assert not any((old.waits_for_gathers, old.repacks_experts, old.has_unfused_relu2))


@pytest.mark.parametrize("precision", ["nvfp4", "mxfp8", "fp8_current"])
@pytest.mark.parametrize("release, is_apart", [("25.11", True), ("26.02.01", True), ("26.04", False), (None, False)])
def test_columns_behind_a_hadamard_transform_were_read_for_themselves(precision, release, is_apart):
    """Transformer Engine, pull request 2555 (2.14): "high precision input only needs to be read once while without this fusion, ... twice".

    Of NVFP4 alone, and where columns are made: adapters' frozen products take rows.
    """
    for lora_rank, extra in ((None, 1), (16, 0)):
        settings = {"topology": "gb200-nvl72", "precision": precision, "lora_rank": lora_rank}
        found, newest = (
            [item for item in (*layer.forward, *layer.backward) if item.name.startswith(("quantize", "dynamic"))]
            for layer in (block("llama3-8b", release=one, **settings) for one in (release, "26.08"))
        )
        more = [a.read_bytes - b.read_bytes for a, b in zip(found, newest, strict=True)]
        is_more = is_apart and precision == "nvfp4"
        assert more == [extra * is_more * 2 * item.n_elements for item in newest]
        assert newest


@pytest.mark.parametrize(("release", "in_fp32"), [("24.07", True), ("25.02", True), ("25.04", False), (None, False)])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_loss_took_logits_in_fp32_until_recipes_took_transformer_engines(release, in_fp32, tp):
    """``fused_cross_entropy.py`` of Megatron-Core, by the compiled function, and what it keeps; then one pass each way over 16 bits."""
    plan = ParallelPlan(
        framework="megatron-bridge",
        micro_batch=1,
        sequence_length=1024,
        release=release,
        tp=tp,
        sequence_parallel=tp > 1,
    )
    spec = replace(find_spec("llama3-8b"), layers=1)
    model = model_for(spec, plan, load_topology("dgx-h100", 8).device(0))
    head = model.layers[-1]
    n_logits = 1024 * spec.vocab // tp
    forward, backward = (
        sum(
            item.read_bytes + item.written_bytes
            for item in items
            if isinstance(item, PointwiseShape) and "norm" not in item.name
        )
        for items in (head.forward, head.backward)
    )
    # max: 2 + 4 bytes, exponentials and their sum: 4 + 4, quotient: 4 + 4; gradient in place and in 16 bits: 4 + 4 + 2
    expected = ((6 + 8 + 8), 10) if in_fp32 else (2, 4)
    assert (forward / n_logits, backward / n_logits) == pytest.approx(expected, rel=0.01)
    two_activations = 1.01 * 2 * 2 * 1024 * spec.hidden  # and the statistics of rows
    assert head.saved_bytes == pytest.approx(n_logits * (4 if in_fp32 else 2), abs=two_activations)
