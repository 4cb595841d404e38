"""Laws of endings that a worker does not carry out: through the same fences, with an outcome for every open call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from tenure.domain.entries import ToolIntent
from tenure.domain.errors import StaleEpoch
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.ledger import new_entry
from tests.support.fix_coordinator import Fleet, claim_owner, epoch_of, outcome_statuses
from tests.support.fix_tools import Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS

CANCELLED, QUEUED = task_pb2.TASK_STATE_CANCELLED, task_pb2.TASK_STATE_QUEUED
LINE = '{"file": "a", "line": "x"}'


async def test_the_owner_gets_a_cancel_and_carries_it_out(fleet: Fleet) -> None:
    replica = await fleet.coordinator(cancel_grace_seconds="60")
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await fleet.cancel(task_id)
    assert (await worker.hears("cancel")).task_id == task_id
    await worker.commit(grant, 1, transition={"to_state": CANCELLED, "reason": "CANCEL_REQUESTED"})
    await worker.release(grant, "CLOSED")
    task = await fleet.task(task_id)
    assert (task.state, task.epoch) == (CANCELLED, epoch_of(grant.token))


async def test_an_ignored_cancel_is_carried_out_under_a_higher_epoch(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    asked_at = asyncio.get_running_loop().time()
    await fleet.cancel(task_id)
    task = await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
    assert asyncio.get_running_loop().time() - asked_at >= 1.0  # the grace in which the owner may do it itself
    assert task.epoch > epoch_of(grant.token)
    assert (await worker.hears("revoke")).claim_id == grant.claim_id
    with pytest.raises(StaleEpoch):
        await worker.commit(grant, 1, entries=[new_entry(1, ToolIntent("1.0", "x", "y", "{}"))])
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fleet.claims(replica):
            await asyncio.sleep(0.02)


async def test_a_close_out_gives_open_calls_outcomes_and_begins_none(
    fleet: Fleet, tool_service: StartTools, outside: Outside
) -> None:
    tools = await tool_service(verifying_keys_file=fleet.verifying_keys)
    replica = await fleet.coordinator(tools_address=tools.address)
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    intents = [ToolIntent(f"1.{index}", f"id{index}", "append_record_unsafe", LINE) for index in range(2)]
    await worker.commit(grant, 1, entries=[new_entry(1, intent) for intent in intents])
    owner = claim_owner(grant)
    await tools.outcome(owner, "1.0", "append_record_unsafe", file="a", line="x")
    await fleet.cancel(task_id)
    await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
    assert await outcome_statuses(fleet, task_id) == {
        "1.0": tool_pb2.OUTCOME_STATUS_SUCCEEDED,
        "1.1": tool_pb2.OUTCOME_STATUS_NOT_RUN,
    }
    with pytest.raises(StaleEpoch):
        await tools.outcome(owner, "1.1", "append_record_unsafe", file="a", line="x")
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_outcomes_larger_than_one_commit_do_not_block_an_ending(fleet: Fleet, tool_service: StartTools) -> None:
    tools = await tool_service(verifying_keys_file=fleet.verifying_keys)
    replica = await fleet.coordinator(tools_address=tools.address)
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    owner = claim_owner(grant)
    await tools.outcome(owner, "0.0", "write_file", path="large", content="x" * 65_000)
    intents = [ToolIntent(f"1.{index}", f"id{index}", "read_file", '{"path": "large"}') for index in range(20)]
    await worker.commit(grant, 1, entries=[new_entry(1, intent) for intent in intents])
    await asyncio.gather(*(tools.outcome(owner, intent.call_id, "read_file", path="large") for intent in intents))
    await fleet.cancel(task_id)
    await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
    assert await outcome_statuses(fleet, task_id) == {
        intent.call_id: tool_pb2.OUTCOME_STATUS_SUCCEEDED for intent in intents
    }


@pytest.mark.faults
async def test_a_queued_task_with_an_open_call_ends_after_an_answer(fleet: Fleet, tool_service: StartTools) -> None:
    """Two replicas try it meanwhile; that they get into each other's way costs tries and nothing else."""
    tools = await tool_service(verifying_keys_file=fleet.verifying_keys)
    replica = await fleet.coordinator(tools_address=tools.address)
    await fleet.coordinator(tools_address=tools.address)
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await worker.commit(grant, 1, entries=[new_entry(1, ToolIntent("1.0", "id", "append_record", LINE))])
    tools.freeze()
    await fleet.cancel(task_id)
    await worker.hears("revoke")
    await worker.break_off()
    await asyncio.sleep(3.0)  # longer than the first try is kept from the other replica
    tools.thaw()
    await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
    assert [each.to_state for each in await fleet.transitions(task_id)].count(CANCELLED) == 1
    assert await outcome_statuses(fleet, task_id) == {"1.0": tool_pb2.OUTCOME_STATUS_NOT_RUN}


