"""One stack for the tests of what processes may do to each other. It ends with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from devstack import Stack, StackOptions
from tests.support.fix_stack import OnSharedStores
from tests.support.lives import LONG_LIFE

COORDINATOR: Final = {
    "TENURE_COORDINATOR_LIVE_NETWORKS": "session",
    "TENURE_COORDINATOR_TTL_SECONDS": "120",
    "TENURE_COORDINATOR_RECONNECT_GRACE_SECONDS": "60",
    "TENURE_COORDINATOR_START_TIMEOUT_SECONDS": "60",
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory, on_shared_stores: OnSharedStores) -> AsyncIterator[Stack]:
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("processes") / "data",
        workers=1,
        tls=True,
        replicas={"coordinator": 2},
        environment={
            "*": LONG_LIFE,
            "coordinator": COORDINATOR,
            "coordinator-2": COORDINATOR,
            "gateway": {"TENURE_GATEWAY_HEARTBEAT_SECONDS": "0.2"},
        },
    )
    async with Stack(await on_shared_stores(options)) as running:
        yield running
