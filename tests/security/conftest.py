"""One stack for the tests of identities. No test breaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.security.guarded import Guarded, guarded_stack
from tests.support.fix_stack import OnSharedStores


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def guarded(tmp_path_factory: pytest.TempPathFactory, on_shared_stores: OnSharedStores) -> AsyncIterator[Guarded]:
    async with guarded_stack(tmp_path_factory.mktemp("guarded") / "data", on_shared_stores) as started:
        yield started
