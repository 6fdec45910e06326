"""Low-rank adapters beside frozen weights: what is trained, launched, held and reduced, by hand from the shapes."""

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.flops import forward_flops_per_token, model_flops_per_sequence
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

LLAMA = find_spec("llama2-7b")
HIDDEN, FFN, LAYERS, TOKENS, RANK = 4096, 11008, 32, 4096, 16
#: elements of both factors per projection
ADAPTERS = {
    "qkv": RANK * (HIDDEN + 3 * HIDDEN), "proj": RANK * 2 * HIDDEN, "fc1": RANK * (HIDDEN + 2 * FFN), "fc2": RANK * (FFN + HIDDEN)
}  # fmt: skip


def model(targets=(), **settings):
    rank = RANK if targets else 0
    return build_model(
        LLAMA,
        RankSetting(
            micro_batch=1, sequence_length=TOKENS, kernels="fused", lora_rank=rank, lora_targets=targets, **settings
        ),
    )


def products(layer):
    return [item for item in layer.backward if isinstance(item, GemmShape)]


@pytest.mark.parametrize("targets", [("qkv",), ("qkv", "proj"), ("qkv", "proj", "fc1", "fc2")])
@pytest.mark.parametrize("tp", [1, 2])
def test_only_adapters_are_trained(targets, tp):
    layers = model(targets, tp=tp, sequence_parallel=tp > 1).layers
    trained = sum(layer.n_trained_parameters for layer in layers)
    if tp == 1:
        assert trained == LAYERS * sum(ADAPTERS[name] for name in targets)
    whole = sum(layer.n_parameters for layer in model(tp=tp, sequence_parallel=tp > 1).layers)
    assert sum(layer.n_parameters for layer in layers) == whole + trained
    assert layers[0].n_trained_parameters == layers[-1].n_trained_parameters == 0


@pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8"])
def test_frozen_weights_have_no_gradient_products(precision):
    """Two products a frozen weight, forward and input gradient, where training it takes three; every factor has all three."""
    block = model(("qkv", "fc2"), precision=precision).layers[1]
    weights = [item.name for item in products(block) if item.kernel_pass == "wgrad"]
    assert sorted(weights) == ["lora_a", "lora_a", "lora_b", "lora_b"]
    frozen = [item for item in products(block) if item.kernel_pass == "dgrad" and not item.name.startswith("lora")]
    forward = [item for item in block.forward if isinstance(item, GemmShape) and not item.name.startswith("lora")]
    assert sum(item.n_flops for item in frozen) == sum(item.n_flops for item in forward)


def test_what_an_adapter_takes_is_gathered_in_16_bits():
    """Two bytes an element in front of QKV, one in front of the MLP without an adapter, whose product alone takes it."""
    block = model(("qkv",), precision="fp8", tp=2, sequence_parallel=True).layers[1]
    gathers = [i.n_bytes for i in block.forward if isinstance(i, CommunicationPoint) and i.operator == "f"]
    assert gathers == [2 * TOKENS * HIDDEN, TOKENS * HIDDEN]


def test_peft_keeps_adapters_in_fp32_and_casts_around_them():
    """huggingface/peft, ``LoraLayer``: x.to(fp32), two fp32 products, fp32 scale and sum, and back to 16 bits. Beside a scale of 4 bytes
    an element and a sum of 6 around 16-bit factors, those around fp32 factors move 6 + 8 + 10 + 6."""
    blocks = [model(("proj",), adapters_fp32=fp32).layers[1] for fp32 in (False, True)]
    moved = [sum(i.read_bytes + i.written_bytes for i in b.forward if isinstance(i, PointwiseShape)) for b in blocks]
    assert moved[1] - moved[0] == TOKENS * HIDDEN * (6 + 8 + 10 + 6 - 4 - 6)
    factors = [{i.dtype for i in b.forward if isinstance(i, GemmShape) and i.name.startswith("lora")} for b in blocks]
    assert factors == [{"bf16"}, {"fp32"}]


