"""Phases that take too long, model calls that keep failing, and starts that are put off: through the gateway."""

from __future__ import annotations

import asyncio

import pytest

from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import state_name
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole

NOBODYS = "nobodys-queue"
ACTIONS = {
    "fail": (task_pb2.TIMEOUT_ACTION_FAIL, "FAILED"),
    "time out": (task_pb2.TIMEOUT_ACTION_TIME_OUT, "TIMED_OUT"),
    "retry": (task_pb2.TIMEOUT_ACTION_RETRY, "FAILED"),
}


def policy(phase: str, action: task_pb2.TimeoutAction.ValueType, after_seconds: int = 1) -> task_pb2.TaskPolicy:
    """The phase takes a second at most, and is tried again once, at once."""
    task_policy = task_pb2.TaskPolicy()
    task_policy.retry.max_attempts = 2
    task_policy.retry.initial_backoff.FromMilliseconds(1)
    timeout = getattr(task_policy.timeouts, phase)
    timeout.action = action
    if after_seconds:
        timeout.after.FromSeconds(after_seconds)
    return task_policy


def moves(entries: list[ledger_pb2.Entry]) -> list[tuple[str, str]]:
    seen = (entry.body.transition for entry in entries if entry.body.HasField("transition"))
    return [(state_name(move.to_state), move.reason) for move in seen]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("phase", "reason", "model", "queue"),
    [
        ("queued", "QUEUED_TOO_LONG", "sim-hello", NOBODYS),
        ("step", "STEP_TIMEOUT", "sim-e2e-slow-answer", ""),
        ("model_call", "MODEL_TIMEOUT", "sim-e2e-slow-answer", ""),
        ("wait", "WAIT_EXPIRED", "sim-question", ""),
    ],
)
async def test_a_late_phase_ends_with_its_reason_by_policy(
    installation: Installation, phase: str, reason: str, model: str, queue: str
) -> None:
    async def check(how: str) -> None:
        action, state = ACTIONS[how]
        task_id = await installation.submit(model, queue=queue, policy=policy(phase, action))
        ended = await installation.ended(task_id)
        assert (how, state_name(ended.state), ended.reason) == (how, state, reason)
        entries = await installation.entries(task_id)
        assert moves(entries).count(("RETRY_SCHEDULED", reason)) == (1 if how == "retry" else 0)
        check_whole(entries)

    await asyncio.gather(*map(check, ACTIONS))


@pytest.mark.faults
async def test_a_late_tool_is_stopped_and_the_task_ends(
    installation: Installation,
) -> None:
    response = policy("tool_call", task_pb2.TIMEOUT_ACTION_FAIL)
    task_id = await installation.submit("sim-e2e-slow-tool", "late", policy=response)
    ended = await installation.ended(task_id)
    assert (state_name(ended.state), ended.reason) == ("FAILED", "TOOL_TIMEOUT")
    entries = await installation.entries(task_id)
    (outcome,) = [entry.body.tool_outcome.outcome for entry in entries if entry.body.HasField("tool_outcome")]
    assert outcome.content.startswith("It took longer than 1 s and was stopped.")
    check_whole(entries)


async def test_a_late_tool_is_by_default_reported_to_the_model(installation: Installation) -> None:
    response = policy("tool_call", task_pb2.TIMEOUT_ACTION_UNSPECIFIED)
    ended = await installation.ended(await installation.submit("sim-e2e-slow-tool", "late", policy=response))
    assert state_name(ended.state) == "SUCCEEDED"


async def test_task_of_a_refused_or_limited_key_waits(installation: Installation) -> None:
    response = policy("task", task_pb2.TIMEOUT_ACTION_FAIL, after_seconds=0)
    task_id = await installation.submit("sim-e2e-forbidden", policy=response)
    refused = await installation.in_state(task_id, "RETRY_SCHEDULED")
    assert refused.reason == "MODEL_ACCOUNT_REFUSED"
    entries = await installation.entries(task_id)
    assert {entry.body.model_failure.error_class for entry in entries} == {"", "PERMISSION"}
    await installation.client.cancel(task_id, "the test is over")
    limited = await installation.submit("sim-e2e-limited", policy=response)
    scheduled = await installation.in_state(limited, "RETRY_SCHEDULED")
    assert (scheduled.reason, scheduled.HasField("next_retry_time")) == ("MODEL_RATE_LIMITED", True)
    address = installation.stack.gateway_address
    assert "at " in (await tenure("get", limited, address=address)).out
    assert "Its retry is due in" in (await tenure("explain", limited, address=address)).out
    (move,) = [
        entry.body.transition
        for entry in await installation.entries(limited)
        if state_name(entry.body.transition.to_state) == "RETRY_SCHEDULED"
    ]
    assert (move.error_class, move.next_retry_time) == ("RATE_LIMITED", scheduled.next_retry_time)
    assert move.next_retry_time.seconds - scheduled.update_time.seconds >= 600  # as long as the provider asked for
    await installation.client.cancel(limited)
