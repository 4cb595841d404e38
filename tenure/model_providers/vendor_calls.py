"""Passes a request of a vendor's library on to the provider, and keeps the response as it came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from tenure.domain.models import ATTEMPT_HEADER
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelRequest, read_answer
from tenure.model_providers.endpoint import ModelOptions
from tenure.model_providers.http import timeout_of
from tenure.model_providers.stream import AnswerFold, AnswerTooLong, Event, EventStream
from tenure.model_providers.vendor_stream import VendorFold, VendorStream

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""The limit of a response: its record and every reader's copy of it is as large."""
TOO_LONG_REMEDY: Final = (
    "a model runner passes on no more: ask for less output, or set TENURE_WORKER_FUNCTIONS_USE_RUNNER=false for a "
    "worker that has the key"
)

Chunks = AsyncIterator[bytes]


@dataclass(slots=True)
class VendorCall(ModelCall):
    """A running call whose response is passed on. `body`: what has arrived. `content_type` "": no response yet."""

    fold: AnswerFold = field(default_factory=VendorFold)
    stream: EventStream = field(default_factory=VendorStream)
    content_type: str = ""
    body: bytearray = field(default_factory=bytearray)

    @property
    def held_bytes(self) -> int:
        """The bytes of the response so far."""
        return len(self.body)

    def forget_response(self) -> None:
        """Drops the response, of which readers get the rest from its record."""
        ModelCall.forget_response(self)
        self.body = bytearray()

    def observe(self, chunk: bytes) -> None:
        """Takes the next bytes. Raises MalformedAnswer and ErrorEvent, whose bytes are not passed on.

        Raises ModelCallFailed for too many: the same request would get as many again, and is paid for each time.
        """
        if len(self.body) + len(chunk) > MAX_RESPONSE_BYTES:
            raise _too_long(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
        try:
            ModelCall.observe(self, chunk)
        except AnswerTooLong as error:
            raise _too_long(str(error)) from error
        self.body += chunk
        self.on_usage()

    def observe_end(self) -> None:
        """Takes the end of the response. Some servers end a stream after its finish reason, without a last line."""
        ModelCall.observe_end(self)
        self.fold.stopped = self.fold.stopped or bool(self.fold.stop_reason)

    def _take_event(self, event: Event) -> None:
        self.fold.take(event)


def _too_long(why: str) -> ModelCallFailed:
    return ModelCallFailed(FailureClass.INVALID_REQUEST, f"{why}; {TOO_LONG_REMEDY}")


async def pass_on(
    client: Any,
    request: ModelRequest,
    call: ModelCall,
    options: ModelOptions,
    *,
    stream_class: type,
    id_header: str,
    readable: Callable[[Chunks], Chunks] | None = None,
) -> None:
    """Sends the request as it is, with the endpoint's name of the model, its headers and its members of the body.

    `readable`: returns server-sent events from the frames of a platform's streams. Raises as `ModelProvider.send`.
    """
    vendor = request.vendor
    assert vendor is not None, "a request of a vendor's library"
    assert isinstance(call, VendorCall), "its call"
    headers = {**options.extra_headers, ATTEMPT_HEADER: request.attempt}
    response: httpx2.Response = await client.post(
        vendor.path,
        cast_to=httpx2.Response,
        body={**options.extra_body, **vendor.members, "model": request.model},
        options={
            "headers": {**headers, **({"anthropic-beta": vendor.beta} if vendor.beta else {})},
            "timeout": timeout_of(request.silence_seconds if vendor.streams else None),
        },
        stream=True,
        stream_cls=stream_class,
    )
    async with aclosing(response):
        call.content_type = response.headers.get("content-type", "application/json")[:200]
        chunks: Chunks = response.aiter_bytes()
        await read_answer(
            call, response.headers, id_header, readable(chunks) if readable and vendor.streams else chunks
        )
