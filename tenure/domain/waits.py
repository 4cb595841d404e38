"""Defines waits: their kinds, the answers that a wait accepts, and the outcome of the waiting call.

A wait belongs to one tool call that the tool service does not run yet: a question to a person, an event, sub-agents,
or a call that needs a person's approval. A wait accepts one answer. The ledger writes the call's outcome together with
the answer, so the next owner finds the call closed. Only an approved call stays open: the next owner runs it. Waits of
the kinds in `WITHOUT_CALL` belong to the task itself, and their answer writes no outcome.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tenure.domain.budget import Budget, BudgetRequest, missing_of, usd
from tenure.domain.errors import BudgetExhausted, InvalidRequest, TenureError, WrongState
from tenure.domain.states import Reason
from tenure.domain.tools import Outcome, OutcomeStatus, PlannedCalls

DEFAULT_PERSON_SECONDS: Final = 24 * 3600.0
DEFAULT_EVENT_SECONDS: Final = 2 * 3600.0
MIN_WAIT_SECONDS: Final = 1.0
MAX_WAIT_SECONDS: Final = 30 * 24 * 3600.0

MAX_QUESTION_CHARACTERS: Final = 4000
MAX_CONTEXT_CHARACTERS: Final = 16_000
MAX_REFERENCE_CHARACTERS: Final = 200
MAX_OPTIONS: Final = 20
MAX_ESCALATION_STEPS: Final = 8
"""The limit of the steps of one list: the steps of waits for people, or those of waits for events."""
MAX_OPTION_CHARACTERS: Final = 200
MAX_APPROVED_ARGUMENT_BYTES: Final = 256 * 1024
"""The limit of a call that needs approval: its arguments are shown to the person, and kept in the task's row."""
MAX_ERROR_CHARACTERS: Final = 500
"""The limit of question and arguments in an error's metadata: gRPC sends it in a trailer of at most 8 KiB."""

ALLOW: Final = "allow"
DENY: Final = "deny"
EDIT: Final = "edit"
TOOL_DECISIONS: Final = (ALLOW, DENY, EDIT)
APPROVE: Final = "approve"
CONTINUE: Final = "continue"
"""The only decision of an operator's wait, and of a wait without progress."""
DEFAULT_OPTIONS: Final = (APPROVE, DENY)


class WaitKind(StrEnum):
    """The kind of a wait."""

    APPROVAL = "APPROVAL"
    QUESTION = "QUESTION"
    TOOL_APPROVAL = "TOOL_APPROVAL"
    EVENT = "EVENT"
    SUB_AGENTS = "SUB_AGENTS"
    BUDGET = "BUDGET"
    OPERATOR = "OPERATOR"
    NO_PROGRESS = "NO_PROGRESS"


class WaitRule(NamedTuple):
    """What differs between kinds. `reason`: of the transition. `headline`: for people who shall answer.

    `is_for_person`: the task becomes WAITING_USER; otherwise WAITING_EXTERNAL.
    """

    reason: str
    headline: str
    is_for_person: bool = True
    has_call: bool = True


WAIT_RULES: Final = {
    WaitKind.APPROVAL: WaitRule(Reason.APPROVAL_REQUESTED, "Approval needed"),
    WaitKind.QUESTION: WaitRule(Reason.ANSWER_REQUESTED, "Question"),
    WaitKind.TOOL_APPROVAL: WaitRule(Reason.TOOL_NEEDS_APPROVAL, "Approval of a tool call needed"),
    WaitKind.EVENT: WaitRule(Reason.EVENT_AWAITED, "Waiting for an event", is_for_person=False),
    WaitKind.SUB_AGENTS: WaitRule(Reason.SUB_AGENTS_AWAITED, "Waiting for sub-agents", is_for_person=False),
    WaitKind.BUDGET: WaitRule(Reason.BUDGET_REQUESTED, "More budget requested", has_call=False),
    WaitKind.OPERATOR: WaitRule(Reason.OPERATOR_WAIT, "An operator lets the task wait", has_call=False),
    WaitKind.NO_PROGRESS: WaitRule(Reason.NO_PROGRESS, "The agent repeats itself", has_call=False),
}
WITHOUT_CALL: Final = frozenset(kind for kind, rule in WAIT_RULES.items() if not rule.has_call)
"""The kinds of waits that belong to no call: `call_id` is empty."""


