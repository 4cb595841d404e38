"""A task that goes on while it is read: what is read at different times is put together so that it fits."""

from __future__ import annotations

from typing import Any

import pytest

from checker.collect import collect_each, collect_task
from checker.reading import arguments_hash, outcome_hash
from checker.verify import verify
from tenure.domain.errors import NotFound
from tenure.domain.task import Limits
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.tool import outcome_to_wire

TASK = "018f0000-0000-7000-8000-000000000001"
DONE = Outcome(OutcomeStatus.SUCCEEDED, "done")
USE = '[{"type":"tool_use","id":"u","name":"search","input":{}}]'


def ledger() -> list[ledger_pb2.Entry]:
    """Up to the outcome of one call, which was made while the reader was at work."""
    move = ledger_pb2.StateTransition
    bodies = [
        ledger_pb2.EntryBody(submitted=ledger_pb2.TaskSubmitted(spec=task_pb2.TaskSpec(goal="go"))),
        ledger_pb2.EntryBody(transition=move(to_state=task_pb2.TASK_STATE_QUEUED)),
        ledger_pb2.EntryBody(
            transition=move(from_state=task_pb2.TASK_STATE_QUEUED, to_state=task_pb2.TASK_STATE_RUNNING)
        ),
        ledger_pb2.EntryBody(model_attempt=ledger_pb2.ModelAttempt(attempt_number=1)),
        ledger_pb2.EntryBody(assistant_message=ledger_pb2.AssistantMessage(attempt_number=1, content_json=USE)),
        ledger_pb2.EntryBody(
            tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="u", tool="search", arguments_json="{}")
        ),
        ledger_pb2.EntryBody(tool_outcome=ledger_pb2.ToolOutcome(call_id="1.0", outcome=outcome_to_wire(DONE))),
    ]
    entries = [ledger_pb2.Entry(sequence=number, body=body, attempt=1) for number, body in enumerate(bodies, 1)]
    for entry in entries[2:]:
        entry.epoch, entry.claim_id, entry.actor, entry.step = 7, "claim", "worker-1", int(entry.sequence > 3)
    return entries


def record(call_id: str, state: int) -> tool_pb2.CallTrail:
    trail = tool_pb2.CallTrail(arguments_hash=arguments_hash("search", "{}"))
    trail.record.MergeFrom(tool_pb2.CallRecord(call_id=call_id, tool="search", epoch=7, call_attempt=1))
    trail.record.state = state  # type: ignore[assignment]  # one of its values
    trail.accept_time.seconds = 5
    if state == tool_pb2.CALL_STATE_FINISHED:
        trail.record.outcome.CopyFrom(outcome_to_wire(DONE))
        trail.outcome_hash = outcome_hash(DONE)
    return trail


class Moving:
    """A gateway whose tools have gone further each time they are asked."""

    def __init__(self, *moments: list[tool_pb2.CallTrail]) -> None:
        self.moments = list(moments)

    async def refusals(self, _task_id: str) -> admin.ListRefusalsResponse:
        return admin.ListRefusalsResponse()

    async def calls(self, _task_id: str) -> Any:
        yield admin.ListCallsResponse(calls=self.moments.pop(0))

    async def get(self, task_id: str) -> task_pb2.Task:
        return task_pb2.Task(
            task_id=task_id,
            root_task_id=task_id,
            state=task_pb2.TASK_STATE_RUNNING,
            sequence=7,
            step=1,
            epoch=7,
            budget=task_pb2.BudgetStatus(max_tokens=Limits().max_tokens),
        )

    async def entries(self, _task_id: str) -> Any:
        for entry in [*ledger(), ledger_pb2.Entry(sequence=8)]:  # committed after the row was read
            yield entry

    async def bills(self, _task_id: str) -> Any:
        yield ledger_pb2.Bill(step=1, attempt_number=1, root_task_id=TASK, unpriced=True)
        late = ledger_pb2.Bill(step=2, attempt_number=1, root_task_id=TASK, unpriced=True)
        late.settle_time.seconds = 99
        yield late


async def test_changed_calls_are_read_again() -> None:
    finished, later = record("1.0", tool_pb2.CALL_STATE_FINISHED), record("2.0", tool_pb2.CALL_STATE_STARTED)
    for before in ([], [record("1.0", tool_pb2.CALL_STATE_STARTED)]):
        client: Any = Moving(before, [finished, later])
        history = await collect_task(client, TASK)
        assert [call.call_id for call in history.calls or ()] == ["1.0"]
        assert [entry.sequence for entry in history.entries or ()] == list(range(1, 8))
        assert [bill.step for bill in history.bills or ()] == [1]
        assert verify(history) == []


async def test_unchanged_calls_are_read_once() -> None:
    client: Any = Moving([record("1.0", tool_pb2.CALL_STATE_FINISHED)])
    assert verify(await collect_task(client, TASK)) == []


class Pruning(Moving):
    """A gateway whose ledger prunes one of two tasks while it is read."""

    async def get(self, task_id: str) -> task_pb2.Task:
        if task_id != TASK:
            raise NotFound("the task was pruned", reason="TASK_PRUNED")
        return await super().get(task_id)


async def test_a_task_pruned_during_collection_is_left_out() -> None:
    records = [record("1.0", tool_pb2.CALL_STATE_FINISHED)]
    gone, client = TASK.replace("1", "2"), Pruning(*[records] * 4)
    results = [each async for each in collect_each(client, [gone, TASK], skip_pruned=True)]  # type: ignore[arg-type]
    assert [each.tasks[0].task_id for each in results if each.tasks] == [TASK]
    with pytest.raises(NotFound):
        [each async for each in collect_each(client, [gone])]  # type: ignore[arg-type]  # it has what is asked
