"""The options of the main command, but for the settings of a plan, which declare themselves."""

from __future__ import annotations

from simulator.cli.completion import (
    algorithms,
    failure_rates,
    files,
    models,
    networks,
    placements,
    policies,
    presets,
    protocols,
    topologies,
)
from simulator.cli.options import (
    CLUSTER_HELP,
    JSON_HELP,
    MEMORY_MARGIN_HELP,
    TRANSPORT_HELP,
    Flag,
    Number,
    Real,
    Text,
    Texts,
)

#: heading of ``--help`` -> the options below it by name
FLAGS: dict[str | None, dict[str, Flag]] = {
    "What to run": {
        "topology": Flag(Text, CLUSTER_HELP, "--topology", "-t", words=topologies),
        "model": Flag(Text, "Model: a catalogue name, a config.json, hf:NAME.", "--model", "-m", words=models),
        "module": Flag(Text, "Your torch module instead: package.module:name or file.py:name."),
        "batch": Flag(Texts, "Shape of an input of its forward(), e.g. BxS:int64; repeatable."),
        "gpus": Flag(Text, "GPUs to use; a list 1,2,4,8 gives a scaling table."),
        "preset": Flag(Text, "A published run to start from; flags win. 'list' prints them.", words=presets),
    },
    "Plan files": {
        "plan": Flag(
            Text,
            "Plan file, ours or another tool's; flags win. Each of its keys is a flag, too.",
            words=files(".yaml", ".yml", ".json", ".toml"),
        ),
        "deepspeed": Flag(Text, "DeepSpeed's ds_config.json.", words=files(".json")),
        "megatron": Flag(Text, "A Megatron-LM launch script: model and plan.", words=files(".sh")),
        "args": Flag(Texts, "Positional arguments of that script, '8B 4 ...' or 4=VALUE; repeatable."),
        "define": Flag(Texts, "Variables of that script, NAME=VALUE; repeatable.", "--define", "-D"),
    },
    "Cost models": {
        "network": Flag(str, "flow (max-min sharing), alpha-beta or chunk (every message).", words=networks, default="flow"),
        "transport": Flag(Text, TRANSPORT_HELP),
        "nccl_algo": Flag(Text, "Force the collective algorithm.", words=algorithms),
        "nccl_proto": Flag(Text, "Force the protocol: ll, ll128, simple.", words=protocols),
        "seed": Flag(int, "Seed of everything random.", default=0),
        "set_": Flag(Texts, "Change a plan or topology value: key=value.", "--set"),
        "slow_rank": Flag(Texts, "A slow GPU: RANK=FACTOR on its kernel times; repeatable."),
        "slow_link": Flag(Texts, "Degraded links: nodeN.KIND=FACTOR or 'A -> B=FACTOR' on their times; repeatable."),
        "flapping": Flag(Texts, "A link that comes and goes: nodeN.nic=DOWN/EVERY, or 'A -> B=5 s/10 min'; repeatable."),
        "reroute_time": Flag(Text, "Time until traffic is routed around a flapping link; 1 s by default."),
        "network_trouble": Flag(
            bool, "Say what hashed flows, failed spines, slow links and incast cost, and what rerouting wins back.", "--network-trouble"
        ),
        "power_cap": Flag(Text, "What a GPU, node or rack may draw: 500W, 6kW/node, 40kW/rack; clocks fall with it."),
        "unfold": Flag(bool, "Simulate every rank and micro-batch, not one per class and period.", "--unfold"),
    },
    "Other jobs and sites": {
        "with_": Flag(Texts, "A job's file: play it beside this one on the same fabric; repeatable.", "--with"),
        "placement": Flag(Text, "Nodes of this job: slurm, random, in-order, or a list like 0-3,8; slurm by default.", words=placements),
        "nodes_free": Flag(Text, "File of free nodes (sinfo's): find the fastest placement of this job on them."),
        "local_steps": Flag(Number, "Steps of each site by itself between two means over all sites (DiLoCo)."),
    },
    "Whole run": {
        "tokens": Flag(Text, "Tokens to train on, e.g. 300B: days, GPU hours, cost, energy."),
        "epochs": Flag(Real, "Passes over a data set instead, with --dataset-tokens."),
        "dataset_tokens": Flag(Text, "Tokens of the data set, e.g. 10B."),
        "iterations": Flag(Number, "Optimizer steps instead."),
        "gpu_hour_price": Flag(Text, "Price of a GPU hour, e.g. 2.50 or '2.50 USD'; a list price by default."),
        "mtbf": Flag(
            Text, "Mean time between failures, '50000 h/gpu', '6000 h/node' or '3 h/job', llama3-2024 ...; or none.", words=failure_rates
        ),
        "checkpoint_interval": Flag(Text, "'30 min' or '500 steps'; Daly's optimum by default."),
        "checkpoint_time": Flag(Text, "How long a checkpoint stops training; by default as long as the storage link takes."),
        "checkpoint_policy": Flag(
            Text, "sync (training waits), async (in the background), peers (memory of other nodes), tiers (own memory, peers, storage).",
            words=policies,
        ),
        "restart_time": Flag(Text, "Time from a failure until the checkpoint is read; or 'detection=5 min, allocation=3 min ...'."),
        "pue": Flag(Real, "Energy of the building over that of its computers; 1.1 by default."),
        "kg_co2_per_kwh": Flag(Real, "Emissions of electricity in kg CO2 per kWh; 0.473 by default, the world average."),
        "histories": Flag(Number, "Play the run this many times, to show how much single runs vary."),
        "spare_nodes": Flag(Number, "Spare nodes in played runs; by default as many as needed."),
        "failure_domain": Flag(Text, "Nodes that fail at once, and in which share of the failures: '8 nodes=0.08', rack=0.08 ..."),
        "elastic": Flag(bool, "Go on with fewer replicas while a node is missing, in played runs.", "--elastic"),
        "repair_time": Flag(Text, "Time until a failed node is a spare again; 24 h by default."),
    },
    "Output": {
        "memory_margin": Flag(Text, MEMORY_MARGIN_HELP),
        "explain": Flag(bool, "Simulate what would help most.", "--explain"),
        "report": Flag(Text, "Write an HTML report."),
        "neighbours": Flag(Number, "With --report: simulate up to N answers around this one, to choose from on the page."),
        "trace": Flag(Text, "Write a timeline: .pftrace or .json for Perfetto, .et for ASTRA-sim, a folder for HTA."),
        "memory_trace": Flag(Text, "Write memory over the step (.csv or .json)."),
        "json_output": Flag(bool, JSON_HELP, "--json"),
        "max_memory": Flag(Text, "Stop with a message rather than use more memory: 4GiB, or 50% of the machine; 90% by default."),
    },
}  # fmt: skip

#: those that say how long a whole run is, how it is operated and paid for
RUN_OPTIONS = tuple(FLAGS["Whole run"])
