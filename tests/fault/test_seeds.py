"""A few seeds of the fault suite, always the same. `make faults` runs as many as there is time for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.fault.suite.report import told
from tests.fault.suite.schedule import plan
from tests.fault.suite.trial import Trial
from tests.store_folder import store_folder

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SEEDS = (1, 2, 3, 4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    with store_folder() as stores:
        async with installation(tmp_path_factory.mktemp("seeds"), Size(), stores) as install, attended(install):
            yield install


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_seed_breaks_a_promise(replicated: Installation, seed: int) -> None:
    schedule = plan(seed, replicated.shape)
    verdict = await Trial(replicated, schedule).run()
    assert not verdict.violations, "\n".join(told(verdict))
    assert verdict.injected.total() == len(schedule.faults)
