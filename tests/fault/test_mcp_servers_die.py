"""MCP servers that die, hang, come late, change and talk nonsense: what comes of their calls, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.v1 import tool_pb2
from tests.support.fix_mcp import (
    Configure,
    McpServers,
    definitions,
    ended,
    free_port,
    gone,
    linked,
    offered,
    processes,
    withdrawn,
)
from tests.support.fix_tools import Grants, StartTools, appear
from tests.support.patience import STANDSTILL_SECONDS

SECONDS = STANDSTILL_SECONDS + 1
"""Until a call that hangs is given up, and others are not."""


async def test_a_call_of_a_dead_server_is_repeated_or_in_doubt(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    classes = ("PURE", "IDEMPOTENT", "KEYED", "UNSAFE")
    servers = {name: mcp_servers.scripted(str(tmp_path), effects={"die": name}) for name in classes}
    servers["hopeless"] = servers["PURE"]
    tools, owner = await tool_service(config_file=tools_config(**servers)), grants.claim()
    for name in servers:
        await offered(tools, owner, f"{name}__die")

    called = {name: tools.begin(owner, f"1.{at}", f"{name}__die", file=name) for at, name in enumerate(classes)}
    hopeless = await tools.outcome(owner, "2.0", "hopeless__die", file="hopeless", times=99)
    outcomes = {name: await call for name, call in called.items()}

    sent = {name: (tmp_path / name).read_text().splitlines() for name in servers}
    for at, name in enumerate(classes[:3]):
        assert outcomes[name].content == "alive"
        assert sent[name] == [json.dumps(f"{owner.task_id}/1.{at}")] * 2
    assert outcomes["UNSAFE"].status is OutcomeStatus.IN_DOUBT
    assert len(sent["UNSAFE"]) == 1
    assert (hopeless.status, hopeless.detail) == (OutcomeStatus.FAILED, "CONNECTION_LOST")
    assert len(sent["hopeless"]) == 3
    assert (await tools.fence(owner))["1.3"].state == tool_pb2.CALL_STATE_IN_DOUBT


@pytest.mark.faults
async def test_a_silent_server_is_restarted(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    effects = {"hang": "IDEMPOTENT"}
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path), timeout_seconds=SECONDS, effects=effects))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__hang")

    outcome = await tools.outcome(owner, "1.0", "odd__hang", file="hangs")

    assert outcome.status is OutcomeStatus.TIMED_OUT
    hanging = (tmp_path / "hangs").read_text().strip()
    await ended(int(hanging))
    await linked(tools, "odd")
    assert (await tools.outcome(owner, "1.1", "odd__meta")).status is OutcomeStatus.SUCCEEDED


@pytest.mark.faults
async def test_a_late_call_is_cancelled_at_its_server(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path), timeout_seconds=SECONDS))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__wait")
    before = processes(str(tmp_path))

    outcome = await tools.outcome(owner, "1.0", "odd__wait", file="waits")

    assert outcome.status is OutcomeStatus.IN_DOUBT  # it may pay later: that it was asked to stop decides nothing
    assert "was asked to stop" in outcome.content
    await appear(tmp_path / "cancelled")
    assert (await tools.outcome(owner, "1.1", "odd__meta")).status is OutcomeStatus.SUCCEEDED
    assert processes(str(tmp_path)) == before


@pytest.mark.faults
async def test_nothing_of_a_server_is_left_when_the_service_is_killed(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path)))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__spawn")
    child = int((await tools.outcome(owner, "1.0", "odd__spawn")).content)
    assert child in processes("left-behind", str(tmp_path))

    await tools.kill()

    await gone(str(tmp_path))


@pytest.mark.faults
async def test_no_server_process_survives_an_orderly_end(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path)))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__spawn")
    await tools.outcome(owner, "1.0", "odd__spawn")

    assert await tools.terminate() == 0

    assert processes(str(tmp_path)) == []


@pytest.mark.faults
async def test_a_server_that_comes_later_is_found(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    port = free_port()
    config = tools_config(web={"url": f"http://127.0.0.1:{port}/mcp", "timeout_seconds": 10})
    tools, owner = await tool_service(config_file=config), grants.claim()
    assert not any(name.startswith("web__") for name in await definitions(tools, owner))

    async with mcp_servers.everything_over_http(port):
        await offered(tools, owner, "web__echo")
        first = await tools.outcome(owner, "1.0", "web__echo", message="here")
    away = await tools.outcome(owner, "1.1", "web__echo", message="nobody")
    async with mcp_servers.everything_over_http(port):
        tries = (await tools.outcome(owner, f"2.{at}", "web__echo", message="back") for at in range(20))
        assert "Echo: back" in [tried.content async for tried in until_it_succeeds(tries)]

    assert first.content == "Echo: here"
    assert (away.status, away.detail) == (OutcomeStatus.FAILED, "UNREACHABLE")
    assert "Nothing was done" in away.content


async def until_it_succeeds(tries: AsyncIterator[Outcome]) -> AsyncIterator[Outcome]:
    """A call that waits has the server tried sooner: to wait for the log would take up to half a minute."""
    async for tried in tries:
        yield tried
        if tried.status is OutcomeStatus.SUCCEEDED:
            return


@pytest.mark.faults
async def test_tools_follow_their_server_s_list(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path), pin=False))
    tools, owner = await tool_service(config_file=config), grants.claim()
    result = await offered(tools, owner, "odd__rename")
    assert "odd__progress" in result
    assert not {"odd__fetched_schema", "odd__no name for models!"} & result.keys()
    left_out = [line["message"] for line in tools.log if "a tool of an MCP server" in line["message"]]
    assert any("fetched_schema" in line and "another document" in line for line in left_out)
    assert any("no name for models" in line for line in left_out)

    await tools.outcome(owner, "1.0", "odd__rename", to="news")

    await offered(tools, owner, "odd__news")
    await withdrawn(tools, owner, "odd__progress")


@pytest.mark.faults
async def test_nonsense_on_stdout_and_noise_on_stderr_do_no_harm(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path)))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__garbage")

    outcome = await tools.outcome(owner, "1.0", "odd__garbage")
    long = await tools.outcome(owner, "1.1", "odd__long", bytes=5_000_000)
    cut = await tools.outcome(owner, "1.2", "odd__long", bytes=1_000_000)

    assert outcome.content == "in spite of it"
    assert (long.status, long.detail) == (OutcomeStatus.FAILED, "OUTPUT_LIMIT")
    assert cut.truncated
    assert cut.output_path == "outputs/1.2.txt"
    said = [line for line in tools.log if line["message"] == "an MCP server wrote to stderr: a word on stderr"]
    assert 1 <= len(said) <= 50


@pytest.mark.faults
async def test_a_server_is_killed_from_outside_and_comes_back(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path)))
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__meta")

    for pid in processes(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)

    outcome = await tools.outcome(owner, "1.0", "odd__meta")
    assert outcome.status is OutcomeStatus.SUCCEEDED
