"""Pipeline schedules as frameworks have them, each set declared once, by the names of :mod:`simulator.schedules`.

What has no name here is left out: PyTorch's ``LoopedBFS`` and ``InterleavedZeroBubble``, MaxText's circular pipeline.

References
----------
``docs/frameworks.md``, "Pipeline schedules", says where each set was read.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: Who waits for a pass's messages before the next pass: the ``host`` (Megatron-LM, ``--no-overlap-p2p-communication``, with its
#: ``batch_p2p_sync``); the ``stream`` that computes, for what it sends too; or ``nobody``, for what is sent.
Waits = Literal["host", "stream", "nobody"]


class Pipelines(NamedTuple):
    """Pipelines as a program has them."""

    schedules: tuple[str, ...] = ()
    waits: Waits = "host"
    #: Schedules under which nobody waits for what is sent.
    going_on: tuple[str, ...] = ()

    def who_waits(self, schedule: str) -> Waits:
        """Return who waits for messages under one of the schedules, or one that it does not have."""
        return "nobody" if schedule in self.going_on else self.waits


#: no pipeline
NONE = Pipelines()
#: Megatron-LM, ``core/pipeline_parallel/schedules.py``: ``forward_backward_pipelining_without_interleaving`` and ``..._with_interleaving``
MEGATRON = Pipelines(("1f1b", "1f1b-interleaved"))
#: Megatron-Core, ``core/pipeline_parallel/combined_1f1b.py``; "only supported with expert model parallelism"
#: (``core/transformer/transformer_config.py``)
COMBINED = ("1f1b-combined",)
#: DeepSpeed, ``runtime/pipe/schedule.py``: ``TrainSchedule``, "synchronous 1F1B"; GPT-NeoX runs on it, and Scaling has the same
#: (Aleph-Alpha/scaling, ``core/nn/pipeline_schedule/train.py``)
DEEPSPEED = Pipelines(("1f1b",))
#: deepspeedai/Megatron-DeepSpeed, ``arguments.py``: ``--enable-zbh1-pipeline``
MEGATRON_DEEPSPEED = Pipelines((*DEEPSPEED.schedules, "zb-1p"))
#: pytorch/pytorch, ``torch/distributed/pipelining/schedules.py``, ``get_schedule_class``; ``Schedule1F1B``, and ``PipelineScheduleMulti``
#: until release 2.9, exchange what neighbours send at one time, and wait for all of it on the stream; ``ScheduleGPipe`` does so for
#: sends when all is computed
TORCH = Pipelines(("gpipe", "1f1b", "1f1b-interleaved", "zb-v", "dualpipe-v"), "stream", ("gpipe",))
#: KempnerInstitute/KempnerForge, ``kempnerforge/distributed/pipeline_parallel.py``, ``build_pipeline_schedule``
KEMPNERFORGE = Pipelines(("gpipe", "1f1b", "1f1b-interleaved"), "stream", ("gpipe",))
#: huggingface/nanotron, ``config/utils_config.py``: ``afab`` and ``1f1b``
NANOTRON = Pipelines(("gpipe", "1f1b"))
#: InternLM/InternEvo, ``core/scheduler``: ``PipelineScheduler``, ``InterleavedPipelineScheduler``, and ``ZeroBubblePipelineScheduler``
#: (ZB-H1) and ``ZeroBubblePipelineVShapeScheduler`` (ZB-V)
INTERNEVO = Pipelines(("1f1b", "1f1b-interleaved", "zb-1p", "zb-v"))
#: Oneflow-Inc/libai, tutorial "Write your own Pipeline Parallel Model": "the non-interleaved schedule is supported currently"
LIBAI = Pipelines(("1f1b",), "nobody")
#: Llama 3 (arXiv:2407.21783, section 3.3.2) interleaves stages, each with its part of the layers
LLAMA3 = Pipelines(("1f1b", "1f1b-interleaved"), "nobody")
#: NVIDIA/jaxpp, ``src/jaxpp/schedules.py``, which MaxText runs on; MaxText's own pipeline by itself is GPipe
JAX = Pipelines(("gpipe", "1f1b", "1f1b-interleaved", "zb-1p", "dualpipe-v"), "nobody")
#: of programs that are none of the frameworks here: sail-sg's forks of Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism,
#: sail-sg/VocabularyParallelism) and DeepSeek's own trainer (deepseek-ai/DualPipe)
OTHER_PROGRAMS = ("zb-2p", "v-half", "v-min", "interlaced", "dualpipe")
#: those of which it is known who has them
KNOWN = frozenset((*OTHER_PROGRAMS, *COMBINED)).union(
    *(
        one.schedules
        for one in (
            MEGATRON, DEEPSPEED, MEGATRON_DEEPSPEED, TORCH, KEMPNERFORGE, NANOTRON, INTERNEVO, LIBAI, LLAMA3, JAX,
        )
    )
)  # fmt: skip
