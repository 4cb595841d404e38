"""MCP programs that attack the service they belong to: confined, they reach nothing of it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.support.fix_mcp import Configure, McpServers, offered, programs
from tests.support.fix_tools import Grants, Outside, Owner, StartTools, ToolReplica, listed_sources
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined on Linux only")
SIGKILL, NOTHING = 9, 0


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The directory that the program may write."""
    directory = tmp_path / "own"
    directory.mkdir()
    return directory


@pytest.fixture
def listening() -> Iterator[dict[str, Any]]:
    """A TCP port and an abstract socket of this machine."""
    name = "tenure-test-" + uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + name)
        local.listen()
        yield {"port": tcp.getsockname()[1], "abstract": name}


async def attacked(tools: ToolReplica, owner: Owner, outside: Outside, signal: int, **targets: Any) -> dict[str, Any]:
    """What the program's attack on the service and on another task's files came to."""
    await tools.outcome(owner, "1.0", "write_file", path="theirs.txt", content="of another task")
    await offered(tools, owner, "odd__attack")
    targets |= {"pid": tools.process.pid, "signal": signal}
    outcome = await tools.outcome(owner, "2.0", "odd__attack", **targets)
    assert outcome.status is OutcomeStatus.SUCCEEDED, outcome
    result: dict[str, Any] = json.loads(outcome.content)
    return result


@pytest.fixture
def dsn_file(tmp_path: Path, tools_dsn: str) -> Path:
    (tmp_path / "dsn").write_text(tools_dsn)
    return tmp_path / "dsn"


@pytest.fixture
def targets(
    tmp_path: Path, dsn_file: Path, grants: Grants, outside: Outside, listening: dict[str, Any]
) -> dict[str, Any]:
    files = [dsn_file, tmp_path / "tools.json", grants.verifying_keys_file]
    return {**listening, "files": list(map(str, files)), "folders": [str(outside.workspaces), str(tmp_path)]}


async def test_confined_program_cannot_reach_the_service(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    mcp_servers: McpServers,
    tools_config: Configure,
    own: Path,
    dsn_file: Path,
    targets: dict[str, Any],
) -> None:
    config = tools_config(odd=mcp_servers.confined_script(own, env={"GIVEN": "yes"}, cwd=str(own)))
    tools = await tool_service(config_file=config, postgres_dsn="", postgres_dsn_file=dsn_file)
    owner = grants.claim()

    seen = await attacked(tools, owner, outside, SIGKILL, **targets)

    assert seen["reached"] == ["connected to the port"]  # the network is allowed
    assert set(seen["environment"]) - {"LC_CTYPE"} == {"PATH", "HOME", "TMPDIR", "USER", "GIVEN", "PWD"}
    assert (seen["environment"]["HOME"], seen["cwd"]) == ("/tmp", str(own))
    assert (own / "written").read_text() == "by the program"
    assert (await tools.outcome(owner, "3.0", "odd__meta")).status is OutcomeStatus.SUCCEEDED
    [pid] = programs(Path(sys.executable).resolve(), str(own))
    assert await tools.terminate() == 0
    assert not Path(f"/proc/{pid}").exists()


async def test_a_confined_program_without_network_has_none(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    mcp_servers: McpServers,
    tools_config: Configure,
    own: Path,
    targets: dict[str, Any],
) -> None:
    config = tools_config(odd=mcp_servers.confined_script(own, network=False))
    tools, owner = await tool_service(config_file=config), grants.claim()
    assert (await attacked(tools, owner, outside, SIGKILL, **targets))["reached"] == []


@pytest.mark.nightly
async def test_an_unconfined_program_has_the_services_rights(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    mcp_servers: McpServers,
    tools_config: Configure,
    own: Path,
    targets: dict[str, Any],
) -> None:
    tools, owner = await tool_service(config_file=tools_config(odd=mcp_servers.scripted(str(own)))), grants.claim()

    seen = await attacked(tools, owner, outside, NOTHING, **targets)

    files = {f"read {path}" for path in targets["files"]} | {f"read files in {path}" for path in targets["folders"]}
    process = {"traced the service", "signalled the service", f"read /proc/{tools.process.pid}/environ"}
    assert files | process | {"connected to the port", "connected to the abstract socket"} <= set(seen["reached"])


async def test_a_program_that_cannot_be_confined_is_not_started(
    tool_service: StartTools, mcp_servers: McpServers, tools_config: Configure, own: Path
) -> None:
    config = tools_config(odd=mcp_servers.confined_script(own), free=mcp_servers.scripted(str(own)))
    tools = await tool_service(config_file=config, sandbox_bubblewrap="/no/such/bwrap")

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (sources := await listed_sources(tools))["free"].linked:
            await asyncio.sleep(0.05)

    assert not sources["odd"].linked
    assert sources["odd"].last_error.startswith("SANDBOX_UNAVAILABLE: not started")
    assert "unconfined: true" in sources["odd"].last_error


@pytest.mark.nightly
async def test_a_command_that_is_not_visible_is_named(
    tool_service: StartTools, mcp_servers: McpServers, tools_config: Configure, own: Path
) -> None:
    config = tools_config(odd={**mcp_servers.confined_script(own), "read_only_paths": []})
    tools = await tool_service(config_file=config)

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (source := (await listed_sources(tools))["odd"]).last_error:
            await asyncio.sleep(0.05)

    assert "does not see its command" in source.last_error
    assert "read_only_paths" in source.last_error
