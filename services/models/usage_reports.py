"""Reports the usage of calls whose end may not be in the ledger, for the bill alone.

A task that was cancelled while it was queued has no worker that would settle its call: the ledger settled it as lost,
with an estimate. The report replaces the estimate. A call that was settled by its answer refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Never

from services.models.work import ModelCallKey
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import TenureError, TryLater
from tenure.domain.lost_model_calls import ATTEMPT_OPEN, ATTEMPT_SETTLED
from tenure.runtime import metrics
from tenure.runtime.process import note_progress, rest, resting
from tenure.runtime.rpc_client import TenureChannel
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc as grpc_pb
from tenure.v1 import token_pb2
from tenure.wire.task import usage_to_wire

_log: Final = logging.getLogger(__name__)
MAX_WAITING: Final = 10_000
TRIED_SECONDS: Final = 3600.0
"""The task may be queued that long before its next owner joins the call or the task ends."""

REPORT_TIMEOUT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ModelUsageReport:
    """The usage of one call, with the token that began it."""

    token: token_pb2.FencingToken
    key: ModelCallKey
    usage: TokenUsage
    provider_request_id: str
    noted_at: float = field(default_factory=monotonic)


class ModelUsageReports:
    """Sends usage reports; start `run` as a duty. A report that is not accepted in time is dropped."""

    def __init__(self, checkpoint: TenureChannel) -> None:
        self._stub: Any = grpc_pb.CheckpointServiceStub(checkpoint)
        self._waiting: deque[ModelUsageReport] = deque()
        self._has_reports = asyncio.Event()

    def note(self, report: ModelUsageReport) -> None:
        """Queues a report."""
        if len(self._waiting) >= MAX_WAITING:
            metrics.count("tenure_models_usage_reports_total", result="DROPPED")
            return
        self._waiting.append(report)
        self._has_reports.set()

    async def run(self) -> Never:
        """Sends the queued reports repeatedly, until each is accepted or too old."""
        while True:
            with resting():
                await self._has_reports.wait()
            await self.send_waiting()
            if self._waiting:
                await rest(_PAUSE_SECONDS)
            else:
                self._has_reports.clear()

    async def send_waiting(self) -> None:
        """Sends each queued report once."""
        for _ in range(len(self._waiting)):
            report = self._waiting.popleft()
            note_progress()
            if not await self._send(report):
                self._waiting.append(report)

    async def try_once(self, seconds: float) -> None:
        """Sends the queued reports once, at the end of the process, for at most so long."""
        with suppress(TimeoutError):  # the estimates remain
            async with asyncio.timeout(seconds):
                await self.send_waiting()

    async def _send(self, report: ModelUsageReport) -> bool:
        """Sends a report. Returns whether it is done with."""
        request = pb.ReportUsageRequest(
            token=report.token,
            step=report.key.attempt.step,
            attempt_number=report.key.attempt.number,
            usage=usage_to_wire(report.usage),
            provider_request_id=report.provider_request_id,
        )
        try:
            await self._stub.ReportUsage(request, timeout=REPORT_TIMEOUT_SECONDS)
        except (TenureError, PeerFailed) as error:
            return self._is_final(report, error)
        metrics.count("tenure_models_usage_reports_total", result="TAKEN")
        return True

    def _is_final(self, report: ModelUsageReport, error: TenureError | PeerFailed) -> bool:
        reason = error.reason if isinstance(error, TenureError) else "PEER_FAILED"
        may_be_taken_yet = isinstance(error, TryLater | PeerFailed) or reason == ATTEMPT_OPEN
        if may_be_taken_yet and monotonic() - report.noted_at < TRIED_SECONDS:
            return False
        if reason != ATTEMPT_SETTLED:
            fields = {"task": str(report.key.task_id), "step": report.key.attempt.step, "why": str(error)}
            _log.warning("the usage of a model call could not be reported", extra=fields)
        metrics.count("tenure_models_usage_reports_total", result=reason)
        return True
