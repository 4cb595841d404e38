"""The `messages` loop of one task under one claim: do what comes next until the task is left.

reserve ──▶ call the model ──▶ commit answer + intents ──▶ run the tools ──▶ commit outcomes + reserve …
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from services.worker.budget_wait import leave_until_budget, wait_for_budget
from services.worker.claim_ledger import Fact
from services.worker.loop import Loop
from services.worker.model_step import ModelStep, interrupted_call
from services.worker.transitions import after_failure, late_call, leave
from services.worker.usage_reports import UsageReport
from tenure.domain import entries as facts
from tenure.domain.budget import Denied
from tenure.domain.compaction import AskSummary, WindowExhausted
from tenure.domain.conversation import Message, result_of
from tenure.domain.entries import ToolIntent
from tenure.domain.states import BUDGET_WAIT_REASONS, Reason, ReleaseReason, TaskState
from tenure.domain.turn import (
    CONTINUE_PROMPT,
    CallModel,
    CloseOut,
    ContinueTruncated,
    CorrectAnswer,
    ExecuteTools,
    ValidateResult,
    after_validation,
    next_move,
)
from tenure.runtime import metrics
from tenure.runtime.failpoints import failpoint
from tenure.runtime.schema_process import judge_apart


class TaskLoop(Loop):
    """An agent's loop."""

    _model: ModelStep

    async def _work(self) -> ReleaseReason:
        self._begin()
        self._model.use_tools(await self._define_tools())
        while True:
            self._held_task.interrupts.check()
            transition = await self._one_move()
            if transition is not None:
                await leave(self._dependencies, self._held_task, self._ledger, self._pending, transition)
                return ReleaseReason.CLOSED

    def _begin(self) -> None:
        """After an Open: nothing is pending, and no attempt is open."""
        super()._begin()
        self._model = ModelStep(self._dependencies, self._held_task, self._ledger, self._spec, self._window)

    async def _one_move(self) -> facts.Transition | None:
        """Does what comes next; a transition is how the task is to be left."""
        match next_move(self._point):
            case CallModel() as move:
                return await self._call_model(move)
            case ExecuteTools() as move:
                return await self._execute(move)
            case ContinueTruncated(step=step):
                self._pending.append((step, facts.UserMessage(CONTINUE_PROMPT)))
                return await self._call_model(CallModel(step + 1, 1))
            case ValidateResult() as move:
                return await self._validate_result(move)
            case CloseOut() as end:
                return _transition(end)

    async def _call_model(self, move: CallModel) -> facts.Transition | None:
        if self._model.context_window.is_short(move, self._to_come()):
            made = await self._make_room(move)
            if not isinstance(made, CallModel):
                return made
            move = made
        self._time(move.step)
        denied = await self._reserve(move)
        self._held_task.interrupts.check()  # what looks like a limit may be the end that was asked for
        if denied is not None and denied.reason in BUDGET_WAIT_REASONS:
            return leave_until_budget(denied)
        if denied is not None:
            return facts.Transition(denied.ends_as, denied.reason, denied.message, self._point.last_text)
        await failpoint("worker.after_reserve")
        await self._held_task.interrupts.guard(self._dependencies.trust.wait_open())
        failure = await self._model.call()
        if failure is not None:
            return await self._after_failure(failure)
        if not self._point.open_intents:
            self._clock.stop()
        return None

    async def _validate_result(self, move: ValidateResult) -> facts.Transition | None:
        """The answer is in the ledger: whoever comes after us judges it alike."""
        judgement = await self._held_task.interrupts.guard(judge_apart(move.schema_json, move.text))
        match after_validation(self._point, judgement):
            case CorrectAnswer(step=step, rejected=rejected):
                metrics.count("tenure_worker_results_rejected_total")
                await failpoint("worker.before_correction")
                self._pending.append((step, rejected))
                return await self._call_model(CallModel(step + 1, 1))
            case CloseOut() as end:
                return _transition(end)

    async def _make_room(self, move: CallModel) -> CallModel | facts.Transition | None:
        """The call that comes next: `move`, or one for a summary. None: the conversation is shorter now; look again."""
        await self._ledger.append(self._pending)
        self._pending = []
        match self._model.context_window.make(move):
            case facts.ClearedResults() as cleared:
                await self._ledger.append([(self._point.step, facts.Compaction(cleared))])
                return None
            case AskSummary(through_step=through_step):
                return CallModel(self._point.step + 1, 1, through_step)
            case WindowExhausted(why=why):
                return facts.Transition(TaskState.FAILED, Reason.CONTEXT_WINDOW_EXCEEDED, why, self._point.last_text)
            case None:
                return move

    async def _reserve(self, move: CallModel) -> Denied | None:
        """Waits a while where others' reservations are in the way, or at a cap of the tenant."""
        await self._wait_trusted()
        for waits in itertools.count():
            denied = await self._model.reserve(move, self._pending, self._to_come())
            self._pending = []
            wait_seconds = None if denied is None else wait_for_budget(denied, waits, random.random())
            if wait_seconds is None:
                return denied
            await self._back_off(wait_seconds)
        raise AssertionError("who counts comes to no end")

    async def _after_failure(self, failure: facts.ModelFailure) -> facts.Transition | None:
        self._pending.append((self._point.step, failure))
        if failure.error_class == facts.PROMPT_TOO_LONG:  # what follows from it is decided before the next call
            await self._ledger.append(self._pending)
            self._pending = []
            return None
        if late := late_call(self._point, self._spec.policy, failure):
            return late
        failures = [*self._point.failures, failure]
        retry = self._spec.policy.retry
        verdict = after_failure(
            failures, self._point.retries, retry, result=self._point.last_text, luck=random.random()
        )
        if isinstance(verdict, facts.Transition):
            return verdict
        await failpoint("worker.before_failure")
        await self._ledger.append(self._pending)  # before the wait: its bill must not be guessed by a successor
        await failpoint("worker.after_failure")
        self._pending = []
        await self._back_off(verdict.wait_seconds)
        return None

    async def _execute(self, move: ExecuteTools) -> facts.Transition | None:
        return await self._execute_calls(move) or await self._call_model(CallModel(move.step + 1, 1))

    def _settle_open_attempt(self) -> None:
        attempt = self._point.open_attempt
        if attempt is not None:
            settled = self._model.interrupted_call or interrupted_call(attempt, None)
            self._pending.append((self._point.step, settled))

    def _report_unsettled_call(self) -> None:
        model: ModelStep | None = getattr(self, "_model", None)  # none before the task was opened
        if model is None or (call := model.unsettled) is None:
            return
        reported, request_id = call
        self._dependencies.reports.note(
            UsageReport(self._held_task.token, self._held_task.task_id, reported, request_id)
        )

    async def _back_off(self, wait_seconds: float) -> None:
        self._held_task.progress.announce_backoff(wait_seconds)
        await self._held_task.interrupts.sleep(wait_seconds)

    def _to_come(self) -> Message | None:
        """The user message that the next attempt will send, as far as it is known before the commit."""
        content = [*self._point.pending_content, *_content_of(self._pending, self._point.intents)]
        content.sort(key=lambda block: block["type"] != "tool_result")  # results come before words
        return {"role": "user", "content": content} if content else None


def _transition(end: CloseOut) -> facts.Transition:
    return facts.Transition(end.to_state, end.reason, end.message, end.result, result_json=end.result_json)


def _content_of(pending: Sequence[Fact], intents: Mapping[str, ToolIntent]) -> list[dict[str, Any]]:
    """For measuring only: what the pending facts add to the next message."""
    content: list[dict[str, Any]] = []
    for _, body in pending:
        match body:
            case facts.ToolOutcome():
                content.append(result_of(intents[body.call_id], body.outcome).block)
            case facts.UserMessage() | facts.ResultRejected():
                content.append({"type": "text", "text": body.text})
    return content
