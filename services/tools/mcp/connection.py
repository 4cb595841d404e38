"""One session with a server: its tools are listed, its calls made, until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client import Client, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from services.tools.mcp.delivery_errors import (
    AnswerLost,
    AnswerUnreadable,
    CallNotSent,
    marked_error,
    message_of,
)
from services.tools.mcp.http_transport import HttpTransport
from services.tools.mcp.program import Pipes, program
from services.tools.mcp.settings import McpServer
from services.tools.mcp.stderr_log import StderrLog
from services.tools.mcp.stdio_framing import (
    MOST_MESSAGE_BYTES,
    TOO_LONG,
    CallWrites,
    LineReads,
    LineWrites,
    WatchedReads,
    meta_of,
)
from services.tools.sandbox import Command, Sandbox, SandboxLimits
from services.tools.tool import Arguments, CallContext, ToolFailure
from tenure.runtime.outbound_http import read_in_one_pass

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_log: Final = logging.getLogger(__name__)
CONNECT_SECONDS: Final = 30.0
LIST_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 5.0
"""Within which a server that was told to stop a call answers anything at all; else it hangs."""

_MOST_PAGES: Final = 32
_LONGEST_WORDS: Final = 4096
_ANSWER: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


@dataclass(eq=False, frozen=True, slots=True)
class _UnderWay:
    """A call, within its own time until `ends_at` by the loop's clock."""

    ends_at: float
    over: asyncio.Future[None]


