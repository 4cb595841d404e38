"""The model calls of a control function at a model runner: their requests, and how they end."""

from __future__ import annotations

from dataclasses import replace

from services.worker.claim_ledger import ClaimLedger, StepEntry
from services.worker.control.model_calls import AttemptReport, failure_entry
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.model_attempt import AttemptWatch, stopped_call
from services.worker.model_runner import RunnerModels
from services.worker.model_step import ended_entry
from services.worker.models import CallEvents, ClaimedAttempt
from services.worker.vendor_calls import VendorCalls
from tenure.control import ModelCallRequest
from tenure.control.failures import CallFailure
from tenure.domain import entries
from tenure.domain.errors import WrongState


class CallsAtRunner:
    """The calls of one task under one claim."""

    def __init__(
        self, dependencies: Dependencies, held_task: HeldTask, ledger: ClaimLedger, watch: AttemptWatch
    ) -> None:
        self._models, self._held_task, self._ledger, self._watch = dependencies.models, held_task, ledger, watch
        uses_runner = dependencies.defaults.functions_use_runner
        self._runner = self._models if uses_runner and isinstance(self._models, RunnerModels) else None

    def takes(self, request: ModelCallRequest) -> bool:
        """Whether the call goes to a model runner."""
        return self._runner is not None and request.outlives_worker

    def calls_of(self, attempt: entries.ModelAttempt, timeout_seconds: float) -> VendorCalls | None:
        """Returns what sends the request of an attempt to the runner; None: the function sends it to the provider."""
        if self._runner is None or not attempt.outlives_worker:
            return None
        progress = self._held_task.progress
        events = CallEvents(
            lambda _block, _text: None,  # the function reports the text that its client reads
            progress.on_model_call_progress,
            lambda: progress.announce_backoff(timeout_seconds),
            lambda waits: progress.note_model_call(waits=waits),
        )
        most = attempt.max_output_tokens
        return VendorCalls(
            self._runner, self._claimed(attempt), events, max_output_tokens=most, timeout_seconds=timeout_seconds
        )

    async def stop(self) -> list[StepEntry]:
        """Stops the call of the open attempt. Returns the entries that settle it.

        An answer that came before has no use: only the function can make a result of it. Raises TryLater or PeerFailed
        without an answer of a runner.
        """
        attempt, step = self._ledger.point.open_attempt, self._ledger.point.step
        assert attempt is not None, "there is a call to stop"
        try:
            end = await stopped_call(self._models, self._claimed(attempt))
        except WrongState:  # a restored ledger has an older call than the runners
            end = None
        return self._watch.settlement() if end is None else [(step, ended_entry(attempt, end))]

    async def failure(self, report: AttemptReport, failed: CallFailure) -> entries.ModelFailure:
        """Returns the failure of an attempt; that of a call at a runner is the runner's, and so is its usage.

        Raises what keeps this worker from learning how the call ended: the next owner joins it.
        """
        calls, attempt = report.vendor_calls, report.reserved
        if calls is None:
            return failure_entry(report, failed)
        if calls.leaves is not None:
            raise calls.leaves
        said = failure_entry(report, failed) if calls.failed is None else ended_entry(attempt, calls.failed)
        try:
            end = calls.ended or await stopped_call(self._models, self._claimed(attempt))
        except WrongState:  # as in `stop`
            return said
        if end is None:
            return said
        billed = ended_entry(attempt, end)
        return replace(said, usage=billed.usage, provider_request_id=billed.provider_request_id)

    def _claimed(self, attempt: entries.ModelAttempt) -> ClaimedAttempt:
        held_task, point = self._held_task, self._ledger.point
        number, tier = attempt.attempt_number, held_task.tier
        return ClaimedAttempt(lambda: held_task.token, point.step, number, tier, point.reserved_epoch)
