"""The ends of model calls: the last part of an answer to Generate, as it is recorded and as it is sent.

The record keeps the bytes of the message, so that every reader gets the same end byte for byte.
"""

from __future__ import annotations

from tenure.domain import entries
from tenure.domain.budget import TokenUsage
from tenure.domain.retry import RETRYABLE, FailureClass
from tenure.model_providers.client import ModelAnswer, ModelCallFailed
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.ledger import body_to_wire


def answer_end(attempt_number: int, answer: ModelAnswer) -> bytes:
    """Returns the end of a call that was answered."""
    body = entries.AssistantMessage(
        attempt_number=attempt_number,
        content=answer.content,
        stop_reason=answer.stop_reason,
        usage=answer.usage,
        model=answer.model,
        provider_request_id=answer.request_id,
        latency_seconds=answer.latency_seconds,
        usage_estimated=answer.usage_estimated,
        context_window_tokens=answer.context_window_tokens,
    )
    return _packed(pb.GenerateResponse(answer=body_to_wire(body).assistant_message))


def failure_end(attempt_number: int, error: ModelCallFailed) -> bytes:
    """Returns the end of a call that the provider refused or did not answer to its end."""
    body = entries.ModelFailure(
        attempt_number=attempt_number,
        error_class=error.error_class.value,
        message=error.message,
        retryable=error.retryable,
        status_code=error.status_code,
        retry_after_seconds=error.retry_after_seconds,
        usage=error.usage,
        provider_request_id=error.request_id,
        context_window_tokens=error.context_window_tokens,
        refused_tools=error.refused_tools,
    )
    return _packed(pb.GenerateResponse(failure=body_to_wire(body).model_failure))


_MESSAGES = {
    FailureClass.INTERRUPTED: "the call was cancelled",
    FailureClass.LOST: "the model runner that made the call ended before the answer was complete",
}


def stopped_end(
    attempt_number: int, why: FailureClass, usage: TokenUsage | None = None, provider_request_id: str = ""
) -> bytes:
    """Returns the end of a call that this service did not bring to its end. `why`: INTERRUPTED or LOST."""
    body = entries.ModelFailure(
        attempt_number=attempt_number,
        error_class=why.value,
        message=_MESSAGES[why],
        retryable=why in RETRYABLE,
        usage=usage or TokenUsage(),
        provider_request_id=provider_request_id,
    )
    return _packed(pb.GenerateResponse(failure=body_to_wire(body).model_failure))


def outcome_of(end: bytes) -> str:
    """Returns ANSWERED or the class of the failure, for metrics."""
    message = pb.GenerateResponse.FromString(end)
    if message.WhichOneof("part") in {"answer", "vendor_end"}:
        return "ANSWERED"
    error_class = message.failure.error_class
    return error_class if error_class in FailureClass.__members__ else "OTHER"


def _packed(message: pb.GenerateResponse) -> bytes:
    return message.SerializeToString()
