"""How connections behave on both ends: how soon a dead peer is noticed, how large a message may be.

`grpc.http2.ping_timeout_ms` goes along with every keepalive timeout: since grpc#34647 its default of a minute
overrides `grpc.keepalive_timeout_ms`, and a frozen peer would be noticed after 60 s instead of 8.
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
    """Ping after this much silence, and give the peer up when the answer takes longer than the timeout.

    Together they are shorter than any deadline that matters: a call to a frozen replica breaks, and is made again to
    another one, before its caller gives up. Servers here accept pings every 2 s and end a connection that pings faster
    ("too many pings").
    """

    interval_seconds: float = 5.0
    timeout_seconds: float = 3.0
    without_calls: bool = True

    def options(self) -> Options:
        """As gRPC names it."""
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
    """Bounds of one server. Connections are closed at `max_connection_age_seconds`, with an announcement and a grace,
    so that clients spread over new replicas; streams are resumed by their clients.
    """

    max_message_bytes: int = 4 * 1024 * 1024
    max_concurrent_streams: int = 10_000
    max_connection_age_seconds: float = 1800.0
    max_connection_age_grace_seconds: float = 60.0
    min_ping_interval_seconds: float = 2.0

    def options(self) -> Options:
        """As gRPC names it."""
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_concurrent_streams", self.max_concurrent_streams),
            ("grpc.max_connection_age_ms", round(self.max_connection_age_seconds * 1000)),
            ("grpc.max_connection_age_grace_ms", round(self.max_connection_age_grace_seconds * 1000)),
            # Named otherwise than its macro (…MIN_RECV_PING…), and an unknown name is ignored: then the default of five
            # minutes ends every quiet connection at its third ping.
            ("grpc.http2.min_ping_interval_without_data_ms", round(self.min_ping_interval_seconds * 1000)),
            # Two servers on one port would share the calls between them without anybody noticing.
            ("grpc.so_reuseport", 0),
        ]


def channel_options(keepalive: Keepalive, max_message_bytes: int) -> Options:
    """For every channel between our processes: addresses share the calls, and a lost one is tried again soon."""
    return [
        *keepalive.options(),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.service_config", _ROUND_ROBIN),
        # The default of up to two minutes between attempts is longer than any takeover we promise.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        # What a stream may send ahead of its reader. Left to itself gRPC measures how much fits on the line, comes to
        # many MiB on a busy machine, and holds that for every reader that is slow.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
        # Services meet directly: an http_proxy of the environment is meant for the outside.
        ("grpc.enable_http_proxy", 0),
    ]
