"""A user's module in place of a model of the catalogue."""

from __future__ import annotations

import sys

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.recorded import InputTensor, open_module, parse_input
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

pytest.importorskip("torch", reason="torch is not installed")

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, layers=4, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(100, hidden)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers))
        self.head = nn.Linear(hidden, 100)
    def forward(self, ids, scale=None):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    return Net()

def with_inputs():
    return Net(), torch.zeros(2, 16, dtype=torch.long)

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x)

class Unfused(Plain):
    def set_attn_implementation(self, kind):
        if kind == "sdpa":
            raise ValueError("Unfused does not support scaled_dot_product_attention yet")

class Branch(Plain):
    def forward(self, x):
        return x if self.layer(x).sum() > 0 else -x

class Leaves(Plain):
    def forward(self, x):
        raise SystemExit(3)

class Silent(Plain):
    def forward(self, x):
        self.layer(x)

class Attention(Plain):
    def forward(self, x):
        y = self.layer(x).unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.empty(4, 8, 8))
    def forward(self, x):
        return torch.bmm(x.view(4, -1, 8) if x.dim() == 2 else x, self.up)

class Mixture(nn.Module):
    ep_plan = {"experts": "expert_parallel"}
    tp_plan = {"layer": "colwise_gather_output"}
    def __init__(self):
        super().__init__()
        self.layer, self.experts = nn.Linear(8, 8), Experts()
    def forward(self, x):
        y = self.layer(x)
        return self.experts(y.reshape(4, -1, 8)).view_as(y)

def broken():
    raise RuntimeError("no weights here")

constant = 3
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "users_module.py").write_text(CODE, encoding="utf-8")
    yield "users_module"
    sys.modules.pop("users_module", None)


def plan(**settings):
    return ParallelPlan(**({"gpus": 4, "micro_batch": 2, "framework": "hf-eager"} | settings))


def test_descriptions_of_arguments():
    assert parse_input("4x3x8").shape == ("4", "3", "8")
    assert parse_input("mask=BxS:bool") == InputTensor(name="mask", shape=("B", "S"), dtype="bool")
    assert parse_input("BxS:int64").sizes(3, 5) == (3, 5)
    for text in ("", "4 x 4", "BxQ", "x4", "name="):
        with pytest.raises(ConfigError, match="not understood"):
            parse_input(text)


def test_a_module_runs_under_data_parallelism_and_pipelines(code):
    module = open_module(f"{code}:build", ["BxS:int64"], sequence_length=16)
    results = [
        simulate(Scenario(topology="polaris", model="mine", plan=plan(**settings)), spec=module)
        for settings in (
            {},
            {"sharding": "zero3", "framework": "fsdp"},
            {"pp": 2, "global_batch": 16},
            {"recompute": "full"},
        )
    ]
    assert all(result.metrics.iteration_time_s > 0 for result in results)
    assert results[0].spec.n_parameters == 2 * 100 * 64 + 100 + 4 * (64 * 64 + 64)
    assert results[0].plan.sequence_length == 16


def test_documents_have_no_effect_on_what_a_module_attends_to(code):
    module = open_module(f"{code}:build", ["BxS:int64"], sequence_length=16)
    documents = {"document_length": 4, "document_spread": 0.5}
    one, other = (
        simulate(Scenario(topology="polaris", model="mine", plan=plan(**settings)), spec=module)
        for settings in ({}, documents)
    )
    assert one.metrics == other.metrics
    why = "has no effect: what a recorded module attends to is what it says itself"
    assert other.idle_inputs(documents) == [f"--set document_length=4 {why}", f"--set document_spread=0.5 {why}"]


def test_each_micro_batch_is_recorded_once(code):
    module = open_module(f"{code}:build", ["BxS:int64"], sequence_length=16)
    two, four = module.model(plan()), module.model(plan(micro_batch=4))
    assert module.model(plan()) is two
    assert four.layers[1].saved_bytes == 2 * two.layers[1].saved_bytes
    assert sum(layer.is_block for layer in two.layers) == 4


def test_full_recomputation_keeps_inputs_alone(code):
    module = open_module(f"{code}:build", ["BxS:int64"], sequence_length=16)
    kept, dropped = module.model(plan()), module.model(plan(recompute="full"))
    block = next(layer for layer in dropped.layers if layer.is_block)
    assert block.recompute == block.forward and block.saved_bytes == 2 * 16 * 64 * 2
    assert sum(layer.saved_bytes for layer in dropped.layers) < sum(layer.saved_bytes for layer in kept.layers)


def test_autocast_keeps_wide_weights(code):
    module = open_module(f"{code}:Plain", ["Bx8"])
    forward = module.model(plan(precision="amp_bf16")).layers[0].forward
    assert any(kernel.dtype == "bf16" for kernel in forward)
    assert len(forward) > len(module.model(plan(precision="bf16")).layers[0].forward)  # casts


