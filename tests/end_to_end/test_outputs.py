"""Outputs of a task, from the agent's calls through killed workers to the list, the command and the checker."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from contextlib import aclosing

import pytest

from checker.verify import examine
from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2, tool_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_verify import recorded
from tests.support.fix_webhooks import MakeReceiver
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

VERIFIED, CHANGED = tool_pb2.OUTPUT_STATE_VERIFIED, tool_pb2.OUTPUT_STATE_CHANGED
MISSING, STATED = tool_pb2.OUTPUT_STATE_MISSING, tool_pb2.OUTPUT_STATE_STATED


def digest(content: str) -> str:
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


@pytest.mark.parametrize(("kind", "step"), [("tool_intent", 2), ("tool_outcome", 2), ("tool_outcome", 3)])
async def test_outputs_survive_a_killed_worker(own_installation: Installation, kind: str, step: int) -> None:
    install, label = own_installation, uuid.uuid4().hex
    task_id = await install.submit("sim-e2e-outputs", labels={"of": label})
    await install.until(task_id, kind, lambda entry: entry.step == step)
    install.owner(await install.client.get(task_id)).kill()
    task = await install.ended(task_id)
    assert (task.state, task.claim_count) == (task_pb2.TASK_STATE_SUCCEEDED, 2), task.message
    check_whole(await install.entries(task_id))
    assert [(one.kind, one.uri, one.state, one.digest) for one in task.outputs] == [
        ("report", "workspace:a.md", VERIFIED, digest("stays")),
        ("draft", "workspace:b.md", CHANGED, digest("changed")),
        ("draft", "workspace:c.md", MISSING, digest("goes")),
        ("ticket", "https://tickets.example/7", STATED, ""),
    ]
    assert [one.size_bytes for one in task.outputs[:2]] == [5, 7]
    assert [one.call_id for one in task.outputs] == ["2.0", "2.1", "2.2", "2.3"]
    await check_command(install, task, label)
    assert examine(await recorded(install, task_id)).violations == ()


async def check_command(install: Installation, task: task_pb2.Task, label: str) -> None:
    """The command shows the outputs, and lists the task by them."""
    address = install.stack.gateway_address
    shown = " ".join((await tenure("get", task.task_id, address=address)).out.split())
    assert "ticket https://tickets.example/7 · stated · the follow-up" in shown
    matching = (("--output-kind", "report"), ("--output-uri", "https://tickets.example/"))
    for wanted, task_ids in (*((one, [task.task_id]) for one in matching), (("--output-kind", "reports"), [])):
        done = await tenure("--json", "list", "--label", f"of={label}", *wanted, address=address)
        assert (done.code, [one["task_id"] for one in done.values]) == (Exit.OK, task_ids)


async def test_an_end_is_announced_with_its_outputs(
    own_installation: Installation, webhook_receiver: MakeReceiver
) -> None:
    """By a signed request and in the stream of changes. The ledger is killed after it wrote the delivery."""
    install, receiver, label = own_installation, await webhook_receiver(), uuid.uuid4().hex
    address = install.stack.gateway_address
    name = f"outputs-{label}"
    create = ("webhooks", "create", name, receiver.url, "--event", "task.succeeded", "--label", f"of={label}")
    made = await tenure(*create, address=address)
    assert made.code == Exit.OK, made.err
    receiver.secrets = [made.out.strip()]
    checkpoint = install.stack.services["checkpoint"]
    await checkpoint.restart({"TENURE_FAILPOINTS": "checkpoint.after_events=1#kill9"})
    watching = asyncio.create_task(first_success(install, label))
    task_id = await install.submit("sim-e2e-outputs", labels={"of": label})
    await install.died(checkpoint)
    assert receiver.came == []
    await checkpoint.restart()
    (event,) = await receiver.until(1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        change = await watching
    task = await install.client.get(task_id)
    assert [one.state for one in task.outputs] == [VERIFIED, CHANGED, MISSING, STATED]
    assert (event.type, event.task_id, event.valid) == ("task.succeeded", task_id, 1)
    (shown,) = (await tenure("--json", "get", task_id, address=address)).values
    assert event.data["task"]["outputs"] == shown["outputs"]
    assert (change.task_id, list(change.task.outputs)) == (task_id, list(task.outputs))
    assert (await tenure("webhooks", "delete", name, address=address)).code == Exit.OK


async def first_success(install: Installation, label: str) -> task_pb2.TaskChange:
    """The change by which the first task with the label succeeds, from the stream of all changes."""
    wanted = task_pb2.TaskFilter(labels={"of": label}, states=[task_pb2.TASK_STATE_SUCCEEDED])
    async with aclosing(install.client.watch_tasks(wanted)) as events:
        async for event in events:
            if event.HasField("change"):
                return event.change
    raise AssertionError("the stream of changes has no end")
