"""The gRPC options of servers and channels: keepalive, message sizes, connection age and reconnects.

Every keepalive timeout is also set as `grpc.http2.ping_timeout_ms`: since grpc#34647 the default of that option, one
minute, overrides `grpc.keepalive_timeout_ms`, and a frozen peer would be noticed after 60 s instead of 8 s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

Options = list[tuple[str, str | int]]

STREAM_WINDOW_BYTES: Final = 512 * 1024

_ROUND_ROBIN: Final = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The keepalive pings of a connection: after how much silence, and how soon the peer must answer.

    Their sum is shorter than any deadline that matters: a call to a frozen replica breaks, and is repeated to another
    replica, before its caller gives up. Tenure's servers accept a ping every 2 s and close a connection that pings
    faster ("too many pings").
    """

    interval_seconds: float = 5.0
    timeout_seconds: float = 3.0
    without_calls: bool = True

    def options(self) -> Options:
        """Returns the channel arguments of gRPC."""
        timeout_ms = round(self.timeout_seconds * 1000)
        return [
            ("grpc.keepalive_time_ms", round(self.interval_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", int(self.without_calls)),
        ]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server.

    The server closes connections at `max_connection_age_seconds`, with an announcement and a grace period, so that
    clients spread over new replicas. Clients resume their streams.
    """

    max_message_bytes: int = 4 * 1024 * 1024
    max_concurrent_streams: int = 10_000
    max_connections: int = 10_000
    max_connection_age_seconds: float = 1800.0
    max_connection_age_grace_seconds: float = 60.0
    min_ping_interval_seconds: float = 2.0
    handshake_seconds: float = 20.0
    """For TLS and the first frame of HTTP/2. A caller that sends nothing holds one of the connections as long."""

    def options(self) -> Options:
        """Returns the channel arguments of gRPC."""
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_concurrent_streams", self.max_concurrent_streams),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_connection_age_ms", round(self.max_connection_age_seconds * 1000)),
            ("grpc.max_connection_age_grace_ms", round(self.max_connection_age_grace_seconds * 1000)),
            ("grpc.server_handshake_timeout_ms", round(self.handshake_seconds * 1000)),
            # The name differs from the macro's (…MIN_RECV_PING…), and gRPC ignores an unknown name: then the default of
            # five minutes ends every quiet connection at its third ping.
            ("grpc.http2.min_ping_interval_without_data_ms", round(self.min_ping_interval_seconds * 1000)),
            # Otherwise two servers on one port would silently share the calls between them.
            ("grpc.so_reuseport", 0),
        ]


def channel_options(keepalive: Keepalive, max_message_bytes: int) -> Options:
    """Returns the options of a channel between Tenure's processes: round robin over addresses, fast reconnects."""
    return [
        *keepalive.options(),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.service_config", _ROUND_ROBIN),
        # The default of up to two minutes between attempts is longer than any promised takeover.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        # The bytes that a stream may send ahead of its reader. By default gRPC measures the bandwidth, arrives at many
        # MiB on a busy machine, and buffers that much for every slow reader.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
        # Services connect directly: the environment's http_proxy is for connections to the outside.
        ("grpc.enable_http_proxy", 0),
    ]
