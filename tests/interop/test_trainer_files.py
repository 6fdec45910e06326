"""Files of DeepSpeed and around the Hugging Face Trainer: small ones after the pattern of real ones, read by hand."""

import json
from dataclasses import replace

import pytest

from simulator.errors import ConfigError
from simulator.interop.trainers.plan_files import plan_settings
from simulator.plan.rules import gathers_to_recompute
from tests.interop.reading import read

# ---- DeepSpeed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, {"precision": "amp_bf16"}),
        ({"amp": {"enabled": True, "opt_level": "O1"}}, {"precision": "amp_fp16"}),
        ({"bf16": {"enabled": True}, "compile": {"disable": False, "backend": "inductor"}}, {"host": "compiled"}),
        ({}, {"precision": "fp32"}),
    ],
)
def test_precision_and_host_of_deepspeed(tmp_path, more, expected):
    text = json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}} | more)
    settings = read(tmp_path, text, "ds.json").settings
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-4}}}, "optimizer.type"),
        (
            {"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}},
            "optimizer.type",
        ),
        ({"data_efficiency": {"enabled": True, "data_routing": {"enabled": True}}}, "data_efficiency.enabled"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning.enabled"),
    ],
)
def test_what_changes_the_answer_is_not_called_irrelevant(tmp_path, more, key):
    report = read(tmp_path, json.dumps({"train_batch_size": 8} | more), "ds.json").report
    assert any(entry.startswith(f"{key}: not understood, changes the answer") for entry in report.unknown)
    assert not any(entry.startswith(key.split(".")[0] + ".type") for entry in report.irrelevant)


def test_one_bit_adam_compresses_what_it_synchronises(tmp_path):
    data = {"train_batch_size": 8, "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 400}}}
    found = read(tmp_path, json.dumps(data), "ds.json")
    assert (found.settings["gradient_compression"], found.report.unknown) == ("onebit", ())
    assert any("warm-up, 400" in text for text in found.report.assumed)


def test_what_is_switched_off_changes_nothing(tmp_path):
    text = json.dumps({"train_batch_size": 8, "curriculum_learning": {"enabled": False, "max_difficulty": 1024}})
    assert read(tmp_path, text, "ds.json").report.unknown == ()


def test_accumulation_waits_for_the_ranks(tmp_path):
    text = json.dumps(
        {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 8, "bf16": {"enabled": True}}
    )
    found = read(tmp_path, text.replace("}}", '}, "zero_optimization": {"stage": 2}}'), "ds.json")
    assert found.accumulation == 8 and "micro_batch" not in found.settings and "global_batch" not in found.settings


# ---- files of the trainer ----------------------------------------------------------------------------------------

AXOLOTL = """
base_model: meta-llama/Llama-2-7b-hf
load_in_4bit: true
adapter: qlora
lora_r: 32
sequence_len: 512
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_offload_params: true, fsdp_state_dict_type: FULL_STATE_DICT}
"""


@pytest.mark.parametrize(
    ("named", "steps"), [("adamw_torch", "foreach"), ("adamw_torch_8bit", None), ("adamw_apex_fused", None)]
)
def test_the_trainers_adam_says_how_it_steps(tmp_path, named, steps):
    """transformers/training_args.py, ``OptimizerNames``; no word leaves it to the release."""
    found = read(tmp_path, AXOLOTL.replace("adamw_torch_fused", named))
    assert found.settings.get("optimizer_implementation") == steps
    assert (
        "optimizer_implementation" not in read(tmp_path, AXOLOTL.replace("optimizer: adamw_torch_fused\n", "")).settings
    )


def test_axolotl(tmp_path):
    found = read(tmp_path, AXOLOTL)
    wanted = {
        # checkpointing of the Trainer, not of the units (fsdp_activation_checkpointing)
        "framework": "hf-fsdp", "sharding": "zero3", "micro_batch": 2, "sequence_length": 512, "precision": "bf16",
        "recompute": "full", "attention": "flash", "offload_parameters": "cpu", "offload_optimizer": "cpu",
        "optimizer_implementation": "fused",
    }  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted
    assert found.accumulation == 4 and found.spec.name == "llama2-7b"
    # peft adapts the projections of queries and values of a Llama unless it is told others
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == (32, "qkv")
    assert {entry.split(":")[0] for entry in found.report.unknown} == {"load_in_4bit"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("adapter: lora\nlora_r: 16\nlora_target_linear: true\n", (16, None)),
        ("adapter: lora\nlora_target_modules: '.*.(self_attn|mlp).(o|up)_proj'\n", (8, "proj+fc1")),
        ("adapter: lora\nlora_target_modules: [q_proj, down_proj]\noptimizer: adamw_bnb_8bit\n", (8, "qkv+fc2")),
        ("finetuning_type: lora\nlora_rank: 4\nlora_target: all\n", (4, None)),
        ("stage: sft\nlora_target: q_proj,o_proj\n", (8, "qkv+proj")),
        ("use_peft: true\nlora_r: 64\nlora_target_modules: all-linear\n", (64, None)),
    ],
)
def test_adapters_in_the_words_of_each_tool(tmp_path, more, expected):
    found = read(
        tmp_path, "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\nbf16: true\n" + more
    )
    assert (found.settings["lora_rank"], found.settings["lora_targets"]) == expected
    assert not found.report.unknown
    assert found.settings.get("moment_bytes", 4) == (1 if "8bit" in more else 4)


