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
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Never, Self

import grpc

from tenure.domain.errors import TenureError, TryLater, Unavailable
from tenure.runtime.request_context import TENANT_KEY, current_tenant, trace_metadata
from tenure.runtime.rpc_options import Keepalive, channel_options
from tenure.runtime.rpc_status import OUTCOME_UNKNOWN, PeerFailed, from_rpc_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence

PEER: Final = "peer"
"""In the metadata of an error: who did not answer, where the channel has a name for it."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """What holds for every call of one channel. `peer`: who is at its other end, in words."""

    default_timeout_seconds: float | None
    tenant: str | None = None
    peer: str = ""

    def tenant_to_send(self) -> str:
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
        call_metadata = (*(metadata or ()), (TENANT_KEY, rules.tenant_to_send()), *trace_metadata())
        return TranslatedCall(multicallable(*request, timeout=seconds, metadata=call_metadata, **options), rules)

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


# Channels between our processes, whose calls end in domain errors and say whose request they are.

_LOCALHOST = {"localhost": "127.0.0.1"}


class TenureChannel(grpc.aio.Channel):
    """A channel to one service, at one or several addresses; close it, or use it as a context manager."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        default_timeout_seconds: float | None = None,
        tenant: str | None = None,
        peer: str = "",
    ) -> None:
        self.raw = channel
        self._rules = CallRules(default_timeout_seconds, tenant, peer)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See the module: the call awaits to the response."""
        return wrapped(self.raw.unary_unary(*args, **kwargs), self._rules, needs_timeout=True)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See the module: the call is iterated or read."""
        return wrapped(self.raw.unary_stream(*args, **kwargs), self._rules, needs_timeout=False)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See the module: the call is written to, and awaits to the response."""
        return wrapped(self.raw.stream_unary(*args, **kwargs), self._rules, needs_timeout=False)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See the module: the call is written to, and iterated or read."""
        return wrapped(self.raw.stream_stream(*args, **kwargs), self._rules, needs_timeout=False)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """As gRPC."""
        return self.raw.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """As gRPC."""
        await self.raw.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until connected; bound it with `asyncio.timeout`."""
        await self.raw.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """End the calls still running (after `grace` seconds) and the connections."""
        await self.raw.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_channel(
    addresses: str | Sequence[str],
    *,
    default_timeout_seconds: float | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    keepalive: Keepalive | None = None,
    max_message_bytes: int = 4 * 1024 * 1024,
    tenant: str | None = None,
    peer: str = "",
) -> TenureChannel:
    """A channel to `host:port` (every address its name resolves to) or to several `ip:port`, taken in turn.

    Several are a sequence, or one text with commas.

    `tenant` fixes whose calls these are; without it each call belongs to the tenant of the request being answered.
    `peer` says in words who is there: errors that nothing was answered have it in their metadata, as `PEER`.

    Must be called with an event loop running. Raises ValueError for several addresses that are not all IPs.
    """
    target = target_of(addresses.split(",") if isinstance(addresses, str) else addresses)
    options = channel_options(keepalive or Keepalive(), max_message_bytes)
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options=options)
    return TenureChannel(channel, default_timeout_seconds=default_timeout_seconds, tenant=tenant, peer=peer)


def target_of(addresses: Sequence[str]) -> str:
    """GRPC's target for these addresses. Only IPs can be listed: gRPC has no target of several names."""
    if not addresses:
        raise ValueError("a channel needs an address")
    if len(addresses) == 1:
        return addresses[0]
    address_families = set()
    numeric = []
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        host = _LOCALHOST.get(host, host)
        try:
            address_families.add(ip_address(host.strip("[]")).version)
        except ValueError:
            raise ValueError(
                f"{address}: several addresses of one service must be IPs; give one name that resolves to all of them"
            ) from None
        numeric.append(f"{host}:{port}")
    if len(address_families) > 1:
        raise ValueError(f"{', '.join(addresses)}: IPv4 and IPv6 cannot be mixed in one channel")
    return f"ipv{address_families.pop()}:{','.join(numeric)}"
