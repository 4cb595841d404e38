"""Undos in the ledger: what is listed, and that each effect is undone by one undo at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, NotFound, WrongState
from tenure.domain.task import REPLAY_LOOP
from tenure.domain.undo import MAX_CALLS
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, entry
from tests.support.patience import PATIENCE_SECONDS

FAILED = task_pb2.TASK_STATE_FAILED
REFUND = tool_pb2.Compensation(tool="refund", arguments_json='{"payment":"/outcome/payment","why":"undo"}')


def tool(name: str, compensation: tool_pb2.Compensation | None = None) -> tool_pb2.ToolDefinition:
    effect = tool_pb2.EFFECT_CLASS_UNSAFE
    return tool_pb2.ToolDefinition(name=name, input_schema_json="{}", effect_class=effect, compensation=compensation)


def intent(step: int, name: str, undoes: str = "") -> Any:
    call = ledger_pb2.ToolIntent(call_id=f"{step}.0", tool=name, arguments_json=f'{{"step":{step}}}', undoes=undoes)
    return entry(step, tool_intent=call)


def outcome(
    step: int, status: tool_pb2.OutcomeStatus.ValueType = tool_pb2.OUTCOME_STATUS_SUCCEEDED, content: str = ""
) -> Any:
    refused = status == tool_pb2.OUTCOME_STATUS_FAILED
    result = tool_pb2.Outcome(status=status, content=content or json.dumps({"payment": f"p{step}"}), no_effect=refused)
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=f"{step}.0", outcome=result))


async def paid(replica: Checkpoint, state: Any = FAILED, **spec: Any) -> str:
    """A task that paid twice, sent a mail, and ended or waits."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    defined = ledger_pb2.ToolsDefined(tools=[tool("pay", REFUND), tool("mail"), tool("refund")])
    await owner.commit(entry(0, tools_defined=defined))
    for step, name in enumerate(("pay", "pay", "mail"), 1):
        await owner.commit(intent(step, name))
        await owner.commit(outcome(step))
    if state == task_pb2.TASK_STATE_WAITING_USER:
        await owner.commit(transition=pb.Transition(to_state=state, reason="TOOL_IN_DOUBT"))
    else:
        await owner.end(state)
    return str(owner.task.task_id)


async def plan(replica: Checkpoint, task_id: str, **fields: Any) -> tasks_pb.PlanUndoResponse:
    request = tasks_pb.PlanUndoRequest(task_id=task_id, **fields)
    response: tasks_pb.PlanUndoResponse = await replica.stub.PlanUndo(request, timeout=TIMEOUT_SECONDS)
    return response


async def verdicts(replica: Checkpoint, task_id: str, **fields: Any) -> dict[str, str]:
    name = tasks_pb.UndoVerdict.Name
    planned = await plan(replica, task_id, **fields)
    return {each.call_id: name(each.verdict).removeprefix("UNDO_VERDICT_") for each in planned.effects}


async def undo(replica: Checkpoint, task_id: str, request_id: str = "", **fields: Any) -> task_pb2.Task:
    request = tasks_pb.UndoTaskRequest(request_id=request_id or str(uuid4()), task_id=task_id, **fields)
    response: tasks_pb.UndoTaskResponse = await replica.stub.UndoTask(request, timeout=TIMEOUT_SECONDS)
    return response.task


async def carried_out(replica: Checkpoint, undone: task_pb2.Task, *statuses: tool_pb2.OutcomeStatus.ValueType) -> None:
    """Makes the first calls of an undo, and ends it."""
    owner = await replica.claim(undone.task_id)
    await owner.commit(entry(0, tools_defined=ledger_pb2.ToolsDefined(tools=[tool("refund")])))
    for step, status in enumerate(statuses, 1):
        await owner.commit(intent(step, "refund", f"{undone.undo_of}/{undone.spec.undo.calls[step - 1].call_id}"))
        await owner.commit(outcome(step, status))
    await owner.end(FAILED)


