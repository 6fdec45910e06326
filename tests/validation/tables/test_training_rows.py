"""What rows' metrics mean, against the publications that define them."""

import pytest

from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from validation.tables.training_rows import hardware_tflops


def _counted(model: str, **plan) -> tuple[float, float]:
    """Return FLOPs per GPU that the metric counts in an iteration, and the seconds of it."""
    result = simulate(
        Scenario(
            topology="dgx-h100",
            model=model,
            plan=ParallelPlan(gpus=8, dp=8, micro_batch=1, global_batch=8, precision="bf16", sharding="zero3", **plan),
        )
    )
    seconds = result.metrics.iteration_time_s
    return hardware_tflops(result) * 1e12 * seconds, seconds


@pytest.mark.parametrize(("recompute", "passes"), [("none", 3.0), ("full", 4.0)])
def test_gpt_is_counted_by_equation_3_of_narayanan_et_al(recompute, passes):
    spec, length = find_spec("gpt-1.3b"), 2048
    flops, _ = _counted("gpt-1.3b", recompute=recompute, sequence_length=length)
    layers = 24 * length * spec.layers * spec.hidden**2 * (1 + length / (6 * spec.hidden))
    assert flops == pytest.approx(passes * layers + 6 * length * spec.hidden * spec.vocab, rel=1e-3)


def test_llama_is_counted_by_its_own_products():
    # Megatron-LM, num_floating_point_operations: 12 B s l h^2 ((1 + groups / heads + s / h) + 1.5 ffn / h + V / 2 l h)
    length, layers, hidden, ffn, vocab = 8192, 32, 4096, 14336, 128256
    flops, _ = _counted("llama3-8b", sequence_length=length)
    per_layer = 1 + 8 / 32 + length / hidden + 1.5 * ffn / hidden + vocab / (2 * layers * hidden)
    assert flops == pytest.approx(12 * length * layers * hidden**2 * per_layer, rel=1e-3)
