"""gRPC channels between Tenure's processes, whose calls raise domain errors and carry the tenant and the trace.

Cancelling an asyncio task inside `read` or `write` ends the whole call, as in grpc.aio: a loop that waits for several
events runs its read in a separate asyncio task.

When a call is cancelled on this side (by another asyncio task, or because its channel was closed), grpc.aio raises
CancelledError in every task that waits for the call. Such a task would take it for its own cancellation, and
reconnecting loops would end silently. So these calls raise Unavailable instead, unless the waiting task itself was
cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Never, Self

import grpc

from tenure.domain.errors import TenureError, TryLater, Unavailable
from tenure.runtime.request_context import TENANT_KEY, current_tenant, trace_metadata
from tenure.runtime.rpc.channels import ChannelRenewal, refuse_after_fork
from tenure.runtime.rpc.options import Keepalive, channel_options
from tenure.runtime.rpc.status import OUTCOME_UNKNOWN, PeerFailed, from_rpc_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence

    from tenure.runtime.security.tls import ChannelTls
    from tenure.runtime.settings import Secret


CALL_CANCELLED: Final = "CALL_CANCELLED"
"""The reason of the error of a call that this process itself ended, as it does when it closes a channel."""
AUTHORIZATION: Final = "authorization"
"""The metadata key of a client's API key or token."""
_FAILURES: Final = grpc.aio.AioRpcError, asyncio.CancelledError
PEER: Final = "peer"
"""The metadata key of an error for the name of the peer that did not answer, if the channel has that name."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """The defaults of all calls of one channel. `peer`: the name of the service at the other end, for messages.

    `tenant`: "" for none, if the server knows it from the key.
    """

    default_timeout_seconds: float | None
    tenant: str | None = None
    peer: str = ""
    api_key: Callable[[], Secret] | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the tenant (the channel's, or else that of the current request), the key and the trace of a call."""
        tenant = current_tenant() if self.tenant is None else self.tenant
        named = ((TENANT_KEY, tenant),) if tenant else ()
        key = ((AUTHORIZATION, f"Bearer {self.api_key().reveal()}"),) if self.api_key else ()
        return (*named, *key, *trace_metadata())

    def timeout(self, seconds: float | None, *, needed: bool) -> float | None:
        """Returns the timeout of a call. Raises TypeError for a unary call without one, which could wait forever."""
        if seconds is None and needed:
            seconds = self.default_timeout_seconds
            if seconds is None:
                raise TypeError("a unary call needs timeout=<seconds>")
        return seconds

    def error_of(self, error: grpc.aio.AioRpcError) -> TenureError | PeerFailed:
        """Returns the error that gRPC's error stands for. A TryLater gets the name of the peer in its metadata."""
        translated = from_rpc_error(error)
        if self.peer and isinstance(translated, TryLater):
            translated.metadata[PEER] = self.peer
        return translated


def wrapped(multicallable: Any, rules: CallRules, *, needs_timeout: bool) -> Callable[..., TranslatedCall]:
    """Returns the method for a stub: it has gRPC's arguments and returns a `TranslatedCall`."""

    def call(
        *request: Any,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] | None = None,
        **options: Any,
    ) -> TranslatedCall:
        seconds = rules.timeout(timeout, needed=needs_timeout)
        call_metadata = (*(metadata or ()), *rules.metadata())
        return TranslatedCall(multicallable(*request, timeout=seconds, metadata=call_metadata, **options), rules)

    return call


class TranslatedCall:
    """A gRPC call of any arity that raises domain errors. All other attributes (cancel, code, …) are gRPC's own."""

    __slots__ = ("_call", "_rules")

    def __init__(self, call: Any, rules: CallRules) -> None:
        self._call, self._rules = call, rules

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._call.__await__())
        except _FAILURES as failure:
            raise self._translated(failure) from failure

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        try:
            async for message in self._call:
                yield message
        except _FAILURES as failure:
            raise self._translated(failure) from failure

    async def read(self) -> Any:
        """Returns the next message, or `grpc.aio.EOF` if the peer ended the stream in order."""
        try:
            return await self._call.read()
        except _FAILURES as failure:
            raise self._translated(failure) from failure

    async def write(self, request: Any) -> None:
        """Sends one message. Waits while the peer's window is full. Raises the peer's error if the stream has ended."""
        try:
            await self._call.write(request)
        except asyncio.InvalidStateError:
            await self._raise_ending()
        except _FAILURES as failure:
            raise self._translated(failure) from failure

    def _translated(self, failure: grpc.aio.AioRpcError | asyncio.CancelledError) -> TenureError | PeerFailed:
        """Returns what to raise for a failure of gRPC's call. Raises it again if the waiting task was cancelled."""
        if isinstance(failure, grpc.aio.AioRpcError):
            return self._rules.error_of(failure)
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise failure
        return Unavailable("the call was cancelled on this side", reason=CALL_CANCELLED, metadata=OUTCOME_UNKNOWN)

    async def _raise_ending(self) -> Never:
        """Raises the error with which the peer ended the stream.

        grpc.aio raises InvalidStateError for a write after the end, but the writer may not know that the stream ended.
        """
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            trailing = await self._call.trailing_metadata()
            ending = grpc.aio.AioRpcError(code, None, trailing, details=await self._call.details())
            raise self._rules.error_of(ending) from None
        raise Unavailable("the peer has ended the stream", reason="STREAM_ENDED", metadata=OUTCOME_UNKNOWN) from None


