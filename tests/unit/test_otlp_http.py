"""An export over HTTP ends in a bounded time and memory, and goes to the configured collector only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tenure.runtime.observability.otlp_http import OtlpAnswer, OtlpHttp
from tenure.runtime.observability.otlp_target import HttpTarget
from tests.support.http_stub import HttpStub, page
from tests.support.patience import PATIENCE_SECONDS

HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


async def post(stub: HttpStub, timeout_seconds: float) -> OtlpAnswer:
    http = OtlpHttp(HttpTarget(stub.url("/v1/traces")), timeout_seconds)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.to_thread(http.post, b"spans")
    finally:
        http.close()


async def endless(part: bytes, pause_seconds: float) -> AsyncIterator[bytes]:
    yield HEAD
    while True:
        yield part
        await asyncio.sleep(pause_seconds)


@pytest.mark.parametrize(("part", "pause_seconds", "timeout_seconds"), [(b"x", 0.05, 0.3), (b"x" * 65_536, 0.0, 60.0)])
async def test_endless_answer_is_cut(part: bytes, pause_seconds: float, timeout_seconds: float) -> None:
    async with HttpStub(lambda _: endless(part, pause_seconds)) as stub:
        answer = await post(stub, timeout_seconds)
    assert answer.is_success
    assert 0 < len(answer.body) <= 65_536


async def test_redirect_is_not_followed() -> None:
    async with HttpStub(lambda _: page(status="307 Temporary Redirect", location="/elsewhere")) as stub:
        answer = await post(stub, 10.0)
    assert (answer.status, answer.is_success) == (307, False)
    assert [seen.target for seen in stub.seen] == ["/v1/traces"]
