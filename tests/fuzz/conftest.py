"""The services of a module's tests, and how many examples each test makes up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devstack.postgres_process import PostgresProcess
from devstack.stores import ensure_database
from tests.fuzz.world import World, open_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresProcess
) -> AsyncIterator[World]:
    """At the end, whatever was sent: every process lives, has logged no error and holds no more memory than it needs,
    and others' work is done.
    """
    name = request.module.__name__.rpartition(".")[2]
    await ensure_database(postgres_server.dsn(), name)
    async with open_world(tmp_path_factory.mktemp(name), postgres_server.dsn(name)) as made:
        await made.control()
        before = made.memory_bytes()
        yield made
        made.check_processes()
        made.check_memory(before)
        await made.control()
        print(request.module.__name__, made.tally.told())  # noqa: T201  pytest shows it with -s
