"""The tools' fence: who may call, what a higher epoch takes over, what a close ends."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2, tool_service_pb2
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient, appear, execute_request
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS


async def asked_for_ever(tools: Any, owner: Any) -> None:
    """Until it is refused."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await tools.outcome(owner, "9.0", "list_files")


async def refused_calls(tools: Any, owner: Any) -> Any:
    request = tool_service_pb2.ListRefusedCallsRequest(task_id=owner.task_id)
    return (await tools.stub.ListRefusedCalls(request, timeout=CALL_SECONDS)).refused_calls


async def test_a_lower_epoch_is_refused_and_leaves_a_trail(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools = await tool_service()
    old = grants.claim(epoch=10)
    new = grants.claim(old.task_id, epoch=11)
    await tools.outcome(new, "1.0", "append_record", file="a", line="x")
    with pytest.raises(StaleEpoch) as caught:
        await tools.outcome(old, "1.1", "append_record", file="a", line="y")
    assert (caught.value.presented, caught.value.current) == (10, 11)
    assert len(outside.lines("a")) == 1
    (refusal,) = await refused_calls(tools, old)
    assert (refusal.method, refusal.presented_epoch, refusal.current_epoch) == ("Execute", 10, 11)
    assert (refusal.holder, refusal.task_id) == ("worker-1", old.task_id)
    assert tools.logged("refused a stale Execute")[0]["task"] == old.task_id


async def test_lower_epoch_gets_no_recorded_outcome(tools: ToolClient, grants: Grants) -> None:
    old = grants.claim(epoch=10)
    await tools.outcome(old, "1.0", "append_record", file="a", line="x")
    await tools.fence(grants.claim(old.task_id, epoch=11))
    with pytest.raises(StaleEpoch):
        await tools.outcome(old, "1.0", "append_record", file="a", line="x")


async def test_stale_token_lists_no_tools(tools: ToolClient, grants: Grants) -> None:
    old = grants.claim(epoch=10)
    new = grants.claim(old.task_id, epoch=11)
    assert await names_of_tools(tools, new)  # does not raise the fence: the old claim may still have effects
    assert await names_of_tools(tools, old)
    await tools.fence(new)
    with pytest.raises(StaleEpoch) as caught:
        await names_of_tools(tools, old)
    assert (caught.value.presented, caught.value.current) == (10, 11)
    await tools.fence(new, close=True)
    with pytest.raises(StaleEpoch):
        await names_of_tools(tools, new)


async def names_of_tools(tools: Any, owner: Any) -> Any:
    request = tool_service_pb2.ListToolsRequest(token=owner.token)
    return [tool.name for tool in (await tools.stub.ListTools(request, timeout=CALL_SECONDS)).tools]


async def test_an_equal_epoch_of_another_claim_is_refused(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    one = grants.claim(epoch=10)
    await tools.fence(one)
    with pytest.raises(StaleEpoch):
        await tools.outcome(grants.claim(one.task_id, epoch=10), "1.0", "append_record", file="a", line="x")
    assert outside.lines("a") == []


async def test_the_trail_is_shown_to_its_own_tenant_only(tools: ToolClient, grants: Grants) -> None:
    old = grants.claim(epoch=10, tenant="other")
    await tools.fence(grants.claim(old.task_id, epoch=11, tenant="other"))
    with pytest.raises(StaleEpoch):
        await tools.fence(old)
    assert not await refused_calls(tools, old)


async def test_concurrent_first_calls_are_accepted(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    outcomes = await asyncio.gather(*(tools.outcome(owner, f"1.{n}", "list_files") for n in range(20)))
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}


async def test_closed_fence_refuses_the_same_epoch(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    calls = await tools.fence(owner, close=True)
    assert calls["1.0"].state == tool_pb2.CALL_STATE_FINISHED
    assert calls["1.0"].outcome.content == "Appended."
    with pytest.raises(StaleEpoch):  # an Execute that was delayed on its way
        await tools.outcome(owner, "1.1", "append_record", file="a", line="late")
    with pytest.raises(StaleEpoch):
        await tools.fence(owner, close=False)
    assert await tools.fence(owner, close=True) == calls
    assert len(outside.lines("a")) == 1


async def test_a_higher_epoch_opens_a_closed_fence_again(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim(epoch=10)
    await tools.fence(owner, close=True)
    next_owner = grants.claim(owner.task_id, epoch=11)
    outcome = await tools.outcome(next_owner, "1.0", "append_record", file="a", line="x")
    assert outcome.status is OutcomeStatus.SUCCEEDED


async def test_higher_epoch_takes_over_an_accepted_call(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(failpoints=f"tools.after_accept=1#touch({tmp_path}/accepted)->1#wait({tmp_path}/go)")
    old = grants.claim(epoch=10)
    first = tools.begin(old, "1.0", "append_record_unsafe", file="a", line="x")
    await appear(tmp_path / "accepted")
    outcome = await tools.outcome(
        grants.claim(old.task_id, epoch=11), "1.0", "append_record_unsafe", file="a", line="x"
    )
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    (tmp_path / "go").touch()
    with pytest.raises(StaleEpoch):
        await first
    assert [line["epoch"] for line in outside.lines("a")] == [11]


async def test_higher_epoch_joins_a_started_call(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
) -> None:
    tools = await tool_service(failpoints=f"tools.after_effect=1#wait({tmp_path}/go)")
    old = grants.claim(epoch=10)
    request = execute_request(old, "1.0", "append_record_unsafe", json.dumps({"file": "a", "line": "x"}))
    call = tools.stub.Execute(request, timeout=CALL_SECONDS)
    assert (await call.read()).HasField("started")
    request.token.CopyFrom(grants.claim(old.task_id, epoch=11).token)
    joining = tools.stub.Execute(request, timeout=CALL_SECONDS)
    started = (await joining.read()).started
    assert (started.call_attempt, started.joined) == (1, True)
    (tmp_path / "go").touch()
    assert (await joining.read()).outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED
    assert len(outside.lines("a")) == 1
    assert await tools_database("select epoch from calls where task_id = %s", uuid.UUID(old.task_id)) == [(11,)]


async def test_close_makes_an_accepted_call_not_run(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(failpoints=f"tools.after_accept=touch({tmp_path}/accepted)->wait({tmp_path}/go)")
    owner = grants.claim()
    call = tools.begin(owner, "1.0", "append_record", file="a", line="x")
    await appear(tmp_path / "accepted")
    calls = await tools.fence(owner, close=True)
    assert calls["1.0"].state == tool_pb2.CALL_STATE_NOT_RUN
    assert not calls["1.0"].HasField("outcome")
    assert not calls["1.0"].HasField("start_time")
    (tmp_path / "go").touch()
    with pytest.raises(StaleEpoch):
        await call
    assert outside.lines("a") == []
    after = await tools.outcome(grants.claim(owner.task_id, epoch=99), "1.0", "append_record", file="a", line="x")
    assert after.status is OutcomeStatus.NOT_RUN


async def test_cancelled_rerun_of_a_started_call_is_in_doubt(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    dying = await tool_service(failpoints="tools.after_effect=kill9")
    owner = grants.claim()
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", "append_record", file="a", line="x")
    await dying.ended()
    tools = await tool_service(failpoints=f"tools.after_accept=touch({tmp_path}/accepted)->wait({tmp_path}/go)")
    again = tools.begin(owner, "1.0", "append_record", file="a", line="x")
    await appear(tmp_path / "accepted")
    calls = await tools.fence(owner, close=True)
    assert calls["1.0"].state == tool_pb2.CALL_STATE_IN_DOUBT
    (tmp_path / "go").touch()
    with pytest.raises(StaleEpoch):
        await again
    after = await tools.outcome(grants.claim(owner.task_id, epoch=99), "1.0", "append_record", file="a", line="x")
    assert after.status is OutcomeStatus.IN_DOUBT
    assert len(outside.lines("a")) == 1


async def test_close_on_one_replica_stops_a_call_on_another(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, other = await tool_service(), await tool_service()
    owner = grants.claim()
    call = tools.begin(owner, "1.0", "append_record_unsafe", file="a", line="x", delay_ms=25_000)
    await tools.started(owner)
    calls = await other.fence(owner, close=True)
    assert calls["1.0"].outcome.status == tool_pb2.OUTCOME_STATUS_CANCELLED
    assert (await call).status is OutcomeStatus.CANCELLED
    assert outside.lines("a") == []


async def test_close_waits_for_a_call_after_its_effect(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(failpoints=f"tools.after_effect=1#touch({tmp_path}/done)->1#wait({tmp_path}/go)")
    owner = grants.claim()
    call = tools.begin(owner, "1.0", "append_record_unsafe", file="a", line="x")
    await appear(tmp_path / "done")
    closing = asyncio.create_task(tools.fence(owner, close=True))
    with pytest.raises(StaleEpoch):  # the close has come this far
        await asked_for_ever(tools, owner)
    (tmp_path / "go").touch()
    assert (await closing)["1.0"].outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED
    assert (await call).status is OutcomeStatus.SUCCEEDED


async def test_two_replicas_join_one_call(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools, other = await tool_service(failpoints=f"tools.before_effect=wait({tmp_path}/go)"), await tool_service()
    owner = grants.claim()
    call = tools.begin(owner, "1.0", "append_record_unsafe", file="a", line="x")
    await tools.started(owner)
    request = execute_request(owner, "1.0", "append_record_unsafe", json.dumps({"file": "a", "line": "x"}))
    joining = other.stub.Execute(request, timeout=CALL_SECONDS)
    assert (await joining.read()).started.joined
    (tmp_path / "go").touch()
    assert (await joining.read()).outcome.content == (await call).content == "Appended."
    assert len(outside.lines("a")) == 1


async def test_replicas_that_meet_a_task_for_the_first_time_agree(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    replicas = [await tool_service(), await tool_service()]
    owners = [grants.claim() for _ in range(40)]
    arguments = {"file": "a", "line": "x"}
    outcomes = await asyncio.gather(
        *(tools.outcome(owner, "1.0", "append_record_unsafe", **arguments) for owner in owners for tools in replicas)
    )
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    assert len(outside.lines("a")) == len(owners)


async def test_fence_response_with_many_outputs_is_truncated(
    tools: ToolClient, grants: Grants, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="f", content="x" * 64_000)
    await asyncio.gather(*(tools.outcome(owner, f"2.{n}", "read_file", path="f") for n in range(80)))
    await tools.outcome(owner, "3.0", "read_file", path="f")
    calls = await tools.fence(owner)
    assert len(calls) == 82
    assert calls["3.0"].outcome.content == "x" * 64_000
    assert all(call.HasField("outcome") for call in calls.values())
    assert any(call.outcome.truncated for call in calls.values())
