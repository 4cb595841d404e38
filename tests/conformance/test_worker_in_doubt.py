"""Words on calls in doubt under workers that die at the worst moments: what was said is done, once."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from devstack.child_process import ServiceDied
from tenure.domain import entries as facts
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened, ResolveCall
from tenure.domain.states import TaskState
from tenure.domain.task import InDoubtPolicy
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import state_name
from tenure.wire.ledger import operator_request_to_wire
from tests.conformance.test_worker_outages import in_doubt
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS

WAIT = InDoubtPolicy.WAIT_FOR_PERSON


async def say(bench: Any, task_id: str, decision: Decision) -> None:
    """Of the only call, once the task waits for it."""
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    (doubted,) = task.calls_in_doubt
    word = ResolveCall(doubted.call_id, doubted.call_attempt, decision)
    wanted = operator_request_to_wire(facts.OperatorRequest("I looked", word))
    request = pb.AppendForeignRequest(
        task_id=task_id, request_id=str(uuid.uuid4()), actor="olga", operator_request=wanted
    )
    await bench.ledger.AppendForeign(request, timeout=CALL_SECONDS)


async def outcome_at_the_end(bench: Any, task_id: str) -> Any:
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    (response,) = await bench.bodies(task_id, facts.ToolOutcome)
    return response.outcome


async def test_a_call_that_did_not_happen_runs_once_after_crashes(
    bench: WorkerBench,
) -> None:
    """Before the tools hear of it, and after they did as it says."""
    task_id = await in_doubt(bench, WAIT, "tools.before_effect=1#kill9")
    await bench.in_state(task_id, TaskState.WAITING_USER)
    for worker in bench.workers:
        worker.kill()
    assert await bench.effects(task_id) == []
    await say(bench, task_id, DidNotHappen(runner_is_gone=True))
    for moment, effects in (("after_open", []), ("after_execute", ["once"])):
        with suppress(ServiceDied):  # it may be gone before it is seen to serve
            await bench.start_worker(failpoints=f"worker.{moment}=1#kill9")
        assert await bench.died(bench.workers[-1]) != 0
        assert (await bench.effects(task_id), await bench.bodies(task_id, facts.ToolOutcome)) == (effects, [])
    await bench.start_worker()
    outcome = await outcome_at_the_end(bench, task_id)
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    assert await bench.effects(task_id) == ["once"]


async def test_an_untaken_resolution_makes_the_task_wait_again(
    bench: WorkerBench,
) -> None:
    task_id = await in_doubt(bench, WAIT)
    await say(bench, task_id, DidNotHappen())
    task = await bench.in_state(task_id, TaskState.WAITING_USER)
    assert "the runner of these must be gone: 1.0 (append_record_unsafe)" in task.message
    await say(bench, task_id, Abandon())
    outcome = await outcome_at_the_end(bench, task_id)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.IN_DOUBT, "ABANDONED")
    assert outcome.content.endswith("olga gave it up: I looked")
    assert await bench.effects(task_id) == ["once"]


async def test_a_resolution_is_kept_though_the_task_is_ended(
    bench: WorkerBench,
) -> None:
    task_id = await in_doubt(bench, WAIT)
    await bench.in_state(task_id, TaskState.WAITING_USER)
    for worker in bench.workers:
        worker.kill()
    await say(bench, task_id, Happened("paid, receipt 7"))
    await bench.cancel(task_id)
    assert state_name((await bench.ended(task_id)).state) == "CANCELLED"
    (response,) = await bench.bodies(task_id, facts.ToolOutcome)
    assert (response.outcome.status, response.outcome.content) == (OutcomeStatus.SUCCEEDED, "paid, receipt 7")
