"""Opens and holds MCP sessions: one session lists the tools of a server and makes calls until it ends.

A server is a program on pipes, a program in the sandbox, or a URL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client import Client, IncomingMessage
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from edges.mcp_client.delivery_errors import AnswerLost, AnswerUnreadable, CallNotSent, marked_error, message_of
from edges.mcp_client.http_transport import HttpTransport
from edges.mcp_client.program import Pipes, program
from edges.mcp_client.settings import McpServer
from edges.mcp_client.stderr_log import StderrLog
from edges.mcp_client.stdio_framing import (
    MAX_MESSAGE_BYTES,
    TOO_LONG,
    CallWrites,
    LineReads,
    LineWrites,
    WatchedReads,
    meta_of,
)
from edges.mcp_client.tool_lists import MAX_LISTED, ListedTools
from services.tools.sandbox import Command, Sandbox, SandboxLimits
from services.tools.tool import Arguments, CallContext, ToolFailure
from tenure.runtime.http.h11_patterns import read_in_one_pass
from tenure.runtime.release import VERSION

_log: Final = logging.getLogger(__name__)
ANSWER_SECONDS: Final = 5.0
"""A server hangs when it answers nothing within this time after it was asked to stop a call."""

_MAX_PAGES: Final = 32
_LONGEST_MESSAGE: Final = 4096
NOT_READY: Final = (
    "the server did not answer `initialize` within {seconds:g} s: raise start_seconds (npx and uvx download packages "
    "first; a cache in writable_paths keeps them)"
)
NOT_LISTED: Final = "the server did not answer `tools/list` within {seconds:g} s: raise list_seconds"
_ANSWER: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class LinkLimits(NamedTuple):
    """The time limits of a session: until it is open, and of each list of tools."""

    start_seconds: float = 30.0
    list_seconds: float = 30.0


def limits_of_link(settings: McpServer) -> LinkLimits:
    """Returns the limits of a server's sessions."""
    return LinkLimits(settings.start_seconds, settings.list_seconds)


