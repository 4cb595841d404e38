"""The limits of this side's gRPC that tests have to know."""

from __future__ import annotations

from typing import Final

STREAM_ENDED_DURING_WRITE: Final = "Internal error from Core"
"""The details of INTERNAL, which grpc.aio makes up if a stream ends while it is written to: the server's status is lost
(1 of 500 refused streams on a busy machine). Bugs of a service are in its log as well."""
