"""A DNS server of this process, by UDP: it answers some names, is silent about `*.silent`, and denies all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import aiodns
import pytest

_A = 1
_ANSWER, _NO_SUCH_NAME = b"\x81\x80", b"\x81\x83"


class DnsServer(asyncio.DatagramProtocol):
    """`asked`: the names in the order of their first questions, without repeats."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self.asked: dict[str, int] = {}
        self.address = ""
        self.silent_was_asked = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, kind, question = _question(data)
        self.asked[name] = self.asked.get(name, 0) + (kind == _A)
        if name.endswith(".silent"):
            self.silent_was_asked.set()
            return
        address = self._names.get(name)
        code = _NO_SUCH_NAME if address is None else _ANSWER
        record = b""
        if address is not None and kind == _A:
            record = b"\xc0\x0c\x00\x01\x00\x01" + (0).to_bytes(4) + b"\x00\x04" + IPv4Address(address).packed
        counts = b"\x00\x01" + (1 if record else 0).to_bytes(2) + b"\x00\x00\x00\x00"
        self._transport.sendto(data[:2] + code + counts + question + record, addr)


def _question(data: bytes) -> tuple[str, int, bytes]:
    labels, at = [], 12
    while length := data[at]:
        labels.append(data[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower(), int.from_bytes(data[at + 1 : at + 3]), data[12 : at + 5]


@asynccontextmanager
async def dns_server(monkeypatch: pytest.MonkeyPatch, names: Mapping[str, str]) -> AsyncIterator[DnsServer]:
    """Serves on 127.0.0.1. Resolvers that are made in the block ask this server, and no other."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        partial(DnsServer, names), local_addr=("127.0.0.1", 0)
    )
    with monkeypatch.context() as patch:
        patch.setattr(aiodns, "DNSResolver", partial(aiodns.DNSResolver, [server.address]))
        try:
            yield server
        finally:
            transport.close()
