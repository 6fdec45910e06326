"""What the functions and launch scripts behind published runs set beside the cells of a row.

Each entry was read in the repository that published the run, at the release of the row. A cell wins over it, except for a
dispatcher that the recipe's base configuration names and its function replaces.

References
----------
NVIDIA/dgxc-benchmarking, tags v25.05 to v25.10.02, ``deepseek_v3/*/launch.sh`` (``RM``: recomputed modules) and the commits of
NVIDIA/NeMo (7a8f1cc7, ``scripts/performance/llm/pretrain_deepseek_v3.py``) and NVIDIA-NeMo/Megatron-Bridge (d7dfa764,
``scripts/performance/run_script.py``) that they run; NVIDIA-NeMo/Megatron-Bridge,
``scripts/performance/configs/qwen/qwen3_llm_pretrain.py`` at c0b9a000 and cfeddcd9 (``moe_token_dispatcher_type``), and of rows
beside their recipe ``deepseek_workload_base_configs.py`` and ``qwen3_workload_base_configs.py`` at 97ad8cc6, c0b9a000 and 63b08b39;
mlcommons/training_results_v5.0, ``NVIDIA/benchmarks/llama2_70b_lora``, ``megatron_gpt_peft_tuning_config.yaml`` (``CP_COMM_TYPE``)
and ``config_common.sh`` (``FP8_DPA``);
sail-sg/zero-bubble-pipeline-parallelism, ``examples/pretrain_zero_bubble.sh`` from its first commit on
(``GPTSentencePieceTokenizer`` on C4; 32,000 pieces are assumed, as T5's and Llama's have).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from validation.tables.reader import Row

#: ``MegatronTokenDropCallback`` and ``apply_moe_token_drop``: every expert computes its even share
_TOKEN_DROP = {"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}
#: before cuDNN 9.11 Transformer Engine has no fused kernel for heads of 192 and 128 on Blackwell (NVIDIA/Megatron-LM,
#: docs/discussions/deepseek-v3-gb200-optimization): products, mask and softmax one by one, which the scripts recompute
_UNFUSED = {"attention": "eager", "attention_kernel": "fused_softmax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What a script sets for one model on some machines, from a release on and before another."""

    source: str  #: Word of the row's source.
    since: str
    before: str
    model: str = ""  #: Empty: any.
    precision: str = ""  #: Empty: any.
    machines: tuple[str, ...] = ("",)  #: How the names of topologies begin.
    settings: Mapping[str, Any] = field(default_factory=dict)
    recompute: str = ""  #: Modules, joined by ``+``.
    mtp_layers: int = 0
    vocab: int = 0  #: Of the tokenizer that it names.
    #: Whether it is for rows whose printed degrees or batch are not their recipe's, so that its other settings are not in the cells.
    is_beside: bool = False
    #: Whether 64 layers are counted, of which the first stage lacks one and the last one two.
    trims_ends: bool = False

    def fits(self, row: Row) -> bool:
        """Tell whether a row is such a run."""
        release = row.text("release").removeprefix("v")
        return (
            self.source in row.text("source").lower()
            and self.since <= release < self.before
            and self.model in ("", row.text("model").lower())
            and self.precision in ("", row.text("precision").lower())
            and row.text("topology").startswith(self.machines)
            and (not self.is_beside or row.flag("recipe_matches") is False)
        )


def _cloud(since: str, before: str, machines: tuple[str, ...], recompute: str, **settings: Any) -> Launcher:
    is_nemo = before <= "25.08"
    return Launcher(
        source="dgxc-benchmarking", since=since, before=before, model="deepseek-v3", machines=machines, recompute=recompute,
        mtp_layers=1, trims_ends=is_nemo, settings={**settings, **({"asynchronous_tp": False} if is_nemo else {})},
    )  # fmt: skip


def _beside(
    since: str, before: str, model: str, machines: tuple[str, ...], recompute: str = "", **settings: Any
) -> Launcher:
    return Launcher(
        source="megatron-bridge", since=since, before=before, model=model, machines=machines, recompute=recompute,
        settings=settings, is_beside=True,
    )  # fmt: skip


