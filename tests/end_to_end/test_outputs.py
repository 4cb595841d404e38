"""Outputs of a task, from the agent's calls through killed workers to the list, the command and the checker."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from checker.verify import examine
from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2, tool_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_verify import recorded

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
