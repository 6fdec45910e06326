"""Calibrating this machine, comparing, and explaining: ``simulate validate --here``."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import CalibrationError, ThresholdError
from simulator.models.layer import GemmShape, PointwiseShape

torch = pytest.importorskip("torch", reason="real jobs need PyTorch")

from simulator.analysis.side_by_side import Part  # noqa: E402
from validation.jobs.calibrated import fit_line  # noqa: E402
from validation.jobs.compare import FRAMEWORK, Comparison, _share  # noqa: E402
from validation.jobs.here import check_here  # noqa: E402
from validation.jobs.job_programs import (  # noqa: E402
    JobProgram,
    calibration_sizes,
    job_program,
    kernels_of,
    record,
    settings_of,
)
from validation.jobs.job_settings import COMPARED, Settings  # noqa: E402
from validation.jobs.kernel_probes import call_of  # noqa: E402
from validation.jobs.model import SIZES  # noqa: E402
from validation.jobs.observe import JUDGED_BYTES  # noqa: E402
from validation.jobs.shown import tables_of  # noqa: E402
from validation.processors import Watch, lost_share  # noqa: E402

ROOT = Path(__file__).parents[3]
torch.set_num_threads(1)
MICRO = SIZES["gpt2-micro"]
CPU = torch.device("cpu")


@given(st.floats(0, 1e-3), st.floats(1e-12, 1e-8), st.lists(st.floats(1e4, 1e9), min_size=2, max_size=6, unique=True))
def test_a_line_is_found_again(start_s, s_per_unit, work):
    line = fit_line(work, [start_s + w * s_per_unit for w in work])
    assert line.start_s >= 0
    assert line.s_per_unit >= 0
    if max(work) > 2 * min(work):
        for w in work:
            assert line.at(w) == pytest.approx(start_s + w * s_per_unit, rel=1e-3)


@pytest.mark.parametrize("times", [[3e-3, 1e-3], [1e-3, 3e-3, 1e-3]])
def test_lines_never_fall(times):
    line = fit_line([float(i + 1) for i in range(len(times))], times)
    assert line.start_s >= 0
    assert line.s_per_unit >= 0
    assert line.at(1.0) > 0


def test_a_family_without_times_is_refused():
    with pytest.raises(CalibrationError):
        fit_line([], [])


def test_calibration_models_share_no_product_with_the_judged_one():
    size = SIZES["gpt2-tiny"]
    judged = {(k.m, k.n, k.k) for k in kernels_of(record(size, 1)) if isinstance(k, GemmShape)}
    for other in calibration_sizes(size):
        assert not judged & {(k.m, k.n, k.k) for k in kernels_of(record(other, 1)) if isinstance(k, GemmShape)}


def test_every_recorded_product_can_be_timed():
    for shape in set(kernels_of(record(MICRO, 1))):
        call = call_of(shape, CPU)
        assert call is not None or isinstance(shape, PointwiseShape)
        if call is not None:
            call()


def test_recorded_models_have_the_modules_parameters():
    assert record(MICRO, 1).n_parameters == MICRO.n_parameters


def _comparison(predicted_s: float = 1.0, measured_s: float = 1.5) -> Comparison:
    return Comparison(
        n_ranks=2,
        iteration=(predicted_s, measured_s),
        forward_backward=(0.9, 1.4),
        optimizer=(0.1, 0.1),
        operators=[Part(name="gemm forward", n_calls=3, predicted_s=0.5, measured_s=0.8)],
        collectives=[(1 << 19, 0.01, 0.02)],
        parts=[
            Part(name="gemm kernels", predicted_s=0.5, measured_s=0.8),
            Part(name=FRAMEWORK, predicted_s=predicted_s - 0.6, measured_s=measured_s - 0.9),
            Part(name="optimizer", predicted_s=0.1, measured_s=0.1),
        ],
    )


def test_causes_add_up_to_the_difference():
    found = _comparison()
    assert found.relative_error == pytest.approx(-1 / 3)
    assert found.causes()[0] == ("gemm kernels", pytest.approx(-0.3))
    assert sum(seconds for _, seconds in found.causes()) == pytest.approx(-0.5)


def test_other_work_widens_what_counts_as_right_and_half_of_it_refuses(capsys):
    """1.1 / (1 - 0.25) is 1.467: with a quarter of the processors gone a step of 1 s is expected from 0.68 to 1.47 s."""
    idle, quarter, half = (replace(_comparison(), lost=lost) for lost in (0.0, 0.25, 0.5))
    assert idle.interval_s == pytest.approx((1 / 1.1, 1.1))
    assert quarter.interval_s == pytest.approx((0.682, 1.467), abs=1e-3)
    check_here([quarter], 0.10)
    with pytest.raises(ThresholdError, match=r"2: -33.3%"):
        check_here([idle], 0.10)
    with pytest.raises(ThresholdError):
        check_here([replace(quarter, iteration=(1.0, 2.0))], 0.10)
    check_here([replace(half, iteration=(1.0, 9.0))], 0.10)
    assert "2 processes: not judged, other work had 50%" in capsys.readouterr().err
    (whole, *_) = tables_of("gpt2-tiny", quarter)
    assert whole.title.endswith("expected 681.8 to 1466.7 ms: other work had 25% of the processors that it needed")


def test_ranks_lose_what_other_work_leaves_them_short_of():
    """Of two processors: one rank has one while other work has half of both; two ranks then lack one of two."""
    assert [lost_share(n, 2, 0.5) for n in (1, 2)] == [0.0, 0.5]
    watch = Watch()
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    everything, own = watch.shares()
    assert 0.0 < own <= everything <= 1.05
    assert 0.0 <= watch.lost(1) <= 1.0


def test_a_machine_is_calibrated_and_compared(validation):
    done = validation("compare", "--model", "gpt2-micro", "--nproc", "1,2", "--repeats", "3", "--json", timeout=180)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["comparisons"]
    assert (one["n_ranks"], two["n_ranks"]) == (1, 2)
    assert one["iteration"][0] > 0
    assert [size for size, _, _ in two["collectives"]] == list(JUDGED_BYTES)
    for found in (one, two):
        predicted, measured = found["iteration"]
        assert sum(seconds for _, seconds in found["causes"]) == pytest.approx(predicted - measured, abs=1e-9)
        predicted, measured = found["optimizer"]
        assert dict(found["causes"])["optimizer"] == pytest.approx(predicted - measured, abs=1e-9)

    _check_jobs(one["jobs"], two["jobs"])


def _check_jobs(alone: list[dict[str, object]], jobs: list[dict[str, object]]) -> None:
    assert alone == []
    assert [job["job"] for job in jobs] == list(COMPARED)
    for job in jobs:
        assert bool(job["reason"]) != bool(job["iteration"])
        if job["iteration"]:
            predicted, measured = job["iteration"]
            assert 0 < predicted < 20 * measured
            assert measured < 20 * predicted
            assert sum(seconds for _, seconds in job["causes"]) == pytest.approx(predicted - measured, abs=1e-9)
            assert job["operators"]
            assert all(message["n_calls"] for message in job["messages"])
    assert {job["job"] for job in jobs if job["note"]} <= {"fsdp2"}


def test_a_job_that_cannot_run_is_listed_with_its_reason(validation):
    done = validation(
        "compare", "--model", "gpt2-micro", "--layers", "3", "--nproc", "2", "--repeats", "2", "--jobs", "pp"
    )
    assert done.returncode == 0, done.stderr
    assert "pp on 2 processes: not predicted: 3 layers over 2 stages are cut unevenly" in done.stdout


def test_an_unknown_job_is_refused(validation):
    done = validation("compare", "--jobs", "zero9")
    assert done.returncode == 3
    assert "some of zero1, fsdp2, tp, pp" in done.stderr


def _program(job: str, n_ranks: int = 2) -> JobProgram:
    return job_program(settings_of(Settings(job="single", model="gpt2-micro"), job, n_ranks), MICRO, n_ranks)


def test_zero1_broadcasts_every_parameter_once():
    messages = _program("zero1").messages()
    sent = {kind: sum(size * n for (other, size), n in messages.items() if other == kind) for kind, _ in messages}
    assert sent == {"all_reduce": 4 * MICRO.n_parameters, "broadcast": 4 * MICRO.n_parameters}


def test_tensor_parallel_blocks_reduce_twice_forward_and_four_times_backward():
    n_bytes = MICRO.seq_len * MICRO.hidden * 4
    assert _program("tp").messages() == {("all_reduce", n_bytes): 6 * MICRO.layers}


def test_stages_exchange_activations_and_their_gradients():
    n_bytes = MICRO.seq_len * MICRO.hidden * 4
    assert _program("pp").messages(0) == {("p2p", n_bytes): 4}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_is_found_from_what_communication_adds(share):
    assert _share(lambda x: 0.01 / x, 0.01 / share) == pytest.approx(share, abs=0.02)


def test_communication_that_adds_nothing_takes_nothing():
    assert _share(lambda x: 0.01 / x, 0.0) > 0.95
    assert _share(lambda x: 0.01 / x, 10.0) < 0.1


class TestHere:
    """``simulate validate --here`` around the measuring itself, which the test above runs."""

    @pytest.fixture
    def command(self, monkeypatch, capsys):
        from simulator.cli import validate as module
        from validation.jobs import here

        monkeypatch.setattr(here, "gpus_here", lambda: 0)
        monkeypatch.setattr(here, "compare_here", lambda **options: [_comparison()])

        def run(**options):
            module.validate(here=True, **options)
            return capsys.readouterr()

        return run

    def test_it_prints_predicted_beside_measured_and_the_causes(self, command):
        printed = command().out
        assert "gpt2-tiny on 2 processes" in printed
        assert "-33.3%" in printed
        assert "all_reduce of 0.5 MiB" in printed
        assert printed.index("gemm kernels") < printed.index(FRAMEWORK)

    def test_json_is_one_document(self, command):
        (one,) = json.loads(command(json_output=True).out)["comparisons"]
        assert one["relative_error"] == pytest.approx(-1 / 3)

    def test_a_missed_threshold_is_said(self, command):
        command(threshold=40.0)
        with pytest.raises(ThresholdError, match=r"2: -33\.3%"):
            command(threshold=15.0)

    def test_the_page_opens_offline(self, command, tmp_path):
        command(report=str(tmp_path / "here.html"))
        page = (tmp_path / "here.html").read_text(encoding="utf-8")
        assert "gemm forward" in page
        assert 'src="http' not in page

    def test_options_for_files_are_refused(self, command):
        with pytest.raises(typer.BadParameter, match="FILES, --split would have no effect"):
            command(files=["training.csv"], split="test")
