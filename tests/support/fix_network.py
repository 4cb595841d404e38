"""Hosts that can be cut off from others: namespaces as root on Linux, else TCP proxies. A run's head says which.

host = network.host()
where = await host.reach("checkpoint", "127.0.0.1:20321")    # what a process on this host is to dial
process.command = host.command(process.command)
process.address = await host.serve(20400)                    # where we reach what listens on the host's 127.0.0.1:20400
host.cut("checkpoint"); host.cut("tools", Lost.ANSWERS); …; host.mend("tools")
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Self

import pytest

from tenure.runtime.store.postgres import PoolOptions
from tests.support.fix_proxy import HOST, Lost, TcpProxy
from tests.support.network_namespaces import (
    Cable,
    InwardRelay,
    Namespace,
    why_not,
)

CHOICE = "TENURE_TEST_NETWORK"
"""`proxies` takes them also where namespaces could be had."""


def reason_for_proxies() -> str:
    """Empty when hosts are namespaces."""
    return f"{CHOICE} asks for them" if os.environ.get(CHOICE) == "proxies" else why_not()


def pytest_report_header() -> str:
    """States which of the two makes the partitions of a run."""
    reason = reason_for_proxies()
    return f"partitions: by TCP proxies ({reason})" if reason else "partitions: of network namespaces"


class Host(ABC):
    """The host of one process, and its lines to others."""

    def __init__(self, opened: AsyncExitStack) -> None:
        self._opened = opened
        self._lines: dict[str, TcpProxy] = {}

    @abstractmethod
    def command(self, argv: list[str]) -> list[str]:
        """The command line that runs a program on this host."""

    @abstractmethod
    async def serve(self, port: int) -> str:
        """The address under which we reach what listens on 127.0.0.1:`port` there."""

    @abstractmethod
    def _line(self, target: tuple[str, int]) -> TcpProxy:
        """A line to a target, not started."""

    async def reach(self, name: str, address: str) -> str:
        """The address under which a process there reaches `address` of ours; the line can be cut by its name."""
        host, _, port = address.rpartition(":")
        line = self._lines[name] = self._line((host, int(port)))
        if name == "postgres" and isinstance(line, Cable):
            line.session_settings = PoolOptions().session_settings(None)
        await self._start(line)
        return line.address

    def cut(self, name: str, lost: Lost = Lost.EVERYTHING) -> None:
        """From now on nothing gets through, without an error: connections stay and are silent."""
        self._lines[name].deaf(lost)

    def mend(self, name: str) -> None:
        """The end of `cut`."""
        self._lines[name].observe()

    async def _start(self, proxy: TcpProxy) -> None:
        await proxy.start()
        self._opened.push_async_callback(proxy.stop)


class ProxiedHost(Host):
    """Not a host of its own: only its lines are."""

    def command(self, argv: list[str]) -> list[str]:
        return argv

    async def serve(self, port: int) -> str:
        return f"{HOST}:{port}"

    def _line(self, target: tuple[str, int]) -> TcpProxy:
        return TcpProxy(*target)


class NamespaceHost(Host):
    """A network namespace with one cable for each line."""

    def __init__(self, opened: AsyncExitStack, network: Network) -> None:
        super().__init__(opened)
        self._network = network
        self._namespace = network.namespace()

    def command(self, argv: list[str]) -> list[str]:
        return self._namespace.command(argv)

    async def serve(self, port: int) -> str:
        relay = InwardRelay(self._namespace, port)
        await self._start(relay)
        return relay.address

    def _line(self, target: tuple[str, int]) -> TcpProxy:
        return self._network.cable(self._namespace, target)


class Network:
    """Makes hosts; what it made is gone when it is closed, or when this process dies."""

    def __init__(self) -> None:
        self._opened = AsyncExitStack()
        self._cables = 0
        self._far: Namespace | None = None

    async def __aenter__(self) -> Self:
        if not reason_for_proxies():
            self._far = self.namespace()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    def host(self) -> Host:
        """A new one, with no line to anybody."""
        return ProxiedHost(self._opened) if self._far is None else NamespaceHost(self._opened, self)

    def namespace(self) -> Namespace:
        made = Namespace()
        self._opened.callback(made.close)
        return made

    def cable(self, near: Namespace, target: tuple[str, int]) -> Cable:
        assert self._far is not None
        made = Cable(self._cables, near, self._far, target)
        self._cables += 1
        made.lay()
        return made


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """Hosts for this test. What runs on them is to be ended before."""
    async with Network() as made:
        yield made
