"""An installation for the fault tests of one module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.support.lives import SHORT_LIFE
from tests.support.store_folder import store_folder


@pytest.fixture(scope="module")
def stack_life() -> dict[str, str]:
    return SHORT_LIFE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """One of each service and two workers: each crash is noticed by all others.

    Few slots, so that neither worker takes all tasks while the other starts again.
    """
    folder, size = tmp_path_factory.mktemp("faults"), Size(replicas=1, workers=2, slots=3, deaf=False)
    with store_folder() as stores:
        async with installation(folder, size, stores) as install, attended(install):
            yield install
