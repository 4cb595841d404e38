"""The calls of a `TenureChannel`: gRPC's own, with their errors translated.

Cancelling a task inside `read` or `write` ends the whole call, as in grpc.aio: a loop that wants to wait for several
things keeps its read in a task of its own.

A call that was cancelled on this side (by another task, or because its channel was closed) raises CancelledError in
grpc.aio for whoever waits for it. To that task it would mean its own end, and reconnecting loops would end without a
word; so it is Unavailable here, unless the task itself was cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never

import grpc

from tenure.domain.errors import TenureError, TryLater, Unavailable
from tenure.runtime.status import OUTCOME_UNKNOWN, PeerFailed, from_rpc_error
from tenure.runtime.tenancy import TENANT_KEY, current_tenant
from tenure.runtime.trace_context import trace_metadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable

PEER: Final = "peer"
"""In the metadata of an error: who did not answer, where the channel has a name for it."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """What holds for every call of one channel. `peer`: who is at its other end, in words."""

    default_timeout_seconds: float | None
    tenant: str | None = None
    peer: str = ""

    def told_tenant(self) -> str:
        """Whose calls these are: the channel's tenant if it has one of its own, else that of the current request."""
        return self.tenant or current_tenant()

    def timeout(self, asked_seconds: float | None, *, needed: bool) -> float | None:
        """The call's deadline. A unary call without one could wait for ever, so that is refused here."""
        if asked_seconds is None and needed:
            asked_seconds = self.default_timeout_seconds
            if asked_seconds is None:
                raise TypeError("a unary call needs timeout=<seconds>")
        return asked_seconds

    def error_of(self, error: grpc.aio.AioRpcError) -> TenureError | PeerFailed:
        """What it means; that nothing was answered for now says who did not."""
        meant = from_rpc_error(error)
        if self.peer and isinstance(meant, TryLater):
            meant.metadata[PEER] = self.peer
        return meant


def wrapped(multicallable: Any, rules: CallRules, *, needs_timeout: bool) -> Callable[..., TranslatedCall]:
    """The stub's method: the same arguments, a `TranslatedCall` instead of gRPC's call."""

    def call(
        *request: Any,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] | None = None,
        **options: Any,
    ) -> TranslatedCall:
        seconds = rules.timeout(timeout, needed=needs_timeout)
        told = (*(metadata or ()), (TENANT_KEY, rules.told_tenant()), *trace_metadata())
        return TranslatedCall(multicallable(*request, timeout=seconds, metadata=told, **options), rules)

    return call


class TranslatedCall:
    """Any of gRPC's four calls. Everything not named here (cancel, code, initial_metadata …) is the call's own."""

    __slots__ = ("_call", "_rules")

    def __init__(self, call: Any, rules: CallRules) -> None:
        self._call, self._rules = call, rules

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._call.__await__())
        except grpc.aio.AioRpcError as error:
            raise self._rules.error_of(error) from error
        except asyncio.CancelledError as cancelled:
            if _is_task_cancelled():
                raise
            raise _call_cancelled() from cancelled

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._rules.error_of(error) from error
        except asyncio.CancelledError as cancelled:
            if _is_task_cancelled():
                raise
            raise _call_cancelled() from cancelled

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF` when the peer ended the stream in order."""
        try:
            return await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._rules.error_of(error) from error
        except asyncio.CancelledError as cancelled:
            if _is_task_cancelled():
                raise
            raise _call_cancelled() from cancelled

    async def write(self, request: Any) -> None:
        """Send one message; waits while the peer's window is full. Raises what the peer ended the stream with."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise self._rules.error_of(error) from error
        except asyncio.InvalidStateError:
            await self._raise_ending()
        except asyncio.CancelledError as cancelled:
            if _is_task_cancelled():
                raise
            raise _call_cancelled() from cancelled

    async def _raise_ending(self) -> Never:
        """grpc.aio calls a write after the end a wrong use; for the writer it is news how the stream ended."""
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            trailing = await self._call.trailing_metadata()
            ending = grpc.aio.AioRpcError(code, None, trailing, details=await self._call.details())
            raise self._rules.error_of(ending) from None
        raise Unavailable("the peer has ended the stream", reason="STREAM_ENDED", metadata=OUTCOME_UNKNOWN) from None


def _is_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _call_cancelled() -> Unavailable:
    return Unavailable("the call was cancelled on this side", reason="CALL_CANCELLED", metadata=OUTCOME_UNKNOWN)
