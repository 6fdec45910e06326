"""A whole run from flags to days, cost and energy: each number against its own arithmetic."""

import json
import math
import re
from dataclasses import replace

import pytest

from simulator.cli.main import app, register_commands
from simulator.errors import ConfigError
from simulator.explore.full_answer import document, to_json
from simulator.explore.run.checkpoint_policy import Policy, synchronous
from simulator.explore.run.energy import PowerModel, parse_price, power_model, price_of
from simulator.explore.run.goodput import Checkpoint, checkpoint_of, checkpoint_of_job, daly_interval_s, writers_of
from simulator.explore.run.restarts import Restart
from simulator.explore.run.run_request import (
    LinksInRun,
    Mtbf,
    RunRequest,
    parse_count,
    parse_interval,
    parse_mtbf,
    run_length,
)
from simulator.explore.run.training_run import whole_run, written_beside
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.report.answer_page import report
from simulator.report.answer_tables import whole_run_rows
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import load_topology

STEP = {"compute_s": 0.5, "optimizer_s": 0.1, "exposed_communication_s": 0.2, "overlapped_communication_s": 0.4,
        "bubble_s": 0.1, "host_s": 0.05, "data_s": 0.05}  # fmt: skip
ANSWER = {"iteration_time_s": 1.0, "breakdown": STEP, "confidence": {"low_s": 0.9, "high_s": 1.2}}


def plan_of(gpus=16, **settings):
    return ParallelPlan(gpus=gpus, micro_batch=2, sequence_length=1024, **settings).resolve(gpus)


def run_of(request, gpus=16, overrides=None, **settings):
    topology = load_topology("bigred200", gpus, overrides=overrides)
    plan = plan_of(gpus, **settings)
    return whole_run(request, ANSWER, plan, topology, synchronous(checkpoint_of(plan, topology, 1_000_000_000)))


@pytest.mark.parametrize("text", ["3USD", "3 USD", "USD3", "USD 3.0", "3e0USD"])
def test_a_price_needs_no_blank_before_its_currency(text):
    assert (parse_price(text).gpu_hour, parse_price(text).currency) == (3.0, "USD")
    assert (parse_price("$2.5").gpu_hour, parse_price("2.5€").currency, parse_price("1e2").gpu_hour) == (
        2.5,
        "€",
        100.0,
    )


def test_days_gpu_hours_and_cost_without_failures():
    request = RunRequest(
        tokens=32 * 1024 * 86_400.0, mtbf=parse_mtbf("none"), write_s=0.0, price=parse_price("2.5 USD")
    )
    found = run_of(request)
    assert (found["iterations"], found["days"], found["goodput"]) == (86_400, 1.0, 1.0)
    assert found["gpu_hours"] == pytest.approx(16 * 24)
    assert (found["cost"], found["currency"]) == (pytest.approx(2.5 * 16 * 24), "USD")
    assert (found["low_days"], found["high_days"]) == (pytest.approx(0.9), pytest.approx(1.2))
    assert found["failures"]["mtbf_s"] is None


def test_energy_is_power_times_time():
    request = RunRequest(iterations=3600, mtbf=parse_mtbf("none"), write_s=0.0, pue=1.5)
    found = run_of(request)
    gpu_w = 0.6 * 400 + 0.2 * 200 + 0.2 * 60  # shares of the A100's 400 W
    assert found["energy"]["gpu_w"] == pytest.approx(gpu_w)
    assert found["energy"]["kwh"] == pytest.approx(16 * (gpu_w + 240) * 1.5 / 1e3)  # 240 W: the rest of a node, by GPU
    assert found["energy"]["mean_w"] == pytest.approx(16 * (gpu_w + 240) * 1.5)


