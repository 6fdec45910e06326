"""Command lines whose answers are recorded: drawn once, from a fixed seed, over models, clusters, frameworks and formats."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODELS = (
    "gpt2", "gpt2-large", "gpt-350m", "gpt-1.3b", "gpt-2.7b", "gpt-13b", "gpt-22b", "gpt3-175b", "bert-large", "t5-large",
    "llama2-7b", "llama3-8b", "llama2-13b", "llama3-70b", "mpt-7b", "mpt-1b", "qwen2-0.5b", "qwen3-4b", "mixtral-8x7b",
    "qwen3-30b-a3b", "deepseek-v3", "opt-1.3b", "bloom-176b", "nemotron4-15b",
)  # fmt: skip
CLUSTERS = (
    "bigred200", "polaris", "selene", "pinnacles", "thetagpu-tg40", "dgx-h100", "hgx-h200", "dgx-a100-40g", "dgx1-v100-32g",
    "a100-pcie-8x80g", "aws-p4d", "perlmutter-80g", "jean-zay-v100-32g", "eos", "abci2-a100", "juwels-booster", "gcp-a3-ultra",
    "emulated-1g-2racks-500m",
)  # fmt: skip
FRAMEWORKS = (
    "hf-eager", "megatron", "megatron-core", "megatron-deepspeed", "deepspeed", "fsdp", "llm-foundry", "torchtitan",
    "torchtitan-compile", "torch-3d", "apex-ddp", "compiled-ddp", "fused",
)  # fmt: skip
SCHEDULES = ("1f1b", "gpipe", "1f1b-interleaved", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "interlaced")


def iterations(n: int, seed: int = 1) -> Iterator[list[str]]:
    """Yield main commands; many are refused, which is an answer too."""
    draw = random.Random(seed)
    for _ in range(n):
        gpus = draw.choice((1, 2, 4, 8, 8, 16, 16, 32, 64, 256))
        argv = ["--topology", draw.choice(CLUSTERS), "--model", draw.choice(MODELS), "--gpus", str(gpus), "--json"]
        tp, pp = draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 1, 2, 4))
        argv += ["--tp", str(tp)] * (tp > 1) + ["--pp", str(pp)] * (pp > 1)
        argv += ["--micro-batch", str(draw.choice((1, 1, 2, 4)))] * (draw.random() < 0.85)
        argv += ["--global-batch", str(draw.choice((1, 2, 4)) * gpus)] * (draw.random() < 0.6)
        argv += ["--framework", draw.choice(FRAMEWORKS)] * (draw.random() < 0.7)
        argv += ["--sharding", draw.choice(("none", "zero1", "zero2", "zero3", "hsdp"))] * (draw.random() < 0.5)
        argv += ["--recompute", draw.choice(("none", "selective", "full"))] * (draw.random() < 0.4)
        argv += ["--precision", draw.choice(("fp16", "bf16", "amp_bf16", "tf32", "fp32", "fp8"))] * (
            draw.random() < 0.3
        )
        argv += ["--attention", draw.choice(("flash", "eager"))] * (draw.random() < 0.2)
        argv += ["--schedule", draw.choice(SCHEDULES)] * (pp > 1 and draw.random() < 0.6)
        argv += ["--virtual-pp", "2"] * (pp > 1 and draw.random() < 0.2)
        argv += ["--sequence-parallel"] * (tp > 1 and draw.random() < 0.5)
        argv += ["--cp", "2"] * (draw.random() < 0.1) + ["--ep", str(draw.choice((2, 4)))] * (draw.random() < 0.1)
        argv += [draw.choice(("--overlap", "--no-overlap"))] * (draw.random() < 0.2)
        argv += ["--sequence-length", str(draw.choice((512, 1024, 2048)))] * (draw.random() < 0.4)
        small = gpus <= 16
        argv += ["--network", draw.choice(("alpha-beta", "chunk") if small else ("alpha-beta",))] * (
            draw.random() < 0.2
        )
        argv += ["--unfold"] * (small and draw.random() < 0.2)
        argv += ["--slow-rank", "0=1.3"] * (small and draw.random() < 0.1)
        argv += ["--tokens", "10B"] * (draw.random() < 0.05)
        yield argv


def collectives(n: int, seed: int = 2) -> Iterator[list[str]]:
    """Yield tables of collectives by size."""
    draw = random.Random(seed)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce", "send_recv")
    for _ in range(n):
        argv = ["collective", draw.choice(kinds), "--topology", draw.choice(CLUSTERS)]
        argv += [
            "--gpus",
            str(draw.choice((2, 4, 8, 16, 32))),
            "--min",
            "8KiB",
            "--max",
            "1GiB",
            "--factor",
            "16",
            "--json",
        ]
        argv += ["--network", draw.choice(("alpha-beta", "chunk"))] * (draw.random() < 0.25)
        argv += ["--nccl-algo", draw.choice(("ring", "tree"))] * (draw.random() < 0.2)
        yield argv


def explorations() -> Iterator[list[str]]:
    """Yield searches, sweeps, requirements, uneven steps and explanations."""
    for topology, model in (
        ("bigred200", "gpt-350m"), ("dgx-a100-80g", "gpt-1.3b"), ("polaris", "llama2-7b"), ("dgx-h100", "mixtral-8x7b"),
    ):  # fmt: skip
        base = ["--topology", topology, "--model", model, "--gpus", "8", "--json"]
        yield ["search", *base, "--global-batch", "32", "--jobs", "1", "--axis", "recompute=none,full"]
        yield [
            "search",
            *base,
            "--global-batch",
            "32",
            "--jobs",
            "1",
            "--framework",
            "megatron",
            "--axis",
            "micro_batch=1,2",
        ]
        yield [
            "sweep",
            *base,
            "--micro-batch",
            "1",
            "--jobs",
            "1",
            "--axis",
            "sharding=none,zero1,zero3",
            "--axis",
            "gpus=2,8",
        ]
        yield [
            "sweep",
            *base,
            "--jobs",
            "1",
            "--axis",
            "micro_batch=1,2,4",
            "--framework",
            "deepspeed",
            "--sharding",
            "zero2",
        ]
        yield ["requirements", *base, "--micro-batch", "1"]
        for cause in (
            "--lengths=lognormal:300,1.5",
            "--slow-gpus=0.05=1.3",
            "--spread=0.02",
            "--pause=200 ms/50 steps",
        ):
            yield ["stragglers", *base, "--micro-batch", "2", "--global-batch", "64", "--histories", "5", cause]
        yield [*base, "--micro-batch", "1", "--explain"]
        yield [*base, "--micro-batch", "2", "--tp", "2", "--explain", "--framework", "megatron-core"]


def traces(shared: Path) -> Iterator[list[str]]:
    """Yield replays, what-ifs and facts of recorded traces."""
    sets = [ROOT / "traces" / name for name in ("ddp-2", "fsdp2-2", "pp-4")]
    sets += sorted(path for path in (shared / "traces").glob("*/*") if path.is_dir())
    for path in sets:
        yield ["trace", "info", str(path), "--json"]
        for options in (
            [],
            ["--kernels", "0.5"],
            ["--bandwidth", "2"],
            ["--host", "0"],
            ["--add-straggler", "0:1.5"],
            ["--ideal"],
        ):
            yield ["replay", str(path), *options, "--json"]


def imports(shared: Path) -> Iterator[list[str]]:
    """Yield imports of users' files."""
    for path in sorted((shared / "corpus" / "files").glob("*"))[::3]:
        yield ["import", str(path), "--json"]


def emissions(out: Path) -> Iterator[list[str]]:
    """Yield searches that write plans in the words of frameworks into folders below ``out``."""
    for name in ("megatron", "deepspeed", "fsdp", "torchtitan"):
        argv = ["search", "--topology", "dgx-a100-80g", "--model", "gpt-1.3b", "--gpus", "8", "--global-batch", "32"]
        yield [
            *argv,
            "--framework",
            name,
            "--axis",
            "recompute=none",
            "--jobs",
            "1",
            "--emit",
            str(out / name),
            "--json",
        ]


def schedules() -> Iterator[list[str]]:
    """Yield drawings of schedules."""
    for name in SCHEDULES:
        yield ["schedule", name, "--stages", "4", "--micro-batches", "8"]
