"""One stack with low limits, of clients at its gateway and of workers at its other services. It ends with its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from devstack import Stack
from tests.support.fix_stack import OnSharedStores
from tests.support.noisy_tenants import Tenants, tenants

STREAMS: Final = 8
CONNECTIONS: Final = 6
WORKER_STREAMS: Final = 4
GATEWAY: Final = {"STREAMS": STREAMS, "CONNECTIONS": CONNECTIONS, "CALLS": 2, "BYTES_PER_SECOND": 400_000}
SERVICES: Final = {
    # One commit in flight for each identity: the tasks of the stack's own worker meet this limit too.
    "checkpoint": {
        "TENURE_CHECKPOINT_LIMIT_REQUESTS_IN_FLIGHT": "1",
        "TENURE_CHECKPOINT_LIMIT_STREAMS": str(WORKER_STREAMS),
    },
    "tools": {"TENURE_TOOLS_LIMIT_REQUESTS_IN_FLIGHT": "2"},
    "coordinator": {"TENURE_COORDINATOR_LIMIT_CONNECTIONS": "2"},
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def both(tmp_path_factory: pytest.TempPathFactory, on_shared_stores: OnSharedStores) -> AsyncIterator[Tenants]:
    settings = {f"TENURE_GATEWAY_LIMIT_{name}": str(limit) for name, limit in GATEWAY.items()}
    folder = tmp_path_factory.mktemp("limits") / "data"
    async with tenants(folder, settings, SERVICES, on_shared_stores) as started:
        yield started


@pytest.fixture
def stack(both: Tenants) -> Stack:
    return both.stack