def test_pure_bf16_of_llama_factory(tmp_path):
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nfinetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    assert read(tmp_path, text + "pure_bf16: true\n").settings["precision"] == "bf16"  # 16-bit weights, and no others
    assert read(tmp_path, text + "bf16: true\n").settings["precision"] == "amp_bf16"


def test_llama_factory_through_megatron(tmp_path):
    text = (
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nstage: pt\nfinetuning_type: full\ncutoff_len: 4096\nbf16: true\n"
        "per_device_train_batch_size: 1\ntensor_model_parallel_size: 4\npipeline_model_parallel_size: 2\nsequence_parallel: true\n"
        "use_distributed_optimizer: true\noverlap_grad_reduce: true\n"
    )
    found = read(tmp_path, text)
    wanted = {"framework": "megatron-core", "tp": 4, "pp": 2, "sharding": "zero1", "sequence_parallel": True, "overlap": True,
              "precision": "bf16", "recompute": "none"}  # fmt: skip
    assert {name: found.settings[name] for name in wanted} == wanted and not found.report.unknown
    # the first four blocks of a stage are recomputed (Megatron-LM, ``--recompute-method block --recompute-num-layers 4``)
    other = read(tmp_path, text + "recompute_granularity: full\nrecompute_method: block\nrecompute_num_layers: 4\n")
    wanted = {"recompute": "full", "recompute_method": "block", "recompute_layers": 4}
    assert {name: other.settings[name] for name in wanted} == wanted and not other.report.unknown
    with pytest.raises(ConfigError, match=r":\d+:\d+: recompute_granularity: 'some'"):
        read(tmp_path, text + "recompute_granularity: some\n")
    other = read(tmp_path, text.replace("stage: pt", "stage: ppo"))
    assert [entry.split(":")[0] for entry in other.report.unknown] == ["stage"]


def test_llama_factory_with_a_deepspeed_file(tmp_path):
    (tmp_path / "z3.json").write_text(json.dumps({"train_batch_size": "auto", "zero_optimization": {"stage": 3}}))
    text = (
        "model_name_or_path: nobody/none\nfinetuning_type: full\nper_device_train_batch_size: 1\ncutoff_len: 2048\nbf16: true\n"
        "deepspeed: examples/z3.json\nlearning_rate: 1.0e-5\n"
    )
    found = read(tmp_path, text)
    assert (found.settings["sharding"], found.settings["framework"], found.settings["recompute"]) == (
        "zero3",
        "deepspeed",
        "full",
    )
    assert found.spec is None and any(
        entry.startswith("base_model") or "nobody" in entry for entry in found.report.unknown
    )
    (tmp_path / "z3.json").unlink()
    assert any(entry.startswith("deepspeed") for entry in read(tmp_path, text).report.unknown)


FACTORY = (
    "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
    "cutoff_len: 4096\nbf16: true\ndeepspeed: ds.json\n"
)
AUTO = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        **dict.fromkeys(
            ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
        ),
    },
}


