"""Acts on many tasks through a gateway and a real ledger: each acts once, on what the filter selects, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import moment, timestamp
from tests.conformance.test_ledger_agents import Agents, without_code
from tests.conformance.test_ledger_operators import close_out, ended
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, kinds
from tests.support.fix_gateway import NOBODYS, Serve, StubOfTenant
from tests.support.fix_proxy import MakeProxy

DONE, ALREADY, REFUSED = api.ACT_RESULT_DONE, api.ACT_RESULT_ALREADY, api.ACT_RESULT_REFUSED
QUEUED, RUNNING, FAILED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_RUNNING, task_pb2.TASK_STATE_FAILED
WAITING_USER, CANCELLED = task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_CANCELLED
CANCEL: dict[str, Any] = {"cancel": api.ActOnTasksRequest.Cancel()}
REQUEUE: dict[str, Any] = {"requeue": ledger_pb2.OperatorRequest.Requeue()}
END_WAIT: dict[str, Any] = {"end_wait": api.ActOnTasksRequest.EndWait()}


def begin_wait() -> dict[str, Any]:
    until = ledger_pb2.OperatorRequest.BeginWait(question="the provider").until
    until.GetCurrentTime()
    until.seconds += 3600
    return {"begin_wait": ledger_pb2.OperatorRequest.BeginWait(question="the provider", until=until)}


def act(wanted: dict[str, Any], operation_id: str = "", **fields: Any) -> api.ActOnTasksRequest:
    return api.ActOnTasksRequest(
        operation_id=operation_id or str(uuid4()),
        filter=task_pb2.TaskFilter(**wanted),
        **{"reason": "the provider is back", "tasks_per_second": 1000, **fields},
    )


async def pages(stub: Any, request: api.ActOnTasksRequest) -> AsyncIterator[api.ActOnTasksResponse]:
    while True:
        page = await stub.admin.ActOnTasks(request)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return


async def outcomes(stub: Any, request: api.ActOnTasksRequest) -> dict[str, Any]:
    """The results by task."""
    return {one.task_id: one.result async for page in pages(stub, request) for one in page.outcomes}


async def test_every_filter_selects_what_it_names(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    """The same tasks in a list, in the counts of a dry run, and in the act."""
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="nightly")
    plain = (await replica.create()).task_id
    agents = Agents(replica)
    revision = (await agents.register(without_code())).revision.revision
    chosen = (await agents.submit(goal="g", queue="slow", labels={"team": "a"}, source=source)).task_id
    failed = (await ended(replica)).task.task_id
    stub, begin = await shared_gateway(), (await replica.get(chosen)).create_time
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"queue": "slow"}, {chosen}),
        ({"labels": {"team": "a"}}, {chosen}),
        ({"source": task_pb2.SourceFilter(kind=source.kind, source_id="nightly")}, {chosen}),
        ({"agent": "support"}, {chosen}),
        ({"agent": "support", "agent_revision": revision}, {chosen}),
        ({"agent": "support", "agent_revision": revision + 1}, set()),
        ({"states": [FAILED]}, {failed}),
        ({"states": [FAILED, QUEUED]}, {plain, chosen, failed}),
        ({"reasons": ["MODEL_UNAVAILABLE"]}, {failed}),
        ({"states": [FAILED], "reasons": ["MODEL_UNAVAILABLE", "RESULT_INVALID"]}, {failed}),
        ({"states": [QUEUED], "reasons": ["MODEL_UNAVAILABLE"]}, set()),
        ({"created_since": begin}, {chosen, failed}),
        ({"ended_since": begin}, {failed}),
        ({"ended_since": timestamp(moment(begin) + timedelta(minutes=10))}, set()),
        ({"task_ids": [plain, failed, NOBODYS]}, {plain, failed}),
        ({"task_ids": [plain, failed], "states": [FAILED]}, {failed}),
    ]
    for wanted, task_ids in cases:
        listed = await stub.ListTasks(tasks_pb.ListTasksRequest(filter=task_pb2.TaskFilter(**wanted)))
        assert {task.task_id for task in listed.tasks} == task_ids, wanted
        both = {"states": [QUEUED, FAILED], **wanted}
        counted = await stub.admin.ActOnTasks(act(both, **CANCEL, dry_run=True))
        assert {task_id for group in counted.groups for task_id in group.task_ids} == task_ids, wanted
        assert sum(group.count for group in counted.groups) == len(task_ids)
        assert not counted.outcomes
    assert kinds(await replica.entries(chosen))[-1] == ">QUEUED"  # a dry run records nothing
    results = await outcomes(stub, act({"labels": {"team": "a"}}, **CANCEL))
    assert results == {chosen: DONE}
    assert (await replica.get(plain)).state == QUEUED


async def test_an_act_without_states_takes_what_it_can_change(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    label: dict[str, Any] = {"labels": {"of": "verbs"}}
    queued = (await replica.create(**label)).task_id
    failed = (await ended(replica, **label)).task.task_id
    succeeded = (await ended(replica, task_pb2.TASK_STATE_CANCELLED, **label)).task.task_id
    stub = await shared_gateway()
    assert await outcomes(stub, act(label, **REQUEUE)) == {failed: DONE, succeeded: DONE}
    assert await outcomes(stub, act(label, **begin_wait())) == {queued: DONE, failed: DONE, succeeded: DONE}
    waiting = await replica.get(queued)
    assert (waiting.state, waiting.reason, waiting.message) == (WAITING_USER, "OPERATOR_WAIT", "the provider is back")
    assert await outcomes(stub, act(label, **begin_wait())) == {}
    assert await outcomes(stub, act({"task_ids": [queued]}, **begin_wait())) == {queued: ALREADY}
    assert await outcomes(stub, act(label, **END_WAIT)) == {queued: DONE, failed: DONE, succeeded: DONE}
    assert (await replica.get(queued)).state == QUEUED
    assert await outcomes(stub, act({"task_ids": [queued]}, **END_WAIT)) == {queued: ALREADY}
    assert await outcomes(stub, act(label, **CANCEL)) == {queued: DONE, failed: DONE, succeeded: DONE}
    entries = await replica.entries(queued)
    assert [entry.body.cancel_request.reason for entry in entries if entry.body.HasField("cancel_request")] == [
        "the provider is back"
    ]
    assert {entry.actor for entry in entries if entry.body.HasField("cancel_request")} == {f"tenant/{replica.tenant}"}


async def test_each_id_has_its_outcome(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    queued = (await replica.create()).task_id
    failed = (await ended(replica)).task.task_id
    stub = await shared_gateway()
    await stub.CancelTask(tasks_pb.CancelTaskRequest(task_id=queued))
    page = await stub.admin.ActOnTasks(act({"task_ids": [queued, failed, NOBODYS]}, **CANCEL))
    found = {one.task_id: (one.result, one.state, one.reason) for one in page.outcomes}
    assert found == {
        queued: (ALREADY, CANCELLED, ""),
        failed: (REFUSED, FAILED, "WRONG_STATE"),
        NOBODYS: (REFUSED, task_pb2.TASK_STATE_UNSPECIFIED, "TASK_NOT_FOUND"),
    }
    assert {one.message for one in page.outcomes if one.reason == "WRONG_STATE"} == {"the task has ended as FAILED"}


async def test_an_operation_that_is_repeated_acts_once(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    """Its answer was lost, and the task has ended again meanwhile."""
    task_id = (await ended(replica, labels={"of": "once"})).task.task_id
    stub = await shared_gateway()
    request = act({"labels": {"of": "once"}}, "operation-1", **REQUEUE)
    assert await outcomes(stub, request) == {task_id: DONE}
    assert await outcomes(stub, act({"task_ids": [task_id]}, "operation-1", **REQUEUE)) == {task_id: ALREADY}
    await close_out(replica, task_id)
    assert (await replica.get(task_id)).attempt == 2
    assert await outcomes(stub, request) == {task_id: ALREADY}
    task = await replica.get(task_id)
    assert (task.state, task.attempt) == (FAILED, 2)
    other = act({"labels": {"of": "once"}}, "operation-1", **REQUEUE, reason="another")
    (refused,) = (await stub.admin.ActOnTasks(other)).outcomes
    assert (refused.result, refused.reason) == (REFUSED, "REQUEST_ID_REUSED")


@pytest.mark.parametrize("selects", ["label", "ids"])
async def test_a_page_has_the_tasks_of_five_seconds(
    replica: Checkpoint, shared_gateway: StubOfTenant, selects: str
) -> None:
    """Its token continues after them, also when new tasks match by then."""
    label: dict[str, Any] = {"labels": {"of": selects}}
    made = [(await replica.create(**label)).task_id for _ in range(7)]
    wanted: dict[str, Any] = {"task_ids": made[::-1]} if selects == "ids" else label
    stub = await shared_gateway()
    request = act(wanted, **CANCEL, tasks_per_second=1)
    began = asyncio.get_running_loop().time()
    first = await stub.admin.ActOnTasks(request, timeout=60.0)
    assert asyncio.get_running_loop().time() - began >= 5.0
    assert [one.task_id for one in first.outcomes] == made[:1:-1]
    later = await replica.create(**label)
    request.page_token = f"{first.next_page_token}{'00' if selects == 'ids' else 'x'}"  # after all ids
    with pytest.raises(InvalidRequest):
        await stub.admin.ActOnTasks(request)
    request.page_token = first.next_page_token
    rest = await stub.admin.ActOnTasks(request, timeout=60.0)
    assert ([one.task_id for one in rest.outcomes], rest.next_page_token) == (made[1::-1], "")
    assert (await replica.get(later.task_id)).state == QUEUED


async def test_two_operators_at_once_act_once_on_each_task(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    label: dict[str, Any] = {"labels": {"of": "two"}}
    made = {(await ended(replica, **label)).task.task_id for _ in range(12)}
    stub = await shared_gateway()
    results = await asyncio.gather(*(outcomes(stub, act({"task_ids": sorted(made)}, **REQUEUE)) for _ in range(2)))
    for task_id in made:
        assert sorted(one[task_id] for one in results) == [DONE, ALREADY]
        assert (await replica.get(task_id)).attempt == 2


async def test_an_outage_ends_a_page_and_the_repeat_continues(
    checkpoint: MakeCheckpoint, gateway: Serve, tcp_proxy: MakeProxy
) -> None:
    replica = await checkpoint()
    made = {(await ended(replica)).task.task_id for _ in range(8)}
    host, _, port = replica.address.rpartition(":")
    proxy = await tcp_proxy(host, int(port))
    stub = await gateway(proxy.address)
    request = act({"states": [FAILED]}, "outage", **REQUEUE, tasks_per_second=4)
    acting = asyncio.ensure_future(stub.admin.ActOnTasks(request, timeout=60.0))
    while not await replica.query("select 1 from ledger.tasks where attempt = 2"):
        await asyncio.sleep(0.01)
    await proxy.stop()
    with pytest.raises(Unavailable) as refused:
        await acting
    assert refused.value.retry_after_seconds
    await proxy.start()
    await _reached_again(stub, min(made))
    results = await outcomes(stub, act({"task_ids": sorted(made)}, "outage", **REQUEUE, tasks_per_second=100))
    assert set(results.values()) == {DONE, ALREADY}
    assert {(await replica.get(task_id)).attempt for task_id in made} == {2}


async def _reached_again(stub: Any, task_id: str) -> None:
    """Waits until the gateway has a connection to the ledger again."""
    while True:
        try:
            await stub.GetTask(tasks_pb.GetTaskRequest(task_id=task_id))
        except Unavailable:
            await asyncio.sleep(0.1)
        else:
            return


async def test_tasks_of_another_tenant_are_not_acted_on(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    task_id = (await replica.create(labels={"of": "mine"})).task_id
    other = await shared_gateway("somebody-else")
    assert await outcomes(other, act({"labels": {"of": "mine"}}, **CANCEL)) == {}
    assert await outcomes(other, act({"task_ids": [task_id]}, **CANCEL)) == {task_id: REFUSED}
    assert not (await other.admin.ActOnTasks(act({"task_ids": [task_id]}, **CANCEL, dry_run=True))).groups
    assert (await replica.get(task_id)).state == QUEUED


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"filter": task_pb2.TaskFilter()}, "filter"),
        ({"filter": task_pb2.TaskFilter(agent_revision=3)}, "filter.agent_revision"),
        ({"cancel": None}, "act"),
        ({**REQUEUE, "reason": ""}, "reason"),
        ({"tasks_per_second": 1001}, "tasks_per_second"),
        ({"operation_id": ""}, "operation_id"),
    ],
)
async def test_an_act_that_says_too_little_is_refused(
    shared_gateway: StubOfTenant, fields: dict[str, Any], field: str
) -> None:
    stated = {"operation_id": "o", "filter": task_pb2.TaskFilter(queue="q"), **({} if "requeue" in fields else CANCEL)}
    with pytest.raises(InvalidRequest) as refused:
        await (await shared_gateway()).admin.ActOnTasks(api.ActOnTasksRequest(**{**stated, **fields}))
    assert field in {violation.field for violation in refused.value.violations}
