"""Reads the bodies of requests, which may be large, slow or hostile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.problems import HttpRefusal
from tenure.domain.errors import InvalidRequest
from tenure.domain.tool_arguments import storable_json

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""As large as a message of gRPC may be."""
BODY_SECONDS: Final = 30.0
"""How long a body may take to arrive."""
MAX_ARRIVING_BYTES: Final = 256 * 1024 * 1024
"""Of all bodies that are arriving."""
MAX_STRANGERS_BYTES: Final = 16 * 1024
"""A larger body is read only after its caller is known (`HttpCall.known`)."""
MAX_JSON_VALUES: Final = 200_000
"""The commas and brackets of a body: the parser makes an object of each value."""


DROPPED_BYTES: Final = 16 * 1024 * 1024
DROP_SECONDS: Final = 5.0
"""Bounds of what is read and dropped of a body before an answer that does not need it."""


class DropsUnreadBody:
    """Reads and drops the rest of a body before the answer begins, within bounds.

    A client that sends its body before it reads, as Python's http.client does, would lose an answer after which the
    connection closes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        headers = Headers(scope=scope)
        has_more = ("content-length" in headers or "transfer-encoding" in headers) and "expect" not in headers

        async def noted() -> Message:
            nonlocal has_more
            message = await receive()
            has_more = has_more and message.get("more_body", False)
            return message

        async def after_the_body(message: Message) -> None:
            if message["type"] == "http.response.start" and has_more:
                dropped_bytes = 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(DROP_SECONDS):
                        while has_more and dropped_bytes < DROPPED_BYTES:
                            dropped_bytes += len((await noted()).get("body", b""))
            await send(message)

        await self._app(scope, noted, after_the_body)


class _Arriving:
    """The bodies of this process that are arriving."""

    size_bytes = 0


def may_be_large(request: Request) -> bool:
    """Whether the body may have more than MAX_STRANGERS_BYTES, by the length that its head states."""
    stated = request.headers.get("content-length", "")
    return not (stated.isdecimal() and int(stated[:18]) <= MAX_STRANGERS_BYTES) and (
        bool(stated) or "transfer-encoding" in request.headers
    )


async def json_body(request: Request) -> Any:
    """Returns the JSON of a request, {} without a body. Raises InvalidRequest and HttpRefusal."""
    raw = await raw_body(request)
    if not raw:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpRefusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "NOT_JSON", "the body must be JSON: send Content-Type: application/json"
        )
    return parsed_json(raw)


def parsed_json(raw: bytes) -> Any:
    """Returns the JSON of a body. Raises InvalidRequest."""
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise InvalidRequest(f"the body has more than {MAX_JSON_VALUES:,} JSON values", reason="BAD_JSON")
    try:
        return storable_json(raw.decode())
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", reason="BAD_JSON") from None


async def raw_body(request: Request, most_bytes: int | None = None) -> bytes:
    """Returns the body. Raises HttpRefusal for one that is too large or too slow. `most_bytes`: MAX_BODY_BYTES."""
    cure = ": send less at once, for example files with several messages" if most_bytes is None else ""
    most_bytes = MAX_BODY_BYTES if most_bytes is None else most_bytes
    message = f"the body has more than {most_bytes:,} bytes{cure}"
    too_large = HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", message)
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or len(stated) > 18 or int(stated) > most_bytes:
        raise too_large
    parts, size_bytes = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size_bytes += len(part)
                _Arriving.size_bytes += len(part)
                if size_bytes > most_bytes:
                    raise too_large
                if _Arriving.size_bytes > MAX_ARRIVING_BYTES:
                    status = HTTPStatus.SERVICE_UNAVAILABLE
                    raise HttpRefusal(status, "BODIES_FULL", "too many requests with large bodies arrive: try again")
                parts.append(part)
    except TimeoutError:
        raise HttpRefusal(
            HTTPStatus.REQUEST_TIMEOUT, "BODY_TOO_SLOW", f"the body did not arrive within {BODY_SECONDS:.0f} s"
        ) from None
    finally:
        _Arriving.size_bytes -= size_bytes
    return b"".join(parts)
