"""A cluster of three real etcd members whose leader can be found, and whose members can be killed and frozen.

leader = await cluster.leader()
leader.kill()                      # or: async with cluster.frozen(leader, other): …
await cluster.heal()

`cluster_fleet` is a ledger, and the coordinators and workers of a test, over such a cluster.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from devstack.etcd import EtcdProcess, start_cluster
from services.checkpoint.queries import MIGRATIONS
from services.coordinator.etcd.calls import EtcdError
from services.coordinator.etcd.client import EtcdClient
from tests.support.fix_coordinator import Fleet
from tests.support.fix_etcd import own_prefix
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_ASK_SECONDS = 2.0


class EtcdCluster:
    """The members, started already. `heal` brings all of them back."""

    def __init__(self, members: list[EtcdProcess]) -> None:
        self.members = members

    def endpoints(self, first: EtcdProcess | None = None) -> list[str]:
        """All, `first` to be asked first: for a test that breaks it, that is the worst order."""
        return [member.endpoint for member in sorted(self.members, key=lambda each: each is not first)]

    async def leader(self) -> EtcdProcess:
        """The member that says by its Status that it leads; frozen and dead ones say nothing."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for member in self.members:
                    if await _leads(member):
                        return member
                await asyncio.sleep(0.1)

    async def majority(self) -> list[EtcdProcess]:
        """Two members, the leader among them: what a quorum cannot be without."""
        leader = await self.leader()
        return sorted(self.members, key=lambda each: each is not leader)[:2]

    @asynccontextmanager
    async def frozen(self, *members: EtcdProcess) -> AsyncIterator[None]:
        """Freeze members for the length of a block, and wait until the cluster answers again after it."""
        for each in members:
            each.pause()
        try:
            yield
        finally:
            for each in members:
                each.resume()
        await self.answers()

    async def heal(self) -> None:
        """All members run and answer."""
        for each in self.members:
            if each.exit_code is None:
                each.resume()
            else:
                each.start()
        for each in self.members:
            await asyncio.to_thread(each.wait_ready)

    async def answers(self) -> None:
        """Returns once a quorum answers a linearizable read."""
        async with asyncio.timeout(PATIENCE_SECONDS), EtcdClient(self.endpoints()) as client:
            while True:
                with suppress(EtcdError):
                    await client.revision(timeout_seconds=2.0)
                    return
                await asyncio.sleep(0.1)


async def _leads(member: EtcdProcess) -> bool:
    async with EtcdClient([member.endpoint]) as client:
        with suppress(EtcdError):
            return (await client.status(timeout_seconds=_ASK_SECONDS)).is_leader
    return False


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdProcess]]:
    """One cluster for a module."""
    members = start_cluster(tmp_path_factory.mktemp("three-etcds"), size=3)
    yield members
    for member in members:
        # Without a majority the orderly end would wait for one; there is nothing here to keep.
        if member.exit_code is None:
            member.kill()


@pytest.fixture
async def cluster(three_members: list[EtcdProcess]) -> AsyncIterator[EtcdCluster]:
    """The module's cluster, whole at the beginning of each test."""
    made = EtcdCluster(three_members)
    await made.heal()
    yield made
    await made.heal()


@pytest.fixture
async def cluster_fleet(cluster: EtcdCluster, fresh_database: Any, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A ledger of the test's own over the module's cluster, its leader the first to be asked."""
    endpoints = cluster.endpoints(await cluster.leader())
    fleet = Fleet(",".join(endpoints), await fresh_database(MIGRATIONS), tmp_path, own_prefix())
    await fleet.start()
    yield fleet
    await fleet.aclose()