class WaitDeadlinePolicy(StrEnum):
    """The consequence when a wait is not answered by its deadline."""

    TIME_OUT = "TIME_OUT"
    GO_ON = "GO_ON"


class WaitAnswerKind(StrEnum):
    """The kind of an answer."""

    DECISION = "DECISION"
    REPLY = "REPLY"
    PAYLOAD = "PAYLOAD"
    NO_ANSWER = "NO_ANSWER"
    SUB_AGENTS = "SUB_AGENTS"


@dataclass(frozen=True, slots=True)
class UndecidedCall:
    """A call that needs approval."""

    call_id: str
    tool: str
    arguments_json: str

    @property
    def call_digest(self) -> str:
        return call_digest(self.tool, self.arguments_json)


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait. The ledger sets `wait_id`, `sub_agents` and `approvers`. `call_id` is empty for the kinds in
    `WITHOUT_CALL`. `approvers`: who may answer; empty: everyone. See tenure/domain/approvals.py.

    `calls`: for the approval of several calls, all of them; the first has its fields in the wait, too.
    `timeout_seconds`: the requested timeout. `elapsed_seconds`: the part of it that had passed when the wait began.
    Neither is stored; the row has the deadline.
    """

    kind: WaitKind
    call_id: str
    question: str = ""
    options: tuple[str, ...] = ()
    context: str = ""
    reference: str = ""
    correlation_id: str = ""
    at_deadline: WaitDeadlinePolicy = WaitDeadlinePolicy.TIME_OUT
    tool: str = ""
    arguments_json: str = ""
    timeout_seconds: float = 0.0
    wait_id: str = ""
    sub_agents: tuple[str, ...] = ()
    elapsed_seconds: float = 0.0
    budget_request: BudgetRequest | None = None
    approvers: tuple[str, ...] = ()
    calls: tuple[UndecidedCall, ...] = ()

    @property
    def all_calls(self) -> tuple[UndecidedCall, ...]:
        """The calls that wait; none for the kinds in `WITHOUT_CALL`."""
        return self.calls or ((UndecidedCall(self.call_id, self.tool, self.arguments_json),) if self.call_id else ())

    def of_call(self, call: UndecidedCall) -> Wait:
        """Returns the wait as that of one call."""
        return replace(self, call_id=call.call_id, tool=call.tool, arguments_json=call.arguments_json, calls=())

    @property
    def is_for_person(self) -> bool:
        """Whether the task becomes WAITING_USER; otherwise WAITING_EXTERNAL."""
        return is_for_person(self.kind)

    @property
    def call_digest(self) -> str:
        """The digest of the call that needs approval; empty for waits of other kinds."""
        return call_digest(self.tool, self.arguments_json) if self.kind is WaitKind.TOOL_APPROVAL else ""


def call_digest(tool: str, arguments_json: str) -> str:
    """Returns SHA-256 in hex. A tool name has no zero byte, so different calls have different input."""
    return hashlib.sha256(f"{tool}\0{arguments_json}".encode()).hexdigest()


def is_for_person(kind: WaitKind) -> bool:
    """Whether a person answers waits of this kind."""
    return WAIT_RULES[kind].is_for_person


@dataclass(frozen=True, slots=True)
class BeginWait:
    """An operator's request that the task waits for a person. `until`: Unix time, the deadline of the wait."""

    question: str
    until: float
    at_deadline: WaitDeadlinePolicy = WaitDeadlinePolicy.GO_ON

    def wait(self, now: float) -> Wait | None:
        """Returns the wait that begins now, or None if its deadline has passed."""
        if self.until <= now:
            return None
        return Wait(
            WaitKind.OPERATOR,
            "",
            self.question,
            (CONTINUE,),
            at_deadline=self.at_deadline,
            timeout_seconds=self.until - now,
        )


@dataclass(frozen=True, slots=True)
class CallDecision:
    """The decision on one call of a wait."""

    call_id: str
    decision: str
    call_digest: str = ""
    comment: str = ""
    edited_arguments_json: str = ""


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """An answer to a wait. `calls`: decisions on some of its calls, in place of `text`.

    `addressee`, `client_address`: of an answer by link. `shown_digest`: of what was shown. `plan`: later calls that it
    approves, too.
    """

    kind: WaitAnswerKind
    text: str = ""
    comment: str = ""
    edited_arguments_json: str = ""
    extra_budget_tokens: int = 0
    call_digest: str = ""
    extra_budget_nano_usd: int = 0
    addressee: str = ""
    client_address: str = ""
    shown_digest: str = ""
    calls: tuple[CallDecision, ...] = ()
    plan: PlannedCalls | None = None


