"""Reads and writes the messages of an MCP session.

A program on pipes exchanges one JSON object a line. Message size, message rate and unread answers are bounded, so
nothing that a program writes can end this service. Wrappers of both directions, for every transport, watch for the end
of the session, record which calls were begun, and add the headers of a call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Final, Self, cast

import anyio
import mcp_types as types
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from edges.mcp_client.tool_lists import ToolLists
from services.tools.tool import CallContext

# The rate limit of a server's messages: a server that sends all the time must not block the event loop.

MAX_A_SECOND: Final = 1000


class RateLimit:
    """Limits the messages of one session. Messages beyond the limit stay in the pipe until the second is over."""

    def __init__(self) -> None:
        self._since, self._taken = 0.0, 0

    async def next(self) -> None:
        """Returns when one more message may be taken. Always yields to the event loop first."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= 1.0:
            self._since, self._taken = now, 0
        self._taken += 1
        await asyncio.sleep(self._since + 1.0 - now if self._taken > MAX_A_SECOND else 0.0)


# The stream interfaces that the protocol's package expects.


class Reads(ABC):
    """Base class of read streams. `receive` raises EndOfStream at the end."""

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
    """Base class of write streams. `send` raises BrokenResourceError when nothing was sent."""

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_log: Final = logging.getLogger(__name__)
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_UNREAD_BYTES: Final = 1024 * 1024
"""The limit of our answers to the server's requests that the server has not read."""

LONGEST_ID: Final = 256
TOO_LONG: Final = -32890
"""The error code of an answer that was too long and was discarded. It lies in JSON-RPC's range for applications."""

_PORTION_BYTES: Final = 64 * 1024
_EDGE_BYTES: Final = 96
_START: Final = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID_FIRST: Final = re.compile(_START + rb'"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"')
_ID_LAST: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_METHOD_FIRST: Final = re.compile(_START + rb'"method"')


class LineReads(Reads):
    """Reads one message per line, on demand. Logs and skips lines that are not messages.

    An answer that is too long becomes an error with the answer's id. That works when the id is the first or the last
    field, as the known libraries write it; otherwise the answer is dropped.
    """

    def __init__(self, stdout: asyncio.StreamReader, server: str) -> None:
        self._stdout, self._server = stdout, server
        self._rate_limit = RateLimit()
        self._unread = bytearray()
        self._bad_lines = 0

    async def receive(self) -> SessionMessage | Exception:
        while True:
            line = await self._line()
            await self._rate_limit.next()
            message = self._too_long(line) if len(line) > MAX_MESSAGE_BYTES else self._parsed(line)
            if message is not None:
                return SessionMessage(message)

    async def aclose(self) -> None:
        """Does nothing: the program's owner closes the pipe."""

    async def _line(self) -> bytes:
        """Returns a line without its newline.

        Of a line that is too long, keeps the edges and pads them beyond the limit.
        """
        searched = 0
        head = b""
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > MAX_MESSAGE_BYTES:
                head = head or bytes(self._unread[:_EDGE_BYTES])
                del self._unread[:-_EDGE_BYTES]
                searched = len(self._unread)
            try:
                portion = await self._stdout.read(_PORTION_BYTES)
            except OSError:  # counts as the end of the stream
                portion = b""
            if not portion:
                raise anyio.EndOfStream
            self._unread += portion
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return head + bytes(MAX_MESSAGE_BYTES) + line if head else line

    def _parsed(self, line: bytes) -> types.JSONRPCMessage | None:
        if not line.strip():
            return None
        try:
            return _message(line)
        except ValueError:
            self._bad_lines += 1
            level = logging.WARNING if self._bad_lines == 1 else logging.DEBUG
            shown = line[:200].decode(errors="replace")
            _log.log(level, "an MCP server's line is not a message: %r", shown, extra={"server": self._server})
            return None

    def _too_long(self, line: bytes) -> types.JSONRPCMessage | None:
        _log.warning("an MCP server wrote a message that is too long", extra={"server": self._server})
        head, tail = line[:_EDGE_BYTES], line[-_EDGE_BYTES:]
        match = _ID_FIRST.match(head) or (None if _METHOD_FIRST.match(head) else _ID_LAST.search(tail))
        if match is None:
            return None
        message = f"its answer is longer than {MAX_MESSAGE_BYTES} bytes and was discarded"
        return types.JSONRPCError(
            jsonrpc="2.0", id=int(match[1]), error=types.ErrorData(code=TOO_LONG, message=message)
        )


