"""The test in the run that `test_killed_run` kills: it has the shared stores, a service, a simulator, and then waits.

pytest collects it only when its path is given.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.support.fix_coordinator import Fleet
from tests.support.fix_simulator import SimulatorControl


async def test_everything_runs_until_it_is_killed(fleet: Fleet, simulator: SimulatorControl) -> None:
    await fleet.coordinator()
    assert simulator.calls() == []
    Path(os.environ["KILLED_RUN_STARTED"]).touch()
    await asyncio.Event().wait()
