"""Real torch.distributed jobs: collectives, kernels and training steps, as rows of the measurement tables."""

from __future__ import annotations

from validation.jobs.job_settings import JOBS, Settings

__all__ = ["JOBS", "Settings"]
