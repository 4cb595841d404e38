"""The wires between the processes: a proxy for each caller and each peer, so that one wire can be cut alone.

A link is called `who>whom`, `worker-1>checkpoint-2`. The services' ports are known only once they run, so a link looks
them up for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from tests.support.fix_proxy import TcpProxy

LOOPBACK: Final = "127.0.0.1"


class Link(TcpProxy):
    """A proxy whose other end may move."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__(LOOPBACK, 0)
        self._where = where
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Accepts connections (again), also when several faults end at the same moment."""
        async with self._starting:
            await super().start()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._where().rpartition(":")
        return await asyncio.open_connection(host, int(port))


class Links:
    """All wires of an installation, by name. Open inside `async with`."""

    def __init__(self, find: Callable[[str], str]) -> None:
        """`find` tells the address of a process by its name, at the time it is needed."""
        self._find = find
        self.by_name: dict[str, Link] = {}

    async def open(self, who: str, whom: Iterable[str]) -> str:
        """Lays wires from one process to others; the addresses that the one dials, separated by commas."""
        opened = []
        for each in whom:
            link = self.by_name[f"{who}>{each}"] = Link(lambda each=each: self._find(each))  # type: ignore[misc]
            await link.start()
            opened.append(link.address)
        return ",".join(opened)

    async def heal(self) -> None:
        """Everything gets through again."""
        for link in self.by_name.values():
            link.observe()
            await link.start()

    async def close(self) -> None:
        for link in self.by_name.values():
            link.observe()
            await link.stop()


def through(dsn: str, link: str) -> str:
    """A Postgres URI that leads over the link at this address."""
    parts = urlsplit(dsn)
    account = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{account}@{link}"))


def address_of_dsn(dsn: str) -> str:
    return urlsplit(dsn).netloc.rpartition("@")[2]


async def lay(
    links: Links, names: Callable[[str], list[str]], postgres_dsn: str, etcd: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Every wire of the stack, and the environment that makes each process dial its own."""
    etcd, environment = list(etcd), {}
    for name in names("checkpoint"):
        environment[name] = {
            "TENURE_CHECKPOINT_POSTGRES_DSN": through(postgres_dsn, await links.open(name, ["postgres"]))
        }
    for name in names("tools"):
        environment[name] = {"TENURE_TOOLS_POSTGRES_DSN": through(postgres_dsn, await links.open(name, ["postgres"]))}
    for name in names("coordinator"):
        environment[name] = {
            "TENURE_COORDINATOR_ETCD_ENDPOINTS": await links.open(name, etcd),
            "TENURE_COORDINATOR_CHECKPOINT_ADDRESS": await links.open(name, names("checkpoint")),
            "TENURE_COORDINATOR_TOOLS_ADDRESS": await links.open(name, names("tools")),
        }
    for name in names("gateway"):
        environment[name] = {
            "TENURE_GATEWAY_CHECKPOINT_ADDRESS": await links.open(name, names("checkpoint")),
            "TENURE_GATEWAY_COORDINATOR_ADDRESS": await links.open(name, names("coordinator")),
            "TENURE_GATEWAY_TOOLS_ADDRESS": await links.open(name, names("tools")),
        }
    for name in names("worker"):
        environment[name] = {
            "TENURE_WORKER_COORDINATOR_ADDRESS": await links.open(name, names("coordinator")),
            "TENURE_WORKER_CHECKPOINT_ADDRESS": await links.open(name, names("checkpoint")),
            "TENURE_WORKER_TOOLS_ADDRESS": await links.open(name, names("tools")),
        }
    return environment
