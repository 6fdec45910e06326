"""A launch script with its arguments, beside the main command."""

import json

import pytest

from simulator.cli.main import main

SCRIPT = """#!/bin/bash
case $1 in
  small) HIDDEN=512 ;;
  big) HIDDEN=1024 ;;
esac
torchrun --nproc-per-node 8 --nnodes ${NNODES} pretrain_gpt.py --num-layers 4 --hidden-size $HIDDEN --num-attention-heads 8 \\
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --bf16 --tensor-model-parallel-size $2
"""


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, json.loads(capsys.readouterr().out)


def test_arguments_and_variables_reach_the_script(monkeypatch, capsys, tmp_path):
    path = tmp_path / "train it.sh"
    path.write_text(SCRIPT)
    job = ("--topology", "dgx-a100-80g", "--megatron", path, "-D", "NNODES=2", "--args")
    status, small = run(monkeypatch, capsys, *job, "small 2")
    _, placed = run(monkeypatch, capsys, *job, "1=small", "--args", "2=2")
    _, big = run(monkeypatch, capsys, *job, "big 4")
    assert (
        status == 0
        and small["provenance"]["scenario"]["plan"]["tp"] == 2
        and small["provenance"]["scenario"]["plan"]["gpus"] == 16
    )
    assert placed["iteration_time_s"] == small["iteration_time_s"]
    assert big["provenance"]["scenario"]["plan"]["tp"] == 4 and big["iteration_time_s"] != small["iteration_time_s"]


def test_arguments_without_a_script_are_an_error(monkeypatch, capsys):
    status, answer = run(monkeypatch, capsys, "--topology", "bigred200", "--model", "gpt2", "--args", "8B")
    assert status == 3 and "--megatron" in answer["error"]["hint"]
