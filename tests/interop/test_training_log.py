"""Logs in the shape of the tools' own; medians and rates worked out by hand."""

import csv
import io
import json

import pytest

from simulator.cli.main import main
from simulator.errors import ConfigError
from simulator.interop import import_any, recognise
from simulator.interop.account import account_of

ARGUMENTS = """ bf16 ............................................ True
  data_parallel_size .............................. 4
  ffn_hidden_size ................................. 4096
  hidden_size ..................................... 1024
  micro_batch_size ................................ 2
  num_attention_heads ............................. 16
  num_layers ...................................... 24
  num_query_groups ................................ None
  padded_vocab_size ............................... 50304
  pipeline_model_parallel_size .................... 1
  recompute_granularity ........................... full
  seq_length ...................................... 2048
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
  world_size ...................................... 8
"""
STEP = (
    " [2026-01-01 00:00:{n:02d}] iteration {n:8d}/     100 | consumed samples: {n:12d} | elapsed time per iteration (ms): {ms} | "
    "learning rate: 1.0E-05 | global batch size:    64 | lm loss: 9.0E+00 |\n"
)
MEGATRON = ARGUMENTS + "".join(
    STEP.format(n=n, ms=ms) for n, ms in enumerate((9000.0, 800.0, 700.0, 512.0, 510.0, 514.0, 511.0, 513.0), 1)
)
LOGS = {
    "Megatron-LM": (MEGATRON, "iteration_time_s", 0.512),  # the median of 512, 510, 514, 511 and 513 ms
    "NeMo": (
        "Training epoch 0, iteration {n}/9 | lr: 1e-5 | global_batch_size: 128 | global_step: {n} | train_step_timing in s: 2.5\n"
        * 8,
        "iteration_time_s",
        2.5,
    ),
    "torchtitan": (
        "[rank0]:Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
        + "[rank0]:\x1b[31mstep: 10  \x1b[32mloss:  7.10  \x1b[33mmemory: 40GiB(50%)  \x1b[34mtps: 6,500  \x1b[36mtflops: 380.0\n"
        * 8,
        "tokens_per_s",
        6500 * 8,
    ),
    "DeepSpeed": ("steps: 10 loss: 9.2 iter time (s): 0.512 samples/sec: 31.250\n" * 8, "iteration_time_s", 0.512),
    "Trainer": (
        "{'train_runtime': 100.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}\n",
        "iteration_time_s",
        2.0,
    ),
    "MLPerf": (
        ':::MLLOG {"namespace": "", "key": "global_batch_size", "value": 1536, "metadata": {}}\n'
        + ':::MLLOG {"namespace": "", "key": "tracked_stats", "value": {"throughput": 768.0}, "metadata": {"step": 1}}\n'
        * 8,
        "iteration_time_s",
        2.0,
    ),
}


def written(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize("tool", LOGS)
def test_a_log_is_one_measured_row(tmp_path, tool):
    text, metric, value = LOGS[tool]
    path = written(tmp_path, text)
    assert recognise(path) == ["training-log"]
    found = import_any(path)
    row = found.measurements("dgx-h100")[0]
    assert (found.tool, row["metric"], float(row["value"])) == (tool, metric, pytest.approx(value))


@pytest.mark.parametrize(
    ("line", "metric", "value"),
    [
        # bigscience-workshop/Megatron-DeepSpeed, and DeepSpeed before 0.7
        (
            "iteration 9/ 10 | consumed samples: 9 | elapsed time per iteration (s): 33.56 | global batch size: 512 |",
            "iteration_time_s",
            33.56,
        ),
        ("[INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.5, MemAllocated=0.26GB", "samples_per_s", 83.5),
        ("RunningAvgSamplesPerSec=16.1, CurrSamplesPerSec=16.8, MemAllocated=0.02GB", "samples_per_s", 16.8),
    ],
)
def test_lines_of_other_ages(tmp_path, line, metric, value):
    path = written(tmp_path, (line + "\n") * 8)
    assert recognise(path) == ["training-log"]
    row = import_any(path).measurements("x")[0]
    assert (row["metric"], float(row["value"])) == (metric, value)


def test_a_log_repeats_settings_and_a_script_quotes_logs(tmp_path):
    steps = LOGS["Megatron-LM"][0]
    assert recognise(written(tmp_path, "+ torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64\n" + steps)) == [
        "training-log"
    ]
    script = "#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 2 --hidden-size 64\n: <<'END'\n" + steps + "END\n"
    assert recognise(written(tmp_path, script)) == ["megatron"]


def test_megatron_prints_its_job(tmp_path):
    row = import_any(written(tmp_path, MEGATRON)).measurements("selene")[0]
    expected = {
        "gpus": "8", "dp": "4", "tp": "2", "pp": "1", "layers": "24", "hidden": "1024", "heads": "16", "ffn": "4096", "vocab": "50304",
        "seq_len": "2048", "micro_batch": "2", "global_batch": "64", "precision": "bf16", "sharding": "zero1", "recompute": "full",
        "sequence_parallel": "1", "architecture": "gpt", "topology": "selene", "split": "",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert "kv_heads" not in row


def test_what_the_log_does_not_tell_is_asked_for(tmp_path):
    text = LOGS["torchtitan"][0].split("\n", 1)[1]
    with pytest.raises(ConfigError, match="not how many ran") as error:
        import_any(written(tmp_path, text))
    assert "--gpus" in error.value.hint
    assert float(import_any(written(tmp_path, text), options={"gpus": 4}).measurements("x")[0]["value"]) == 26000
    document, _ = account_of(import_any(written(tmp_path, LOGS["NeMo"][0])))
    assert [text.partition(":")[0] for text in document["unknown"]] == ["gpus", "topology"]


def test_a_log_goes_into_validate(monkeypatch, capsys, tmp_path):
    path, table = written(tmp_path, MEGATRON), tmp_path / "rows.csv"
    for words in (
        ["import", path, "--csv", table, "--topology", "selene", "--json"],
        ["validate", table, "--json"],
    ):
        monkeypatch.setattr("sys.argv", ["simulate", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        answer = json.loads(capsys.readouterr().out)
    assert next(csv.DictReader(io.StringIO(table.read_text())))["value"] == "0.512"
    assert answer["rows"][0]["measured"] == 0.512
    assert answer["rows"][0]["predicted"], answer["rows"][0]["reason"]
