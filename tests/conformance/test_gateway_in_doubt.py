"""Calls in doubt through the gateway: what operators see of them, and what words they may give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.tools.runners.identity import own_identity
from tenure.domain.errors import InvalidRequest, NotFound, WrongState
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import task_pb2, tool_pb2
from tests.conformance.test_doubt_waits import UNSAFE, waiting
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import NOBODYS, Serve
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools, appear
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(own_identity() is None, reason="only Linux tells which process is which"),
]
Decision = tool_pb2.InDoubtDecision
_CALL = "'unsafe', 'UNSAFE', decode(repeat('00', 32), 'hex'), '{}', 'IN_DOUBT', 1, 10, ''"
_COLUMNS = "tool, effect_class, arguments_hash, arguments, state, call_attempt, epoch, claim_id, doubted_at"
CLOSED_DOUBTS = f"""
with task as (select gen_random_uuid() as task_id from generate_series(1, %s)),
     fence as (insert into fences (task_id, tenant) select task_id, 'default' from task returning task_id)
insert into calls (task_id, call_id, {_COLUMNS}) select task_id, '1.0', {_CALL}, now() - interval '1 day' from fence
"""
OPEN_DOUBTS = f"""
with call as (select * from unnest(%s::uuid[], %s::text[]) as w(task_id, call_id)),
     fence as (insert into fences (task_id, tenant) select distinct task_id, 'default' from call returning task_id)
insert into calls (task_id, call_id, {_COLUMNS})
select task_id, call_id, {_CALL}, now() from fence join call using (task_id)
"""
"""Records of calls in doubt as the tools keep them: of tasks that the ledger has pruned, and of these."""

DID_NOT_HAPPEN = Decision(did_not_happen=Decision.DidNotHappen())


def word(task_id: Any, decision: Any, call_attempt: int = 1, call_id: str = "1.0", **more: Any) -> Any:
    parameters = {"task_id": task_id, "call_id": call_id, "call_attempt": call_attempt, "reason": "I looked", **more}
    return api.ResolveInDoubtCallRequest(decision=decision, **parameters)


async def listed(stub: Any, **options: Any) -> Any:
    request = api.ListInDoubtCallsRequest(**options)
    return [one async for one in pages(stub, request)]


async def pages(stub: Any, request: Any) -> AsyncGenerator[Any]:
    while True:
        page = await stub.admin.ListInDoubtCalls(request)
        for one in page.calls:
            yield one
        if not (token := page.next_page_token):
            return
        request.page_token = token


async def test_resolutions_enter_the_ledger_unless_a_call_could_repeat(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    grants: Grants,
    gateway: Serve,
    outside: Outside,
    tmp_path: Path,
) -> None:
    frozen = await tool_service(failpoints=f"tools.before_effect=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    dying, tools = await tool_service(failpoints="tools.before_effect=kill9"), await tool_service()
    replica = await checkpoint()
    asleep, gone = await waiting(replica), await waiting(replica)
    frozen.begin(grants.claim(asleep.task.task_id, epoch=10), "1.0", UNSAFE, file="a", line="x")
    await appear(tmp_path / "there")
    dying.begin(grants.claim(gone.task.task_id, epoch=10), "1.0", UNSAFE, file="a", line="x")
    await dying.ended()
    for owner in (asleep, gone):
        outcome = await tools.outcome(grants.claim(owner.task.task_id, epoch=11), "1.0", UNSAFE, file="a", line="x")
        assert outcome.status is OutcomeStatus.IN_DOUBT
    stub = await gateway(replica.address, tools=tools.address)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not [one for one in await listed(stub) if one.call.runner_gone]:
            await asyncio.sleep(0.05)
    values = {one.call.task_id: one for one in await listed(stub, page_size=1)}
    assert set(values) == {asleep.task.task_id, gone.task.task_id}
    assert all(one.resolvable and one.task_reason == "TOOL_IN_DOUBT" for one in values.values())
    await check_sleeping(stub, replica, asleep)
    await check_gone(stub, replica, gone)
    assert not await listed(stub)
    all_of_them = {one.call.task_id: one for one in await listed(stub, all=True)}
    assert set(all_of_them) == set(values)
    assert not any(one.resolvable for one in all_of_them.values())
    assert outside.lines("a") == []


async def check_sleeping(stub: Any, replica: Any, owner: Any) -> None:
    """Its runner may wake up: it needs a person's word that it will not."""
    with pytest.raises(WrongState) as refused:
        await stub.admin.ResolveInDoubtCall(word(owner.task.task_id, DID_NOT_HAPPEN))
    assert refused.value.reason == "RUNNER_NOT_GONE"
    assert "is not proven gone" in refused.value.message
    assert (await replica.get(owner.task.task_id)).state == task_pb2.TASK_STATE_WAITING_USER
    by_word = Decision(did_not_happen=Decision.DidNotHappen(runner_is_gone=True, runner_proven_gone=True))
    resolve_in_doubt_call = await stub.admin.ResolveInDoubtCall(word(owner.task.task_id, by_word))
    assert (resolve_in_doubt_call.task.state, resolve_in_doubt_call.task.reason) == (
        task_pb2.TASK_STATE_QUEUED,
        "CALL_RESOLVED",
    )
    assert not (await recorded(replica, owner)).did_not_happen.runner_proven_gone, "the word of a caller is not a proof"
    with pytest.raises(WrongState) as refused:
        await stub.admin.ResolveInDoubtCall(word(owner.task.task_id, DID_NOT_HAPPEN))
    assert refused.value.reason == "NOT_IN_DOUBT", "no task waits for it any more"