def test_boards_wait_while_checkpoints_are_written():
    run = RunRequest(iterations=100, mtbf=parse_mtbf("none"), write_s=100.0, pue=1.0)
    found = run_of(run, overrides={"power.gpu_idle": "0 W", "power.host": "0 W"})
    busy_w = 0.6 * 400 + 0.2 * 200
    assert found["total_s"] == 200.0
    assert found["energy"]["kwh"] == pytest.approx(16 * busy_w * 100 / 3.6e6)


def test_any_gpu_that_fails_ends_the_job():
    """A fleet of A100s measured 7.9 h at 1,024 GPUs (arXiv:2410.21680); H100s fail as Llama 3's did, 419 times in 54 days."""
    a100 = run_of(RunRequest(iterations=10))["failures"]["mtbf_s"]
    assert a100 == pytest.approx(7.9 * 3600 * 1024 / 16, rel=1e-3)
    plan, h100 = plan_of(), load_topology("dgx-h100", 16)
    found = whole_run(RunRequest(iterations=10), ANSWER, plan, h100, synchronous(checkpoint_of(plan, h100, 10**9)))
    assert found["failures"]["mtbf_s"] == pytest.approx(54 * 86400 * 16384 / 419 / 16, rel=1e-3)
    per_node = run_of(RunRequest(iterations=10, mtbf=parse_mtbf("8 h/node")))
    assert per_node["failures"]["mtbf_s"] == pytest.approx(2 * 3600)  # four nodes
    from_file = run_of(RunRequest(iterations=10), overrides={"failures.node_mtbf": "4 h", "failures.restart": "1 s"})
    assert from_file["failures"]["mtbf_s"] == pytest.approx(3600)


def test_the_interval_is_whole_iterations_and_dalys():
    found = run_of(RunRequest(iterations=10**6, mtbf=parse_mtbf("1 h/job"), write_s=18.0))
    checkpoint = found["checkpoint"]
    assert checkpoint["young_interval_s"] == pytest.approx(math.sqrt(2 * 18 * 3600))
    assert checkpoint["interval_iterations"] == round(checkpoint["daly_interval_s"])
    asked = run_of(RunRequest(iterations=1000, interval_s=90.4))
    assert (asked["checkpoint"]["interval_iterations"], asked["checkpoint"]["count"]) == (90, 12)
    steps = run_of(RunRequest(iterations=1000, interval_iterations=500))
    assert steps["checkpoint"]["count"] == 2


# -- checkpoints -------------------------------------------------------------------------------------------------


def test_a_checkpoint_has_weights_and_optimizer_states_once():
    topology = load_topology("bigred200", 16, overrides={"storage.node_bandwidth": "2 GB/s"})
    one = checkpoint_of(plan_of(), topology, 10**9)
    assert (one.n_bytes, one.n_writers) == (14 * 10**9, 1)  # 2 bytes of weight, 12 of Adam and the master
    assert one.write_s == pytest.approx(7.0)
    sharded = checkpoint_of(plan_of(sharding="zero3"), topology, 10**9)
    assert (sharded.n_writers, sharded.write_s) == (16, pytest.approx(7.0 / 4))  # four nodes write at once


def test_a_checkpoint_beside_frozen_weights_has_the_adapters_and_their_states():
    """Rank 16 on all projections of Llama 2 7B is 39,976,960 weights (``print_trainable_parameters`` of huggingface/peft)."""
    topology = load_topology("bigred200", 16, overrides={"storage.node_bandwidth": "2 GB/s"})
    plan = plan_of(framework="torchtune", lora_rank=16, precision="bf16", tp=2)
    found = checkpoint_of_job(plan, topology, find_spec("llama2-7b"))
    assert found.n_bytes == 39_976_960 * (2 + 4)  # torchtune's weights and moments have 16 bits
    assert found.write_s == pytest.approx(found.n_bytes / 2e9)  # both ranks of one copy are on a node
    assert found.read_s == pytest.approx(
        (found.n_bytes + 2 * 6_738_415_616) / 2e9
    )  # and the weights as they are published
    whole = checkpoint_of_job(plan_of(framework="torchtune", precision="bf16", tp=2), topology, find_spec("llama2-7b"))
    assert whole.n_bytes == 6_738_415_616 * (2 + 4)  # as Meta counts them


