"""Tells a streamed answer that was cut off from a whole one, at the HTTP response that a vendor's library reads.

The libraries take the end of a response for the end of the answer, so that the half of one would be recorded.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

_END: Final = re.compile(
    rb'^data: ?\[DONE\]|"(?:finish|stop)_reason"\s*:\s*"[^"]'
    rb'|"type"\s*:\s*"(?:message_stop|error|response\.(?:completed|incomplete|failed|cancelled))"',
    re.MULTILINE,
)
"""The signs of an end in the streams of all methods. Within a text of the answer their quotes are escaped."""
_SIGN_BYTES: Final = 64
"""More than the longest sign, which two pieces may share."""


def check_end(response: httpx2.Response) -> None:
    """Lets the reader of a stream of events get an error after an answer that was cut off."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        members: dict[str, Any] = vars(response)
        members["aiter_bytes"] = _checked(response)


def _checked(response: httpx2.Response) -> Any:
    plain = response.aiter_bytes

    async def read(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        """Yields the body. Raises httpx2.ReadError."""
        newest, size_bytes, is_whole = b"", 0, False
        async for chunk in plain(chunk_size):
            newest = newest[-_SIGN_BYTES:] + chunk
            size_bytes += len(chunk)
            is_whole = is_whole or _END.search(newest) is not None
            yield chunk
        if not is_whole:
            why = f"the stream ended after {size_bytes} bytes, before the end of the answer"
            raise httpx2.ReadError(why, request=response.request)

    return read
