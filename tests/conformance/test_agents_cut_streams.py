"""An answer whose stream ends too early, without an error, is no answer of an agent: the attempt is made again.

The clients are real and ask the simulator. A transport drops the end of its streams, as a gateway does whose generator
stopped.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from devstack.simulator.simulator import ModelSimulator
from tenure.agents.vendor_clients import sending
from tenure.control.failures import failure_of
from tests.conformance.test_agents_outages import WAYS, simulator
from tests.support.journal_work import JournalWork
from tests.support.patience import CALL_SECONDS

__all__ = ("simulator",)

STREAMED = ("pydantic-messages", "pydantic-chat", "pydantic-responses", "sdk-chat", "sdk-responses")
END = re.compile(rb'event: message_delta|data: [^\n]*"finish_reason": ?"|event: response.completed')
FINISH = re.compile(rb'"finish_reason": ?"[a-z_]+"')


class Cutting(httpx2.AsyncHTTPTransport):
    """Reads each response to its end, and passes it on without what `drop` matches."""

    def __init__(self, drop: re.Pattern[bytes], *, to_the_end: bool) -> None:
        super().__init__()
        self._drop, self._to_the_end = drop, to_the_end

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        body = await response.aread()
        found = self._drop.search(body)
        assert found is not None, body
        cut = body[: found.start()] if self._to_the_end else self._drop.sub(b'"finish_reason": null', body)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(cut))


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), 7):
            yield self._body[at : at + 7]


async def answered(way: str, url: str, transport: httpx2.AsyncBaseTransport | None) -> JournalWork:
    work = JournalWork("Hello")
    async with httpx2.AsyncClient(timeout=CALL_SECONDS, transport=transport) as http:
        with sending(None):
            await WAYS[way](url, http, work)
    return work


@pytest.mark.parametrize("way", STREAMED)
async def test_answer_whose_stream_is_cut_off_is_a_failed_attempt(way: str, simulator: ModelSimulator) -> None:
    with pytest.raises(Exception) as raised:
        await answered(way, simulator.url, Cutting(END, to_the_end=True))
    failure = failure_of(raised.value)
    assert (failure.error_class, failure.retryable) == ("CONNECTION", True), failure
    assert "before the end of the answer" in failure.message


@pytest.mark.parametrize("way", STREAMED)
async def test_whole_answer_is_accepted(way: str, simulator: ModelSimulator) -> None:
    work = await answered(way, simulator.url, None)
    assert "".join(work.reports[0].texts)


async def test_answer_without_finish_reason_is_whole(simulator: ModelSimulator) -> None:
    """Some servers name none. They write [DONE]."""
    work = await answered("pydantic-chat", simulator.url, Cutting(FINISH, to_the_end=False))
    assert "".join(work.reports[0].texts)
