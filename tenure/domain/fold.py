"""Folds the entries of a ledger into a resume point, from which any worker can continue the task at any time.

The same fold serves a first start, a resume and every step in between, so a resumed task cannot differ from a task
that was never interrupted. External entries (a message) take effect at the next model attempt, for every reader alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tenure.domain.conversation import Conversation, Message, ToolResult, result_of, said_content, text_block, text_of
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
from tenure.domain.images import images_in, is_about_images
from tenure.domain.in_doubt import Resolution, ResolveCall
from tenure.domain.outputs import TaskOutput, output_of
from tenure.domain.progress import Progress
from tenure.domain.retry import UNUSABLE, FailureClass
from tenure.domain.states import BUDGET_WAIT_REASONS, TERMINAL, Reason, TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.timeouts import TIMEOUT_REASONS
from tenure.domain.tools import UNUSABLE_CALL, Outcome, ToolDefinition
from tenure.domain.waits import WaitKind, leaves_call_open

TRUNCATED = "max_tokens"
PAUSED = "pause_turn"
_TOO_LONG = "model_context_window_exceeded"
_DEAD_ENDS = frozenset({"refusal", _TOO_LONG})
"""Stop reasons after which the same conversation cannot continue. The next model attempt drops such an answer."""


_MOST_CALLS: Final = 256
"""Of one answer. A function may make more calls after it."""


@dataclass(slots=True)
class ResumePoint:
    """The state of a task after the entries so far. Call `apply` for each entry in order; it refuses a gap.

    `answer_text`: the newest answer, joined with the truncated answers that it continues.
    `corrections`: how many final answers result validation has rejected in this attempt of the task.
    `summary_through_step`: the step of the summary that the newest model attempt asks for, until the summary is
    committed; 0: the newest model attempt asks for no summary.
    `overflows`: how often the model provider found the conversation too long since the newest answer that fitted.
    `must_shorten`: the conversation was found too long, and no summary has followed yet.
    `refused_tokens`: the upper bound, in tokens, of the input that was found too long most recently.
    `refused_images`: the digests of images with which the model provider refused the conversation; they are not shown.
    `approval_notes`: what the agent reads in the outcomes of open calls about their approvals.
    `resolutions`: a person's newest resolution of each open call, passed to the tool service at the call's execution.
    `outputs`: the outputs of all steps, by call; of a fork, also those that it copied.
    `reserved_epoch`: the epoch under which the newest model attempt was reserved.
    `said`: of a control function, all messages of users so far.
    `window_tokens`: the context window that the endpoint of the model has; 0: unknown.
    `progress`: whether the agent's steps bring something new, without the newest step.
    `refused_tools`: the tools whose definitions the model provider refused in this attempt of the task. Its requests
    do not have them.
    `counted`: the number of messages in the newest answered model call, and the provider's count of their tokens.
    `planned_tools`: of the plans of the claim. The tool service decides whether their calls need an approval.
    `is_interrupted`: of an agent, whether a message interrupts the open model attempt. One message interrupts one
    attempt: the next one has it. A summary goes on, because the next request needs it.
    """

    sequence: int = 0
    state: TaskState = TaskState.QUEUED
    spec: TaskSpec | None = None
    tools: tuple[ToolDefinition, ...] | None = None
    step: int = 0
    conversation: Conversation = field(default_factory=Conversation)
    intents: dict[str, ToolIntent] = field(default_factory=dict)
    open_calls: dict[str, ToolIntent] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    outputs: dict[str, TaskOutput] = field(default_factory=dict)
    allowed_calls: set[str] = field(default_factory=set)
    planned_tools: frozenset[str] = frozenset()
    edited_calls: set[str] = field(default_factory=set)
    approval_notes: dict[str, str] = field(default_factory=dict)
    resolutions: dict[str, Resolution] = field(default_factory=dict)
    control_steps: dict[int, ControlStep] = field(default_factory=dict)
    extra_steps: int = 0
    attempts_in_step: int = 0
    failures: list[ModelFailure] = field(default_factory=list)
    open_attempt: ModelAttempt | None = None
    is_interrupted: bool = False
    reserved_epoch: int = 0
    answer: AssistantMessage | None = None
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
    refused_images: set[str] = field(default_factory=set)
    said: list[UserMessage] = field(default_factory=list)
    refused_tools: set[str] = field(default_factory=set)
    counted: tuple[int, int] | None = None
    window_tokens: int = 0
    progress: Progress = Progress()
    _newest_calls: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_CALLS))
    _unsent: list[dict[str, Any]] = field(default_factory=list)
    _is_text_truncated: bool = False

    @property
    def messages(self) -> list[Message]:
        """The messages of all model calls so far, after compaction."""
        return self.conversation.messages

    @property
    def open_intents(self) -> list[ToolIntent]:
        """The intents without an outcome, in the model's order. Equal to the ledger's open calls for every loop."""
        return list(self.open_calls.values())

    @property
    def shown_tools(self) -> tuple[ToolDefinition, ...]:
        """The tools that the model is shown: the task's, without those that its provider refuses."""
        return tuple(tool for tool in self.tools or () if tool.name not in self.refused_tools)

    @property
    def has_unread_messages(self) -> bool:
        """Whether there is something that the model has not been sent yet."""
        return bool(self._unsent)

    @property
    def is_at_dead_end(self) -> bool:
        """Whether the conversation cannot continue from the newest answer."""
        return self.answer is not None and self.answer.stop_reason in _DEAD_ENDS and not self.intents

    @property
    def pending_content(self) -> list[dict[str, Any]]:
        """The content since the newest answer, as the next model attempt will send it: results, texts and images."""
        return [*(result.block for result in self.pending_results), *self._unsent]

    @property
    def pending_results(self) -> list[ToolResult]:
        """The tool results since the newest answer."""
        return [
            result_of(intent, self.outcomes[call_id])
            for call_id, intent in self.intents.items()
            if call_id in self.outcomes
        ]

    def progress_after(self, outcomes: Iterable[ToolOutcome] = ()) -> Progress:
        """Returns the progress with the calls of the newest step; `outcomes`: those that are not in the ledger yet."""
        settled = self.outcomes | {each.call_id: each.outcome for each in outcomes}
        calls = [(self.intents[call_id], settled[call_id]) for call_id in self._newest_calls if call_id in settled]
        fault = self.fault_of_answer()
        progress = self.progress if fault is None else self.progress.after_answer(calls, is_usable=not fault)
        return progress.after(calls, only_failures=not self.is_agent)

    def fault_of_answer(self) -> str | None:
        """Returns the reason for which the newest answer cannot be used as it is; "": it can; None: it says nothing."""
        if self.answer is None or self.answer.stop_reason in _DEAD_ENDS | {PAUSED}:
            return None
        if self.answer.stop_reason == TRUNCATED:
            return Reason.MODEL_TRUNCATED
        if any(outcome.detail == UNUSABLE_CALL for outcome in self.outcomes.values()):
            return Reason.MODEL_ANSWER_UNUSABLE
        return "" if self.answer_text or self._newest_calls else Reason.MODEL_EMPTY_ANSWER

    @property
    def is_agent(self) -> bool:
        """Whether an agent works on the task. A control function has no conversation: its code says what it sends."""
        return self.spec is None or self.spec.control is None

    def apply(self, entry: Entry) -> None:
        """Folds the next entry. Raises ValueError if its sequence is not the next one."""
        if entry.sequence != self.sequence + 1:
            raise ValueError(f"entry {entry.sequence} does not follow {self.sequence}")
        self.sequence = entry.sequence
        if isinstance(entry.body, ModelAttempt):
            self.reserved_epoch = entry.epoch
        self._fold(entry.step, entry.body, entry.actor)

    def _fold(self, step: int, body: Body, actor: str) -> None:  # noqa: C901, PLR0912 - one case for each entry kind
        match body:
            case Submitted():
                self.spec = body.spec
                self.conversation.goal, self.conversation.files = body.spec.goal, body.files
                self._unsent += said_content(body.spec.goal, body.files)
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
                self._settle()
            case ToolIntent():
                self._call(step, body)
            case ToolOutcome():
                self.open_calls.pop(body.call_id, None)
                self._note_approval(body)
                self.outcomes[body.call_id] = body.outcome
                if (output := output_of(body.call_id, body.outcome)) is not None:
                    self.outputs[body.call_id] = output
                self.resolutions.pop(body.call_id, None)
            case UserMessage() if self.is_agent:
                self._say(body)
            case UserMessage():
                self.said.append(body)
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
                self._unsent.append(text_block(body.text))
            case Compaction():
                self._compact(body)
            case _:
                pass  # other entries record their effect as the entries that follow, or are for people only

    def _transition(self, body: Transition) -> None:
        if self.state in TERMINAL or body.from_state is None:
            self._begin_attempt()
        if body.from_state is None:
            self.extra_steps = self.step  # the steps that a fork copied do not count against its own step limit
        self.state = body.to_state
        if body.to_state is TaskState.RETRY_SCHEDULED:
            # An answer resets `retries` but not `timeout_retries`: it says nothing about the length of the phase.
            is_timeout = body.reason in TIMEOUT_REASONS
            is_failure = not is_timeout and body.reason not in BUDGET_WAIT_REASONS  # a budget wait uses up no retry
            self.retries, self.timeout_retries = self.retries + is_failure, self.timeout_retries + is_timeout
            self.failures.clear()

    def _control_step(self, step: int, body: ControlStep) -> None:
        """Records a step of a control function. It made progress, so all counts of a step start at 0 again."""
        self._reach(step)
        self.control_steps[step] = body
        self.retries, self.progress = 0, replace(self.progress, unusable=0)
        self.failures.clear()

    def _begin_attempt(self) -> None:
        """Begins the task's next attempt (a requeue) or a fork's first: keeps the history and resets all counters."""
        self.failures.clear()
        self.retries = self.timeout_retries = self.corrections = self.overflows = 0
        self.progress = Progress()
        self.summary_through_step, self.must_shorten = 0, False
        self.counted = None  # the system prompt and the tools may have changed
        self.window_tokens = 0  # and so may the model
        self.refused_images.clear()
        self.refused_tools.clear()
        self.cancel_reason = None
        self._drop_dead_end()

    def _drop_dead_end(self) -> None:
        """Drops an answer from which the conversation cannot continue, so that the same step calls the model again."""
        if self.is_at_dead_end:
            if self.answer is not None and self.answer.content:
                self.conversation.drop_answer()
            self.answer, self.attempts_in_step = None, 0

    def _resolve(self, body: WaitResolution) -> None:
        """Applies an approval to the open call: its edited arguments and its comment. Other answers settled the call
        by an outcome.
        """
        if body.wait_kind is WaitKind.NO_PROGRESS:
            self.progress = Progress()
            if body.comment:
                self._unsent.append(text_block(body.comment))
        if not leaves_call_open(body.wait_kind, body.answer_kind, body.answer):
            return
        self.allowed_calls.add(body.call_id)
        intent = self.open_calls[body.call_id]
        if body.edited_arguments_json:
            self.edited_calls.add(body.call_id)
            edited = replace(intent, arguments_json=body.edited_arguments_json)
            self.intents[body.call_id] = self.open_calls[body.call_id] = edited
        if text := text_of_approval(body, intent):
            self.approval_notes[body.call_id] = text

    def _call(self, step: int, intent: ToolIntent) -> None:
        self._reach(step)
        self.intents[intent.call_id] = self.open_calls[intent.call_id] = intent
        self.outcomes.pop(intent.call_id, None)
        self._newest_calls.append(intent.call_id)

    def _note_approval(self, body: ToolOutcome) -> None:
        """Says after the results what an outcome does not say about the approval of its call: of older versions."""
        note = self.approval_notes.pop(body.call_id, "")
        if note not in body.outcome.note:
            self._unsent.append(text_block(note))

    def _reach(self, step: int) -> None:
        """Takes the step of an entry. The attempts are those of the newest step."""
        if step > self.step:
            self.step, self.attempts_in_step = step, 0

    def _attempt(self, step: int, body: ModelAttempt) -> None:
        if self.is_agent:
            self._take_turn(body)
        self._reach(step)
        self.attempts_in_step = max(self.attempts_in_step, body.attempt_number)
        self.open_attempt = body

    def _settle(self) -> ModelAttempt | None:
        """Closes the open attempt and returns it."""
        attempt, self.open_attempt, self.is_interrupted = self.open_attempt, None, False
        return attempt

    def _say(self, message: UserMessage) -> None:
        self._unsent += said_content(message.text, message.files)
        if message.request_id:  # of a person: what it says is new
            self.progress = Progress()
        if message.interrupt and self.open_attempt is not None:
            self.is_interrupted = not self.open_attempt.summary_through_step

    def _take_turn(self, body: ModelAttempt) -> None:
        """Makes the conversation that an agent's model attempt sends."""
        self._drop_dead_end()
        self.summary_through_step = body.summary_through_step
        if not body.summary_through_step:
            self._close_turn()

    def _close_turn(self) -> None:
        """Turns the content since the newest answer into one user message."""
        self.conversation.add_user_message(self.pending_results, self._unsent)
        self._forget_calls()
        self._unsent.clear()

    def _end_step(self) -> None:
        """Counts the calls since the newest answer as one step of the agent."""
        self.progress = self.progress_after()
        self._newest_calls.clear()

    def _forget_calls(self) -> None:
        self._end_step()
        for by_call in (self.intents, self.outcomes, self.allowed_calls, self.resolutions):
            by_call.clear()
        self.answer = None

    def _answer(self, step: int, body: AssistantMessage) -> None:
        attempt = self._settle()
        self.failures.clear()
        self.retries = 0
        self.window_tokens = body.context_window_tokens or self.window_tokens
        if self.summary_through_step:  # not part of the conversation: the next entry, a compaction, uses the summary
            self.summary_through_step = self.attempts_in_step = 0
            self.progress = self.progress.after_answer((), is_usable=True)
            return
        text = text_of(body.content)
        if self.is_agent:
            self._take_answer(step, body, text, attempt)
        else:
            self._end_step()
        if text:
            self.last_text = text

    def _take_answer(self, step: int, body: AssistantMessage, text: str, attempt: ModelAttempt | None) -> None:
        """Adds an agent's answer to its conversation."""
        self.answer, self.has_new_summary = body, False
        counted = body.usage.total - body.usage.output_tokens
        self.counted = (len(self.messages), counted) if counted > 0 else None
        self.conversation.add_answer(step, body.content, can_continue=body.stop_reason not in _DEAD_ENDS)
        if body.stop_reason == _TOO_LONG:
            self._overflow(attempt)
        else:
            self.overflows = self.refused_tokens = 0
        has_calls = any(block["type"] == "tool_use" for block in body.content)
        self.answer_text = self.answer_text + text if self._is_text_truncated else text
        self._is_text_truncated = body.stop_reason == TRUNCATED and not has_calls

    def _failure(self, body: ModelFailure) -> None:
        attempt = self._settle()
        if body.error_class in UNUSABLE:
            self.progress = self.progress.after_answer((), is_usable=False)
        self.window_tokens = body.context_window_tokens or self.window_tokens
        if body.error_class == PROMPT_TOO_LONG and self.is_agent:
            self._overflow(attempt)
        elif self.is_refusal_of_images(body):
            self.refused_images.update(source["digest"] for source in images_in(self.messages))
        elif body.refused_tools and self.is_agent:
            self.refused_tools.update(body.refused_tools)
        else:
            self.failures.append(body)

    def is_refusal_of_images(self, failure: ModelFailure) -> bool:
        """Whether the conversation may be taken without the images that it shows: a bad image must not end a task."""
        match failure.error_class:
            case FailureClass.REQUEST_TOO_LARGE:
                is_refused = True
            case FailureClass.INVALID_REQUEST | FailureClass.NOT_FOUND:
                is_refused = is_about_images(failure.message)
            case _:
                return False
        return is_refused and any(source["digest"] not in self.refused_images for source in images_in(self.messages))

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
        self._unsent[:0] = self.conversation.summarise(body.how)
        self.must_shorten, self.has_new_summary = False, True


def fold(entries: Iterable[Entry]) -> ResumePoint:
    """Returns the resume point after all entries of a ledger, or after a prefix of them."""
    point = ResumePoint()
    for entry in entries:
        point.apply(entry)
    return point


def text_of_approval(body: WaitResolution, intent: ToolIntent) -> str:
    """Returns what the agent reads about a person's approval of its call: a change of the arguments, and the comment.

    "" for a plain approval, and for an answer that ended the call.
    """
    if not leaves_call_open(body.wait_kind, body.answer_kind, body.answer):
        return ""
    if body.edited_arguments_json:
        message = f"A person changed the arguments of {intent.tool} before it was run: {body.edited_arguments_json}"
        return f"{message}\n{body.comment}".strip()
    return f"A person allowed {intent.tool} and says: {body.comment}" if body.comment else ""
