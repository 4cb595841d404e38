"""The log of a server's refusals: nothing is lost by a store that fails, and an end that comes soon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from tenure.domain.audit import MAX_APPENDED, MAX_NAME, AuditRecord
from tenure.domain.errors import PermissionDenied, Unavailable
from tenure.runtime.security import audit
from tenure.runtime.security.audit import RefusalLog
from tenure.v1 import admin_service_pb2 as admin
from tenure.wire.audit import target_of


class Store:
    """Takes records, or fails."""

    def __init__(self, failures: int = 0) -> None:
        self.appends = list[list[AuditRecord]]()
        self.failures = failures
        self.written = asyncio.Event()

    @property
    def refusals(self) -> int:
        return sum(one.count for append in self.appends for one in append)

    async def write(self, records: Sequence[AuditRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("no")
        self.appends.append(list(records))
        self.written.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FLUSH_SECONDS", 0.001)
    monkeypatch.setattr(audit, "_END_RETRY_SECONDS", 0.001)


def refuse(log: RefusalLog, method: str = "A/B", reason: str = "METHOD_NOT_ALLOWED") -> None:
    log.refused(
        f"/tenure.v1.{method}", admin.DrainWorkerRequest(worker_id="w"), "p", PermissionDenied("", reason=reason)
    )


async def test_refusals_are_written_again_after_failures() -> None:
    store = Store(failures=3)
    async with RefusalLog(target_of, store.write).opened() as log:
        for _ in range(5):
            refuse(log)
        await store.written.wait()
    (record,) = store.appends[0]
    assert (record.method, record.target, record.count, record.subject) == ("A/B", "worker_id=w", 5, "anyone")
    assert store.refusals == 5


async def test_the_end_writes_repetitions_that_are_not_due_yet() -> None:
    store = Store()
    async with RefusalLog(target_of, store.write).opened() as log:
        refuse(log)
        await store.written.wait()
        for _ in range(7):
            refuse(log)
        store.failures = 2
    assert [[one.count for one in append] for append in store.appends] == [[1], [7]]


async def test_close_has_a_limit_and_logs_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "END_SECONDS", 0.05)

    async def never(_records: Sequence[AuditRecord]) -> None:
        await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING):
        async with RefusalLog(target_of, never).opened() as log:
            refuse(log)
            refuse(log)
    (line,) = [one for one in caplog.records if one.message == "calls were refused"]
    assert (vars(line)["method"], vars(line)["count"]) == ("A/B", 2)


async def test_a_flush_of_many_kinds_is_several_appends() -> None:
    store = Store()
    async with RefusalLog(target_of, store.write).opened() as log:
        for number in range(MAX_APPENDED + 10):
            refuse(log, method=f"A/B{number}")
    assert store.refusals == MAX_APPENDED + 10
    assert max(map(len, store.appends)) <= MAX_APPENDED
    assert len(store.appends) > 1


async def test_record_is_valid_for_the_ledger() -> None:
    store = Store()
    async with RefusalLog(target_of, store.write).opened() as log:
        log.refused(
            "/A/B", admin.DrainWorkerRequest(worker_id="w" * 9000), "p" * 9000, PermissionDenied("", reason="R")
        )
    ((record,),) = store.appends
    assert len(record.peer) == MAX_NAME
    assert len(record.target) == 1000
