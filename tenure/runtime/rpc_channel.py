"""Channels between our processes, whose calls end in domain errors and say whose request they are.

The channel wraps the calls instead of intercepting them: `grpc.aio` starts a task for every intercepted call and hides
the call behind it, which costs a stream of frames more than all the rest of this module. A wrapped message costs
one plain await.

What differs from a bare channel, for every stub made on it:
- errors are `TenureError` or `PeerFailed`, never `AioRpcError`;
- a unary call needs `timeout=` (seconds), its own or the channel's default;
- the tenant goes along in the metadata: the channel's own, or that of the request being answered.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

import grpc

from tenure.runtime.rpc_calls import CallRules, wrapped
from tenure.runtime.rpc_options import Keepalive, channel_options

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    families = set()
    numeric = []
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        host = _LOCALHOST.get(host, host)
        try:
            families.add(ip_address(host.strip("[]")).version)
        except ValueError:
            raise ValueError(
                f"{address}: several addresses of one service must be IPs; give one name that resolves to all of them"
            ) from None
        numeric.append(f"{host}:{port}")
    if len(families) > 1:
        raise ValueError(f"{', '.join(addresses)}: IPv4 and IPv6 cannot be mixed in one channel")
    return f"ipv{families.pop()}:{','.join(numeric)}"
