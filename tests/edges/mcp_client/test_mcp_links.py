"""Links to MCP servers: what one server, one tenant or one task does stays with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import httpx2
import mcp_types as types
import pytest
from pydantic import ValidationError

from edges.mcp_client import connection as held_module
from edges.mcp_client.calling import McpToolCaller, tools_of
from edges.mcp_client.connection import McpSession, Open
from edges.mcp_client.delivery_errors import AnswerLost, CallNotSent, full_message_of
from edges.mcp_client.servers import LinkTimes, Listed, SharedServer, TaskServers
from edges.mcp_client.settings import McpServer
from edges.mcp_client.sources import ToolsOfServer
from edges.mcp_client.stdio_framing import CallWrites, meta_of
from edges.mcp_client.tool_lists import MAX_LISTED, ListedTools
from services.tools.answer_files import MAX_PARTS_KEPT
from services.tools.calls.effects import ToolEffect
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.runs import RunningCalls
from services.tools.output import OutputStore
from services.tools.registry import ToolRegistry
from services.tools.source_facts import SourceStatuses
from services.tools.tool import CallContext, ToolAnswer, ToolFailure, ToolInDoubt, ToolWork
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.directories import Workspaces
from tenure.domain.fencing import Claims
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition, ToolSourceKind
from tests.support.fake_may_begin import Begins
from tests.support.patience import PATIENCE_SECONDS

TASK, OTHER = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
TIMES = LinkTimes(reach_seconds=PATIENCE_SECONDS, linger_seconds=PATIENCE_SECONDS)


def context(task_id: str = TASK, epoch: int = 1) -> CallContext:
    return CallContext("acme", task_id, "1.0", f"{task_id}/1.0", epoch, lambda _text: None)


def keeper(root: Path) -> OutputStore:
    return OutputStore(Workspaces(root), Bounds(2**28, 10_000))


@dataclass
class Failing(AbstractAsyncContextManager[McpSession]):
    """A link that cannot be opened."""

    error: Exception

    async def __aenter__(self) -> McpSession:
        raise self.error

    async def __aexit__(self, *_: object) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_programs_stderr_goes_to_the_log_not_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("it ended")
    error.add_note("token=hush")
    fact = SourceStatuses().add("s", ToolSourceKind.MCP)
    with caplog.at_level(logging.WARNING):
        server = SharedServer(fact, partial(Failing, error), AsyncMock(), replace(TIMES, reach_seconds=0.05))
        running = asyncio.create_task(server.run())
        await until(lambda: fact.last_error)
        with pytest.raises(CallNotSent, match="it ended") as refusal:
            await server.link(context())
        await until(lambda: any("hush" in str(vars(record).get("error")) for record in caplog.records))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "hush" not in str(refusal.value)
    assert fact.last_error == "it ended; the log has the stderr of its program"


async def test_a_tenants_server_has_no_tools_for_others(tmp_path: Path) -> None:
    settings, registry = McpServer.model_validate({"command": "a", "tenants": ["acme"]}), ToolRegistry([])
    fact = registry.facts.add("s", ToolSourceKind.MCP, settings.tenants)
    server = SharedServer(fact, partial(Failing, OSError("nobody asks for it")), AsyncMock(), TIMES)
    tools = ToolsOfServer(fact, settings, registry, keeper(tmp_path), ThreadPoolExecutor(1), server)
    await tools.take(ListedTools([types.Tool(name="t", input_schema={"type": "object"})]))

    def offered(tenant: str) -> list[str]:
        return [tool.name for tool in registry.definitions(Claims("tasks/t", tenant, 1, "c", "w"))]

    assert (offered("acme"), offered("other")) == (["s__t"], [])
    assert dict(meta_of(context()))["tenure/tenant"] == "acme"


class Idler:
    """A link whose calls are what a test says."""

    def __init__(self) -> None:
        self.ended, self.idle, self.hangs = asyncio.Event(), asyncio.Event(), False
        self.changed = asyncio.Event()
        self.idle.set()
        self.tell_idle: Callable[[], None] = lambda: None

    async def list_tools(self) -> ListedTools:
        return ListedTools([])

    async def watch(self) -> None: ...


class Starts:
    """Opens a task's server once it may start."""

    def __init__(self) -> None:
        self.may_start, self.started = asyncio.Event(), list[str]()

    @asynccontextmanager
    async def open(self, task_id: str) -> AsyncIterator[McpSession]:
        self.started.append(task_id)
        await self.may_start.wait()
        yield cast("McpSession", Idler())


def task_servers(starts: Starts, most: int, listed: Listed | None = None, idle_seconds: float = 600.0) -> TaskServers:
    def open_for(_tenant: str, task_id: str) -> Open:
        return partial(starts.open, task_id)

    fact = SourceStatuses().add("s", ToolSourceKind.MCP)
    return TaskServers(fact, open_for, listed or AsyncMock(), TIMES, most, idle_seconds)


