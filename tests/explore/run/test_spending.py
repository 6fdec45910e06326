"""Money, days, energy and emissions of rows of tables: each by its own arithmetic from published or stated figures."""

import json

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app, register_commands
from simulator.explore.named_settings import Sweep
from simulator.explore.run.energy import list_prices, parse_price, price_of
from simulator.explore.run.run_request import RunRequest, parse_mtbf
from simulator.explore.run.spending import spending
from simulator.explore.sweeps import run_sweep
from simulator.plan import ParallelPlan
from simulator.report.answer_tables import money_columns
from simulator.report.sweep_charts import pareto
from simulator.topology import load_topology

#: a step of a second in which a board only computes
ANSWER = {
    "iteration_time_s": 1.0, "tokens_per_s": 1e5, "confidence": {"low_s": 0.9, "high_s": 1.2},
    "breakdown": {"compute_s": 1.0, "optimizer_s": 0.0, "exposed_communication_s": 0.0, "bubble_s": 0.0, "host_s": 0.0, "data_s": 0.0},
    "provenance": {"model_parameters": 1_000_000},
}  # fmt: skip


def spent(request, topology="dgx-h100", gpus=8):
    plan = ParallelPlan(gpus=gpus, micro_batch=1, global_batch=gpus, sequence_length=12_500).resolve(gpus)
    return spending(request, ANSWER, plan, load_topology(topology, gpus))


def test_a_billion_tokens_by_hand():
    # 1e9 tokens / 1e5 a second = 1e4 s on 8 GPUs = 22.2 GPU hours; a board of 700 W and 240 W of its node, PUE 1.5
    found = spent(RunRequest(price=parse_price("2 EUR"), pue=1.5, kg_co2_per_kwh=0.2))
    assert found["s_per_billion_tokens"] == pytest.approx(1e4)
    assert found["gpu_hours_per_billion_tokens"] == pytest.approx(8e4 / 3600)
    assert found["cost_per_billion_tokens"] == pytest.approx(2 * 8e4 / 3600)
    assert found["currency"] == "EUR"
    kwh = 8e4 / 3600 * (700 + 240) * 1.5 / 1000
    assert found["kwh_per_billion_tokens"] == pytest.approx(kwh)
    assert found["kg_co2_per_billion_tokens"] == pytest.approx(0.2 * kwh)
    assert "days" not in found


def test_a_run_by_hand():
    # a day of seconds at 1e5 tokens each, nothing fails and checkpoints take no time
    found = spent(RunRequest(tokens=86_400e5, mtbf=parse_mtbf("none"), write_s=0.0, price=parse_price("3")))
    assert (found["days"], found["gpu_hours"]) == (pytest.approx(1.0), pytest.approx(8 * 24))
    assert found["cost"] == pytest.approx(3 * 8 * 24)
    assert found["kg_co2"] == pytest.approx(0.473 * found["kwh"])  # Ember's world mean of 2024


def test_models_without_tokens_have_no_price_of_a_token():
    plan = ParallelPlan(gpus=8, micro_batch=1).resolve(8)
    assert spending(RunRequest(), {**ANSWER, "tokens_per_s": None}, plan, load_topology("dgx-h100", 8)) is None


def test_list_prices_are_dated_and_give_way():
    for one in list_prices().values():
        assert one.date.startswith("20") and "://" in f"https://{one.source}" and one.currency == "USD"
    h100 = load_topology("dgx-h100", 8)
    assert price_of(h100).source.startswith("list price of 20")
    own = load_topology("dgx-h100", 8, overrides={"price.gpu_hour": "1.5"})
    assert price_of(own).gpu_hour == 1.5
    assert price_of(own, parse_price("3")).gpu_hour == 3


def test_rows_of_a_sweep_have_what_they_cost():
    sweep = Sweep(
        base={"model": "gpt2", "micro_batch": 1, "gpus": 8},
        axes={"topology": ("dgx-a100-80g", "dgx-h100", "bigred200")},
    )
    rows = run_sweep(sweep, request=RunRequest(tokens=1e9)).rows
    for row in rows:
        assert row["gpu_hours"] == pytest.approx(row["days"] * 24 * 8)
        price = list_prices().get({"dgx-a100-80g": "a100-sxm4-80g", "dgx-h100": "h100-sxm5-80g"}.get(row["topology"]))
        assert row["cost"] == (None if price is None else pytest.approx(row["gpu_hours"] * price.gpu_hour))
    assert list(money_columns(rows)) == ["run", "cost", "energy", "CO2"]
    assert money_columns(rows)["cost"](rows[2]) == "no list price"  # of the A100 with 40 GB


def test_the_front_is_of_money_where_machines_are_priced():
    row = {"status": "ok", "gpus": 8, "tokens_per_s": 1e5, "iteration_time_s": 1.0, "mfu": 0.4, "communication_fraction": 0.1,
           "peak_bytes": 2**34, "capacity_bytes": 2**36, "currency": "USD"}  # fmt: skip
    cheap, dear = (
        {**row, "topology": name, "cost_per_billion_tokens": cost} for name, cost in (("a", 1.0), ("b", 2.0))
    )
    assert pareto([("a", cheap), ("b", dear)]).title == "Time against cost"
    unpriced = {**dear, "cost_per_billion_tokens": None}
    assert pareto([("a", cheap), ("b", unpriced)]).title == "Time against GPU hours"
    assert pareto([("a", cheap), ("c", cheap)]).title == "Time against memory"
    days = [{**one, "days": 3.0, "cost": 10.0} for one in (cheap, cheap)]
    assert pareto([("a", days[0]), ("c", days[1])]).layout["xaxis"]["title"]["text"] == "days of the run"


def test_clusters_side_by_side_on_the_command_line():
    register_commands()
    base = ["--topology", "dgx-a100-80g,dgx-h100", "--model", "gpt2", "--gpus", "8", "--micro-batch", "1"]
    shown = CliRunner().invoke(app, [*base, "--tokens", "10B", "--json"])
    rows = json.loads(shown.stdout)["rows"]
    costs = [row["cost_per_billion_tokens"] for row in rows]
    assert costs == sorted(costs) and {row["topology"] for row in rows} == {"dgx-a100-80g", "dgx-h100"}
    refused = CliRunner().invoke(app, [*base, "--explain"])
    assert "one answer" in str(refused.exception)


def test_rows_take_the_flags_of_played_runs_and_of_checkpoints(tmp_path):
    """As the main command answers them: a row is what it says of the same plan."""
    register_commands()
    base = [
        "--topology", "dgx-h100", "--model", "gpt-1.3b", "--gpus", "16", "--micro-batch", "1", "--sharding", "zero1",
        "--framework", "megatron-core", "--iterations", "500000", "--mtbf", "200 h/gpu", "--checkpoint-policy", "peers",
        "--failure-domain", "2 nodes=0.3", "--histories", "50", "--spare-nodes", "1", "--elastic", "--json",
    ]  # fmt: skip
    runner = CliRunner()
    run = json.loads(runner.invoke(app, base).stdout)["whole_run"]
    swept = runner.invoke(app, ["sweep", *base, "--axis", "seed=0", "--plot", "none", "--out", str(tmp_path)])
    [row] = json.loads(swept.stdout)["rows"]
    assert run["checkpoint"]["policy"] == "peers" and run["played"]["histories"] == 50
    for name in ("days", "goodput", "kwh"):
        assert row[name] == pytest.approx(run["energy"].get(name, run.get(name)))
    assert (row["p10_days"], row["p90_days"]) == (run["played"]["p10_days"], run["played"]["p90_days"])
