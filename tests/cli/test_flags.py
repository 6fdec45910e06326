"""What flags are read as: sides of a comparison, defaults that help names, and hints where one is refused."""

from __future__ import annotations

import pytest

from simulator.cli.main_flags import FLAGS
from simulator.cli.memory_limit import DEFAULT_SHARE
from simulator.explore.run.energy import operation_defaults
from simulator.explore.run.network_trouble import REROUTE_S
from simulator.explore.run.run_request import RunRequest


def test_a_side_may_end_in_the_file_of_a_cluster(simulate, tmp_path):
    """Settings that end in .yaml are no plan file."""
    path = tmp_path / "mine.yaml"
    path.write_text("extends: dgx-h100\nname: mine\n", encoding="utf-8")
    job = ("--model", "gpt2", "--gpus", 8, "--micro-batch", 1)
    code, out, _ = simulate("compare", f"topology={path}", "topology=dgx-h100", *job)
    assert code == 0
    said = " ".join(out.split())  # lines are broken where the terminal ends
    assert f"A: gpt2 on {path}, 8 GPUs" in said and "B: gpt2 on dgx-h100, 8 GPUs" in said


def test_help_says_the_defaults_that_are_taken():
    """The words of flags are typed where nothing heavy is loaded; what is taken stands elsewhere."""
    facility, grid = operation_defaults().facility, operation_defaults().grid
    flags = {name: flag for group in FLAGS.values() for name, flag in group.items()}
    for name, default in {
        "pue": f"; {facility.pue} by default",
        "kg_co2_per_kwh": f"; {grid.kg_co2_per_kwh} by default",
        "reroute_time": f"; {REROUTE_S:g} s by default",
        "repair_time": f"; {RunRequest().repair_s / 3600:g} h by default",
        "max_memory": f"; {DEFAULT_SHARE:.0%} by default",
    }.items():
        assert default in flags[name].says


@pytest.mark.parametrize(("tp", "hint"), [(1, "experts"), (2, "experts; experts that are not split")])
def test_expert_groups_that_do_not_fit_are_told_what_they_must_divide(simulate, tp, hint):
    """Of four ranks and eight experts both: a divisor of the ranks alone may be refused for the experts."""
    code, _, err = simulate("-t", "dgx-h100", "-m", "mixtral-8x7b", "--gpus", 4 * tp, "--tp", tp, "--ep", 3)
    assert (
        code == 4
        and "does not divide dp x cp = 4" in err
        and f"ep must divide 4 and the model's {hint}" in err
        and ("--etp" in err) == (tp > 1)
    )