def beside(tmp_path, data, text=FACTORY):
    (tmp_path / "ds.json").write_text(json.dumps(data))
    return read(tmp_path, text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"train_micro_batch_size_per_gpu": 4},
            "per_device_train_batch_size: 1 beside train_micro_batch_size_per_gpu: 4 of ds.json",
        ),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: 8 beside gradient_accumulation_steps: 2 of ds.json",
        ),
        ({"fp16": {"enabled": True}}, "fp16: false by default beside fp16.enabled: true of ds.json"),
        ({"bf16": {"enabled": False}}, "bf16: true beside bf16.enabled: false of ds.json"),
        ({"train_batch_size": 60}, "train_batch_size: 60 is not 1 x 8 x a whole number of data-parallel ranks"),
        (
            {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
            r":\d+:\d+: per_device_train_batch_size: 1 beside .* of ds.json; gradient_accumulation_steps: 8 beside",
        ),
    ],
)
def test_a_deepspeed_file_that_differs_from_the_trainer_is_refused(tmp_path, more, message):
    """transformers, ``integrations/deepspeed.py``: a ``ValueError`` that asks to correct what mismatches TrainingArguments."""
    with pytest.raises(ConfigError, match=message) as error:
        beside(tmp_path, AUTO | more)
    assert "train_batch_size: 60" in message or '"auto"' in error.value.hint


def test_what_the_trainer_leaves_out_has_its_default(tmp_path):
    """``TrainingArguments.gradient_accumulation_steps`` is 1."""
    text = FACTORY.replace("gradient_accumulation_steps: 8\n", "")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps: 1 by default beside"):
        beside(tmp_path, AUTO | {"gradient_accumulation_steps": 2}, text)
    assert beside(tmp_path, AUTO | {"gradient_accumulation_steps": 1}, text).accumulation == 1


@pytest.mark.parametrize(
    "more", [{}, {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}, {"train_batch_size": 128}]
)
def test_the_trainer_fills_in_what_is_automatic(tmp_path, more):
    found = beside(tmp_path, AUTO | more)
    told = (found.settings["micro_batch"], found.accumulation, found.settings["precision"], found.settings["sharding"])
    assert told == (1, 8, "bf16", "zero3")
    assert found.settings.get("dp") == (16 if "train_batch_size" in more else None)  # 128 / (1 x 8)
    silent = {name: value for name, value in AUTO.items() if name != "bf16"}
    assert (
        beside(tmp_path, silent).settings["precision"] == "bf16"
    )  # Accelerate, ``set_mixed_precision``, adds the section


def test_sizes_of_deepspeed_follow_from_the_hidden_size(tmp_path):
    """transformers, ``trainer_config_finalize``: h * h, 0.9 * h * h, and at the third stage 10 * h; 4096 of Qwen3 8B."""
    names = ("bucket_bytes", "prefetch_elements", "persistence_elements")
    found = beside(tmp_path, AUTO)
    assert [found.settings[name] for name in names] == [2 * 16777216, 15099494, 40960]
    second = beside(tmp_path, AUTO | {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})
    assert second.settings["bucket_bytes"] == 2 * 16777216
    assert (
        "prefetch_elements"
        not in beside(
            tmp_path, AUTO | {"zero_optimization": AUTO["zero_optimization"] | {"overlap_comm": False}}
        ).settings
    )
    unknown = FACTORY.replace("Qwen/Qwen3-8B", "nobody/none")
    found = beside(tmp_path, AUTO, unknown)
    assert not {*names} & {*found.settings}
    assert sum("DeepSpeed's default" in text and "--model" in text for text in found.report.assumed) == 3
    path = str(tmp_path / "file.yaml")  # 8192 of Llama 3 70B
    for options in ({"plan": path}, {"deepspeed": str(tmp_path / "ds.json")}):
        told = plan_settings({**options, "model": "llama3-70b"})
        assert [told[name] for name in names] == [2 * 67108864, 60397977, 81920]
    accelerate = tmp_path / "accelerate.yaml"
    accelerate.write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    assert plan_settings({"plan": str(accelerate), "model": "llama3-70b"})["persistence_elements"] == 81920


LIGER = "liger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true\nliger_fused_linear_cross_entropy: true\n"
PLUGIN = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"


