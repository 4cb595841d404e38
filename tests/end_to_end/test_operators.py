"""What operators do to tasks, through the gateway, against real processes."""

from __future__ import annotations

import uuid

import pytest

from tenure.domain.errors import WrongState
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, answers, check_whole

CANCELLED, FAILED, SUCCEEDED = (
    task_pb2.TASK_STATE_CANCELLED,
    task_pb2.TASK_STATE_FAILED,
    task_pb2.TASK_STATE_SUCCEEDED,
)


async def test_a_cancelled_task_goes_on_where_it_stopped_when_an_operator_requeues_it(
    installation: Installation,
) -> None:
    file = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-keyed-paced", file)
    await installation.until(task_id, "tool_outcome", lambda entry: entry.step == 2)
    await installation.client.cancel(task_id, "by mistake")
    stopped = await installation.ended(task_id)
    assert stopped.state == CANCELLED
    queued = await installation.client.requeue(task_id, "it was cancelled by mistake")
    assert (queued.attempt, queued.result) == (2, "")
    ended = await installation.ended(task_id)
    assert (ended.state, ended.attempt) == (SUCCEEDED, 2)
    entries = await installation.entries(task_id)
    check_whole(entries)
    assert answers(entries) == list(range(1, 7))
    effects = installation.effects(file)
    assert len(effects) == len(set(effects))
    assert set(effects) <= {f"keyed {number}" for number in range(1, 6)}
    [asked] = [entry for entry in entries if entry.body.HasField("operator_request")]
    assert (asked.actor, asked.attempt) == ("tenant/default", 2)
    assert asked.body.operator_request.reason == "it was cancelled by mistake"


async def test_a_task_that_ran_into_a_limit_goes_on_with_more(installation: Installation) -> None:
    limits = task_pb2.Limits(max_tokens=1_000_000, max_steps=1)
    task_id = await installation.submit("sim-e2e-pure", limits=limits)
    stopped = await installation.ended(task_id)
    assert stopped.state == task_pb2.TASK_STATE_COST_EXCEEDED
    done = await tenure(
        "--json", "admin", "requeue", task_id, "--reason", "worth it", "--extra-tokens", "1000", "--extra-steps", "9",
        address=installation.stack.gateway_address,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.values[0]["budget"]["max_tokens"] == 1_001_000
    assert (await installation.ended(task_id)).state == SUCCEEDED


async def test_a_running_task_is_closed_out_with_the_operators_state_and_result(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    await installation.speaking(task_id)
    done = await tenure(
        "admin", "close-out", task_id, "--reason", "superseded", "--result", "see ticket 7",
        address=installation.stack.gateway_address,
    )  # fmt: skip
    assert (done.code, "will end as FAILED" in done.out) == (0, True)
    ended = await installation.ended(task_id)
    told = (ended.state, ended.reason, ended.message, ended.result)
    assert told == (FAILED, "OPERATOR_CLOSE_OUT", "superseded", "see ticket 7")
    check_whole(await installation.entries(task_id))
    with pytest.raises(WrongState):
        await installation.client.close_out(task_id, FAILED, "once more")


async def test_a_task_that_waits_for_its_retry_is_queued_at_once(installation: Installation) -> None:
    retry = task_pb2.RetryPolicy(max_attempts=3)
    retry.initial_backoff.seconds = retry.max_backoff.seconds = 600
    task_id = await installation.submit("sim-e2e-overloaded", policy=task_pb2.TaskPolicy(retry=retry))
    await installation.in_state(task_id, "RETRY_SCHEDULED")
    queued = await installation.client.requeue(task_id, "the provider is back")
    assert queued.attempt == 1
    await installation.until(task_id, "operator_request")
    await installation.client.cancel(task_id)
    assert (await installation.ended(task_id)).state == CANCELLED


async def test_the_command_says_why_it_does_nothing(installation: Installation) -> None:
    task_id = await installation.submit("sim-hello")
    await installation.ended(task_id)
    refused = await tenure("admin", "requeue", task_id, "--reason", "again", address=installation.stack.gateway_address)
    assert refused.code != 0
    assert "a SUCCEEDED task cannot be requeued" in refused.err
    without = await tenure("admin", "requeue", task_id, address=installation.stack.gateway_address)
    assert "--reason" in without.err
