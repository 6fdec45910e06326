"""Conditions under which a kernel runs: in a training job, or as one of the benchmarks times it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.arrays import FloatArray

#: how sharply a benchmark goes from boost clock to the power limit as its kernels become longer: an estimate, no source
_SHARPNESS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What surrounds a kernel."""

    #: Key in :data:`CONDITIONS`.
    name: str
    #: How long one run of the kernel may take before the power limit shows in a benchmark that repeats it a fixed
    #: number of times; 0 where the power limit always acts, as in a job that runs for hours.
    burst_s: float = 0.0
    #: Whether the other GPUs of the node rest: the board is cooler than those of a node at work.
    is_alone: bool = False
    #: What the timing itself adds: events, and a stream that starts from idle.
    overhead_s: float = 0.0
    #: Whether the L2 cache is flushed before the kernel.
    is_cold: bool = False
    #: Whether the same operands are used again and again: up to half of the L2 cache, nothing of them comes from memory.
    repeats: bool = False
    #: Share of the power limit that the machine had: below one where a board was capped or throttled.
    power_share: float = 1.0
    #: Times that keys and values are written and read once more (an inference engine's paged cache).
    cache_copies: float = 0.0

    def limited(self, unlimited_s: FloatArray, power_limited_s: FloatArray) -> FloatArray:
        """Blend the times at boost clock and under the power limit.

        The regulator averages power over tens of milliseconds: a short benchmark ends before it acts, a long
        one and a job do not.
        """
        sustained = np.maximum(unlimited_s, power_limited_s / self.power_share)
        if self.burst_s <= 0.0:
            return sustained
        share = 1.0 / (1.0 + (self.burst_s / sustained) ** _SHARPNESS)
        return share * sustained + (1.0 - share) * unlimited_s


#: name -> conditions; the first is the default. Fitted to rows with split=fit: ``burst_s`` of graph replay to
#: ai-dynamo/aiconfigurator@095f58a51c on A100 and H100 (both 0.84 to 0.90 ms), ``events_flushed`` to own H200
#: measurements with the H100's kernel constants; the inference engines' overhead to the same as graph replay. The GB200 of
#: that source throttles: long 16-bit products run at 860 to 1,090 TFLOP/s, where training and cuBLASLt's sustained products say 1,300
CONDITIONS: dict[str, Conditions] = {
    c.name: c
    for c in (
        Conditions(name="training"),
        Conditions(name="training_alone", is_alone=True),
        Conditions(name="benchmark", burst_s=0.6e-3, overhead_s=1e-6),
        Conditions(name="graph_replay", burst_s=0.85e-3),
        Conditions(name="graph_replay_throttled", burst_s=0.85e-3, power_share=0.8),
        Conditions(name="events_flushed", burst_s=0.3e-3, overhead_s=3.2e-6, is_cold=True),
        Conditions(name="autograd_flushed", burst_s=0.3e-3, overhead_s=20e-6, is_cold=True),
        Conditions(name="profiler", is_alone=True),
        Conditions(name="repeated", burst_s=0.6e-3, repeats=True),
        Conditions(name="inference_prefill", burst_s=0.85e-3, overhead_s=4e-6, cache_copies=2.0),
    )
}
