"""Submits that arrive together are one transaction; each has its own answer, as if it had come alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg

from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS
from services.checkpoint.submit.creator import LedgerCreator
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound
from tenure.runtime.settings import Secret
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, kinds
from tests.support.one_batch import in_one_batch
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refused_rows import Refusal, refuse_rows

MANY = 20


@asynccontextmanager
async def creator_of(replica: Checkpoint, heard: list[Announcement] | None = None) -> AsyncIterator[LedgerCreator]:
    """A creator that does not run yet, so that a test decides what one batch has."""
    options = PoolOptions(max_size=3, settings=SESSION_SETTINGS)
    announce = (heard if heard is not None else []).append
    async with (
        open_pool(replica.dsn, service="test", schema=SCHEMA, options=options) as pool,
        LedgerCreator(Secret(replica.dsn), pool, announce, TaskDefaults()) as creator,
    ):
        yield creator


def a_submit(request_id: str = "", **spec: Any) -> pb.CreateTaskRequest:
    wanted = task_pb2.TaskSpec(**{"goal": "work", **spec})
    return pb.CreateTaskRequest(request_id=request_id or str(uuid4()), spec=wanted)


async def create_in_one_batch(creator: LedgerCreator, tenant: str, *requests: pb.CreateTaskRequest) -> list[Any]:
    return await in_one_batch(creator, *[creator.create(tenant, request) for request in requests])


async def test_submits_together_are_one_transaction(replica: Checkpoint) -> None:
    await replica.create()  # the tenant is known
    heard: list[Announcement] = []
    requests = [a_submit(goal=f"goal {number}") for number in range(MANY)]
    async with creator_of(replica, heard) as creator:
        tasks = await create_in_one_batch(creator, replica.tenant, *requests)
    assert [task.spec.goal for task in tasks] == [f"goal {number}" for number in range(MANY)]
    assert [(one.task_ids, one.claimable) for one in heard] == [({task.task_id for task in tasks}, True)]
    for task in tasks:
        assert await replica.get(task.task_id) == task
        assert kinds(await replica.entries(task.task_id)) == ["submitted", ">QUEUED"]
    ids = [task.task_id for task in tasks]
    for table, column in (("tasks", "created_at"), ("entries", "recorded_at"), ("changes", "changed_at")):
        times = f"select count(distinct {column}) from ledger.{table} where task_id = any(%s::uuid[])"
        assert await replica.query(times, ids) == [(1,)]


async def test_a_refused_submit_harms_no_neighbour(replica: Checkpoint) -> None:
    earlier = await replica.create("reused", goal="this")
    gone = task_pb2.AgentPin(agent="nobody", revision=7)
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="room", exclusive=True)
    requests = [
        a_submit(),
        a_submit("reused", goal="this"),
        a_submit("reused-too", goal="first"),
        a_submit(control=task_pb2.ControlWork(function="nobody"), agent_pin=gone),
        a_submit(source=source),
        a_submit(source=source),
        a_submit(),
    ]
    async with creator_of(replica) as creator:
        first, repeat, new, no_agent, live, rival, last = await create_in_one_batch(creator, replica.tenant, *requests)
        [reused] = await create_in_one_batch(creator, replica.tenant, a_submit("reused-too", goal="second"))
    assert repeat == earlier
    assert (type(no_agent), no_agent.reason) == (NotFound, "AGENT_NOT_FOUND")
    busy = next(one for one in (live, rival) if isinstance(one, AlreadyExists))
    made = next(one for one in (live, rival) if one is not busy)
    assert (busy.reason, busy.metadata) == ("SOURCE_BUSY", {"task_id": made.task_id})
    assert (type(reused), reused.metadata) == (AlreadyExists, {"task_id": new.task_id})
    for task in (first, new, made, last):
        assert (await replica.get(task.task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_a_submit_that_the_database_refuses_harms_no_neighbour(replica: Checkpoint) -> None:
    await replica.create()
    await refuse_rows(replica.dsn, "tasks", "new.queue = 'refused'", Refusal.GUARD)
    requests = [a_submit(), a_submit(), a_submit(queue="refused"), a_submit()]
    async with creator_of(replica) as creator:
        one, two, refused, three = await create_in_one_batch(creator, replica.tenant, *requests)
    assert (type(refused), refused.reason) == (InvalidRequest, "UNWRITABLE")
    for task in (one, two, three):
        assert (await replica.get(task.task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_a_submit_rate_holds_within_a_batch(replica: Checkpoint) -> None:
    await replica.create()
    limit = "update ledger.tenants set max_submits_per_minute = 2, submits_policy = 'REFUSE' where tenant = %s"
    await replica.query(limit, replica.tenant)
    async with creator_of(replica) as creator:
        results = await create_in_one_batch(creator, replica.tenant, *[a_submit() for _ in range(6)])
    assert [one.reason for one in results if isinstance(one, LimitReached)] == ["TENANT_QUOTA"] * 4


async def test_a_submit_that_waits_for_its_request_id_delays_no_other(replica: Checkpoint) -> None:
    await replica.create()
    requests = [a_submit(), a_submit("in-use"), a_submit()]
    async with creator_of(replica) as creator, await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        [template] = await create_in_one_batch(creator, replica.tenant, a_submit())
        columns = "task_id, root_task_id, tenant, request_id, request_hash, queue, priority, loop, labels, max_steps"
        others = "on_lease_lost, deadline_at"
        await postgres.execute(
            f"""
            insert into ledger.tasks ({columns}, {others})
            select gen_random_uuid(), gen_random_uuid(), tenant, 'in-use', request_hash, queue, priority, loop, labels,
                   max_steps, {others} from ledger.tasks where task_id = %s
            """.encode(),
            [template.task_id],
        )
        running = asyncio.create_task(creator.run())
        creates = [asyncio.create_task(creator.create(replica.tenant, request)) for request in requests]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(creates[0], creates[2])
        assert not creates[1].done()
        await postgres.rollback()
        assert (await creates[1]).state == task_pb2.TASK_STATE_QUEUED
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
