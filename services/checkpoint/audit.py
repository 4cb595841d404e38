"""AuditService, as far as the ledger serves it: appends records to the audit log and lists them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from services.checkpoint.queries import fetch_all, fetch_row
from tenure.domain.audit import NO_HASH, AuditRecord, ChainedRecord, Decision, Head, chain_hash, check_recorder
from tenure.domain.errors import InvalidRequest
from tenure.runtime.security.access_control import current_principal
from tenure.runtime.security.audit import RefusalLog
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1.audit_service_pb2_grpc import AuditServiceServicer
from tenure.wire.audit import DECISIONS, chained_to_wire, record_from_wire, target_of

AUDIT: Final = Queries.load("services.checkpoint", "sql/audit.sql")
DEFAULT_PAGE: Final = 100
_NEWEST: Final = (1 << 63) - 1
_log: Final = logging.getLogger(__name__)


class AuditRow(NamedTuple):
    """The columns of the lists, in their order."""

    number: int
    record_id: str
    recorded_at: datetime
    tenant: str
    subject: str
    peer: str
    method: str
    target: str
    decision: str
    reason: str
    refusals: int
    hash: bytes
    recorder: str

    def chained(self) -> ChainedRecord:
        """Returns the record."""
        record = AuditRecord(
            self.record_id,
            self.tenant,
            self.subject,
            self.peer,
            self.method,
            self.target,
            Decision(self.decision),
            self.reason,
            self.refusals,
            self.recorder,
        )
        return ChainedRecord(self.number, self.recorded_at, record, self.hash)


async def append_records(pool: Pool, records: Sequence[AuditRecord]) -> Head:
    """Appends the records that are not there yet, and logs the new end of the chain, so that the log notes it too."""

    async def work(connection: Connection) -> Head:
        await connection.execute(AUDIT.lock)
        row = await fetch_row(connection, AUDIT.head, {})
        number, digest, recorded_at = row
        head = Head(number, digest or NO_HASH)
        ids = [record.record_id for record in records]
        known = {one for (one,) in await fetch_all(connection, AUDIT.known, {"record_ids": ids})}
        for record in (one for one in records if one.record_id not in known):
            known.add(record.record_id)
            digest = chain_hash(head.hash, head.number + 1, recorded_at, record)
            head = Head(head.number + 1, digest)
            await _insert(connection, head, recorded_at, record)
        return head

    head = await in_transaction(pool, work)
    _log.info("the audit log has grown", extra={"audit_head": str(head)})
    return head


def refusal_log(pool: Pool, recorder: str) -> RefusalLog:
    """Returns the log of this server's own refusals. `recorder`: the identity of this process, "" without TLS."""

    async def write(records: Sequence[AuditRecord]) -> None:
        await append_records(pool, [replace(record, recorder=recorder) for record in records])

    return RefusalLog(target_of, write)


async def _insert(connection: Connection, head: Head, recorded_at: datetime, record: AuditRecord) -> None:
    parameters = {
        **asdict(record),
        "decision": record.decision.value,
        "number": head.number,
        "recorded_at": recorded_at,
        "hash": head.hash,
    }
    await connection.execute(AUDIT.append, parameters)


async def list_records(pool: Pool, request: pb.ListAuditRecordsRequest) -> pb.ListAuditRecordsResponse:
    """Returns a page of the log. The token is the number of the last record. Raises InvalidRequest."""
    limit = request.page_size or DEFAULT_PAGE
    parameters = {
        "position": _position(request),
        "tenant": request.tenant,
        "subject": request.subject,
        "method": request.method,
        "decision": DECISIONS.to_domain(request.decision).value if request.decision else "",
        "limit": limit + 1,
    }
    statement = AUDIT.list_oldest if request.oldest_first else AUDIT.list_newest
    async with pool_connection(pool) as connection:
        rows = [AuditRow(*columns) for columns in await fetch_all(connection, statement, parameters)]
    token = str(rows[limit - 1].number) if len(rows) > limit else ""
    records = [chained_to_wire(row.chained()) for row in rows[:limit]]
    return pb.ListAuditRecordsResponse(records=records, next_page_token=token)


def _position(request: pb.ListAuditRecordsRequest) -> int:
    token = request.page_token
    if not token:
        return 0 if request.oldest_first else _NEWEST
    if not (token.isascii() and token.isdecimal() and int(token) <= _NEWEST):
        message = "is not a token of this service: use next_page_token of the last response"
        raise InvalidRequest(violations=[("page_token", message)])
    return int(token)


class AuditServicer(AuditServiceServicer):
    """See protos/tenure/v1/audit_service.proto. The gateway has checked what the caller may do."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ListAuditRecords(self, request: pb.ListAuditRecordsRequest, _context: Any) -> pb.ListAuditRecordsResponse:
        return await list_records(self._pool, request)

    async def AppendAuditRecords(
        self, request: pb.AppendAuditRecordsRequest, _context: Any
    ) -> pb.AppendAuditRecordsResponse:
        records, caller = [record_from_wire(record) for record in request.records], current_principal()
        check_recorder(caller.role, records)
        recorder = "" if caller.role is None else caller.name
        await append_records(self._pool, [replace(record, recorder=recorder) for record in records])
        return pb.AppendAuditRecordsResponse()