NO_ANSWER: Final = WaitAnswer(WaitAnswerKind.NO_ANSWER)
SUB_AGENTS_ENDED: Final = WaitAnswer(WaitAnswerKind.SUB_AGENTS)


class EscalationAction(StrEnum):
    """The action of one step of an escalation, besides its entry and its event."""

    EVENT_ONLY = "EVENT_ONLY"
    ASSIGNEE = "ASSIGNEE"
    QUEUE = "QUEUE"
    PRIORITY = "PRIORITY"
    CLOSE_OUT = "CLOSE_OUT"
    APPROVER = "APPROVER"
    REMIND_WEBHOOK = "REMIND_WEBHOOK"


@dataclass(frozen=True, slots=True)
class EscalationStep:
    """One step. `after_seconds`: since the wait began. `target`: the assignee, queue, priority, approver or webhook."""

    after_seconds: float
    action: EscalationAction = EscalationAction.EVENT_ONLY
    target: str = ""


@dataclass(frozen=True, slots=True)
class Escalations:
    """The steps of a task's waits. Waits for sub-agents have none: the limits of the sub-agents end them."""

    person: tuple[EscalationStep, ...] = ()
    event: tuple[EscalationStep, ...] = ()

    def steps_of(self, kind: WaitKind) -> tuple[EscalationStep, ...]:
        """Returns the steps of a wait of this kind, in their order."""
        if kind is WaitKind.EVENT:
            return self.event
        return self.person if is_for_person(kind) else ()


def next_step(steps: Sequence[EscalationStep], taken: int, timeout_seconds: float) -> EscalationStep | None:
    """Returns the step after the `taken` first ones, or None.

    A step at the deadline or later never comes, because the deadline ends the wait. A step that was taken is never
    taken again, so a sweep that finds several steps due takes them one after the other.
    """
    step = steps[taken] if taken < len(steps) else None
    return step if step is not None and step.after_seconds < timeout_seconds else None


def problems_of_steps(steps: Sequence[EscalationStep]) -> Iterator[tuple[int, str]]:
    """Yields the index of each wrong step and its problem. A list that is too long has the index of its last step."""
    if len(steps) > MAX_ESCALATION_STEPS:
        yield len(steps) - 1, f"at most {MAX_ESCALATION_STEPS} steps"
    before = 0.0
    for index, step in enumerate(steps):
        if not MIN_WAIT_SECONDS <= step.after_seconds <= MAX_WAIT_SECONDS:
            yield index, f"after must be {MIN_WAIT_SECONDS:g} s to {MAX_WAIT_SECONDS:g} s"
        if index and step.after_seconds <= before:
            yield index, "after must be later than that of the step before"
        if index and steps[index - 1].action is EscalationAction.CLOSE_OUT:
            yield index, "must not follow a close_out, which ends the wait"
        before = step.after_seconds


def default_timeout_seconds(kind: WaitKind) -> float:
    """Returns the default timeout of a wait."""
    return DEFAULT_PERSON_SECONDS if is_for_person(kind) else DEFAULT_EVENT_SECONDS


def decided_calls(wait: Wait, answer: WaitAnswer) -> list[tuple[Wait, WaitAnswer]]:
    """Returns each call that the answer decides on, as a wait of its own, with the answer to it.

    Without decisions on calls an answer is for the first call; a missing answer is for all. Raises InvalidRequest for a
    call that does not wait.
    """
    waiting = {call.call_id: wait.of_call(call) for call in wait.all_calls}
    if answer.kind is WaitAnswerKind.NO_ANSWER and len(waiting) > 1:
        return [(one, answer) for one in waiting.values()]
    if not answer.calls:
        return [(replace(wait, calls=()), answer)]
    pairs = []
    for index, call in enumerate(answer.calls):
        if wait.kind is not WaitKind.TOOL_APPROVAL or (own := waiting.pop(call.call_id, None)) is None:
            raise _invalid(f"calls[{index}].call_id", f"must be a call of {wait.wait_id} that no other decision is on")
        decision = replace(
            answer,
            text=call.decision,
            comment=call.comment or answer.comment,
            edited_arguments_json=call.edited_arguments_json,
            call_digest=call.call_digest,
            extra_budget_tokens=0 if index else answer.extra_budget_tokens,
            extra_budget_nano_usd=0 if index else answer.extra_budget_nano_usd,
            calls=(),
        )
        pairs.append((own, decision))
    return pairs


