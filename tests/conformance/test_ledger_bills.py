"""The bill that the ledger keeps beside its entries: one row for each settled model attempt."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from services.checkpoint.queries import QUERIES
from services.checkpoint.tenants.rows import TENANTS
from tenure.domain.errors import NotFound
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import Checkpoint, answer, reserve
from tests.support.fix_gateway import NOBODYS, StubOfTenant
from tests.support.patience import CALL_SECONDS


async def listed(replica: Any, task_id: Any, step: int = 0, attempt_number: int = 0, page_size: int = 0) -> Any:
    request = api.ListBillsRequest(
        task_id=task_id, after_step=step, after_attempt_number=attempt_number, page_size=page_size
    )
    return await replica.stub.ListBills(request, timeout=CALL_SECONDS)


async def test_each_settled_attempt_has_a_row_lost_ones_by_estimate(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    await owner.commit(reserve=reserve(step=1, input_tokens=100, output=50))
    await owner.commit(answer(step=1, tokens=5))
    await owner.commit(reserve=reserve(step=2, input_tokens=100, output=50))
    await replica.claim(task_id)  # the second call is lost with its owner
    first, second = (await listed(replica, task_id)).bills
    assert (first.step, first.attempt_number, first.lost, first.epoch) == (1, 1, False, owner.claims.epoch)
    assert (second.step, second.attempt_number, second.lost, second.usage.input_tokens) == (2, 1, True, 100)
    assert first.root_task_id == task_id
    entries = (
        await replica.stub.ListTaskEntries(tasks_pb.ListTaskEntriesRequest(task_id=task_id), timeout=CALL_SECONDS)
    ).entries
    settled = [each.record_time for each in entries if each.body.WhichOneof("body") in _SETTLING]
    assert [first.settle_time, second.settle_time] == settled


_SETTLING = {"assistant_message", "attempt_lost"}


async def test_pages_follow_each_other_without_gap_or_repeat(replica: Checkpoint) -> None:
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    for step in range(1, 6):
        await owner.commit(reserve=reserve(step=step, input_tokens=10, output=10))
        await owner.commit(answer(step=step, tokens=5))
    seen, more = [(0, 0)], True
    while more:
        page = await listed(replica, task_id, *seen[-1], page_size=2)
        seen += [(bill.step, bill.attempt_number) for bill in page.bills]
        more = page.more
    assert seen[1:] == [(step, 1) for step in range(1, 6)]


async def test_a_bill_is_listed_to_its_own_tenant_only(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    await owner.commit(reserve=reserve(step=1, input_tokens=10, output=10))
    await owner.commit(answer(step=1, tokens=5))
    mine, others = await shared_gateway(), await shared_gateway("somebody-else")
    [bill] = (await mine.admin.ListBills(api.ListBillsRequest(task_id=task_id))).bills
    assert bill.usage.output_tokens + bill.usage.input_tokens > 0
    for reader, request in ((others, task_id), (mine, NOBODYS)):
        with pytest.raises(NotFound):
            await reader.admin.ListBills(api.ListBillsRequest(task_id=request))


DAY = datetime(2026, 2, 1, tzinfo=UTC)
A_DAY = {"begin_at": DAY, "end_at": DAY + timedelta(days=1)}
SIMULATED = {"simulated_request": "req_sim_", "simulated_model": "sim-"}
GROUPED = {"grouping": "MODEL", "after": "", "limit": 100, "dearest": False, **SIMULATED}
MANY = """
insert into ledger.token_usage (
  task_id, step, attempt_number, tenant, root_task_id, epoch, model, provider_request_id, lost,
  input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens, settled_at)
select md5('task ' || n / 5)::uuid, n %% 5, 1, 'tenant ' || n %% 7, md5('root ' || n / 50)::uuid, 1, 'm', '', false,
       1, 1, 0, 0, '2026-01-01'::timestamptz + n * interval '10 minutes'
  from generate_series(1, 20000) n
"""
ROOT = "81c8d0ad-6c0c-5a0d-b1c4-4bb1d9fb0a0e"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def many_bills(shared_ledger: Checkpoint) -> Checkpoint:
    """The module's ledger with many bills of other tenants."""
    await shared_ledger.query(MANY)
    await shared_ledger.query("analyze ledger.token_usage")
    return shared_ledger


@pytest.mark.parametrize(
    ("statement", "parameters", "index"),
    [
        (
            QUERIES.page_of_bills,
            {"task_id": ROOT, "after_step": 0, "after_attempt_number": 0, "limit": 200},
            "token_usage_pkey",
        ),
        (TENANTS.usage_of_root, {"root_task_id": ROOT, "tenant": "tenant 1", **GROUPED}, "token_usage_root"),
        (
            TENANTS.usage,
            {"tenant": "tenant 1", **A_DAY, **GROUPED},
            "token_usage_tenant",
        ),
    ],
    ids=["of a task", "of a root", "of a tenant"],
)
async def test_a_query_of_bills_reads_them_by_one_index(
    many_bills: Checkpoint, statement: Any, parameters: Any, index: str
) -> None:
    async with await psycopg.AsyncConnection.connect(many_bills.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        plan = await (await postgres.execute(b"explain " + statement, parameters)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert set(re.findall(r"token_usage_\w+", text)) == {index}, text
    assert "Seq Scan on token_usage" not in text, text
