"""One model call of a step: reserve, call, and write down what came, answer or failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from services.worker.answer_facts import (
    answer_facts,
    billed,
    failure_fact,
    interrupted_call,
    no_summary,
    summary_facts,
    too_large,
)
from services.worker.claim_ledger import ClaimLedger, Fact, size_bytes
from services.worker.estimate import with_margin
from services.worker.holdings import Holding
from services.worker.interrupts import Interrupted
from services.worker.model import ModelAnswer, ModelCall, ModelCallFailed, ModelRequest
from services.worker.parts import Parts
from services.worker.room import Room
from tenure.domain import entries as facts
from tenure.domain.budget import Denied, ReserveRequest
from tenure.domain.compaction import Window
from tenure.domain.conversation import Message, text_of, with_own_ids
from tenure.domain.lost_calls import HeardCall
from tenure.domain.results import system_prompt
from tenure.domain.summary import SUMMARY_SYSTEM
from tenure.domain.task import TaskSpec
from tenure.domain.tools import ToolDefinition
from tenure.domain.turn import CallModel
from tenure.runtime import metrics, semconv
from tenure.runtime.failpoint import failpoint
from tenure.runtime.telemetry import span
from tenure.wire.portions import is_one_portion

_log: Final = logging.getLogger(__name__)
MIN_OUTPUT_TOKENS: Final = 256
"""Less is not worth a call: the task ends at its token limit instead."""


class ModelStep:
    """The model calls of one task, under one claim."""

    def __init__(self, parts: Parts, holding: Holding, ledger: ClaimLedger, spec: TaskSpec, window: Window) -> None:
        self._parts, self._holding, self._ledger, self._window = parts, holding, ledger, window
        self._model = spec.agent.model or parts.defaults.model
        self._system = system_prompt(spec.agent.system, spec.result_schema_json)
        self._timeout_seconds = spec.policy.timeouts.model_call.after_seconds or parts.model.timeout_seconds
        self._tools: list[dict[str, Any]] = []
        self.room = Room(ledger, window, self._system)
        self.interrupted_call: facts.ModelFailure | None = None
        self._foreseen = 0
        self._counted: tuple[ModelRequest, int | None] | None = None
        self._newest: tuple[facts.ModelAttempt, int, ModelCall] | None = None

    def use_tools(self, tools: Sequence[ToolDefinition]) -> None:
        """The definitions as the task keeps them."""
        self._tools = [_tool_to_provider(tool) for tool in tools]
        self.room = Room(self._ledger, self._window, self._system, self._tools)

    async def reserve(self, move: CallModel, pending: Sequence[Fact], to_come: Message | None) -> Denied | None:
        """Commits `pending` and sets the call's tokens aside. None: granted, call it."""
        output_tokens = self.room.output_tokens(move)
        input_tokens = await self._input_tokens(move, to_come)
        request = ReserveRequest(
            step=move.step,
            attempt_number=move.attempt_number,
            model=self._model,
            input_tokens=input_tokens,
            max_output_tokens=output_tokens,
            min_output_tokens=min(MIN_OUTPUT_TOKENS, output_tokens),
            summary_through_step=move.summary_through_step,
        )
        result = await self._ledger.reserve(pending, request)
        return result if isinstance(result, Denied) else None

    async def _input_tokens(self, move: CallModel, to_come: Message | None) -> int:
        """What the input takes at most: our own bound, or what the provider counts if too much of ours is a guess."""
        self._foreseen = self.room.upper_bound(move, to_come)
        if self.room.guessed(move, to_come) <= self._parts.defaults.count_tokens_above:
            return self._foreseen
        asked = self._prompt(move, to_come)
        if self._counted is None or self._counted[0] != asked:  # asked again when others' reservations were in the way
            counted = await self._holding.interrupts.guard(self._parts.model.count(asked))
            self._counted = asked, counted
        counted = self._counted[1]
        return self._foreseen if counted is None else with_margin(counted)

    def _prompt(self, move: CallModel, to_come: Message | None) -> ModelRequest:
        """What will be sent, for counting."""
        if move.summary_through_step:
            asked = self.room.summary_messages(move.summary_through_step)
            return ModelRequest(self._model, asked, 0, SUMMARY_SYSTEM)
        messages = [*self._ledger.point.messages, *(() if to_come is None else (to_come,))]
        return ModelRequest(self._model, messages, 0, self._system, self._tools)

    async def call(self) -> facts.ModelFailure | None:
        """Sends the reserved call and commits its answer and intents, or gives back its failure, not yet committed.

        Interrupted: the call is broken off, and `interrupted_call` settles its attempt.
        """
        attempt = self._ledger.point.open_attempt
        assert attempt is not None, "nothing is reserved"
        step = self._ledger.point.step
        show = _show_nothing if attempt.summary_through_step else self._holding.live.append
        progress = self._holding.progress
        heard = ModelCall(on_text=show, on_usage=progress.hear_call)
        self._newest = attempt, step, heard
        progress.begin_call(step, attempt.attempt_number, lambda: heard.usage)
        self._holding.live.begin(step, attempt.attempt_number)
        # A model may think for minutes before its first word, and the call has a bound of its own.
        progress.announce_backoff(self._timeout_seconds)
        try:
            await failpoint("worker.before_model")
            with span(f"{semconv.CHAT} {attempt.model}", self._attributes(attempt, step)) as chat:
                answer = await self._holding.interrupts.guard(
                    self._parts.model.answer(self._request(attempt, step), heard)
                )
                chat.set_attributes(_answer_attributes(answer))
        except ModelCallFailed as error:
            metrics.count("tenure_worker_model_failures_total", error_class=error.error_class)
            _log.warning("a model call failed", extra={"step": step, "why": str(error)})
            return failure_fact(attempt, error)
        except Interrupted:
            self.interrupted_call = interrupted_call(attempt, heard)
            raise
        finally:
            self._holding.live.finish()
            progress.announce_backoff(0)
        await failpoint("worker.after_model")
        answer = replace(answer, usage=billed(attempt, answer.usage))
        if attempt.summary_through_step:
            if not text_of(answer.content):
                return failure_fact(attempt, no_summary(answer))
            own = summary_facts(step, attempt, answer)
        else:
            content = with_own_ids(answer.content, self._ledger.point.messages, step)
            own = answer_facts(step, attempt, replace(answer, content=content))
        if not is_one_portion(own, size_bytes):
            return failure_fact(attempt, too_large(answer, own))
        await self._ledger.append(own)
        return None

    @property
    def unsettled(self) -> tuple[HeardCall, str] | None:
        """What the newest call is billed, with the provider's id of it, if the ledger took no end of it from us."""
        if self._newest is None:
            return None
        attempt, step, call = self._newest
        if self._ledger.point.open_attempt is not attempt or not call.usage.total:
            return None
        return HeardCall(step, attempt.attempt_number, call.usage), call.request_id

    def _request(self, attempt: facts.ModelAttempt, step: int) -> ModelRequest:
        """Words that slipped in between estimate and commit are paid for out of the output."""
        name = f"{self._holding.task_id}/{step}/{attempt.attempt_number}"
        if attempt.summary_through_step:
            asked = self.room.summary_messages(attempt.summary_through_step)
            return ModelRequest(attempt.model, asked, attempt.max_output_tokens, SUMMARY_SYSTEM, attempt=name)
        unforeseen = max(0, self.room.upper_bound(CallModel(step, attempt.attempt_number)) - self._foreseen)
        return ModelRequest(
            model=attempt.model,
            messages=self._ledger.point.messages,
            max_output_tokens=max(1, attempt.max_output_tokens - unforeseen),
            system=self._system,
            tools=self._tools,
            attempt=name,
            timeout_seconds=self._timeout_seconds,
            is_repeated_soon=self.room.is_worth_keeping(),
        )

    def _attributes(self, attempt: facts.ModelAttempt, step: int) -> dict[str, Any]:
        return {
            semconv.OPERATION_NAME: semconv.CHAT,
            semconv.PROVIDER_NAME: semconv.PROVIDER_ANTHROPIC,
            semconv.REQUEST_MODEL: attempt.model,
            semconv.REQUEST_MAX_TOKENS: attempt.max_output_tokens,
            semconv.CONVERSATION_ID: self._holding.task_id,
            semconv.STEP: step,
        }


def _show_nothing(_block: int, _text: str) -> None:
    """A summary is no part of what the agent says."""


def _answer_attributes(answer: ModelAnswer) -> dict[str, Any]:
    usage = answer.usage
    return {
        semconv.RESPONSE_MODEL: answer.model,
        semconv.RESPONSE_ID: answer.request_id,
        semconv.RESPONSE_FINISH_REASONS: [answer.stop_reason],
        semconv.USAGE_INPUT_TOKENS: usage.total - usage.output_tokens,
        semconv.USAGE_OUTPUT_TOKENS: usage.output_tokens,
        semconv.USAGE_CACHE_READ_INPUT_TOKENS: usage.cache_read_input_tokens,
        semconv.USAGE_CACHE_CREATION_INPUT_TOKENS: usage.cache_creation_input_tokens,
    }


def _tool_to_provider(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": json.loads(tool.input_schema_json),
    }