def test_example_arguments_fix_the_batch(code):
    module = open_module(f"{code}.py:with_inputs", [])
    assert (module.rows, module.max_positions) == (2, 16)
    assert open_module(f"{code}:Plain", ["Bx8"]).rows == 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Plain", {"tp": 2}, "tp=2: .* has no tp_plan"),
        ("Plain", {"ep": 2}, "ep=2: .* has no ep_plan"),
        ("Plain", {"cp": 2}, "never calls scaled_dot_product_attention"),
        ("Plain", {"recompute": "selective"}, "recompute=selective is not known"),
        ("Plain", {"precision": "fp8"}, "precision=fp8 is not known"),
        ("Mixture", {"tp": 2, "sequence_parallel": True}, "alone says where tokens are divided"),
        ("Mixture", {"ep": 2, "etp": 2}, "etp=2"),
        ("Mixture", {"tp": 2, "optimizer": "muon"}, "muon_tp_mode=duplicated: of which matrices"),
        ("Mixture", {"moe_capacity_factor": 1.0}, "drops tokens itself"),
        ("Attention", {"cp": 3, "gpus": 3}, "cp=3 does not divide the sequence of 16 tokens"),
        ("Attention", {"cp": 2, "attention": "eager"}, "fused attention alone"),
    ],
)
def test_what_only_the_author_could_split(code, name, settings, message):
    with pytest.raises(InfeasiblePlanError, match=message):
        open_module(f"{code}:{name}", ["BxSx8"], sequence_length=16).model(plan(**settings))


def test_a_fixed_length_is_not_split(code):
    with pytest.raises(InfeasiblePlanError, match=r"no argument of .* has an open length"):
        open_module(f"{code}:Attention", ["Bx16x8"]).model(plan(cp=2, sequence_length=16))


def test_ranks_split_what_the_module_marks(code):
    """Two rows of 16 tokens of 8 elements in 16 bits: a rank sends 512 bytes to its experts, or half its tokens' keys and values
    over; the whole has the same parameters and FLOPs whoever has them."""
    experts = open_module(f"{code}:Mixture", ["BxSx8"], sequence_length=16)
    attention = open_module(f"{code}:Attention", ["BxSx8"], sequence_length=16)
    assert (experts.n_experts, attention.n_experts) == (4, 0)
    for module, axis, collective, n_bytes in (
        (experts, "ep", "all_to_all", 4 * 2 * 16 * 8 * 2),
        (attention, "cp", "all_gather", 2 * (2 * 2 * 16 * 8 * 2)),
    ):
        answers = [
            simulate(Scenario(topology="polaris", model="mine", plan=plan(cp_comm_type="all_gather", **s)), spec=module)
            for s in ({}, {axis: 2})
        ]
        sent = [[row["bytes"] for row in a.metrics.communication if row["axis"] == axis] for a in answers]
        assert sum(sent[0]) == 0 and sent[1][0] == n_bytes
        assert answers[0].model.n_parameters == answers[1].model.n_parameters == module.n_parameters
        assert answers[0].model.model_flops_per_sequence == answers[1].model.model_flops_per_sequence
        assert {row["collective"] for row in answers[1].metrics.communication if row["axis"] == axis} >= {collective}


def test_a_module_without_fused_attention_says_so_and_runs_without(code):
    """As transformers' DeepSeek-V4, whose ``set_attn_implementation("sdpa")`` raises a ValueError."""
    module = open_module(f"{code}:Unfused", ["Bx8"])
    with pytest.raises(InfeasiblePlanError, match="does not support scaled_dot_product_attention yet"):
        module.model(plan(attention="flash"))
    assert module.model(plan(attention="eager")).layers


@pytest.mark.parametrize(
    ("target", "batch", "message"),
    [
        ("users_module", ["4x8"], "write package.module:name"),
        ("no_such_package:build", ["4x8"], "cannot be imported"),
        ("absent.py:build", ["4x8"], "no file"),
        ("users_module:bild", ["4x8"], "Did you mean 'build'"),
        ("users_module:broken", ["4x8"], "no weights here"),
        ("users_module:constant", ["4x8"], "gives a int"),
        ("users_module:build", [], "arguments of its forward"),
    ],
)
def test_targets_that_are_none(code, target, batch, message):
    with pytest.raises(ConfigError) as error:
        open_module(target, batch)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("target", "batch", "message"),
    [
        ("users_module:Branch", "4x8", "control flow depends on data"),
        ("users_module:Plain", "4x9", "cannot run on tensors without data"),
        ("users_module:Plain", "4x8:int63", "dtype 'int63' is unknown"),
        ("users_module:Plain", "y=4x8", "forward fails"),
        ("users_module:Plain", "4x0", "4x0 is not the shape"),
        ("users_module:Plain", "4x99999999999999999999", "is not the shape"),
        ("users_module:Leaves", "4x8", "forward fails: SystemExit"),
        ("users_module:Silent", "4x8", "returns nothing that depends on its parameters"),
    ],
)
def test_modules_that_do_not_run(code, target, batch, message):
    with pytest.raises(ConfigError) as error:
        open_module(target, [batch]).model(plan(micro_batch=4))
    assert message in str(error.value)
