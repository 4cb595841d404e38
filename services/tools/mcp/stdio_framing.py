"""Messages over a program's pipes: one JSON object a line, bounded, and nothing a program writes ends the service."""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio
import mcp_types as types
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from services.tools.tool import CallContext

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream


# How quickly a server's messages are taken: one that talks all the time leaves others their turn.

MOST_A_SECOND: Final = 1000


class RateLimit:
    """Of one link. What comes beyond is left in the pipe until the second is over."""

    def __init__(self) -> None:
        self._since, self._taken = 0.0, 0

    async def next(self) -> None:
        """Returns when one more may be taken, and never before others had their turn."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= 1.0:
            self._since, self._taken = now, 0
        self._taken += 1
        await asyncio.sleep(self._since + 1.0 - now if self._taken > MOST_A_SECOND else 0.0)


# What a stream of messages is to the protocol's package, apart from the messages.


class Reads(ABC):
    """Messages, one by one. `receive` raises EndOfStream at the end."""

    @abstractmethod
    async def receive(self) -> SessionMessage | Exception: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Writes(ABC):
    """`send` raises BrokenResourceError when nothing was sent."""

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_log: Final = logging.getLogger(__name__)
MOST_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MOST_UNREAD_BYTES: Final = 1024 * 1024
"""Of answers to what a server asks."""

LONGEST_ID: Final = 256
TOO_LONG: Final = -32890
"""Our code, of JSON-RPC's range for applications: an answer that was too long to be taken."""

_PORTION_BYTES: Final = 64 * 1024
_EDGE_BYTES: Final = 96
_START: Final = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID_FIRST: Final = re.compile(_START + rb'"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"')
_ID_LAST: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_METHOD_FIRST: Final = re.compile(_START + rb'"method"')


class LineReads(Reads):
    """Reads messages when they are asked for. What is no message is logged and left out.

    An answer that is too long becomes an error under its id, when the id is its first or its last field, as the known
    libraries write it; else it stays away.
    """

    def __init__(self, stdout: asyncio.StreamReader, server: str) -> None:
        self._stdout, self._server = stdout, server
        self._pace = RateLimit()
        self._unread = bytearray()
        self._garbage = 0

    async def receive(self) -> SessionMessage | Exception:
        while True:
            line = await self._line()
            await self._pace.next()
            message = self._too_long(line) if len(line) > MOST_MESSAGE_BYTES else self._parsed(line)
            if message is not None:
                return SessionMessage(message)

    async def aclose(self) -> None:
        """The pipe is the program's to close."""

    async def _line(self) -> bytes:
        """A line without its end; of one that is too long its edges, stretched beyond the limit."""
        searched = 0
        head = b""
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > MOST_MESSAGE_BYTES:
                head = head or bytes(self._unread[:_EDGE_BYTES])
                del self._unread[:-_EDGE_BYTES]
                searched = len(self._unread)
            try:
                portion = await self._stdout.read(_PORTION_BYTES)
            except OSError:  # as good as its end
                portion = b""
            if not portion:
                raise anyio.EndOfStream
            self._unread += portion
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return head + bytes(MOST_MESSAGE_BYTES) + line if head else line

    def _parsed(self, line: bytes) -> types.JSONRPCMessage | None:
        if not line.strip():
            return None
        try:
            return _with_short_id(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._garbage += 1
            level = logging.WARNING if self._garbage == 1 else logging.DEBUG
            shown = line[:200].decode(errors="replace")
            _log.log(level, "an MCP server wrote what is no message: %r", shown, extra={"server": self._server})
            return None

    def _too_long(self, line: bytes) -> types.JSONRPCMessage | None:
        _log.warning("an MCP server wrote a message that is too long", extra={"server": self._server})
        head, tail = line[:_EDGE_BYTES], line[-_EDGE_BYTES:]
        match = _ID_FIRST.match(head) or (None if _METHOD_FIRST.match(head) else _ID_LAST.search(tail))
        if match is None:
            return None
        message = f"its answer is longer than {MOST_MESSAGE_BYTES} bytes and was not taken"
        return types.JSONRPCError(
            jsonrpc="2.0", id=int(match[1]), error=types.ErrorData(code=TOO_LONG, message=message)
        )


class LineWrites(Writes):
    """Writes messages. One that was begun counts as sent, whatever became of it.

    `ended` is set when the program asks and asks and reads no answers: those wait in memory.
    """

    def __init__(self, stdin: asyncio.StreamWriter, ended: asyncio.Event) -> None:
        self._stdin, self._ended = stdin, ended
        self._answer_bytes = 0

    async def send(self, item: SessionMessage, /) -> None:
        """Waits until the program reads on, but not with a notification: those must not be held up by what hangs.

        Raises BrokenResourceError when nothing was written.
        """
        if self._stdin.is_closing():
            raise anyio.BrokenResourceError
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError) and not self._is_room_for(line):
            return
        self._stdin.write(line)
        if isinstance(item.message, types.JSONRPCRequest):
            try:
                await self._stdin.drain()
            except ConnectionError:
                _log.debug("an MCP server has closed its stdin")  # its end is noticed by its reader

    def _is_room_for(self, answer: bytes) -> bool:
        """Counts answers of ours since all was read; our own calls, which may be long, wait in the same pipe."""
        if not self._stdin.transport.get_write_buffer_size():
            self._answer_bytes = 0
        self._answer_bytes += len(answer)
        if self._answer_bytes <= MOST_UNREAD_BYTES:
            return True
        if not self._ended.is_set():
            _log.warning("an MCP server asks and does not read the answers: its link is ended")
            self._ended.set()
        return False

    async def aclose(self) -> None:
        """The end of the program's input: it is asked to end."""
        self._stdin.close()


