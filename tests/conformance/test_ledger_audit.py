"""The audit log in Postgres: records are appended once, without gaps, and are never changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from services.checkpoint.queries import MIGRATIONS
from tenure.domain.audit import BrokenChainError, ChainedRecord, verify_chain
from tenure.domain.errors import InvalidRequest
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1.audit_service_pb2_grpc import AuditServiceStub
from tenure.wire.audit import chained_from_wire
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint
from tests.support.fix_postgres import FreshDatabase

pytestmark = pytest.mark.server


class Log:
    """The log as one replica serves it."""

    def __init__(self, replica: Checkpoint) -> None:
        self.stub: Any = AuditServiceStub(replica.channel)

    async def append(self, *records: pb.AuditRecord) -> None:
        await self.stub.AppendAuditRecords(pb.AppendAuditRecordsRequest(records=records), timeout=TIMEOUT_SECONDS)

    async def list(self, **fields: Any) -> list[pb.AuditRecord]:
        return [record async for record in self.pages(**fields)]

    async def pages(self, **fields: Any) -> AsyncIterator[pb.AuditRecord]:
        request = pb.ListAuditRecordsRequest(**fields)
        while True:
            page = await self.stub.ListAuditRecords(request, timeout=TIMEOUT_SECONDS)
            assert len(page.records) <= (request.page_size or 100)
            for record in page.records:
                yield record
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def chained(self) -> AsyncIterator[ChainedRecord]:
        async for record in self.pages(oldest_first=True, page_size=7):
            yield chained_from_wire(record)


def record(**fields: Any) -> pb.AuditRecord:
    usual: dict[str, Any] = {"record_id": str(uuid4()), "method": "AdminService/DrainWorker", "subject": "key/k"}
    return pb.AuditRecord(**{**usual, "tenant": "acme", "decision": pb.AUDIT_DECISION_ALLOWED, "count": 1, **fields})


async def test_replicas_append_to_one_chain_without_gaps(
    checkpoint: MakeCheckpoint, fresh_database: FreshDatabase
) -> None:
    dsn = await fresh_database(MIGRATIONS)
    logs = [Log(await checkpoint(dsn=dsn)) for _ in range(2)]
    await asyncio.gather(*(logs[number % 2].append(record(), record()) for number in range(20)))
    head = await verify_chain(logs[0].chained())
    assert head.number == 40


async def test_a_repeated_append_changes_nothing(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    log = Log(replica)
    first, second = record(), record()
    await log.append(first)
    await log.append(first, second, second)
    assert [one.record_id for one in await log.list(oldest_first=True)] == [first.record_id, second.record_id]
    assert (await verify_chain(log.chained())).number == 2


async def test_the_log_is_filtered_and_paged_both_ways(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    log = Log(replica)
    for number in range(12):
        denied: dict[str, Any] = {"decision": pb.AUDIT_DECISION_DENIED, "count": 3} if number % 3 == 0 else {}
        await log.append(record(tenant=f"t-{number % 2}", subject=f"key/{number % 4}", **denied))
    newest = [one.number for one in await log.list(page_size=5)]
    assert newest == list(range(12, 0, -1))
    assert [one.number for one in await log.list(page_size=5, oldest_first=True)] == newest[::-1]
    assert {one.number for one in await log.list(decision=pb.AUDIT_DECISION_DENIED)} == {1, 4, 7, 10}
    assert {one.number for one in await log.list(tenant="t-1", subject="key/3")} == {4, 8, 12}
    assert await log.list(method="AdminService/Other") == []


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "9" * 30])
async def test_a_malformed_page_token_is_refused(replica: Checkpoint, token: str) -> None:
    log = Log(replica)
    with pytest.raises(InvalidRequest, match="page_token"):
        await log.list(page_token=token)


async def test_a_malformed_audit_record_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    log = Log(replica)
    texts: list[dict[str, Any]] = [{"record_id": ""}, {"target": "x" * 1001}, {"peer": "\0"}]
    wrong: list[dict[str, Any]] = [*texts, {"count": 0}, {"decision": 0}, {"decision": 77}]
    for fields in wrong:
        with pytest.raises(InvalidRequest):
            await log.append(record(**fields))
    assert await log.list() == []


CHANGES = [
    "update ledger.audit_records set subject = 'key/other' where number = 2",
    "delete from ledger.audit_records where number = 3",
    "truncate ledger.audit_records",
    """insert into ledger.audit_records select 5, 'x', recorded_at, tenant, subject, peer, method, target, decision,
       reason, count, '', sha256('x') from ledger.audit_records where number = 3""",
]


async def test_the_database_refuses_changes_of_the_log(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    log = Log(replica)
    await log.append(record(), record(), record())
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as owner:
        for change in CHANGES:
            with pytest.raises(psycopg.errors.CheckViolation):
                await owner.execute(change.encode())
    assert (await verify_chain(log.chained())).number == 3


async def test_verification_finds_changes_by_the_database_owner(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    log = Log(replica)
    await log.append(record(), record(), record(), record())
    async with await psycopg.AsyncConnection.connect(replica.dsn, autocommit=True) as owner:
        await owner.execute(b"alter table ledger.audit_records disable trigger all")
        await owner.execute(CHANGES[0].encode())
    with pytest.raises(BrokenChainError):
        await verify_chain(log.chained())
