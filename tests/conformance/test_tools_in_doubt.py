"""The list of calls in doubt, for the people who settle them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.tools.calls.closing import FenceCloser
from services.tools.calls.records import CallKey
from services.tools.calls.runs import RunningCalls
from services.tools.calls.start_and_finish import StartMark, withdraw_start
from services.tools.runners.identity import own_identity
from services.tools.statements import SCHEMA
from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.domain.fencing import TASK_PREFIX, Claims
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import as_tenant
from tenure.runtime.store.postgres import open_pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools, appear
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

UNSAFE = "append_record_unsafe"


async def listed(tools: Any, tenant: str = "default", **options: Any) -> Any:
    with as_tenant(tenant):
        return await tools.stub.ListInDoubtCalls(admin_pb.ListInDoubtCallsRequest(**options), timeout=CALL_SECONDS)


async def test_calls_in_doubt_are_listed_to_their_tenant_with_details(tool_service: StartTools, grants: Grants) -> None:
    dying, tools = await tool_service(), await tool_service()
    owners = [grants.claim(epoch=10), grants.claim(epoch=10), grants.claim(epoch=10, tenant="acme")]
    line = "é" * 3000
    for number, owner in enumerate(owners):
        dying.begin(owner, "1.0", UNSAFE, file="a", line=line, delay_ms=20_000)
        dying.begin(owner, "1.1", "append_record", file="a", line="x", delay_ms=20_000)
        await dying.started(owner, 2)
        assert not (await listed(tools)).calls, number
    instance = dying.logged("runner is alive")[0]["instance"]
    await dying.kill()
    for owner in owners:
        outcome = await tools.outcome(owner, "1.0", UNSAFE, file="a", line=line, delay_ms=20_000)
        assert outcome.status is OutcomeStatus.IN_DOUBT
    first = await listed(tools, page_size=1)
    second = await listed(tools, page_size=1, page_token=first.next_page_token)
    assert [one.call.task_id for one in (*first.calls, *second.calls)] == [owner.task_id for owner in owners[:2]]
    assert not second.next_page_token
    (call,) = (one.call for one in (await listed(tools, "acme")).calls)
    assert (call.task_id, call.call_id, call.tool, call.call_attempt) == (owners[2].task_id, "1.0", UNSAFE, 1)
    assert call.effect_class == tool_pb2.EFFECT_CLASS_UNSAFE
    assert call.runner_instance == instance
    assert call.HasField("start_time")
    assert call.doubt_time.ToDatetime() >= call.start_time.ToDatetime()
    assert call.arguments_truncated
    assert 4000 < len(call.arguments_json.encode()) <= 4096
    assert not (await listed(tools, "somebody-else")).calls
    assert not (await listed(tools, task_id=owners[2].task_id)).calls
    assert [one.call.task_id for one in (await listed(tools, task_id=owners[0].task_id)).calls] == [owners[0].task_id]
    with pytest.raises(InvalidRequest):
        await listed(tools, page_token="nonsense")


@pytest.mark.skipif(own_identity() is None, reason="only Linux tells which process is which")
async def test_a_proven_end_is_shown_and_a_late_outcome_ends_the_doubt(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    frozen = await tool_service(failpoints=f"tools.after_effect=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    dying, tools = await tool_service(failpoints="tools.after_effect=kill9"), await tool_service()
    slept, died = grants.claim(epoch=10), grants.claim(epoch=10)
    frozen.begin(slept, "1.0", UNSAFE, file="a", line="x")
    await appear(tmp_path / "there")
    with pytest.raises(Unavailable):
        await dying.outcome(died, "1.0", UNSAFE, file="b", line="x")
    await dying.ended()
    for owner, file in ((slept, "a"), (died, "b")):
        outcome = await tools.outcome(owner, "1.0", UNSAFE, file=file, line="x")
        assert outcome.status is OutcomeStatus.IN_DOUBT

    async def gone() -> Any:
        return {one.call.task_id: one.call.runner_gone for one in (await listed(tools)).calls}

    async with asyncio.timeout(PATIENCE_SECONDS):
        while await gone() != {slept.task_id: False, died.task_id: True}:
            await asyncio.sleep(0.05)
        frozen.thaw()
        while await gone() != {died.task_id: True}:
            await asyncio.sleep(0.05)


async def test_every_way_into_doubt_is_counted(
    tools_dsn: str, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    """Two calls of a task that is ended: one began before and is called off, the runner of the other is gone. Then
    one that had begun before has its mark taken back.
    """
    task_id = uuid.uuid4()
    await tools_database("insert into fences (task_id, tenant) values (%s, 'default')", task_id)
    for call_id, state in (("1.0", "ACCEPTED"), ("1.1", "STARTED"), ("1.2", "FINISHED"), ("1.3", "NOT_RUN")):
        await tools_database(
            "insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt,"
            " epoch, claim_id, begun_before, started_at, outcome, finished_at) values"
            " (%s, %s, 'pay', 'UNSAFE', sha256(''), '', %s, 1, 1, '', true, now(), %s, now())",
            task_id, call_id, state, b"" if state == "FINISHED" else None,
        )  # fmt: skip
    counted = metrics.cell("tenure_calls_in_doubt_total")
    before = counted.value
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        claims = Claims(f"{TASK_PREFIX}{task_id}", "default", 10, "claim", "worker")
        for _ in range(2):
            await FenceCloser(pool, RunningCalls()).fence(claims, task_id, close=True)
            assert counted.value == before + 2
        await tools_database("update calls set state = 'STARTED', doubted_at = null where call_id = '1.0'")
        for _ in range(2):
            await withdraw_start(pool, StartMark(CallKey(task_id, "1.0"), 1))
            assert counted.value == before + 3
