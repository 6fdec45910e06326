"""What rows' metrics mean, against the publications that define them."""

import pytest

from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from validation.tables.cases import case_of
from validation.tables.reader import read_table
from validation.tables.training_rows import answer, hardware_tflops, scenario_of


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


@pytest.mark.parametrize(
    ("sequence_length", "over", "taken"), [(4096, 0.04, ""), (5120, 0.24, "recompute selective taken")]
)
def test_a_run_that_fitted_may_be_predicted_a_tenth_too_large(tmp_path, sequence_length, over, taken):
    """Where a row does not say what it recomputed: 4 % above the device's memory are within the error of peaks, 24 % are not."""
    header = "topology,gpus,model,metric,value,micro_batch,framework,sharding,seq_len"
    path = tmp_path / "rows.csv"
    path.write_text(
        f"{header}\ndgx-h100,8,llama3-8b,iteration_time_s,1,2,fsdp2,zero3,{sequence_length}\n", encoding="utf-8"
    )
    case = case_of(read_table(path)[0])[0]
    memory = simulate(scenario_of(case), spec=case.spec).memory
    assert memory.peak_bytes / memory.capacity_bytes - 1 == pytest.approx(over, abs=0.01)
    assert answer(case, memory_only=False).note.partition(";")[0].startswith(taken or "predicted not to fit")
