"""The bill that the ledger keeps beside its entries: one row for each settled model attempt."""

from __future__ import annotations

import pytest

from tenure.domain.errors import NotFound
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as pb
from tests.fix_checkpoint import answer, reserve
from tests.fix_gateway import NOBODYS
from tests.patience import CALL_SECONDS


async def listed(replica, task_id, step=0, attempt_number=0, page_size=0):
    request = pb.ListBillsRequest(
        task_id=task_id, after_step=step, after_attempt_number=attempt_number, page_size=page_size
    )
    return await replica.stub.ListBills(request, timeout=CALL_SECONDS)


async def test_each_settled_attempt_has_a_row_lost_ones_by_estimate(checkpoint):
    replica = await checkpoint()
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
    entries = (await replica.stub.ListEntries(pb.ListEntriesRequest(task_id=task_id), timeout=CALL_SECONDS)).entries
    settled = [each.record_time for each in entries if each.body.WhichOneof("body") in _SETTLING]
    assert [first.settle_time, second.settle_time] == settled


_SETTLING = {"assistant_message", "attempt_lost"}


async def test_pages_follow_each_other_without_gap_or_repeat(checkpoint):
    replica = await checkpoint()
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


async def test_a_bill_is_told_to_its_own_tenant_only(checkpoint, gateway):
    replica = await checkpoint()
    task_id = (await replica.create()).task_id
    owner = await replica.claim(task_id)
    await owner.commit(reserve=reserve(step=1, input_tokens=10, output=10))
    await owner.commit(answer(step=1, tokens=5))
    mine, others = await gateway(replica.address), await gateway(replica.address, tenant="somebody-else")
    [bill] = (await mine.admin.ListBills(api.AdminServiceListBillsRequest(task_id=task_id))).bills
    assert bill.usage.output_tokens + bill.usage.input_tokens > 0
    for reader, asked in ((others, task_id), (mine, NOBODYS)):
        with pytest.raises(NotFound):
            await reader.admin.ListBills(api.AdminServiceListBillsRequest(task_id=asked))
