"""Waits, their answers, and events from outside."""

from __future__ import annotations

import re
from typing import Any, Final

from tenure.domain.waits import (
    MAX_APPROVED_ARGUMENT_BYTES,
    MAX_CONTEXT_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_REFERENCE_CHARACTERS,
    MAX_WAIT_SECONDS,
    MIN_WAIT_SECONDS,
)
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.validators.fields import is_json
from tenure.validators.limits import CALL_ID
from tenure.validators.violations import Check, Violations
from tenure.wire.times import seconds

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_COMMENT_CHARACTERS: Final = 4000
MAX_EXTRA_TOKENS: Final = 10**12
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def check_wait(transition: checkpoint.Transition, v: Violations) -> None:
    """What an owner's move begins to wait for."""
    if not transition.HasField("wait"):
        v.require(not transition.HasField("wait_timeout"), "transition.wait_timeout", "must not be set without a wait")
        return
    wait, field = transition.wait, "transition.wait"
    v.known(f"{field}.kind", task_pb2.WaitKind, wait.kind)
    v.require(bool(wait.kind), f"{field}.kind", "must be set")
    v.known(f"{field}.at_deadline", task_pb2.WaitDeadlinePolicy, wait.at_deadline)
    v.require(bool(CALL_ID.match(wait.call_id)), f"{field}.call_id", 'must be "<step>.<index>"')
    v.length(f"{field}.question", wait.question, 0, MAX_QUESTION_CHARACTERS)
    v.length(f"{field}.context", wait.context, 0, MAX_CONTEXT_CHARACTERS)
    v.length(f"{field}.reference", wait.reference, 0, MAX_REFERENCE_CHARACTERS)
    v.require(len(wait.options) <= MAX_OPTIONS, f"{field}.options", f"at most {MAX_OPTIONS}")
    for index, option in enumerate(wait.options):
        v.length(f"{field}.options[{index}]", option, 1, MAX_OPTION_CHARACTERS)
    is_event = wait.kind == task_pb2.WAIT_KIND_EVENT
    v.length(f"{field}.correlation_id", wait.correlation_id, int(is_event), 200 if is_event else 0)
    v.require("\0" not in wait.correlation_id, f"{field}.correlation_id", "must not hold NUL")
    size = len(wait.arguments_json.encode())
    told = f"at most {MAX_APPROVED_ARGUMENT_BYTES} bytes"
    v.require(size <= MAX_APPROVED_ARGUMENT_BYTES, f"{field}.arguments_json", told)
    if transition.HasField("wait_timeout"):
        timeout_seconds = seconds(transition.wait_timeout)
        v.between("transition.wait_timeout", timeout_seconds, MIN_WAIT_SECONDS, MAX_WAIT_SECONDS)


def check_wait_answer(answer: Any, v: Violations, prefix: str = "") -> None:
    """WaitAnswer, and ResumeTaskRequest that has the same fields."""
    v.length(f"{prefix}wait_id", answer.wait_id, 1, 64)
    v.require(bool(answer.WhichOneof("answer")), f"{prefix}answer", "must be a decision or a reply")
    told = "must be 64 lower-case hex digits, or empty"
    v.require(not answer.call_digest or bool(_DIGEST.fullmatch(answer.call_digest)), f"{prefix}call_digest", told)
    v.length(f"{prefix}decision", answer.decision, 0, MAX_OPTION_CHARACTERS)
    size = len(answer.reply.encode())
    v.require(size <= MAX_ANSWER_BYTES, f"{prefix}reply", f"at most {MAX_ANSWER_BYTES} bytes")
    v.length(f"{prefix}comment", answer.comment, 0, MAX_COMMENT_CHARACTERS)
    size = len(answer.edited_arguments_json.encode())
    told = f"at most {MAX_APPROVED_ARGUMENT_BYTES} bytes"
    v.require(size <= MAX_APPROVED_ARGUMENT_BYTES, f"{prefix}edited_arguments_json", told)
    v.between(f"{prefix}extra_budget_tokens", answer.extra_budget_tokens, 0, MAX_EXTRA_TOKENS)


def _event(request: Any, v: Violations) -> None:
    """SendSignalRequest, and ResumeTaskRequest that has the same fields."""
    v.length("correlation_id", request.correlation_id, 1, 200)
    size = len(request.payload_json.encode())
    v.require(size <= MAX_ANSWER_BYTES, "payload_json", f"at most {MAX_ANSWER_BYTES} bytes")
    v.require(is_json(request.payload_json), "payload_json", "must be JSON")


def _signal(request: checkpoint.SendSignalRequest, v: Violations) -> None:
    _event(request, v)
    v.length("request_id", request.request_id, 1, 128)
    v.length("actor", request.actor, 1, 200)


def _resume(request: tasks.ResumeTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 0, 128)
    if not request.correlation_id:
        v.uuid("task_id", request.task_id)
        v.require(request.WhichOneof("answer") != "payload_json", "payload_json", "belongs to a correlation_id")
        check_wait_answer(request, v)
        return
    _event(request, v)
    v.require(request.WhichOneof("answer") == "payload_json", "answer", "must be a payload_json")
    for field in ("task_id", "wait_id", "comment", "edited_arguments_json", "extra_budget_tokens", "call_digest"):
        v.require(not getattr(request, field), field, "must be empty with a correlation_id")


CHECKS: Final[dict[type, Check]] = {
    tasks.ResumeTaskRequest: _resume,
    checkpoint.SendSignalRequest: _signal,
}