_RACKS = ("gb200", "gb300")
_BRIDGE_DROPS = {**_TOKEN_DROP, "moe_shared_expert_overlap": True}
LAUNCHERS = (
    _cloud("25.05", "25.08", ("gb200",), "core_attn", **_TOKEN_DROP, **_UNFUSED),
    _cloud("25.05", "25.08", ("dgx-b200",), "core_attn+mla_up_proj", **_TOKEN_DROP, **_UNFUSED),
    _cloud("25.05", "25.08", ("dgx-h100",), "mla_up_proj", **_TOKEN_DROP),
    _cloud("25.10", "25.12", ("gb300",), "", **_BRIDGE_DROPS),
    _cloud("25.10", "25.12", ("gb200",), "mla_up_proj", **_BRIDGE_DROPS),
    _cloud("25.10", "25.12", ("dgx-b200",), "mlp+mla_up_proj", **_BRIDGE_DROPS),
    _cloud(
        "25.10", "25.12", ("dgx-h100",), "mlp+mla_up_proj", moe_dispatcher="deepep", schedule="1f1b-combined", overlap=False,
        pipeline_layout="Et|(tt|)*30mL",
    ),
    *(
        Launcher(source="dgxc-benchmarking", since="25.10", before="25.12", model=model, settings=_TOKEN_DROP)
        for model in ("qwen3-235b-a22b", "qwen3-30b-a3b")
    ),
    Launcher(
        source="megatron-bridge", since="26.02", before="26.08", model="qwen3-235b-a22b",
        machines=("dgx-h100", "dgx-b200", "dgx-b300"), settings={"moe_dispatcher": "alltoall"},
    ),
    _beside(
        "25.11", "26.02", "deepseek-v3", _RACKS, "mla_up_proj", moe_dispatcher="hybridep",
        cuda_graphs="attn+moe_router+moe_preprocess",
    ),
    *(
        _beside("25.11", "26.02", model, _RACKS, moe_dispatcher="hybridep", cuda_graphs="moe_router+moe_preprocess")
        for model in ("qwen3-235b-a22b", "qwen3-30b-a3b")
    ),
    _beside("25.11", "26.02", "qwen3-30b-a3b", ("dgx-h100",), schedule="1f1b-combined"),
    _beside(
        "26.06", "26.08", "deepseek-v3", ("gb300",), moe_dispatcher="hybridep", cuda_graphs="full_iteration", moe_fused_experts=True,
        fp8_modules="attention+output", schedule="1f1b-combined", pipeline_layout="Et*4|(t*4|)*14tmL", recompute="none",
    ),
    # recipes/nemotronh/nemotron_3_super.py: mtp_num_layers 2 (one block, run twice), which the printed TFLOP/s per token count, too;
    # in NVFP4 training/mixed_precision.py (nemotron_3_super_bf16_with_nvfp4_mixed) and perf_recipes/nemotronh/te_quant.cfg, which
    # also puts Mamba's output projection in MXFP8
    *(
        Launcher(
            source="megatron-bridge", since="26.04", before="27", model="nemotron-3-super", mtp_layers=2, precision=precision,
            settings=settings,
        )
        for precision, settings in (("nvfp4", {"bf16_modules": "attention+latent+mtp", "bf16_last_layers": 14}), ("", {}))
    ),
    *(
        Launcher(
            source="mlcommons", since="5", before="6", model="llama2-70b", machines=machines,
            settings={"cp_comm_type": "a2a", **narrow},
        )
        for machines, narrow in ((("dgx-h",), {}), (("dgx-b", "gb"), {"fp8_modules": "attention"}))
    ),
    *(  # recipes/deepseek and recipes/kimi: tp_comm_overlap=False
        Launcher(source="megatron-bridge", since="25", before="27", model=model, settings={"asynchronous_tp": False})
        for model in ("deepseek-v3", "kimi-k2")
    ),
    Launcher(source="zero bubble", since="", before="1", vocab=32_000),
)  # fmt: skip


def launcher_of(row: Row) -> Launcher | None:
    """Return what is known of the script that a row's run was launched by."""
    return next((launcher for launcher in LAUNCHERS if launcher.fits(row)), None)


def launched_fields(row: Row, layers: int, stages: int, assumed: list[str]) -> dict[str, Any]:
    """Return the settings of the script that a row's run was launched by."""
    launcher = launcher_of(row)
    if launcher is None:
        return {}
    fields = dict(launcher.settings)
    if launcher.recompute and not row.text("recompute_modules"):
        fields |= {"recompute": "selective", "recompute_modules": launcher.recompute}
    if launcher.trims_ends and stages > 1:
        each = -(-layers // stages)
        fields |= {"first_stage_layers": each - 1, "last_stage_layers": each - 2}
    if fields:
        assumed += [
            f"{', '.join(f'{key} {value}' for key, value in fields.items())}: the launch script of this release"
        ]
    return fields
