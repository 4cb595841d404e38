"""Holds a channel to each member of an etcd cluster, and chooses the member for the next call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import grpc
import grpc.aio

from services.coordinator.etcd.stubs import KVStub, LeaseStub, MaintenanceStub, WatchStub

# etcd answers pings that come more often than every 5 s (its --grpc-keepalive-min-time) with GOAWAY.
_PING_INTERVAL_MS = 6_000
_PING_TIMEOUT_MS = 2_000

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    # Without this option a frozen peer is detected only after a minute, whatever keepalive_timeout_ms says.
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    # etcd permits no pings on a connection without streams.
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # A returning member must be noticed within a second, not after the default of two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # Clients do not share connections, so that a broken one affects one client only.
    ("grpc.use_local_subchannel_pool", 1),
    # etcd runs inside the cluster; http_proxy is for traffic that leaves it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),
)

# Makes a member without a leader refuse at once, instead of holding the call until its timeout.
REQUIRE_LEADER = (("hasleader", "true"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """PEM bytes: the authority of etcd's certificates, and this client's certificate and key (both or neither)."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate needs its key, and a key its certificate")


class Endpoint:
    """One member: its channel and its stubs."""

    def __init__(self, target: str, channel: grpc.aio.Channel) -> None:
        self.target = target
        self.channel = channel
        self.kv = KVStub(channel)
        self.lease = LeaseStub(channel)
        self.watch = WatchStub(channel)
        self.maintenance = MaintenanceStub(channel)


class Endpoints:
    """All members. `current` is the member to use; a caller that finds it failing calls `rotate`.

    Targets are `host:port`, `http://host:port` or `https://host:port`. TLS is used when any target is https or a
    TlsIdentity is given; the two kinds do not mix. Create, use and close it in one event loop.
    """

    def __init__(self, targets: Sequence[str], tls: TlsIdentity | None = None) -> None:
        hosts, secure = parse_targets(targets)
        if tls is not None and not secure and any(target.startswith("http://") for target in targets):
            raise ValueError("a TLS identity was given for endpoints that say http://")
        identity = tls or (TlsIdentity() if secure else None)
        self._members = [Endpoint(host, _channel(host, identity)) for host in hosts]
        self._index = 0

    @property
    def current(self) -> Endpoint:
        """The member to use."""
        return self._members[self._index]

    def __len__(self) -> int:
        return len(self._members)

    def rotate(self, failed: Endpoint) -> None:
        """Moves to the next member if `failed` is still the current one, because many callers find the same failure."""
        if failed is self.current:
            self._index = (self._index + 1) % len(self._members)

    async def aclose(self) -> None:
        """Closes all channels, which cancels running calls."""
        await asyncio.gather(*(member.channel.close() for member in self._members))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def parse_targets(targets: Sequence[str]) -> tuple[list[str], bool]:
    """Splits endpoints into `host:port` and whether they need TLS. Raises ValueError on an unusable list."""
    if not targets:
        raise ValueError("no etcd endpoint given")
    schemes: set[str] = set()
    hosts: list[str] = []
    for target in targets:
        scheme, separator, rest = target.strip().rpartition("://")
        host, _, port = rest.rstrip("/").rpartition(":")
        if (separator and scheme not in {"http", "https"}) or not host or not port.isdecimal():
            raise ValueError(f"not an etcd endpoint: {target!r} (host:port, http://host:port or https://host:port)")
        schemes.add(scheme or "http")
        hosts.append(f"{host}:{port}")
    if len(schemes) > 1:
        raise ValueError("etcd endpoints with and without TLS do not mix")
    return hosts, schemes == {"https"}


def _channel(host: str, tls: TlsIdentity | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(host, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(host, credentials, options=CHANNEL_OPTIONS)
