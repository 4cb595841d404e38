"""Tasks with models behind the Chat Completions API, through real processes; histories that change the vendor."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checker.verify import examine
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_verify import recorded
from tests.support.sweeps import first

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


def endpoints(installation: Installation, task_id: str) -> list[str]:
    return [call["endpoint"] for call in installation.model_calls(task_id)]


@pytest.mark.parametrize("model", first(["sim-parallel-tools", "sim-demo", "sim-hello"]))
async def test_a_scene_ends_the_same_with_each_vendor(installation: Installation, model: str) -> None:
    tasks = [await installation.ended(await installation.submit(prefix + model)) for prefix in ("", "openai/")]
    assert [task.state for task in tasks] == [SUCCEEDED, SUCCEEDED]
    assert tasks[0].result == tasks[1].result
    entries = await installation.entries(tasks[1].task_id)
    check_whole(entries)
    assert set(endpoints(installation, tasks[1].task_id)) == {"chat"}
    assert set(endpoints(installation, tasks[0].task_id)) == {"messages"}
    calls = installation.model_calls(tasks[1].task_id)
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    assert tasks[1].usage.output_tokens == sum(call["output_tokens"] for call in calls)
    used = sum(getattr(tasks[1].usage, name) for name in names)
    assert used == sum(call[name] for call in calls for name in names)


@pytest.mark.faults
async def test_a_history_continues_with_the_other_vendor(installation: Installation) -> None:
    """A fork within the tool calls of one vendor goes on with the other, and back; each effect keeps its keys."""
    record = uuid.uuid4().hex
    origin = await installation.submit("sim-e2e-keyed-paced", record)
    assert (await installation.ended(origin)).state == SUCCEEDED
    address = installation.stack.gateway_address
    done = await tenure("fork", origin, "--step", "2", "--model", "openai/sim-e2e-keyed-paced", address=address)
    assert done.code == 0, done.err
    chat = done.out.strip()
    task = await installation.ended(chat)
    assert (task.state, task.result) == (SUCCEEDED, "All is done.")
    assert set(endpoints(installation, chat)) == {"chat"}
    overrides = task_pb2.ForkOverrides(model="sim-e2e-keyed-paced")
    back = await installation.client.fork(api.ForkTaskRequest(task_id=chat, step=4, overrides=overrides))
    task = await installation.ended(back.task_id)
    assert (task.state, task.result) == (SUCCEEDED, "All is done.")
    assert set(endpoints(installation, back.task_id)) == {"messages"}
    for task_id in (chat, back.task_id):
        check_whole(await installation.entries(task_id))
    assert examine(await recorded(installation, origin, chat, back.task_id)).violations == ()


@pytest.mark.faults
async def test_usage_that_no_server_sent_is_billed(installation: Installation) -> None:
    task = await installation.ended(await installation.submit("openai/sim-no-usage-hello"))
    assert task.state == SUCCEEDED
    attempt: Any = next(
        entry.body.model_attempt
        for entry in await installation.entries(task.task_id)
        if entry.body.HasField("model_attempt")
    )
    assert task.usage.input_tokens == attempt.input_tokens, "the reserved input"
    assert task.usage.output_tokens > 0
    (answer,) = [
        entry.body.assistant_message
        for entry in await installation.entries(task.task_id)
        if entry.body.HasField("assistant_message")
    ]
    assert answer.usage_estimated
    entries = await tenure("tasks", "entries", task.task_id, address=installation.stack.gateway_address)
    assert "estimated" in entries.out
