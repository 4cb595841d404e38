"""Conversations with agents through the gateway: words to a live task, and histories that go on in new tasks."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from checker.verify import examine
from tenure.domain.errors import AlreadyExists, WrongState
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation, answers, check_whole
from tests.end_to_end.test_verify import recorded
from tests.support.fix_simulator import SimulatorControl

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


@pytest_asyncio.fixture
async def run(installation: Installation) -> Any:
    async def command(*arguments: str, stdin: str = "") -> Done:
        return await tenure(*arguments, address=installation.stack.gateway_address, stdin=stdin)

    return command


def said(entries: Any) -> list[str]:
    return [entry.body.user_message.text for entry in entries if entry.body.HasField("user_message")]


async def test_words_to_a_running_task_are_read_at_its_next_model_call(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-keyed-waiting", uuid.uuid4().hex)
    await installation.until(task_id, "assistant_message")
    await installation.client.send(task_id, "remember the milk", request_id="m-1")
    await installation.client.send(task_id, "remember the milk", request_id="m-1")
    with pytest.raises(AlreadyExists):
        await installation.client.send(task_id, "something else", request_id="m-1")
    task = await installation.ended(task_id)
    entries = await installation.entries(task_id)
    assert (task.state, said(entries)) == (SUCCEEDED, ["remember the milk"])
    check_whole(entries)
    message = next(entry.sequence for entry in entries if entry.body.HasField("user_message"))
    assert any(entry.sequence > message for entry in entries if entry.body.HasField("model_attempt"))


async def test_an_interrupting_message_redirects_a_task(installation: Installation, run: Any) -> None:
    """The answer that would take a minute stops and is billed; the one to the message is the result."""
    assert installation.stack.simulator is not None
    simulator = SimulatorControl(installation.stack.simulator.model_url, installation.stack.layout.model_log)
    simulator.order_fault(drip_ms=600, count=1, model="sim-e2e-redirected")
    task_id = await installation.submit("sim-e2e-redirected")
    async with aclosing(installation.client.watch(task_id, live=True)) as events:
        async for event in events:
            if event.HasField("delta"):
                break
    sent_at = time.monotonic()
    sent = await run("tasks", "send", task_id, "in French", "--interrupt", "--request-id", "m-1")
    assert sent.code == 0, sent.err
    task = await installation.ended(task_id)
    assert time.monotonic() - sent_at < 30
    assert (task.state, task.result.endswith("You said: in French")) == (SUCCEEDED, True)
    entries = await installation.entries(task_id)
    (message,) = [entry.body.user_message for entry in entries if entry.body.HasField("user_message")]
    (failure,) = [entry.body.model_failure for entry in entries if entry.body.HasField("model_failure")]
    assert (message.interrupt, failure.error_class) == (True, "INTERRUPTED")
    assert 0 < failure.usage.output_tokens < task.usage.output_tokens
    assert examine(await recorded(installation, task_id)).violations == ()


async def test_a_finished_task_is_continued_by_a_fork(installation: Installation) -> None:
    record = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-keyed-paced", record)
    first = await installation.ended(task_id)
    written = installation.effects(record)
    with pytest.raises(WrongState, match="ForkTask"):
        await installation.client.send(task_id, "and now?")
    overrides = task_pb2.ForkOverrides(model="sim-echo")
    request = api.ForkTaskRequest(task_id=task_id, message="and now?", overrides=overrides)
    forked = await installation.client.fork(request)
    done = await installation.ended(forked.task_id)
    assert (done.state, done.result, done.forked_from.task_id) == (SUCCEEDED, "and now?", task_id)
    entries = await installation.entries(forked.task_id)
    check_whole(entries)
    assert answers(entries) == [1, 2, 3, 4, 5, 6, 7]
    assert len(installation.model_calls(forked.task_id)) == 1
    assert installation.effects(record) == written
    assert 0 < done.usage.output_tokens < first.usage.output_tokens
    assert await installation.client.get(task_id) == first
    listed = installation.client.list_tasks(task_pb2.TaskFilter(forked_from_task_id=task_id))
    assert [fork.task_id async for fork in listed] == [forked.task_id]
    assert examine(await recorded(installation, task_id, forked.task_id)).violations == ()


@pytest.mark.faults
async def test_the_cli_sends_forks_and_shows_their_origin(installation: Installation, run: Any) -> None:
    task_id = await installation.submit("sim-hello")
    await installation.ended(task_id)
    refused = await run("tasks", "send", task_id, "hello again")
    assert (refused.code != 0, "ForkTask" in refused.err) == (True, True)
    nothing = await run("fork", task_id)
    assert (nothing.code != 0, "final answer" in nothing.err) == (True, True)
    done = await run("fork", task_id, "--message", "-", "--model", "sim-echo", stdin="hello again")
    fork_id = done.out.strip()
    assert (done.code, "Continues from" in done.err) == (0, True)
    assert (await run("tasks", "wait", fork_id)).out.strip() == "hello again"
    assert task_id in (await run("get", fork_id)).out.replace("\n", "")
    assert fork_id in (await run("get", task_id)).out.replace("\n", "")
    assert [task["task_id"] for task in (await run("--json", "list", "--forks-of", task_id)).values] == [fork_id]
    assert "continues from" in (await run("watch", fork_id)).out
    out = (await run("tasks", "entries", fork_id)).out
    assert f"continues from {task_id[:8]}" in out
    waiting = await installation.submit("sim-hello", queue="nobody-serves-this")
    sent = await run("tasks", "send", waiting, "when you are there")
    assert (sent.code, sent.out.startswith("sent; ")) == (0, True)
    assert said(await installation.entries(waiting)) == ["when you are there"]
    await installation.client.cancel(waiting)
