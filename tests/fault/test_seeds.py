"""A few seeds of the fault suite, always the same. `make faults` runs as many as there is time for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.fault.suite.report import lines_of
from tests.fault.suite.scenarios import UNSAFE
from tests.fault.suite.schedule import Manner, Mode, plan
from tests.fault.suite.trial import Trial
from tests.support.store_folder import store_folder

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.faults,
]

SEEDS = (30, 697, 821)
"""Chosen for what they plan, see test_these_seeds_meet_the_guards: README.md says how, when plans have changed."""

GUARDED = {("late_calls", ""), ("stale_write", ""), ("lose_runner", "kill"), ("lose_runner", "freeze")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    with store_folder() as stores:
        async with installation(tmp_path_factory.mktemp("seeds"), Size(), stores) as install, attended(install):
            yield install


async def test_these_seeds_meet_the_guards(replicated: Installation) -> None:
    """Each guard has something that only it stops, so that without it one of these seeds fails."""
    plans = [plan(seed, replicated.shape) for seed in SEEDS]
    planned = {
        (fault.kind, fault.detail if fault.kind == "lose_runner" else "") for each in plans for fault in each.faults
    }
    assert planned >= GUARDED
    assert {each.mode for each in plans} == set(Mode)
    in_doubt = [task for each in plans for task in each.tasks if task.scenario in UNSAFE and not task.tells_model]
    assert {task.manner for task in in_doubt} == set(Manner)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_seed_breaks_a_promise(replicated: Installation, seed: int) -> None:
    schedule = plan(seed, replicated.shape)
    verdict = await Trial(replicated, schedule).run()
    assert not verdict.violations, "\n".join(lines_of(verdict))
    assert verdict.injected.total() == len(schedule.faults)
