"""The audit of one server's calls, as its interceptor uses it, and the log of refusals that every server shares.

A refusal is only noted while its call is answered. A task of its own writes what `Denials` says is due, every second,
and once more when the server has ended: no refusal waits for the store, and a flood of them is a few records.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final, Protocol

import uuid_utils

from tenure.domain.audit import MAX_APPENDED, MAX_NAME, MAX_REASON, AuditRecord, Decision, Denials
from tenure.domain.errors import TenureError
from tenure.runtime.observability import metrics
from tenure.runtime.security.access_control import current_principal

FLUSH_SECONDS: Final = 1.0
END_SECONDS: Final = 5.0
"""The time for the last refusals of a server that has ended. What is left then is in the service's log."""
_END_RETRY_SECONDS: Final = 0.2
_log: Final = logging.getLogger(__name__)

Write = Callable[[Sequence[AuditRecord]], Awaitable[None]]
"""Writes up to `MAX_APPENDED` records, each once, also after repeats."""
TargetOf = Callable[[Any, Mapping[str, str]], str]
"""Returns what a request acts on, from the request and the metadata of its refusal."""


class Audit(Protocol):
    """Records calls. `method`: "/service/method", as gRPC has it. `request`: a message, or the iterator of a stream."""

    async def admitted(self, method: str, request: Any, peer: str) -> None:
        """Records a call whose handler runs next. Raises an error if it cannot be recorded: then no handler runs."""

    def refused(self, method: str, request: Any, peer: str, refusal: TenureError) -> None:
        """Notes a call that was refused."""


class NoAudit:
    """Records nothing, for a server that refuses every request, and for tests."""

    async def admitted(self, method: str, request: Any, peer: str) -> None:
        """Records nothing."""

    def refused(self, method: str, request: Any, peer: str, refusal: TenureError) -> None:
        """Records nothing."""


class RefusalLog:
    """Records the refusals of one server. Open it before the server, so that it closes after the last call."""

    def __init__(self, target_of: TargetOf, write: Write) -> None:
        self._target_of, self._write = target_of, write
        self._denials = Denials()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[RefusalLog]:
        """Writes refusals while the block runs, and the last ones at its end."""
        flushing = asyncio.create_task(self._flush_forever())
        try:
            yield self
        finally:
            flushing.cancel()
            await asyncio.wait([flushing])  # a flush that was cancelled returns its records
            await self._flush_the_last()

    async def admitted(self, method: str, request: Any, peer: str) -> None:
        """Records nothing: the gateway that carries out a client's act has recorded it."""

    def refused(self, method: str, request: Any, peer: str, refusal: TenureError) -> None:
        """Notes a refusal, to be recorded soon."""
        self.note(self.record(method, request, peer, Decision.DENIED, refusal.reason, refusal.metadata))

    def note(self, record: AuditRecord) -> None:
        """Notes a refusal of a subject that is not the current principal, to be recorded soon."""
        metrics.count("tenure_denied_calls_total", method=record.method, reason=record.reason)
        self._denials.add(record)

    def record(
        self, method: str, request: Any, peer: str, decision: Decision, reason: str, refused: Mapping[str, str]
    ) -> AuditRecord:
        """Returns the record of a call of the current principal."""
        principal = current_principal()
        return AuditRecord(
            record_id=str(uuid_utils.uuid7()),
            tenant=principal.tenant or "",
            subject=principal.name[:MAX_NAME],
            peer=peer[:MAX_NAME],
            method=method.removeprefix("/").removeprefix("tenure.v1."),
            target=self._target_of(request, refused),
            decision=decision,
            reason=reason[:MAX_REASON],
        )

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush(monotonic())

    async def _flush_the_last(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                while True:
                    if await self._flush(math.inf):
                        return
                    await asyncio.sleep(_END_RETRY_SECONDS)
        except TimeoutError:
            _log.error("the last refusals are in this log only: the audit log could not be written")
            await log_refusals(self._denials.take(math.inf))

    async def _flush(self, now_seconds: float) -> bool:
        """Writes the records that are due. Returns whether all are written; the others stay due."""
        left = self._denials.take(now_seconds)
        try:
            while left:
                await self._write(left[:MAX_APPENDED])
                del left[:MAX_APPENDED]
        except Exception as error:  # noqa: BLE001  whatever the store's failure is, the records are kept for later
            _log.warning("refusals cannot be recorded now", extra={"kinds": len(left), "error": str(error)})
            return False
        finally:
            if left:
                self._denials.give_back(left)
        return True


async def log_refusals(records: Sequence[AuditRecord]) -> None:
    """Writes each record as a line of the service's log, for a process that cannot reach the audit log."""
    for record in records:
        fields = {
            "record_id": record.record_id,
            "caller": record.subject,
            "caller_tenant": record.tenant,
            "peer": record.peer,
            "method": record.method,
            "target": record.target,
            "reason": record.reason,
            "count": record.count,
        }
        _log.warning("calls were refused", extra=fields)