def test_the_file_system_limits_all_nodes_together():
    overrides = {"storage.node_bandwidth": "2 GB/s", "storage.bandwidth": "4 GB/s", "storage.write_bandwidth": "1 GB/s",
                 "storage.latency": "1 s"}  # fmt: skip
    topology = load_topology("bigred200", 16, overrides=overrides)
    found = checkpoint_of(plan_of(sharding="zero3"), topology, 10**9)
    assert (found.write_s, found.read_s) == (pytest.approx(15.0), pytest.approx(4.5))


def test_writers_are_one_copy_of_the_model():
    assert writers_of(plan_of(tp=2, pp=2), 4) == [0, 1, 8, 9]
    assert len(writers_of(plan_of(sharding="hsdp"), 4)) == 4
    # Megatron-FSDP's checkpoints hold what each rank steps
    outer = plan_of(framework="megatron-core", sharding="hsdp", outer_sharding="optim")
    assert len(writers_of(outer, 4)) == 16


# -- power and price ---------------------------------------------------------------------------------------------


def test_a_step_that_only_computes_draws_the_limit():
    model = PowerModel(compute_w=400, communication_w=200, idle_w=60, host_w=200, pue=1.1, sources={})
    idle = dict.fromkeys(("exposed_communication_s", "bubble_s", "optimizer_s", "host_s", "data_s"), 0.0)
    assert model.gpu_w({"compute_s": 2.0, **idle}) == 400
    assert model.facility_w(400) == pytest.approx(660)


def test_the_cluster_file_wins_over_the_defaults():
    topology = load_topology(
        "bigred200", 4, overrides={"power.host": "1 kW", "power.pue": "1.3", "power.gpu_idle": "50 W"}
    )
    model = power_model(topology)
    assert (model.host_w, model.pue, model.idle_w, model.compute_w) == (250.0, 1.3, 50.0, 400.0)
    assert power_model(topology, pue=1.2).pue == 1.2


def test_prices():
    topology = load_topology("bigred200", 4, overrides={"price.gpu_hour": "1.5", "price.currency": "EUR"})
    price = price_of(topology)
    assert (price.gpu_hour, price.currency) == (1.5, "EUR")
    assert price_of(topology, parse_price("3")).gpu_hour == 3
    assert price_of(load_topology("bigred200", 4)) is None


# -- what people write -------------------------------------------------------------------------------------------


