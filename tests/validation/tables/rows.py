"""Measured rows and outcomes to test with."""

from validation.tables.outcome import Outcome
from validation.tables.reader import Row

TRAINING = (
    "row_id,source,topology,architecture,model,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpus,precision,"
    "framework,dp,tp,pp,virtual_pp,schedule,sharding,sequence_parallel,micro_batch,global_batch,recompute,"
    "flash_attention,metric,value,split,notes"
)


def training_row(**cells):
    blank = dict.fromkeys(TRAINING.split(","), "")
    usual = {
        "row_id": "T-1", "source": "a/b@1234567:x", "topology": "selene", "architecture": "gpt",
        "model": "GPT-7.5B", "layers": "36", "hidden": "4096", "heads": "32", "seq_len": "2048", "gpus": "128",
        "precision": "fp16", "framework": "Megatron-LM", "dp": "32", "tp": "4", "micro_batch": "16",
        "global_batch": "512", "recompute": "full", "metric": "iteration_time_s", "value": "3.7", "split": "fit",
    }  # fmt: skip
    return Row(kind="training", file="t.csv", line=2, cells={**blank, **usual, **cells})


def outcome(predicted, measured, metric="iteration_time_s", **cells):
    return Outcome(row=training_row(value=str(measured), metric=metric, **cells), predicted=predicted)


def write(tmp_path, text, name="file.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path
