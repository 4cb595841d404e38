"""Reports the usage of lost model calls to the ledger, for the bill alone.

A worker that lost its claim still knows the usage of its last call. The ledger, which settled the call, knows only the
usage that renewals reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Never

from services.worker.ledger_client import LedgerClient
from tenure.domain.errors import TenureError, TryLater
from tenure.domain.lost_model_calls import ATTEMPT_OPEN, ATTEMPT_SETTLED, ReportedCall
from tenure.runtime import metrics
from tenure.runtime.process import note_progress, rest, resting
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import token_pb2

_log: Final = logging.getLogger(__name__)
MAX_WAITING: Final = 1000
TRIED_SECONDS: Final = 300.0
"""The time in which another process may settle a lost claim's call, and the ledger may become reachable again."""

_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage of one call, with the token under which the call was made."""

    token: token_pb2.FencingToken
    task_id: str
    call: ReportedCall
    provider_request_id: str
    noted_at: float = field(default_factory=monotonic)


class UsageReports:
    """Sends usage reports; start `run` as a duty.

    A report that does not fit or is not accepted in time is dropped: the call keeps the bill from the renewals.
    """

    def __init__(self, ledger: LedgerClient) -> None:
        self._ledger = ledger
        self._waiting: deque[UsageReport] = deque()
        self._has_reports = asyncio.Event()

    def note(self, report: UsageReport) -> None:
        """Queues a report."""
        if len(self._waiting) >= MAX_WAITING:
            metrics.count("tenure_worker_usage_reports_total", result="DROPPED")
            return
        self._waiting.append(report)
        self._has_reports.set()

    async def run(self) -> Never:
        """Sends the queued reports repeatedly, until each is accepted or too old."""
        while True:
            with resting():
                await self._has_reports.wait()
            for _ in range(len(self._waiting)):
                report = self._waiting.popleft()
                note_progress()
                if not await self._send(report):
                    self._waiting.append(report)
            if self._waiting:
                await rest(_PAUSE_SECONDS)
            else:
                self._has_reports.clear()

    async def _send(self, report: UsageReport) -> bool:
        try:
            await self._ledger.report_usage(report.token, report.call, report.provider_request_id)
        except (TenureError, PeerFailed) as error:
            reason = error.reason if isinstance(error, TenureError) else "PEER_FAILED"
            may_be_taken_yet = isinstance(error, TryLater | PeerFailed) or reason == ATTEMPT_OPEN
            if may_be_taken_yet and monotonic() - report.noted_at < TRIED_SECONDS:
                return False
            if reason != ATTEMPT_SETTLED:
                fields = {"task": report.task_id, "step": report.call.step, "why": str(error)}
                _log.warning("the usage of a lost model call could not be reported", extra=fields)
            metrics.count("tenure_worker_usage_reports_total", result=reason)
            return True
        metrics.count("tenure_worker_usage_reports_total", result="TAKEN")
        return True
