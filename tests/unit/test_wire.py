"""Protobuf ↔ domain: what goes out comes back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain import entries as facts
from tenure.domain.budget import Budget, BudgetRequest, BudgetWarning, Prices, Rates, Tier, TokenUsage
from tenure.domain.entries import SpawnedBy, SubAgentsSpawned
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import Abandon, CallInDoubt, DidNotHappen, Happened, ResolveCall
from tenure.domain.quotas import QuotaKind, QuotaWarning
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import (
    AgentSpec,
    ControlWork,
    InDoubtPolicy,
    Limits,
    Priority,
    Source,
    SourceKind,
    TaskPolicy,
    TaskSpec,
)
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus, ProgramUsage, ToolDefinition
from tenure.domain.waits import (
    EscalationAction,
    Escalations,
    EscalationStep,
    Wait,
    WaitAnswerKind,
    WaitDeadlinePolicy,
    WaitKind,
)
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import timestamp
from tenure.wire.ledger import body_to_domain, body_to_wire, read_entries, read_entries_to_end
from tenure.wire.task import spec_to_domain, spec_to_wire

SPEC = TaskSpec(
    goal="find out\u0000",
    agent=AgentSpec("messages", "sim-hello", "be brief", (), 1000, context_window_tokens=8000),
    limits=Limits(5000, 7, 90.5),
    policy=TaskPolicy(
        on_in_doubt=InDoubtPolicy.TELL_MODEL,
        retry=RetryPolicy(0, 1.5, 3.0, 60.0),
        max_result_corrections=0,
        escalations=Escalations((EscalationStep(60.0),), (EscalationStep(2.0, EscalationAction.CLOSE_OUT),)),
    ),
    priority=Priority.HIGH,
    queue="batch",
    labels=(("a", "1"), ("b", "2")),
    source=Source(SourceKind.SCHEDULER, "nightly", "42"),
    result_schema_json='{"type": "object"}',
)
TASK_ID = "019d3c00-0000-7000-8000-000000000001"
USAGE = TokenUsage(1, 2, 3, 4)
RATES = Rates(5, 6, 7, 8)
BODIES: list[facts.Body] = [
    facts.Submitted(SPEC, "r1"),
    facts.Transition(TaskState.FAILED, "MODEL_REFUSED", "no", "partial", None, TaskState.RUNNING),
    facts.ToolsDefined((ToolDefinition("t", "does", '{"type":"object"}', EffectClass.KEYED, 1.5, 99),), ("raed_file",)),
    facts.ModelAttempt(2, "m", 10, 20, 30, summary_through_step=1),
    facts.ModelFailure(2, "RATE_LIMITED", "slow down", True, 429, 1.25, USAGE, "req_1"),
    facts.AttemptLost(1, USAGE),
    facts.AssistantMessage(1, ({"type": "text", "text": "a\u0000é"},), "end_turn", USAGE, "m", "req_2", 0.5),
    facts.ToolIntent("1.0", "toolu_1", "t", '{"n":1}'),
    facts.ToolOutcome("1.0", Outcome(OutcomeStatus.TIMED_OUT, "too slow", True, "X", 2.0, 3, "outputs/1.0.txt")),
    facts.ToolOutcome("1.1", Outcome(OutcomeStatus.SUCCEEDED, "1", usage=ProgramUsage(0.5, 0.25, 1 << 20))),
    facts.ToolOutcome("1.2", Outcome(OutcomeStatus.SUCCEEDED, "1", usage=ProgramUsage(0.5))),
    facts.Submitted(SPEC, "r3", SpawnedBy(TASK_ID, "2.0", 1), "00-trace"),
    SubAgentsSpawned("2.0", (TASK_ID,), 500, ("t",)),
    SubAgentsSpawned("2.1", (TASK_ID,), 500),
    facts.Compaction(facts.ClearedResults(3, 2, 9000, 5000)),
    facts.Compaction(facts.Summary(3, "so far")),
    facts.WaitEscalated("w7", 1, EscalationStep(60.0)),
    facts.WaitEscalated("w7", 2, EscalationStep(61.0, EscalationAction.ASSIGNEE, "lead")),
    facts.WaitEscalated("w7", 3, EscalationStep(62.0, EscalationAction.QUEUE, "urgent")),
    facts.WaitEscalated("w7", 4, EscalationStep(63.0, EscalationAction.PRIORITY, "HIGH")),
    facts.WaitEscalated("w7", 5, EscalationStep(64.5, EscalationAction.CLOSE_OUT)),
    QuotaWarning(QuotaKind.TOKENS_PER_HOUR, 850, 1000),
    BudgetWarning("MONEY_LIMIT", Budget(100, 80, 20, 1000, 900, 50, 1)),
    BudgetWarning("TOKEN_LIMIT", Budget(100, 80, 20), Budget(50, 40, 0)),
    facts.Transition(
        TaskState.WAITING_USER,
        "BUDGET_REQUESTED",
        wait=Wait(
            WaitKind.BUDGET,
            "",
            "More?",
            wait_id="w9",
            budget_request=BudgetRequest("MONEY_LIMIT", 10, 20, True, Budget(100, 80, 20, 1000, 900), 30, 40),
        ),
    ),
    facts.WaitResolution("w9", "", WaitKind.BUDGET, WaitAnswerKind.DECISION, "approve", extra_budget_nano_usd=7),
    facts.ModelAttempt(1, "m", 10, 20, 30, 0, 900, Prices((Tier(0, RATES), Tier(200_000, RATES)))),
    facts.OperatorRequest("go on", facts.GrantBudget(100, 200)),
    facts.OperatorRequest("again", facts.Requeue(100, 1, 200)),
    facts.UserMessage("more", "r2"),
    facts.ResultRejected("no\u0000", ("$: one", "$.a: two")),
    facts.Transition(TaskState.SUCCEEDED, "FINAL_ANSWER", "", "3", None, TaskState.RUNNING, result_json="3"),
    facts.CancelRequest("enough"),
    facts.Submitted(replace(SPEC, agent=AgentSpec("control"), control=ControlWork("month_end", '{"month": 10}'))),
    facts.ControlStep("count", '{"rows": 3}', duration_seconds=0.5),
    facts.ControlStep("notify", failure=facts.ControlFailure("ConnectionError", "no route", True, 2.5)),
    facts.ControlFailure("ValueError", "no such month", False),
    facts.Transition(
        TaskState.WAITING_USER,
        "ASKS",
        wait=Wait(
            WaitKind.TOOL_APPROVAL,
            "1.0",
            "May it?",
            ("allow", "deny"),
            "context",
            "T-1",
            "",
            WaitDeadlinePolicy.GO_ON,
            "pay",
            "{}",
            wait_id="w7",
        ),
    ),
    facts.WaitResolution("w7", "1.0", WaitKind.EVENT, WaitAnswerKind.PAYLOAD, '"\u0000"', "why", "{}", 500, "r3"),
    facts.Forked("018f0000-0000-7000-8000-000000000001", 12, 7),
    facts.OperatorRequest("once more", facts.Requeue(1000, 5)),
    facts.OperatorRequest("once more", facts.Requeue()),
    facts.OperatorRequest("I saw the invoice", ResolveCall("1.0", 1, Happened("paid\u0000"))),
    facts.OperatorRequest("unplugged", ResolveCall("1.0", 2, DidNotHappen(True, True))),
    facts.OperatorRequest("let it be", ResolveCall("1.1", 1, Abandon())),
    facts.Transition(TaskState.WAITING_USER, "TOOL_IN_DOUBT", calls_in_doubt=(CallInDoubt("1.0", 2),)),
    facts.OperatorRequest("superseded", facts.OperatorCloseOut(TaskState.FAILED, "see there\u0000")),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_fact_survives_the_wire(body: facts.Body) -> None:
    sent = ledger_pb2.EntryBody.FromString(body_to_wire(body).SerializeToString())
    assert body_to_domain(sent) == body


def test_every_kind_of_entry_is_mapped() -> None:
    covered = {body_to_wire(body).WhichOneof("body") for body in BODIES}
    assert covered == {field.name for field in ledger_pb2.EntryBody.DESCRIPTOR.fields}


def test_an_entry_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="does not know"):
        body_to_domain(ledger_pb2.EntryBody())


def test_absent_fields_take_the_defaults_of_the_domain() -> None:
    assert spec_to_domain(task_pb2.TaskSpec(goal="g")) == TaskSpec(goal="g")


def test_an_effective_spec_is_stable() -> None:
    assert spec_to_domain(spec_to_wire(SPEC)) == SPEC


def test_a_history_with_newer_entries_is_left_to_that_version() -> None:
    for read in (read_entries, read_entries_to_end):
        unknown = ledger_pb2.Entry(sequence=1)
        unknown.body.operator_request.resolve_call.call_id = "1.0"
        with pytest.raises(Unavailable) as refused:
            read([unknown])
        assert refused.value.reason == "NEWER_LEDGER"


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2026, 11, 29, 7, 35, 0, 123_456, timezone(timedelta(hours=-7, minutes=-30))),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    ],
)
def test_a_moment_is_the_timestamp_of_protobuf(moment: datetime) -> None:
    expected = Timestamp()
    expected.FromDatetime(moment)
    assert timestamp(moment) == expected
