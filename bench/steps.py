"""An agent's steps: what Tenure adds to them, and, reported apart, with the real worker and a simulated model."""

from __future__ import annotations

from bench.figures import Section
from bench.null_steps import measure_null_steps
from bench.options import Options
from bench.worker_steps import measure_worker_steps


async def measure(options: Options) -> list[Section]:
    """Two sections that must not be mixed: the model's client costs many times what Tenure does."""
    return [await measure_null_steps(options), await measure_worker_steps(options)]
