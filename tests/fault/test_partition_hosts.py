"""Laws of the hosts that partitions are made with, of both kinds: the instrument has to be right too."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fix_network import CHOICE, Network, reason_for_proxies
from tests.support.fix_proxy import Lost
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

CLIENT = """
import socket, sys
host, port = sys.argv[1].split(":")
with socket.create_connection((host, int(port)), timeout=60) as talk:
    for line in sys.stdin:
        talk.sendall(line.encode())
        print(talk.recv(100).decode(), end="", flush=True)
"""
SERVER = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    talk, _ = server.accept()
    talk.sendall(b"from inside")
"""


@pytest.fixture(params=["namespaces", "proxies"])
async def hosts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A network of each kind; without namespaces here, the run's head says so and this is the other kind twice."""
    if request.param == "proxies":
        monkeypatch.setenv(CHOICE, "proxies")
    async with Network() as network:
        yield network


@asynccontextmanager
async def echo() -> AsyncGenerator[Any]:
    """The port, and the list of what arrived."""
    arrived: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            arrived.append(line)
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], arrived


@asynccontextmanager
async def running(host: Any, program: str, *arguments: str) -> AsyncGenerator[Any]:
    """A program on a host."""
    command = host.command([sys.executable, "-c", program, *arguments])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


def client_on(host: Any, address: str) -> Any:
    """Says what it reads and prints what it hears."""
    return running(host, CLIENT, address)


async def hears(process: Any, within_seconds: float = PATIENCE_SECONDS) -> bytes:
    async with asyncio.timeout(within_seconds):
        answer: bytes = await process.stdout.readline()
        return answer


async def test_a_cut_line_is_silent_and_loses_no_connection(hosts: Any) -> None:
    host = hosts.host()
    async with (
        echo() as (port, arrived),
        running(host, CLIENT, await host.reach("echo", f"127.0.0.1:{port}")) as client,
    ):
        client.stdin.write(b"one\n")
        assert await hears(client) == b"one\n"
        host.cut("echo")
        client.stdin.write(b"two\n")
        with pytest.raises(TimeoutError):
            await hears(client, 0.3)
        assert arrived == [b"one\n"]
        host.mend("echo")
        assert await hears(client) == b"two\n"


async def test_a_line_can_lose_one_direction_only(hosts: Any) -> None:
    host = hosts.host()
    async with (
        echo() as (port, arrived),
        running(host, CLIENT, await host.reach("echo", f"127.0.0.1:{port}")) as client,
    ):
        client.stdin.write(b"one\n")
        assert await hears(client) == b"one\n"
        host.cut("echo", Lost.ANSWERS)
        client.stdin.write(b"two\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(arrived) < 2:
                await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await hears(client, 0.3)
        host.mend("echo")
        assert await hears(client) == b"two\n"


async def test_other_lines_and_hosts_are_not_cut(hosts: Any) -> None:
    first, second = hosts.host(), hosts.host()
    async with echo() as (port, _):
        cut, kept = await first.reach("cut", f"127.0.0.1:{port}"), await first.reach("kept", f"127.0.0.1:{port}")
        others = await second.reach("cut", f"127.0.0.1:{port}")
        first.cut("cut")
        for host, address in ((first, kept), (second, others)):
            async with client_on(host, address) as client:
                client.stdin.write(b"hello\n")
                assert await hears(client) == b"hello\n"
        async with client_on(first, cut) as client:
            client.stdin.write(b"hello\n")
            with pytest.raises(TimeoutError):
                await hears(client, 0.3)


async def test_listeners_on_a_host_can_be_reached(hosts: Any) -> None:
    host = hosts.host()
    async with running(host, SERVER) as server:
        where, _, port = (await host.serve(int(await hears(server)))).rpartition(":")
        reader, writer = await asyncio.open_connection(where, int(port))
        assert await reader.readexactly(11) == b"from inside"
        writer.close()


async def test_nothing_of_a_network_is_left_behind() -> None:
    async with Network() as network, echo() as (port, _):
        host = network.host()
        await host.reach("echo", f"127.0.0.1:{port}")
        inside = host.command(["true"])
    if not reason_for_proxies():
        path = next(part for part in inside if part.startswith("--net=")).removeprefix("--net=")
        assert not os.path.exists(path)  # noqa: PTH110  of a process that is gone
