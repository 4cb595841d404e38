"""Tasks call tools of MCP servers of other projects: what comes of it is in the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.support.fix_mcp import McpServers
from tests.support.hostile_tools import GOOD, TOOLS
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
async def with_mcp(
    own_installation: Installation, mcp_servers: McpServers, tmp_path: Path
) -> AsyncIterator[Installation]:
    """The installation, with a server in the sandbox and one beside it; afterwards without them again."""
    config, memory = tmp_path / "tools.json", tmp_path / "memory"
    memory.mkdir()
    servers = {
        "files": mcp_servers.sandboxed_filesystem(),
        "memory": mcp_servers.memory(memory / "memory.jsonl"),
    }
    config.write_text(json.dumps({"mcpServers": servers}))
    tools = own_installation.stack.services["tools"]
    try:
        await tools.restart({"TENURE_TOOLS_CONFIG_FILE": str(config)})
        yield own_installation
    finally:
        await tools.restart()


async def test_a_task_uses_mcp_servers_and_records_their_answers(with_mcp: Installation) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while with_mcp.stack.services["tools"].log().count("registered the tools of an MCP server") < 2:
            await asyncio.sleep(0.05)

    task_id = await with_mcp.submit("sim-e2e-mcp", "as it was asked")
    task = await with_mcp.ended(task_id)
    entries = await with_mcp.entries(task_id)

    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, task.message
    check_whole(entries)
    outcomes = {
        e.body.tool_outcome.call_id: e.body.tool_outcome.outcome for e in entries if e.body.HasField("tool_outcome")
    }
    assert "as it was asked" in outcomes["2.0"].content
    assert "Tenure" in outcomes["2.1"].content
    assert "as it was asked" in task.result


async def test_a_task_beside_hostile_tools_succeeds(
    own_installation: Installation, mcp_servers: McpServers, tmp_path: Path
) -> None:
    """The provider refuses one tool that the service took: the task goes on without that tool."""
    config, listing = tmp_path / "tools.json", tmp_path / "listing.json"
    listing.write_text(json.dumps([GOOD, *TOOLS]))
    config.write_text(json.dumps({"mcpServers": {"odd": mcp_servers.scripted(str(tmp_path), str(listing))}}))
    service = own_installation.stack.services["tools"]
    try:
        await service.restart({"TENURE_TOOLS_CONFIG_FILE": str(config)})
        task_id = await own_installation.submit("sim-e2e-hostile-tools")
        task = await own_installation.ended(task_id)
        entries = await own_installation.entries(task_id)
    finally:
        await service.restart()

    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, task.message
    assert task.result == '{"text": "hello"} {"b": "x"} {"$filter": "y", "$top": 3}'
    check_whole(entries)
    failures = [entry.body.model_failure for entry in entries if entry.body.HasField("model_failure")]
    assert [(failure.error_class, list(failure.refused_tools)) for failure in failures] == [
        ("TOOL_REFUSED", ["odd__bad_regex"])
    ]
    assert "the provider refuses the definition of odd__bad_regex: tools." in failures[0].message
    explained = (await own_installation.client.explain(task_id)).lines
    assert any("is not shown these tools" in line and "odd__bad_regex" in line for line in explained)
