"""Projects the entries of a ledger to the spans of a trace.

A trace is one root task with all its sub-agents. Its id is the id of the root, and the id of a span follows from the
task and from what the span is. So every reader of the same entries makes the same spans, however often and wherever
they are read: a crash loses none, and a takeover continues the trace.

    invoke_agent    each attempt of a task; a sub-agent's is a child of the call that spawned it
      queued …      each state in which no worker has the task, waits among them
      chat          each model attempt
      execute_tool  each tool call, from its intent to its outcome, on all its runs
      step          each step of a control function
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tenure.domain import semconv
from tenure.domain.budget import NANO_USD, BudgetWarning, Prices, TokenUsage, cost
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    CancelRequest,
    ClearedResults,
    Compaction,
    ControlFailure,
    ControlStep,
    Entry,
    Forked,
    ModelAttempt,
    ModelFailure,
    OperatorRequest,
    ResultRejected,
    SubAgentsSpawned,
    Submitted,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    UserMessage,
    WaitEscalated,
    WaitResolution,
)
from tenure.domain.in_doubt import ResolveCall, stays_open
from tenure.domain.models import vendor_of
from tenure.domain.quotas import QuotaWarning
from tenure.domain.spans import (
    AttributeValue,
    SpanEvent,
    SpanKind,
    TaskSpan,
    attempt_span_id,
    call_span_id,
    instructions_text,
    message_part,
    message_text,
    nanoseconds,
    parse_traceparent,
    present,
    span_id,
    text_part,
    trace_id,
)
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.task import TaskSpec


class TracedTask(NamedTuple):
    """The task whose entries are projected."""

    task_id: str
    root_task_id: str
    tenant: str


@dataclass(slots=True)
class _OpenSpan:
    """A span whose end has not been read yet."""

    span_id: str
    parent_span_id: str
    name: str
    started_ns: int
    attributes: dict[str, AttributeValue]
    kind: SpanKind = SpanKind.INTERNAL
    events: list[SpanEvent] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)

    def note(self, name: str, at_ns: int) -> dict[str, AttributeValue]:
        """Adds an event, and returns its attributes to be filled."""
        attributes: dict[str, AttributeValue] = {}
        self.events.append(SpanEvent(name, max(at_ns, self.started_ns), attributes))
        return attributes


TAKEOVER_REASONS: Final = frozenset(
    {
        Reason.LEASE_EXPIRED,
        Reason.WORKER_LOST,
        Reason.WORKER_STUCK,
        Reason.WORKER_DRAINED,
        Reason.WORKER_HALTED,
        Reason.WORKER_CRASHED,
        Reason.CLAIM_LOST,
        Reason.POOL_CHANGED,
        Reason.OPERATOR_TRANSFER,
    }
)
"""Why a task goes back to the queue although its worker wanted nothing: the next claim is a takeover."""

_FAILED: Final = frozenset({TaskState.FAILED, TaskState.TIMED_OUT, TaskState.COST_EXCEEDED})
_LOST: Final = "LOST"
_UNFINISHED: Final = "UNFINISHED"


class TraceProjection:
    """Makes the spans of one task. Call `apply` for its entries in order, from the first one.

    What it keeps does not grow with the ledger: the open spans and the tools' effect classes.
    """

    def __init__(self, task: TracedTask, *, with_content: bool = False) -> None:
        self.sequence = 0
        self._task = task
        self._trace_id = trace_id(task.root_task_id)
        self._with_content = with_content
        self._spec: TaskSpec | None = None
        self._submitted_parent = ""
        self._links: list[tuple[str, str]] = []
        self._forked_from = ""
        self._copied_through = 0
        self._attempt = 0
        self._root: _OpenSpan | None = None
        self._state: _OpenSpan | None = None
        self._chat: tuple[_OpenSpan, Prices | None] | None = None
        self._chat_outlives = False
        self._calls: dict[str, _OpenSpan] = {}
        self._effects: dict[str, str] = {}
        self._owner: tuple[str, int] = ("", 0)
        self._takeover_reason = ""
        self._takeovers = 0
        self._answered_step = 0
        self._ended: list[TaskSpan] = []

    def apply(self, entry: Entry, at_ns: int) -> list[TaskSpan]:
        """Takes the next entry and when it was recorded. Returns the spans that it ends, children before parents.

        An entry of a kind that this version does not know may be left out. Raises ValueError for an earlier entry.
        """
        if entry.sequence <= self.sequence:
            raise ValueError(f"entry {entry.sequence} does not follow {self.sequence}")
        self.sequence = entry.sequence
        answered_step, self._answered_step = self._answered_step, 0
        if isinstance(entry.body, Submitted):
            self._submitted(entry.body)
        if entry.sequence <= self._copied_through:
            return []  # what a fork copied is in the trace of the task that did it
        if entry.attempt != self._attempt:
            self._begin_attempt(entry, at_ns)
        if isinstance(entry.body, ControlStep):
            if entry.step != answered_step:  # else it is the result of a model call, which has its span
                self._control_step(entry, entry.body, at_ns)
        elif (handler := _HANDLERS.get(type(entry.body))) is not None:
            handler(self, entry, entry.body, at_ns)
        ended, self._ended = self._ended, []
        return ended

    def open_spans(self) -> list[TaskSpan]:
        """Returns the spans that have not ended, parents before children."""
        chat = () if self._chat is None else (self._chat[0],)
        some = (self._root, self._state, *self._calls.values(), *chat)
        return [self._span(one, None) for one in some if one is not None]

    # The span of an attempt, and what happens to the task as a whole.

    def _submitted(self, body: Submitted) -> None:
        self._spec = body.spec
        if body.spawned_by is not None:
            self._submitted_parent = call_span_id(body.spawned_by.task_id, body.spawned_by.call_id)
        if (client := parse_traceparent(body.traceparent)) is not None:
            self._links.append(client)

    def _begin_attempt(self, entry: Entry, at_ns: int) -> None:
        before = attempt_span_id(self._task.task_id, entry.attempt - 1)
        links = self._links if entry.attempt == 1 else [(self._trace_id, before)]
        self._attempt = entry.attempt
        spec = self._spec
        name = "" if spec is None else spec.agent.loop if spec.control is None else spec.control.function
        attributes: dict[str, AttributeValue] = {
            semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
            semconv.AGENT_NAME: name,
            **self._common(entry),
            semconv.ATTEMPT: entry.attempt,
        }
        if spec is not None:
            attributes |= present({semconv.REQUEST_MODEL: spec.agent.model, semconv.QUEUE: spec.queue})
            if self._with_content:
                attributes |= present({semconv.SYSTEM_INSTRUCTIONS: instructions_text(spec)})
                attributes[semconv.INPUT_MESSAGES] = message_text("user", [text_part(spec.goal)])
        self._root = _OpenSpan(
            attempt_span_id(self._task.task_id, entry.attempt),
            self._submitted_parent,
            f"{semconv.INVOKE_AGENT} {name}".strip(),
            at_ns,
            attributes,
            links=links,
        )
        self._owner, self._takeover_reason, self._takeovers = ("", 0), "", 0

    def _transition(self, entry: Entry, body: Transition, at_ns: int) -> None:
        if self._state is not None:
            self._end(self._state, at_ns)
            self._state = None
        if not stays_open(body.to_state, outlives_worker=self._chat_outlives):
            self._end_chat(at_ns, {}, _LOST)
        if body.to_state is TaskState.RUNNING:
            self._claimed(entry, at_ns)
        elif body.to_state in TERMINAL:
            self._end_attempt(body, at_ns)
        else:
            if body.from_state is TaskState.RUNNING:
                self._takeover_reason = body.reason if body.reason in TAKEOVER_REASONS else ""
            self._state = self._state_span(entry, body, at_ns)

    def _claimed(self, entry: Entry, at_ns: int) -> None:
        (from_worker, from_epoch), self._owner = self._owner, (entry.actor, entry.epoch)
        claim: dict[str, AttributeValue] = {semconv.WORKER: entry.actor, semconv.EPOCH: entry.epoch}
        if not (self._takeover_reason and from_epoch):
            self._note(semconv.EVENT_CLAIM, at_ns, claim)
            return
        claim |= {
            semconv.FROM_WORKER: from_worker,
            semconv.FROM_EPOCH: from_epoch,
            semconv.REASON: self._takeover_reason,
        }
        self._takeovers += 1
        self._takeover_reason = ""
        self._note(semconv.EVENT_TAKEOVER, at_ns, claim)
        for call in self._calls.values():
            call.note(semconv.EVENT_TAKEOVER, at_ns).update(claim)

    def _state_span(self, entry: Entry, body: Transition, at_ns: int) -> _OpenSpan:
        attributes: dict[str, AttributeValue] = {
            **self._common(entry),
            semconv.STATE: body.to_state.value,
            semconv.REASON: body.reason,
        }
        name, parent = body.to_state.value.lower(), self._root_id
        if body.wait is not None:
            name = f"wait {body.wait.kind.value.lower()}"
            attributes |= present({semconv.WAIT_KIND: body.wait.kind.value, semconv.WAIT_ID: body.wait.wait_id})
            attributes |= present({semconv.CALL_ID: body.wait.call_id})
            if body.wait.call_id in self._calls:
                parent = self._calls[body.wait.call_id].span_id
        elif body.calls_in_doubt or body.reason == Reason.TOOL_IN_DOUBT:
            name = "wait in_doubt"
        self._add_message(attributes, body.message)
        return _OpenSpan(span_id(self._task.task_id, f"entry {entry.sequence}"), parent, name, at_ns, attributes)

    def _end_attempt(self, body: Transition, at_ns: int) -> None:
        for call in self._calls.values():
            self._end(call, at_ns, _UNFINISHED)
        self._calls.clear()
        if (root := self._root) is None:
            return
        self._root = None
        root.attributes |= {
            semconv.STATE: body.to_state.value,
            semconv.REASON: body.reason,
            semconv.TAKEOVERS: self._takeovers,
        }
        if self._with_content and (result := body.result_json or body.result):
            root.attributes[semconv.OUTPUT_MESSAGES] = message_text("assistant", [text_part(result)])
        error_type = (body.reason or body.to_state.value) if body.to_state in _FAILED else ""
        if error_type:
            self._add_message(root.attributes, body.message)
        self._end(root, at_ns, error_type)

    # Model calls.

    def _model_attempt(self, entry: Entry, body: ModelAttempt, at_ns: int) -> None:
        if self._chat is not None:
            self._end_chat(at_ns, {}, _LOST)
        attributes: dict[str, AttributeValue] = {
            semconv.OPERATION_NAME: semconv.CHAT,
            semconv.PROVIDER_NAME: vendor_of(body.model)[0],
            semconv.REQUEST_MODEL: body.model,
            semconv.REQUEST_MAX_TOKENS: body.max_output_tokens,
            **self._common(entry),
            **self._of_claim(),
            semconv.STEP: entry.step,
            semconv.MODEL_ATTEMPT: body.attempt_number,
        }
        if body.summary_through_step:
            attributes[semconv.IS_SUMMARY] = True
        self._chat_outlives = body.outlives_worker
        name = f"{semconv.CHAT} {body.model}"
        identity = span_id(self._task.task_id, f"entry {entry.sequence}")
        self._chat = _OpenSpan(identity, self._root_id, name, at_ns, attributes, SpanKind.CLIENT), body.prices

    def _answer(self, entry: Entry, body: AssistantMessage, at_ns: int) -> None:
        self._answered_step = entry.step
        attributes: dict[str, AttributeValue] = {
            **present({semconv.RESPONSE_MODEL: body.model, semconv.RESPONSE_ID: body.provider_request_id}),
            semconv.RESPONSE_FINISH_REASONS: (body.stop_reason,),
            **self._usage(body.usage),
        }
        if body.usage_estimated:
            attributes[semconv.USAGE_ESTIMATED] = True
        if self._with_content:
            parts = [part for block in body.content if (part := message_part(block)) is not None]
            attributes[semconv.OUTPUT_MESSAGES] = message_text("assistant", parts, body.stop_reason)
        self._end_chat(at_ns, attributes)

    def _model_failure(self, _entry: Entry, body: ModelFailure, at_ns: int) -> None:
        if self._chat is None:
            return
        failure = self._chat[0].note(semconv.EVENT_MODEL_FAILURE, at_ns)
        failure |= {semconv.ERROR_TYPE: body.error_class, semconv.RETRYABLE: body.retryable}
        if body.status_code:
            failure[semconv.STATUS_CODE] = body.status_code
        if body.retry_after_seconds is not None:
            failure[semconv.RETRY_AFTER_SECONDS] = body.retry_after_seconds
        self._add_message(failure, body.message)
        attributes = present({semconv.RESPONSE_ID: body.provider_request_id})
        if body.status_code:
            attributes[semconv.STATUS_CODE] = body.status_code
        if body.usage.total:
            attributes |= self._usage(body.usage)
        self._end_chat(at_ns, attributes, body.error_class)

    def _attempt_lost(self, _entry: Entry, body: AttemptLost, at_ns: int) -> None:
        self._end_chat(at_ns, {**self._usage(body.usage), semconv.USAGE_ESTIMATED: True}, _LOST)

    def _usage(self, usage: TokenUsage) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            semconv.USAGE_INPUT_TOKENS: usage.total - usage.output_tokens,
            semconv.USAGE_OUTPUT_TOKENS: usage.output_tokens,
        }
        if usage.cache_read_input_tokens:
            attributes[semconv.USAGE_CACHE_READ_INPUT_TOKENS] = usage.cache_read_input_tokens
        if usage.cache_creation_input_tokens:
            attributes[semconv.USAGE_CACHE_CREATION_INPUT_TOKENS] = usage.cache_creation_input_tokens
        prices = None if self._chat is None else self._chat[1]
        if prices is not None:
            attributes[semconv.COST_USD] = cost(prices, usage) / NANO_USD
        return attributes

    def _end_chat(self, at_ns: int, attributes: dict[str, AttributeValue], error_type: str = "") -> None:
        if self._chat is None:
            return
        chat, self._chat = self._chat[0], None
        chat.attributes |= attributes
        self._end(chat, at_ns, error_type)

    # Tool calls and steps.

    def _tools_defined(self, _entry: Entry, body: ToolsDefined, _at_ns: int) -> None:
        self._effects.update((tool.name, tool.effect_class.value) for tool in body.tools)

    def _tool_intent(self, entry: Entry, body: ToolIntent, at_ns: int) -> None:
        attributes: dict[str, AttributeValue] = {
            semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
            semconv.TOOL_NAME: body.tool,
            semconv.TOOL_TYPE: "function",
            semconv.TOOL_CALL_ID: body.tool_use_id or body.call_id,
            **self._common(entry),
            **self._of_claim(),
            semconv.STEP: entry.step,
            semconv.CALL_ID: body.call_id,
            **present({semconv.EFFECT_CLASS: self._effects.get(body.tool, "")}),
        }
        if self._with_content:
            attributes[semconv.TOOL_CALL_ARGUMENTS] = body.arguments_json
        identity = call_span_id(self._task.task_id, body.call_id)
        name = f"{semconv.EXECUTE_TOOL} {body.tool}"
        self._calls[body.call_id] = _OpenSpan(identity, self._root_id, name, at_ns, attributes)

    def _tool_outcome(self, _entry: Entry, body: ToolOutcome, at_ns: int) -> None:
        call, outcome = self._calls.pop(body.call_id, None), body.outcome
        if call is None:
            return
        if outcome.call_attempt > 1:
            began_ns = at_ns - nanoseconds(outcome.duration_seconds)
            call.note(semconv.EVENT_CALL_RETRY, began_ns)[semconv.CALL_ATTEMPT] = outcome.call_attempt
        call.attributes |= {
            semconv.OUTCOME: outcome.status.value,
            semconv.CALL_ATTEMPT: outcome.call_attempt,
            **present({semconv.OUTCOME_DETAIL: outcome.detail}),
        }
        if (used := outcome.usage) is not None:
            call.attributes[semconv.SANDBOX_WALL_SECONDS] = used.wall_seconds
            if used.cpu_seconds is not None:
                call.attributes[semconv.SANDBOX_CPU_SECONDS] = used.cpu_seconds
            if used.peak_memory_bytes is not None:
                call.attributes[semconv.SANDBOX_PEAK_MEMORY_BYTES] = used.peak_memory_bytes
        if self._with_content:
            call.attributes[semconv.TOOL_CALL_RESULT] = outcome.text
        self._end(call, at_ns, (outcome.detail or outcome.status.value) if outcome.is_error else "")

    def _control_step(self, entry: Entry, body: ControlStep, at_ns: int) -> None:
        attributes: dict[str, AttributeValue] = {
            **self._common(entry),
            **self._of_claim(),
            semconv.STEP: entry.step,
        }
        began_ns = at_ns - nanoseconds(body.duration_seconds)
        if self._root is not None:
            began_ns = max(began_ns, self._root.started_ns)
        identity = span_id(self._task.task_id, f"entry {entry.sequence}")
        step = _OpenSpan(identity, self._root_id, f"step {body.name}", began_ns, attributes)
        if self._with_content and body.failure is None:
            step.attributes[semconv.STEP_RESULT] = body.result_json
        if body.failure is not None:
            self._add_message(step.attributes, body.failure.message)
        self._end(step, at_ns, "" if body.failure is None else body.failure.error_class)

    def _sub_agents(self, _entry: Entry, body: SubAgentsSpawned, at_ns: int) -> None:
        if (call := self._calls.get(body.call_id)) is not None:
            call.note(semconv.EVENT_SUB_AGENTS, at_ns)[semconv.SUB_AGENTS] = body.task_ids

    # What others did.

    def _resolution(self, entry: Entry, body: WaitResolution, at_ns: int) -> None:
        answer: dict[str, AttributeValue] = {
            semconv.WAIT_KIND: body.wait_kind.value,
            semconv.WAIT_ANSWER: body.answer_kind.value,
            semconv.ACTOR: entry.actor,
        }
        for one in (self._state, self._calls.get(body.call_id)):
            if one is not None:
                one.note(semconv.EVENT_ANSWER, at_ns).update(answer)

    def _escalated(self, _entry: Entry, body: WaitEscalated, at_ns: int) -> None:
        if self._state is not None:
            self._state.note(semconv.EVENT_ESCALATION, at_ns)[semconv.ESCALATION_STEP] = body.step_number

    def _operator(self, entry: Entry, body: OperatorRequest, at_ns: int) -> None:
        act = re.sub(r"(?<!^)(?=[A-Z])", "_", type(body.act).__name__.removeprefix("Operator")).lower()
        request: dict[str, AttributeValue] = {semconv.ACT: act, semconv.ACTOR: entry.actor}
        self._add_message(request, body.reason)
        self._note(semconv.EVENT_OPERATOR, at_ns, request)
        if isinstance(body.act, ResolveCall) and (call := self._calls.get(body.act.call_id)) is not None:
            call.note(semconv.EVENT_OPERATOR, at_ns).update(request)

    def _budget_warning(self, _entry: Entry, body: BudgetWarning, at_ns: int) -> None:
        budget, is_money = body.own or body.budget, body.limit == Reason.MONEY_LIMIT
        used = budget.used_nano_usd / NANO_USD if is_money else budget.used_tokens
        cap = budget.max_nano_usd / NANO_USD if is_money else budget.max_tokens
        if body.limit == Reason.MODEL_UNPRICED:
            self._note(semconv.EVENT_BUDGET_WARNING, at_ns, {semconv.LIMIT: body.limit})
            return
        self._note(
            semconv.EVENT_BUDGET_WARNING, at_ns, {semconv.LIMIT: body.limit, semconv.USED: used, semconv.CAP: cap}
        )

    def _quota_warning(self, _entry: Entry, body: QuotaWarning, at_ns: int) -> None:
        limit = "" if body.kind is None else body.kind.value
        warning: dict[str, AttributeValue] = {semconv.LIMIT: limit, semconv.USED: body.used, semconv.CAP: body.most}
        self._note(semconv.EVENT_QUOTA_WARNING, at_ns, warning)

    def _user_message(self, entry: Entry, _body: UserMessage, at_ns: int) -> None:
        self._note(semconv.EVENT_MESSAGE, at_ns, {semconv.ACTOR: entry.actor})

    def _cancel_request(self, entry: Entry, _body: CancelRequest, at_ns: int) -> None:
        self._note(semconv.EVENT_CANCEL, at_ns, {semconv.ACTOR: entry.actor})

    def _function_failure(self, _entry: Entry, body: ControlFailure, at_ns: int) -> None:
        failure: dict[str, AttributeValue] = {
            semconv.ERROR_TYPE: body.error_class,
            semconv.RETRYABLE: body.retryable,
        }
        self._add_message(failure, body.message)
        self._note(semconv.EVENT_FUNCTION_FAILURE, at_ns, failure)

    def _result_rejected(self, _entry: Entry, body: ResultRejected, at_ns: int) -> None:
        self._note(semconv.EVENT_RESULT_REJECTED, at_ns, {semconv.VIOLATIONS: len(body.violations)})

    def _compaction(self, _entry: Entry, body: Compaction, at_ns: int) -> None:
        how = "cleared_results" if isinstance(body.how, ClearedResults) else "summary"
        self._note(semconv.EVENT_COMPACTION, at_ns, {semconv.ACT: how})

    def _forked(self, entry: Entry, body: Forked, _at_ns: int) -> None:
        self._copied_through = entry.sequence + body.copied_entries
        if self._root is not None:
            self._root.attributes[semconv.FORKED_FROM] = body.task_id

    # Helpers.

    @property
    def _root_id(self) -> str:
        return attempt_span_id(self._task.task_id, self._attempt)

    def _common(self, entry: Entry) -> dict[str, AttributeValue]:
        return {
            semconv.CONVERSATION_ID: self._task.task_id,
            semconv.TASK_ID: self._task.task_id,
            semconv.TENANT: self._task.tenant,
            semconv.SEQUENCE: entry.sequence,
        }

    def _of_claim(self) -> dict[str, AttributeValue]:
        worker, epoch = self._owner
        return {semconv.WORKER: worker, semconv.EPOCH: epoch}

    def _note(self, name: str, at_ns: int, attributes: dict[str, AttributeValue]) -> None:
        """Adds an event to the span of the attempt. After its end there is nothing that could have it."""
        if self._root is not None:
            self._root.note(name, at_ns).update(attributes)

    def _add_message(self, attributes: dict[str, AttributeValue], message: str) -> None:
        if self._with_content and message:
            attributes[semconv.MESSAGE] = message

    def _end(self, one: _OpenSpan, at_ns: int, error_type: str = "") -> None:
        if error_type:
            one.attributes[semconv.ERROR_TYPE] = error_type
        self._ended.append(self._span(one, max(at_ns, one.started_ns), error_type))

    def _span(self, one: _OpenSpan, ended_ns: int | None, error_type: str = "") -> TaskSpan:
        return TaskSpan(
            self._trace_id,
            one.span_id,
            one.parent_span_id,
            one.name,
            one.kind,
            one.started_ns,
            ended_ns,
            self.sequence,
            dict(one.attributes),
            tuple(one.events),
            tuple(one.links),
            error_type,
        )


_HANDLERS: Final[dict[type, Callable[[TraceProjection, Entry, Any, int], None]]] = {
    Transition: TraceProjection._transition,  # noqa: SLF001  the table of this class
    ToolsDefined: TraceProjection._tools_defined,  # noqa: SLF001
    ModelAttempt: TraceProjection._model_attempt,  # noqa: SLF001
    AssistantMessage: TraceProjection._answer,  # noqa: SLF001
    ModelFailure: TraceProjection._model_failure,  # noqa: SLF001
    AttemptLost: TraceProjection._attempt_lost,  # noqa: SLF001
    ToolIntent: TraceProjection._tool_intent,  # noqa: SLF001
    ToolOutcome: TraceProjection._tool_outcome,  # noqa: SLF001
    SubAgentsSpawned: TraceProjection._sub_agents,  # noqa: SLF001
    WaitResolution: TraceProjection._resolution,  # noqa: SLF001
    WaitEscalated: TraceProjection._escalated,  # noqa: SLF001
    OperatorRequest: TraceProjection._operator,  # noqa: SLF001
    BudgetWarning: TraceProjection._budget_warning,  # noqa: SLF001
    QuotaWarning: TraceProjection._quota_warning,  # noqa: SLF001
    UserMessage: TraceProjection._user_message,  # noqa: SLF001
    CancelRequest: TraceProjection._cancel_request,  # noqa: SLF001
    ControlFailure: TraceProjection._function_failure,  # noqa: SLF001
    ResultRejected: TraceProjection._result_rejected,  # noqa: SLF001
    Compaction: TraceProjection._compaction,  # noqa: SLF001
    Forked: TraceProjection._forked,  # noqa: SLF001
}
