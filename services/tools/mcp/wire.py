"""What this service adds to the messages of calls, and what it remembers of them: which were sent at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import mcp_types as types
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from services.tools.mcp.pace import Pace
from services.tools.mcp.streams import Reads, Writes
from services.tools.tool import CallContext

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream

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
        self._pace = Pace()

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
