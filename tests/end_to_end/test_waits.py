"""Tasks that wait: for a person, for leave, for an event; across restarts of everything, answered once."""

from __future__ import annotations

import json
import uuid

import pytest

from tenure.cli.exit_codes import Exit
from tenure.domain.errors import WrongState
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import duration
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.support.sweeps import first

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
NEEDS_LEAVE = task_pb2.AgentSpec(approve_tools=["append_record_unsafe"])


async def outcomes(install: Installation, task_id: str) -> list[str]:
    return [
        entry.body.tool_outcome.outcome.content
        for entry in await install.entries(task_id)
        if entry.body.HasField("tool_outcome")
    ]


async def test_a_question_is_answered_at_the_command_line(installation: Installation) -> None:
    address = installation.stack.gateway_address
    task_id = await installation.submit("sim-question")
    wait_id = (await installation.in_state(task_id, "WAITING_USER")).wait.wait_id
    listed = await tenure("waits", address=address)
    assert wait_id in listed.out
    unnamed = await tenure("resume", task_id, "--reply", "blue", address=address)
    assert (unnamed.code, "--wait" in unnamed.err) == (Exit.USAGE, True)
    assert task_id[:13] in listed.out
    assert "Which colour" in listed.out
    assert "Which colour" in (await tenure("get", task_id, address=address)).out
    refused = await tenure("resume", task_id, "--wait", wait_id, "--approve", address=address)
    assert refused.code == Exit.REFUSED
    reply = ("resume", task_id, "--wait", wait_id, "--reply")
    done = await tenure(*reply, "blue", "--extra-tokens", "1000", address=address)
    assert done.code == Exit.OK, done.err
    ended = await installation.ended(task_id)
    assert "blue" in ended.result
    assert ended.budget.max_tokens == 2_001_000
    again = await tenure(*reply, "red", address=address)
    assert again.code == Exit.REFUSED


@pytest.mark.parametrize("early", first([True, False]), ids=["before the wait", "after it"])
async def test_an_event_reaches_its_task(installation: Installation, early: bool) -> None:
    address = installation.stack.gateway_address
    name = f"event-{uuid.uuid4().hex}"
    if early:
        kept = await tenure("tasks", "signal", name, '{"n": 7}', address=address)
        assert "is kept" in kept.out
        task_id = await installation.submit("sim-event", name)
    else:
        task_id = await installation.submit("sim-event", name)
        await installation.in_state(task_id, "WAITING_EXTERNAL")
        assert (await tenure("tasks", "signal", name, '{"n": 7}', address=address)).code == Exit.OK
    assert (await installation.ended(task_id)).state == SUCCEEDED
    (content,) = await outcomes(installation, task_id)
    assert json.loads(content)["payload"] == {"n": 7}


async def test_an_approved_call_runs_once_with_approved_arguments(
    installation: Installation,
) -> None:
    address = installation.stack.gateway_address
    file = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-leave", file, agent=NEEDS_LEAVE)
    task = await installation.in_state(task_id, "WAITING_USER")
    assert (task.wait.tool, json.loads(task.wait.arguments_json)["line"]) == ("append_record_unsafe", "first")
    assert installation.effects(file) == []
    answer = ("resume", task_id, "--wait")
    approved = await tenure(*answer, task.wait.wait_id, "--approve", address=address)
    assert (approved.code, '"line": "first"' in approved.err) == (Exit.OK, True)
    second = await next_wait(installation, task_id, task.wait.wait_id)
    assert installation.effects(file) == ["first"]
    edited = json.dumps({"file": file, "line": "edited", "delay_ms": 0})
    late = await tenure(*answer, task.wait.wait_id, "--approve", address=address)
    assert (late.code, second.wait.wait_id in late.err) == (Exit.REFUSED, True)
    assert (await tenure(*answer, second.wait.wait_id, "--edit", edited, address=address)).code == Exit.OK
    third = await next_wait(installation, task_id, second.wait.wait_id)
    done = await tenure(*answer, third.wait.wait_id, "--deny", "--comment", "that is enough", address=address)
    assert done.code == Exit.OK
    with pytest.raises(WrongState):
        await installation.client.resume(task_id, third.wait.wait_id, decision="allow")
    assert (await installation.ended(task_id)).state == SUCCEEDED
    assert installation.effects(file) == ["first", "edited"]
    assert "that is enough" in (await outcomes(installation, task_id))[-1]
    check_whole(await installation.entries(task_id))
    report = await tenure("admin", "verify", task_id, address=address)
    assert report.code == Exit.OK, report.out + report.err


