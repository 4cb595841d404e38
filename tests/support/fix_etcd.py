"""A real etcd: that of the run (`shared_stores`) with a client and a prefix for each test, or one of a test's own."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from devstack.etcd import EtcdMember, EtcdProcess, find_etcd, start_cluster, start_etcd
from services.coordinator.etcd import stubs
from services.coordinator.etcd.client import EtcdClient
from tests.support.patience import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@dataclass(frozen=True)
class EtcdSpace:
    """A client, and the prefix under which a test may do what it likes."""

    client: EtcdClient
    endpoint: str
    prefix: bytes

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()


@pytest.fixture(scope="session")
def etcd_process(shared_etcd: EtcdMember) -> EtcdProcess:
    """The etcd of all tests, also those of other processes. Not to be killed or paused: `own_etcd` is for that."""
    return EtcdProcess(shared_etcd, find_etcd())


@pytest_asyncio.fixture
async def etcd(etcd_process: EtcdProcess) -> AsyncIterator[EtcdSpace]:
    """A client of the shared etcd and a prefix of the test's own, emptied at the end. Others move its revision."""
    async with EtcdClient([etcd_process.endpoint]) as client:
        space = EtcdSpace(client, etcd_process.endpoint, own_prefix().encode())
        yield space
        await delete_prefix(client, space.prefix)


async def delete_prefix(client: EtcdClient, prefix: bytes) -> None:
    """Deletes all keys under a prefix in one revision."""
    request = stubs.DeleteRangeRequest(key=prefix, range_end=prefix[:-1] + bytes([prefix[-1] + 1]))
    await client.endpoints.current.kv.DeleteRange(request, timeout=CALL_SECONDS)


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd of the test's own, to kill, pause, compact and replace."""
    process = start_etcd(tmp_path_factory.mktemp("own-etcd"))
    yield process
    process.stop()


@pytest.fixture
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdProcess]]:
    """Three members of the test's own."""
    members = start_cluster(tmp_path_factory.mktemp("etcd-cluster"), size=3)
    yield members
    for member in members:
        # Without a majority the orderly end would wait for one; there is nothing here to keep.
        member.kill()


def own_prefix() -> str:
    """Returns a prefix of keys of this test alone."""
    return f"/test/{uuid.uuid4().hex}/"


@asynccontextmanager
async def paused(process: EtcdProcess) -> AsyncIterator[None]:
    """Freeze an etcd for the length of a block."""
    process.pause()
    try:
        yield
    finally:
        process.resume()


async def restarted(process: EtcdProcess) -> None:
    """Kill an etcd and start it again over its data."""
    process.kill()
    process.start()
    await asyncio.to_thread(process.wait_ready)
