"""MCP servers in the sandbox: each task has a process of its own, which sees that task's files and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tenure.domain.tools import OutcomeStatus
from tests.support.fix_mcp import (
    Configure,
    McpServers,
    offered,
    programs,
)
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS


async def counted(node: Path, expected: int) -> None:
    """Returns when so many servers run."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(programs(node, "/work")) != expected:
            await asyncio.sleep(0.05)


async def test_a_tasks_server_sees_only_its_files_and_ends_with_it(
    tool_service: StartTools, grants: Grants, outside: Outside, mcp_servers: McpServers, tools_config: Configure
) -> None:
    config = tools_config(files=mcp_servers.sandboxed_filesystem(max_servers=2))
    tools, (one, other, third) = await tool_service(config_file=config), [grants.claim() for _ in range(3)]
    await offered(tools, one, "files__.*")

    written = await tools.outcome(one, "1.0", "files__write_file", path="/work/mine.txt", content="mine")
    by_program = await tools.outcome(one, "1.1", "execute_python", code="print(open('mine.txt').read())")
    listed = await tools.outcome(other, "1.0", "files__list_directory", path="/work")
    path = str(outside.workspace(one) / "mine.txt")
    escaped = await tools.outcome(other, "1.1", "files__read_text_file", path=path)

    assert written.status is OutcomeStatus.SUCCEEDED
    assert (outside.workspace(one) / "mine.txt").read_text() == "mine"
    assert by_program.content == "mine"
    assert "mine" not in listed.content
    assert escaped.status is OutcomeStatus.FAILED
    await counted(mcp_servers.node, 2)

    third_s = await tools.outcome(third, "1.0", "files__list_directory", path="/work")  # the idle server makes room
    assert third_s.status is OutcomeStatus.SUCCEEDED
    await counted(mcp_servers.node, 2)
    again = await tools.outcome(one, "1.2", "files__read_text_file", path="/work/mine.txt")
    assert again.content == "mine"

    await tools.fence(one, close=True)
    await counted(mcp_servers.node, 1)
    await tools.kill()
    await counted(mcp_servers.node, 0)


async def test_a_sandboxed_server_has_no_network_secrets_or_host(
    tool_service: StartTools, grants: Grants, outside: Outside, mcp_servers: McpServers, tools_config: Configure
) -> None:
    config = tools_config(odd=mcp_servers.sandboxed_script(env={"TOKEN": "given"}, idle_seconds=0.5))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__look")
    port, paths = int(tools.address.rpartition(":")[2]), ["/work", "/var", str(outside.workspaces), "/etc/passwd"]

    outcome = await tools.outcome(owner, "1.0", "odd__look", port=port, paths=paths)

    seen = json.loads(outcome.content)
    assert seen["network"] != "connected"
    assert seen["seen"] == {"/work": True, "/var": False, str(outside.workspaces): False, "/etc/passwd": False}
    assert seen["environment"]["TOKEN"] == "given"
    assert not [name for name in seen["environment"] if name.startswith("TENURE")]
    assert seen["cwd"] == "/work"
    await counted(Path(mcp_servers.sandboxed_script()["command"]), 0)
