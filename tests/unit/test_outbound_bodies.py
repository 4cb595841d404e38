"""Bodies of other servers are unpacked within a bound, in memory and in messages."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpcore2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.runtime.http.body_decoder import BadEncoding
from tenure.runtime.http.outbound_http import HttpResponse


def answer(chunks: Any, encoding: Any) -> Any:
    async def stream() -> AsyncGenerator[Any]:
        for chunk in chunks:
            yield chunk

    return HttpResponse(200, {"content-encoding": encoding}, httpcore2.Response(200, content=stream()))


def cut_up(content: Any, size: Any) -> Any:
    return [content[start : start + size] for start in range(0, len(content), size)]


async def test_a_bomb_takes_no_more_memory_than_its_cap() -> None:
    bomb = gzip.compress(bytes(128 << 20))
    tracemalloc.start()
    try:
        body = await answer(cut_up(bomb, 65536), "gzip").read(1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(body.content), body.is_whole) == (1 << 20, False)
    assert peak_bytes < 8 << 20


async def test_a_compression_bomb_is_read_up_to_the_cap() -> None:
    """Endless empty files: nothing comes out, and still they are not read for ever."""
    read = 0

    async def endless() -> AsyncGenerator[Any]:
        nonlocal read
        while True:
            read += 1
            yield gzip.compress(b"") * 100

    body = await HttpResponse(200, {"content-encoding": "gzip"}, httpcore2.Response(200, content=endless())).read(
        100_000
    )
    assert not body.is_whole
    assert read < 100


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    "identity": lambda content: content,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda content: zlib.compress(content)[2:-4],
    "X-GZIP ": lambda content: gzip.compress(content[:9]) + gzip.compress(content[9:]) + b"\0\0",
}


@given(st.binary(max_size=300), st.sampled_from(sorted(PACK)), st.integers(1, 50), st.integers(0, 400))
async def test_unpacked_bytes_are_equal_across_any_cut(
    content: bytes, encoding: Any, size: int, most_bytes: int
) -> None:
    packed = PACK[encoding](content)
    body = await answer(cut_up(packed, size), encoding).read(most_bytes)
    assert len(body.content) <= most_bytes
    assert content.startswith(body.content)
    if len(packed) <= most_bytes and len(content) <= most_bytes:
        assert body.is_whole
        assert body.content == content


@given(st.binary(max_size=100), st.sampled_from(["gzip", "deflate"]))
async def test_wrong_encodings_are_refused_or_bounded(content: bytes, encoding: str) -> None:
    try:
        body = await answer([content], encoding).read(1000)
    except BadEncoding:
        return
    assert len(body.content) <= 1000


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
async def test_other_encodings_are_refused_before_a_byte_is_read(encoding: Any) -> None:
    with pytest.raises(BadEncoding) as refused:
        await answer([], encoding).read(1000)
    assert len(str(refused.value)) < 200
