"""Explanations: for each state, from facts to lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.explain import gather_facts
from services.gateway.explanation import MAX_LINES, CallFact, Facts, PinFact, WorkerFact, explain, span
from tenure.domain.budget import Budget
from tenure.domain.fencing import compose_epoch
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import coordinator_service_pb2, ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration

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


def test_a_running_task_is_explained_with_owner_and_calls() -> None:
    text = explained(calls=(CallFact("4.0", "execute_python", "STARTED"), CallFact("4.1", "search")), refusals=2)
    assert text.splitlines() == [
        "RUNNING on worker-1 for 3 min",
        "Its newest entry is 30 s old (step 4); its lease expires in 4 s without a renewal",
        "Its deadline is in 2 h 1 min",
        "Calls without an outcome: 4.0 execute_python (STARTED), 4.1 search (not begun)",
        "Budget of its task tree: 12,300 of 2,000,000 tokens used",
        "Refused writes of stale workers: 2 (tenure tasks refusals lists them)",
        "It needs: its worker to continue; tenure admin transfer moves it to another, tenure cancel ends it",
    ]


def test_a_task_without_a_step_names_none() -> None:
    assert explained("QUEUED", reason="SUBMITTED", step=0).startswith("QUEUED for 3 min, attempt 1: it was submitted")


def test_a_running_task_without_a_claim_is_about_to_be_queued() -> None:
    assert "its claim is lost: the ledger will queue it again" in explained(lease_seconds=0.0)


def test_unserved_control_work_is_explained_with_its_function() -> None:
    says = explained("QUEUED", loop="control.month_end", workers=(SERVES,))
    assert "No worker serves queue batch and the agent or function month_end; 1 other worker is attached" in says
    assert "a new worker that serves queue batch and the agent or function month_end: start one" in says
    here = replace(SERVES, loops=("control.month_end",))
    assert "and the agent or function month_end: worker-1" in explained(
        "QUEUED", loop="control.month_end", workers=(here,)
    )


def test_a_task_without_its_build_says_which_there_are() -> None:
    pin = PinFact("month_end@7", needs_build=True, builds=("b1", "b2"))
    loop = "control.month_end@0123456789abcdef"
    newer = replace(SERVES, loops=("control.month_end", "control.month_end@fedcba9876543210"), build="b3")
    says = explained("QUEUED", loop=loop, workers=(newer, SERVES), pin=pin)
    assert "pinned to month_end@7, which needs the build b1 or b2: no attached worker has it" in says
    assert "the workers with the agent or function month_end have: b3" in says
    assert "It needs: a worker of the build b1 or b2 that serves queue batch: start one" in says
    assert "; no worker has the agent or function month_end" in explained(
        "QUEUED", loop=loop, workers=(SERVES,), pin=pin
    )
    here = replace(newer, loops=(loop,), build="b2")
    says = explained("QUEUED", loop=loop, workers=(newer, here), pin=pin)
    assert "Workers that serve queue batch and the agent or function month_end as month_end@7: worker-1" in says
    away = replace(pin, builds=None)
    assert "a build that is unknown" in explained("QUEUED", loop=loop, workers=(), pin=away)


def test_a_tenant_without_a_pool_is_the_reason_of_the_wait() -> None:
    says = explained("QUEUED", workers=(replace(SERVES, takes_tenant=False),))
    assert "No connected worker may take tasks of its tenant: the pools of all workers that serve queue batch" in says
    assert "It needs: a worker of a pool that has its tenant: start one, or add the tenant to a pool" in says
    assert "worker-1" not in says
    both = (replace(SERVES, takes_tenant=False), replace(SERVES, worker_id="worker-2"))
    assert "serve queue batch and loop messages: worker-2" in explained("QUEUED", workers=both)
    assert "It needs: a worker with a free slot" in explained("QUEUED", workers=both)


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ((SERVES,), "Workers that serve queue batch and loop messages: worker-1"),
        ((), "No worker serves queue batch and loop messages; no worker is attached"),
        ((replace(SERVES, queues=("default",)),), "No worker serves queue batch and loop messages; 1 other worker"),
        ((replace(SERVES, loops=("control",)),), "No worker serves queue batch"),
        ((replace(SERVES, draining=True),), "All workers that serve queue batch and loop messages are draining"),
        (None, "The workers are unknown, because no coordinator answers"),
    ],
)
def test_a_queued_task_is_told_with_who_could_take_it(workers: Any, says: str) -> None:
    text = explained("QUEUED", reason="WORKER_LOST", message="worker-1 is gone", workers=workers)
    assert "QUEUED for 3 min, attempt 1, after step 4: the connection to its worker broke (worker-1 is gone)" in text
    assert says in text
    is_served = workers is None or "Workers that serve" in says
    taker = (
        "a worker with a free slot"
        if is_served
        else "a new worker that serves queue batch and loop messages: start one"
    )
    assert f"It needs: {taker}" in text


def test_a_task_that_waits_for_its_retry_is_told_when_it_comes() -> None:
    text = explained("RETRY_SCHEDULED", reason="MODEL_RATE_LIMITED", until_retry=40.0)
    assert "the model provider limited its request rate" in text
    assert "Its retry is due in 40 s" in text
    assert "tenure admin requeue queues it at once" in text


@pytest.mark.parametrize(
    ("state", "verb"), [("WAITING_USER", "tenure resume"), ("WAITING_EXTERNAL", "tenure tasks signal")]
)
def test_a_waiting_task_is_told_for_what_and_until_when(state: str, verb: str) -> None:
    text = explained(state, reason="ASKED", waits_for="an answer to: may I?", until_answer=3600.0)
    assert "It waits for an answer to: may I?; the wait ends in 60 min" in text
    assert verb in text


def test_calls_in_doubt_are_named_once() -> None:
    message = "it is not known whether these calls happened: 4.0 (pay)"
    text = explained(
        "WAITING_USER", reason="TOOL_IN_DOUBT", message=message, calls=(CallFact("4.0", "pay", "IN_DOUBT"),)
    )
    assert text.count("4.0") == 1
    assert "tenure tools in-doubt" in text


@pytest.mark.parametrize(
    ("error_class", "advice"),
    [
        ("NOT_FOUND", "tenure fork --model NAME"),
        ("PERMISSION", "tenure admin requeue begins its next attempt"),
        ("INVALID_REQUEST", "tenure fork --step N"),
        ("", "tenure fork --step N"),
    ],
)
def test_a_refused_request_is_advised_not_to_be_repeated(error_class: str, advice: str) -> None:
    text = explained("FAILED", reason="MODEL_REJECTED", message=f"{error_class}: model: x", error_class=error_class)
    assert advice in text.splitlines()[-1]
    if error_class == "NOT_FOUND":
        assert "tenure admin requeue" not in text


def test_a_providers_refusal_is_explained_by_the_last_move() -> None:
    moved = ledger_pb2.StateTransition(to_state=task_pb2.TASK_STATE_FAILED, error_class="NOT_FOUND")
    entry = ledger_pb2.Entry(sequence=3, body=ledger_pb2.EntryBody(transition=moved))
    task = task_pb2.Task(state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED")
    assert gather_facts(task, [entry], [], [], [], 0, now=0.0).error_class == "NOT_FOUND"


@pytest.mark.parametrize(
    ("state", "reason", "advice"),
    [
        ("COST_EXCEEDED", "TOKEN_LIMIT", "tenure admin grant-budget"),
        ("COST_EXCEEDED", "STEP_LIMIT", "tenure admin requeue --extra-steps N"),
        ("FAILED", "MODEL_UNPRICED", "TENURE_CHECKPOINT_PRICES_FILE"),
    ],
)
def test_what_continues_a_task_is_not_refused(state: str, reason: str, advice: str) -> None:
    """A plain requeue of these is refused, or ends the same way."""
    last = explained(state, reason=reason).splitlines()[-1]
    assert advice in last
    assert "tenure admin requeue begins" not in last


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_task_is_explained_with_its_next_options(state: Any) -> None:
    text = explained(state, reason="MODEL_UNAVAILABLE", message="overloaded")
    assert f"Ended as {state} 3 min ago, attempt 1, after step 4" in text
    assert "deadline" not in text
    if state is TaskState.SUCCEEDED:
        assert "It needs nothing more" in text
    else:
        assert "the model did not answer (overloaded)" in text
        assert "tenure admin requeue begins its next attempt" in text


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "WAITING_USER", "WAITING_EXTERNAL", "RETRY_SCHEDULED"])
def test_a_task_that_is_to_end_is_told_so(state: str) -> None:
    text = explained(state, is_to_end=True)
    assert "It has a pending ending" in text
    assert "It needs only time: it ends" in text


def test_what_nobody_answers_is_said() -> None:
    text = explained(
        lease_seconds=None, workers=None, tools_answered=False, calls=(CallFact("4.0", "t"),), refusals=None
    )
    assert "its lease is unknown, because no coordinator answers" in text
    assert "4.0 t; their state is unknown, because the tool service does not answer" in text
    assert "Its refused writes are unknown" in text


def test_a_deadline_stands_still_during_a_wait_for_a_person() -> None:
    text = explained("WAITING_USER", until_deadline=-100.0, since_move=3700.0)
    assert "Its deadline stands still while it waits for a person; then 60 min are left" in text
    assert "Its deadline is in" in explained("WAITING_EXTERNAL", until_deadline=100.0)


def test_a_past_deadline_and_an_empty_reason_are_shown() -> None:
    assert "Its deadline has passed" in explained("QUEUED", reason="SOMETHING_NEW", until_deadline=-5.0)
    assert "SOMETHING_NEW" in explained("QUEUED", reason="SOMETHING_NEW")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (3.2, "3 s"), (200, "3 min"), (7500, "2 h 5 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_spans_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_facts_are_those_of_the_services() -> None:
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
        coordinator_service_pb2.Claim(epoch=7, remaining=duration(4)),
        coordinator_service_pb2.Claim(epoch=6, remaining=duration(9)),
    ]
    started = tool_pb2.CallRecord(call_id="2.1", state=tool_pb2.CALL_STATE_STARTED)
    facts = gather_facts(task, entries, claims, [], [tool_pb2.CallTrail(record=started)], 0, now=1000.0)
    assert (facts.since_move, facts.since_entry, facts.until_deadline) == (10.0, 7.0, 100.0)
    assert (facts.lease_seconds, facts.workers) == (4.0, ())
    assert facts.calls == (CallFact("2.1", "t", "STARTED"),)


def test_the_next_step_of_a_wait_is_told_in_time_from_now() -> None:
    wait = task_pb2.Wait(kind=task_pb2.WAIT_KIND_QUESTION, question="Which?", assignee="lead")
    wait.next_step.after.FromSeconds(7200)
    wait.next_step.priority = task_pb2.PRIORITY_HIGH
    wait.next_step_time.FromSeconds(1600)
    wait.deadline_time.FromSeconds(9000)
    task = task_pb2.Task(state=task_pb2.TASK_STATE_WAITING_USER, wait=wait)
    facts = gather_facts(task, [], [], [], [], 0, now=1000.0)
    assert facts.waits_for == "an answer to: Which?, assigned to lead, next step (priority) in 10 min"


def test_a_delayed_task_needs_no_worker() -> None:
    lines = explained("QUEUED", until_start=7500.0, until_deadline=90_000.0)
    assert "It cannot start before its start time, in 2 h 5 min" in lines
    assert "No worker" not in lines
    assert lines.endswith("It needs: time; tenure cancel ends it")


def test_a_queue_timeout_says_how_long_the_task_may_stay() -> None:
    assert "Its queue timeout is in 30 s" in explained("QUEUED", until_too_long=30.0)


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


def test_amounts_of_money_are_shown_as_people_read_them() -> None:
    budget = replace(FACTS.budget, max_nano_usd=10**10, used_nano_usd=19_164_750, reserved_nano_usd=223_262_500)
    assert explained(budget=budget).splitlines()[-2].endswith("; $0.02 of $10.00 used")
    busy = explained("QUEUED", reason="BUDGET_BUSY", budget=budget)
    assert "12,300 of 2,000,000 tokens used, 500 reserved; $0.02 of $10.00 used, $0.22 reserved" in busy