async def next_wait(install: Installation, task_id: str, before: str) -> task_pb2.Task:
    """The task in its next wait."""

    def is_later(entry: ledger_pb2.Entry) -> bool:
        wait = entry.body.transition.wait
        return bool(wait.wait_id) and int(wait.wait_id[1:]) > int(before[1:])

    await install.until(task_id, "transition", is_later)
    return await install.client.get(task_id)


@pytest.mark.faults
@pytest.mark.timeout(600)  # it starts everything twice
async def test_waits_survive_a_restart_of_every_service(own_installation: Installation) -> None:
    install = own_installation
    name = f"event-{uuid.uuid4().hex}"
    file = uuid.uuid4().hex
    asks = await install.submit("sim-approval")
    hears = await install.submit("sim-event", name)
    leave = await install.submit("sim-e2e-one-leave", file, agent=NEEDS_LEAVE)
    before = [
        await install.in_state(asks, "WAITING_USER"),
        await install.in_state(hears, "WAITING_EXTERNAL"),
        await install.in_state(leave, "WAITING_USER"),
    ]
    for service in install.stack.services.values():
        service.kill()
    for part in ("checkpoint", "tools", "coordinator", "gateway", "worker-1", "worker-2"):
        await install.stack.services[part].restart()
    after = [await install.client.get(task.task_id) for task in before]
    assert [task.wait for task in after] == [task.wait for task in before]
    assert [task.sequence for task in after] == [task.sequence for task in before]
    await install.client.resume(asks, after[0].wait.wait_id, decision="approve", request_id="r-1")
    await install.client.signal(name, "1")
    await install.client.resume(leave, after[2].wait.wait_id, decision="allow", call_digest=after[2].wait.call_digest)
    for task_id in (asks, hears, leave):
        assert (await install.ended(task_id)).state == SUCCEEDED
        check_whole(await install.entries(task_id))
    assert install.effects(file) == ["only"]
    again = await install.client.resume(asks, after[0].wait.wait_id, decision="approve", request_id="r-1")
    assert again.state == SUCCEEDED


@pytest.mark.faults
@pytest.mark.parametrize("failpoint", ["before_sweep", "after_sweep"])
async def test_escalation_survives_a_killed_service(own_installation: Installation, failpoint: str) -> None:
    """The checkpoint service is killed as it takes the first step: before, and after the step is durable."""
    install = own_installation
    checkpoint = install.stack.services["checkpoint"]
    await checkpoint.restart({"TENURE_FAILPOINTS": f"checkpoint.{failpoint}=1#kill9"})
    steps = [
        task_pb2.EscalationStep(after=duration(1), assignee="first"),
        task_pb2.EscalationStep(after=duration(4), assignee="lead"),
        task_pb2.EscalationStep(after=duration(900), close_out=True),
    ]
    policy = task_pb2.TaskPolicy(escalations=task_pb2.WaitEscalations(person=steps))
    task_id = await install.submit("sim-question", policy=policy)
    await install.died(checkpoint)
    await checkpoint.restart()
    await install.until(task_id, "wait_escalated")
    await install.until(task_id, "wait_escalated", lambda entry: entry.body.wait_escalated.step_number == 2)
    task = await install.in_state(task_id, "WAITING_USER")
    assert (task.wait.assignee, task.wait.steps_taken, task.wait.next_step.close_out) == ("lead", 2, True)
    listed = await tenure("waits", address=install.stack.gateway_address)
    assert "lead" in listed.out
    shown = (await tenure("get", task_id, address=install.stack.gateway_address)).out
    assert "lead" in shown
    assert "the task is closed out" in shown
    explained = await tenure("explain", task_id, address=install.stack.gateway_address)
    assert "assigned to lead" in " ".join(explained.out.split())
    await install.client.resume(task_id, task.wait.wait_id, reply="blue")
    assert (await install.ended(task_id)).state == SUCCEEDED
    entries = await install.entries(task_id)
    check_whole(entries)
    taken = [one.body.wait_escalated.step_number for one in entries if one.body.HasField("wait_escalated")]
    assert taken == [1, 2]