def refuse_answer(wait: Wait, answer: WaitAnswer) -> InvalidRequest | None:
    """Returns the error if the wait does not accept the answer."""
    if wait.kind is WaitKind.EVENT:
        return _invalid("correlation_id", "this task waits for an event: send the event by its correlation_id")
    if wait.kind is WaitKind.SUB_AGENTS:
        return _invalid("wait_id", "this task waits for its sub-agents, whose ends answer the wait")
    if answer.kind is WaitAnswerKind.DECISION and answer.text not in wait.options:
        choices = ", ".join(wait.options) or "none, because the wait accepts a reply"
        return _invalid("decision", f"must be one of the wait's options: {choices}")
    if wait.kind is WaitKind.TOOL_APPROVAL and not (answer.call_digest or answer.shown_digest):
        return _invalid("call_digest", "must repeat the wait's call_digest, as GetTask and ListTasks return it")
    if answer.kind is WaitAnswerKind.REPLY and wait.kind in {WaitKind.TOOL_APPROVAL, *WITHOUT_CALL}:
        return _invalid("reply", f"this wait accepts a decision: {', '.join(wait.options)}")
    if ends_at_cap(wait, answer) and (answer.extra_budget_tokens or answer.extra_budget_nano_usd):
        return _invalid("decision", "a refusal of budget cannot raise a cap: approve, or leave the amounts out")
    return _refuse_edit(wait, answer)


def grant_of(wait: Wait, answer: WaitAnswer) -> WaitAnswer:
    """Returns the answer with the amounts that it grants: an approval of budget without amounts grants the suggested
    ones.
    """
    request = wait.budget_request
    approves = request is not None and answer.text == APPROVE
    if request is None or not approves or answer.extra_budget_tokens or answer.extra_budget_nano_usd:
        return answer
    return replace(
        answer,
        extra_budget_tokens=request.suggested_tokens,
        extra_budget_nano_usd=request.suggested_nano_usd,
    )


def refuse_grant(wait: Wait, answer: WaitAnswer, root: Budget, own: Budget) -> TenureError | None:
    """Returns the error if the amounts of an answer raise no cap, or too little for the waiting task to continue."""
    tokens, nano_usd = answer.extra_budget_tokens, answer.extra_budget_nano_usd
    if nano_usd and not (root.is_capped_in_money or own.is_capped_in_money):
        return _invalid("extra_budget_nano_usd", "the task has no cap in money that could be raised")
    if wait.budget_request is None or ends_at_cap(wait, answer):
        return None
    raised = [budget.raised(tokens, nano_usd) for budget in (root, own)]
    missing_tokens, missing_nano_usd = map(
        max, zip(*(missing_of(budget, wait.budget_request) for budget in raised), strict=True)
    )
    if not missing_tokens and not missing_nano_usd:
        return None
    more = [f"{missing_tokens:,} tokens"] if missing_tokens else []
    more += [usd(missing_nano_usd)] if missing_nano_usd else []
    return BudgetExhausted(
        f"the grant is too small for the next model call: grant at least {' and '.join(more)} more",
        reason=wait.budget_request.limit,
        metadata={"missing_tokens": str(missing_tokens), "missing_nano_usd": str(missing_nano_usd)},
    )


def ends_at_cap(wait: Wait, answer: WaitAnswer) -> bool:
    """Whether the answer ends the task at its cap: a person refuses the budget, or no answer came in time."""
    return wait.kind is WaitKind.BUDGET and answer.text != APPROVE