class LineWrites(Writes):
    """Writes one message per line. A message whose write has begun counts as sent, even if the write failed.

    Sets `ended` when the program keeps sending requests and does not read the answers, which wait in memory.
    """

    def __init__(self, stdin: asyncio.StreamWriter, ended: asyncio.Event) -> None:
        self._stdin, self._ended = stdin, ended
        self._answer_bytes = 0

    async def send(self, item: SessionMessage, /) -> None:
        """Writes a message. After a request, waits while the pipe is full, until the program reads on.

        Does not wait after a notification or an answer: a program that hangs must not delay these. Raises
        BrokenResourceError when nothing was written.
        """
        if self._stdin.is_closing():
            raise anyio.BrokenResourceError
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError) and not self._fits_unread_limit(line):
            return
        self._stdin.write(line)
        if isinstance(item.message, types.JSONRPCRequest):
            try:
                await self._stdin.drain()
            except ConnectionError:
                _log.debug("an MCP server has closed its stdin")  # the reader notices the end of the program

    def _fits_unread_limit(self, answer: bytes) -> bool:
        """Counts the bytes of our answers since the pipe was last empty. Ends the session beyond the limit.

        The buffer's size would not do: our own calls, which may be long, wait in the same pipe.
        """
        if not self._stdin.transport.get_write_buffer_size():
            self._answer_bytes = 0
        self._answer_bytes += len(answer)
        if self._answer_bytes <= MAX_UNREAD_BYTES:
            return True
        if not self._ended.is_set():
            _log.warning("an MCP server sends requests and does not read the answers: ending its session")
            self._ended.set()
        return False

    async def aclose(self) -> None:
        """Closes the program's stdin, which asks the program to exit."""
        self._stdin.close()


def _message(line: bytes) -> types.JSONRPCMessage:
    """Returns the message of a line. Raises ValueError.

    The protocol's parser refuses halves of surrogate pairs and deep nesting: one tool of a list would take away all.
    Here the halves become `?`, and what nests deeply is left to the reader of the message.
    """
    try:
        return _with_short_id(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        try:
            whole = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
            return _with_short_id(types.jsonrpc_message_adapter.validate_python(json.loads(whole), by_name=False))
        except RecursionError:
            raise ValueError("it nests too deeply") from None


def _with_short_id(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Returns the message. Raises ValueError for an id that is too long, because our answer would repeat the id."""
    message_id = getattr(message, "id", None)
    if isinstance(message_id, str) and len(message_id) > LONGEST_ID:
        raise ValueError("its id is too long")
    return message


# The additions to the messages of calls, and the record of which calls were sent at all.

_KEY: Final = "tenure/idempotency_key"
_EPOCH: Final = "tenure/epoch"


def meta_of(context: CallContext) -> types.RequestParamsMeta:
    """Returns the `_meta` of a call. A server can use it to recognise repeats and to fence its own writes."""
    meta = {
        "tenure/tenant": context.tenant,
        "tenure/task_id": context.task_id,
        "tenure/call_id": context.call_id,
        _KEY: context.idempotency_key,
        _EPOCH: context.epoch,
    }
    return cast("types.RequestParamsMeta", meta)


class WatchedReads(Reads):
    """Reads messages from a transport. Sets `ended` at the end of the stream."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], ended: asyncio.Event, lists: ToolLists) -> None:
        self._inner, self._ended, self._lists = inner, ended, lists
        self._rate_limit = RateLimit()

    async def receive(self) -> SessionMessage | Exception:
        await self._rate_limit.next()
        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended.set()
            raise
        if isinstance(item, SessionMessage):
            self._lists.note_answer(item.message)
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()


class CallWrites(Writes):
    """Writes messages to a transport. Adds a call's idempotency key and epoch as headers, for transports with headers.

    begun: the idempotency keys of the calls that the transport has accepted.
    lists: the lists of tools that were asked for.
    """

    def __init__(self, inner: WriteStream[SessionMessage]) -> None:
        self._inner, self.lists = inner, ToolLists()
        self.begun: set[str] = set()

    async def send(self, item: SessionMessage, /) -> None:
        self.lists.note_request(item.message)
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
