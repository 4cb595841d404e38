"""A dialler that notes the addresses that it dials, and a resolver whose answers are prepared.

Public addresses cannot be reached in tests: what is dialled is led to a server of this machine instead, and the note
says where it would have gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import httpcore2


class Dialler(httpcore2.AsyncNetworkBackend):
    """`servers`: the local (host, port) that stands for an address. The rest leads to `otherwise`; without it, it seems
    to be there without an owner.
    """

    def __init__(
        self,
        servers: Mapping[str, tuple[str, int]] | None = None,
        failing: Iterable[str] = (),
        otherwise: tuple[str, int] | None = None,
    ) -> None:
        self.dialled: list[tuple[str, int]] = []
        self._servers, self._failing, self._otherwise = dict(servers or {}), set(failing), otherwise
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((host, port))
        if host in self._failing:
            raise httpcore2.ConnectError(f"{host} is not there")
        server = self._servers.get(host, self._otherwise)
        if server is None:
            return httpcore2.AsyncNetworkStream()
        return await self._inner.connect_tcp(*server, *args, **kwargs)


def answering(answers: list[Sequence[str]]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Each answer is given once, in turn."""

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    return resolve


def knowing(names: Mapping[str, Sequence[str]]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """The same answer every time; none for other names."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        return names.get(host, ())

    return resolve
