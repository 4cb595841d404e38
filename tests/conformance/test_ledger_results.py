"""Laws of results with a shape at the ledger: a task that says what its result must be succeeds with JSON only."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.domain.errors import InvalidRequest, WrongState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, entry

SCHEMA = '{"type": "object", "required": ["price"]}'
SUCCEEDED, CANCELLED = task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_CANCELLED


def success(result_json: str = "", result: str = "It is 3") -> pb.Transition:
    return pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result=result, result_json=result_json)


def rejected(text: str = "no JSON") -> ledger_pb2.NewEntry:
    return entry(1, result_rejected=ledger_pb2.ResultRejected(text=text, violations=[text]))


def reserve(step: int = 1) -> pb.Reserve:
    return pb.Reserve(
        step=step, attempt_number=1, model="m", input_tokens=9, max_output_tokens=100, min_output_tokens=10
    )


def fields(refused: pytest.ExceptionInfo[InvalidRequest]) -> list[str]:
    return [violation.field for violation in refused.value.violations]


async def fork(replica: Any, task_id: Any, **overrides: Any) -> Any:
    request = tasks_pb.ForkTaskRequest(
        task_id=task_id, request_id="fork", actor="alice", overrides=task_pb2.ForkOverrides(**overrides)
    )
    return (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task


async def test_an_invalid_schema_is_refused(replica: Checkpoint) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await replica.create(result_schema_json='{"type": "objekt"}')
    assert fields(refused) == ["spec.result_schema_json"]
    task = await replica.create(result_schema_json=SCHEMA)
    assert (task.spec.result_schema_json, task.spec.policy.max_result_corrections) == (SCHEMA, 3)


async def test_a_task_with_a_schema_succeeds_only_with_its_json(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(result_schema_json=SCHEMA)).task_id)
    with pytest.raises(InvalidRequest) as refused:
        await owner.commit(transition=success())
    assert fields(refused) == ["transition.result_json"]
    with pytest.raises(InvalidRequest):
        await owner.commit(transition=success("{price"))
    await owner.commit(transition=success('{"price": 3, "why": "\\u0000"}'))
    task = await replica.get(owner.task.task_id)
    assert (task.state, task.result, task.result_json) == (SUCCEEDED, "It is 3", '{"price": 3, "why": "\\u0000"}')
    assert (await replica.entries(task.task_id))[-1].body.transition.result_json == task.result_json


async def test_a_task_without_a_schema_has_no_json(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    with pytest.raises(InvalidRequest) as refused:
        await owner.commit(transition=success("3"))
    assert fields(refused) == ["transition.result_json"]
    await owner.commit(transition=success())
    assert (await replica.get(owner.task.task_id)).result_json == ""


async def test_a_requested_ending_needs_no_json(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(result_schema_json=SCHEMA)).task_id)
    await replica.cancel(owner.task.task_id)
    await owner.commit(transition=success('{"price": 3}'))
    task = await replica.get(owner.task.task_id)
    assert (task.state, task.result, task.result_json) == (CANCELLED, "It is 3", "")


async def test_a_rejection_is_the_owners_to_write(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(result_schema_json=SCHEMA)).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(), rejected())
    written = (await replica.entries(owner.task.task_id))[-1]
    assert (written.body.result_rejected.text, written.epoch) == ("no JSON", owner.claims.epoch)


async def test_manual_sql_cannot_succeed_a_task_without_its_json(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(result_schema_json=SCHEMA)).task_id)
    with pytest.raises(psycopg.errors.CheckViolation):
        await replica.query(
            "with path as (select set_config('search_path', 'ledger', false) as name) "
            "update ledger.tasks set state = 'SUCCEEDED', holds = false, owner = '', ended_at = now() "
            "from path where task_id = %s::uuid and name <> ''",
            owner.task.task_id,
        )


async def test_a_fork_keeps_rejections_and_may_request_a_schema(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(), rejected())
    await owner.commit(reserve=reserve(2))
    await owner.commit(answer(step=2))
    await owner.end()
    with pytest.raises(WrongState):
        await fork(replica, owner.task.task_id)
    task = await fork(replica, owner.task.task_id, result_schema_json=SCHEMA)
    assert task.spec.result_schema_json == SCHEMA
    kinds = [one.body.WhichOneof("body") for one in await replica.entries(task.task_id)]
    answered = ["model_attempt", "assistant_message"]
    assert kinds[2:-1] == [*answered, "result_rejected", *answered]
    successor = await replica.claim(task.task_id)
    with pytest.raises(InvalidRequest):
        await successor.commit(transition=success())
