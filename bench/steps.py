"""Steps of agents: first what Tenure itself costs, then with the real worker and the model simulator."""

from __future__ import annotations

from bench.figures import Section
from bench.null_steps import measure_null_steps
from bench.options import Options
from bench.worker_steps import measure_model_runner, measure_worker_steps


async def measure(options: Options) -> list[Section]:
    """Returns three sections. The first compares with no other: the model client costs many times what Tenure does."""
    return [
        await measure_null_steps(options),
        await measure_worker_steps(options),
        await measure_model_runner(options),
    ]