@pytest.mark.parametrize(
    ("more", "framework", "named"),
    [
        ("use_liger_kernel: true\n", "hf-liger", []),
        ("use_liger_kernel: false\n", "hf-eager", []),
        ("enable_liger_kernel: true\nfsdp: full_shard\n", "hf-fsdp-liger", []),
        ("enable_liger_kernel: true\ndeepspeed: ds.json\n", "deepspeed-liger", []),
        (PLUGIN + LIGER, "hf-liger", []),
        (PLUGIN + LIGER.replace("liger_glu_activation", "liger_swiglu"), "hf-liger", []),
        (PLUGIN + "liger_rms_norm: true\n", "hf-fused", ["liger_rms_norm"]),  # what else it has is named
        (PLUGIN + LIGER.replace("cross_entropy: true", "cross_entropy: false"), "hf-fused", []),
        (LIGER, "hf-eager", []),  # switches of a plugin that is not loaded
        (PLUGIN + LIGER + "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", "hf-fsdp2-liger", []),
    ],
)
def test_kernels_of_liger_are_a_framework(tmp_path, more, framework, named):
    """transformers, ``use_liger_kernel``; LLaMA-Factory, ``enable_liger_kernel``; axolotl, ``integrations/liger/args.py``."""
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    text = "base_model: meta-llama/Llama-2-7b-hf\nmicro_batch_size: 1\nsequence_len: 2048\nbf16: true\n"
    found = read(tmp_path, text + more)
    assert found.settings["framework"] == framework
    assert [entry.split(":")[0] for entry in found.report.unknown] == named


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", "plugins"),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\ncut_cross_entropy: false\n", None),
        ("cut_cross_entropy: true\n", "cut_cross_entropy"),
    ],
)
def test_a_loss_without_logits_is_named(tmp_path, more, name):
    """axolotl, ``integrations/cut_cross_entropy/args.py``: on where the plugin is, unless it is switched off."""
    entries = read(tmp_path, AXOLOTL.replace("load_in_4bit: true\nadapter: qlora\n", "") + more).report.unknown
    assert [entry.split(":")[0] for entry in entries] == ([name] if name else [])
    assert all("logits" in entry for entry in entries)


@pytest.mark.parametrize(
    ("word", "model", "layers", "is_named"),
    [
        ("true", "meta-llama/Llama-2-7b-hf", None, False),
        ("offload", "meta-llama/Llama-2-7b-hf", 32, False),
        ("offload", "nobody/none", None, True),
        ("offload_disk", "meta-llama/Llama-2-7b-hf", None, True),
    ],
)
def test_checkpoints_of_axolotl_may_wait_on_the_host(tmp_path, word, model, layers, is_named):
    """axolotl, ``gradient_checkpointing: true | offload | offload_disk``: what every block starts from; Llama 2 7B has 32 blocks."""
    text = AXOLOTL.replace("gradient_checkpointing: true", f"gradient_checkpointing: {word}")
    found = read(tmp_path, text.replace("meta-llama/Llama-2-7b-hf", model))
    assert (found.settings["recompute"], found.settings.get("offload_layers")) == ("full", layers)
    assert any(entry.startswith("gradient_checkpointing: not understood") for entry in found.report.unknown) == is_named


def test_arguments_of_the_trainer_on_one_line(tmp_path):
    text = json.dumps(
        {"per_device_train_batch_size": 4, "bf16": True, "fsdp": "shard_grad_op auto_wrap offload", "output_dir": "o"}
    )
    found = read(tmp_path, text, "args.json")
    assert (found.settings["sharding"], found.settings["offload_parameters"], found.settings["micro_batch"]) == (
        "zero2",
        "cpu",
        4,
    )


def test_groups_of_mics_need_the_third_stage(tmp_path):
    for stage, expected in ((1, "zero1"), (3, "hsdp")):
        data = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, "mics_shard_size": 4}}
        assert read(tmp_path, json.dumps(data), "ds.json").settings["sharding"] == expected


@pytest.mark.parametrize(
    ("word", "gathers"), [("gradient_checkpointing: true\n", True), ("fsdp_config: {activation_checkpointing: true}\n", False)]
)  # fmt: skip
def test_the_plugins_checkpoints_stand_inside_the_units(tmp_path, word, gathers):
    """transformers, ``TrainingArguments``: with full sharding ``activation_checkpointing`` of ``fsdp_config`` is to be used, for
    ``gradient_checkpointing`` gathers once more."""
    text = (
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\nbf16: true\nfsdp: full_shard\n"
    )
    plan = read(tmp_path, text + word).plan().resolve(8)
    assert (plan.recompute, gathers_to_recompute(plan)) == ("full", gathers)


def test_the_trainer_under_fully_shard_accumulates_as_under_the_wrapper(tmp_path):
    """Accelerate, ``Accelerator.no_sync``: either keeps whole gradients until the last micro-batch of a step."""
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\nbf16: true\n"
    for more, name in (
        ("fsdp: full_shard\n", "hf-fsdp"),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", "hf-fsdp2"),
    ):
        plan = replace(read(tmp_path, text + more).plan(), global_batch=32).resolve(8)
        assert (plan.framework, plan.sharding, plan.defers_reduction) == (name, "zero3", True)
        assert replace(plan, no_sync=None).defers_reduction
