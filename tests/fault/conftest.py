"""An installation for the fault tests of one module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fault.suite.installation import Installation, Size, attended, installation


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """One of each service and two workers: whatever dies is missed by everybody."""
    folder = tmp_path_factory.mktemp("faults")
    async with installation(folder, Size(replicas=1, workers=2, deaf=False)) as install, attended(install):
        yield install
