"""What a worker may say of a call that the ledger settled as lost: the bill and the budget change, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from tenure.domain.errors import InvalidRequest, NotFound, Unauthenticated, WrongState
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, reserve

PRICED = "claude-sonnet-4-5"
USED = {
    "input_tokens": 10,
    "output_tokens": 40,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 30,
}
SUMS = (*USED, "used_nano_usd")


async def report(replica: Any, token: Any, *, step: int = 1, attempt_number: int = 1, usage: Any = USED) -> None:
    request = pb.ReportUsageRequest(
        token=token,
        step=step,
        attempt_number=attempt_number,
        usage=task_pb2.TokenUsage(**usage),
        provider_request_id="req_1",
    )
    await replica.stub.ReportUsage(request, timeout=TIMEOUT_SECONDS)


async def bills(replica: Any, task_id: Any) -> Any:
    return list(
        (await replica.stub.ListBills(admin_pb.ListBillsRequest(task_id=task_id), timeout=TIMEOUT_SECONDS)).bills
    )


async def calling(replica: Any, *, output: int = 100) -> Any:
    """An owner with a model call in flight."""
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    wanted = reserve(input_tokens=100, output=output)
    wanted.model = PRICED
    await owner.commit(reserve=wanted)
    return owner


async def fenced(replica: Any) -> Any:
    """One whose task another worker took over, and that other one."""
    owner = await calling(replica)
    return owner, await replica.claim(owner.task.task_id)


async def rows(replica: Any, task_id: Any) -> Any:
    """All that the ledger has of a task, as JSON, by table."""
    named = await replica.query(
        "select c.table_name, c.column_name from information_schema.columns c join information_schema.tables t"
        " using (table_schema, table_name) where c.table_schema = 'ledger' and t.table_type = 'BASE TABLE'"
        " and c.data_type = 'uuid' and c.column_name in ('task_id', 'root_task_id')"
    )
    return {
        (table, column): [
            row
            for (row,) in await replica.query(
                f"select to_jsonb(x) from ledger.{table} x where {column} = %s order by to_jsonb(x)::text", task_id
            )
        ]
        for table, column in named
    }


async def test_a_fenced_worker_may_report_usage_of_its_last_call(replica: Checkpoint) -> None:
    owner, _ = await fenced(replica)
    task_id = owner.task.task_id
    (estimate,) = await bills(replica, task_id)
    before = await replica.get(task_id)
    assert (estimate.lost, estimate.usage.input_tokens, estimate.usage.output_tokens) == (True, 100, 0)
    await report(replica, owner.token)
    (bill,) = await bills(replica, task_id)
    after = await replica.get(task_id)
    assert bill.usage == after.usage == task_pb2.TokenUsage(**USED)
    assert bill.estimated_usage == estimate.usage
    assert (bill.lost, bill.provider_request_id, bill.settle_time) == (True, "req_1", estimate.settle_time)
    assert after.budget.used_tokens == before.budget.used_tokens == 100
    assert after.budget.used_nano_usd == after.used_nano_usd == bill.nano_usd
    assert 0 < bill.nano_usd != estimate.nano_usd == before.budget.used_nano_usd
    assert before.budget.reserved_tokens == after.budget.reserved_tokens == 0


async def test_a_report_changes_nothing_but_the_bill_and_the_budget(replica: Checkpoint) -> None:
    owner, successor = await fenced(replica)
    task_id = owner.task.task_id
    before = await rows(replica, task_id)
    await report(replica, owner.token)
    after = await rows(replica, task_id)
    changed: dict[Any, Any] = {}
    for place, was in before.items():
        if was == after[place]:
            continue
        if not was:
            assert place[0] == "usage_reports"
            continue
        (old,), (new,) = was, after[place]
        changed.setdefault(place[0], set()).update(name for name in new if new[name] != old[name])
    assert changed.pop("budgets") <= {"used_tokens", "used_nano_usd", "beyond_tokens", "beyond_nano_usd"}
    assert changed.pop("tasks") <= set(SUMS)
    assert changed.pop("token_usage") <= {*USED, "nano_usd", "provider_request_id"}
    assert not changed
    await successor.commit(reserve=reserve(step=1, attempt=2))
    await successor.commit(answer(attempt=2))


async def test_a_report_counts_once(replica: Checkpoint) -> None:
    owner, _ = await fenced(replica)
    task_id = owner.task.task_id
    await asyncio.gather(*(report(replica, owner.token) for _ in range(5)))
    await report(replica, owner.token, usage={"output_tokens": 1})
    (bill,) = await bills(replica, task_id)
    assert bill.usage == task_pb2.TokenUsage(**USED)
    assert (await replica.get(task_id)).budget.used_tokens == 100


async def test_a_worker_reports_usage_of_its_own_calls_only(replica: Checkpoint) -> None:
    owner, successor = await fenced(replica)
    task_id = owner.task.task_id
    before = await rows(replica, task_id)
    stolen, _ = replica.sign(task_id, owner.claims.epoch, successor.claims.claim_id)
    foreign, _ = replica.sign(task_id, owner.claims.epoch, owner.claims.claim_id, tenant="other")
    for token in (successor.token, stolen, foreign):
        with pytest.raises(NotFound):
            await report(replica, token)
    with pytest.raises(NotFound):
        await report(replica, owner.token, attempt_number=2)
    forged = type(owner.token)()
    forged.CopyFrom(owner.token)
    forged.signature = bytes(len(forged.signature))
    with pytest.raises(Unauthenticated):
        await report(replica, forged)
    assert await rows(replica, task_id) == before


AS_MANY_BUT_DEARER = {"output_tokens": 200}


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"input_tokens": 201}, (100, 0)),
        ({"output_tokens": 2**62}, (100, 100)),
        (AS_MANY_BUT_DEARER, (100, 100)),
        ({"input_tokens": 50, "output_tokens": 120}, (50, 100)),
        ({"input_tokens": 120, "output_tokens": 20}, (120, 20)),
    ],
)
async def test_a_report_never_exceeds_the_reservation(replica: Checkpoint, usage: Any, billed: tuple[int, int]) -> None:
    owner, _ = await fenced(replica)
    await report(replica, owner.token, usage=usage)
    (bill,) = await bills(replica, owner.task.task_id)
    assert (bill.usage.input_tokens, bill.usage.output_tokens) == billed
    assert bill.nano_usd <= 100 * 3_000 + 100 * 15_000
    assert (await replica.get(owner.task.task_id)).budget.used_tokens == sum(billed)


@pytest.mark.parametrize("usage", [{"input_tokens": -1}, {}])
async def test_a_report_needs_a_usage(replica: Checkpoint, usage: Any) -> None:
    owner, _ = await fenced(replica)
    before = await rows(replica, owner.task.task_id)
    with pytest.raises(InvalidRequest):
        await report(replica, owner.token, usage=usage)
    assert await rows(replica, owner.task.task_id) == before


async def test_a_call_is_settled_before_it_is_reported(replica: Checkpoint) -> None:
    owner = await calling(replica)
    with pytest.raises(WrongState) as refused:
        await report(replica, owner.token)
    assert refused.value.reason == "ATTEMPT_OPEN"
    await owner.commit(answer())
    with pytest.raises(WrongState) as refused:
        await report(replica, owner.token)
    assert refused.value.reason == "ATTEMPT_SETTLED"
    (bill,) = await bills(replica, owner.task.task_id)
    assert (bill.lost, bill.usage.output_tokens, bill.HasField("estimated_usage")) == (False, 10, False)


async def test_the_task_may_have_ended_by_then(replica: Checkpoint) -> None:
    owner, successor = await fenced(replica)
    await successor.commit(reserve=reserve(step=1, attempt=2))
    await successor.commit(answer(attempt=2))
    await successor.end()
    await report(replica, owner.token)
    task = await replica.get(owner.task.task_id)
    assert task.budget.used_tokens == 110


async def test_reported_usage_of_a_lost_call_is_billed(replica: Checkpoint) -> None:
    owner = await calling(replica)
    heard = ledger_pb2.HeardCall(step=1, attempt_number=1, usage=task_pb2.TokenUsage(**USED))
    await lose(replica, owner, heard)
    (bill,) = await bills(replica, owner.task.task_id)
    assert (bill.lost, bill.usage) == (True, task_pb2.TokenUsage(**USED))


async def test_usage_of_an_earlier_call_does_not_count_for_a_later_one(replica: Checkpoint) -> None:
    owner = await calling(replica)
    await owner.commit(answer(), reserve=reserve(step=2, input_tokens=100))
    await lose(replica, owner, ledger_pb2.HeardCall(step=1, attempt_number=1, usage=task_pb2.TokenUsage(**USED)))
    _, bill = await bills(replica, owner.task.task_id)
    assert (bill.step, bill.lost, bill.usage) == (2, True, task_pb2.TokenUsage(input_tokens=100))


async def lose(replica: Any, owner: Any, heard: Any) -> None:
    lost = pb.RequeueLostRequest.Lost(
        task_id=owner.task.task_id, claim_id=owner.claims.claim_id, reason="WORKER_LOST", heard_call=heard
    )
    answered = await replica.stub.RequeueLost(pb.RequeueLostRequest(lost=[lost]), timeout=TIMEOUT_SECONDS)
    assert list(answered.task_ids) == [owner.task.task_id]


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger.token_usage set output_tokens = 7 where task_id = %s",
        "update ledger.tasks set input_tokens = 0 where task_id = %s",
        "update ledger.usage_reports set output_tokens = 7 where task_id = %s",
        "delete from ledger.usage_reports where task_id = %s",
    ],
)
async def test_the_database_refuses_other_corrections(replica: Checkpoint, statement: str) -> None:
    owner, _ = await fenced(replica)
    await report(replica, owner.token)
    with pytest.raises(psycopg.errors.CheckViolation):
        await replica.query(statement, owner.task.task_id)
