"""What touched an order: the list of effects over all tasks of a tenant, and how long an effect is remembered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.runtime.request_context import as_tenant
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2, tool_service_pb2
from tests.support.fix_tools import TENANT, Grants, Outside, StartTools, ToolReplica
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

TOOL = "append_record_unsafe"
HAPPENED, NONE = tool_pb2.EFFECT_FACT_HAPPENED, tool_pb2.EFFECT_FACT_NONE


async def with_key(tool_service: StartTools, folder: Path) -> ToolReplica:
    key = {"arguments": ["/line"], "scope": "tenant", "period": "30d"}
    file = folder / "tools.json"
    file.write_text(json.dumps({"built_in": {TOOL: {"effect_key": key}}}))
    return await tool_service(config_file=file, sandbox_bubblewrap="/nonexistent/bwrap")


async def listed(tools: ToolReplica, tenant: str = TENANT, **fields: Any) -> list[tool_pb2.EffectCall]:
    """Returns all pages, each with one call."""
    request = admin_pb.ListEffectsRequest(tool=TOOL, page_size=1, **fields)
    calls: list[tool_pb2.EffectCall] = []
    while True:
        with as_tenant(tenant):
            page = await tools.stub.ListEffects(request, timeout=CALL_SECONDS)
        calls += page.effects
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return calls


async def test_effects_are_listed_over_tasks_for_their_tenant(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await with_key(tool_service, tmp_path)
    first, second, other = grants.claim(), grants.claim(), grants.claim(tenant="other")
    for owner, call_id, line in ((first, "1.0", "7"), (second, "1.0", "8"), (second, "2.0", "7"), (other, "1.0", "7")):
        await tools.outcome(owner, call_id, TOOL, file="a", line=line)
    calls = await listed(tools, key={"line": "7"})
    assert [(call.task_id, call.call_id, call.fact) for call in calls] == [
        (first.task_id, "1.0", HAPPENED),
        (second.task_id, "2.0", NONE),
    ]
    assert [(call.detail, call.has_key) for call in calls] == [("", True), ("ALREADY_HAPPENED", False)]
    assert json.loads(calls[0].key_json) == {"/line": "7"}
    assert [line["key"] for line in outside.lines("a") if line["line"] == "7"] == [calls[0].idempotency_key]
    assert [call.task_id for call in await listed(tools, "other", key={"/line": "7"})] == [other.task_id]
    assert len(await listed(tools)) == 3
    assert await listed(tools, key={"line": "9"}) == []


async def test_a_bad_page_token_is_refused(tool_service: StartTools, tmp_path: Path) -> None:
    tools = await with_key(tool_service, tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        await listed(tools, page_token="x")
    assert [violation.field for violation in refused.value.violations] == ["page_token"]


async def test_an_effect_outlives_its_pruned_task_for_its_period(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tmp_path: Path,
    tools_database: Callable[..., Awaitable[list[Any]]],
) -> None:
    tools = await with_key(tool_service, tmp_path)
    pruned, later = grants.claim(), grants.claim()
    await tools.outcome(pruned, "1.0", TOOL, file="a", line="7")
    await tools.stub.Forget(tool_service_pb2.ForgetRequest(token=pruned.token), timeout=CALL_SECONDS)
    repeat = await tools.outcome(later, "1.0", TOOL, file="a", line="7")
    assert (repeat.detail, len(outside.lines("a"))) == ("ALREADY_HAPPENED", 1)
    assert repeat.content.endswith("Its outcome was deleted with its task.")
    facts = [(call.task_id, call.state, call.fact) for call in await listed(tools)]
    assert facts == [(pruned.task_id, 0, HAPPENED), (later.task_id, tool_pb2.CALL_STATE_FINISHED, NONE)]
    await tools_database("update effects set ends_at = ends_at - interval '31 days'")
    await with_key(tool_service, tmp_path)  # its first sweep is at its start
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await tools_database("select 1 from effects"):
            await asyncio.sleep(0.02)
