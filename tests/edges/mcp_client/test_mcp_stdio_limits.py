"""What a program outside may make this service hold, write and do by the lines it writes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from edges.mcp_client import connection as links
from edges.mcp_client import stdio_framing
from edges.mcp_client.connection import McpSession, program_link
from edges.mcp_client.settings import McpServer
from edges.mcp_client.sources import ToolsOfServer
from edges.mcp_client.stdio_framing import (
    LONGEST_ID,
    MAX_A_SECOND,
    MAX_UNREAD_BYTES,
    LineReads,
    LineWrites,
    RateLimit,
    WatchedReads,
)
from edges.mcp_client.tool_lists import ListedTools, ToolLists
from services.tools.registry import ToolRegistry
from services.tools.source_facts import MAX_PROBLEMS
from services.tools.tool import CallContext
from tenure.domain.tools import ToolSourceKind
from tests.support.patience import PATIENCE_SECONDS


async def test_a_request_with_too_long_an_id_is_dropped() -> None:
    stream = asyncio.StreamReader()
    for message_id in ("x" * (LONGEST_ID + 1), "x"):
        stream.feed_data(json.dumps({"jsonrpc": "2.0", "id": message_id, "method": "ping"}).encode() + b"\n")
    stream.feed_eof()
    taken = [item.message async for item in LineReads(stream, "it") if not isinstance(item, Exception)]
    assert [message.id for message in taken if isinstance(message, types.JSONRPCRequest)] == ["x"]


@asynccontextmanager
async def deaf_program() -> AsyncIterator[asyncio.StreamWriter]:
    """Its stdin; it reads nothing."""
    process = await asyncio.create_subprocess_exec("sleep", "600", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    try:
        yield process.stdin
    finally:
        process.stdin.transport.abort()
        process.kill()
        await process.wait()


async def test_a_server_that_reads_no_answers_loses_its_link() -> None:
    answer = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id="x" * 200, result={}))
    async with deaf_program() as stdin:
        ended = asyncio.Event()
        writes = LineWrites(stdin, ended)
        for _ in range(2 * MAX_UNREAD_BYTES // 200):
            await writes.send(answer)
        assert ended.is_set()
        assert stdin.transport.get_write_buffer_size() <= MAX_UNREAD_BYTES


async def test_read_answers_and_long_calls_cost_a_server_nothing() -> None:
    answer = SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id="x" * 200, result={}))
    long = {"a": "x" * (2 * MAX_UNREAD_BYTES)}
    call = SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=long))
    pipe, count = asyncio.subprocess.PIPE, 1 + 2 * MAX_UNREAD_BYTES // 200
    process = await asyncio.create_subprocess_exec("wc", "-l", stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    process.stdin.transport.set_write_buffer_limits(0)
    ended = asyncio.Event()
    writes = LineWrites(process.stdin, ended)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await writes.send(call)
        for _ in range(count - 1):
            await writes.send(answer)
            await process.stdin.drain()
        await writes.aclose()
        text, _ = await process.communicate()
    assert (int(text), ended.is_set()) == (count, False)


ASKS_WITHOUT_END = """
import json, sys
while True:
    asked = json.loads(sys.stdin.readline())
    said = {"jsonrpc": "2.0", "id": asked.get("id"), "error": {"code": -32601, "message": "unknown"}}
    if asked["method"] == "initialize":
        del said["error"]
        version = asked["params"]["protocolVersion"]
        said["result"] = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
    print(json.dumps(said), flush=True)
    while asked["method"] == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": "x" * 200, "method": "ping"}), flush=True)
