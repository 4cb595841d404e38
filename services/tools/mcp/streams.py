"""What a stream of messages is to the protocol's package, apart from the messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import anyio
from mcp.shared.message import SessionMessage


class Reads(ABC):
    """Messages, one by one. `receive` raises EndOfStream at the end."""

    @abstractmethod
    async def receive(self) -> SessionMessage | Exception: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Writes(ABC):
    """`send` raises BrokenResourceError when nothing was sent."""

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
