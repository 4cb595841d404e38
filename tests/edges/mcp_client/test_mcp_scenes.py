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