def _with_short_id(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Raises ValueError for an id that is no name any more: an answer would repeat it."""
    message_id = getattr(message, "id", None)
    if isinstance(message_id, str) and len(message_id) > LONGEST_ID:
        raise ValueError("its id is too long")
    return message


# What this service adds to the messages of calls, and what it remembers of them: which were sent at all.

_KEY: Final = "tenure/idempotency_key"
_EPOCH: Final = "tenure/epoch"


def meta_of(context: CallContext) -> types.RequestParamsMeta:
    """A call's `_meta`: by it a server may recognise repeats, and fence."""
    meta = {
        "tenure/tenant": context.tenant,
        "tenure/task_id": context.task_id,
        "tenure/call_id": context.call_id,
        _KEY: context.idempotency_key,
        _EPOCH: context.epoch,
    }
    return cast("types.RequestParamsMeta", meta)


class WatchedReads(Reads):
    """Messages from a transport. `ended` is set at their end."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], ended: asyncio.Event) -> None:
        self._inner, self._ended = inner, ended
        self._pace = RateLimit()

    async def receive(self) -> SessionMessage | Exception:
        await self._pace.next()
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended.set()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


class CallWrites(Writes):
    """Messages on their way to a transport. Calls get the headers of providers, for transports that have headers.

    `begun` has the idempotency keys of those that the transport has taken.
    """

    def __init__(self, inner: WriteStream[SessionMessage]) -> None:
        self._inner = inner
        self.begun: set[str] = set()

    async def send(self, item: SessionMessage, /) -> None:
        meta = _meta_of_call(item)
        if _KEY not in meta:
            await self._inner.send(item)
            return
        key = str(meta[_KEY])
        self.begun.add(key)
        try:
            await self._inner.send(_with_headers(item, {"Idempotency-Key": key, "X-Fencing-Epoch": str(meta[_EPOCH])}))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.begun.discard(key)
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


def _meta_of_call(item: SessionMessage) -> dict[str, Any]:
    message = item.message
    if not isinstance(message, types.JSONRPCRequest) or message.method != "tools/call":
        return {}
    meta = (message.params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def _with_headers(item: SessionMessage, headers: dict[str, str]) -> SessionMessage:
    metadata = item.metadata if isinstance(item.metadata, ClientMessageMetadata) else ClientMessageMetadata()
    return replace(item, metadata=replace(metadata, headers={**(metadata.headers or {}), **headers}))
