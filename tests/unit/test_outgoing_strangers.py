"""What strangers answer takes neither the process's time nor its sockets."""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager

import httpcore2
import pytest
from h11 import _abnf, _readers

from tenure.domain.addresses import EVERYWHERE, Networks
from tenure.domain.urls import parse_url
from tenure.runtime.checked_network import CheckedBackend
from tenure.runtime.outgoing import Outgoing
from tests.strangers import Stranger, page

MOST_CPU_SECONDS = 4.0


@asynccontextmanager
async def outgoing(**settings):
    backend = CheckedBackend(Networks(EVERYWHERE), "tests", **settings)
    async with Outgoing(backend, most_connections=4) as connections:
        yield connections


async def test_a_header_of_blanks_holds_nobody_up(monkeypatch):
    """With h11 as it was shipped, until there is a backend for strangers."""
    monkeypatch.setattr(_readers, "header_field_re", re.compile(_abnf.header_field.encode("ascii")))
    answer = b"HTTP/1.1 200 OK\r\nx:" + b" " * 95_000 + b"\0\r\n\r\n"
    async with Stranger(lambda _: answer) as stranger, outgoing() as connections:
        began = time.process_time()
        with pytest.raises(httpcore2.RemoteProtocolError):
            async with connections.send("GET", parse_url(stranger.url()), []):
                pass
        assert time.process_time() - began < MOST_CPU_SECONDS


async def test_it_is_told_when_the_request_goes_out_and_not_before():
    told = []
    async with Stranger(lambda _: page("hello")) as stranger, outgoing() as connections:
        url = parse_url(stranger.url())
        async with connections.send("POST", url, [], b"x", connect_seconds=60, going_out=lambda: told.append(1)) as got:
            assert (await got.read(10)).content == b"hello"
    assert told == [1]
    async with outgoing() as connections:
        with pytest.raises(httpcore2.ConnectError):
            async with connections.send("POST", url, [], connect_seconds=60, going_out=lambda: told.append(2)):
                pass
    assert told == [1]