async def test_two_replicas_end_a_task_once(fleet: Fleet) -> None:
    replicas = [await fleet.coordinator(), await fleet.coordinator()]
    worker = await fleet.worker(replicas[0], slots=20)
    submitted = await fleet.submit_many(20)
    await asyncio.gather(*map(worker.open, await worker.next_grants(20)))
    await asyncio.gather(*map(fleet.cancel, submitted))
    for task_id in submitted:
        await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
        ends = [each for each in await fleet.transitions(task_id) if each.to_state == CANCELLED]
        assert len(ends) == 1


@pytest.mark.faults
async def test_a_late_ending_leaves_the_next_attempt_alone(fleet: Fleet, tmp_path: Path) -> None:
    """Listed, then carried out by the owner, then requeued by an operator: only then the coordinator opens the task."""
    replica = await fleet.coordinator(
        failpoints=f"coordinator.before_ending_open=wait({tmp_path}/go)", cancel_grace_seconds="0.2"
    )
    worker = await fleet.worker(replica, slots=1)
    task_id = await fleet.submit(policy={"on_lease_lost": task_pb2.LEASE_LOST_POLICY_TIME_OUT})
    grant = await worker.next_grant()
    await worker.open(grant)
    await fleet.cancel(task_id)
    assert (await worker.hears("revoke")).task_id == task_id  # the coordinator has claimed it, and pauses
    await worker.commit(grant, 1, transition={"to_state": CANCELLED, "reason": "CANCEL_REQUESTED"})
    await fleet.requeue_by_operator(task_id)
    (tmp_path / "go").touch()
    again = await worker.next_grant()
    await worker.open(again)
    task = await fleet.task(task_id)
    assert (task.state, task.attempt, task.cancel_requested) == (task_pb2.TASK_STATE_RUNNING, 2, False)
    moves = [(each.to_state, each.reason) for each in await fleet.transitions(task_id)]
    assert (QUEUED, "ENDING_OVER") in moves
    assert moves.count((CANCELLED, "CANCEL_REQUESTED")) == 1


@pytest.mark.faults
async def test_a_cancelled_task_with_an_unreadable_history_ends(fleet: Fleet, tool_service: StartTools) -> None:
    """Older entries may be malformed: a commit of one is refused now. With an open call only a claim ends a task."""
    tools = await tool_service(verifying_keys_file=fleet.verifying_keys)
    replica = await fleet.coordinator(tools_address=tools.address)
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await worker.commit(grant, 1, entries=[new_entry(1, ToolIntent("1.0", "id", "append_record", LINE))])
    said = ["{", "{}", "[1]", '[{"type": 1}]', '[{"type": "text", "text": 1}]', "[" * 100_000]
    bodies = [ledger_pb2.EntryBody(assistant_message=ledger_pb2.AssistantMessage(content_json=one)) for one in said]
    await _write_by_hand(fleet, task_id, [*bodies, ledger_pb2.EntryBody(compaction=ledger_pb2.Compaction())])
    await fleet.cancel(task_id)
    await fleet.task_where(task_id, lambda task: task.state == CANCELLED)
    assert await outcome_statuses(fleet, task_id) == {"1.0": tool_pb2.OUTCOME_STATUS_NOT_RUN}


async def _write_by_hand(fleet: Fleet, task_id: str, bodies: list[ledger_pb2.EntryBody]) -> None:
    """Entries of the owner's, as a service without any check would have written them."""
    fields = ledger_pb2.EntryBody.DESCRIPTOR.fields_by_name
    parameters = {
        "task_id": task_id,
        "kinds": [fields[str(body.WhichOneof("body"))].number for body in bodies],
        "bodies": [body.SerializeToString() for body in bodies],
    }
    async with await psycopg.AsyncConnection.connect(fleet.dsn) as connection:
        await connection.execute("set search_path to ledger")
        await connection.execute(
            "insert into entries"
            " (task_id, tenant, sequence, epoch, claim_id, attempt, step, kind, actor, recorded_at, body)"
            " select task_id, tenant, sequence + number, epoch, claim_id, attempt, 1, kind, owner, now(), body"
            " from tasks, unnest(%(kinds)s::int[], %(bodies)s::bytea[]) with ordinality as new (kind, body, number)"
            " where task_id = %(task_id)s",
            parameters,
        )
        await connection.execute(
            "update tasks set sequence = sequence + cardinality(%(kinds)s::int[]) where task_id = %(task_id)s",
            parameters,
        )