def test_lengths():
    assert run_length("300B", None, None, None) == (300e9, 0)
    assert run_length(None, 2.5, "10B", None) == (25e9, 0)
    assert run_length(None, None, None, 7) == (0.0, 7)
    assert run_length(None, None, None, None) is None
    assert RunRequest(tokens=10.0).n_iterations(4) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1B", 2.0, "1B", None), "both say how long"),
        ((None, 2.0, None, None), "needs the size"),
        ((None, None, "1B", None), "number of epochs"),
        ((None, 0.0, "1B", None), "above 0"),
        ((None, float("nan"), "1B", None), "above 0"),
        ((None, None, None, 0), "at least 1"),
        (("-3", None, None, None), "not a number above 0"),
        (("many", None, None, None), "not a number above 0"),
    ],
)
def test_lengths_that_say_nothing(arguments, message):
    with pytest.raises(ConfigError, match=message):
        run_length(*arguments)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_mtbf, "5 h"), (parse_mtbf, "5/gpu"), (parse_mtbf, "0 h/gpu"), (parse_mtbf, "5 h/rack"), (parse_interval, "30"),
        (parse_interval, "0 steps"), (parse_interval, "-1 s"), (parse_price, "0"), (parse_price, "a lot"), (parse_price, "1 2"),
        (parse_price, "nan"), (lambda text: parse_count(text, "--tokens"), "0"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(read, text):
    with pytest.raises(ConfigError):
        read(text)


def test_mtbf_says_of_what():
    assert Mtbf(seconds=100.0, per="node").job_s(8, 2) == 50.0
    assert parse_mtbf("50000 h / gpu") == Mtbf(seconds=1.8e8, per="gpu", source="--mtbf")


# -- the command and the answer ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    plan = ParallelPlan(gpus=8, micro_batch=1, sequence_length=256)
    return simulate(Scenario(topology="bigred200", model="gpt2", plan=plan), detail=True)


def test_the_answer_has_it_only_where_it_is_asked_for(result):
    assert "whole_run" not in to_json(result)
    found = document([result], request=RunRequest(tokens=1e9))["whole_run"]
    assert found["iterations"] == math.ceil(1e9 / (8 * 256))
    assert found["time"]["useful_s"] == pytest.approx(found["iterations"] * result.metrics.iteration_time_s)
    assert all(row["source"] for row in found["assumptions"])
    json.dumps(found, allow_nan=False)


def test_the_report_shows_it(result):
    request = RunRequest(tokens=1e9, price=parse_price("2 EUR"))
    page = report([result], request=request).html
    run = document([result], request=request)["whole_run"]
    shown = dict(re.findall(r'data-key="whole_run\.([\w.]+)" data-value="([^"]+)"', page))
    assert {"days", "cost", "energy.kwh", "goodput"} <= set(shown)
    for key, value in shown.items():
        found = run
        for part in key.split("."):
            found = found[part]
        assert float(value) == found, key
    assert "The whole run" in page and "Assumed" in page and "Llama 3" in page
    assert "The whole run" not in report([result]).html


def test_the_command_line():
    from typer.testing import CliRunner

    register_commands()
    base = ["--topology", "bigred200", "--model", "gpt2", "--gpus", "8", "--micro-batch", "1"]
    runner = CliRunner()
    shown = runner.invoke(app, [*base, "--tokens", "10B", "--gpu-hour-price", "2 EUR"])
    assert shown.exit_code == 0, shown.output
    for words in ("the whole run", "10 billion tokens", "EUR", "goodput", "assumed"):
        assert words in shown.output
    warned = runner.invoke(app, [*base, "--mtbf", "none"])
    assert "--mtbf has no effect without --tokens" in warned.stderr
    lasting = runner.invoke(app, [*base, "--tokens", "1B", "--mtbf", "none", "--histories", "3"])
    assert "--histories has no effect where nothing fails" in lasting.stderr
    for more in (("--mtbf", "9 h/job"), ("--mtbf", "none", "--flapping", "node0.nic=40 s/4000 s")):
        played = runner.invoke(app, [*base, "--tokens", "1B", "--histories", "3", *more])
        assert played.exit_code == 0 and "no effect" not in played.stderr
    several = runner.invoke(app, [*base[:4], "--gpus", "4,8", "--micro-batch", "1", "--iterations", "10", "--json"])
    rows = json.loads(several.stdout)["scaling"]
    assert [row["whole_run"]["iterations"] for row in rows] == [10, 10]


def test_checkpoints_in_peers_memory_go_to_storage_as_often_as_domains_fail():
    """A fifth of the failures go back to storage: Young's interval between those copies is sqrt(2 x 50 s x 5 x the job's)."""
    there = Checkpoint(n_bytes=10**9, n_writers=16, write_s=50.0, read_s=100.0, source="by hand")
    peers = Policy(name="peers", checkpoint=replace(there, write_s=1.0, read_s=10.0), storage=there)
    request = RunRequest(
        iterations=100_000, mtbf=parse_mtbf("8 h/node"), restart=Restart(start=900.0), interval_s=60.0, domain_share=0.2
    )
    plan, topology = plan_of(), load_topology("bigred200", 16)
    found = whole_run(request, ANSWER, plan, topology, peers)
    stored_every = round(math.sqrt(2 * 50.0 * 5 * 7200.0) / 60.0)
    assert found["checkpoint"]["stored_every"] == stored_every == 32
    assert found["checkpoint"]["write_s"] == pytest.approx(1.0 + 50.0 / 32)
    assert found["failures"]["restart_s"] == pytest.approx(900.0 + 0.8 * 10.0 + 0.2 * 100.0)


def test_an_elastic_job_loses_the_replicas_of_a_node():
    """Nodes of four GPUs hold two replicas of two, of eight: a quarter of the speed until the node is back."""
    request = RunRequest(
        iterations=100_000, mtbf=parse_mtbf("8 h/node"), restart=Restart(start=900.0), write_s=0.0, interval_s=60.0, n_histories=50,
        n_spares=0, repair_s=86_400.0, is_elastic=True,
    )  # fmt: skip
    found = run_of(request, tp=2)
    restart_s = found["failures"]["restart_s"]
    lost_days = found["played"]["failures"] * (86_400.0 / 4 + restart_s) / 86_400.0
    assert found["played"]["waiting_days"] == pytest.approx(lost_days)


def test_tiers_leave_a_node_as_often_as_nodes_fail():
    """Of failures of the job every 7,200 s a tenth is of domains, and of the rest a half of nodes: Young's intervals of each,
    sqrt(2 x 5 s x 7,200 s / 0.55) = 362 s and sqrt(2 x 50 s x 72,000 s) = 2,683 s, in checkpoints of a minute, the
    second a multiple of the first: 6 and 45, 48."""
    there = Checkpoint(n_bytes=10**9, n_writers=16, write_s=50.0, read_s=100.0, source="by hand")
    shared, local = replace(there, write_s=5.0, read_s=10.0), replace(there, write_s=1.0, read_s=2.0)
    tiers = Policy(name="tiers", checkpoint=local, shared=shared, storage=there)
    mtbf = replace(parse_mtbf("8 h/node"), hardware_share=0.5)
    request = RunRequest(
        iterations=200_000, mtbf=mtbf, restart=Restart(start=900.0), interval_s=60.0, domain_share=0.1, n_histories=400
    )
    found = whole_run(request, ANSWER, plan_of(), load_topology("bigred200", 16), tiers)
    assert (found["checkpoint"]["shared_every"], found["checkpoint"]["stored_every"]) == (6, 48)
    assert found["checkpoint"]["write_s"] == pytest.approx(1.0 + 5.0 / 6 + 50.0 / 48)
    assert found["failures"]["restart_s"] == pytest.approx(900.0 + 0.45 * 2.0 + 0.45 * 10.0 + 0.1 * 100.0)
    assert found["played"]["mean_days"] == pytest.approx(found["days"], rel=0.003)
    alone = whole_run(replace(request, domain_share=0.0), ANSWER, plan_of(), load_topology("bigred200", 16), tiers)
    assert alone["checkpoint"]["stored_every"] % alone["checkpoint"]["shared_every"] == 0
    half = replace(
        request, links=LinksInRun(ended_every_s=(7200.0,)), restart=Restart(start=10.0)
    )  # take nothing with them
    ended = whole_run(half, ANSWER, plan_of(), load_topology("bigred200", 16), tiers)
    assert ended["failures"]["restart_s"] == pytest.approx(10.0 + 0.725 * 2.0 + 0.225 * 10.0 + 0.05 * 100.0)
    assert ended["played"]["mean_days"] == pytest.approx(ended["days"], rel=0.003)


def test_links_that_come_and_go_slow_a_run_down_or_end_it():
    """Half as long again for each step; and a failure every two hours beside those of four nodes every eight hours: one an hour."""
    request = RunRequest(
        iterations=50_000, mtbf=parse_mtbf("8 h/node"), restart=Restart(start=60.0), write_s=0.0, interval_s=60.0
    )
    plain = run_of(request)
    slow = run_of(replace(request, mtbf=parse_mtbf("none"), links=LinksInRun(stalls=1.5)))
    assert slow["total_s"] == pytest.approx(75_000.0) and slow["time"]["stalled_s"] == pytest.approx(25_000.0)
    assert slow["time"]["useful_s"] == pytest.approx(50_000.0) and slow["goodput"] == pytest.approx(2 / 3)
    assert any("1.5000 times" in row["value"] for row in slow["assumptions"])
    ended = run_of(replace(request, links=LinksInRun(ended_every_s=(7200.0,)), n_histories=400))
    assert plain["failures"]["mtbf_s"] == 7200.0 and ended["failures"]["mtbf_s"] == 3600.0
    by_part = ended["failures"]["by_component"]
    assert by_part["links that come and go"] == pytest.approx(ended["failures"]["expected"] / 2)
    assert ended["played"]["failures"] == pytest.approx(ended["failures"]["expected"], rel=0.02)
    assert ended["played"]["mean_days"] == pytest.approx(ended["days"], rel=0.002)
    replaced = run_of(
        replace(request, restart=Restart(start=60.0, allocation=100.0), links=LinksInRun(ended_every_s=(7200.0,)))
    )
    assert replaced["failures"]["restart_s"] - ended["failures"]["restart_s"] == pytest.approx(50.0), "no node is gone"


def test_played_runs_are_billed_for_the_days_that_they_take():
    """Every failure waits a day for its node: 16 GPUs at 2.5 USD, and boards that only wait meanwhile."""
    request = RunRequest(
        iterations=50_000, mtbf=parse_mtbf("8 h/node"), restart=Restart(start=60.0), write_s=0.0, interval_s=60.0,
        price=parse_price("2.5 USD"), pue=1.0, n_histories=200, n_spares=0,
    )  # fmt: skip
    found = run_of(request)
    played, power = found["played"], power_model(load_topology("bigred200", 16), pue=1.0)
    hours = 24 * played["mean_days"]
    assert played["mean_days"] > 4 * found["days"]
    assert played["gpu_hours"] == pytest.approx(16 * hours) and played["cost"] == pytest.approx(2.5 * 16 * hours)
    running_h = hours - 24 * played["waiting_days"] - played["failures"] * found["failures"]["restart_s"] / 3600
    boards = found["energy"]["gpu_w"] * running_h + power.idle_w * (hours - running_h)
    assert played["kwh"] == pytest.approx(16 * (boards + power.host_w * hours) / 1e3, rel=1e-3)
    going_on = run_of(replace(request, is_elastic=True))["played"]  # with fewer replicas, whose boards run
    hours = 24 * going_on["mean_days"]
    running_h = hours - going_on["failures"] * found["failures"]["restart_s"] / 3600
    boards = found["energy"]["gpu_w"] * running_h + power.idle_w * (hours - running_h)
    assert going_on["kwh"] == pytest.approx(16 * (boards + power.host_w * hours) / 1e3, rel=1e-3)


def test_energy_of_a_token_has_an_interval():
    """A step is 10 % faster or 20 % slower, powers are 4 % off at most on four power logs: their root of squares."""
    found = run_of(RunRequest(iterations=3600, mtbf=parse_mtbf("none"), write_s=0.0))
    energy = found["energy"]
    assert energy["j_per_token"] == pytest.approx(energy["kwh"] * 3.6e6 / (3600 * 32 * 1024))
    assert energy["low_j_per_token"] == pytest.approx(energy["j_per_token"] * (1 - math.hypot(0.1, 0.04)))
    assert energy["high_j_per_token"] == pytest.approx(energy["j_per_token"] * (1 + math.hypot(0.2, 0.04)))


def test_where_nvlink_joins_trays_it_is_trays_that_fail_write_and_draw():
    """Two NVL72 racks are 36 trays of 4 GPUs, each of which fails, writes at 2 GB/s and has processors of its own.

    One replica lies on a tray, so that one of 36 is lost with it; a failure of the rack takes 18.
    """
    topology = load_topology("gb200-nvl72", 144, overrides={"nodes": "36", "power.host": "800 W"})
    plan = ParallelPlan(gpus=144, tp=4, micro_batch=1, sequence_length=1024, sharding="zero1").resolve(144)
    policy = synchronous(checkpoint_of(plan, topology, 36_000_000_000))
    request = RunRequest(iterations=86_400, mtbf=parse_mtbf("3600 h/node"), domain_nodes="rack", domain_share=0.1)
    found = whole_run(request, ANSWER, plan, topology, policy)
    assert found["failures"]["mtbf_s"] == pytest.approx(100 * 3600)
    assert found["failures"]["domain_nodes"] == 18
    assert found["checkpoint"]["write_s"] == pytest.approx(found["checkpoint"]["bytes"] / (36 * 2e9))
    assert found["energy"]["host_w_per_gpu"] == pytest.approx(200.0)
    histories = replace(request, mtbf=parse_mtbf("2 h/job"), domain_share=0.0, n_histories=20, n_spares=0)
    waits, goes_on = (
        whole_run(replace(histories, is_elastic=one), ANSWER, plan, topology, policy)["played"] for one in (False, True)
    )
    assert goes_on["waiting_days"] / goes_on["failures"] < 2 / 36 < waits["waiting_days"] / waits["failures"]


def test_by_default_what_fails_is_what_failed_on_llama_3s_machine():
    """419 interruptions of 16,384 GPUs in 54 days, of which table 5 prints 30.1 % for faulty GPUs."""
    found = run_of(RunRequest(iterations=86_400_000), overrides={"node.device": "h100-sxm5-80g"})
    failures = found["failures"]
    assert failures["mtbf_s"] == pytest.approx(54 * 24 * 3600 * 16_384 / 419 / 16, rel=1e-4)
    assert failures["by_component"]["faulty GPU"] / failures["expected"] == pytest.approx(0.301)


def test_a_cost_without_a_price_says_so():
    """No list price is shipped of the 40 GB A100; one that is given gives 16 GPUs x hours x price."""
    request = RunRequest(iterations=3600, mtbf=parse_mtbf("none"))
    rows = {what: (value, words) for what, _, value, words in whole_run_rows(run_of(request))}
    assert rows["cost"][0] is None and "--gpu-hour-price" in rows["cost"][1]
    rows = {
        what: (value, words)
        for what, _, value, words in whole_run_rows(run_of(replace(request, price=parse_price("2.0 USD"))))
    }
    assert rows["cost"][0] == pytest.approx(2.0 * rows["GPU hours"][0])


def test_trays_of_other_jobs_fail_one_by_one():
    """Another job on a whole NVL72 rack loses one of its 18 trays every 3,600 h / 18, and writes as often as Daly says."""
    topology = load_topology("gb200-nvl72", 144, overrides={"nodes": "36", "storage.bandwidth": "1 GB/s"})
    plan = ParallelPlan(gpus=72, tp=4, micro_batch=1, sequence_length=1024, sharding="zero1").resolve(72)
    stored = checkpoint_of(plan, topology, 10**9)
    other = {"gpus": 72, "nodes": [1], "checkpoint_s": 60.0, "checkpoint_bytes": 60 * 10**9}
    slower = written_beside(stored, [other], RunRequest(iterations=1, mtbf=parse_mtbf("3600 h/node")), topology)
    share = 60.0 / (daly_interval_s(60.0, 200 * 3600.0) + 60.0)
    assert slower.write_s == pytest.approx((1.0 + share) * stored.write_s)
