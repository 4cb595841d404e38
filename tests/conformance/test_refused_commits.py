"""A task whose commit the ledger refuses for good ends in a typed way, and so does its close-out."""

from __future__ import annotations

import pytest

from services.checkpoint.entries import KINDS
from tenure.domain import entries as facts
from tenure.domain.entries import ToolIntent
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tenure.wire.ledger import new_entry
from tests.conformance.test_coordinator_endings import LINE
from tests.support.fix_coordinator import Fleet, claim_owner, outcome_statuses
from tests.support.fix_tools import StartTools
from tests.support.fix_worker import WorkerBench
from tests.support.refused_rows import Refusal, refuse_rows

pytestmark = pytest.mark.server
OUTCOMES = f"new.kind = {KINDS['tool_outcome']} and position('UNRECORDED'::bytea in new.body) = 0"
"""Every outcome but the one that replaces those that cannot be written."""


async def test_a_worker_ends_a_refused_task(bench: WorkerBench) -> None:
    await bench.start_worker()
    await refuse_rows(bench.stack.postgres_dsn, "entries", OUTCOMES, Refusal.TOO_LONG)
    task = await bench.ended(await bench.submit("sim-worker-paced"))
    assert (state_name(task.state), task.reason, task.claim_count) == ("FAILED", "COMMIT_REFUSED", 1)
    assert "54000" in task.message
    outcomes = await bench.bodies(task.task_id, facts.ToolOutcome)
    assert {one.outcome.detail for one in outcomes} == {"UNRECORDED"}


async def test_a_coordinator_ends_a_refused_task(fleet: Fleet, tool_service: StartTools) -> None:
    tools = await tool_service(verifying_keys_file=fleet.verifying_keys)
    replica = await fleet.coordinator(tools_address=tools.address)
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    intents = [ToolIntent(f"1.{index}", f"id{index}", "append_record_unsafe", LINE) for index in range(2)]
    await worker.commit(grant, 1, entries=[new_entry(1, intent) for intent in intents])
    await tools.outcome(claim_owner(grant), "1.0", "append_record_unsafe", file="a", line="x")
    recorded = f"{OUTCOMES} and position('1.0'::bytea in new.body) > 0"
    await refuse_rows(fleet.dsn, "entries", recorded, Refusal.GUARD)
    await fleet.cancel(task_id)
    await fleet.task_where(task_id, lambda task: task.state == task_pb2.TASK_STATE_CANCELLED)
    assert {call_id: str(status) for call_id, status in (await outcome_statuses(fleet, task_id)).items()}.keys() == {
        "1.0",
        "1.1",
    }
