"""Calls that nobody executes: those that ask a person or wait for an event, and those that need a person's leave."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from tenure.domain.entries import ToolIntent, Transition
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import (
    DEFAULT_OPTIONS,
    MAX_APPROVED_ARGUMENT_BYTES,
    MAX_CONTEXT_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_REFERENCE_CHARACTERS,
    MAX_WAIT_SECONDS,
    MIN_WAIT_SECONDS,
    TOOL_DECISIONS,
    Wait,
    WaitDeadlinePolicy,
    WaitKind,
    default_timeout_seconds,
)

REQUEST_APPROVAL: Final = "request_approval"
ASK_USER: Final = "ask_user"
WAIT_EXTERNAL: Final = "wait_external"

WAITING_TOOLS: Final = {
    REQUEST_APPROVAL: WaitKind.APPROVAL,
    ASK_USER: WaitKind.QUESTION,
    WAIT_EXTERNAL: WaitKind.EVENT,
}
"""Their calls are never executed: the loop commits a wait instead."""

_REASONS: Final = {
    WaitKind.APPROVAL: Reason.APPROVAL_REQUESTED,
    WaitKind.QUESTION: Reason.ANSWER_REQUESTED,
    WaitKind.TOOL_APPROVAL: Reason.TOOL_NEEDS_APPROVAL,
    WaitKind.EVENT: Reason.EVENT_AWAITED,
}
_POLICIES: Final = {"time_out": WaitDeadlinePolicy.TIME_OUT, "go_on": WaitDeadlinePolicy.GO_ON}


def asks(
    intent: ToolIntent, *, tools: Collection[str], approve_tools: Collection[str], allowed: Collection[str]
) -> bool:
    """Whether the call waits for somebody. `tools`: what the task may use; `allowed`: calls that got leave."""
    if intent.tool in WAITING_TOOLS and intent.tool in tools:
        return True
    return intent.tool in approve_tools and intent.call_id not in allowed


def wait_of(intent: ToolIntent) -> Wait | Outcome:
    """What the call waits for; or its outcome, when its arguments make no wait."""
    kind = WAITING_TOOLS.get(intent.tool)
    if kind is None:
        return _wait_for_leave(intent)
    arguments = _object(intent.arguments_json)
    if arguments is None:
        return _unfit(f"The arguments of {intent.tool} must be a JSON object.")
    try:
        return _wait(kind, intent.call_id, _Reader(arguments))
    except _Unfit as unfit:
        return _unfit(f"The arguments do not fit {intent.tool}: {unfit}.")


def move_to_wait(wait: Wait) -> Transition:
    """How the task is left for it."""
    to_state = TaskState.WAITING_USER if wait.is_for_person else TaskState.WAITING_EXTERNAL
    told = wait.question or f"waits for the event {wait.correlation_id}"
    return Transition(to_state, _REASONS[wait.kind], told, wait=wait)


def _wait_for_leave(intent: ToolIntent) -> Wait | Outcome:
    if len(intent.arguments_json.encode()) > MAX_APPROVED_ARGUMENT_BYTES:
        return _unfit(f"A call that needs a person's leave has up to {MAX_APPROVED_ARGUMENT_BYTES} bytes of arguments.")
    return Wait(
        kind=WaitKind.TOOL_APPROVAL,
        call_id=intent.call_id,
        question=f"May {intent.tool} be called?",
        options=TOOL_DECISIONS,
        tool=intent.tool,
        arguments_json=intent.arguments_json,
        timeout_seconds=default_timeout_seconds(WaitKind.TOOL_APPROVAL),
    )


def _wait(kind: WaitKind, call_id: str, given: _Reader) -> Wait:
    wait = Wait(
        kind=kind,
        call_id=call_id,
        question=given.text("question", MAX_QUESTION_CHARACTERS, required=kind is not WaitKind.EVENT),
        options=given.options() if kind is WaitKind.APPROVAL else (),
        context=given.text("context", MAX_CONTEXT_CHARACTERS),
        reference=given.text("reference", MAX_REFERENCE_CHARACTERS),
        correlation_id=given.text("correlation_id", 200, required=True) if kind is WaitKind.EVENT else "",
        at_deadline=given.policy(),
        timeout_seconds=given.timeout_seconds(default_timeout_seconds(kind)),
    )
    given.refuse_rest()
    return wait


class _Unfit(Exception):  # noqa: N818  said to the model, no error of ours
    """In words that fit into a sentence."""


class _Reader:
    """Takes arguments out, one by one; what is left at the end is nothing we know."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._left = dict(arguments)

    def text(self, name: str, most: int, *, required: bool = False) -> str:
        value = self._left.pop(name, "")
        if not isinstance(value, str) or len(value) > most or (required and not value.strip()):
            raise _Unfit(f"{name} must be a text of {1 if required else 0} to {most} characters")
        return value

    def options(self) -> tuple[str, ...]:
        value = self._left.pop("options", None) or list(DEFAULT_OPTIONS)
        fits = isinstance(value, list) and len(value) <= MAX_OPTIONS and len({str(one) for one in value}) == len(value)
        if not fits or not all(isinstance(one, str) and 0 < len(one) <= MAX_OPTION_CHARACTERS for one in value):
            raise _Unfit(
                f"options must be up to {MAX_OPTIONS} different texts of 1 to {MAX_OPTION_CHARACTERS} characters"
            )
        return tuple(value)

    def policy(self) -> WaitDeadlinePolicy:
        value = self._left.pop("at_deadline", "time_out")
        if not isinstance(value, str) or value not in _POLICIES:
            raise _Unfit("at_deadline must be time_out or go_on")
        return _POLICIES[value]

    def timeout_seconds(self, default: float) -> float:
        value = self._left.pop("timeout_seconds", default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not MIN_WAIT_SECONDS <= value <= MAX_WAIT_SECONDS:
            raise _Unfit(f"timeout_seconds must be {MIN_WAIT_SECONDS:g} to {MAX_WAIT_SECONDS:g}")
        return float(value)

    def refuse_rest(self) -> None:
        if self._left:
            raise _Unfit(f"there is no {', '.join(sorted(self._left))[:200]}")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unfit(sentence: str) -> Outcome:
    return Outcome(OutcomeStatus.INVALID_ARGUMENTS, sentence)
