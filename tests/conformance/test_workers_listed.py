"""The list of workers comes in pages, which the client, the command and `tenure explain` follow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tenure.client import Client
from tenure.domain.errors import InvalidRequest
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import task_service_pb2 as tasks
from tenure.validators.common import MAX_CHOICES
from tenure.validators.rules import bounds
from tests.end_to_end.command import tenure
from tests.support.fix_coordinator import Fleet
from tests.support.fix_gateway import Serve

LARGE: dict[str, Any] = {
    "queues": [f"queue-{number:057}" for number in range(MAX_CHOICES)],
    "loops": [f"loop-{number:058}@{number:016x}" for number in range(bounds(coordinator.Hello, "loops").max_items)],
}
"""The longest lists that a worker may have, over 14 KiB together."""
MANY = 150
"""So many of these workers fill more than one page."""


async def test_pages_have_each_worker_once(fleet: Fleet, gateway: Serve) -> None:
    """Also a worker that attaches or leaves between two pages moves no other worker to another page."""
    replica, other = await fleet.coordinator(), await fleet.coordinator()
    for number, at in enumerate((replica, other, replica, other, replica)):
        await fleet.worker(at, worker_id=f"w{number}")
    admin = (await gateway(fleet.checkpoint.address, coordinator=replica.address)).admin

    first = await admin.ListWorkers(api.ListWorkersRequest(page_size=2))
    await fleet.worker(other, worker_id="w0-later")
    second = await admin.ListWorkers(api.ListWorkersRequest(page_size=2, page_token=first.next_page_token))
    third = await admin.ListWorkers(api.ListWorkersRequest(page_size=2, page_token=second.next_page_token))
    pages = [[worker.worker_id for worker in page.workers] for page in (first, second, third)]
    assert pages == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    assert third.next_page_token == ""
    whole = await admin.ListWorkers(api.ListWorkersRequest())
    assert [worker.worker_id for worker in whole.workers] == ["w0", "w0-later", "w1", "w2", "w3", "w4"]
    assert whole.next_page_token == ""


async def test_a_wrong_page_of_workers_is_refused(gateway: Serve, unused_tcp_port: int) -> None:
    admin = (await gateway(f"127.0.0.1:{unused_tcp_port}")).admin
    requests = [api.ListWorkersRequest(page_size=size) for size in (-1, 1001)]
    tokens = ("w0", "w0 " + "x" * 65, " session", "MjAyNi0xMS0yNiAwMA==")
    requests += [api.ListWorkersRequest(page_token=token) for token in tokens]
    for request in requests:
        with pytest.raises(InvalidRequest) as refused:
            await admin.ListWorkers(request)
        [violation] = refused.value.violations
        assert violation.field == ("page_token" if request.page_token else "page_size")


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_many_large_workers_are_all_listed(fleet: Fleet, gateway: Serve) -> None:
    """A page ends before gRPC's limit, also for a client that names no size."""
    replica = await fleet.coordinator()
    await asyncio.gather(*(fleet.worker(replica, worker_id=f"w{number:03}", **LARGE) for number in range(MANY)))
    await fleet.worker(replica, worker_id="w999", queues=["rare"], slots=0)
    task_id = await fleet.submit(queue="rare")
    stub = await gateway(fleet.checkpoint.address, coordinator=replica.address)
    expected = [*(f"w{number:03}" for number in range(MANY)), "w999"]

    page = await stub.admin.ListWorkers(api.ListWorkersRequest())
    assert page.next_page_token
    assert [worker.worker_id for worker in page.workers] == expected[: len(page.workers)]
    async with Client(stub.process.address) as client:
        listed = await client.workers()
    assert [worker.worker_id for worker in listed.workers] == expected
    done = await tenure("--json", "workers", "list", address=stub.process.address)
    assert [json.loads(line)["worker_id"] for line in done.out.splitlines()] == expected
    lines = (await stub.ExplainTask(tasks.ExplainTaskRequest(task_id=task_id))).lines
    assert any("w999" in line for line in lines), lines