async def test_a_changed_list_is_read_from_a_server_without_files() -> None:
    starts, lists = Starts(), list[ListedTools]()
    starts.may_start.set()

    async def take(listed: ListedTools) -> None:
        lists.append(listed)

    async with task_servers(starts, 2, take, idle_seconds=0.1) as servers:
        running = asyncio.create_task(servers.run())
        await until(lambda: len(lists) == 1)
        link = await servers.link(context())
        link.changed.set()
        await until(lambda: len(lists) == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert starts.started == ["", TASK, ""]
    assert not link.changed.is_set()


async def test_a_waiter_gets_a_slot_when_a_starting_server_idles() -> None:
    starts = Starts()
    async with task_servers(starts, most=1) as servers:
        first = asyncio.create_task(servers.link(context(TASK)))
        await until(lambda: starts.started == [TASK])
        second = asyncio.create_task(servers.link(context(OTHER)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it waits for the place by now
        starts.may_start.set()
        async with asyncio.timeout(PATIENCE_SECONDS / 4):
            await first
            await second
    assert starts.started == [TASK, OTHER]


async def test_an_older_epochs_end_keeps_the_newer_epochs_server() -> None:
    starts = Starts()
    starts.may_start.set()
    async with task_servers(starts, most=1) as servers:
        runs = RunningCalls()
        runs.accompany(servers)
        link = await servers.link(context(epoch=5))
        await servers.link(context(epoch=7))
        runs.stop_task(UUID(TASK), 6)
        assert servers.task_ids() == [TASK]
        assert not link.ended.is_set()
        runs.stop_task(UUID(TASK), 7)
        assert servers.task_ids() == []


def answering(tmp_path: Path, parts: int, threads: Executor) -> McpToolCaller:
    """A tool whose answer has so many images."""
    image = types.ImageContent(data="aGVsbG8=", mime_type="image/png")
    link = Mock(call=AsyncMock(return_value=types.CallToolResult(content=[image] * parts)))
    definition = ToolDefinition("s__t", "", "{}", EffectClass.UNSAFE, 30.0, 65536)
    return McpToolCaller(Mock(link=AsyncMock(return_value=link)), "t", definition, keeper(tmp_path), threads)


async def test_parts_of_an_answer_are_limited(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = await answering(tmp_path, MAX_PARTS_KEPT + 4, threads).run(context(), {})
    assert len(list(tmp_path.rglob("*.png"))) == answer.content.count("kept in the workspace") == MAX_PARTS_KEPT
    assert answer.content.count("not kept") == 4


class CountingThreads(ThreadPoolExecutor):
    """Threads that count the work they were given: `submitted`."""

    submitted = 0

    def submit(self, *work: Any, **options: Any) -> Any:
        self.submitted += 1
        return super().submit(*work, **options)


async def test_a_stopped_calls_answer_is_not_written(tmp_path: Path) -> None:
    gate = threading.Event()
    with CountingThreads(1) as threads:
        threads.submit(gate.wait, PATIENCE_SECONDS)
        calling = asyncio.create_task(answering(tmp_path, 3, threads).run(context(), {}))
        await until(lambda: threads.submitted == 2)
        calling.cancel()
        await asyncio.sleep(0)
        gate.set()
        answer = await calling
    assert answer.content.count("not kept (the call was stopped)") == 3
    assert not list(tmp_path.rglob("*.png"))


async def test_a_possibly_sent_call_is_repeated_as_sent_before(tmp_path: Path) -> None:
    check, link = Mock(), Mock(call=AsyncMock(side_effect=AnswerLost("gone")))
    definition = ToolDefinition("s__t", "", "{}", EffectClass.KEYED)
    server = Mock(link=AsyncMock(return_value=link))
    (tool,) = tools_of(server, "s", {"t": definition}, keeper(tmp_path), ThreadPoolExecutor(1))
    with pytest.raises(ToolInDoubt):
        await tool.run(replace(context(), check_may_begin=check), {})
    assert [request.args for request in check.call_args_list] == [(False,), (True,), (True,)]


async def test_a_servers_start_is_not_part_of_its_calls_time(tmp_path: Path) -> None:
    timeout_seconds = 0.05
    link = Mock(call=AsyncMock(return_value=types.CallToolResult(content=[types.TextContent(text="done")])))

    async def start(_context: CallContext) -> McpSession:
        await asyncio.sleep(2 * timeout_seconds)
        return cast("McpSession", link)

    definition = ToolDefinition("s__t", "", "{}", EffectClass.UNSAFE, timeout_seconds)
    (tool,) = tools_of(Mock(link=start), "s", {"t": definition}, keeper(tmp_path), ThreadPoolExecutor(1))
    claims = Claims(f"tasks/{TASK}", "acme", 1, "c", "w")
    run = RunningCalls().add(CallRequest(CallKey(UUID(TASK), "1.0"), claims, tool.name, EffectClass.UNSAFE, b"{}"), 1)
    outcome = await ToolEffect(run, ToolWork(tool, {}), Begins()).carry_out(lambda _effect: None)
    assert outcome.content == "done"


@pytest.mark.parametrize("effect_class", list(EffectClass))
async def test_end_of_a_call_without_an_answer_is_unknown(tmp_path: Path, effect_class: EffectClass) -> None:
    with pytest.raises(ToolInDoubt, match=r"within 0.05 s, and was asked to stop") as doubt:
        await _unanswered(tmp_path, effect_class)
    assert (doubt.value.status, doubt.value.detail) == (OutcomeStatus.TIMED_OUT, "TIMEOUT")


async def test_a_call_without_any_link_is_not_in_doubt(tmp_path: Path) -> None:
    gone = Mock(call=AsyncMock(side_effect=CallNotSent("it has ended")))
    definition = ToolDefinition("s__t", "", "{}", EffectClass.UNSAFE)
    links = [gone]

    async def link(_context: CallContext) -> McpSession:
        if not links:
            await asyncio.Event().wait()
        return cast("McpSession", links.pop())

    calling = McpToolCaller(Mock(link=link), "t", definition, keeper(tmp_path), ThreadPoolExecutor(1))
    with pytest.raises(ToolFailure):
        await calling.run(replace(context(), timeout_seconds=0.05), {})


async def _unanswered(root: Path, effect_class: EffectClass) -> ToolAnswer:
    async def never_answers(*_: object) -> None:
        await asyncio.Event().wait()

    definition = ToolDefinition("s__t", "", "{}", effect_class)
    server = Mock(link=AsyncMock(return_value=Mock(call=never_answers)))
    calling = McpToolCaller(server, "t", definition, keeper(root), ThreadPoolExecutor(1))
    return await calling.run(replace(context(), timeout_seconds=0.05), {})


async def test_a_link_that_neither_opens_nor_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when what closes a failed connection hangs: the next link must not wait for that."""
    monkeypatch.setattr(held_module, "CLOSE_SECONDS", 0.1)

    @asynccontextmanager
    async def never() -> AsyncIterator[McpSession]:
        await asyncio.Event().wait()
        yield cast("McpSession", None)

    held = held_module.HeldConnection("hanging", never, linger_seconds=1.0, start_seconds=0.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(CallNotSent):
            await held.link()
        await held.close()


async def test_a_list_of_tools_without_end_is_read_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    page = [types.Tool(name=f"t{number}", input_schema={}) for number in range(1000)]
    pages = [types.ListToolsResult(tools=page, next_cursor=f"more {number}") for number in range(9)]
    listing = AsyncMock(side_effect=pages)
    session = McpSession(Mock(session=Mock(list_tools=listing)), CallWrites(Mock()), asyncio.Event(), asyncio.Event())
    assert len((await session.list_tools()).tools) == MAX_LISTED
    assert listing.await_count == 5
    assert "only the first 4096 tools are read" in caplog.text


async def test_a_list_that_repeats_its_cursor_ends(caplog: pytest.LogCaptureFixture) -> None:
    page = types.ListToolsResult(tools=[types.Tool(name="t", input_schema={})], next_cursor="same")
    listing = AsyncMock(return_value=page)
    session = McpSession(Mock(session=Mock(list_tools=listing)), CallWrites(Mock()), asyncio.Event(), asyncio.Event())
    assert len((await session.list_tools()).tools) == 2
    assert "the list has no end" in caplog.text.replace("an MCP server's", "the")


async def test_a_program_that_does_not_get_ready_is_explained() -> None:
    """As `npx -y` without its registry: it runs, and says nothing."""
    silent = McpServer(command="sleep", args=("60",), unconfined=True, start_seconds=0.2)
    held = held_module.HeldConnection("npx", partial(held_module.program_link, "npx", silent, {}), 1.0)
    try:
        with pytest.raises(TimeoutError, match=r"did not answer `initialize` within 0.2 s: raise start_seconds "):
            await held.link()
    finally:
        await held.close()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (TimeoutError(), "it did not answer in time"),
        (BaseExceptionGroup("g", [TimeoutError()]), "it did not answer in time"),
        (httpx2.ConnectTimeout(""), "it did not answer in time"),
        (OSError(), "OSError"),
    ],
)
def test_last_error_is_a_sentence(error: BaseException, sentence: str) -> None:
    assert full_message_of(error) == sentence


def test_last_error_does_not_quote_a_message_of_the_server() -> None:
    with pytest.raises(ValidationError) as refusal:
        types.ListToolsResult.model_validate({"tools": "hush"}, by_name=False)
    said = full_message_of(refusal.value)
    assert said == "its answer is not as the protocol says: tools: Input should be a valid list"
