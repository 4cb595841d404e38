"""The body of a model endpoint's response is bounded, whatever its status, its encoding or its length says."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tenure.domain.retry import FailureClass
from tenure.model_providers import http
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelRequest
from tests.support.http_stub import HttpStub, Seen, page
from tests.support.model_clients import model_client
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first

MAX_MEMORY_BYTES = 32 * 1024 * 1024
BOMB = gzip.compress(bytes(4 * MAX_MEMORY_BYTES))


def endless(status: str, encoding: str = "") -> Callable[[Seen], AsyncIterator[bytes]]:
    async def answer(_seen: Seen) -> AsyncIterator[bytes]:
        header = f"content-encoding: {encoding}\r\n" if encoding else ""
        yield f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\n{header}connection: close\r\n\r\n".encode()
        while True:
            yield gzip.compress(b"") * 1000 if encoding else b"no end " * 10_000

    return answer


def request_of(model: str) -> ModelRequest:
    return ModelRequest(model, [{"role": "user", "content": "hello"}], 100)


async def failure_of(model: str, answer: Any) -> ModelCallFailed:
    """Returns the failure, which took little memory and left the connection."""
    async with asyncio.timeout(PATIENCE_SECONDS), HttpStub(answer) as endpoint:
        async with model_client(endpoint.url("")) as client:
            tracemalloc.start()
            try:
                with pytest.raises(ModelCallFailed) as failed:
                    await client.answer(request_of(model), ModelCall(lambda _index, _text: None, lambda: None))
                assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY_BYTES
            finally:
                tracemalloc.stop()
        await endpoint.left.wait()
    return failed.value


@pytest.mark.parametrize("model", ["m", "openai/m"])
@pytest.mark.parametrize(
    ("status", "failure_class"),
    first([("500 No", FailureClass.SERVER_ERROR), ("401 No", FailureClass.AUTHENTICATION)]),
)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless, id="endless"),
        pytest.param(lambda status: endless(status, "gzip"), id="endless, unpacks to nothing"),
        pytest.param(lambda status: lambda _: page(BOMB, status, content_encoding="gzip"), id="bomb"),
        pytest.param(lambda status: lambda _: page("words", status, content_encoding="gzip"), id="not gzip"),
        pytest.param(lambda status: lambda _: page("words", status, content_encoding="br"), id="unknown"),
    ],
)
async def test_body_of_a_refusal_is_cut_off_and_its_status_counts(
    model: str, status: str, failure_class: FailureClass, answer: Any
) -> None:
    failure = await failure_of(model, answer(status))
    assert (failure.error_class, failure.status_code) == (failure_class, int(status[:3]))


@pytest.mark.parametrize("model", ["m", "openai/m"])
async def test_message_of_a_packed_refusal_is_read(model: str) -> None:
    body = gzip.compress(b'{"error": {"type": "overloaded_error", "message": "too many of you"}}')
    failure = await failure_of(model, lambda _: page(body, "500 No", content_encoding="gzip"))
    assert failure.message == "too many of you"


@pytest.mark.parametrize("model", ["m", "openai/m"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless("200 OK", "gzip"), "has more than 1000000 bytes"),
        (lambda _: page(BOMB, content_encoding="gzip"), "has more than 1000000 bytes"),
        (lambda _: page("words", content_encoding="gzip"), "is not valid gzip"),
        (lambda _: page("words", content_encoding="br"), "unsupported encoding br"),
    ],
    ids=["endless", "bomb", "not gzip", "unknown"],
)
async def test_answer_beyond_its_bound_is_a_broken_stream(
    monkeypatch: pytest.MonkeyPatch, model: str, answer: Any, message: str
) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1_000_000)
    failure = await failure_of(model, answer)
    assert failure.error_class is FailureClass.BROKEN_STREAM
    assert message in failure.message


async def test_count_of_tokens_beyond_its_bound_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1_000_000)
    async with asyncio.timeout(PATIENCE_SECONDS), HttpStub(endless("200 OK")) as endpoint:
        async with model_client(endpoint.url("")) as client:
            assert await client.count(request_of("m")) is None
        await endpoint.left.wait()