@asynccontextmanager
async def _within(seconds: float, sentence: str) -> AsyncIterator[None]:
    """Limits the time of the block. Raises TimeoutError with the sentence."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(sentence.format(seconds=seconds)) from error


@dataclass(eq=False, frozen=True, slots=True)
class _UnderWay:
    """A call under way.

    `ends_at`: when its timeout ends, by the event loop's clock. `over`: resolved when it returns.
    """

    ends_at: float
    over: asyncio.Future[None]


class McpSession:
    """A session with a server.

    ended: set when the session takes no further calls. Calls under way continue as far as they can.
    changed: set when the server's tools may have changed.
    hangs: whether the server was found not to answer anything any more.
    idle: set while no call is under way.
    """

    def __init__(
        self,
        client: Client,
        writes: CallWrites,
        ended: asyncio.Event,
        changed: asyncio.Event,
        list_seconds: float = 30.0,
    ) -> None:
        self._client, self._writes = client, writes
        self.ended, self.changed = ended, changed
        self._list_seconds = list_seconds
        self.hangs = False
        self._under_way: set[_UnderWay] = set()
        self._checking: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self.tell_idle: Callable[[], None] = lambda: None

    async def list_tools(self) -> ListedTools:
        """Returns the tools of all pages, at most MAX_LISTED tools of 32 pages.

        Raises the errors of the protocol's session, and TimeoutError.
        """
        tools: list[types.Tool] = []
        cursor: str | None = None
        cursors: set[str | None] = set()
        lists = self._writes.lists
        lists.begin(self._client.protocol_version)
        async with _within(self._list_seconds, NOT_LISTED):
            while cursor not in cursors and len(cursors) < _MAX_PAGES and len(tools) < MAX_LISTED:
                cursors.add(cursor)
                page = await self._client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        if len(tools) > MAX_LISTED or cursor is not None:
            _log.warning("an MCP server's list has no end: only the first %d tools are read", len(tools[:MAX_LISTED]))
        return ListedTools(tools[:MAX_LISTED], tuple(lists.left_out))

    async def call(self, tool: str, arguments: Arguments, context: CallContext) -> types.CallToolResult:
        """Makes a call and returns the server's answer.

        Raises ToolFailure with the server's error message, CallNotSent, AnswerLost or AnswerUnreadable. When the caller
        is cancelled, the session asks the server to cancel the call and checks that the server still answers.
        """
        clock = asyncio.get_running_loop()
        call = _UnderWay(clock.time() + context.timeout_seconds, clock.create_future())
        self._under_way.add(call)
        self.idle.clear()
        try:
            return await self._call(tool, arguments, context)
        except asyncio.CancelledError:
            self._start_check()
            raise
        finally:
            call.over.set_result(None)
            self._under_way.discard(call)
            if not self._under_way:
                self.idle.set()
                self.tell_idle()

    async def _call(self, tool: str, arguments: Arguments, context: CallContext) -> types.CallToolResult:
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=tool, arguments=arguments, _meta=meta_of(context))
        )

        async def emit(progress: float, total: float | None, message: str | None) -> None:
            of = "" if total is None else f"/{total:g}"
            context.emit(f"{message or 'progress'} ({progress:g}{of})\n")

        try:
            result = await self._client.session.send_request(request, _ANSWER, progress_callback=emit)
        except MCPError as error:
            raise self._delivery_error(error, context) from error
        except ValidationError as error:
            raise AnswerUnreadable("its answer is not a tool result") from error
        finally:
            self._writes.begun.discard(context.idempotency_key)
        if isinstance(result, types.InputRequiredResult):
            raise ToolFailure(
                "The server asks for more input in the middle of a call. This service cannot give it.", "ASKS_BACK"
            )
        return result

    def _start_check(self) -> None:
        if not self.ended.is_set() and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._end_unless_it_answers(), name="check an MCP server")

    async def _end_unless_it_answers(self) -> None:
        """Pings the server and ends the session when no answer comes in time.

        Any answer proves that the server works, also an error. A server that handles one request at a time answers only
        after the calls before the ping, so the wait lasts until the timeouts of those calls are over.
        """
        clock = asyncio.get_running_loop()
        ping = asyncio.create_task(self._ping())
        try:
            for call in sorted(self._under_way, key=lambda call: call.ends_at):
                left_seconds = max(0.0, call.ends_at - clock.time())
                await asyncio.wait({ping, call.over}, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({ping}, timeout=ANSWER_SECONDS)
            if not ping.done():
                self.hangs = True
                self.ended.set()
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)

    async def _ping(self) -> None:
        try:
            await self._client.session.send_ping()
        except MCPError as error:
            _log.debug("an MCP server answered a ping with an error: %s", message_of(error))

    async def close(self) -> None:
        """Marks the session as ended and stops the check. Call it before the protocol's session closes."""
        self.ended.set()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def watch(self) -> None:
        """Listens for changes of the tools, where the protocol version needs a subscription. Returns when it ends."""
        capability = self._client.server_capabilities.tools
        announces_changes = capability is not None and capability.list_changed
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not announces_changes:
            return
        try:
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.changed.set()
        except (MCPError, SubscriptionLost) as error:
            _log.debug("an MCP server no longer reports changes of its tools: %s", message_of(error))

    def _delivery_error(self, error: MCPError, context: CallContext) -> Exception:
        message = " ".join(error.message.split())[:_LONGEST_MESSAGE]
        if delivery_error := marked_error(error.data):
            return delivery_error(message)
        if error.code == TOO_LONG:
            return ToolFailure(f"The call was made, but {message}.", "OUTPUT_LIMIT")
        if error.code == types.PARSE_ERROR and message.startswith("Failed to parse SSE message"):
            return AnswerUnreadable("its answer is an event that is not a message")
        if error.code != types.CONNECTION_CLOSED or not message.startswith(("Connection closed", "SSE stream")):
            return ToolFailure(message or f"The server answered with error {error.code}.", "MCP_ERROR")
        return AnswerLost(message) if context.idempotency_key in self._writes.begun else CallNotSent(message)


