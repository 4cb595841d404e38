"""The records that audits read: all calls of a task, page by page, with the fence, to its own tenant only."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from checker.collect import calls_and_fence
from checker.reading import arguments_hash, outcome_hash
from tenure.domain.errors import NotFound
from tenure.domain.tools import CallState, EffectClass, OutcomeStatus
from tenure.v1 import admin_service_pb2 as api
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import NOBODYS, Serve
from tests.support.fix_tools import Grants, StartTools, ToolClient
from tests.support.patience import CALL_SECONDS


async def listed(tools: Any, owner: Any, after: str = "", page_size: int = 0) -> Any:
    request = api.ListCallsRequest(task_id=owner.task_id, after_call_id=after, page_size=page_size)
    return await tools.stub.ListCalls(request, timeout=CALL_SECONDS)


async def test_calls_are_listed_with_their_record_and_the_fence(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim(epoch=10, claim_id="the-claim")
    outcome = await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    page = await listed(tools, owner)
    calls, fence = calls_and_fence(owner.task_id, page)
    (call,) = calls
    assert (call.call_id, call.tool, call.effect_class) == ("1.0", "append_record", EffectClass.KEYED)
    assert (call.state, call.epoch, call.claim_id, call.call_attempt) == (CallState.FINISHED, 10, "the-claim", 1)
    assert call.runner_id
    assert call.arguments_hash == arguments_hash("append_record", '{"file": "a", "line": "x"}')
    assert call.outcome_hash == outcome_hash(outcome)
    assert call.outcome_hash == hashlib.sha256(b"SUCCEEDED\0\0" + outcome.content.encode()).digest()
    assert call.outcome is not None
    assert (call.outcome.status, call.outcome.content) == (OutcomeStatus.SUCCEEDED, "")
    assert fence is not None
    assert (fence.epoch, fence.claim_id, fence.closed) == (10, "the-claim", False)
    assert call.started_at is not None
    assert call.finished_at is not None
    assert fence.changed_at <= call.accepted_at <= call.started_at <= call.finished_at


async def test_closed_fence_has_a_time(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim(epoch=10)
    await tools.outcome(owner, "1.0", "list_files")
    await tools.fence(owner, close=True)
    page = await listed(tools, owner)
    [call], fence = calls_and_fence(owner.task_id, page)
    assert fence is not None
    assert fence.closed
    assert call.finished_at is not None
    assert fence.changed_at > call.finished_at


async def test_pages_follow_each_other_without_gap_or_repeat(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    names = [f"{step}.{index}" for step in (1, 2, 10) for index in range(2)]
    for name in names:
        await tools.outcome(owner, name, "list_files")
    seen, after, more = [], "", True
    while more:
        page = await listed(tools, owner, after, page_size=4)
        assert page.HasField("fence")
        seen += [call.record.call_id for call in page.calls]
        after, more = seen[-1], page.more
    assert seen == sorted(names)


async def test_calls_of_other_tenants_are_not_listed(tools: ToolClient, grants: Grants) -> None:
    stranger = grants.claim(tenant="somebody-else")
    await tools.outcome(stranger, "1.0", "list_files")
    for owner in (grants.claim(), stranger):
        page = await listed(tools, owner)
        assert (len(page.calls), page.HasField("fence"), page.more) == (0, False, False)


async def test_operators_read_refusals_of_their_own_tasks_only(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, gateway: Serve
) -> None:
    replica, tools = await checkpoint(), await tool_service()
    task_id = (await replica.create()).task_id
    stub = await gateway(replica.address, tools=tools.address)
    request = api.ListCallsRequest(task_id=task_id)
    assert not (await stub.admin.ListCalls(request)).HasField("fence")
    await tools.outcome(grants.claim(task_id), "1.0", "list_files")
    answer = await stub.admin.ListCalls(request)
    assert [call.record.call_id for call in answer.calls] == ["1.0"]
    assert answer.fence.epoch == 10
    others = await gateway(replica.address, tools=tools.address, tenant="somebody-else")
    for reader, wanted in ((others, task_id), (stub, NOBODYS)):
        with pytest.raises(NotFound):
            await reader.admin.ListCalls(api.ListCallsRequest(task_id=wanted))
