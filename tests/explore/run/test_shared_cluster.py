"""Jobs beside each other: alone they are as fast as the main command says, and what they lose has bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.shared_cluster import JobRequest, beside, best_placements, in_words, read_job
from simulator.faults import Faults

#: two leaves of eight nodes; the uplinks of a leaf carry a 64th of what its NICs do
CLUSTER = {
    "topology": "dgx-a100-40g", "fabric.kind": "fat-tree", "fabric.levels": "2", "fabric.nodes_per_leaf": "8",
    "nodes": "16", "fabric.oversubscription": "64",
}  # fmt: skip
DATA = {**CLUSTER, "model": "gpt2", "gpus": 32, "micro_batch": 1, "sharding": "none", "overlap": False}


def request(placement="slurm", **settings):
    return JobRequest(scenario=scenario_of({**DATA, **settings}), placement=placement)


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"sharding": "zero3", "framework": "fsdp"},
        {"tp": 16, "framework": "megatron-core"},
        {"tp": 4, "pp": 4, "global_batch": 64, "framework": "megatron-core"},
    ],
)
@pytest.mark.parametrize("placement", ["0-3", "0-1,8-9"])
def test_a_job_with_nothing_beside_it_is_as_fast_as_alone(plan, placement):
    """Played step by step and written down whole, a job takes what folding and steady states say."""
    (job,) = beside([request(placement, model="gpt-1.3b", **plan)])["jobs"]
    assert job["slowdown"] == pytest.approx(1.0, rel=1e-6)


def test_jobs_on_leaves_of_their_own_share_nothing():
    found = beside([request(), request()])
    assert [job["nodes"] for job in found["jobs"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["shared_link"] is None
    assert [job["slowdown"] for job in found["jobs"]] == pytest.approx([1.0, 1.0], rel=1e-9)


def test_twins_in_step_on_one_saturated_uplink_each_have_half_its_rate():
    """What communicates takes twice as long, what computes as long as before: the worst start of all."""
    found = beside([request("0-1,8-9"), request("2-3,10-11")])
    assert found["shared_link"] in ("leaf0 -> spine0", "spine0 -> leaf1", "leaf1 -> spine0", "spine0 -> leaf0")
    first, second = found["jobs"]
    assert first["alone_s"] == pytest.approx(second["alone_s"])
    needed_s = found["shared_load"] / 2 * first["alone_s"]
    assert first["slowdown_high"] <= 1 + needed_s / first["alone_s"] + 1e-6
    assert first["slowdown_high"] == pytest.approx(1 + needed_s / first["alone_s"], rel=0.02)
    # work is conserved: beside each other both need at least what the link needs for both
    assert first["beside_s"] >= found["shared_load"] * first["alone_s"] * (1 - 1e-6)


def test_more_oversubscription_never_costs_the_neighbours_less():
    losses = [
        beside([request("0-1,8-9", **{"fabric.oversubscription": ratio}), request("2-3,10-11")])["jobs"][0]["beside_s"]
        for ratio in ("1", "16", "64")
    ]
    assert losses == sorted(losses)


def test_a_search_finds_the_leaf_that_holds_the_job(tmp_path):
    """Six nodes are free on each leaf, and four fit on one: no traffic leaves it."""
    free = tmp_path / "free.txt"
    free.write_text("2-7,10-15")
    rows, beside_others = best_placements(request(), free_file=str(free))
    assert beside_others is None
    assert rows[0]["is_slurms"]
    assert rows[0]["on_leaves"] == [4]
    assert sorted(row["on_leaves"] for row in rows) == [[2, 2], [3, 1], [4]]
    assert rows[1]["iteration_time_s"] > rows[0]["iteration_time_s"]


@pytest.mark.parametrize(
    ("text", "said"), [("four", "'four' is not a number of GPUs"), ("0", "0 is not a number of GPUs")]
)
def test_gpus_of_a_node_are_a_number(tmp_path, text, said):
    file = tmp_path / "other.yaml"
    file.write_text(f"model: bert-large\ngpus: 16\ngpus_per_node: {text}\n")
    with pytest.raises(ConfigError, match=f"other.yaml.*gpus_per_node: {said}"):
        read_job(str(file), DATA)


def test_a_job_file(tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text("model: bert-large\ngpus: 16\nmicro-batch: 4\ngpus_per_node: 4\nplacement: 4-7\n")
    job = read_job(str(file), DATA)
    assert (job.scenario.model, job.scenario.plan.gpus, job.gpus_per_node, job.placement) == (
        "bert-large",
        16,
        4,
        "4-7",
    )
    assert dict(job.scenario.overrides) == {
        name: text for name, text in CLUSTER.items() if "." in name or name == "nodes"
    }
    file.write_text("model: bert-large\nmicrobatch: 3\n")
    with pytest.raises(ConfigError, match=r"other\.yaml:2"):
        read_job(str(file), DATA)
    file.write_text("micro-batch: 4\n")
    with pytest.raises(ConfigError, match="no model and no gpus"):
        read_job(str(file), DATA)


def test_jobs_that_do_not_fit_beside_each_other_are_refused():
    with pytest.raises(InfeasiblePlanError, match="nodes are needed"):
        beside([request(gpus=64), request(gpus=96)])


def test_the_command_line_prints_one_document(tmp_path, capsys, monkeypatch):
    from simulator.cli.main import main

    file = tmp_path / "other.yaml"
    file.write_text("model: gpt2\ngpus: 16\nmicro-batch: 1\n")
    argv = [
        "simulate", "-t", "dgx-a100-40g", "-m", "gpt2", "--gpus", "16", "--micro-batch", "1", "--with", str(file), "--placement",
        "in-order", "--json",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit):
        main()
    answer = json.loads(capsys.readouterr().out)
    assert [job["gpus"] for job in answer["neighbours"]["jobs"]] == [16, 16]
    assert answer["neighbours"]["jobs"][0]["alone_s"] == pytest.approx(answer["iteration_time_s"])


def test_a_node_that_cannot_be_had_says_why(tmp_path):
    free = tmp_path / "free.txt"
    free.write_text("0-7")
    with pytest.raises(ConfigError, match="gpt2: placement 2-5: node 2 is taken by gpt2"):
        beside([request("0-3"), request("2-5")])
    with pytest.raises(ConfigError, match=r"node 8 is not among the free ones of .*free\.txt"):
        beside([request("5-8")], free_file=str(free))
    with pytest.raises(ConfigError, match=r"node 7 is free in .*free\.txt, and this job runs already"):
        best_placements(request(), [request("7-10")], free_file=str(free))
    with pytest.raises(ConfigError, match=r"node 16 is not there: .* has nodes 0 to 15"):
        beside([request("13-16")])


def test_nodes_of_slow_links_are_the_clusters():
    """Node 8 is the job's third: a job elsewhere meets none of its slow NICs, and another job on it does."""
    slow = Faults(slow_links=(("node8.nic", 400.0),))
    one = replace(request("0-1,8-9"), scenario=replace(request().scenario, faults=slow))
    (job,) = beside([one])["jobs"]
    (sound,) = beside([request("0-1,8-9")])["jobs"]
    assert job["alone_s"] > sound["alone_s"]
    (elsewhere,) = beside([replace(one, placement="0-1,10-11")])["jobs"]
    assert elsewhere["alone_s"] == pytest.approx(sound["alone_s"])
    other = beside([replace(one, placement="0-3"), request("8-11")])["jobs"][1]
    assert other["alone_s"] > beside([request("0-3"), request("8-11")])["jobs"][1]["alone_s"]
    with pytest.raises(ConfigError, match="the cluster has nodes 0 to 15"):
        beside([replace(one, scenario=replace(one.scenario, faults=Faults(slow_links=(("node16.nic", 400.0),))))])


def test_a_job_alone_is_not_said_to_be_beside_others():
    assert "with no job beside it" in in_words(beside([request("0-3")]))
