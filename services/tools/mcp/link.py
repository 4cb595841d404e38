"""One session with a server: its tools are listed, its calls made, until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import mcp_types as types
from mcp import MCPError
from mcp.client import Client, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from services.tools.mcp.fates import Lost, NothingDone, Unreadable, marked_fate, words_of
from services.tools.mcp.lines import TOO_LONG
from services.tools.mcp.wire import CallWrites, WatchedReads, meta_of
from services.tools.tool import Arguments, CallContext, ToolFailed

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


class Link:
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
        """The server's answer. Raises ToolFailed in the server's words, NothingDone, Lost or Unreadable.

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
            raise self._fate(error, context) from error
        except ValidationError as error:
            raise Unreadable("it answered with what is no result of a tool") from error
        finally:
            self._writes.begun.discard(context.idempotency_key)
        if isinstance(result, types.InputRequiredResult):
            raise ToolFailed("The server asks for more input in the middle of a call: nobody can give it.", "ASKS_BACK")
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
            _log.debug("an MCP server does not know pings: %s", words_of(error))

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
            _log.debug("an MCP server tells no changes any more: %s", words_of(error))

    def _fate(self, error: MCPError, context: CallContext) -> Exception:
        words = " ".join(error.message.split())[:_LONGEST_WORDS]
        if fate := marked_fate(error.data):
            return fate(words)
        if error.code == TOO_LONG:
            return ToolFailed(f"The call was made, but {words}.", "OUTPUT_LIMIT")
        if error.code == types.PARSE_ERROR and words.startswith("Failed to parse SSE message"):
            return Unreadable("it answered with an event that is no message")
        if error.code != types.CONNECTION_CLOSED or not words.startswith(("Connection closed", "SSE stream")):
            return ToolFailed(words or f"The server answered with the error {error.code}.", "MCP_ERROR")
        return Lost(words) if context.idempotency_key in self._writes.begun else NothingDone(words)


@asynccontextmanager
async def open_link(
    transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event
) -> AsyncIterator[Link]:
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
        link = Link(client, wire.writes, ended, changed)
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
