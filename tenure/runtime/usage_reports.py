"""Reports the usage of model calls to the ledger, for the bill alone.

The process that made a call knows its usage. The ledger knows less if it settled the call as lost: the owner had lost
its claim, or the task was cancelled while it had no owner. The report replaces the estimate. A call that was settled by
its answer refuses it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Never

from tenure.domain.errors import TenureError, TryLater
from tenure.domain.in_doubt import ATTEMPT_OPEN, ATTEMPT_SETTLED, ReportedCall
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.runtime.process import note_progress, resting
from tenure.runtime.rpc.status import PeerFailed

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=60.0, jitter=Jitter.EQUAL)
"""The waits between the tries of one report: its task may be queued for an hour, and thousands may be so at once."""
MOST_AT_ONCE: Final = 16


@dataclass(slots=True, eq=False)
class UsageReport:
    """The usage of one call. `token`: a token of the claim under which the call was made; it may be stale."""

    token: Any
    task_id: str
    call: ReportedCall
    provider_request_id: str
    noted_at: float = field(default_factory=monotonic)
    tries: int = 0
    due_at: float = 0.0


class UsageReports:
    """Sends usage reports; start `run` as a duty.

    `send` raises the ledger's refusal. `count` takes what became of one: TAKEN, DROPPED, or the reason of a refusal.
    A report that does not fit or is not accepted in time is dropped: the call keeps the bill that it has.
    """

    def __init__(
        self,
        send: Callable[[UsageReport], Awaitable[None]],
        count: Callable[[str], None],
        *,
        max_waiting: int,
        tried_seconds: float,
    ) -> None:
        self._send_one, self._count = send, count
        self._max_waiting, self._tried_seconds = max_waiting, tried_seconds
        self._waiting: set[UsageReport] = set()
        self._arrived = asyncio.Event()

    def note(self, report: UsageReport) -> None:
        """Queues a report."""
        if len(self._waiting) >= self._max_waiting:
            self._count("DROPPED")
            return
        self._waiting.add(report)
        self._arrived.set()

    async def run(self) -> Never:
        """Sends each report when it is due, until it is accepted, refused for good, or too old."""
        while True:
            self._arrived.clear()
            now = monotonic()
            due = [report for report in self._waiting if report.due_at <= now]
            if due:
                await self._send_all(due)
                continue
            next_at = min((report.due_at for report in self._waiting), default=None)
            with resting(), suppress(TimeoutError):
                async with asyncio.timeout(None if next_at is None else next_at - now):
                    await self._arrived.wait()

    async def try_once(self, seconds: float) -> None:
        """Sends the queued reports once, at the end of the process, for at most so long."""
        with suppress(TimeoutError):  # the estimates remain
            async with asyncio.timeout(seconds):
                await self._send_all(list(self._waiting))

    async def _send_all(self, reports: list[UsageReport]) -> None:
        """Sends several at once, so that a slow answer does not hold up the others."""
        for begin in range(0, len(reports), MOST_AT_ONCE):
            await asyncio.gather(*map(self._send, reports[begin : begin + MOST_AT_ONCE]))
            note_progress()

    async def _send(self, report: UsageReport) -> None:
        """Sends a report. One that is done with waits no longer."""
        report.tries += 1
        try:
            await self._send_one(report)
        except (TenureError, PeerFailed) as error:
            result = error.reason if isinstance(error, TenureError) else "PEER_FAILED"
            may_be_taken_yet = isinstance(error, TryLater | PeerFailed) or result == ATTEMPT_OPEN
            if may_be_taken_yet and monotonic() - report.noted_at < self._tried_seconds:
                report.due_at = monotonic() + AGAIN.wait_seconds(report.tries, random.random())
                return
            if result != ATTEMPT_SETTLED:
                fields = {"task": report.task_id, "step": report.call.step, "why": str(error)}
                _log.warning("the usage of a model call could not be reported", extra=fields)
        else:
            result = "TAKEN"
        self._waiting.discard(report)
        self._count(result)