def refuse_other_wait(wait: Wait | None, wait_id: str, answer: WaitAnswer, state: str) -> WrongState | None:
    """Returns the error if the answer names another wait (WAIT_OVER) or another call (OTHER_CALL).

    The error has the present wait, so that the caller can read it and decide again. `wait_id`: "" for the present wait,
    which must be an operator's (else WRONG_STATE).
    """
    if not wait_id:
        is_meant = wait is not None and wait.kind is WaitKind.OPERATOR
        message = f"the task is {state}, and in no wait that an operator began"
        return None if is_meant else WrongState(message, metadata={"state": state})
    if wait is None or wait.wait_id != wait_id:
        now = f"it waits for {wait.wait_id} now" if wait is not None else f"it is {state}"
        message = f"the task does not wait for {wait_id}: {now}"
        return WrongState(message, reason="WAIT_OVER", metadata={"state": state, **present_wait(wait)})
    if answer.call_digest and answer.call_digest != wait.call_digest:
        message = f"the answer is for another call than that of {wait_id}: read the call and decide again"
        return WrongState(message, reason="OTHER_CALL", metadata={"state": state, **present_wait(wait)})
    return None


def present_wait(wait: Wait | None) -> dict[str, str]:
    """Returns the metadata of an error about the present wait. Long texts are truncated: see MAX_ERROR_CHARACTERS."""
    if wait is None:
        return {}
    facts = {
        "wait_id": wait.wait_id,
        "wait_kind": wait.kind.value,
        "question": wait.question[:MAX_ERROR_CHARACTERS],
        "tool": wait.tool,
        "arguments_json": wait.arguments_json[:MAX_ERROR_CHARACTERS],
        "call_digest": wait.call_digest,
    }
    return {name: value for name, value in facts.items() if value}


def _refuse_edit(wait: Wait, answer: WaitAnswer) -> InvalidRequest | None:
    edits = wait.kind is WaitKind.TOOL_APPROVAL and answer.text == EDIT
    if not edits:
        return (
            _invalid("edited_arguments_json", 'only with the decision "edit"') if answer.edited_arguments_json else None
        )
    try:
        arguments = json.loads(answer.edited_arguments_json)
    except (ValueError, RecursionError):
        arguments = None
    return None if isinstance(arguments, dict) else _invalid("edited_arguments_json", "must be a JSON object")


def _invalid(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(violations=[(field, description)])


def leaves_call_open(kind: WaitKind, answer_kind: WaitAnswerKind, answer: str) -> bool:
    """Whether the answer approves the call: the next owner runs it, and its outcome comes from the tool service."""
    return kind is WaitKind.TOOL_APPROVAL and answer_kind is WaitAnswerKind.DECISION and answer in {ALLOW, EDIT}


def outcome_of_answer(wait: Wait, answer: WaitAnswer, *, actor: str, at: str) -> Outcome | None:
    """Returns the outcome of the waiting call. None: the call is approved. `at`: the time of the answer, ISO 8601."""
    if leaves_call_open(wait.kind, answer.kind, answer.text):
        return None
    if wait.kind is WaitKind.TOOL_APPROVAL:
        return Outcome(OutcomeStatus.NOT_ALLOWED, _denial(wait, answer, actor, at))
    if answer.kind is WaitAnswerKind.NO_ANSWER:
        content = {"answer": "no answer", "question": wait.question or wait.correlation_id, "gave_up_at": at}
        return Outcome(OutcomeStatus.TIMED_OUT, _to_json(content))
    content = {_NAMES[answer.kind]: _value(answer), "answered_by": actor, "answered_at": at}
    return Outcome(OutcomeStatus.SUCCEEDED, _to_json(content | ({"comment": answer.comment} if answer.comment else {})))


_NAMES: Final = {
    WaitAnswerKind.DECISION: "decision",
    WaitAnswerKind.REPLY: "reply",
    WaitAnswerKind.PAYLOAD: "payload",
}


def _value(answer: WaitAnswer) -> Any:
    """Returns the answer as a JSON value: a payload is JSON already."""
    return json.loads(answer.text) if answer.kind is WaitAnswerKind.PAYLOAD else answer.text


def _denial(wait: Wait, answer: WaitAnswer, actor: str, at: str) -> str:
    if answer.kind is WaitAnswerKind.NO_ANSWER:
        return f"This call of {wait.tool} was not run: it needs a person's approval, and no answer came until {at}."
    why = f": {answer.comment}" if answer.comment else "."
    return f"This call of {wait.tool} was not run: {actor} denied it at {at}{why}"


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)