# Channels whose calls raise domain errors and carry the tenant.

_LOCALHOST = {"localhost": "127.0.0.1"}


class TenureChannel(grpc.aio.Channel):
    """A channel to one service with one or several addresses. Close it, or use it as a context manager."""

    def __init__(self, renewal: ChannelRenewal, rules: CallRules) -> None:
        self._renewal, self._rules = renewal, rules

    @property
    def raw(self) -> grpc.aio.Channel:
        """The channel of gRPC, which is another one after the certificates have changed. Raises UsedBeforeFork."""
        refuse_after_fork()
        return self._renewal.current

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as in gRPC, with a `TranslatedCall`: await it for the response."""
        return self._method("unary_unary", args, kwargs, needs_timeout=True)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as in gRPC, with a `TranslatedCall`: iterate it or `read` its messages."""
        return self._method("unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as in gRPC, with a `TranslatedCall`: `write` to it, then await it for the response."""
        return self._method("stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Does the same as in gRPC, with a `TranslatedCall`: `write` to it, and iterate it or `read` its messages."""
        return self._method("stream_stream", args, kwargs)

    def _method(self, arity: str, args: Any, kwargs: Any, *, needs_timeout: bool = False) -> Any:
        channel, method = self.raw, getattr(self.raw, arity)(*args, **kwargs)

        def on_current_channel(*request: Any, **options: Any) -> Any:
            nonlocal channel, method
            if channel is not self.raw:
                channel, method = self.raw, getattr(self.raw, arity)(*args, **kwargs)
            return method(*request, **options)

        return wrapped(on_current_channel, self._rules, needs_timeout=needs_timeout)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Does the same as in gRPC."""
        return self.raw.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Does the same as in gRPC."""
        await self.raw.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the channel is connected. Bound the wait with `asyncio.timeout`."""
        await self.raw.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Closes the connections and, after `grace` seconds, ends the calls that still run."""
        await self._renewal.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_channel(
    addresses: str | Sequence[str],
    *,
    default_timeout_seconds: float | None = None,
    tls: ChannelTls | None = None,
    keepalive: Keepalive | None = None,
    max_message_bytes: int = 4 * 1024 * 1024,
    tenant: str | None = None,
    peer: str = "",
    api_key: Callable[[], Secret] | None = None,
) -> TenureChannel:
    """Opens a channel to `host:port` (all addresses that the name resolves to) or to several `ip:port`, used in turn.

    `addresses`: a sequence, or one string with commas.
    `tls`: how it connects by TLS. When the files of its certificates change, it replaces its connections.
    `tenant`: the tenant of all calls. Without it, each call has the tenant of the current request.
    `api_key`: returns the identity of a client of the gateway, asked for with each call.
    `peer`: the name of the service, which a TryLater error of a call has in its metadata under `PEER`.

    It needs a running event loop. Raises ValueError for several addresses that are not all IP addresses.
    """
    target = target_of(addresses.split(",") if isinstance(addresses, str) else addresses)
    options = channel_options(keepalive or Keepalive(), max_message_bytes)
    return TenureChannel(
        ChannelRenewal(target, options, tls), CallRules(default_timeout_seconds, tenant, peer, api_key)
    )


def target_of(addresses: Sequence[str]) -> str:
    """Returns the gRPC target for the addresses. Raises ValueError for several names: gRPC has no such target."""
    if not addresses:
        raise ValueError("a channel needs at least one address")
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
                f"{address}: several addresses must be IP addresses; use one name that resolves to all of them instead"
            ) from None
        numeric.append(f"{host}:{port}")
    if len(address_families) > 1:
        raise ValueError(f"{', '.join(addresses)}: IPv4 and IPv6 cannot be mixed in one channel")
    return f"ipv{address_families.pop()}:{','.join(numeric)}"


GATEWAY_PORT: Final = 8470


def gateway_addresses(text: str) -> str:
    """Returns the address of the gateway with its port; several replicas are separated by commas. Raises ValueError."""
    addresses = [_with_port(each.strip()) for each in text.split(",")]
    target_of(addresses)
    return ",".join(addresses)


def _with_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    is_bare = not colon or address.endswith("]")
    if not address or set(address) & {"/", " "} or not (is_bare or (port.isdecimal() and host)):
        raise ValueError(f"must be host:port, not {address!r}")
    return f"{address}:{GATEWAY_PORT}" if is_bare else address
