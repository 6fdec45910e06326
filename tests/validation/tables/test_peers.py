"""Rows in the words of other tools, and their answers beside ours."""

import sys

import pytest

from simulator.errors import ConfigError
from tests.validation.tables.rows import outcome, training_row
from validation.tables import peers
from validation.tables.cases import case_of
from validation.tables.peers import PEERS, InexpressibleError, Peer, ask, compared, expressed
from validation.tables.residuals import noise_floors

#: Calculon's own example of 1T parameters on 3,072 GPUs: examples/3072_t4_p64_d12_mbs4_full.json and models/megatron-1T.json
EXAMPLE = {
    "model": "GPT-1T", "layers": "128", "hidden": "25600", "heads": "160", "gpus": "3072", "tp": "4", "pp": "64", "dp": "12",
    "micro_batch": "4", "global_batch": "3072", "recompute": "full", "sharding": "zero1", "sequence_parallel": "1",
    "schedule": "1f1b", "virtual_pp": "1",
}  # fmt: skip


def test_calculons_own_example_comes_out_in_its_words():
    found = PEERS["Calculon"].translate(case_of(training_row(**EXAMPLE))[0], "a100-sxm4-80g")
    assert found["application"] == {
        "hidden": 25600, "feedforward": 102400, "seq_size": 2048, "attn_heads": 160, "attn_size": 160, "num_blocks": 128,
    }  # fmt: skip
    assert found["execution"] == {
        "num_procs": 3072, "tensor_par": 4, "pipeline_par": 64, "data_par": 12, "tensor_par_net": 0, "pipeline_par_net": 1,
        "data_par_net": 1, "batch_size": 3072, "microbatch_size": 4, "datatype": "float16", "fused_activation": True,
        "attention_type": "multihead", "activation_recompute": "full", "pipeline_interleaving": 1, "optimizer_sharding": True,
        "tensor_par_comm_type": "rs_ag", "tensor_par_overlap": "none", "seq_par_ag_redo": False, "data_par_overlap": False,
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip
    assert found["system"] == "a100_80g"


def test_llm_analysis_gets_steps_and_stages_of_zero():
    found = PEERS["llm-analysis"].translate(case_of(training_row(**EXAMPLE))[0], "a100-sxm4-80g")
    assert found["training"]["gradient_accumulation_steps"] == 64  # 3072 / (12 x 4)
    assert (found["recompute"], found["zero"], found["gpu"]) == (2, 1, "a100-sxm-80gb")


@pytest.mark.parametrize(
    ("name", "device", "cells", "word"),
    [
        ("Calculon", "v100-sxm2-32g", {}, "device v100"),
        ("Calculon", "a100-sxm4-80g", {"sharding": "zero3"}, "sharding zero3"),
        ("SimuMax", "a100-sxm4-80g", {}, "no system file"),
        ("llm-analysis", "a100-sxm4-80g", {"precision": "fp32"}, "precision fp32"),
    ],
)
def test_what_a_tool_has_no_words_for_is_said(name, device, cells, word):
    with pytest.raises(InexpressibleError, match=word):
        PEERS[name].translate(case_of(training_row(**cells))[0], device)


def toy(module="json"):
    driver = f"import {module}\ndef seconds(one):\n    return 2.0 / one['gpus']\n" + peers._LOOP
    return Peer(checkout="", module=module, translate=lambda case, device: {"gpus": case.plan.gpus}, driver=driver)


def test_a_tool_answers_row_by_row_and_an_absent_one_is_named():
    inputs, reasons = expressed(toy(), [training_row(), training_row(topology="nowhere")])
    assert inputs == {0: {"gpus": 128}} and reasons.total() == 1
    assert ask(toy(), sys.executable, None, [*inputs.values(), {"gpus": 0}]) == [
        1 / 64,
        "ZeroDivisionError: float division by zero",
    ]
    with pytest.raises(ConfigError, match="not_a_module"):
        ask(toy("not_a_module"), sys.executable, None, [])


def test_both_sides_are_judged_on_the_same_rows():
    ours = [outcome(1.1, 1.0, tp="4"), outcome(2.0, 2.0, tp="2")]
    theirs = [outcome(1.5, 1.0, tp="4"), outcome(1.0, 2.0, tp="2")]
    rows = {row[0]: row[1:] for row in compared("toy", ours, theirs).rows}
    assert rows["a/b"] == ("2", "5.0%", "50.0%")
    assert rows["pairs of layouts in order"] == ("1", "100.0%", "0.0%")
    assert rows["the layout picked ran slower by"] == ("1", "0.0%", "100.0%")


def test_rows_of_equal_settings_give_the_noise_of_their_source():
    rows = [outcome(1.0, 1.0), outcome(1.0, 1.1), outcome(1.0, 0.8), outcome(1.0, 5.0, tp="2", dp="64")]
    floors = noise_floors(rows)
    assert list(floors) == ["a/b"]
    assert sorted(floors["a/b"]) == pytest.approx([0.0, 0.1, 0.2])
