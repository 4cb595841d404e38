"""Failures of requests to the outside, as outcomes that the model reads."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpcore2

from services.tools.tool import ToolFailed
from tenure.runtime.checked_network import AddressRefused, Unresolved
from tenure.runtime.outgoing import BadEncoding

if TYPE_CHECKING:
    from collections.abc import Iterator


def told_failure(error: Exception, who: str, timeout_seconds: float) -> ToolFailed:
    """Of what a request raises; `who` begins the sentence, as in "The search service"."""
    match error:
        case AddressRefused():
            return ToolFailed(f"{who} is at a {error.kind} address: nothing was sent there.", "ADDRESS_REFUSED")
        case Unresolved():
            return ToolFailed(f"{who} cannot be found: its name has no address.", "UNRESOLVED")
        case TimeoutError() | httpcore2.TimeoutException():
            return ToolFailed(f"{who} did not answer within {timeout_seconds:g} s.", "TIMEOUT")
        case BadEncoding():
            return ToolFailed(f"{who} cannot be read: {error}.", "ENCODING_REFUSED")
        case httpcore2.ProtocolError():
            return ToolFailed(f"{who} does not speak HTTP as it should.", "BAD_ANSWER")
        case httpcore2.ConnectError():
            return _not_connected(error, who)
    return ToolFailed(f"{who} was asked, and the connection was lost before the whole answer came.", "CONNECTION_LOST")


def _not_connected(error: httpcore2.ConnectError, who: str) -> ToolFailed:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or "TLS failed"
            return ToolFailed(f"{who} cannot be trusted: {reason}. Nothing was sent there.", "TLS_FAILED")
    return ToolFailed(f"{who} cannot be reached.", "UNREACHABLE")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