async def check_gone(stub: Any, replica: Any, owner: Any) -> None:
    """Its runner is proven gone; the word is taken once, however often it is sent."""
    request = word(owner.task.task_id, DID_NOT_HAPPEN, request_id="once")
    for _ in range(2):
        resolve_in_doubt_call = await stub.admin.ResolveInDoubtCall(request)
        assert resolve_in_doubt_call.task.state == task_pb2.TASK_STATE_QUEUED
    assert (await recorded(replica, owner)).did_not_happen.runner_proven_gone
    with pytest.raises(WrongState) as refused:
        await stub.admin.ResolveInDoubtCall(word(owner.task.task_id, DID_NOT_HAPPEN))
    assert refused.value.reason == "NOT_IN_DOUBT"


@pytest.mark.faults
async def test_in_doubt_calls_of_another_tenant_are_not_found(
    checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve
) -> None:
    replica, tools = await checkpoint(), await tool_service()
    task_id = (await waiting(replica)).task.task_id
    mine = await gateway(replica.address, tools=tools.address)
    others = await gateway(replica.address, tools=tools.address, tenant="somebody-else")
    for request in (NOBODYS, task_id):
        with pytest.raises(NotFound):
            await listed(others, task_id=request)
        for decision in (DID_NOT_HAPPEN, Decision(abandon=Decision.Abandon())):
            with pytest.raises(NotFound):
                await others.admin.ResolveInDoubtCall(word(request, decision))
    with pytest.raises(WrongState) as refused:
        await mine.admin.ResolveInDoubtCall(word(task_id, DID_NOT_HAPPEN, call_attempt=7))
    assert refused.value.reason == "OTHER_ATTEMPT"
    with pytest.raises(WrongState) as refused:
        await mine.admin.ResolveInDoubtCall(word(task_id, DID_NOT_HAPPEN))
    assert refused.value.reason == "RUNNER_NOT_GONE", "an unknown call is not a proof"
    with pytest.raises(InvalidRequest):
        await mine.admin.ResolveInDoubtCall(word(task_id, DID_NOT_HAPPEN, reason=""))


async def test_unresolvable_calls_are_not_searched_for_resolvable_ones(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    gateway: Serve,
    tools_database: Callable[..., Awaitable[list[Any]]],
) -> None:
    replica, tools = await checkpoint(), await tool_service()
    many = (("1.0", 1), ("1.1", 1), ("1.10", 1))
    owners = [await waiting(replica, calls) for calls in (many, many[:1], many[:2])]
    await tools_database(CLOSED_DOUBTS, 200)
    counts = zip(owners, (3, 1, 2), strict=True)
    waited_for = [(owner.task.task_id, call_id) for owner, count in counts for call_id, _ in many[:count]]
    await tools_database(OPEN_DOUBTS, *map(list, zip(*waited_for, strict=True)))
    stub = await gateway(replica.address, tools=tools.address)
    for page_size in (1, 2, 5, 50):
        results = [(one.call.task_id, one.call.call_id) for one in await full_pages(stub, page_size, len(waited_for))]
        assert results == waited_for
    assert len(await listed(stub, all=True, page_size=100)) == 206
    assert await listed(stub, task_id=owners[1].task.task_id) == [
        one for one in await listed(stub) if one.call.task_id == owners[1].task.task_id
    ]


async def full_pages(stub: Any, page_size: Any, most: Any) -> Any:
    """All calls; no page is short but the last."""
    results, request = [], api.ListInDoubtCallsRequest(page_size=page_size)
    for _ in range(most + 1):
        page = await stub.admin.ListInDoubtCalls(request)
        results += page.calls
        if not page.next_page_token:
            return results
        assert len(page.calls) == page_size
        request.page_token = page.next_page_token
    raise AssertionError("there is always another page")


async def recorded(replica: Any, owner: Any) -> Any:
    """The one word in the task's ledger."""
    (request,) = [
        one.body.operator_request
        for one in await replica.entries(owner.task.task_id)
        if one.body.HasField("operator_request")
    ]
    assert request.reason == "I looked"
    return request.resolve_call.decision