@pytest.mark.parametrize(
    ("framework", "release", "is_slower"),
    [("hf-eager", None, True), ("hf-eager", "25.01", True), ("hf-eager", "23.12", False), ("deepspeed", None, False)],
)
def test_adapters_are_in_fp32_since_peft_0_11(framework, release, is_slower):
    """huggingface/peft, release 0.11.0 of May 2024: ``autocast_adapter_dtype``; DeepSpeed's engine casts the whole module to 16 bits."""
    settings = {"framework": framework, "release": release, "precision": "bf16", "micro_batch": 1, "lora_rank": RANK}
    plan = ParallelPlan(**settings, sequence_length=1024)
    assert plan.release_facts.adapters_fp32 == is_slower
    dtypes = {
        item.dtype
        for layer in model_for(LLAMA, plan).layers
        for item in layer.forward
        if isinstance(item, GemmShape) and item.name == "lora_a"
    }
    assert dtypes == ({"fp32"} if is_slower else {"bf16"})


def test_inputs_of_frozen_products_are_not_held():
    """Without adapters on the MLP, neither its normed input nor the product of gate and up is needed again."""
    saved = {targets: model(targets).layers[1].saved_bytes for targets in ((), ("qkv", "proj"))}
    low = 2 * TOKENS * 2 * RANK  # what the first factors return
    assert saved[()] - saved["qkv", "proj"] == 2 * TOKENS * (HIDDEN + FFN) - low


def test_model_flops_count_four_a_weight_and_token():
    """2 forward and 2 for the input gradient; of scores 2 and 4 as ever."""
    scores = LAYERS * 4.0 * HIDDEN * TOKENS
    weights = forward_flops_per_token(LLAMA, TOKENS) - scores
    assert model_flops_per_sequence(LLAMA, TOKENS, is_frozen=True) == pytest.approx(TOKENS * (2 * weights + 3 * scores))


@pytest.fixture(scope="module")
def answers():
    found = {}
    for rank in (None, RANK):
        for sharding, framework in (("zero1", "megatron-core"), ("zero3", "fsdp2")):
            plan = ParallelPlan(gpus=8, micro_batch=1, global_batch=8, framework=framework, sharding=sharding,
                                lora_rank=rank, lora_targets="qkv" if rank else None)  # fmt: skip
            found[rank, sharding] = simulate(Scenario(topology="dgx-h100", model="llama2-7b", plan=plan))
    return found


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_only_their_gradients_are_reduced(answers, sharding):
    """Of one merged projection, or of the three of Hugging Face's module, each with factors of its own."""
    result = answers[RANK, sharding]
    n_elements = LAYERS * (ADAPTERS["qkv"] if sharding == "zero1" else 3 * RANK * 2 * HIDDEN)
    reduced = [row for row in result.metrics.communication if row["collective"] == "reduce_scatter"]
    assert sum(row["bytes"] for row in reduced) == n_elements * result.plan.reduced_bytes
    whole = [row for row in answers[None, sharding].metrics.communication if row["collective"] == "reduce_scatter"]
    assert sum(row["bytes"] for row in whole) == LLAMA.n_parameters * result.plan.reduced_bytes


def test_states_are_those_of_the_adapters(answers):
    memory, trained = answers[RANK, "zero1"].memory.by_category, LAYERS * ADAPTERS["qkv"]
    assert memory["parameters"] == 2 * (LLAMA.n_parameters + trained)
    assert memory["gradients"] == 4 * trained and memory["optimizer"] == 12 * trained // 8


def test_it_is_faster_and_smaller(answers):
    for sharding in ("zero1", "zero3"):
        tuned, trained = answers[RANK, sharding], answers[None, sharding]
        assert 0.5 < tuned.metrics.iteration_time_s / trained.metrics.iteration_time_s < 0.85
        assert tuned.memory.peak_bytes < trained.memory.peak_bytes


def test_attention_is_as_ever():
    kernels = [item for item in model(("qkv",)).layers[1].backward if isinstance(item, AttentionShape)]
    assert kernels == [item for item in model().layers[1].backward if isinstance(item, AttentionShape)]
