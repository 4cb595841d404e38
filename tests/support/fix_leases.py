"""LeaseService at two replicas that a module's tests share, and at coordinators of a test's own.

lease = await leases.acquire("table/a", holder="one")          # at the first replica
await leases.at(1).renew(lease)                                 # at the second
"""

from __future__ import annotations

import itertools
import os
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from services.checkpoint.queries import MIGRATIONS
from tenure.runtime.rpc.client import TenureChannel, open_channel
from tenure.runtime.store.sql import migrate
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1.lease_service_pb2_grpc import LeaseServiceStub
from tenure.wire.common import duration
from tests.support.fix_coordinator import make_fleet
from tests.support.fix_etcd import own_prefix
from tests.support.patience import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from devstack.etcd import EtcdProcess
    from devstack.postgres_process import PostgresProcess
    from tests.support.fix_coordinator import Fleet

TIMEOUT_SECONDS = CALL_SECONDS
_numbers = itertools.count(1)


class Leases:
    """A backend that holds leases. `stub` has all methods as they are."""

    def __init__(self, channel: TenureChannel, others: tuple[TenureChannel, ...] = ()) -> None:
        self.stub: Any = LeaseServiceStub(channel)
        self._channels = (channel, *others)

    def at(self, replica: int) -> Leases:
        return Leases(self._channels[replica])

    async def acquire(
        self, resource: str, holder: str = "one", ttl_seconds: float = 30, request_id: str = ""
    ) -> pb.Lease:
        request = pb.AcquireLeaseRequest(
            resource=resource, holder=holder, ttl=duration(ttl_seconds), request_id=request_id or str(uuid.uuid4())
        )
        answer: pb.Lease = (await self.stub.AcquireLease(request, timeout=TIMEOUT_SECONDS)).lease
        return answer

    async def renew(self, lease: pb.Lease) -> pb.Lease:
        answer: pb.Lease = (
            await self.stub.RenewLease(pb.RenewLeaseRequest(token=lease.token), timeout=TIMEOUT_SECONDS)
        ).lease
        return answer

    async def release(self, lease: pb.Lease, reason: str = "") -> bool:
        request = pb.ReleaseLeaseRequest(token=lease.token, reason=reason)
        answer: bool = (await self.stub.ReleaseLease(request, timeout=TIMEOUT_SECONDS)).released
        return answer

    async def operator_release(self, lease: pb.Lease, reason: str) -> bool:
        request = pb.ReleaseLeaseRequest(lease=reference(lease), reason=reason)
        answer: bool = (await self.stub.ReleaseLease(request, timeout=TIMEOUT_SECONDS)).released
        return answer

    async def transfer(self, holder: str, reason: str = "moved", *, request_id: str = "", **authority: Any) -> pb.Lease:
        """`token=` or `lease=`."""
        request = pb.TransferLeaseRequest(
            holder=holder, reason=reason, request_id=request_id or str(uuid.uuid4()), **authority
        )
        answer: pb.Lease = (await self.stub.TransferLease(request, timeout=TIMEOUT_SECONDS)).lease
        return answer

    async def get(self, resource: str) -> pb.Lease:
        answer: pb.Lease = (
            await self.stub.GetLease(pb.GetLeaseRequest(resource=resource), timeout=TIMEOUT_SECONDS)
        ).lease
        return answer

    async def list(self, prefix: str = "", page_size: int = 0, page_token: str = "") -> pb.ListLeasesResponse:
        request = pb.ListLeasesRequest(prefix=prefix, page_size=page_size, page_token=page_token)
        answer: pb.ListLeasesResponse = await self.stub.ListLeases(request, timeout=TIMEOUT_SECONDS)
        return answer

    async def keys(self) -> dict[str, pb.SigningKey]:
        answer = await self.stub.ListSigningKeys(pb.ListSigningKeysRequest(), timeout=TIMEOUT_SECONDS)
        return {key.key_id: key for key in answer.keys}


def reference(lease: pb.Lease) -> pb.LeaseReference:
    """Returns the name that an operator uses."""
    return pb.LeaseReference(resource=lease.resource, epoch=lease.epoch)


async def new_ledger(server: PostgresProcess) -> str:
    """A database for a module, gone with the server."""
    name = f"leases_{os.getpid()}_{next(_numbers)}"
    async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as postgres:
        await postgres.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    await migrate(server.dsn(name), MIGRATIONS)
    return server.dsn(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lease_fleet(
    etcd_process: EtcdProcess, postgres_server: PostgresProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """A ledger for the tests of a module, which share a loop."""
    dsn = await new_ledger(postgres_server)
    fleet = await make_fleet(etcd_process, dsn, tmp_path_factory.mktemp("leases"), own_prefix())
    yield fleet
    await fleet.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lease_replicas(lease_fleet: Fleet) -> list[str]:
    """Two coordinators' addresses."""
    settings = {"max_leases_per_tenant": "40"}
    return [(await lease_fleet.coordinator(**settings)).address for _ in range(2)]


@pytest_asyncio.fixture(loop_scope="module")
async def leases(lease_replicas: list[str]) -> AsyncIterator[Leases]:
    """A tenant of the test's own, at both replicas."""
    tenant = f"t-{next(_numbers)}"
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(one, tenant=tenant)) for one in lease_replicas]
        yield Leases(channels[0], tuple(channels[1:]))
