"""Drives one task of the loop `messages` under one claim: carries out next actions until the task leaves this worker.

reserve ──▶ call the model ──▶ commit answer + intents ──▶ run the tools ──▶ commit outcomes + reserve …
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.worker.claim_ledger import StepEntry
from services.worker.loop import Loop
from services.worker.model_step import ModelStep
from services.worker.transitions import after_failure, close_out, late_call
from tenure.domain import entries
from tenure.domain.compaction import RequestSummary, WindowExhausted
from tenure.domain.conversation import Message, result_of, said_content, text_block
from tenure.domain.entries import ToolIntent
from tenure.domain.next_action import (
    AskAgain,
    CallModel,
    CloseOut,
    CorrectAnswer,
    ExecuteTools,
    JoinModelCall,
    Leave,
    StopModelCall,
    ValidateResult,
    after_validation,
    next_action,
)
from tenure.domain.retry import FailureClass
from tenure.domain.states import Reason, ReleaseReason, TaskState
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.schema_checks import validate_in_child

_log: Final = logging.getLogger(__name__)


class TaskLoop(Loop):
    """The loop of an agent."""

    _model: ModelStep

    async def _work(self) -> ReleaseReason:
        self._begin()
        refused = self._point.refused_tools
        self._model.use_tools([tool for tool in await self._define_tools() if tool.name not in refused])
        while True:
            self._held_task.interrupts.check()
            transition = await self._carry_out_next_action()
            if transition is not None:
                await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
                return ReleaseReason.CLOSED

    def _begin(self) -> None:
        """Prepares the work after an Open: no entry is pending."""
        super()._begin()
        self._model = ModelStep(
            self._dependencies, self._held_task, self._ledger, self._watch, self._spec, self._window
        )

    async def _carry_out_next_action(self) -> entries.Transition | None:
        """Carries out the next action. Returns a transition when the task must leave this worker."""
        match next_action(self._point):
            case CallModel() as move:
                return await self._call_model(move)
            case JoinModelCall() as move:
                return await self._join_model_call(move)
            case StopModelCall():
                return await self._after_failure(await self._model.interrupt())
            case ExecuteTools() as move:
                return await self._execute(move)
            case AskAgain(step=step, prompt=prompt):
                self._pending.append((step, entries.UserMessage(prompt)))
                return await self._call_model(CallModel(step + 1, 1))
            case ValidateResult() as move:
                return await self._validate_result(move)
            case CloseOut() as end:
                return _transition(end)
            case Leave(transition=transition):
                return transition

    async def _call_model(self, move: CallModel) -> entries.Transition | None:
        if self._model.context_window.is_short(move, self._to_come()):
            compacted = await self._compact(move)
            if not isinstance(compacted, CallModel):
                return compacted
            move = compacted
        self._time(move.step)
        ended = await self._reserve(lambda: self._model.reserve(move, self._pending, self._to_come()))
        if ended is not None:
            return ended
        return await self._make_call()

    async def _join_model_call(self, move: JoinModelCall) -> entries.Transition | None:
        """Joins the call of an attempt that outlived its former owner. Its tokens are reserved."""
        self._time(move.step)
        await self._wait_trusted()
        return await self._make_call()

    async def _make_call(self) -> entries.Transition | None:
        failure = await self._model.call()
        if failure is not None:
            return await self._after_failure(failure)
        if not self._point.open_intents:
            self._clock.stop()
        return None

    async def _cancel_model_call(self) -> list[StepEntry]:
        return await self._model.cancel()

    async def _validate_result(self, move: ValidateResult) -> entries.Transition | None:
        """Validates the final answer.

        The answer is already in the ledger, so that the next owner reaches the same result.
        """
        judgement = await self._held_task.interrupts.guard(validate_in_child(move.schema_json, move.text))
        match after_validation(self._point, judgement):
            case CorrectAnswer(step=step, rejected=rejected):
                metrics.count("tenure_worker_results_rejected_total")
                await failpoint("worker.before_correction")
                self._pending.append((step, rejected))
                return await self._call_model(CallModel(step + 1, 1))
            case CloseOut() as end:
                return _transition(end)

    async def _compact(self, move: CallModel) -> CallModel | entries.Transition | None:
        """Shortens the conversation. Returns the next call: `move` itself, or a call for a summary.

        None: the conversation is shorter now; take the next action again.
        """
        await self._flush()
        match self._model.context_window.next_compaction_of(move):
            case entries.ClearedResults() as cleared:
                await self._ledger.append([(self._point.step, entries.Compaction(cleared))])
                return None
            case RequestSummary(through_step=through_step):
                return CallModel(self._point.step + 1, 1, through_step)
            case WindowExhausted(why=why):
                return entries.Transition(TaskState.FAILED, Reason.CONTEXT_WINDOW_EXCEEDED, why, self._point.last_text)
            case None:
                return move

    async def _after_failure(self, failure: entries.ModelFailure) -> entries.Transition | None:
        self._pending.append((self._point.step, failure))
        if failure.error_class == FailureClass.INTERRUPTED:
            self._clock.stop()  # the step is made again
        # A compaction is decided before the next call, and images that were refused are left out of it.
        if failure.error_class == entries.PROMPT_TOO_LONG or self._point.is_refusal_of_images(failure):
            await self._flush()
            return None
        if failure.refused_tools and await self._goes_on_without(failure):
            return None
        if late := late_call(self._point, self._spec.policy, failure):
            return late
        verdict = after_failure(self._point, failure, self._spec.policy.retry, random.random())
        if isinstance(verdict, entries.Transition):
            return verdict
        await self._settle_failure()
        await self._back_off(verdict.wait_seconds)
        return None

    async def _goes_on_without(self, failure: entries.ModelFailure) -> bool:
        """Leaves the refused tools out of the further requests. False: the task has no tool left, and cannot work.

        The ledger has the refusal, so the next owner leaves out the same tools. Each refusal takes a tool away, so
        there are at most as many as tools; none of them costs anything.
        """
        if not set(failure.refused_tools).isdisjoint(self._point.refused_tools):
            return False
        await self._settle_failure()
        tools = self._point.shown_tools
        if tools:
            _log.warning("tools are left out of a task", extra={"tools": failure.refused_tools, "why": failure.message})
            self._model.use_tools(tools)
        return bool(tools)

    async def _execute(self, move: ExecuteTools) -> entries.Transition | None:
        return await self._execute_calls(move) or await self._call_model(CallModel(move.step + 1, 1))

    def _to_come(self) -> Message | None:
        """Returns the user message of the next model call, as far as it is known before the commit."""
        content = [*self._point.pending_content, *_content_of(self._pending, self._point.intents)]
        content.sort(key=lambda block: block["type"] != "tool_result")  # tool results must come before text
        return {"role": "user", "content": content} if content else None


def _transition(end: CloseOut) -> entries.Transition:
    return entries.Transition(end.to_state, end.reason, end.message, end.result, result_json=end.result_json)


def _content_of(pending: Sequence[StepEntry], intents: Mapping[str, ToolIntent]) -> list[dict[str, Any]]:
    """Returns the content that pending entries add to the next message; only for measuring."""
    content: list[dict[str, Any]] = []
    for _, body in pending:
        match body:
            case entries.ToolOutcome():
                content.append(result_of(intents[body.call_id], body.outcome).block)
            case entries.UserMessage():
                content += said_content(body.text, body.files)
            case entries.ResultRejected():
                content.append(text_block(body.text))
    return content
