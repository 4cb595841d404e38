"""Makes one model call of a step: reserve, call, and commit the answer or the failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Final

from services.worker.claim_ledger import ClaimLedger, StepEntry, size_bytes
from services.worker.context_window import ContextWindow, with_margin
from services.worker.dependencies import Dependencies
from services.worker.held_claims import HeldTask
from services.worker.kept_content import KeptContents
from services.worker.model_attempt import MIN_OUTPUT_TOKENS, AttemptWatch, billed, by_message, stopped_call
from services.worker.model_metrics import count_model_call
from services.worker.models import CallEvents, ClaimedAttempt
from services.worker.shown_images import ShownImages
from tenure.domain import entries
from tenure.domain.budget import Denied, Granted, ReserveRequest
from tenure.domain.compaction import SUMMARY_SYSTEM, Window
from tenure.domain.conversation import Message, text_of, with_own_ids
from tenure.domain.errors import TryLater, WrongState
from tenure.domain.images import sees_images
from tenure.domain.next_action import CallModel
from tenure.domain.result_schema import system_prompt
from tenure.domain.retry import FailureClass
from tenure.domain.task import TaskSpec
from tenure.domain.tools import UNUSABLE_CALL, Outcome, OutcomeStatus, ToolDefinition, call_id
from tenure.model_providers.client import ModelAnswer, ModelCallFailed, ModelRequest
from tenure.model_providers.stream import UNUSABLE
from tenure.runtime.rpc.status import PeerFailed
from tenure.wire.checkpoint_service import MAX_BYTES, MAX_ENTRIES, is_one_portion

# The entries of a model call: its answer with an intent for each tool call, or its failure.


def failure_entry(attempt: entries.ModelAttempt, error: ModelCallFailed) -> entries.ModelFailure:
    return entries.ModelFailure(
        attempt_number=attempt.attempt_number,
        error_class=error.error_class.value,
        message=error.message,
        retryable=error.retryable,
        status_code=error.status_code,
        retry_after_seconds=error.retry_after_seconds,
        usage=billed(attempt, error.usage) if error.was_answered else error.usage,
        provider_request_id=error.request_id,
        context_window_tokens=error.context_window_tokens,
        refused_tools=error.refused_tools,
    )


def ended_entry(attempt: entries.ModelAttempt, end: ModelAnswer | ModelCallFailed) -> entries.ModelFailure:
    """Returns the failure of an attempt that a model runner has ended. An answer to it has no use any more."""
    if isinstance(end, ModelCallFailed):
        return failure_entry(attempt, end)
    unused = ModelCallFailed(FailureClass.INTERRUPTED, "the function did not use the answer")
    unused.usage, unused.request_id, unused.was_answered = end.usage, end.request_id, True
    return failure_entry(attempt, unused)


def too_large(answer: ModelAnswer, own: Sequence[StepEntry]) -> ModelCallFailed:
    """Returns the failure of an answer that does not fit into one commit.

    The answer and its intents must share a commit: a crash between two commits would lose some of the intents.
    """
    calls = sum(isinstance(body, entries.ToolIntent) for _, body in own)
    message = f"the answer has {calls} tool calls and takes {sum(map(size_bytes, own))} bytes in the ledger"
    most = f"an answer may have at most {MAX_ENTRIES - 1} tool calls and {MAX_BYTES} bytes"
    return _unusable(FailureClass.ANSWER_TOO_LARGE, f"{message}; {most}", answer)


def no_summary(answer: ModelAnswer) -> ModelCallFailed:
    return _unusable(FailureClass.NO_SUMMARY, f"the model wrote no summary; stop reason: {answer.stop_reason}", answer)


def _unusable(error_class: FailureClass, message: str, answer: ModelAnswer) -> ModelCallFailed:
    failure = ModelCallFailed(error_class, message)
    failure.usage, failure.request_id = answer.usage, answer.request_id
    return failure


def summary_entries(step: int, attempt: entries.ModelAttempt, answer: ModelAnswer) -> list[StepEntry]:
    """Returns the summary and the compaction that puts it in place of the conversation, for one commit."""
    message = tuple(block for block in answer.content if block.get("type") == "text")
    summary = entries.Summary(attempt.summary_through_step, text_of(message))
    return [(step, _message(attempt, replace(answer, content=message))), (step, entries.Compaction(summary))]


def answer_entries(step: int, attempt: entries.ModelAttempt, answer: ModelAnswer) -> list[StepEntry]:
    """Returns the answer and an intent for each of its tool calls, to be committed before any tool runs.

    A call that cannot be run has its outcome in the same commit: the model reads why.
    """
    uses = [block for block in answer.content if block.get("type") == "tool_use"]
    calls: list[entries.Body] = []
    for index, block in enumerate(uses):
        written = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
        intent = entries.ToolIntent(call_id(step, index), block["id"], block["name"], written)
        calls.append(intent)
        if why := block.get(UNUSABLE):
            outcome = Outcome(OutcomeStatus.INVALID_ARGUMENTS, why, detail=UNUSABLE_CALL)
            calls.append(entries.ToolOutcome(intent.call_id, outcome))
    content = tuple({key: value for key, value in block.items() if key != UNUSABLE} for block in answer.content)
    return [(step, _message(attempt, replace(answer, content=content))), *((step, call) for call in calls)]


def _message(attempt: entries.ModelAttempt, answer: ModelAnswer) -> entries.AssistantMessage:
    return entries.AssistantMessage(
        attempt_number=attempt.attempt_number,
        content=answer.content,
        stop_reason=answer.stop_reason,
        usage=answer.usage,
        model=answer.model,
        provider_request_id=answer.request_id,
        latency_seconds=answer.latency_seconds,
        usage_estimated=answer.usage_estimated,
        context_window_tokens=answer.context_window_tokens,
    )


_log: Final = logging.getLogger(__name__)
MAX_TOOLS_KEPT: Final = 1024


class CallInterrupted(Exception):  # noqa: N818  an instruction for the loop, not an error
    """A message interrupted the model call."""


class ModelStep:
    """Makes the model calls of one task under one claim."""

    def __init__(
        self,
        dependencies: Dependencies,
        held_task: HeldTask,
        ledger: ClaimLedger,
        watch: AttemptWatch,
        spec: TaskSpec,
        window: Window,
    ) -> None:
        self._dependencies, self._held_task, self._ledger, self._window = dependencies, held_task, ledger, window
        self._watch = watch
        self._model = spec.agent.model or dependencies.defaults.model
        self._system = system_prompt(spec.agent.system, spec.result_schema_json)
        self._parameters = spec.agent.parameters
        self._timeout_seconds = spec.policy.timeouts.model_call.after_seconds or dependencies.models.timeout_seconds
        self._tools: list[dict[str, Any]] = []
        sees = sees_images(self._model, dependencies.defaults.sees_images)
        self._seen_by = self._model if sees else ""
        self._images = ShownImages(KeptContents(dependencies.tools, dependencies.trust, held_task), sees)
        self.context_window = ContextWindow(ledger, window, self._system, seen_by=self._seen_by)
        self._foreseen: int | None = None
        self._counted: tuple[ModelRequest, int | None] | None = None

    def use_tools(self, tools: Sequence[ToolDefinition]) -> None:
        """Takes the tool definitions that the model is shown."""
        self._tools = [_tool_to_provider(tool) for tool in tools]
        self.context_window = ContextWindow(self._ledger, self._window, self._system, self._tools, self._seen_by)

    async def reserve(self, move: CallModel, pending: Sequence[StepEntry], to_come: Message | None) -> Granted | Denied:
        """Commits `pending` and reserves the tokens of the call."""
        output_tokens = self.context_window.output_tokens(move)
        input_tokens = await self._input_tokens(move, to_come)
        request = ReserveRequest(
            step=move.step,
            attempt_number=move.attempt_number,
            model=self._model,
            input_tokens=input_tokens,
            max_output_tokens=output_tokens,
            min_output_tokens=min(MIN_OUTPUT_TOKENS, output_tokens),
            summary_through_step=move.summary_through_step,
            outlives_worker=self._dependencies.models.outlives_worker,
        )
        return await self._ledger.reserve(pending, request)

    async def _input_tokens(self, move: CallModel, to_come: Message | None) -> int:
        """Returns the maximum input tokens.

        It is this worker's bound, or the provider's count if too much of the bound is estimated.
        """
        self._foreseen = foreseen = self.context_window.upper_bound(move, to_come)
        estimated_tokens = foreseen - self.context_window.counted_tokens(move)
        if estimated_tokens <= self._dependencies.defaults.count_tokens_above:
            return foreseen
        prompt = self._prompt(move, to_come)
        # a repeat after a denied reservation needs no second count
        if self._counted is None or self._counted[0] != prompt:
            attempt = self._claimed(move.step, move.attempt_number)
            self._counted = prompt, await self._held_task.interrupts.guard(self._count(attempt, prompt))
        counted = self._counted[1]
        return foreseen if counted is None else with_margin(counted)

    async def _count(self, attempt: ClaimedAttempt, prompt: ModelRequest) -> int | None:
        try:
            shown = await self._shown(prompt)
        except ModelCallFailed:
            return None
        return await self._dependencies.models.count(attempt, shown)

    async def _shown(self, request: ModelRequest) -> ModelRequest:
        return await self._images.shown(request, self._ledger.point.refused_images)

    def _prompt(self, move: CallModel, to_come: Message | None) -> ModelRequest:
        """Returns the prompt to be sent, for counting."""
        if move.summary_through_step:
            summary_request = self.context_window.summary_messages(move.summary_through_step)
            return ModelRequest(self._model, summary_request, 0, SUMMARY_SYSTEM)
        messages = [*self._ledger.point.messages, *(() if to_come is None else (to_come,))]
        return ModelRequest(self._model, messages, 0, self._system, self._tools)

    async def call(self) -> entries.ModelFailure | None:
        """Makes the reserved call, or joins it, and commits its answer and intents. Returns a failure, not yet
        committed, or None.

        An interruption cancels a call of this process, and the watch settles its attempt. See `cancel` for one that
        outlives this worker. A message that interrupts the call makes it a failure.
        """
        attempt = self._ledger.point.open_attempt
        assert attempt is not None, "the call has no reservation"
        step = self._ledger.point.step
        progress = self._held_task.progress
        events = CallEvents(
            _drop_text if attempt.summary_through_step else self._held_task.live.append,
            progress.on_model_call_progress,
            lambda: progress.announce_backoff(self._timeout_seconds),
            lambda waits: progress.note_model_call(waits=waits),
        )
        try:
            request = await self._held_task.interrupts.guard(self._shown(self._request(attempt, step)))
        except ModelCallFailed as error:
            return failure_entry(attempt, error)
        call = self._dependencies.models.call(self._claimed(step, attempt.attempt_number), request, events)
        began = monotonic()
        try:
            async with self._watch.watching(call, self._timeout_seconds):
                answer = await self._held_task.interrupts.guard(call.answer(), on_notice=partial(self._look, attempt))
        except CallInterrupted:
            count_model_call(attempt.model, monotonic() - began, FailureClass.INTERRUPTED)
            return await self.interrupt()
        except ModelCallFailed as error:
            count_model_call(attempt.model, monotonic() - began, error.error_class)
            _log.warning("a model call failed", extra={"step": step, "why": str(error)})
            return failure_entry(attempt, error)
        count_model_call(attempt.model, monotonic() - began)
        await self._watch.answered()
        return await self._take(attempt, step, answer)

    async def _look(self, attempt: entries.ModelAttempt) -> None:
        """Looks for an interrupting message. Raises CallInterrupted.

        A ledger that does not answer interrupts nothing.
        """
        try:
            await self._ledger.catch_up()
        except (TryLater, PeerFailed) as error:
            _log.warning("interrupting messages could not be read", extra={"why": str(error)})
        point = self._ledger.point
        if point.is_interrupted and point.open_attempt is attempt:
            raise CallInterrupted

    async def interrupt(self) -> entries.ModelFailure:
        """Stops the call of the open attempt for a message. Returns its failure, with what it is billed.

        An answer that came before is billed, and not used. Raises TryLater or PeerFailed if no runner stops the call.
        """
        attempt, step = self._ledger.point.open_attempt, self._ledger.point.step
        assert attempt is not None, "there is a call to stop"
        end = None
        if attempt.outlives_worker:
            try:
                end = await stopped_call(self._dependencies.models, self._claimed(step, attempt.attempt_number))
            except WrongState as error:  # a restored ledger may have an older call than the runners
                _log.warning("no model runner knows a call", extra={"step": step, "why": str(error)})
        _log.info("a message interrupted a model call", extra={"step": step})
        return by_message(self._watch.stopped(attempt) if end is None else ended_entry(attempt, end))

    async def cancel(self) -> list[StepEntry]:
        """Stops the call of the open attempt, which outlives this worker. Returns the entries that settle it.

        It commits an answer that came before. Without an end from a runner it returns nothing: the ledger settles the
        attempt as lost, and the runner reports its usage later.
        """
        attempt, step = self._ledger.point.open_attempt, self._ledger.point.step
        assert attempt is not None, "there is a call to stop"
        claimed = self._claimed(step, attempt.attempt_number)
        try:
            end = await stopped_call(self._dependencies.models, claimed)
        except (TryLater, PeerFailed, WrongState) as error:  # a restored ledger may have an older call than the runners
            _log.warning("no model runner stopped a call", extra={"step": step, "why": str(error)})
            return []
        if end is None:
            return self._watch.settlement()
        if isinstance(end, ModelCallFailed):
            return [(step, failure_entry(attempt, end))]
        failure = await self._take(attempt, step, end)
        return [] if failure is None else [(step, failure)]

    async def _take(self, attempt: entries.ModelAttempt, step: int, answer: ModelAnswer) -> entries.ModelFailure | None:
        """Commits an answer with its intents. Returns the failure of an answer that cannot be used."""
        answer = replace(answer, usage=billed(attempt, answer.usage))
        if attempt.summary_through_step:
            if not text_of(answer.content):
                return failure_entry(attempt, no_summary(answer))
            own = summary_entries(step, attempt, answer)
        else:
            content = with_own_ids(answer.content, self._ledger.point.messages, step)
            own = answer_entries(step, attempt, replace(answer, content=content))
        if not is_one_portion(own, size_bytes):
            return failure_entry(attempt, too_large(answer, own))
        await self._ledger.append(own)
        return None

    def _claimed(self, step: int, attempt_number: int) -> ClaimedAttempt:
        held_task = self._held_task
        reserved_epoch = self._ledger.point.reserved_epoch
        return ClaimedAttempt(lambda: held_task.token, step, attempt_number, held_task.tier, reserved_epoch)

    def _request(self, attempt: entries.ModelAttempt, step: int) -> ModelRequest:
        """Builds the request. Messages that arrived between estimate and commit reduce the maximum output.

        A joined call has no estimate of this claim, and its first request decided what is sent.
        """
        name = f"{self._held_task.task_id}/{step}/{attempt.attempt_number}"
        if attempt.summary_through_step:
            summary_request = self.context_window.summary_messages(attempt.summary_through_step)
            return ModelRequest(
                attempt.model,
                summary_request,
                attempt.max_output_tokens,
                SUMMARY_SYSTEM,
                attempt=name,
                timeout_seconds=self._timeout_seconds,
                input_tokens=attempt.input_tokens,
            )
        unforeseen = 0
        if self._foreseen is not None:
            bound = self.context_window.upper_bound(CallModel(step, attempt.attempt_number))
            unforeseen = max(0, bound - self._foreseen)
        return ModelRequest(
            model=attempt.model,
            messages=self._ledger.point.messages,
            texts=self.context_window.texts(),
            max_output_tokens=max(1, attempt.max_output_tokens - unforeseen),
            system=self._system,
            tools=self._tools,
            attempt=name,
            timeout_seconds=self._timeout_seconds,
            is_repeated_soon=self.context_window.is_worth_caching(),
            input_tokens=attempt.input_tokens + unforeseen,
            parameters=self._parameters.of_step(step),
        )


def _drop_text(_block: int, _text: str) -> None:
    """Drops the text of a summary: the agent does not say it to the user."""


@lru_cache(maxsize=MAX_TOOLS_KEPT)
def _tool_to_provider(tool: ToolDefinition) -> dict[str, Any]:
    """Returns the tool as the providers take it. All tasks share it, so that its JSON is written once."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": json.loads(tool.input_schema_json),
    }