async def test_plan_lists_effects_newest_first(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    planned = await plan(replica, task_id)
    assert [(each.call_id, each.tool, each.undo_arguments_json) for each in planned.effects] == [
        ("3.0", "mail", ""),
        ("2.0", "pay", '{"payment":"p2","why":"undo"}'),
        ("1.0", "pay", '{"payment":"p1","why":"undo"}'),
    ]
    assert await verdicts(replica, task_id) == {
        "3.0": "NO_COMPENSATION",
        "2.0": "CAN_BE_UNDONE",
        "1.0": "CAN_BE_UNDONE",
    }
    assert (planned.obstacle, planned.declarations_unchecked) == ("", True)
    assert list(await verdicts(replica, task_id, since_step=2)) == ["3.0", "2.0"]


async def test_undo_is_a_task_with_its_calls_in_order(replica: Checkpoint) -> None:
    task_id = await paid(replica, labels={"team": "shop"}, queue="night")
    undone = await undo(replica, task_id)
    assert (undone.undo_of, undone.queue, undone.spec.agent.loop) == (task_id, "night", "tenure.undo")
    assert [(call.call_id, call.tool) for call in undone.spec.undo.calls] == [("2.0", "refund"), ("1.0", "refund")]
    assert list(undone.spec.agent.tools.names) == ["refund"]
    assert dict(undone.spec.labels) == {"team": "shop"}


async def test_two_undos_at_once_have_each_effect_once(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    results = await asyncio.gather(*(undo(replica, task_id) for _ in range(6)), return_exceptions=True)
    made = [one for one in results if isinstance(one, task_pb2.Task)]
    refused = [one for one in results if isinstance(one, WrongState)]
    assert (len(made), {one.reason for one in refused}) == (1, {"NOTHING_TO_UNDO"}), results
    rows = await replica.query(
        "select call_id, undo_task_id::text from ledger.undone_calls where task_id = %s::uuid order by 1", task_id
    )
    assert rows == [("1.0", made[0].task_id), ("2.0", made[0].task_id)]


async def test_repeat_of_an_undo_is_the_same_undo(replica: Checkpoint) -> None:
    task_id, other = await paid(replica), await paid(replica)
    first = await undo(replica, task_id, "u-1")
    assert (await undo(replica, task_id, "u-1")).task_id == first.task_id
    with pytest.raises(AlreadyExists, match="request_id"):
        await undo(replica, other, "u-1")


async def test_failed_part_of_an_undo_is_undone_again(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    first = await undo(replica, task_id)
    assert (await verdicts(replica, task_id))["1.0"] == "BEING_UNDONE"
    await carried_out(replica, first, tool_pb2.OUTCOME_STATUS_SUCCEEDED, tool_pb2.OUTCOME_STATUS_FAILED)
    assert await verdicts(replica, task_id) == {"3.0": "NO_COMPENSATION", "2.0": "UNDONE", "1.0": "CAN_BE_UNDONE"}
    second = await undo(replica, task_id)
    assert [call.call_id for call in second.spec.undo.calls] == ["1.0"]
    await carried_out(replica, second, tool_pb2.OUTCOME_STATUS_SUCCEEDED)
    with pytest.raises(WrongState, match="no effect of the task can be undone"):
        await undo(replica, task_id)


async def test_undo_of_unknown_end_is_not_repeated(replica: Checkpoint) -> None:
    """The tool of the compensation is UNSAFE: a second refund would be another one."""
    task_id = await paid(replica)
    first = await undo(replica, task_id)
    await carried_out(replica, first, tool_pb2.OUTCOME_STATUS_IN_DOUBT)
    assert await verdicts(replica, task_id) == {
        "3.0": "NO_COMPENSATION",
        "2.0": "UNDO_IN_DOUBT",
        "1.0": "CAN_BE_UNDONE",
    }


async def test_caller_undoes_the_list_that_it_saw(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    seen = (await plan(replica, task_id)).plan_digest
    credit = tool_pb2.Compensation(tool="credit", arguments_json="{}")
    changed = [
        tasks_pb.DeclaredTool(name="pay", compensation=credit),
        *(tasks_pb.DeclaredTool(name=name) for name in ("mail", "credit")),
    ]
    with pytest.raises(WrongState, match="no longer those of the list"):
        await undo(replica, task_id, plan_digest=seen, present_tools=changed)
    planned = await plan(replica, task_id, present_tools=changed)
    assert [(each.undo_tool, each.declaration_changed) for each in planned.effects] == [
        ("", False),
        ("credit", True),
        ("credit", True),
    ]
    undone = await undo(replica, task_id, plan_digest=planned.plan_digest, present_tools=changed)
    assert {call.tool for call in undone.spec.undo.calls} == {"credit"}


async def test_running_task_is_not_undone(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    with pytest.raises(WrongState, match="cancel it first"):
        await undo(replica, owner.task.task_id)
    assert "RUNNING" in (await plan(replica, owner.task.task_id)).obstacle
    await owner.end()
    async with replica.of_tenant("another") as other:
        with pytest.raises(NotFound):
            await plan(other, owner.task.task_id)
        with pytest.raises(NotFound):
            await undo(other, owner.task.task_id)


async def test_ended_undo_neither_forks_nor_runs_again(replica: Checkpoint) -> None:
    undone = await undo(replica, await paid(replica))
    await carried_out(replica, undone)
    with pytest.raises(WrongState, match="cannot be forked"):
        await replica.stub.ForkTask(
            tasks_pb.ForkTaskRequest(request_id=str(uuid4()), task_id=undone.task_id, actor="alice"),
            timeout=TIMEOUT_SECONDS,
        )
    with pytest.raises(WrongState, match="does not run again"):
        await requeue(replica, undone.task_id)


async def test_replay_is_neither_undone_nor_run_again(replica: Checkpoint) -> None:
    """Its calls are those of the record, and it has no worker any more."""
    task_id = await paid(replica, agent=task_pb2.AgentSpec(model="m", loop=REPLAY_LOOP))
    for refused in (plan, undo, fork, requeue):
        with pytest.raises(WrongState, match="replay") as refusal:
            await refused(replica, task_id)
        assert refusal.value.reason == "IS_REPLAY"


async def fork(replica: Checkpoint, task_id: str, **fields: Any) -> task_pb2.Task:
    request = tasks_pb.ForkTaskRequest(request_id=str(uuid4()), task_id=task_id, actor="alice", **fields)
    response: tasks_pb.ForkTaskResponse = await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)
    return response.task


async def messages(replica: Checkpoint, task_id: str) -> list[str]:
    entries = await replica.entries(task_id)
    return [one.body.user_message.text for one in entries if one.body.HasField("user_message")]


async def requeue(replica: Checkpoint, task_id: str) -> task_pb2.Task:
    again = ledger_pb2.OperatorRequest(reason="again", requeue=ledger_pb2.OperatorRequest.Requeue())
    request = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid4()), actor="alice", operator_request=again)
    response: pb.AppendForeignResponse = await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)
    return response.task


async def test_undone_task_does_not_run_again(replica: Checkpoint) -> None:
    """Its agent would count on the payments."""
    task_id = await paid(replica)

    undone = await undo(replica, task_id)
    with pytest.raises(WrongState, match="2 effects of the task were undone") as refused:
        await requeue(replica, task_id)
    assert (refused.value.reason, refused.value.metadata["undo_task_id"]) == ("EFFECTS_UNDONE", undone.task_id)
    await replica.cancel(undone.task_id)
    assert (await requeue(replica, task_id)).state == task_pb2.TASK_STATE_QUEUED, "that undo did nothing"


async def test_fork_reads_what_was_undone_once(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    before = await fork(replica, task_id, message="go on")
    await replica.cancel(before.task_id)
    await carried_out(replica, await undo(replica, task_id), tool_pb2.OUTCOME_STATUS_SUCCEEDED)
    head = "The effects of these calls have been undone, or are being undone. Do not count on them:"
    note = f'{head}\n- call 1.0: pay {{"step":1}}\n- call 2.0: pay {{"step":2}}'
    forked = await fork(replica, task_id, message="go on")
    assert await messages(replica, forked.task_id) == [note, "go on"]
    assert await messages(replica, (await fork(replica, task_id, step=1)).task_id) == [note.rpartition("\n")[0]]
    await replica.cancel(forked.task_id)
    later = await fork(replica, forked.task_id, message="and now?")
    assert await messages(replica, later.task_id) == [note, "go on", "and now?"]
    assert await messages(replica, (await fork(replica, before.task_id, message="?")).task_id) == ["go on", note, "?"]


async def test_agent_that_waits_reads_what_is_undone(replica: Checkpoint) -> None:
    task_id = await paid(replica, task_pb2.TASK_STATE_WAITING_USER)
    undone = await undo(replica, task_id, since_step=2)
    assert [call.call_id for call in undone.spec.undo.calls] == ["2.0"]
    [note] = await messages(replica, task_id)
    assert note.endswith('Do not count on them:\n- call 2.0: pay {"step":2}')


async def test_fork_does_not_undo_what_it_copied(replica: Checkpoint) -> None:
    task_id = await paid(replica)
    forked = await fork(replica, task_id, message="go on")
    await replica.cancel(forked.task_id)
    assert await verdicts(replica, forked.task_id) == {}


async def test_policy_undoes_the_newest_of_too_many_effects(checkpoint: MakeCheckpoint) -> None:
    replica, count = await checkpoint(), MAX_CALLS + 3
    policy = task_pb2.TaskPolicy(on_failure=task_pb2.FAILURE_POLICY_UNDO)
    owner = await replica.claim((await replica.create(policy=policy)).task_id)
    await owner.commit(entry(0, tools_defined=ledger_pb2.ToolsDefined(tools=[tool("pay", REFUND), tool("refund")])))
    for first in range(1, count + 1, 50):
        steps = range(first, min(first + 50, count + 1))
        await owner.commit(*(one for step in steps for one in (intent(step, "pay"), outcome(step))))
    await owner.end(FAILED)
    task_id = owner.task.task_id
    counted = "select undo_task_id::text, count(*) from ledger.undone_calls group by 1"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (rows := await replica.query(counted)):
            await asyncio.sleep(0.05)
    [(undo_id, taken)] = rows
    undone = await replica.get(undo_id)
    assert (taken, undone.spec.undo.calls[0].call_id) == (MAX_CALLS, f"{count}.0")
    assert f"the newest {MAX_CALLS} effects" in undone.spec.goal
    left = [name for name, verdict in (await verdicts(replica, task_id)).items() if verdict == "CAN_BE_UNDONE"]
    assert left == ["3.0", "2.0", "1.0"]


@pytest.mark.parametrize("state", [FAILED, task_pb2.TASK_STATE_CANCELLED, task_pb2.TASK_STATE_TIMED_OUT])
async def test_policy_undoes_a_task_without_success(checkpoint: MakeCheckpoint, state: Any) -> None:
    replica = await checkpoint()
    policy = task_pb2.TaskPolicy(on_failure=task_pb2.FAILURE_POLICY_UNDO)
    task_id = await paid(replica, state, policy=policy)
    succeeded = await paid(replica, task_pb2.TASK_STATE_SUCCEEDED, policy=policy)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (rows := await replica.query("select task_id::text, undo_task_id::text from ledger.undone_calls")):
            await asyncio.sleep(0.05)
    assert {source for source, _ in rows} == {task_id}
    assert len({undo_id for _, undo_id in rows}) == 1
    assert (await replica.get(rows[0][1])).undo_of == task_id
    assert await verdicts(replica, succeeded) != {}
    assert await replica.query("select count(*) from ledger.due_undos") == [(0,)]


async def test_policy_undoes_no_requeued_task_that_succeeded(checkpoint: MakeCheckpoint) -> None:
    """Its end without success is still due, because a quota postponed the undo until the next attempt had ended."""
    replica = await checkpoint()
    policy = task_pb2.TaskPolicy(on_failure=task_pb2.FAILURE_POLICY_UNDO)
    task_id = await paid(replica, task_pb2.TASK_STATE_SUCCEEDED, policy=policy)
    await replica.query("insert into ledger.due_undos (task_id) values (%s::uuid)", task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await replica.query("select 1 from ledger.due_undos"):
            await asyncio.sleep(0.05)
    assert await replica.query("select undo_task_id::text from ledger.undone_calls") == []
