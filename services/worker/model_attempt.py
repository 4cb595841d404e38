"""Watches the newest model attempt under one claim: shows it, reports its usage, and settles it when it is cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from services.worker.claim_ledger import TRIES, ClaimLedger, StepEntry
from services.worker.held_claims import HeldTask
from services.worker.models import ClaimedAttempt, Models
from tenure.domain import entries
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import TryLater
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.retry import RETRYABLE, FailureClass
from tenure.model_providers.client import ModelAnswer, ModelCallFailed
from tenure.runtime.failpoints import failpoint
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed

BY_MESSAGE: Final = "a message interrupted the call"
MIN_OUTPUT_TOKENS: Final = 256
"""A smaller output is not worth a call: the task ends at its token limit instead."""


class WatchedCall(Protocol):
    """The state of a model call while it runs: the usage that it is billed, and the provider's id of it."""

    @property
    def usage(self) -> TokenUsage: ...

    @property
    def request_id(self) -> str: ...


class UnsettledCall(NamedTuple):
    """A model call whose end the ledger does not have from this claim."""

    call: ReportedCall
    provider_request_id: str


class _Newest(NamedTuple):
    attempt: entries.ModelAttempt
    step: int
    call: WatchedCall


class AttemptWatch:
    """The newest model attempt under one claim."""

    def __init__(self, held_task: HeldTask, ledger: ClaimLedger) -> None:
        self._held_task, self._ledger = held_task, ledger
        self._newest: _Newest | None = None

    async def begin(self, call: WatchedCall, timeout_seconds: float) -> None:
        """Begins to show and to report the call of the open attempt.

        A model may think for minutes before its first output, and the call has a timeout of its own.
        """
        attempt, step = self._ledger.point.open_attempt, self._ledger.point.step
        assert attempt is not None, "the call has no reservation"
        self._newest = _Newest(attempt, step, call)
        self._held_task.progress.begin_call(step, attempt.attempt_number, lambda: call.usage)
        self._held_task.live.begin(step, attempt.attempt_number)
        self._held_task.progress.announce_backoff(timeout_seconds)
        await failpoint("worker.before_model")

    async def answered(self) -> None:
        """Marks the moment at which the provider has billed an answer that the ledger does not have."""
        await failpoint("worker.after_model")

    def end(self) -> None:
        """Ends the live text of the call: its answer or its failure follows."""
        self._held_task.live.finish()
        self._held_task.progress.announce_backoff(0)
        self._held_task.progress.note_model_call(waits=False)

    @asynccontextmanager
    async def watching(self, call: WatchedCall, timeout_seconds: float) -> AsyncIterator[None]:
        """Watches the call of the open attempt until the block ends."""
        try:
            await self.begin(call, timeout_seconds)
            yield
        finally:
            self.end()

    def settlement(self) -> list[StepEntry]:
        """Returns the end of the open attempt, if there is one."""
        attempt = self._ledger.point.open_attempt
        return [] if attempt is None else [(self._ledger.point.step, self.stopped(attempt))]

    def stopped(self, attempt: entries.ModelAttempt) -> entries.ModelFailure:
        """Returns the end of an attempt that this worker stopped or never sent, with the known usage.

        Some providers state the input at the end of the answer only, and bill it from the beginning.
        """
        failure = entries.ModelFailure(
            attempt_number=attempt.attempt_number,
            error_class=FailureClass.INTERRUPTED.value,
            message="the worker cancelled the call",
            retryable=FailureClass.INTERRUPTED in RETRYABLE,
        )
        if self._newest is None or self._newest.attempt is not attempt:
            return failure
        call = self._newest.call
        usage = billed(attempt, call.usage) if call.usage.total else call.usage
        return replace(failure, usage=usage, provider_request_id=call.request_id)

    @property
    def unsettled(self) -> UnsettledCall | None:
        """Returns the newest call, or None if the ledger has its end from this claim, or if nothing was used."""
        if self._newest is None:
            return None
        attempt, step, call = self._newest
        if self._ledger.point.open_attempt is not attempt or attempt.outlives_worker or not call.usage.total:
            return None  # a call that outlives this worker is not over: its next owner settles it
        return UnsettledCall(ReportedCall(step, attempt.attempt_number, call.usage), call.request_id)


def by_message(failure: entries.ModelFailure) -> entries.ModelFailure:
    """Returns the failure of a call that was stopped for a message. One that had failed by itself says so."""
    return replace(failure, message=BY_MESSAGE) if failure.error_class == FailureClass.INTERRUPTED else failure


async def stopped_call(models: Models, claimed: ClaimedAttempt) -> ModelAnswer | ModelCallFailed | None:
    """Stops a call that outlives this worker, and returns its end; None: it was never sent.

    Raises TryLater or PeerFailed without an answer of a runner, and WrongState if a restored ledger has an older call
    than the runners.
    """
    try:
        return await retrying(lambda: models.cancel(claimed), TRIES, on=(TryLater, PeerFailed))
    except ModelCallFailed as failed:
        return failed


def billed(attempt: entries.ModelAttempt, usage: TokenUsage) -> TokenUsage:
    """Returns the usage that the provider stated. Without its count of the input, the reserved input is billed."""
    return usage if usage.total > usage.output_tokens else replace(usage, input_tokens=attempt.input_tokens)
