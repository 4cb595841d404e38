"""Explanations: for each state, from facts to lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.explain import gather_facts
from services.gateway.explanation import (
    MAX_LINES,
    CallFact,
    Facts,
    OpenModelCallFact,
    PinFact,
    StopFact,
    WorkerFact,
    explain,
    obstacle_text,
    span,
)
from tenure.domain.budget import Budget
from tenure.domain.fencing import compose_epoch
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.stops import Stop
from tenure.domain.task import Priority
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2, task_pb2, tenant_service_pb2, tool_pb2
from tenure.wire.common import duration
from tests.unit.golden_files import compare_with_golden


def refusal(*tools: str) -> ledger_pb2.Entry:
    failure = ledger_pb2.ModelFailure(error_class="TOOL_REFUSED", refused_tools=tools)
    return ledger_pb2.Entry(body=ledger_pb2.EntryBody(model_failure=failure))


def test_refused_tools_are_those_of_the_newest_attempt() -> None:
    requeued = ledger_pb2.StateTransition(
        from_state=task_pb2.TASK_STATE_FAILED, to_state=task_pb2.TASK_STATE_QUEUED, reason="REQUEUED"
    )
    again = ledger_pb2.Entry(body=ledger_pb2.EntryBody(transition=requeued))
    task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING)
    first, newest = [refusal("x"), again, refusal("a")], [refusal("b", "a")]
    facts = gather_facts(task, newest, [], [], [], 0, first=first, now=0.0)
    assert facts.refused_tools == ("a", "b")
    (line,) = [line for line in explain(replace(FACTS, refused_tools=("a", "b"))) if "not shown" in line]
    assert "because the provider refuses their definitions: a, b" in line


def test_newest_lost_claim_is_named_with_its_renewals() -> None:
    end = ledger_pb2.LeaseEnd(worker_id="w", epoch=compose_epoch(2, 4), renewal_count=7)
    end.renewal_times.add().FromSeconds(1_800_000_000)
    end.loss_time.FromSeconds(1_800_000_006)
    lost = ledger_pb2.StateTransition(reason="LEASE_EXPIRED", lease_end=end)
    opened = ledger_pb2.StateTransition(reason="OPENED")
    entries = [ledger_pb2.Entry(body=ledger_pb2.EntryBody(transition=each)) for each in (lost, opened)]
    facts = gather_facts(task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING), entries, [], [], [], 0, now=0.0)
    text = "w (epoch 2.4) renewed its lease 7 times, last at 08:00:00.0 UTC; lost at 08:00:06.0, 6.0 s later"
    assert facts.lost_lease == f"LEASE_EXPIRED: {text}"
    assert f"Its newest lost claim: LEASE_EXPIRED: {text}" in explain(replace(FACTS, lost_lease=facts.lost_lease))


FACTS = Facts(
    state=TaskState.RUNNING,
    reason="OPENED",
    message="",
    attempt=1,
    step=4,
    queue="batch",
    loop="messages",
    owner="worker-1",
    epoch=compose_epoch(1, 42),
    budget=Budget(2_000_000, 12_300, 500),
    since_move=200.0,
    since_entry=30.0,
    until_deadline=7300.0,
    lease_seconds=4.0,
)
SERVES = WorkerFact("worker-1", ("batch", "default"), ("messages",))


def explained(state: str = "RUNNING", **facts: Any) -> str:
    """The lines of these facts, after what holds of every explanation."""
    lines = explain(replace(FACTS, state=TaskState(state), **facts))
    assert 3 <= len(lines) <= MAX_LINES
    assert all(lines)
    return "\n".join(lines)


STOPPED = StopFact(Stop(tenant="acme", reason="wrong bills", stopped_by="user/ann"), 720.0)


def explanations() -> dict[str, str]:
    """The explanation of each kind of task: its state, what it waits for, and who could help."""
    by_state = {
        "running with calls": explained(
            calls=(CallFact("4.0", "execute_python", "STARTED"), CallFact("4.1", "search")), refusals=2
        ),
        "running with a call that is being settled": explained(calls=(CallFact("4.0", "pay", "STARTED", 42.0),)),
        "running with a model call that has not ended": explained(model_call=OpenModelCallFact(5, 1, 200.0)),
        "running with a model call that waits": explained(model_call=OpenModelCallFact(5, 1, 200.0, waits=True)),
        "running after a failed model call": explained(
            failed_call="CONNECTION: calls of several tasks to the endpoint openai failed, so no call is sent to it"
        ),
        "running without a claim": explained(lease_seconds=0.0),
        "queued after a loss": explained("QUEUED", reason="WORKER_LOST", message="worker-1 is gone"),
        "queued for its first step": explained("QUEUED", reason="SUBMITTED", step=0),
        "queued until its start": explained("QUEUED", until_start=7500.0, until_deadline=90_000.0),
        "queued in the line of its source": explained("QUEUED", reason="SUBMITTED", step=0, at_most=1),
        "queued with a queue timeout": explained("QUEUED", until_too_long=30.0),
        "queued past its deadline, with an unknown reason": explained(
            "QUEUED", reason="SOMETHING_NEW", until_deadline=-5.0
        ),
        "waiting for its retry": explained("RETRY_SCHEDULED", reason="MODEL_RATE_LIMITED", until_retry=40.0),
        "waiting for a valid account": explained("RETRY_SCHEDULED", reason="MODEL_ACCOUNT_REFUSED", until_retry=40.0),
        "waiting for a person": explained(
            "WAITING_USER", reason="ASKED", waits_for="an answer to: may I?", until_answer=3600.0
        ),
        "waiting for a person past its deadline": explained("WAITING_USER", until_deadline=-100.0, since_move=3700.0),
        "waiting for an event": explained(
            "WAITING_EXTERNAL", reason="ASKED", waits_for="event x", until_deadline=100.0
        ),
        "calls in doubt": explained(
            "WAITING_USER",
            reason="TOOL_IN_DOUBT",
            message="it is not known whether these calls happened: 4.0 (pay)",
            calls=(CallFact("4.0", "pay", "IN_DOUBT"),),
        ),
        "without answers of the services": explained(
            lease_seconds=None, workers=None, tools_answered=False, calls=(CallFact("4.0", "t"),), refusals=None
        ),
    }
    ended = {f"ended as {state}": explained(state, reason="MODEL_UNAVAILABLE", message="x") for state in TERMINAL}
    ending = {
        f"{state} with a pending ending": explained(state, is_to_end=True)
        for state in ("QUEUED", "RUNNING", "WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED")
    }
    return by_state | dict(sorted(ended.items())) | ending | by_workers() | by_refusal() | by_budget()


def by_workers() -> dict[str, str]:
    """A queued task, by the workers that are attached."""
    other_tenant, cap = replace(SERVES, takes_tenant=False), "20 of 20 running tasks"
    of_high = replace(SERVES, priorities=frozenset({Priority.HIGH, Priority.NORMAL}))
    control, loop = "control.month_end", "control.month_end@0123456789abcdef"
    pin = PinFact("month_end@7", needs_build=True, builds=("b1", "b2"))
    newer = replace(SERVES, loops=(control, "control.month_end@fedcba9876543210"), build="b3")
    fitting = replace(newer, loops=(loop,), build="b2")
    attached: dict[str, dict[str, Any]] = {
        "served": {"workers": (SERVES,)},
        "no worker": {"workers": ()},
        "another queue": {"workers": (replace(SERVES, queues=("default",)),)},
        "another loop": {"workers": (replace(SERVES, loops=("control",)),)},
        "draining workers": {"workers": (replace(SERVES, draining=True),)},
        "unknown workers": {"workers": None},
        "no worker of its priority": {"workers": (of_high,), "priority": Priority.LOW},
        "a worker of its priority": {
            "workers": (of_high, replace(SERVES, worker_id="worker-2")),
            "priority": Priority.LOW,
        },
        "its tenant at its quota of running tasks": {"workers": (SERVES,), "caps": (cap,), "running_cap": cap},
        "its tenant at a quota of no running tasks": {
            "workers": (SERVES,),
            "caps": ("0 of 0 running tasks",),
            "running_cap": "0 of 0 running tasks",
            "starts_none": True,
        },
        "a stop of its tenant": {"workers": (SERVES,), "reason": "STOPPED", "stop": STOPPED},
        "no pool of the tenant": {"workers": (other_tenant,)},
        "one pool of the tenant": {"workers": (other_tenant, replace(SERVES, worker_id="worker-2"))},
        "no worker of the function": {"loop": control, "workers": (SERVES,)},
        "a worker of the function": {"loop": control, "workers": (replace(SERVES, loops=(control,)),)},
        "no worker of the build": {"loop": loop, "workers": (newer, SERVES), "pin": pin},
        "no worker of the pinned function": {"loop": loop, "workers": (SERVES,), "pin": pin},
        "a worker of the build": {"loop": loop, "workers": (newer, fitting), "pin": pin},
        "an unknown build": {"loop": loop, "workers": (), "pin": replace(pin, builds=None)},
    }
    return {f"queued, {title}": explained("QUEUED", **facts) for title, facts in attached.items()}


def by_refusal() -> dict[str, str]:
    """A plain requeue of these is refused, or ends the same way."""
    classes = ("NOT_FOUND", "INVALID_REQUEST", "")
    rejected = {
        f"rejected by the provider: {name or 'no class'}": explained(
            "FAILED", reason="MODEL_REJECTED", message=f"{name}: model: x", error_class=name
        )
        for name in classes
    }
    ends = (
        ("COST_EXCEEDED", "TOKEN_LIMIT"),
        ("COST_EXCEEDED", "STEP_LIMIT"),
        ("FAILED", "MODEL_UNPRICED"),
        ("FAILED", "NO_PROGRESS"),
    )
    return rejected | {f"{state}, {reason}": explained(state, reason=reason) for state, reason in ends}


def by_budget() -> dict[str, str]:
    budget = replace(FACTS.budget, max_nano_usd=10**10, used_nano_usd=19_164_750, reserved_nano_usd=223_262_500)
    return {
        "running with a cap in money": explained(budget=budget),
        "queued for budget": explained("QUEUED", reason="BUDGET_BUSY", budget=budget),
    }


def test_explanations_are_the_golden_file() -> None:
    compare_with_golden("explanations.txt", explanations())


def test_a_providers_refusal_is_explained_by_the_last_move() -> None:
    moved = ledger_pb2.StateTransition(to_state=task_pb2.TASK_STATE_FAILED, error_class="NOT_FOUND")
    entry = ledger_pb2.Entry(sequence=3, body=ledger_pb2.EntryBody(transition=moved))
    task = task_pb2.Task(state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED")
    assert gather_facts(task, [entry], [], [], [], 0, now=0.0).error_class == "NOT_FOUND"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (3.2, "3 s"), (200, "3 min"), (7500, "2 h 5 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_failed_model_call_is_one_that_is_not_made_again_yet() -> None:
    task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING)
    failure = ledger_pb2.ModelFailure(error_class="OVERLOADED", message="busy")
    message = ledger_pb2.EntryBody(user_message=ledger_pb2.UserMessage(text="and"))
    bodies = [ledger_pb2.EntryBody(model_failure=failure), message]
    entries = [ledger_pb2.Entry(body=body) for body in bodies]
    assert gather_facts(task, entries, [], [], [], 0, now=0.0).failed_call == "OVERLOADED: busy"
    again = ledger_pb2.Entry(body=ledger_pb2.EntryBody(model_attempt=ledger_pb2.ModelAttempt(attempt_number=2)))
    assert not gather_facts(task, [*entries, again], [], [], [], 0, now=0.0).failed_call


def test_facts_are_gathered_from_the_services() -> None:
    task = task_pb2.Task(state=task_pb2.TASK_STATE_RUNNING, owner="w", epoch=7, step=2)
    task.deadline_time.FromSeconds(1100)
    intents = [ledger_pb2.ToolIntent(call_id=f"2.{index}", tool="t") for index in range(2)]
    bodies = [
        ledger_pb2.EntryBody(transition=ledger_pb2.StateTransition(to_state=task_pb2.TASK_STATE_RUNNING)),
        *(ledger_pb2.EntryBody(tool_intent=intent) for intent in intents),
        ledger_pb2.EntryBody(tool_outcome=ledger_pb2.ToolOutcome(call_id="2.0")),
    ]
    entries = [ledger_pb2.Entry(sequence=number, body=body) for number, body in enumerate(bodies, 1)]
    for number, entry in enumerate(entries):
        entry.record_time.FromSeconds(990 + number)
    claims = [
        admin_pb.Claim(epoch=7, remaining=duration(4)),
        admin_pb.Claim(epoch=6, remaining=duration(9)),
    ]
    started = tool_pb2.CallRecord(call_id="2.1", state=tool_pb2.CALL_STATE_STARTED)
    facts = gather_facts(task, entries, claims, [], [tool_pb2.CallTrail(record=started)], 0, now=1000.0)
    assert (facts.since_move, facts.since_entry, facts.until_deadline) == (10.0, 7.0, 100.0)
    assert (facts.lease_seconds, facts.workers) == (4.0, ())
    assert facts.calls == (CallFact("2.1", "t", "STARTED"),)
    settled = tool_pb2.CallTrail(record=started)
    settled.settling_time.FromSeconds(970)
    facts = gather_facts(task, entries, claims, [], [settled], 0, now=1000.0)
    assert facts.calls == (CallFact("2.1", "t", "STARTED", 30.0),)


def test_next_escalation_step_has_a_relative_time() -> None:
    wait = task_pb2.Wait(kind=task_pb2.WAIT_KIND_QUESTION, question="Which?", assignee="lead")
    wait.next_step.after.FromSeconds(7200)
    wait.next_step.priority = task_pb2.PRIORITY_HIGH
    wait.next_step_time.FromSeconds(1600)
    wait.deadline_time.FromSeconds(9000)
    task = task_pb2.Task(state=task_pb2.TASK_STATE_WAITING_USER, wait=wait)
    facts = gather_facts(task, [], [], [], [], 0, now=1000.0)
    assert facts.waits_for == "an answer to: Which?, assigned to lead, next step (priority) in 10 min"


def test_a_queue_timeout_counts_from_the_move_or_the_start() -> None:
    task = task_pb2.Task(state=task_pb2.TASK_STATE_QUEUED, attempt=1)
    task.spec.policy.timeouts.queued.after.FromSeconds(60)
    moved = ledger_pb2.Entry(
        body=ledger_pb2.EntryBody(transition=ledger_pb2.StateTransition(to_state=task_pb2.TASK_STATE_QUEUED))
    )
    moved.record_time.FromSeconds(1000)
    for start, now, until_start, until_too_long in ((0, 1020.0, None, 40.0), (1100, 1020.0, 80.0, 140.0)):
        task.spec.start_time.FromSeconds(start)
        facts = gather_facts(task, [moved], [], [], [], 0, now=now)
        assert (facts.until_start, facts.until_too_long) == (until_start, until_too_long)


def test_services_report_priorities_and_the_running_quota() -> None:
    low = task_pb2.Task(state=task_pb2.TASK_STATE_QUEUED, spec=task_pb2.TaskSpec(priority=task_pb2.PRIORITY_LOW))
    of_high = admin_pb.Worker(worker_id="w", priorities=[task_pb2.PRIORITY_HIGH])
    use = tenant_service_pb2.QuotaUse(
        quota=tenant_service_pb2.Quota(kind=tenant_service_pb2.QUOTA_KIND_RUNNING_TASKS, most=2), used=2
    )
    facts = gather_facts(low, [], [], [of_high], [], 0, [use], now=0.0)
    assert facts.workers is not None
    assert (facts.priority, facts.workers[0].priorities) == (Priority.LOW, frozenset({Priority.HIGH}))
    assert (facts.running_cap, facts.starts_none) == ("2 of 2 running tasks", False)
    use.quota.most = use.used = 0
    assert gather_facts(low, [], [], [], [], 0, [use], now=0.0).starts_none
    low.spec.ClearField("priority")
    assert gather_facts(low, [], [], [], [], 0, now=0.0).priority is Priority.NORMAL


def test_only_a_queued_task_has_an_obstacle() -> None:
    queued = replace(FACTS, state=TaskState.QUEUED, loop="control.nosuch", workers=(SERVES,))
    assert "No worker serves queue batch and the agent or function nosuch" in obstacle_text(queued)
    fitting = replace(SERVES, loops=("control.nosuch",))
    for other in ({"workers": (fitting,)}, {"workers": None}, {"state": TaskState.RUNNING}):
        assert obstacle_text(replace(queued, **other)) == ""
