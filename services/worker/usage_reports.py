"""What calls used that the ledger settled without us: told beside, since it is for the bill alone.

A worker that loses its claim still knows what its last call was billed; the ledger has only what was heard of it.
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
MOST_WAITING: Final = 1000
TRIED_SECONDS: Final = 300.0
"""So long a claim that is gone may take to be settled by others, and the ledger to come back."""

_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Of one call, under the token that it was made under."""

    token: token_pb2.FencingToken
    task_id: str
    call: ReportedCall
    provider_request_id: str
    noted_at: float = field(default_factory=monotonic)


class UsageReports:
    """Start `run` as a duty. What does not fit, or is not taken in time, stays billed as it was heard."""

    def __init__(self, ledger: LedgerClient) -> None:
        self._ledger = ledger
        self._waiting: deque[UsageReport] = deque()
        self._there_is_work = asyncio.Event()

    def note(self, report: UsageReport) -> None:
        """To be told as soon as the ledger takes it."""
        if len(self._waiting) >= MOST_WAITING:
            metrics.count("tenure_worker_usage_reports_total", result="DROPPED")
            return
        self._waiting.append(report)
        self._there_is_work.set()

    async def run(self) -> Never:
        """Tells what waits, again and again, until it is taken or too old."""
        while True:
            with resting():
                await self._there_is_work.wait()
            for _ in range(len(self._waiting)):
                report = self._waiting.popleft()
                note_progress()
                if not await self._is_done_with(report):
                    self._waiting.append(report)
            if self._waiting:
                await rest(_PAUSE_SECONDS)
            else:
                self._there_is_work.clear()

    async def _is_done_with(self, report: UsageReport) -> bool:
        try:
            await self._ledger.report_usage(report.token, report.call, report.provider_request_id)
        except (TenureError, PeerFailed) as error:
            reason = error.reason if isinstance(error, TenureError) else "PEER_FAILED"
            may_be_taken_yet = isinstance(error, TryLater | PeerFailed) or reason == ATTEMPT_OPEN
            if may_be_taken_yet and monotonic() - report.noted_at < TRIED_SECONDS:
                return False
            if reason != ATTEMPT_SETTLED:
                facts = {"task": report.task_id, "step": report.call.step, "why": str(error)}
                _log.warning("what a lost call used could not be told", extra=facts)
            metrics.count("tenure_worker_usage_reports_total", result=reason)
            return True
        metrics.count("tenure_worker_usage_reports_total", result="TAKEN")
        return True
