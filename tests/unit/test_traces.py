"""Laws of the projection of a ledger to the spans of its trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import entries as e
from tenure.domain import semconv
from tenure.domain.budget import Budget, BudgetWarning, Prices, Rates, TokenUsage
from tenure.domain.in_doubt import ResolveCall
from tenure.domain.spans import (
    TaskSpan,
    attempt_span_id,
    attempt_traceparent,
    call_span_id,
    call_traceparent,
    parse_traceparent,
    span_id,
    trace_id,
)
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import AgentSpec, ControlWork, TaskSpec
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus, ProgramUsage, ToolDefinition
from tenure.domain.traces import TracedTask, TraceProjection
from tenure.domain.waits import Wait, WaitAnswerKind, WaitKind

TASK_ID: Final = "01a2025d-5126-7000-8000-000000000001"
ROOT_ID: Final = "01a2025d-5126-7000-8000-0000000000aa"
TASK: Final = TracedTask(TASK_ID, TASK_ID, "acme")
SECOND: Final = 10**9
SPEC: Final = TaskSpec(goal="the goal", agent=AgentSpec(model="sim-a", system="be kind"))
USAGE: Final = TokenUsage(10, 5, 2, 3)
RUNNING, QUEUED = TaskState.RUNNING, TaskState.QUEUED
PRICES: Final = Prices.flat(Rates(10**9, 2 * 10**9, 10**9, 10**9))
Ledger = list[tuple[e.Entry, int]]


class Writer:
    """Writes a ledger, one second after the other."""

    def __init__(self, spec: TaskSpec = SPEC, **submitted: Any) -> None:
        self.ledger: Ledger = []
        self.attempt, self.epoch, self.worker, self.step = 1, 0, "", 0
        self.state = QUEUED
        self.write(e.Submitted(spec, **submitted))
        self.write(e.Transition(QUEUED, Reason.SUBMITTED))

    def write(self, body: e.Body, *, actor: str = "", seconds: float = 1.0) -> Writer:
        at_ns = (self.ledger[-1][1] if self.ledger else 1000 * SECOND) + int(seconds * SECOND)
        entry = e.Entry(
            len(self.ledger) + 1, self.step, body, self.epoch, "claim" if self.epoch else "", self.attempt, actor
        )
        self.ledger.append((entry, at_ns))
        return self

    def claim(self, worker: str) -> Writer:
        self.epoch, self.worker = self.epoch + 1, worker
        return self.move(RUNNING, Reason.OPENED, actor=worker)

    def move(self, state: TaskState, reason: str, *, actor: str = "", **fields: Any) -> Writer:
        before, self.state = self.state, state
        return self.write(e.Transition(state, reason, from_state=before, **fields), actor=actor)

    def ask(self, attempt: int = 1, model: str = "sim-a", *, outlives: bool = False) -> Writer:
        return self.write(e.ModelAttempt(attempt, model, 20, 30, 50, prices=PRICES, outlives_worker=outlives))

    def answer(self, attempt: int = 1, text: str = "the answer") -> Writer:
        content = (
            {"type": "text", "text": text},
            {"type": "tool_use", "id": "x", "name": "mail", "input": {"to": "a"}},
        )
        return self.write(e.AssistantMessage(attempt, content, "end_turn", USAGE, "sim-a-2", "req-1"))

    def call(self, call_id: str, tool: str = "mail") -> Writer:
        return self.write(e.ToolIntent(call_id, f"use-{call_id}", tool, '{"to": "somebody"}'))

    def outcome(self, call_id: str, status: OutcomeStatus = OutcomeStatus.SUCCEEDED, **fields: Any) -> Writer:
        return self.write(e.ToolOutcome(call_id, Outcome(status, "the content", **fields)))

    def spans(self, task: TracedTask = TASK, *, with_content: bool = False) -> list[TaskSpan]:
        return project(task, self.ledger, with_content=with_content)


def project(task: TracedTask, entries: Ledger, *, with_content: bool = False) -> list[TaskSpan]:
    """All spans of a ledger, ended ones in the order of their ends, then open ones."""
    projection = TraceProjection(task, with_content=with_content)
    ended = [span for entry, at_ns in entries for span in projection.apply(entry, at_ns)]
    return [*ended, *projection.open_spans()]


def one(spans: Sequence[TaskSpan], name: str) -> TaskSpan:
    [span] = [span for span in spans if span.name == name]
    return span


def all_attributes(span: TaskSpan) -> list[Any]:
    return [span.attributes, *(event.attributes for event in span.events)]


def events(span: TaskSpan) -> list[str]:
    return [event.name for event in span.events]


def simple() -> Writer:
    writer = Writer().claim("worker-1")
    writer.write(e.ToolsDefined((ToolDefinition("mail", "", "{}", EffectClass.KEYED),)))
    writer.step = 1
    writer.ask().answer().call("1.0").outcome("1.0", call_attempt=2, usage=ProgramUsage(1.5, 0.5, 1000))
    return writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, result="the result")


def test_ids_follow_from_the_names_of_the_ledger() -> None:
    assert trace_id(TASK_ID) == UUID(TASK_ID).hex
    assert span_id(TASK_ID, "call 1.0") == call_span_id(TASK_ID, "1.0") == "5a15c63a5b22a4d0"
    assert call_span_id(TASK_ID, "1.0") != call_span_id(TASK_ID, "1.1") != call_span_id(ROOT_ID, "1.1")
    assert attempt_span_id(TASK_ID, 1) != attempt_span_id(TASK_ID, 2)
    assert parse_traceparent(call_traceparent(ROOT_ID, TASK_ID, "1.0")) == (
        trace_id(ROOT_ID),
        call_span_id(TASK_ID, "1.0"),
    )
    assert parse_traceparent(attempt_traceparent(ROOT_ID, TASK_ID, 3)) is not None


@pytest.mark.parametrize(
    "header", ["", "garbage", f"00-{'0' * 32}-{'1' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-01"]
)
def test_invalid_traceparent_is_ignored(header: str) -> None:
    assert parse_traceparent(header) is None


def test_a_task_is_one_trace_of_its_calls() -> None:
    spans = simple().spans()
    assert [span.name for span in spans] == ["queued", "chat sim-a", "execute_tool mail", "invoke_agent messages"]
    queued, chat, call, agent = spans
    assert {span.trace_id for span in spans} == {trace_id(TASK_ID)}
    assert {span.parent_span_id for span in (queued, chat, call)} == {agent.span_id} == {attempt_span_id(TASK_ID, 1)}
    assert agent.parent_span_id == ""
    assert call.span_id == call_span_id(TASK_ID, "1.0")
    assert agent.attributes[semconv.STATE] == "SUCCEEDED"
    assert (chat.attributes[semconv.USAGE_INPUT_TOKENS], chat.attributes[semconv.USAGE_OUTPUT_TOKENS]) == (15, 5)
    assert chat.attributes[semconv.USAGE_CACHE_READ_INPUT_TOKENS] == 3
    assert chat.attributes[semconv.COST_USD] == pytest.approx(25e-6)
    assert chat.attributes[semconv.RESPONSE_FINISH_REASONS] == ("end_turn",)
    assert chat.attributes[semconv.WORKER] == "worker-1"
    assert call.attributes[semconv.EFFECT_CLASS] == "KEYED"
    assert call.attributes[semconv.CALL_ATTEMPT] == 2
    assert events(call) == [semconv.EVENT_CALL_RETRY]
    assert call.attributes[semconv.SANDBOX_CPU_SECONDS] == 0.5
    assert [span.error_type for span in spans] == [""] * 4


def test_a_takeover_continues_the_trace() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0")
    writer.move(QUEUED, Reason.WORKER_LOST).claim("worker-2").outcome("1.0")
    writer.step = 2
    writer.ask().write(e.AttemptLost(1, USAGE)).move(QUEUED, Reason.LEASE_EXPIRED).claim("worker-3")
    spans = writer.ask(2).answer(2).move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER).spans()
    assert len({span.trace_id for span in spans}) == 1
    agent, call = one(spans, "invoke_agent messages"), one(spans, "execute_tool mail")
    assert events(agent) == [semconv.EVENT_CLAIM, semconv.EVENT_TAKEOVER, semconv.EVENT_TAKEOVER]
    assert agent.events[1].attributes == {
        semconv.WORKER: "worker-2",
        semconv.EPOCH: 2,
        semconv.FROM_WORKER: "worker-1",
        semconv.FROM_EPOCH: 1,
        semconv.REASON: "WORKER_LOST",
    }
    assert agent.attributes[semconv.TAKEOVERS] == 2
    assert events(call) == [semconv.EVENT_TAKEOVER]
    assert [span.error_type for span in spans if span.name.startswith("chat")] == ["", "LOST", ""]


def test_a_call_that_is_joined_is_one_span_over_the_takeover() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask(outlives=True).move(QUEUED, Reason.WORKER_LOST).claim("worker-2").answer()
    spans = writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, result="the result").spans()
    chat = one(spans, "chat sim-a")
    assert chat.attributes[semconv.USAGE_OUTPUT_TOKENS] == USAGE.output_tokens
    assert semconv.ERROR_TYPE not in chat.attributes
    assert chat.ended_ns == chat.started_ns + 3 * SECOND


def test_claim_after_a_wait_is_not_a_takeover() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0", "ask_user")
    wait = Wait(WaitKind.QUESTION, "1.0", question="who?", wait_id="w")
    writer.move(TaskState.WAITING_USER, Reason.ANSWER_REQUESTED, wait=wait)
    writer.write(e.WaitResolution("w", "1.0", WaitKind.QUESTION, WaitAnswerKind.REPLY, "me"), actor="alice")
    writer.outcome("1.0").move(QUEUED, Reason.WAIT_RESOLVED).claim("worker-2")
    spans = writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER).spans()
    wait_span, call = one(spans, "wait question"), one(spans, "execute_tool ask_user")
    assert wait_span.parent_span_id == call.span_id
    assert wait_span.attributes[semconv.WAIT_ID] == "w"
    assert events(wait_span) == events(call) == [semconv.EVENT_ANSWER]
    assert call.events[0].attributes[semconv.ACTOR] == "alice"
    assert events(one(spans, "invoke_agent messages")) == [semconv.EVENT_CLAIM] * 2


def test_a_sub_agent_is_below_the_call_that_spawned_it() -> None:
    writer = Writer(spawned_by=e.SpawnedBy(ROOT_ID, "4.1", 0)).claim("worker-1")
    [*_, agent] = writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER).spans(TracedTask(TASK_ID, ROOT_ID, "acme"))
    assert (agent.trace_id, agent.parent_span_id) == (trace_id(ROOT_ID), call_span_id(ROOT_ID, "4.1"))


def test_the_trace_links_to_the_client_that_submitted() -> None:
    header = f"00-{'a' * 32}-{'b' * 16}-01"
    writer = Writer(traceparent=header).move(TaskState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert one(writer.spans(), "invoke_agent messages").links == (("a" * 32, "b" * 16),)
    assert one(Writer(traceparent="x").spans(), "invoke_agent messages").links == ()


def test_a_requeue_is_a_span_of_its_own_linked_to_the_first() -> None:
    writer = Writer().claim("worker-1").move(TaskState.FAILED, Reason.MODEL_REJECTED, message="secret")
    writer.attempt = 2
    writer.write(e.OperatorRequest("try again", e.Requeue()), actor="operator")
    writer.move(QUEUED, Reason.OPERATOR_REQUEUE).claim("worker-1").move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER)
    first, second = (span for span in writer.spans() if span.name == "invoke_agent messages")
    assert (first.error_type, second.error_type) == ("MODEL_REJECTED", "")
    assert second.links == ((first.trace_id, first.span_id),)
    assert events(second) == [semconv.EVENT_OPERATOR, semconv.EVENT_CLAIM]
    assert second.events[0].attributes[semconv.ACT] == "requeue"


def test_failures_and_warnings_are_events() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().write(e.ModelFailure(1, "RATE_LIMITED", "secret", retryable=True, status_code=429))
    budget = Budget(100, 80, 0)
    writer.write(BudgetWarning(Reason.TOKEN_LIMIT, budget)).ask(2).answer(2).call("1.0")
    writer.write(e.OperatorRequest("secret", ResolveCall("1.0", 1, "HAPPENED")), actor="operator")  # type: ignore[arg-type]
    spans = writer.outcome("1.0", OutcomeStatus.TIMED_OUT).move(TaskState.COST_EXCEEDED, Reason.TOKEN_LIMIT).spans()
    failed = next(span for span in spans if span.error_type == "RATE_LIMITED")
    assert failed.attributes[semconv.STATUS_CODE] == failed.events[0].attributes[semconv.STATUS_CODE] == 429
    agent = one(spans, "invoke_agent messages")
    warning = next(event for event in agent.events if event.name == semconv.EVENT_BUDGET_WARNING)
    assert warning.attributes == {semconv.LIMIT: "TOKEN_LIMIT", semconv.USED: 80, semconv.CAP: 100}
    assert events(one(spans, "execute_tool mail")) == [semconv.EVENT_OPERATOR]
    assert (one(spans, "execute_tool mail").error_type, agent.error_type) == ("TIMED_OUT", "TOKEN_LIMIT")


def test_copied_entries_have_no_spans() -> None:
    writer = Writer()
    writer.ledger.pop()
    writer.write(e.Forked(ROOT_ID, 9, 4))
    writer.ask().answer().call("1.0").outcome("1.0").move(QUEUED, Reason.FORKED).claim("worker-1")
    spans = writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER).spans()
    assert [span.name for span in spans] == ["queued", "invoke_agent messages"]
    assert spans[1].attributes[semconv.FORKED_FROM] == ROOT_ID


def test_a_function_has_its_steps_and_model_calls_once() -> None:
    writer = Writer(TaskSpec("", control=ControlWork("research"))).claim("worker-1")
    writer.step = 1
    writer.write(e.ControlStep("fetch", '"secret"', duration_seconds=0.5))
    writer.step = 2
    writer.ask().answer().write(e.ControlStep("summarise", '"x"', duration_seconds=0.5))
    writer.step = 3
    writer.write(e.ControlStep("bad", failure=e.ControlFailure("ValueError", "secret", retryable=False)))
    spans = writer.move(TaskState.SUCCEEDED, Reason.FUNCTION_RETURNED).spans()
    assert [span.name for span in spans] == ["queued", "step fetch", "chat sim-a", "step bad", "invoke_agent research"]
    assert (spans[1].ended_ns or 0) - spans[1].started_ns == SECOND // 2
    assert spans[3].error_type == "ValueError"


def test_spans_that_have_not_ended_are_shown() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0").ask(2)
    open_names = [span.name for span in writer.spans() if span.ended_ns is None]
    assert open_names == ["invoke_agent messages", "execute_tool mail", "chat sim-a"]


TEXTS: Final = ("the goal", "be kind", "the answer", "somebody", "the content", "the result", "secret")


def test_content_is_left_out_by_default() -> None:
    plain, full = repr(simple().spans()), repr(simple().spans(with_content=True))
    assert [text for text in TEXTS if text in plain] == []
    assert [text for text in TEXTS if text in full] == [text for text in TEXTS if text != "secret"]
    chat = one(simple().spans(with_content=True), "chat sim-a")
    [message] = json.loads(str(chat.attributes[semconv.OUTPUT_MESSAGES]))
    assert message["parts"][0] == {"type": "text", "content": "the answer"}
    assert message["parts"][1] == {"type": "tool_call", "id": "x", "name": "mail", "arguments": {"to": "a"}}


# Any history, cut anywhere.

MOVES: Final = ("ask", "fail", "lose", "call", "end call", "step", "message", "wait")


@st.composite
def histories(draw: st.DrawFn) -> Ledger:  # noqa: C901 - one case for each move
    """A history of a task whose worker dies now and then."""
    writer, open_calls, calls = Writer().claim("worker-1"), [], 0
    for move in draw(st.lists(st.sampled_from(MOVES), max_size=30)):
        writer.step += 1
        match move:
            case "ask":
                writer.ask().answer()
            case "fail":
                writer.ask().write(e.ModelFailure(1, "OVERLOADED", "secret", retryable=True))
            case "lose":
                writer.ask().write(e.AttemptLost(1, USAGE)).move(QUEUED, Reason.WORKER_LOST).claim(f"w-{writer.step}")
            case "call":
                calls += 1
                open_calls.append(f"{writer.step}.{calls}")
                writer.call(open_calls[-1])
            case "end call" if open_calls:
                writer.outcome(open_calls.pop(draw(st.integers(0, len(open_calls) - 1))))
            case "step":
                writer.write(e.ControlStep("x", "1"))
            case "message":
                writer.write(e.UserMessage("secret"), actor="alice")
            case "wait":
                wait = Wait(WaitKind.BUDGET, "", wait_id="w")
                writer.move(TaskState.WAITING_USER, Reason.BUDGET_REQUESTED, wait=wait)
                writer.move(QUEUED, Reason.WAIT_RESOLVED).claim("worker-1")
    for call_id in open_calls:
        writer.outcome(call_id, OutcomeStatus.NOT_RUN)
    return writer.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER).ledger


@given(histories(), st.data())
def test_spans_are_equal_across_any_cut(ledger: Ledger, data: st.DataObject) -> None:
    whole = project(TASK, ledger)
    cut = data.draw(st.integers(0, len(ledger)))
    first = TraceProjection(TASK)
    before = [span for entry, at_ns in ledger[:cut] for span in first.apply(entry, at_ns)]
    second = TraceProjection(TASK)  # of the process that goes on after a crash: it reads from the beginning again
    after = [span for entry, at_ns in ledger for span in second.apply(entry, at_ns) if span.end_sequence > cut]
    assert [*before, *after] == whole


@given(histories())
def test_every_call_of_a_history_has_one_span(ledger: Ledger) -> None:
    spans = project(TASK, ledger)
    bodies = [entry.body for entry, _ in ledger]
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.trace_id for span in spans} == {trace_id(TASK_ID)}
    assert all(span.ended_ns is not None and span.started_ns <= span.ended_ns for span in spans)
    chats = [span for span in spans if span.attributes.get(semconv.OPERATION_NAME) == semconv.CHAT]
    assert len(chats) == sum(isinstance(body, e.ModelAttempt) for body in bodies)
    calls = {span.span_id for span in spans if span.name == "execute_tool mail"}
    assert calls == {call_span_id(TASK_ID, body.call_id) for body in bodies if isinstance(body, e.ToolIntent)}
    names = {name for span in spans for attributes in all_attributes(span) for name in attributes}
    assert names <= semconv.ATTRIBUTES.keys()
    assert {event.name for span in spans for event in span.events} <= semconv.EVENTS.keys()
    assert "secret" not in repr(spans)
    ends = {span.span_id: span.ended_ns for span in spans}
    assert all(span.ended_ns <= ends[span.parent_span_id] for span in spans if span.parent_span_id)  # type: ignore[operator]