"""


async def test_a_program_that_asks_and_reads_no_answers_loses_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_framing, "MAX_UNREAD_BYTES", 4096)
    settings = McpServer(command=sys.executable, args=("-c", ASKS_WITHOUT_END))
    async with asyncio.timeout(PATIENCE_SECONDS), program_link("a", settings, {}) as link:
        await link.ended.wait()


async def test_other_tasks_run_while_a_programs_lines_are_read() -> None:
    stream, turns = asyncio.StreamReader(limit=2**20), 0
    stream.feed_data(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n' * 100)
    stream.feed_eof()

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    taken = [item async for item in LineReads(stream, "it")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(taken) == 100
    assert turns >= 99


async def test_pace_limits_every_kind_of_message(monkeypatch: pytest.MonkeyPatch) -> None:
    may = asyncio.Event()
    monkeypatch.setattr(RateLimit, "next", lambda _self: may.wait())
    inner = Mock(receive=AsyncMock())
    taking = asyncio.create_task(WatchedReads(inner, asyncio.Event(), ToolLists()).receive())
    await asyncio.sleep(0)
    assert not inner.receive.called
    may.set()
    await taking
    assert inner.receive.called


async def test_link_reports_its_last_call() -> None:
    session, mock = Session(), Mock()
    session.gate.set()
    link = McpSession(Mock(session=session), Mock(begun=set()), asyncio.Event(), asyncio.Event())
    link.tell_idle = mock
    await link.call("t", {}, context(PATIENCE_SECONDS))
    mock.assert_called_once_with()


async def test_other_tasks_run_between_messages() -> None:
    pace, turns = RateLimit(), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    clock = asyncio.get_running_loop().time
    running, began = asyncio.create_task(other()), clock()
    for _ in range(100):
        await pace.next()
    assert turns >= 99
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for _ in range(MAX_A_SECOND + 1 - 100):
        await pace.next()
    assert clock() - began >= 1.0


async def test_some_of_a_thousand_list_problems_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = ToolRegistry([])
    fact = registry.facts.add("s", ToolSourceKind.MCP)
    tools = ToolsOfServer(fact, McpServer(command="a"), registry, Mock(), Mock(), Mock())
    with caplog.at_level(logging.WARNING):
        listed = [types.Tool(name=f"no name {n}", input_schema={"type": "object"}) for n in range(1000)]
        await tools.take(ListedTools(listed))
    assert len(caplog.records) == MAX_PROBLEMS + 1
    assert vars(caplog.records[-1])["count"] == 1000 - MAX_PROBLEMS


class Session:
    """A server that does one call at a time: a ping is answered when the gate opens."""

    def __init__(self) -> None:
        self.gate, self.pinged = asyncio.Event(), asyncio.Event()

    async def send_request(self, *_: object, **__: object) -> types.CallToolResult:
        await self.gate.wait()
        return types.CallToolResult(content=[])

    async def send_ping(self) -> None:
        self.pinged.set()
        await self.gate.wait()


def context(timeout_seconds: float) -> CallContext:
    return CallContext("acme", "t", "1.0", "t/1.0", 1, lambda _text: None, timeout_seconds=timeout_seconds)


async def stopped_beside(
    session: Session, link: McpSession, timeout_seconds: float
) -> asyncio.Task[types.CallToolResult]:
    """A call of so much time goes on, and another was stopped; the server was asked for a sign of life."""
    long = asyncio.create_task(link.call("t", {}, context(timeout_seconds)))
    short = asyncio.create_task(link.call("t", {}, context(1.0)))
    await asyncio.sleep(0)
    short.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await session.pinged.wait()
    return long


async def test_a_stopped_call_does_not_end_a_busy_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "ANSWER_SECONDS", 0.05)
    session = Session()
    link = McpSession(Mock(session=session), Mock(begun=set()), asyncio.Event(), asyncio.Event())
    long = await stopped_beside(session, link, PATIENCE_SECONDS)
    await asyncio.sleep(0.3)  # many times what a hanging server is given
    assert not link.ended.is_set()
    session.gate.set()
    await long
    await link.close()
    assert not link.hangs


async def test_a_hanging_server_ends_after_its_calls_timeouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "ANSWER_SECONDS", 0.05)
    session = Session()
    link = McpSession(Mock(session=session), Mock(begun=set()), asyncio.Event(), asyncio.Event())
    long = await stopped_beside(session, link, 0.1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await link.ended.wait()
    assert link.hangs
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await link.close()
