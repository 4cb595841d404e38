"""What a model call comes to in the ledger: its answer with an intent for each tool call, or how it failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from services.worker.claim_ledger import Fact, size_bytes
from services.worker.model import ModelAnswer, ModelCall, ModelCallFailed
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import text_of
from tenure.domain.failures import FailureClass
from tenure.domain.tools import call_id
from tenure.wire.portions import MOST_BYTES, MOST_ENTRIES


def interrupted_call(attempt: facts.ModelAttempt, heard: ModelCall | None) -> facts.ModelFailure:
    """Settles an attempt that was broken off by us, or never sent (`heard` None), with what is known of its bill."""
    failure = ModelCallFailed(FailureClass.INTERRUPTED, "the worker broke the call off")
    if heard is not None:
        failure.usage, failure.request_id = heard.usage, heard.request_id
    return failure_fact(attempt, failure)


def billed(attempt: facts.ModelAttempt, usage: TokenUsage) -> TokenUsage:
    """What the provider said, and the whole input as it was set aside if it never counted that: no prompt is empty."""
    return usage if usage.total > usage.output_tokens else replace(usage, input_tokens=attempt.input_tokens)


def failure_fact(attempt: facts.ModelAttempt, error: ModelCallFailed) -> facts.ModelFailure:
    return facts.ModelFailure(
        attempt_number=attempt.attempt_number,
        error_class=error.error_class.value,
        message=error.message,
        retryable=error.retryable,
        status_code=error.status_code,
        retry_after_seconds=error.retry_after_seconds,
        usage=billed(attempt, error.usage) if error.was_answered else error.usage,
        provider_request_id=error.request_id,
    )


def too_large(answer: ModelAnswer, own: Sequence[Fact]) -> ModelCallFailed:
    """An answer and the intents of its calls are committed at once, or a crash between two commits would lose some."""
    told = f"the answer has {len(own) - 1} tool calls and takes {sum(map(size_bytes, own))} bytes in the ledger"
    most = f"one answer may have {MOST_ENTRIES - 1} calls and {MOST_BYTES} bytes"
    return _unusable(FailureClass.ANSWER_TOO_LARGE, f"{told}; {most}", answer)


def no_summary(answer: ModelAnswer) -> ModelCallFailed:
    return _unusable(FailureClass.NO_SUMMARY, f"asked for a summary, it stopped: {answer.stop_reason}", answer)


def _unusable(error_class: FailureClass, message: str, answer: ModelAnswer) -> ModelCallFailed:
    failure = ModelCallFailed(error_class, message)
    failure.usage, failure.request_id = answer.usage, answer.request_id
    return failure


def summary_facts(step: int, attempt: facts.ModelAttempt, answer: ModelAnswer) -> list[Fact]:
    """The answer, and that it stands for the conversation from now on; in one commit."""
    words = tuple(block for block in answer.content if block.get("type") == "text")
    summary = facts.Summary(attempt.summary_through_step, text_of(words))
    return [(step, _message(attempt, replace(answer, content=words))), (step, facts.Compaction(summary))]


def answer_facts(step: int, attempt: facts.ModelAttempt, answer: ModelAnswer) -> list[Fact]:
    """The answer, and an intent for each call in it, to be written before any tool runs."""
    uses = [block for block in answer.content if block.get("type") == "tool_use"]
    intents = [
        facts.ToolIntent(
            call_id=call_id(step, index),
            tool_use_id=block["id"],
            tool=block["name"],
            arguments_json=json.dumps(block["input"], ensure_ascii=False, separators=(",", ":")),
        )
        for index, block in enumerate(uses)
    ]
    return [(step, _message(attempt, answer)), *((step, intent) for intent in intents)]


def _message(attempt: facts.ModelAttempt, answer: ModelAnswer) -> facts.AssistantMessage:
    return facts.AssistantMessage(
        attempt_number=attempt.attempt_number,
        content=answer.content,
        stop_reason=answer.stop_reason,
        usage=answer.usage,
        model=answer.model,
        provider_request_id=answer.request_id,
        latency_seconds=answer.latency_seconds,
    )
