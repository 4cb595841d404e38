"""An upgrade and a rollback with tasks in flight: processes of two releases side by side, on the newer schema."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from devstack.postgres_process import PostgresProcess
from tenure.runtime.rpc_status import PeerFailed
from tests.upgrade.previous_release import REPOSITORY, previous_release
from tests.upgrade.two_releases import KINDS, LONG, SHORT, TwoReleases, migrate_all, runs, two_releases

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        not previous_release().is_in_history,
        reason=f"this clone has no history with the previous release ({previous_release().commit[:8]}): "
        "git fetch --unshallow",
    ),
    pytest.mark.nightly,
]


async def knows_agents(install: TwoReleases) -> bool:
    """Whether the gateway and the ledger serve what this release added."""
    try:
        return [agent async for agent in install.client.list_agents()] == []
    except PeerFailed as error:
        if error.code is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return False


async def roll(install: TwoReleases, kinds: tuple[str, ...], code: Path) -> None:
    """Replaces kind after kind, with a task of 40 steps all along, and new ones between."""
    long = await install.begin(LONG)
    await install.until(long, "tool_outcome")
    for kind in kinds:
        await install.begin(SHORT)
        await install.replace_all(kind, code)
        assert all(runs(service, code) for service in install.of_kind(kind))
    await install.begin(SHORT)
    await install.check_all_ended()


async def test_a_rolling_upgrade_loses_nothing(tmp_path: Path, own_postgres: PostgresProcess) -> None:
    """The schemas first, then the services in the order of KINDS."""
    async with two_releases(tmp_path, own_postgres, start="previous") as install:
        assert not await knows_agents(install)
        early = await asyncio.gather(*(install.begin(SHORT) for _ in range(3)))
        await install.until(early[0], "tool_outcome")
        await migrate_all(own_postgres, REPOSITORY)
        await roll(install, KINDS, REPOSITORY)
        assert await knows_agents(install)


async def test_a_rollback_loses_nothing(tmp_path: Path, own_postgres: PostgresProcess) -> None:
    """In the opposite order, on the schema of this release, which stays."""
    async with two_releases(tmp_path, own_postgres, start="this") as install:
        await roll(install, tuple(reversed(KINDS)), install.before)
        assert not await knows_agents(install)


async def test_new_workers_work_at_services_of_before(tmp_path: Path, own_postgres: PostgresProcess) -> None:
    """As where all deployments are replaced at once, in no order."""
    async with two_releases(tmp_path, own_postgres, start="previous") as install:
        long = await install.begin(SHORT)
        await install.until(long, "tool_outcome")
        await install.replace_all("worker", REPOSITORY)
        await install.begin(SHORT)
        await install.check_all_ended()