@asynccontextmanager
async def open_link(
    transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event, limits: LinkLimits
) -> AsyncIterator[McpSession]:
    """Opens a session over the transport and closes it at the end. Raises the error that prevented the opening.

    ended: the session's event.
    The client offers the server no capabilities: no sampling, no elicitation, no roots.
    """
    changed = asyncio.Event()
    wrapped = _WrappedTransport(transport, ended)

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    identity = types.Implementation(name="tenure", version=VERSION)
    async with AsyncExitStack() as stack:
        async with _within(limits.start_seconds, NOT_READY):
            client = await stack.enter_async_context(
                Client(wrapped.open(), client_info=identity, message_handler=on_message, cache=None)
            )
        session = McpSession(client, wrapped.writes, ended, changed, limits.list_seconds)
        try:
            yield session
        finally:
            await session.close()


class _WrappedTransport:
    """A transport whose streams watch for the end of the session and record the begun calls."""

    writes: CallWrites

    def __init__(self, transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event) -> None:
        self._transport, self._ended = transport, ended

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        async with self._transport as (reads, writes):
            self.writes = CallWrites(writes)
            yield WatchedReads(reads, self._ended, self.writes.lists), self.writes


# A session that an asyncio task of its own holds open: the task that opens it must also close it, and calls come from
# many tasks.

CLOSE_SECONDS: Final = 15.0
Open = Callable[[], AbstractAsyncContextManager[McpSession]]


class HeldConnection:
    """Holds a session open. Starts to open it at once.

    When the session ends or is retired, waits for the calls under way, at most `linger_seconds`, and closes it. Calls
    `tell_idle` whenever the session becomes open or idle.
    """

    def __init__(
        self,
        server: str,
        open_link: Open,
        linger_seconds: float,
        tell_idle: Callable[[], None] = lambda: None,
        start_seconds: float = 30.0,
    ) -> None:
        self._server, self._open, self._linger_seconds = server, open_link, linger_seconds
        self._open_seconds = start_seconds + CLOSE_SECONDS
        self._tell_idle = tell_idle
        self._opened: asyncio.Future[McpSession] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=f"link to {server}")

    @property
    def current(self) -> McpSession | None:
        """The session, or None before it is open."""
        is_open = self._opened.done() and self._opened.exception() is None
        return self._opened.result() if is_open else None

    @property
    def is_closed(self) -> bool:
        """Whether the session is completely closed."""
        return self._task.done()

    async def link(self) -> McpSession:
        """Waits for the session and returns it.

        Raises the error that prevented the opening. Raises CallNotSent when the opening neither succeeds nor fails
        in time: opening has its own deadline, but closing what was opened by then can take longer, because
        the server determines that time.
        """
        try:
            async with asyncio.timeout(self._open_seconds):
                return await asyncio.shield(self._opened)
        except TimeoutError:
            if self._opened.done():
                raise  # the timeout of the opening itself
            raise CallNotSent(f"the connection neither opened nor failed within {self._open_seconds:g} s") from None

    def retire(self) -> None:
        """Takes no further calls: closes the session after the calls under way, or cancels its opening."""
        if self.current is not None:
            self.current.ended.set()
        else:
            self._task.cancel()

    def cancel(self) -> None:
        """Ends the session without waiting for calls under way. Does not wait for the end."""
        self._task.cancel()

    def when_closed(self, callback: Callable[[HeldConnection], None]) -> None:
        """Calls `callback` once, when the session is completely closed."""
        self._task.add_done_callback(lambda _: callback(self))

    async def close(self) -> None:
        """Ends the session without waiting for calls under way, and waits until it is closed."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _hold(self) -> None:
        try:
            async with self._open() as session:
                self._opened.set_result(session)
                session.tell_idle = self._tell_idle
                self._tell_idle()
                await self._wait_for_end(session)
        except Exception as error:  # noqa: BLE001  goes to the waiters for the session, or to the log
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # marks it as retrieved: there may be no waiter
            else:
                _log.debug("an MCP session was lost: %s", message_of(error), extra={"server": self._server})
        finally:
            if not self._opened.done():
                self._opened.set_exception(CallNotSent("the connection was closed"))
                self._opened.exception()

    async def _wait_for_end(self, session: McpSession) -> None:
        try:
            watch = asyncio.create_task(session.watch())
            try:
                await session.ended.wait()
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            if not session.hangs:
                async with asyncio.timeout(self._linger_seconds):
                    await session.idle.wait()
        except TimeoutError:
            _log.debug("calls were still under way at the end of an MCP session", extra={"server": self._server})
        finally:
            session.ended.set()


# Opening a session with each kind of server.

_TIMES: Final = httpx2.Timeout(connect=10.0, write=30.0, pool=10.0, read=None)
"""No read timeout: an answer may take as long as its call's timeout, and event streams may stay silent for ever."""


