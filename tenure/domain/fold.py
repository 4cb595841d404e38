"""The fold of a ledger into a resume point: what any worker, at any time, goes on from.

The same fold serves a first start, a resume and every step in between, so that a resumed task cannot differ from one
that was never interrupted. Facts of others (a message) take effect at the next model attempt, for every reader alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.domain.conversation import Conversation, Message, ToolResult, result_of, text_block, text_of
from tenure.domain.entries import (
    PROMPT_TOO_LONG,
    AssistantMessage,
    AttemptLost,
    Body,
    CancelRequest,
    Compaction,
    ControlStep,
    Entry,
    ModelAttempt,
    ModelFailure,
    OperatorRequest,
    Requeue,
    ResultRejected,
    Submitted,
    Summary,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    UserMessage,
    WaitResolution,
)
from tenure.domain.in_doubt import Resolution, ResolveCall
from tenure.domain.states import BUDGET_WAIT_REASONS, TERMINAL, TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.timeouts import TIMEOUT_REASONS
from tenure.domain.tools import Outcome, ToolDefinition
from tenure.domain.waits import leaves_call_open

_TOO_LONG = "model_context_window_exceeded"
_DEAD_ENDS = frozenset({"refusal", _TOO_LONG})
"""Answers after which the same conversation cannot go on: a new attempt asks again without them."""


@dataclass(slots=True)
class ResumePoint:
    """The fold so far. `apply` entries in order; read the rest. Refuses gaps: a fold over a hole is a lie.

    `answer_text`: the newest answer, joined with those before that were cut off and continued; `corrections`: how often
    the agent was told that an answer is no result.
    `summary_through_step`: of the newest attempt, while its summary is not there; 0: it asks for a turn. `overflows`:
    how often the provider found the conversation too long since the newest turn; `must_shorten`: nothing was done yet.
    `refused_tokens`: the bound of what it found too long, at the newest time.
    `resolutions`: the newest word of a person on each open call, to be passed along when it is executed.
    `counted`: how many messages the newest turn was sent, and what the provider counted for them, in tokens.
    """

    sequence: int = 0
    state: TaskState = TaskState.QUEUED
    spec: TaskSpec | None = None
    parent_trace: str = ""
    tools: tuple[ToolDefinition, ...] | None = None
    step: int = 0
    conversation: Conversation = field(default_factory=Conversation)
    intents: dict[str, ToolIntent] = field(default_factory=dict)
    open_calls: dict[str, ToolIntent] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    allowed_calls: set[str] = field(default_factory=set)
    edited_calls: set[str] = field(default_factory=set)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    control_steps: dict[int, ControlStep] = field(default_factory=dict)
    extra_steps: int = 0
    attempts_in_step: int = 0
    failures: list[ModelFailure] = field(default_factory=list)
    open_attempt: ModelAttempt | None = None
    answer: AssistantMessage | None = None
    truncations: int = 0
    retries: int = 0
    timeout_retries: int = 0
    last_text: str = ""
    answer_text: str = ""
    corrections: int = 0
    cancel_reason: str | None = None
    summary_through_step: int = 0
    overflows: int = 0
    must_shorten: bool = False
    refused_tokens: int = 0
    has_new_summary: bool = False
    counted: tuple[int, int] | None = None
    _texts: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """What was sent so far, as it would be sent now."""
        return self.conversation.messages

    @property
    def open_intents(self) -> list[ToolIntent]:
        """Intents without an outcome, in the model's order: as the ledger counts them, whatever an own loop writes."""
        return list(self.open_calls.values())

    @property
    def has_unread_messages(self) -> bool:
        """Whether there are words the model has not been sent yet."""
        return bool(self._texts)

    @property
    def is_at_dead_end(self) -> bool:
        """Whether the newest answer is one that nothing follows from."""
        return self.answer is not None and self.answer.stop_reason in _DEAD_ENDS and not self.intents

    @property
    def pending_content(self) -> list[dict[str, Any]]:
        """What was collected since the last answer, as the next attempt will send it: tool results, then words."""
        return [*(result.block for result in self.pending_results), *map(text_block, self._texts)]

    @property
    def pending_results(self) -> list[ToolResult]:
        """The results among them."""
        return [result_of(one, self.outcomes[call]) for call, one in self.intents.items() if call in self.outcomes]

    def apply(self, entry: Entry) -> None:
        """Takes the next entry in; ValueError when it is not the next."""
        if entry.sequence != self.sequence + 1:
            raise ValueError(f"entry {entry.sequence} does not follow {self.sequence}")
        self.sequence = entry.sequence
        self._fold(entry.step, entry.body, entry.actor)

    def _fold(self, step: int, body: Body, actor: str) -> None:  # noqa: C901, PLR0912 - one case for each kind of fact, and nothing else
        match body:
            case Submitted():
                self.spec, by = body.spec, body.spawned_by
                self.parent_trace = "" if by is None else by.traceparent
                self.conversation.goal = body.spec.goal
                self._texts.append(body.spec.goal)
            case Transition():
                self._transition(body)
            case ToolsDefined():
                self.tools = body.tools
            case ModelAttempt():
                self._attempt(step, body)
            case AssistantMessage():
                self._answer(step, body)
            case ModelFailure():
                self._failure(body)
            case AttemptLost():
                self.open_attempt = None
            case ToolIntent():
                self.step = max(self.step, step)
                self.intents[body.call_id] = self.open_calls[body.call_id] = body
                self.outcomes.pop(body.call_id, None)
            case ToolOutcome():
                self.open_calls.pop(body.call_id, None)
                self.outcomes[body.call_id] = body.outcome
                self.resolutions.pop(body.call_id, None)
            case UserMessage():
                self._texts.append(body.text)
            case CancelRequest():
                self.cancel_reason = body.reason
            case ControlStep():
                self._control_step(step, body)
            case OperatorRequest(act=Requeue(extra_steps=extra)):
                self.extra_steps += extra
            case OperatorRequest(act=ResolveCall(call_id, attempt, decision)):
                self.resolutions[call_id] = Resolution(attempt, decision, body.reason, actor)
            case WaitResolution():
                self._resolve(body)
            case ResultRejected():
                self.corrections += 1
                self._texts.append(body.text)
            case Compaction():
                self._compact(body)
            case _:
                pass  # what came of it is a transition, or entries like any other; or it is for people

    def _transition(self, body: Transition) -> None:
        if self.state in TERMINAL or body.from_state is None:
            self._begin_attempt()
        if body.from_state is None:
            self.extra_steps = self.step  # of a fork: the steps it copied are not among those it may make
        self.state = body.to_state
        if body.to_state is TaskState.RETRY_SCHEDULED:
            is_late = body.reason in TIMEOUT_REASONS  # an answer between two of these makes the phase no shorter
            is_failure = not is_late and body.reason not in BUDGET_WAIT_REASONS  # waiting for room uses up no patience
            self.retries, self.timeout_retries = self.retries + is_failure, self.timeout_retries + is_late
            self.failures.clear()

    def _control_step(self, step: int, body: ControlStep) -> None:
        """The function got further: what failed before is no more."""
        self.step = max(self.step, step)
        self.control_steps[step] = body
        self.retries = 0

    def _begin_attempt(self) -> None:
        """Requeued after an end, or forked: the history goes on, without what judged the attempt before."""
        self.failures.clear()
        self.retries = self.timeout_retries = self.truncations = self.corrections = self.overflows = 0
        self.summary_through_step, self.must_shorten = 0, False
        self.counted = None  # system prompt and tools may be others
        self.cancel_reason = None
        self._drop_dead_end()

    def _drop_dead_end(self) -> None:
        """Nothing follows from an answer that refused: the same step is asked anew."""
        if self.is_at_dead_end:
            if self.answer is not None and self.answer.content:
                self.conversation.drop_answer()
            self.answer, self.attempts_in_step = None, 0

    def _resolve(self, body: WaitResolution) -> None:
        """A call that got leave is executed as whoever gave it wants; the others have their outcome."""
        if not leaves_call_open(body.wait_kind, body.answer_kind, body.answer):
            return
        self.allowed_calls.add(body.call_id)
        intent = self.open_calls[body.call_id]
        if body.edited_arguments_json:
            self.edited_calls.add(body.call_id)
            edited = replace(intent, arguments_json=body.edited_arguments_json)
            self.intents[body.call_id] = self.open_calls[body.call_id] = edited
            message = f"A person changed the arguments of {intent.tool} before it was run: {body.edited_arguments_json}"
            self._texts.append(f"{message}\n{body.comment}".strip())
        elif body.comment:
            self._texts.append(f"A person allowed {intent.tool} and says: {body.comment}")

    def _attempt(self, step: int, body: ModelAttempt) -> None:
        self._drop_dead_end()
        self.summary_through_step = body.summary_through_step
        if not body.summary_through_step:
            self._close_turn()
        if step != self.step:
            self.step, self.attempts_in_step = step, 0
        self.attempts_in_step = max(self.attempts_in_step, body.attempt_number)
        self.open_attempt = body

    def _close_turn(self) -> None:
        """What was collected since the last answer becomes one user message."""
        self.conversation.tell(self.pending_results, self._texts)
        self._forget_calls()
        self._texts.clear()

    def _forget_calls(self) -> None:
        for of_calls in (self.intents, self.outcomes, self.allowed_calls, self.resolutions):
            of_calls.clear()
        self.answer = None

    def _answer(self, step: int, body: AssistantMessage) -> None:
        attempt, self.open_attempt = self.open_attempt, None
        self.failures.clear()
        self.retries = 0
        if self.summary_through_step:  # no turn: what is made of it says the entry after it
            self.summary_through_step = self.attempts_in_step = 0
            return
        self.answer, self.has_new_summary = body, False
        counted = body.usage.total - body.usage.output_tokens
        self.counted = (len(self.messages), counted) if counted > 0 else None
        self.conversation.answer(step, body.content, leads_on=body.stop_reason not in _DEAD_ENDS)
        if body.stop_reason == _TOO_LONG:
            self._overflow(attempt)
        else:
            self.overflows = self.refused_tokens = 0
        text = text_of(body.content)
        self.answer_text = self.answer_text + text if self.truncations else text
        self.truncations = self.truncations + 1 if body.stop_reason == "max_tokens" else 0
        if text:
            self.last_text = text

    def _failure(self, body: ModelFailure) -> None:
        attempt, self.open_attempt = self.open_attempt, None
        if body.error_class == PROMPT_TOO_LONG:
            self._overflow(attempt)
        else:
            self.failures.append(body)

    def _overflow(self, attempt: ModelAttempt | None) -> None:
        self.overflows += 1
        self.must_shorten = True
        self.refused_tokens = attempt.input_tokens if attempt is not None else 0

    def _compact(self, body: Compaction) -> None:
        self.counted = None
        if not isinstance(body.how, Summary):
            self.conversation.clear_results(body.how)
            return
        if body.how.through_step >= self.conversation.answered_step:
            self._forget_calls()
        self._texts[:0] = self.conversation.summarise(body.how)
        self.must_shorten, self.has_new_summary = False, True


def fold(entries: Iterable[Entry]) -> ResumePoint:
    """The resume point of a whole ledger, or of a prefix of it."""
    point = ResumePoint()
    for entry in entries:
        point.apply(entry)
    return point