class McpSession:
    """`ended` is set when the session is over: no further call is made on it, and those under way go on as they can.

    `changed` is set when the server's tools may have changed. `hangs`: it was found to answer nothing any more.
    """

    def __init__(self, client: Client, writes: CallWrites, ended: asyncio.Event, changed: asyncio.Event) -> None:
        self._client, self._writes = client, writes
        self.ended, self.changed = ended, changed
        self.hangs = False
        self._under_way: set[_UnderWay] = set()
        self._checking: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self.tell_idle: Callable[[], None] = lambda: None

    async def list_tools(self) -> list[types.Tool]:
        """All pages. Raises what the session raises."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        async with asyncio.timeout(LIST_SECONDS):
            for _ in range(_MOST_PAGES):
                page = await self._client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        return tools

    async def call(self, tool: str, arguments: Arguments, context: CallContext) -> types.CallToolResult:
        """The server's answer. Raises ToolFailed in the server's words, CallNotSent, Lost or AnswerUnreadable.

        When the caller is cancelled, the server is told that the call is not wanted any more, and asked for a sign of
        life.
        """
        clock = asyncio.get_running_loop()
        call = _UnderWay(clock.time() + context.timeout_seconds, clock.create_future())
        self._under_way.add(call)
        self.idle.clear()
        try:
            return await self._call(tool, arguments, context)
        except asyncio.CancelledError:
            self._check()
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

        async def show(progress: float, total: float | None, message: str | None) -> None:
            of = "" if total is None else f"/{total:g}"
            context.emit(f"{message or 'progress'} ({progress:g}{of})\n")

        try:
            result = await self._client.session.send_request(request, _ANSWER, progress_callback=show)
        except MCPError as error:
            raise self._delivery_error(error, context) from error
        except ValidationError as error:
            raise AnswerUnreadable("it answered with what is no result of a tool") from error
        finally:
            self._writes.begun.discard(context.idempotency_key)
        if isinstance(result, types.InputRequiredResult):
            raise ToolFailure(
                "The server asks for more input in the middle of a call: nobody can give it.", "ASKS_BACK"
            )
        return result

    def _check(self) -> None:
        if not self.ended.is_set() and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._end_unless_it_answers(), name="check an MCP server")

    async def _end_unless_it_answers(self) -> None:
        """Any answer will do, a refusal too. A server that does one thing at a time answers after the calls before."""
        clock = asyncio.get_running_loop()
        pinging = asyncio.create_task(self._ping())
        try:
            for call in sorted(self._under_way, key=lambda call: call.ends_at):
                left_seconds = max(0.0, call.ends_at - clock.time())
                await asyncio.wait({pinging, call.over}, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({pinging}, timeout=ANSWER_SECONDS)
            if not pinging.done():
                self.hangs = True
                self.ended.set()
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    async def _ping(self) -> None:
        try:
            await self._client.session.send_ping()
        except MCPError as error:
            _log.debug("an MCP server does not know pings: %s", message_of(error))

    async def close(self) -> None:
        """Before the session is."""
        self.ended.set()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def watch(self) -> None:
        """Hear of changes where that has to be asked for. Returns when there is nothing to hear."""
        capability = self._client.server_capabilities.tools
        tells = capability is not None and capability.list_changed
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not tells:
            return
        try:
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.changed.set()
        except (MCPError, SubscriptionLost) as error:
            _log.debug("an MCP server tells no changes any more: %s", message_of(error))

    def _delivery_error(self, error: MCPError, context: CallContext) -> Exception:
        message = " ".join(error.message.split())[:_LONGEST_WORDS]
        if delivery_error := marked_error(error.data):
            return delivery_error(message)
        if error.code == TOO_LONG:
            return ToolFailure(f"The call was made, but {message}.", "OUTPUT_LIMIT")
        if error.code == types.PARSE_ERROR and message.startswith("Failed to parse SSE message"):
            return AnswerUnreadable("it answered with an event that is no message")
        if error.code != types.CONNECTION_CLOSED or not message.startswith(("Connection closed", "SSE stream")):
            return ToolFailure(message or f"The server answered with the error {error.code}.", "MCP_ERROR")
        return AnswerLost(message) if context.idempotency_key in self._writes.begun else CallNotSent(message)


@asynccontextmanager
async def open_link(
    transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event
) -> AsyncIterator[McpSession]:
    """A session over the transport, closed at the end. Raises what keeps it from being opened.

    `ended` becomes the link's. The server is offered nothing of its client: no sampling, no elicitation, no roots.
    """
    changed = asyncio.Event()
    wire = _Wire(transport, ended)

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    identity = types.Implementation(name="tenure", version=version("tenure"))
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(CONNECT_SECONDS):
            client = await stack.enter_async_context(
                Client(wire.open(), client_info=identity, message_handler=hear, cache=None)
            )
        link = McpSession(client, wire.writes, ended, changed)
        try:
            yield link
        finally:
            await link.close()


class _Wire:
    """A transport with our additions."""

    writes: CallWrites

    def __init__(self, transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event) -> None:
        self._transport, self._ended = transport, ended

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TransportStreams]:
        async with self._transport as (reads, writes):
            self.writes = CallWrites(writes)
            yield WatchedReads(reads, self._ended), self.writes


# A link, open in a task of its own: what opens it must close it, and calls come from everywhere.

OPEN_SECONDS: Final = CONNECT_SECONDS + 15.0
Open = Callable[[], AbstractAsyncContextManager[McpSession]]


class HeldConnection:
    """Opens at once. At its end, or when it is let go, it waits for the calls under way, `linger_seconds` at most.

    `tell_idle` is called whenever it is open and without calls from now on.
    """

    def __init__(
        self, server: str, open_link: Open, linger_seconds: float, tell_idle: Callable[[], None] = lambda: None
    ) -> None:
        self._server, self._open, self._linger_seconds = server, open_link, linger_seconds
        self._tell_idle = tell_idle
        self._opened: asyncio.Future[McpSession] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=f"link to {server}")

    @property
    def current(self) -> McpSession | None:
        """The link, once it is open."""
        is_open = self._opened.done() and self._opened.exception() is None
        return self._opened.result() if is_open else None

    @property
    def is_gone(self) -> bool:
        """Whether all of it is closed."""
        return self._task.done()

    async def link(self) -> McpSession:
        """When it is open. Raises what kept it from opening, and CallNotSent when that does not even fail in time.

        Opening has a deadline of its own; what it had opened by then is closed after that, in the server's own time.
        """
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await asyncio.shield(self._opened)
        except TimeoutError:
            if self._opened.done():
                raise  # that of opening
            raise CallNotSent(f"it was neither linked to nor given up within {OPEN_SECONDS:g} s") from None

    def let_go(self) -> None:
        """No further call will come."""
        if self.current is not None:
            self.current.ended.set()
        else:
            self._task.cancel()

    def cancel(self) -> None:
        """End it, whatever is under way."""
        self._task.cancel()

    def when_gone(self, tell: Callable[[HeldConnection], None]) -> None:
        """Once, when all of it is closed."""
        self._task.add_done_callback(lambda _: tell(self))

    async def close(self) -> None:
        """At once, whatever is under way, and to its end."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _hold(self) -> None:
        try:
            async with self._open() as link:
                self._opened.set_result(link)
                link.tell_idle = self._tell_idle
                self._tell_idle()
                await self._attend(link)
        except Exception as error:  # noqa: BLE001  told to who waits for the link, or what ended it
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # nobody may be waiting
            else:
                _log.debug("a link was lost: %s", message_of(error), extra={"server": self._server})
        finally:
            if not self._opened.done():
                self._opened.set_exception(CallNotSent("its link was closed"))
                self._opened.exception()

    async def _attend(self, link: McpSession) -> None:
        try:
            watching = asyncio.create_task(link.watch())
            try:
                await link.ended.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if not link.hangs:
                async with asyncio.timeout(self._linger_seconds):
                    await link.idle.wait()
        except TimeoutError:
            _log.debug("calls were still under way at the end of a link", extra={"server": self._server})
        finally:
            link.ended.set()