_LAST_LINES_SECONDS: Final = 0.5


@asynccontextmanager
async def program_link(name: str, settings: McpServer, inherited: Mapping[str, str]) -> AsyncIterator[McpSession]:
    """Starts a program and opens a session with it. Adds the program's last stderr lines to an error, as a note."""
    stderr_log = StderrLog(name)
    async with (
        program(settings, inherited, stderr_log.read) as pipes,
        piped_link(name, pipes, stderr_log, limits_of_link(settings)) as session,
    ):
        yield session


@asynccontextmanager
async def piped_link(name: str, pipes: Pipes, stderr_log: StderrLog, limits: LinkLimits) -> AsyncIterator[McpSession]:
    """Opens a session with a running program. Adds the program's last stderr lines to an error, as a note."""
    try:
        ended = asyncio.Event()
        async with open_link(_pipe_streams(name, pipes, ended), ended, limits) as session:
            yield session
    except Exception as error:
        with suppress(TimeoutError):  # the last lines may not have been read yet
            async with asyncio.timeout(_LAST_LINES_SECONDS):
                await stderr_log.ended.wait()
        if stderr_log.last_lines:
            error.add_note(stderr_log.last_lines)
        raise


@asynccontextmanager
async def sandboxed_link(
    name: str,
    command: Command,
    sandbox: Sandbox,
    workspace: Path | None,
    limits: SandboxLimits,
    link_limits: LinkLimits,
) -> AsyncIterator[McpSession]:
    """Starts a program in the sandbox and opens a session with it. Adds its last stderr lines to an error."""
    stderr_log = StderrLog(name)
    async with sandbox.long_running(command, workspace, limits) as running:
        pipes = running.process
        assert pipes.stdin is not None
        reading = asyncio.ensure_future(stderr_log.read(pipes.stderr))
        try:
            async with piped_link(name, Pipes(pipes.stdin, pipes.stdout), stderr_log, link_limits) as session:
                yield session
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def http_link(settings: McpServer) -> AsyncIterator[McpSession]:
    """Opens a session with a server at a URL.

    Ignores the environment's proxies; follows redirects to the same server only.
    """
    assert settings.url is not None
    read_in_one_pass()
    ended = asyncio.Event()
    limits = httpx2.Limits(max_connections=settings.max_calls + 8)
    http_transport = HttpTransport(httpx2.AsyncHTTPTransport(limits=limits, trust_env=False), ended)
    headers = {"accept-encoding": "identity", **settings.headers}  # the size limits count the bytes that were sent
    async with httpx2.AsyncClient(transport=http_transport, headers=headers, timeout=_TIMES, trust_env=False) as client:
        transport = streamable_http_client(settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)
        async with open_link(transport, ended, limits_of_link(settings)) as session:
            yield session


@asynccontextmanager
async def _pipe_streams(name: str, pipes: Pipes, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
    yield LineReads(pipes.stdout, name), LineWrites(pipes.stdin, ended)
