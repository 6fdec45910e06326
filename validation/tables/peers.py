"""``python -m validation.tables.peers``: the same measured iterations predicted by other tools, where they are installed.

Each tool gets the rows that it can express, in its own words and with the machine files that it ships, and runs in an interpreter
that has it. Nothing of theirs is here but the names of their inputs. Errors stand beside ours on the same rows, and so do the
decisions between layouts of one job.

References
----------
Calculon (github.com/calculon-ai/calculon), ``examples/*.json``; llm-analysis (pypi.org/project/llm-analysis),
``llm_analysis/analysis.py``; SimuMax (github.com/MooreThreads/SimuMax), ``configs/``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from simulator.errors import ConfigError, SimulatorError
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.report.grid import Grid
from validation.tables.cases import Case, case_of
from validation.tables.error_tables import percent, print_spaced
from validation.tables.outcome import Outcome
from validation.tables.predicting import predict_rows
from validation.tables.reader import MEASUREMENTS, Row, read_table, select
from validation.tables.statistics import decisions, group_outcomes

FILES = ("training.csv", "frontier_training.csv")
#: where checkouts are looked for unless said otherwise
_BESIDE = Path(__file__).resolve().parents[3]
_LIMIT_S = 600

Inputs = dict[str, Any]


class InexpressibleError(Exception):
    """A row that a tool has no words for; says which ones are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another tool: how it is found, what it is asked, and how it answers."""

    checkout: str  #: Directory of its checkout beside the project; empty where it is installed.
    module: str  #: What can be imported where it is there.
    translate: Callable[[Case, str], Inputs]  #: A case and the name of its device, in the tool's words.
    #: Python that reads a list of inputs from stdin and prints a list of seconds, or of reasons why there are none.
    driver: str


def _needs(holds: bool, word: str) -> None:
    if not holds:
        raise InexpressibleError(word)


def _dense(case: Case) -> tuple[ModelSpec, ParallelPlan]:
    """Return what every tool expresses: dense decoders in 16 bits, split by tensors, stages and replicas."""
    spec, plan = case.spec, case.plan
    _needs(spec.family.is_decoder_like, f"architecture {spec.architecture}")
    _needs(not spec.has_experts, "experts")
    _needs(plan.precision in ("bf16", "fp16", "amp_bf16", "amp_fp16"), f"precision {plan.precision}")
    _needs(plan.cp * plan.ep == 1, "context or expert parallelism")
    _needs(not plan.lora_rank, "adapters")
    _needs(plan.schedule in ("1f1b", "1f1b-interleaved"), f"schedule {plan.schedule}")
    _needs(bool(plan.micro_batch and plan.global_batch and plan.dp), "an open batch")
    _needs(plan.recompute_layers is None, "recomputation of some blocks")
    return spec, plan


def _accumulated(plan: ParallelPlan) -> int:
    return (plan.global_batch or 0) // ((plan.dp or 1) * (plan.micro_batch or 1))


_CALCULON_SYSTEMS = {"a100-sxm4-80g": "a100_80g", "h100-sxm5-80g": "h100_80g_nvl8"}


def calculon_inputs(case: Case, device: str) -> Inputs:
    """Return Calculon's application, execution and system."""
    spec, plan = _dense(case)
    _needs(device in _CALCULON_SYSTEMS, f"device {device}: no system file is shipped")
    _needs(spec.kv_heads == spec.heads, "grouped queries")
    _needs(plan.sharding in ("none", "zero1"), f"sharding {plan.sharding}")
    scattered = plan.sequence_parallel and plan.tp > 1
    execution = {
        "num_procs": plan.gpus, "tensor_par": plan.tp, "pipeline_par": plan.pp, "data_par": plan.dp,
        "tensor_par_net": int(plan.tp > 8), "pipeline_par_net": int(plan.tp * plan.pp > 8 or (plan.dp or 1) > 1),
        "data_par_net": int(plan.gpus > 8), "batch_size": plan.global_batch, "microbatch_size": plan.micro_batch,
        "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": {"none": "none", "selective": "attn_only", "full": "full"}[plan.recompute],
        "pipeline_interleaving": plan.virtual_pp, "optimizer_sharding": plan.sharding == "zero1" and (plan.dp or 1) > 1,
        "tensor_par_comm_type": "rs_ag" if scattered else "ar", "tensor_par_overlap": "none",
        "seq_par_ag_redo": bool(scattered and plan.recompute != "full"), "data_par_overlap": False, "weight_offload": False,
        "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip
    application = {
        "hidden": spec.hidden, "feedforward": spec.ffn_hidden * 3 // 2 if spec.gated_mlp else spec.ffn_hidden,
        "seq_size": plan.sequence_length, "attn_heads": spec.heads, "attn_size": spec.head_dim, "num_blocks": spec.layers,
    }  # fmt: skip
    return {"application": application, "execution": execution, "system": _CALCULON_SYSTEMS[device]}


_LLM_ANALYSIS_GPUS = {
    "a100-sxm4-80g": "a100-sxm-80gb", "a100-sxm4-40g": "a100-sxm-40gb", "h100-sxm5-80g": "h100-sxm-80gb",
    "v100-sxm2-32g": "v100-sxm-32gb", "v100-sxm2-16g": "v100-sxm-16gb", "a100-pcie-80g": "a100-pcie-80gb",
}  # fmt: skip


def llm_analysis_inputs(case: Case, device: str) -> Inputs:
    """Return the arguments of llm-analysis' training analysis, at half the peak rate, as its own words advise."""
    spec, plan = _dense(case)
    _needs(device in _LLM_ANALYSIS_GPUS, f"device {device}: no GPU file is shipped")
    _needs(plan.sharding in ("none", "zero1", "zero2", "zero3"), f"sharding {plan.sharding}")
    return {
        "gpu": _LLM_ANALYSIS_GPUS[device],
        "efficiency": 0.5,
        "model": {
            "name": spec.name, "num_layers": spec.layers, "n_head": spec.heads, "hidden_dim": spec.hidden,
            "vocab_size": spec.vocab, "max_seq_len": plan.sequence_length, "num_key_value_heads": spec.kv_heads,
            "ffn_embed_dim": spec.ffn_hidden, "expansion_ratio": spec.ffn_hidden / spec.hidden,
        },
        "parallelism": {
            "tp_size": plan.tp, "pp_size": plan.pp, "dp_size": plan.dp, "ep_size": 1,
            "sp_size": plan.tp if plan.sequence_parallel else 1,
        },
        "training": {
            "batch_size_per_gpu": plan.micro_batch, "gradient_accumulation_steps": _accumulated(plan),
            "global_batch_size": plan.global_batch, "seq_len": plan.sequence_length, "flash_attn": plan.attention == "flash",
            "mlp_gated_linear_units": spec.gated_mlp,
        },
        "recompute": {"none": 0, "selective": 1, "full": 2}[plan.recompute],
        "zero": {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[plan.sharding],
    }  # fmt: skip


_SIMUMAX_SYSTEMS = {"a100-pcie-80g": "a100_pcie", "b200": "b200_bf16_ceperm"}


def simumax_inputs(case: Case, device: str) -> Inputs:
    """Return SimuMax's model, strategy and system."""
    spec, plan = _dense(case)
    _needs(device in _SIMUMAX_SYSTEMS, f"device {device}: no system file is shipped")
    _needs(plan.sharding in ("none", "zero1"), f"sharding {plan.sharding}")
    full = plan.recompute == "full"
    strategy = {
        "seq_len": plan.sequence_length, "micro_batch_size": plan.micro_batch, "micro_batch_num": _accumulated(plan),
        "dtype": "bf16", "world_size": plan.gpus, "tp_size": plan.tp, "pp_size": plan.pp, "ep_size": 1, "etp_size": 1,
        "enable_sequence_parallel": bool(plan.sequence_parallel), "interleaving_size": plan.virtual_pp,
        "zero_state": int(plan.sharding == "zero1"), "use_flash_sdp": plan.attention == "flash",
        "use_math_sdp": plan.attention != "flash", "enable_recompute": plan.recompute != "none",
        "recompute_granularity": {"none": None, "selective": "sdp_only", "full": "full_block"}[plan.recompute],
        "recompute_layer_num": spec.layers // plan.pp if full else 0,
    }  # fmt: skip
    model = {
        "hidden_size": spec.hidden, "head_num": spec.heads, "kv_head_num": spec.kv_heads, "head_size": spec.head_dim,
        "intermediate_size": spec.ffn_hidden, "layer_num": spec.layers, "vocab_size": spec.vocab, "use_swiglu": spec.gated_mlp,
        "model_type": "dense", "model_name": spec.name,
    }  # fmt: skip
    return {"model": model, "strategy": strategy, "system": _SIMUMAX_SYSTEMS[device]}


_LOOP = """
import contextlib, json, sys
def main(inputs):
    found = []
    with contextlib.redirect_stdout(sys.stderr):
        for one in inputs:
            try:
                found.append(float(seconds(one)))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}"[:120])
    print(json.dumps(found))
main(json.load(sys.stdin))
"""

PEERS: dict[str, Peer] = {
    "Calculon": Peer(
        checkout="calculon",
        module="calculon",
        translate=calculon_inputs,
        driver="""
import json, logging, os, calculon
from calculon.llm import Llm
root = os.path.dirname(os.path.dirname(calculon.__file__))
def seconds(one):
    with open(os.path.join(root, "systems", one["system"] + ".json")) as file:
        system = calculon.System(json.load(file))
    model = Llm(Llm.Application(one["application"]), logging.getLogger("peer"))
    model.compile(system, Llm.Execution.from_json(one["execution"]))
    model.run(system)
    return model.get_total_time()
"""
        + _LOOP,
    ),
    "llm-analysis": Peer(
        checkout="",
        module="llm_analysis.analysis",
        translate=llm_analysis_inputs,
        driver="""
import logging
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
logging.disable(logging.CRITICAL)
def seconds(one):
    analysis = LLMAnalysis(ModelConfig(**one["model"]), get_gpu_config_by_name(one["gpu"]), DtypeConfig(),
                           ParallelismConfig(**one["parallelism"]), flops_efficiency=one["efficiency"], hbm_memory_efficiency=1)
    answer = analysis.training(activation_recomputation=ActivationRecomputation(one["recompute"]), ds_zero=DSZeRO(one["zero"]),
                               total_num_tokens=1e9, **one["training"])
    return answer["latency_per_iter"]
"""
        + _LOOP,
    ),
    "SimuMax": Peer(
        checkout="SimuMax",
        module="simumax.core.perf_llm",
        translate=simumax_inputs,
        driver="""
import simumax
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
from simumax.utils import get_simu_system_config
def seconds(one):
    perf = PerfLLM()
    perf.configure(strategy_config=StrategyConfig(**one["strategy"]), model_config=ModelConfig(**one["model"]),
                   system_config=SystemConfig.init_from_config_file(get_simu_system_config(one["system"])))
    perf.run_estimate()
    answer = perf.analysis_cost().data
    return answer["all_tokens_per_iter"] / answer["throughput_per_accelerator"] / one["strategy"]["world_size"]
"""
        + _LOOP,
    ),
}


def expressed(peer: Peer, rows: Sequence[Row]) -> tuple[dict[int, Inputs], Counter[str]]:
    """Return the inputs of the rows that a tool expresses, by position, and why it does not express the others."""
    from simulator.topology import load_topology

    found: dict[int, Inputs] = {}
    reasons: Counter[str] = Counter()
    for position, row in enumerate(rows):
        try:
            case, _ = case_of(row)
            found[position] = peer.translate(case, load_topology(case.topology, case.plan.gpus).device(0).name)
        except InexpressibleError as missing:
            reasons[str(missing)] += 1
        except SimulatorError as error:
            reasons[error.message.splitlines()[0]] += 1
    return found, reasons


def ask(peer: Peer, python: str, checkout: Path | None, inputs: Sequence[Inputs]) -> list[float | str]:
    """Return the tool's seconds for each input, or why it gave none."""
    path = os.pathsep.join(filter(None, (str(checkout or ""), os.environ.get("PEER_PATH", ""))))
    run = subprocess.run(
        [python, "-c", peer.driver], input=json.dumps(list(inputs)), capture_output=True, text=True, timeout=_LIMIT_S,
        env={**os.environ, "PYTHONPATH": path}, check=False, cwd=checkout,
    )  # fmt: skip
    if run.returncode:
        raise ConfigError(
            f"{peer.module} does not run: {(run.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
        )
    answers: list[float | str] = json.loads(run.stdout)
    return answers


def compared(title: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Grid:
    """Show errors on the same rows by source, their mean over sources, and the decisions between layouts."""
    means = [
        {g.key["source"]: (g.n, g.mean_absolute or 0.0) for g in group_outcomes(o, ("source",))} for o in (ours, theirs)
    ]
    rows: list[tuple[str, ...]] = [
        (source, str(n), percent(mean), percent(means[1][source][1])) for source, (n, mean) in sorted(means[0].items())
    ]
    averages = [sum(mean for _, mean in found.values()) / max(len(found), 1) for found in means]
    decided = [decisions(outcomes) for outcomes in (ours, theirs)]
    rows.append(("mean of sources' means", str(len(ours)), *map(percent, averages)))
    rows.append(("pairs of layouts in order", str(decided[0].n_pairs), *(percent(d.ordered) for d in decided)))
    rows.append(("the layout picked ran slower by", str(decided[0].n_jobs), *(percent(d.regret) for d in decided)))
    return Grid(title, ("source", "n", "ours", "theirs"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask every tool that is there and print both sides' errors; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m validation.tables.peers", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the tools and what they need")
    parser.add_argument("--beside", type=Path, default=_BESIDE, help="directory of their checkouts")
    parser.add_argument("--where", action="append", default=[], help="only rows with column=value; repeatable")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    console = Console(width=140, highlight=False)
    rows: list[Row] = []
    for name in FILES:
        try:
            rows += select(read_table(MEASUREMENTS / name), options.where)
        except ConfigError as error:
            console.print(error.message)
    rows = [row for row in rows if row.metric == "iteration_time_s"]
    known: dict[int, Outcome] = {}
    for name, peer in PEERS.items():
        checkout = options.beside / peer.checkout if peer.checkout else None
        inputs, reasons = expressed(peer, rows)
        try:
            answers = ask(
                peer, options.python, checkout if checkout and checkout.is_dir() else None, list(inputs.values())
            )
        except ConfigError as error:
            console.print(f"{name}: skipped. {error.message}")
            continue
        reasons.update(answer.split(":")[0] + " of its own" for answer in answers if isinstance(answer, str))
        seconds = {p: a for p, a in zip(inputs, answers, strict=True) if not isinstance(a, str)}
        missing = [position for position in seconds if position not in known]
        found = predict_rows([rows[position] for position in missing], n_processes=options.processes)
        known.update(zip(missing, found, strict=True))
        ours = {p: known[p] for p in seconds if known[p].relative_error is not None}
        theirs = [replace(outcome, predicted=seconds[p]) for p, outcome in ours.items()]
        if ours:
            print_spaced(compared(f"{name}: {len(ours)} of {len(rows)} rows", list(ours.values()), theirs), console)
        else:
            console.print(f"{name}: no row that it expresses")
        said = "; ".join(f"{reason} ({n})" for reason, n in reasons.most_common(6))
        console.print(f"not expressed: {said or 'nothing'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