# How a link to each kind of server is opened.

_TIMES: Final = httpx2.Timeout(connect=10.0, write=30.0, pool=10.0, read=None)
"""An answer may take as long as its call's timeout, and events may stay away for ever."""


_LAST_WORDS_SECONDS: Final = 0.5


@asynccontextmanager
async def program_link(name: str, settings: McpServer, inherited: Mapping[str, str]) -> AsyncIterator[McpSession]:
    """To a program that is started for it. Raises ServerEnded with its last words when it ends before it answers."""
    stderr_lines = StderrLog(name)
    async with program(settings, inherited, stderr_lines.read) as pipes, piped_link(name, pipes, stderr_lines) as link:
        yield link


@asynccontextmanager
async def piped_link(name: str, pipes: Pipes, stderr_lines: StderrLog) -> AsyncIterator[McpSession]:
    """To a program that runs."""
    try:
        ended = asyncio.Event()
        async with open_link(_over(name, pipes, ended), ended) as link:
            yield link
    except Exception as error:
        with suppress(TimeoutError):  # what it said last may still be on its way
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await stderr_lines.ended.wait()
        if stderr_lines.last_words:
            error.add_note(stderr_lines.last_words)
        raise


@asynccontextmanager
async def sandboxed_link(
    name: str, settings: McpServer, sandbox: Sandbox, workspace: Path | None, limits: SandboxLimits
) -> AsyncIterator[McpSession]:
    """To a program in the sandbox, with the workspace at /work."""
    assert settings.command is not None
    command = Command((settings.command, *settings.args), settings.env, settings.read_only_paths)
    stderr_lines = StderrLog(name)
    async with sandbox.long_running(command, workspace, limits) as running:
        pipes = running.process
        assert pipes.stdin is not None
        reading = asyncio.ensure_future(stderr_lines.read(pipes.stderr))
        try:
            async with piped_link(name, Pipes(pipes.stdin, pipes.stdout), stderr_lines) as link:
                yield link
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def http_link(settings: McpServer) -> AsyncIterator[McpSession]:
    """To a server at a URL. Proxies of the environment are not asked; redirects stay at the server."""
    assert settings.url is not None
    read_in_one_pass()
    ended = asyncio.Event()
    limits = httpx2.Limits(max_connections=settings.max_calls + 8)
    network = HttpTransport(httpx2.AsyncHTTPTransport(limits=limits, trust_env=False), ended)
    headers = {"accept-encoding": "identity", **settings.headers}  # bounds are of what was sent
    async with httpx2.AsyncClient(transport=network, headers=headers, timeout=_TIMES, trust_env=False) as client:
        transport = streamable_http_client(settings.url, http_client=client, max_sse_event_size=MOST_MESSAGE_BYTES)
        async with open_link(transport, ended) as link:
            yield link


@asynccontextmanager
async def _over(name: str, pipes: Pipes, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
    yield LineReads(pipes.stdout, name), LineWrites(pipes.stdin, ended)
