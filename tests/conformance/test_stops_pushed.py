"""A coordinator gives the tool service the ledger's stops: what a dead gateway left, and what a restore lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.coordinator.ledger_client import LedgerClient
from services.coordinator.stops import StopPush
from services.coordinator.tools_client import ToolsClient
from services.gateway.forwarding import TenantForwarder
from services.gateway.peers import Peers
from services.gateway.stops import begin_stop
from tenure.domain.errors import Unavailable
from tenure.runtime.request_context import as_tenant
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import ledger_pb2
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1 import tool_service_pb2 as pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, Owner, answer, entry, reserve
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.fix_tools import Owner as ToolOwner
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

STILL_RUNS = admin_pb.CALL_CERTAINTY_STILL_RUNS


def push_between(ledger: Checkpoint, tools: Any) -> StopPush:
    return StopPush(LedgerClient(ledger.channel), ToolsClient(tools.channel))


async def test_stop_of_a_dead_gateway_reaches_the_tools(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    """The gateway wrote to the ledger, and died before it asked the tool service."""
    ledger, tools = await checkpoint(), await tool_service()
    push = push_between(ledger, tools)
    await push.push()
    everything = admin_pb.BeginStopRequest(all=True, reason="wrong bills", actor="user/ann")
    await ledger.stub.BeginStop(everything, timeout=TIMEOUT_SECONDS)
    await push.push()
    with pytest.raises(Unavailable) as refusal:
        await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
    assert (refusal.value.reason, outside.lines("a")) == ("STOPPED", [])
    ended = admin_pb.EndStopRequest(all=True, reason="corrected", actor="user/ann")
    await ledger.stub.EndStop(ended, timeout=TIMEOUT_SECONDS)
    await push.push()
    await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
    assert len(outside.lines("a")) == 1


async def test_quota_of_0_stops_tool_calls_of_its_tenant(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    ledger, tools = await checkpoint(), await tool_service()
    gone = ["127.0.0.1:1"]
    async with Peers([ledger.address], gone, [tools.address]) as peers:
        with as_tenant(grants.tenant):
            gateway = TenantForwarder(peers, [grants.tenant])
            quota = tenants.Quota(kind=tenants.QUOTA_KIND_RUNNING_TASKS, most=0)
            wanted = tenants.UpdateTenantLimitsRequest(quotas=[quota], reason="they do not pay", actor="user/ann")
            updated = (await gateway.UpdateTenantLimits(wanted, None)).tenant
            assert list(updated.stopped.unconfirmed) == []
            with pytest.raises(Unavailable) as refusal:
                await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
            assert (refusal.value.reason, outside.lines("a")) == ("STOPPED", [])
            assert f"tenure tenants limit {grants.tenant} with a higher quota ends the stop" in str(refusal.value)
            quota.most = 7
            raised = tenants.UpdateTenantLimitsRequest(quotas=[quota], reason="they pay", actor="user/ann")
            await gateway.UpdateTenantLimits(raised, None)
    await push_between(ledger, tools).push()
    await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
    assert len(outside.lines("a")) == 1


async def test_restored_ledger_takes_stops_back(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants
) -> None:
    """The tool service keeps to them until an operator ends them in the restored ledger."""
    ledger, tools = await checkpoint(), await tool_service()
    stop = admin_pb.Stop(tenant=grants.tenant, reason="wrong bills", stopped_by="user/ann", epoch=9)
    stop.stop_time.GetCurrentTime()
    await tools.stub.SetStops(pb.SetStopsRequest(epoch=9, stops=[stop]), timeout=CALL_SECONDS)
    await push_between(ledger, tools).push()
    listed = await ledger.stub.ListStops(admin_pb.ListStopsRequest(), timeout=TIMEOUT_SECONDS)
    assert [(one.tenant, one.stopped_by) for one in listed.stops] == [(grants.tenant, "user/ann")]
    with pytest.raises(Unavailable):
        await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")


async def open_call(ledger: Checkpoint, grants: Grants) -> tuple[Owner, ToolOwner]:
    """A task whose owner has committed the intent of call 1.0, and what the owner shows to the tool service."""
    owner = await ledger.claim((await ledger.create()).task_id)
    await owner.commit(reserve=reserve(step=1))
    intent = ledger_pb2.ToolIntent(call_id="1.0", tool="append_record_unsafe", arguments_json="{}")
    await owner.commit(answer(), entry(1, tool_intent=intent))
    return owner, grants.claim(owner.task.task_id)


async def test_stop_lists_the_running_call_of_a_lost_worker(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants
) -> None:
    """The call runs on while its task waits for the next worker."""
    ledger, tools = await checkpoint(), await tool_service()
    owner, caller = await open_call(ledger, grants)
    running = tools.begin(caller, "1.0", "append_record_unsafe", file="a", line="x", delay_ms=5000)
    await tools.started(caller)
    assert await ledger.requeue(owner) == [owner.task.task_id]
    wanted = admin_pb.BeginStopRequest(tenant=grants.tenant, reason="wrong bills", actor="user/ann")
    async with Peers([ledger.address], ["127.0.0.1:1"], [tools.address]) as peers:
        begun = await begin_stop(peers, wanted)
    assert [(call.task_id, call.certainty) for call in begun.calls] == [(owner.task.task_id, STILL_RUNS)]
    await running


async def test_stop_is_answered_though_its_calls_are_unknown(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, tools_database: Any
) -> None:
    """Both services have the stop, and then the tool service cannot read its calls."""
    ledger, tools = await checkpoint(), await tool_service()
    await open_call(ledger, grants)
    await tools_database("alter table fences rename to unreadable")
    wanted = admin_pb.BeginStopRequest(tenant=grants.tenant, reason="wrong bills", actor="user/ann")
    async with Peers([ledger.address], ["127.0.0.1:1"], [tools.address]) as peers:
        begun = await begin_stop(peers, wanted)
    assert (begun.stop.tenant, list(begun.unconfirmed), begun.more) == (grants.tenant, ["tools"], True)


async def test_stop_lists_a_call_that_began_while_it_was_taken(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants
) -> None:
    """A worker takes the task over between the two services: the ledger has the stop, the tool service has not."""
    ledger, asked, tools = await checkpoint(), await tool_service(), await tool_service()
    wanted = admin_pb.BeginStopRequest(tool="append_*", reason="wrong bills", actor="user/ann")
    async with Peers([ledger.address], ["127.0.0.1:1"], [asked.address]) as peers, asyncio.timeout(PATIENCE_SECONDS):
        asked.freeze()
        stopping = asyncio.create_task(begin_stop(peers, wanted))
        while not (await ledger.stub.ListStops(admin_pb.ListStopsRequest(), timeout=TIMEOUT_SECONDS)).stops:
            await asyncio.sleep(0.02)
        owner, caller = await open_call(ledger, grants)
        running = tools.begin(caller, "1.0", "append_record_unsafe", file="a", line="x", delay_ms=5000)
        await tools.started(caller)
        asked.thaw()
        begun = await stopping
    assert [(call.task_id, call.certainty) for call in begun.calls] == [(owner.task.task_id, STILL_RUNS)]
    await running


async def test_stop_after_a_restore_is_taken_by_the_tools(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants
) -> None:
    """The restored ledger gives the epoch out again under which the tool service keeps to another stop."""
    ledger, tools = await checkpoint(), await tool_service()
    lost = admin_pb.Stop(tenant="other", reason="wrong bills", stopped_by="user/ann", epoch=1)
    lost.stop_time.GetCurrentTime()
    await tools.stub.SetStops(pb.SetStopsRequest(epoch=1, stops=[lost]), timeout=CALL_SECONDS)
    wanted = admin_pb.BeginStopRequest(tenant=grants.tenant, reason="wrong bills", actor="user/ann")
    async with Peers([ledger.address], ["127.0.0.1:1"], [tools.address]) as peers:
        begun = await begin_stop(peers, wanted)
    assert (begun.stop.epoch, list(begun.unconfirmed)) == (1, [])
    with pytest.raises(Unavailable) as refusal:
        await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
    assert refusal.value.reason == "STOPPED"
    listed = await ledger.stub.ListStops(admin_pb.ListStopsRequest(), timeout=TIMEOUT_SECONDS)
    assert {one.tenant for one in listed.stops} == {"other", grants.tenant}
