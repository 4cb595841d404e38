"""An endpoint that webhooks are sent to: a real HTTP server that checks every signature by the library receivers use.

receiver = await webhook_receiver()
receiver.secrets = [secret]
receiver.answer = lambda delivery: Reply(503)      # what it answers; else 200
await receiver.until(2)                             # the deliveries it took, in the order of their arrival
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.patience import PATIENCE_SECONDS
from tests.support.tcp_server import tcp_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Reply(NamedTuple):
    """The answer of the endpoint."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"ok"
    after: Awaitable[Any] | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request that came in. `valid`: how many of the receiver's secrets it is signed with."""

    webhook_id: str
    headers: dict[str, str]
    text: str
    valid: int

    @property
    def type(self) -> str:
        value: str = json.loads(self.text)["type"]
        return value

    @property
    def data(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.text)["data"]
        return value

    @property
    def task_id(self) -> str:
        value: str = self.data.get("task_id", "")
        return value


@dataclass
class Receiver:
    """`came` is all that arrived; `took` what was answered with 2xx."""

    url: str = ""
    secrets: list[str] = field(default_factory=list)
    answer: Callable[[Delivery], Reply] = lambda _delivery: Reply()
    came: list[Delivery] = field(default_factory=list)
    took: list[Delivery] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, count: int, of: Callable[[Delivery], bool] = lambda _delivery: True) -> list[Delivery]:
        """Waits for so many deliveries that it accepted, and returns them."""
        return await self._until(self.took, count, of)

    async def until_came(self, count: int, of: Callable[[Delivery], bool] = lambda _delivery: True) -> list[Delivery]:
        """Waits for so many deliveries, and returns them."""
        return await self._until(self.came, count, of)

    async def _until(self, where: list[Delivery], count: int, of: Callable[[Delivery], bool]) -> list[Delivery]:
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: len([one for one in where if of(one)]) >= count)
        return [one for one in where if of(one)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await _head(reader):
                if not head.startswith(f"POST {urlsplit(self.url).path} ".encode()):
                    return  # of another test, that had this port before
                headers = _headers(head)
                body = await reader.readexactly(int(headers["content-length"]))
                await self._respond(self._read(headers, body), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the sender is gone

    def _read(self, headers: dict[str, str], body: bytes) -> Delivery:
        valid = sum(_holds(secret, headers, body) for secret in self.secrets)
        return Delivery(headers["webhook-id"], headers, body.decode(), valid)

    async def _respond(self, delivery: Delivery, writer: asyncio.StreamWriter) -> None:
        reply = self.answer(delivery)
        async with self._news:
            self.came.append(delivery)
            self._news.notify_all()
        if reply.after is not None:
            await reply.after
        text = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
        head = f"HTTP/1.1 {reply.status} .\r\ncontent-length: {len(reply.body)}\r\n{text}\r\n"
        writer.write(head.encode() + reply.body)
        await writer.drain()
        if 200 <= reply.status < 300:
            async with self._news:
                self.took.append(delivery)
                self._news.notify_all()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")
    return {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }


def _holds(secret: str, headers: dict[str, str], body: bytes) -> bool:
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """An endpoint on a free port of this machine, for the time of the block."""
    receiver = Receiver()
    async with tcp_server(receiver.serve) as port:
        receiver.url = f"http://127.0.0.1:{port}/hook/{uuid4().hex}"
        yield receiver


class MakeReceiver(Protocol):
    """Starts an endpoint."""

    async def __call__(self) -> Receiver: ...


@pytest.fixture
async def webhook_receiver() -> AsyncIterator[MakeReceiver]:
    """Makes endpoints on free ports of this machine; they end with the test."""
    async with AsyncExitStack() as stack:

        async def make() -> Receiver:
            return await stack.enter_async_context(receiving())

        yield make
