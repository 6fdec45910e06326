"""Settings: one reading of a value wherever it is written, and unknown keys answered with the setting that was meant."""

from __future__ import annotations

import pytest
import typer.main

from simulator.cli.inputs import settings_of
from simulator.cli.main import app
from simulator.errors import ConfigError
from simulator.explore.named_settings import parse_axis, read_sweep, scenario_of
from simulator.explore.run.shared_cluster import read_job
from simulator.interop.trainers.plan_files import load_plan
from simulator.plan import SETTINGS
from simulator.simulation import simulate


@pytest.mark.parametrize(
    ("text", "meant"),
    [("bucket_cap_mb: 25", "bucket_bytes"), ("reshard_after_forward: 8", "secondary_group"), ("shardin: zero1", "sharding")],
)  # fmt: skip
def test_other_names_are_answered_with_ours(tmp_path, text, meant):
    path = tmp_path / "plan.yaml"
    path.write_text(f"tp: 2\n{text}\n")
    with pytest.raises(ConfigError, match=rf"plan.yaml:2:1.*\n?.*Did you mean '{meant}'"):
        load_plan(path)


def test_new_settings_are_read_with_their_types(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("moe-imbalance: 1.5\nprefetch_elements: 5e7\ncp_comm_type: a2a\nlimit_all_gathers: false\n")
    assert load_plan(path) == {
        "moe_imbalance": 1.5, "prefetch_elements": 50_000_000, "cp_comm_type": "a2a", "limit_all_gathers": False,
    }  # fmt: skip


SWITCH = "overlap_moe_expert_parallel_comm"


def test_a_switch_of_megatron_is_the_schedule_that_it_is_wherever_settings_are_read(tmp_path):
    """NVIDIA/Megatron-LM, ``core/pipeline_parallel/combined_1f1b.py``; off, it says nothing."""
    path = tmp_path / "plan.yaml"
    for value, meant in (("true", {"schedule": "1f1b-combined"}), ("false", {})):
        path.write_text(f"{SWITCH}: {value}\ntp: 2\n")
        assert load_plan(path) == meant | {"tp": 2}
        assert settings_of({"set_": [f"{SWITCH}={value}", "tp=2"]})[0] == meant | {"tp": 2}
        path.write_text(f"base: {{{SWITCH}: {value}}}\naxes: {{tp: [1, 2]}}\n")
        assert read_sweep(path).base == meant
        path.write_text(f"model: gpt2\ngpus: 8\n{SWITCH}: {value}\n")
        job = read_job(path, {"topology": "dgx-h100", "model": "gpt2"})
        assert job.scenario.plan.schedule == meant.get("schedule", "1f1b")


def test_a_switch_that_contradicts_a_setting_is_refused_in_either_order(tmp_path):
    path = tmp_path / "plan.yaml"
    for lines in ((f"{SWITCH}: true", "schedule: gpipe"), ("schedule: gpipe", f"{SWITCH}: true")):
        path.write_text("\n".join(lines) + "\n")
        line = 1 + lines.index(f"{SWITCH}: true")
        with pytest.raises(
            ConfigError, match=rf"plan.yaml:{line}:1: {SWITCH}=true is .*, but schedule=gpipe is also given"
        ):
            load_plan(path)
        with pytest.raises(ConfigError, match="but schedule=gpipe is also given"):
            settings_of({"set_": [line.replace(": ", "=") for line in lines]})
    with pytest.raises(ConfigError, match="but schedule=gpipe is also given"):
        settings_of({"set_": [f"{SWITCH}=true"], "schedule": "gpipe"})
    above = settings_of({"set_": [f"{SWITCH}=true"], "plan": str(path)})[0]
    assert above["schedule"] == "1f1b-combined"  # a file stands below
    with pytest.raises(ConfigError, match="is not a setting"):
        parse_axis(f"{SWITCH}=true,false")


SAME = [("bucket_bytes", "1e6", 1_000_000), ("bucket_bytes", "25MiB", 25 * 2**20), ("zero", "1", "zero1"), ("overlap", "none", None),
        ("mbs", "2", 2), ("seq-len", "512", 512), ("sample_time_s", "2 ms", 0.002), ("moe_imbalance", "1.5", 1.5),
        ("gradient_collective", "auto", None), ("cuda", "12.4", "12.4")]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "meant"), SAME)
def test_a_value_means_the_same_in_files_set_axes_and_flags(tmp_path, name, text, meant):
    path = tmp_path / "plan.yaml"
    path.write_text(f"{name}: {text}\n")
    (key,) = load_plan(path)
    base = {"topology": "bigred200", "model": "gpt2"}
    assert load_plan(path) == {key: meant}
    assert settings_of({"set_": [f"{name}={text}"]})[0] == {key: meant}
    assert parse_axis(f"{name}={text}") == (key, (meant,))
    assert getattr(scenario_of(base | {key: meant}).plan, key) == meant
    if key != "overlap":  # a switch, which is left out
        command = typer.main.get_command(app)
        context = command.make_context("simulate", [f"--{key.replace('_', '-')}", text], resilient_parsing=True)
        assert context.params[key] == meant


@pytest.mark.parametrize(
    ("text", "rule"),
    [("tp:", "needs a value"), ("tp: .nan", "not a usable number"), (f"tp: {'9' * 400}", "not a usable number"),
     ("tp: 1.5", "not a whole number"), (f"tp: {'9' * 19}", "at most"),
     ("tp: [1, 2]", "not a whole number"), ("schedule: [1f1b]", "not one word"),
     ("dp: 0", "at least 1"), ("moe_imbalance: .inf", "not a usable number"),
     ("overlap: 3", "true or false"), ("dp: 8\ngpus:", "gpus: needs a value"), ("overlap:", "overlap: needs a value"),
     ("bucket_bytes: 3 parsecs", "unknown unit"), ("sharding: zreo1", "Did you mean 'zero1'"), ("zero: 1\nsharding: zero1", "set twice")],
)  # fmt: skip
def test_what_no_setting_can_be_is_refused_with_its_place(tmp_path, text, rule):
    path = tmp_path / "plan.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=rf"(?s)plan.yaml:[12]:.*{rule}"):
        load_plan(path)


def test_an_explicit_default_equals_the_default():
    base = {"topology": "dgx-a100-80g", "model": "gpt2-large", "gpus": 16, "micro_batch": 1}
    zero3 = base | {"framework": "deepspeed", "sharding": "zero3"}
    written = {"prefetch_elements": 50_000_000, "persistence_elements": 100_000, "max_live_elements": 10**9, "max_reuse_elements": 10**9,
               "overlap": True, "gradient_bytes": 2, "bucket_bytes": 10**9}  # fmt: skip
    left, said = simulate(scenario_of(zero3)), simulate(scenario_of(zero3 | written))
    assert left.memory.by_category == said.memory.by_category
    assert left.timeline.makespan_ps == said.timeline.makespan_ps
    for key, one in SETTINGS.items():
        if one.default is not None:
            assert scenario_of(base | {key: one.default}).plan == scenario_of(base).plan, key
